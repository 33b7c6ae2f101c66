"""Plots of data with the mean and the uncertainty as functions of one input, and with the inducing inputs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agp.errors import count_of, explain_call
from agp.inspection import (
    Z95,
    ArrayTable,
    Host,
    Predicted,
    Subject,
    host,
    in_days,
    inducing_inputs,
    like_values,
    subject_of,
)
from agp.models import CaGP
from agp.plot._panels import DATA, FUNCTION, OBSERVATIONS, along_axis, band, label_axis, legend, panels, thin_rows

POINTS = 400
"""The number of inputs at which curves are drawn."""
BINS = 30
SINCE = " [days since 1970-01-01"
"""What the name of a model column contains if its numbers are dates."""
REACH = 0.25
"""The margin on both sides of the data, as a fraction of their range."""


@explain_call
def plot_fit(
    model: Any, X: Any, y: Any, /, *, ax: Any = None, margin: float = 0.1, computational: bool = True
) -> Figure:
    """Plot the data, the mean, and 95 % intervals for the function and for new observations, as functions of one input.

    Each output has its own panel. For two classes, the plot shows the probability of the second class with the interval
    for the function; for more than two classes, it shows one line for each class. For a `CaGP`, the uncertainty of the
    function is split into two parts: the *mathematical* uncertainty, which is that of the exact posterior with the same
    hyperparameters, and the *computational* uncertainty, which is the rest and is due to limited computation. Inducing
    inputs are marked at the bottom.

    Parameters
    ----------
    model
        An `agp.models.Model`, or a fitted `GPRegressor` or `GPClassifier`.
    X, y
        Inputs with one column of numbers, dates or durations, and targets or labels. The column `error_column` of an
        estimator is no input. New observations are drawn without such errors.
    ax
        Axes to draw into, one for each panel; by default a new figure.
    margin
        The margin on both sides of the data, as a fraction of their range.
    computational
        Whether to split the uncertainty of a `CaGP`. The split takes O(N^3) operations.

    Raises
    ------
    TypeError, ValueError
        If `model` is not a model, if X has several columns or contains no numbers, if the number of axes is wrong, or
        if `CaGP.uncertainty` raises an error.
    """
    subject = subject_of(model)
    table = subject.table(X)
    if len(table.names) != 1 or not table.is_number(0):
        names = ", ".join(table.names[:8])
        raise ValueError(f"X has the columns {names}, but plot_fit needs one column of numbers; use plot_effects.")
    given, targets = table.values(0), subject.targets(y)
    numbers = in_days(given)
    low, high = np.nanmin(numbers), np.nanmax(numbers)
    reach = margin * (high - low)
    values = like_values(np.linspace(low - reach, high + reach, POINTS), given)
    x, grid = along_axis(given), along_axis(values)
    first = np.zeros(1, dtype=int)
    at = subject.inputs(table.cartesian_product(0, values, first))
    found = subject.predict(at)
    outputs = 1 if subject.several_classes else found.mean.shape[1]
    figure, axes = panels(ax, outputs, columns=3)
    split = None
    if computational and isinstance(subject.model, CaGP):
        split = _split(subject.model, at, subject.inputs(table.cartesian_product(0, given, first)))
    ends = None if subject.classes else subject.interval(at)
    for p, one in enumerate(axes):
        if subject.several_classes:
            _draw_classes(one, grid, found, x, targets[:, 0], subject.classes)
        elif subject.classes:
            _draw_probability(one, grid, found, p, x, targets, subject.classes)
        else:
            assert ends is not None
            _draw_values(one, grid, found, p, x, targets, split, ends)
            one.set_ylabel("output" if outputs == 1 else f"output {p + 1}")
        _mark_inducing(one, subject, values)
        label_axis(one, table.names[0], values)
        one.set_xlim(grid[0], grid[-1])
        one.grid(alpha=0.25)
        legend(one, above=True)
    return figure


def _split(model: CaGP, at: Any, X: Any) -> Host:
    """Return the standard deviations [N, P] of the exact posterior."""
    try:
        return np.sqrt(host(model.uncertainty(at, X).mathematical))
    except ValueError as error:
        raise ValueError(f"{error} Alternatively, set computational=False to omit the split.") from error


def _draw_values(
    ax: Axes,
    grid: Host,
    found: Predicted,
    p: int,
    x: Host,
    y: Host,
    exact: Host | None,
    ends: tuple[Host, Host],
) -> None:
    mean, lower, upper = found.mean[:, p], found.lower[:, p], found.upper[:, p]
    band(ax, grid, ends[0][:, p], ends[1][:, p], "C0", "new observations, 95 %", **OBSERVATIONS)
    if exact is None:
        band(ax, grid, lower, upper, "C0", "function, 95 %", **FUNCTION)
    else:
        inner = Z95 * exact[:, p]
        band(ax, grid, lower, mean - inner, "C1", "function, computational", alpha=0.6)
        band(ax, grid, mean + inner, upper, "C1", None, alpha=0.6)
        band(ax, grid, mean - inner, mean + inner, "C0", "function, mathematical", alpha=0.5)
    drawn, label = thin_rows(len(x))
    ax.plot(x[drawn], y[drawn, p], markersize=5 if len(x) < 300 else 3, label=label, **DATA)
    ax.plot(grid, mean, color="C0", linewidth=1.6, label="mean")


def _draw_probability(
    ax: Axes, grid: Host, found: Predicted, p: int, x: Host, y: Host, classes: tuple[Any, ...]
) -> None:
    band(ax, grid, found.lower[:, p], found.upper[:, p], "C0", "function, 95 %", **FUNCTION)
    ax.plot(grid, found.mean[:, p], color="C0", linewidth=1.6, label="probability")
    drawn, label = thin_rows(len(x))
    ax.plot(x[drawn], y[drawn, p], label=label, **{**DATA, "marker": "|", "markeredgewidth": 0.8, "markersize": 9})
    ax.set(ylabel=f"probability of {classes[1]}", ylim=(-0.06, 1.06))


def _draw_classes(ax: Axes, grid: Host, found: Predicted, x: Host, y: Host, classes: tuple[Any, ...]) -> None:
    drawn, _ = thin_rows(len(x))
    for c, name in enumerate(classes):
        colour = f"C{c % 10}"
        ax.plot(grid, found.mean[:, c], color=colour, linewidth=1.6, label=str(name))
        own = drawn[y[drawn] == c]
        ax.plot(x[own], np.full(own.shape, 1.05), "|", color=colour, markersize=8)  # mark the data above the curves
    ax.set(ylabel="probability", ylim=(-0.06, 1.1))


def _mark_inducing(ax: Axes, subject: Subject, values: Any) -> None:
    for i, Z in enumerate(inducing_inputs(subject.model).values()):
        style = {"marker": "^", "linestyle": "none", "color": f"C{3 + i}", "markersize": 5, "clip_on": False}
        label = "inducing inputs" if i == 0 else None
        at = along_axis(like_values(Z[:, 0], values))
        ax.plot(at, np.zeros(len(Z)), transform=ax.get_xaxis_transform(), label=label, **style)


# -- inducing inputs --------------------------------------------------------------------------------------------------


@explain_call
def plot_inducing(model: Any, X: Any, /, *, columns: Sequence[str | int] | None = None, ax: Any = None) -> Figure:
    """Plot data and inducing inputs in the plane of two columns, or along one column with a histogram of the data.

    Parameters
    ----------
    model
        An `agp.models.Model`, or a fitted `GPRegressor` or `GPClassifier`, with inducing inputs.
    X
        The inputs of the model or estimator as a table [N, D].
    columns
        The names or numbers of one or two columns of the model; by default the first two. Estimators create a column
        for each value of a categorical column, with a name such as "kind = round".
    ax
        Axes to draw into; by default a new figure.

    Raises
    ------
    TypeError, ValueError
        If the model has no inducing inputs, if a column does not exist, or if `ax` has more than one element.
    """
    subject = subject_of(model)
    groups = inducing_inputs(subject.model)
    if not groups:
        raise ValueError(
            f"the {type(subject.model).__name__} has no inducing inputs in the space of X; use another method."
        )
    seen = ArrayTable(host(subject.inputs(X)), subject.columns)
    names = columns if columns is not None else range(min(2, len(seen.names)))
    where = [seen.position(column) for column in ([names] if isinstance(names, (str, int)) else names)]
    if len(where) not in (1, 2):
        raise ValueError(f"columns has {count_of(len(where), 'entry')}, but must have one or two.")
    figure, (one,) = panels(ax, 1, size=(5.4, 4.4) if len(where) == 2 else (6.0, 3.2))
    limits = [_limits(seen.values(column)) for column in where]
    one.set_xlim(*_values_to_draw(seen, where[0], limits[0]))
    if len(where) == 2:
        one.set_ylim(*_values_to_draw(seen, where[1], limits[1]))
    low, high = np.asarray(limits).T
    shown = {}
    for name, Z in groups.items():
        inside = (abs(2.0 * Z[:, where] - low - high) <= high - low).all(axis=1)
        beyond = int(np.sum(~inside))
        label = f"{count_of(len(Z), 'inducing input')}" + (f" ({beyond} beyond the plot)" if beyond else "")
        shown[f"{label}, {name}" if len(groups) > 1 else label] = Z[inside][:, where]
    (_draw_plane if len(where) == 2 else _draw_line)(one, seen, where, shown)
    for column, is_vertical in zip(where, (False, True), strict=False):
        name = seen.names[column]
        label_axis(one, name.partition(SINCE)[0], _values_to_draw(seen, column, limits[0]), vertical=is_vertical)
    one.grid(alpha=0.25)
    legend(one, above=True)
    return figure


def _limits(values: Any) -> tuple[float, float]:
    low, high = float(np.min(values)), float(np.max(values))
    reach = REACH * (high - low) or 1.0
    return low - reach, high + reach


def _values_to_draw(seen: ArrayTable, column: int, values: Any) -> Any:
    """Return the values of a model column that are drawn: dates instead of the days of a column of dates."""
    values = np.asarray(values)
    return like_values(values, np.empty(0, dtype="M8[us]")) if SINCE in seen.names[column] else values


def _draw_plane(ax: Axes, seen: ArrayTable, where: list[int], shown: dict[str, Any]) -> None:
    drawn, label = thin_rows(seen.rows)
    style = {**DATA, "color": "0.6", "markersize": 4}
    ax.plot(*(_values_to_draw(seen, column, seen.values(column)[drawn]) for column in where), label=label, **style)
    for i, (name, Z) in enumerate(shown.items()):
        style = {"linestyle": "none", "marker": "o^sDv"[i % 5], "color": f"C{3 + i}", "markersize": 5}
        points = (_values_to_draw(seen, column, z) for column, z in zip(where, Z.T, strict=True))
        ax.plot(*points, label=name, markeredgecolor="white", markeredgewidth=0.5, **style)


def _draw_line(ax: Axes, seen: ArrayTable, where: list[int], shown: dict[str, Any]) -> None:
    ax.hist(_values_to_draw(seen, where[0], seen.values(where[0])), bins=BINS, color="0.75", label="data")
    step = 0.06 * ax.get_ylim()[1]
    for i, (name, Z) in enumerate(shown.items()):
        style = {"linestyle": "none", "marker": "^", "color": f"C{3 + i}", "markersize": 6}
        ax.plot(_values_to_draw(seen, where[0], Z[:, 0]), np.full(len(Z), -step * (i + 1)), label=name, **style)
    ax.set_ylabel("rows")
