"""Plots of the terms of additive models."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from agp.errors import count_of, explain_call
from agp.inspection import (
    Z95,
    Effect,
    Subject,
    Table,
    components,
    frequent_levels,
    in_days,
    like_values,
    subject_of,
)
from agp.likelihoods import Transformed
from agp.plot._effects import draw_effect
from agp.plot._panels import DATA, label_axis, panels
from agp.predictors import Components

MAX_VALUES, MAX_ROWS, MAX_PANELS = 1000, 200, 24
"""The maximum numbers of values of a column, of rows for components of several columns, and of panels."""


@explain_call
def plot_components(
    model: Any,
    X: Any,
    /,
    *,
    groups: Mapping[str, str | int | Sequence[str | int]] | None = None,
    sharey: bool | None = None,
    ax: Any = None,
) -> Figure:
    """Plot the components of a function whose kernel is a sum, such as trend and season, with 95 % bands.

    A component that depends on one column is drawn as a function of that column, at the values that X contains: as a
    curve with a band or, for categories, as points with bars. A component of several columns is drawn at the rows of
    X, over the first of these columns. Components without columns, such as constants, have no panel; add them to
    another component with `groups` to see them. If all components depend on the same column, the panels are below each
    other, each with its own scale; otherwise, all panels have the same scale by default, so that a flat panel is a
    small component. Each output has its own row of panels.

    The bands contain each component with a probability of 95 %. Two components that could exchange a constant or a
    slope both have wide bands, even if their sum is certain; see `agp.kernels.Centred`.

    Parameters
    ----------
    model
        An `agp.models.Model`, or a fitted `GPRegressor` or `GPClassifier`.
    X
        The inputs of the model or estimator as a table [N, D].
    groups
        Components to add up; see `agp.inspection.components`, which also describes the units.
    sharey
        Whether all panels of a new figure have the same vertical scale. With ``sharey=False``, the bands of small
        components can be seen beside a large one, such as a season beside a trend. By default, panels have their own
        scales if all components depend on the same column, and else the same one.
    ax
        Axes to draw into, one for each panel; by default a new figure.

    Raises
    ------
    TypeError, ValueError
        As `agp.inspection.components`, if the number of axes is wrong, or if there are no panels or more than 24.
    """
    subject = subject_of(model)
    table = subject.table(X)
    first = _at_rows(model, table, np.zeros(1, dtype=int), groups)
    shown = [k for k, columns in enumerate(first.columns) if columns]
    outputs = first.mean.shape[1]
    _check_count(first, len(shown) * outputs)
    effects = dict(_effects(model, table, first, shown, groups))
    is_series = len({first.columns[k] for k in shown}) == 1
    width = outputs if is_series else min(len(shown), 4) if outputs == 1 else len(shown)
    size = (6.4, 2.2) if is_series else (3.3, 2.9)
    order = (
        [(k, p) for k in shown for p in range(outputs)]
        if is_series
        else [(k, p) for p in range(outputs) for k in shown]
    )
    same = not is_series if sharey is None else sharey
    figure, axes = panels(ax, len(order), columns=width, size=size, sharex=is_series, sharey=same)
    for i, ((k, p), one) in enumerate(zip(order, axes, strict=True)):
        effect = effects[k]
        if len(first.columns[k]) > 1:
            _draw_rows(one, effect, p)
        else:
            draw_effect(one, effect, p, f"C{shown.index(k) % 10}", None)
        one.set_title(first.names[k] if outputs == 1 else f"{first.names[k]}, output {p + 1}", fontsize=10)
        one.grid(alpha=0.25)
        label_axis(one, effect.name if not is_series or i >= len(order) - width else "", effect.values)
        if i % width == 0:
            one.set_ylabel(_what(subject))
    return figure


def _check_count(found: Components, panels_needed: int) -> None:
    if not panels_needed:
        raise ValueError(f"no component depends on a column; the components are {', '.join(found.names)}.")
    if panels_needed > MAX_PANELS:
        raise ValueError(
            f"there are {count_of(panels_needed, 'panel')}, but at most {MAX_PANELS} are drawn; add components up with "
            "groups=."
        )


def _effects(
    model: Any, table: Table, first: Components, shown: list[int], groups: Any
) -> Iterator[tuple[int, Effect]]:
    """Yield the components to draw, by number. Those of the same column are computed together."""
    for columns in dict.fromkeys(first.columns[k] for k in shown):
        where = table.position(columns[0])
        if len(columns) == 1:
            values = _values(table, where)
            found = components(model, table.cartesian_product(where, values, np.zeros(1, dtype=int)), groups=groups)
        else:
            rows = np.unique(np.linspace(0, table.rows - 1, min(table.rows, MAX_ROWS)).astype(int))
            values, found = table.values(where)[rows], _at_rows(model, table, rows, groups)
        for k in shown:
            if first.columns[k] == columns:
                mean, reach = found.mean[..., k], Z95 * np.sqrt(found.variance[..., k])
                number = table.is_number(where)
                yield k, Effect(table.names[where], values, mean, mean - reach, mean + reach, number)


def _at_rows(model: Any, table: Table, rows: npt.NDArray[np.intp], groups: Any) -> Components:
    return components(model, table.rows_at(rows), groups=groups)


def _values(table: Table, column: int) -> npt.NDArray[Any]:
    """Return the distinct values of a column, at most `MAX_VALUES`, or its most frequent categories."""
    if not table.is_number(column):
        return frequent_levels(table, column)
    values = table.values(column)
    numbers = np.unique(in_days(values))
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size:
        raise ValueError(f"the column {table.names[column]!r} has no finite numbers; leave out its rows.")
    chosen = np.unique(np.linspace(0, len(numbers) - 1, min(len(numbers), MAX_VALUES)).astype(int))
    return like_values(numbers[chosen], values)


def _draw_rows(ax: Any, effect: Effect, p: int) -> None:
    """Draw a component of several columns at rows, over one of these columns."""
    mean, low, high = (x[:, p] for x in (effect.mean, effect.lower, effect.upper))
    reach = np.maximum(np.stack([mean - low, high - mean]), 0.0)
    at = effect.values if effect.is_number else np.asarray([str(value) for value in effect.values])
    style = {**DATA, "color": "C7", "elinewidth": 0.6}
    ax.errorbar(in_days(at) if at.dtype.kind == "m" else at, mean, yerr=reach, **style)


def _what(subject: Subject) -> str:
    likelihood = subject.predictor().likelihood
    if isinstance(likelihood, Transformed):
        return "component of the transformed target"
    return "component" if likelihood.mean_is_latent else "component of the latent function"
