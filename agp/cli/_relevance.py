"""The table in which `agp describe` shows how relevant each column is to a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agp.cli._notes import Notes
from agp.errors import count_of
from agp.inspection import KernelRelevance, Lengthscale, PermutationImportance, kernel_relevance, permutation_importance
from agp.summaries import text_table

REPEATS = 10


def relevance(model: Any, notes: Notes | None, path: Path | None, data: tuple[Any, Any] | None) -> list[str]:
    """Return lines that show a table of the columns, most relevant first, and explain its numbers.

    `data` holds the inputs and targets from the table at `path`. By default, the rows stored in the model are used.
    """
    remarks = []
    kernel = shuffled = None
    try:
        kernel = kernel_relevance(model, *(data or ()))
    except (TypeError, ValueError) as error:
        remarks.append(f"kernel      not available: {str(error).partition(';')[0]}")
    try:
        shuffled = permutation_importance(model, *(data or ()), repeats=REPEATS)
    except ValueError:
        if data is not None:
            raise
        remarks.append(
            "shuffled    not available: the model holds no rows with targets; name a table: agp describe MODEL TABLE"
        )
    columns, meaning = [], []
    if shuffled is not None:
        columns += _permutation_columns(shuffled, notes)
        meaning.append(_meaning(shuffled, path))
    if kernel is not None:
        columns += _kernel_columns(kernel)
        meaning += _meaning_of_kernel(kernel)
    if not columns:
        return remarks
    first: Any = shuffled or kernel
    # relative increase in the score, averaged over targets
    size = first.mean if shuffled is None else np.mean(first.mean / first.score, axis=1)
    order = np.argsort(-size, kind="stable")
    cells = [["column", *(title for title, _ in columns)]]
    cells += [[first.names[i], *(column[i] for _, column in columns)] for i in order]
    return ["Relevance", *text_table(cells), *meaning, *remarks]


def _permutation_columns(found: PermutationImportance, notes: Notes | None) -> list[tuple[str, list[str]]]:
    count = found.mean.shape[1]
    targets = notes.targets if notes is not None and len(notes.targets) == count else [f"y{k}" for k in range(count)]
    titles = [f"{found.scoring} +"] if count == 1 else [f"{found.scoring} + of {name}" for name in targets]
    pairs = [[*map(_pair, *of_target)] for of_target in zip(found.mean.T, found.deviation.T, strict=True)]
    return [*zip(titles, pairs, strict=True)]


def _kernel_columns(found: KernelRelevance) -> list[tuple[str, list[str]]]:
    columns = [("kernel", [*map(_pair, found.mean, found.deviation)])]
    dates = {one.column for one in found.lengthscales if one.input.startswith(f"{one.column} [days")}
    scales = [_scales([one for one in found.lengthscales if one.column == name]) for name in found.names]
    if any(scales):
        units = [" days" if name in dates and scale else "" for name, scale in zip(found.names, scales, strict=True)]
        columns.append(("lengthscale", [f"{scale}{unit}" for scale, unit in zip(scales, units, strict=True)]))
    return columns


def _scales(found: Sequence[Lengthscale]) -> str:
    """Format a column's lengthscales, one per kernel. For a text column, show the shortest lengthscale."""
    by_kernel: dict[str, Lengthscale] = {}
    # the indicator of missing cells comes last
    for one in sorted(found, key=lambda one: (one.input != one.column, one.value)):
        by_kernel.setdefault(one.kernel, one)
    return ", ".join(map(_scale, by_kernel.values()))


def _scale(one: Lengthscale) -> str:
    bar = f" ({one.value / one.factor:.3g} to {one.value * one.factor:.3g})" if one.factor == one.factor else ""
    return f"{one.value:.3g}{bar}"


def _pair(mean: float, deviation: float) -> str:
    return f"{_round_to_deviation(mean, deviation)} ± {deviation:.2g}" if deviation == deviation else f"{mean:.2g}"


def _round_to_deviation(mean: float, deviation: float) -> str:
    """Format a number, rounded to the second significant digit of its standard deviation."""
    if not 0.0 < deviation < np.inf:
        return f"{mean:.3g}"
    digits = 1 - int(np.floor(np.log10(deviation)))
    return f"{mean:.{min(digits, 12)}f}" if digits > 0 else f"{round(mean, digits):.0f}"


def _meaning(found: PermutationImportance, path: Path | None) -> str:
    rows = f"{found.rows:,} {'training rows' if path is None else f'rows of {path.name}'}"
    scores = ", ".join(f"{score:.4g}" for score in found.score)
    what = f"increase in the {found.scoring} (from {scores}) when the column is shuffled"
    return f"{found.scoring + ' +':<11} {what}; {REPEATS} shuffles, {rows}"


def _meaning_of_kernel(found: KernelRelevance) -> list[str]:
    lines = ["kernel      the share of the prior variance that depends on the column"]
    if found.lengthscales:
        lines.append(f"lengthscale in the unit of the column{_sharing(found.lengthscales)}")
    if not found.reason:
        source = f"the curvature of the bound on {found.rows:,} rows"
        source = f"{count_of(found.settings, 'setting')} of the hyperparameters" if found.settings else source
        return [*lines, f"±, (to)     one standard deviation; for the kernel, from {source}"]
    remedy = "; name the training table: agp describe MODEL TABLE" if "pass X and y" in found.reason else ""
    return [*lines, f"error bars  not available for the kernel: {found.reason.partition(';')[0]}{remedy}"]


def _sharing(found: Sequence[Lengthscale]) -> str:
    values = {one.kernel: {other.value for other in found if other.kernel == one.kernel} for one in found}
    several = len({one.column for one in found}) > 1
    return "; all columns share one lengthscale" if several and all(len(one) == 1 for one in values.values()) else ""
