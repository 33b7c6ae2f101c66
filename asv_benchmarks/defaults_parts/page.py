"""The page: the results of all cells in one document, and its tables in Markdown."""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from options import AGAINST

from defaults_parts.sides import SIDES, title

MEASURES = {
    "regression": {"nlpd": "NLPD", "rmse": "RMSE"},
    "classification": {"log_loss": "Log loss", "error_rate": "Error"},
}
COSTS = {"seconds": "Seconds of CPU", "mebibytes": "Peak MiB"}
KEPT = ("table", "split", "seed", "side", "rows", "test_rows", "columns", "classes")
FIGURES = ("nlpd", "rmse", "log_loss", "error_rate", "seconds", "mebibytes", "facts", "error")
NOTHING = "Nothing is measured yet."
REHEARSAL = "**These figures are from a rehearsal on a few rows. Do not use them as results.**"
PLACE = re.compile(r"(<!-- defaults -->\n).*?(<!-- /defaults -->)", re.DOTALL)
LIBRARIES = {"python": "Python", "numpy": "NumPy", "scipy": "SciPy", "sklearn": "scikit-learn", "gpytorch": "GPyTorch"}
"""Names of libraries in sentences."""


def collect_reports(cells: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Collect the machine, the versions and the figures from the results of all cells.

    Raises
    ------
    ValueError
        If the results are from several machines.
    """
    found = list(cells)
    machines = [cell["machine"] for cell in found]
    for other in machines[1:]:
        if other != machines[0]:
            raise ValueError(f"results are from {machines[0]} and from {other}, but times need a single machine.")
    versions: dict[str, list[str]] = {}
    for cell in found:
        for library, version in cell.get("versions", {}).items():
            name = cell["side"] if library == "agp" else library
            versions[name] = sorted({*versions.get(name, []), version})
    kept = [{name: cell[name] for name in (*KEPT, *FIGURES) if name in cell} for cell in found]
    return {
        "machine": machines[0] if found else {},
        "small": any(cell["small"] for cell in found),
        "versions": dict(sorted(versions.items())),
        "cells": sorted(kept, key=lambda cell: (bool(cell["classes"]), cell["rows"], *map(str, cell.values()))),
    }


def written(text: str, inside: str) -> str:
    """Return the page with the text `inside` between its two comments."""
    if not PLACE.search(text):
        raise ValueError("the page has no comments <!-- defaults --> and <!-- /defaults -->.")
    return PLACE.sub(lambda match: match[1] + (f"\n{inside}\n\n" if inside else "") + match[2], text)


def tables(document: dict[str, Any]) -> str:
    """All tables in Markdown, after a description of the machine and the versions."""
    if not document["cells"]:
        return NOTHING
    parts = [words(document)]
    for task, scores in MEASURES.items():
        cells = [cell for cell in document["cells"] if bool(cell["classes"]) == (task == "classification")]
        for measure, name in (scores | COSTS).items() if cells else ():
            parts += [f"### {task.capitalize()}: {name}", _table(cells, measure)]
    failures = [cell for cell in document["cells"] if "error" in cell]
    if failures:
        parts += ["### Cells that failed", "\n".join(map(_failure, failures))]
    return "\n\n".join(parts)


def words(document: dict[str, Any]) -> str:
    """Sentences on the machine and the versions, and a warning if it was a rehearsal."""
    machine = document["machine"]
    named = [f"{LIBRARIES.get(name, name)} {' and '.join(versions)}" for name, versions in document["versions"].items()]
    text = f"The machine has {machine['threads']} hardware threads. The processor type is {machine['processor']}. "
    text += f"Versions: {', '.join(named)}."
    return f"{REHEARSAL} {text}" if document["small"] else text


def _table(cells: list[dict[str, Any]], measure: str) -> str:
    """A Markdown table with a row for each data set and a column for each side; times also list agp's method."""
    there = dict.fromkeys(cell["side"] for cell in cells)
    others = [side for side in there if side.startswith(AGAINST)]
    sides = [side for name in SIDES for side in ([name, *others] if name == "agp" else [name]) if side in there]
    chose = ["agp's method"] if measure == "seconds" else []
    rows = [["data", "rows", "columns", *chose, *map(title, sides)], ["---"] * (3 + len(chose) + len(sides))]
    for table, of_table in _grouped(cells, "table").items():
        first = of_table[0]
        size = [table, f"{first['rows']:,}", str(first["columns"]), *([_choice(of_table)] if chose else [])]
        rows.append([*size, *(_figure(of_table, side, measure) for side in sides)])
    return _markdown(rows)


def _figure(cells: list[dict[str, Any]], side: str, measure: str) -> str:
    """The mean over splits and seeds, with its standard error in brackets if there are several."""
    mine = [cell for cell in cells if cell["side"] == side]
    values = [cell[measure] for cell in mine if measure in cell]
    if len(values) < len(mine):
        return "failed"
    if not values:
        return ""
    if measure in COSTS:
        return _rounded(float(np.mean(values)))
    error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else None
    return f"{np.mean(values):.3f}" + ("" if error is None else f" ({error:.3f})")


def _rounded(x: float) -> str:
    return f"{x:,.0f}" if x >= 9.95 else f"{x:.2g}"


def _choice(cells: list[dict[str, Any]]) -> str:
    """The methods that agp chose, with their numbers of inducing inputs."""
    facts = [cell["facts"] for cell in cells if cell["side"] == "agp" and "facts" in cell]
    texts = [f["method"] + (f", M = {f['num_inducing']:,}" if f["num_inducing"] else "") for f in facts]
    return "; ".join(dict.fromkeys(texts))


def _failure(cell: dict[str, Any]) -> str:
    return f"- {cell['table']}, split {cell['split']}, seed {cell['seed']}, {title(cell['side'])}: `{cell['error']}`"


def _grouped(cells: list[dict[str, Any]], key: str) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        groups.setdefault(cell[key], []).append(cell)
    return groups


def _markdown(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
