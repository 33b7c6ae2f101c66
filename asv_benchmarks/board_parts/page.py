"""The page docs/board.md and the passages of other pages that state its results, as Markdown from docs/board.json."""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from options import AGAINST

from board_parts.document import COSTS
from board_parts.overview import (
    NEAR,
    Distance,
    behind,
    distances,
    general_sides,
    scores_of,
    standings,
    wins,
)
from board_parts.sides import SIDES, title

NOTHING = "Nothing is measured yet."
REHEARSAL = "**These figures are from a rehearsal on a few rows. Do not use them as results.**"
NATS = 0.1
"""A difference of log scores that the first paragraph reports."""
SHOWN_FACTOR = 2.0
"""From this factor on, ratios of scores are written as factors rather than percentages."""
COMPARED = ("linear", "boosting", "catboost")
"""The sides with which other pages compare agp."""
SUMMARY_WORDS = (
    "Ranks compare the continuous ranked probability score (CRPS) or, for classes, the log loss. *Best or level* is\n"
    "the share of tables on which a model is within 3 % of the best. Seconds are CPU time of training, in one thread."
)
FIGURES = {
    "log_score": "Log score",
    "rmse": "RMSE",
    "error_rate": "Error rate",
    "coverage": "Coverage of 90 % intervals",
    "width": "Mean width of 90 % intervals",
    "seconds": "CPU seconds of training",
    "prediction_seconds": "CPU seconds of 1,000 predictions",
    "mebibytes": "Peak MiB",
}
"""Titles of the tables after that of the main score."""
LOWER_IS_BETTER = ("log_score", "rmse", "error_rate")
LIBRARIES = {
    "python": "Python", "agp": "agp", "numpy": "NumPy", "scipy": "SciPy", "pandas": "pandas", "sklearn": "scikit-learn",
    "skrub": "skrub", "catboost": "CatBoost", "lightgbm": "LightGBM", "ngboost": "NGBoost",
}  # fmt: skip
"""Names of libraries in sentences."""


def written(text: str, passages: dict[str, str]) -> str:
    """Return a text with new passages between its comments ``<!-- board NAME -->`` and ``<!-- /board NAME -->``."""
    for name, inside in passages.items():
        place = re.compile(rf"(<!-- board {name} -->\n).*?(<!-- /board {name} -->)", re.DOTALL)
        if not place.search(text):
            raise ValueError(f"the page has no comments <!-- board {name} --> and <!-- /board {name} -->.")
        text = place.sub(lambda match, inside=inside: f"{match[1]}{inside}\n{match[2]}", text)
    return text


def passages(document: dict[str, Any]) -> dict[str, dict[str, str]]:
    """All passages by the path of their page and their name."""
    return {
        "docs/board.md": {"lead": lead(document), "results": results(document), "final": final(document)},
        "docs/index.md": {"claim": claim(document, "board.md")},
        "README.md": {"claim": summary(document, "docs/board.md")},
    }


# -- sentences --------------------------------------------------------------------------------------------------------


def lead(document: dict[str, Any]) -> str:
    """The first paragraph: where agp is behind, by table and by how much."""
    if not document["tables"]:
        return NOTHING
    found = distances(scores_of(document, "main"))
    worse, failed = behind(found), _failed(document)
    text = (
        f"With its defaults, agp is behind the best other model on {len(worse)} of the {len(found)} tables of the "
        f"first half, by more than {_percent(NEAR)} of the CRPS or, for classes, of the log loss: "
        f"{_listed(_distance(one, document) for one in worse)}. "
    )
    rest = [one for one in found if one not in worse]
    text += f"On the other {len(rest)} tables, agp is the best or level with the best: {_listed(map(_name, rest))}. "
    if failed:
        text += f"On {_listed(failed)}, agp gave no result in some or all splits; see [Failures](#failures). "
    nats = sorted(_log_distances(document), key=lambda pair: -pair[1])
    if nats:
        named = _listed(f"{name} ({x:.2f})" for name, x in nats)
        text += f"In the log score, agp is more than {NATS} nats per row behind on {named}."
    return f"{REHEARSAL} {text}" if document["small"] else text.strip()


