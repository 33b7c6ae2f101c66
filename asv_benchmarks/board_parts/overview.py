"""What the results of many tables say together: ranks, distances from the best side, and where agp is behind.

Results are scores by table and side, averaged over the splits. The *main* score of a table is the CRPS or, for classes,
the log loss. A side that failed in a split gets the score of the baseline there, which ignores the inputs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from options import AGAINST

from board_parts.sides import BASELINE, SIDES

Scores = dict[str, dict[str, float]]
"""A score by table and side."""
NEAR = 1.03
"""A score within this factor of the best counts as level with it."""
DRAWS, BOUNDS = 10_000, (0.05, 0.95)
"""Number of bootstrap samples of tables, and the quantiles of mean ranks that are reported."""


@dataclass(frozen=True)
class Standing:
    """How one side compares with the others over several tables."""

    side: str
    rank: float
    """Mean rank; 1 is the best."""
    low: float
    high: float
    """Quantiles of the mean rank if the tables are drawn again with replacement."""
    near: float
    """Share of the tables on which the side is the best or level with the best."""


@dataclass(frozen=True)
class Distance:
    """How far a side is behind the best other side on one table."""

    table: str
    best: str
    """The best other side."""
    ratio: float
    """The side's score over that of the best."""


def scores_of(document: dict[str, Any], measure: str) -> Scores:
    """The mean of a measure over the splits of each table, by side.

    Parameters
    ----------
    document
        The contents of docs/board.json.
    measure
        The name of a score, or "main".
    """
    found: Scores = {}
    for name, table in document["tables"].items():
        wanted = main_measure(table) if measure == "main" else measure
        base = table["sides"].get(BASELINE, {}).get(wanted)
        of_sides = {side: _mean(figures.get(wanted), base) for side, figures in table["sides"].items()}
        found[name] = {side: x for side, x in of_sides.items() if x is not None}
    return {name: of_sides for name, of_sides in found.items() if of_sides}


def main_measure(table: dict[str, Any]) -> str:
    """Name of the main score of a table."""
    return "log_loss" if table["classes"] else "crps"


def _mean(values: list[float | None] | None, base: list[float | None] | None) -> float | None:
    """Mean over splits, with the baseline's value where a side failed; None without values."""
    if values is None or base is None:
        return None
    filled = [b if x is None else x for x, b in zip(values, base, strict=True)]
    return None if None in filled else float(np.mean(filled))  # type: ignore[arg-type]


def general_sides(scores: Scores) -> list[str]:
    """The sides with a score on every table, in the order of `SIDES`; other checkouts of agp are left out."""
    everywhere = set.intersection(*(set(of_sides) for of_sides in scores.values())) if scores else set()
    return [side for side in SIDES if side in everywhere]


def standings(scores: Scores) -> list[Standing]:
    """The sides with a score on every table, by their mean rank; ties get the mean of their ranks."""
    sides = general_sides(scores)
    if not sides:
        return []
    values = np.asarray([[of_sides[side] for side in sides] for of_sides in scores.values()])
    ranks = 1.0 + np.sum(values[:, None] < values[:, :, None], axis=2)
    ranks += 0.5 * (np.sum(values[:, None] == values[:, :, None], axis=2) - 1.0)
    drawn = np.random.default_rng(0).integers(len(ranks), size=(DRAWS, len(ranks)))
    low, high = np.quantile(ranks[drawn].mean(axis=1), BOUNDS, axis=0)
    near = np.mean([_is_near(row, np.min(row)) for row in values], axis=0)
    mean = ranks.mean(axis=0)
    found = [Standing(side, *map(float, x)) for side, *x in zip(sides, mean, low, high, near, strict=True)]
    return sorted(found, key=lambda one: one.rank)


def _is_near(values: Any, best: float) -> Any:
    return values <= best * NEAR


def distances(scores: Scores, side: str = "agp") -> list[Distance]:
    """How far a side is from the best other side on every table, the farthest first."""
    found = []
    for table, of_sides in scores.items():
        others = {name: x for name, x in of_sides.items() if name != side and not name.startswith(AGAINST)}
        if side in of_sides and others:
            best = min(others, key=lambda name: others[name])
            found.append(Distance(table, best, of_sides[side] / max(others[best], np.finfo(float).tiny)))
    return sorted(found, key=lambda one: -one.ratio)


def behind(found: Iterable[Distance]) -> list[Distance]:
    """The tables on which the side is behind by more than counts as level."""
    return [one for one in found if one.ratio > NEAR]


def wins(scores: Scores, one: str, other: str) -> tuple[int, int, int]:
    """Number of tables on which one side is better than the other, level with it, and worse."""
    pairs = [(of_sides[one], of_sides[other]) for of_sides in scores.values() if {one, other} <= set(of_sides)]
    better, worse = (sum(a * NEAR < b for a, b in those) for those in (pairs, [(b, a) for a, b in pairs]))
    return better, len(pairs) - better - worse, worse
