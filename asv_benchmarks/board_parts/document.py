"""The contents of docs/board.json: the figures of the first half of the tables, and what the second half gives.

The figures of single tables of the second half are not kept, so that nobody can work on them.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from board_parts.overview import behind, distances, scores_of, standings
from board_parts.sides import BASELINE
from board_parts.splits import splits_of
from board_parts.tables import TABLES, traits

SCORES = ("crps", "log_score", "rmse", "coverage", "width")
CLASS_SCORES = ("log_loss", "error_rate")
COSTS = ("seconds", "prediction_seconds", "mebibytes")
LIST = re.compile(r"\[[^][{}]*\]")
"""A list in JSON without lists or objects in it."""
DIGITS = 5
"""Number of significant digits of the figures."""


def updated(document: dict[str, Any], cells: list[dict[str, Any]], *, final: bool) -> dict[str, Any]:
    """Return the contents with the results of the cells, which replace those of the first half.

    Parameters
    ----------
    document
        The contents so far.
    cells
        The results of the cells of either half.
    final
        Whether to take what the second half gives. If not, its cells are ignored.

    Raises
    ------
    ValueError
        If the results of a half are of several commits of agp, if cells were stopped at different limits, or if some
        splits of a side lack results.
    """
    halves: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for cell in cells:
        halves[TABLES[cell["table"]].in_first_half].append(cell)
    found = {**document, **(_collected(halves[True]) if halves[True] else {})}
    if final:
        second = _collected(halves[False])
        if second["small"] or not second["commit"]:
            raise ValueError("the second half needs results of agp from a full run: run board.py run --final.")
        found["final"] = {**document["final"], second["commit"]: summary(second)}
    return found


def as_text(document: dict[str, Any]) -> str:
    """The contents in JSON, with each list of numbers or words on one line."""
    return LIST.sub(lambda match: re.sub(r"\n *", " ", match[0]), json.dumps(document, indent=1)) + "\n"


def _collected(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """The settings, versions, machines and figures of the cells of one half."""
    versions: dict[str, set[str]] = defaultdict(set)
    for cell in cells:
        for library, version in cell.get("versions", {}).items():
            versions[library].add(version)
    groups = {name: [cell for cell in cells if cell["table"] == name] for name in TABLES}
    return {
        "commit": _single("commits of agp", (cell["commit"] for cell in cells if cell["side"] == "agp")),
        "limit": _limit(cells),
        "small": any(cell["small"] for cell in cells),
        "machines": [dict(one) for one in sorted({tuple(cell["machine"].items()) for cell in cells})],
        "versions": {name: sorted(found) for name, found in sorted(versions.items())},
        "tables": {name: _table(name, group) for name, group in groups.items() if group},
    }


def _limit(cells: list[dict[str, Any]]) -> int | None:
    """The largest limit, which all cells that were stopped must have had."""
    limit = max((cell["limit"] for cell in cells), default=None)
    for cell in cells:
        if cell.get("limited") and cell["limit"] != limit:
            where = f"{cell['table']}, split {cell['split']}, {cell['side']}"
            raise ValueError(
                f"{where} was stopped after {cell['limit']} s, others had {limit} s; run again with --limit {limit}."
            )
    return limit


def _single(what: str, values: Iterable[Any]) -> Any:
    found = sorted(set(values))
    if len(found) > 1:
        raise ValueError(
            f"the results are of several {what}: {', '.join(map(str, found))}; run the missing cells again."
        )
    return found[0] if found else None


def _table(name: str, cells: list[dict[str, Any]]) -> dict[str, Any]:
    """The description of a table and the figures of its sides, as lists over the splits."""
    table = TABLES[name]
    frame = table.frame()
    sides: dict[str, dict[int, Any]] = {}
    for cell in cells:
        sides.setdefault(cell["side"], {})[cell["split"]] = cell
    splits = splits_of(small=cells[0]["small"])
    for side in [BASELINE, *sides]:
        if lacking := set(range(splits)) - set(sides.get(side, {})):
            raise ValueError(
                f"{name}, split {min(lacking)}, {side} has no result; repeat board.py run until it is done."
            )
    scores = CLASS_SCORES if table.is_classes else SCORES
    return {
        "kind": table.kind,
        "package": table.package,
        "target": table.target,
        "rows": len(frame),
        "columns": frame.shape[1] - 1,
        "classes": int(frame[table.target].nunique()) if table.is_classes else 0,
        "traits": sorted(traits(table, frame)),
        "sides": {side: _side([sides[side][split] for split in range(splits)], scores) for side in sorted(sides)},
    }


def _side(cells: list[dict[str, Any]], scores: tuple[str, ...]) -> dict[str, Any]:
    """The figures of one side on one table; None for the splits in which it failed."""
    found: dict[str, Any] = {name: [_rounded(cell.get(name)) for cell in cells] for name in (*scores, *COSTS)}
    if errors := list(dict.fromkeys(cell["error"] for cell in cells if "error" in cell)):
        found["errors"] = errors
    choices = [cell["facts"] for cell in cells if cell.get("facts")]
    return found | ({"facts": choices[0]} if choices else {})


def _rounded(x: float | None) -> float | None:
    return None if x is None else float(f"{x:.{DIGITS}g}")


def summary(document: dict[str, Any]) -> dict[str, Any]:
    """What a half says as a whole: standings by the main score, and how far agp is from the best other side."""
    scores = scores_of(document, "main")
    found = distances(scores)
    return {
        "tables": len(scores),
        "behind": len(behind(found)),
        "median ratio": _rounded(float(np.median([one.ratio for one in found]))) if found else None,
        "standings": [vars(one) for one in standings(scores)],
    }