def claim(document: dict[str, Any], link: str) -> str:
    """The sentences on other pages that state how the defaults compare."""
    if not document["tables"] or document["small"]:
        return NOTHING
    scores = scores_of(document, "main")
    found = distances(scores)
    worse, models = len(behind(found)), len({side for of_sides in scores.values() for side in of_sides})
    compared = [side for side in COMPARED if side in general_sides(scores)]
    figures = [(title(side), *wins(scores, "agp", side)) for side in compared]
    against = "; ".join(f"{name} {better}, {level}, {less}" for name, better, level, less in figures)
    text = (
        f"On the {len(found)} real tables of the first half of the [board]({link}), read as published, agp with its\n"
        f"defaults is the best of up to {models} models, or level with the best, on {len(found) - worse} tables, and "
        f"behind on {worse}.\nNumbers of tables on which agp is better, level, worse: {against}."
    )
    if document["final"]:
        last = [*document["final"].values()][-1]
        text += (
            f"\nOn the second half, which checks the defaults, agp is behind on {last['behind']} of {last['tables']}."
        )
    return text


def summary(document: dict[str, Any], link: str) -> str:
    """The claim and the overall view of all tables."""
    found = claim(document, link)
    return found if found == NOTHING else f"{found}\n\n{_overall(document)}\n\n{SUMMARY_WORDS}"


def _distance(one: Distance, document: dict[str, Any]) -> str:
    more = one.ratio - 1.0
    far = f"{one.ratio:.1f} times" if one.ratio >= SHOWN_FACTOR else f"{more:.0%}".replace("%", " %")
    return f"{one.table} ({far}, {title(one.best)})"


def _name(one: Distance) -> str:
    return one.table


def _log_distances(document: dict[str, Any]) -> list[tuple[str, float]]:
    """The tables on which agp's log score is behind that of the best other side by more than `NATS`."""
    found = []
    for name, of_sides in scores_of(document, "log_score").items():
        others = [x for side, x in of_sides.items() if side != "agp" and not side.startswith(AGAINST)]
        if "agp" in of_sides and others and of_sides["agp"] - min(others) > NATS:
            found.append((name, of_sides["agp"] - min(others)))
    return found


def _failed(document: dict[str, Any]) -> list[str]:
    return [name for name, table in document["tables"].items() if "errors" in table["sides"].get("agp", {})]


def _percent(factor: float) -> str:
    return f"{round(100.0 * (factor - 1.0))} %"


def _listed(words: Iterable[str]) -> str:
    *some, last = [*words] or ["none"]
    return f"{', '.join(some)} and {last}" if some else last


# -- results ----------------------------------------------------------------------------------------------------------


def results(document: dict[str, Any]) -> str:
    """The overall view, a table for each score and cost, failures, and the list of tables."""
    if not document["tables"]:
        return NOTHING
    parts = [_words(document), "### Overall", SUMMARY_WORDS, _overall(document)]
    for classes, name, score in ((False, "Numbers", "CRPS"), (True, "Classes", "log loss")):
        part = {key: table for key, table in document["tables"].items() if bool(table["classes"]) == classes}
        if part:
            parts += [f"### {name}: overall", _overall({**document, "tables": part})]
            parts += [f"### {name}: {score}", _by_table(part, "log_loss" if classes else "crps", best=True)]
            for measure, heading in FIGURES.items():
                if any(measure in figures for table in part.values() for figures in table["sides"].values()):
                    best = measure in LOWER_IS_BETTER
                    parts += [f"### {name}: {heading}", _by_table(part, measure, best=best)]
    return "\n\n".join([*parts, "### Failures", _failures(document), "### Tables", _list_of_tables(document)])


def _words(document: dict[str, Any]) -> str:
    machines = [f"{one['processor']} with {one['threads']} hardware threads" for one in document["machines"]]
    named = [f"{LIBRARIES.get(name, name)} {_listed(versions)}" for name, versions in document["versions"].items()]
    text = f"Processor: {_listed(machines)}. Versions: {', '.join(named)}; agp at commit {document['commit']}. "
    text += f"A model may use {document['limit']} s of CPU time for training and predictions. "
    return text + "The best score of each table is in bold."


def _overall(document: dict[str, Any]) -> str:
    scores = scores_of(document, "main")
    densities = scores_of(document, "log_score")
    logs = {one.side: one.rank for one in standings(densities)} if len(densities) == len(scores) else {}
    head = ["model", "mean rank", "90 % interval", *(["mean rank, log score"] if logs else [])]
    head += ["best or level", "agp better, level, worse", "median CPU seconds"]
    rows = [head, ["---"] * len(head)]
    for one in standings(scores):
        compared = ", ".join(map(str, wins(scores, "agp", one.side))) if one.side != "agp" else ""
        seconds = _rounded(float(np.median(_means(document, one.side, "seconds"))))
        rank = [f"{one.rank:.2f}", f"{one.low:.2f} to {one.high:.2f}"]
        rank += [f"{logs[one.side]:.2f}"] if logs else []
        rows.append([title(one.side), *rank, f"{one.near:.0%}".replace("%", " %"), compared, seconds])
    return _markdown(rows)


def _means(document: dict[str, Any], side: str, measure: str) -> list[float]:
    """The means of the known values of each table."""
    lists = [table["sides"].get(side, {}).get(measure, []) for table in document["tables"].values()]
    known = [[x for x in values if x is not None] for values in lists]
    return [float(np.mean(values)) for values in known if values]


def _by_table(tables: dict[str, Any], measure: str, *, best: bool) -> str:
    """A row for each table and a column for each side, with means over the splits."""
    there = {side for table in tables.values() for side in table["sides"]}
    others = sorted(side for side in there if side.startswith(AGAINST))
    sides = [side for name in SIDES for side in ([name, *others] if name == "agp" else [name]) if side in there]
    means = scores_of({"tables": tables}, measure)
    rows = [["table", "rows", *map(title, sides)], ["---"] * (2 + len(sides))]
    for name, table in tables.items():
        least = min(means.get(name, {}).values(), default=0.0)
        figures = [_figure(table["sides"].get(side), measure, means.get(name, {}).get(side)) for side in sides]
        marks = [best and means.get(name, {}).get(side) == least for side in sides]
        cells = [f"**{text}**" if mark and text else text for text, mark in zip(figures, marks, strict=True)]
        rows.append([name, f"{table['rows']:,}", *cells])
    return _markdown(rows)


def _figure(figures: dict[str, Any] | None, measure: str, mean: float | None) -> str:
    """A mean over the splits, marked if the side failed in some of them."""
    if figures is None or measure not in figures:
        return ""
    known = [x for x in figures[measure] if x is not None]
    if not known:
        return "failed"
    mark = "*" if len(known) < len(figures[measure]) else ""
    if measure == "coverage":
        return f"{np.mean(known):.0%}".replace("%", " %") + mark
    if measure in COSTS or mean is None:
        return _rounded(float(np.mean(known))) + mark
    return f"{mean:.3f}{mark}"


def _failures(document: dict[str, Any]) -> str:
    """The errors of all sides; a side that failed in some splits is marked by an asterisk in the tables."""
    lines = [
        f"- {name}, {title(side)}: {'; '.join(f'`{error}`' for error in figures['errors'])}"
        for name, table in document["tables"].items()
        for side, figures in table["sides"].items()
        if "errors" in figures
    ]
    words = (
        "In these splits, scores are replaced by those of the model *mean*. An asterisk marks the affected means. CPU "
        "times of stopped models count as the limit; other costs and the coverage are those of the remaining splits."
    )
    return "\n\n".join([words, "\n".join(lines)]) if lines else "No model failed."


def _list_of_tables(document: dict[str, Any]) -> str:
    rows = [["table", "about", "package", "target", "rows", "columns", "classes", "traits"], ["---"] * 8]
    for name, table in document["tables"].items():
        size = [f"{table['rows']:,}", str(table["columns"]), str(table["classes"] or "")]
        rows.append([name, table["kind"], table["package"], f"`{table['target']}`", *size, ", ".join(table["traits"])])
    return _markdown(rows)


def final(document: dict[str, Any]) -> str:
    """What the second half gives, for each commit for which it was run."""
    if not document.get("final"):
        return "The second half has not been run."
    commits = document["final"]
    parts = [f"The second half was run for {_listed(f'`{one}`' for one in commits)}."]
    for one, found in commits.items():
        rows = [["model", "mean rank", "90 % interval", "best or level"], ["---"] * 4]
        for side in found["standings"]:
            interval = f"{side['low']:.2f} to {side['high']:.2f}"
            near = f"{side['near']:.0%}".replace("%", " %")
            rows.append([title(side["side"]), f"{side['rank']:.2f}", interval, near])
        words = (
            f"`{one}`: agp is behind on {found['behind']} of {found['tables']} tables; the median ratio of its main "
            f"score to that of the best other side is {found['median ratio']:.2f}."
        )
        parts += [words, _markdown(rows)]
    return "\n\n".join(parts)


def _rounded(x: float) -> str:
    return f"{x:,.0f}" if x >= 9.95 else f"{x:.2g}"


def _markdown(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
