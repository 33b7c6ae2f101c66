"""Plots of data and inducing inputs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agp.inspection import ArrayTable, host, inducing_inputs, subject_of
from agp.plot._panels import DATA, legend, panels, thin_rows

BINS = 30
REACH = 0.25
"""The margin on both sides of the data, as a fraction of their range."""


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
        msg = f"the {type(subject.model).__name__} has no inducing inputs in the space of X; use another method."
        raise ValueError(msg)
    seen = ArrayTable(host(subject.inputs(X)), subject.columns)
    names = columns if columns is not None else range(min(2, len(seen.names)))
    where = [seen.position(column) for column in ([names] if isinstance(names, (str, int)) else names)]
    if len(where) not in (1, 2):
        msg = f"columns has {len(where)} entries, but must have one or two."
        raise ValueError(msg)
    figure, (one,) = panels(ax, 1, size=(5.4, 4.4) if len(where) == 2 else (6.0, 3.2))
    limits = [_limits(seen.values(column)) for column in where]
    one.set_xlim(*limits[0])
    if len(where) == 2:
        one.set_ylim(*limits[1])
    low, high = np.asarray(limits).T
    shown = {}
    for name, Z in groups.items():
        inside = (abs(2.0 * Z[:, where] - low - high) <= high - low).all(axis=1)
        beyond = int(np.sum(~inside))
        label = f"{len(Z)} inducing inputs" + (f" ({beyond} beyond the plot)" if beyond else "")
        shown[f"{label}, {name}" if len(groups) > 1 else label] = Z[inside][:, where]
    (_draw_plane if len(where) == 2 else _draw_line)(one, seen, where, shown)
    one.set_xlabel(seen.names[where[0]])
    one.grid(alpha=0.25)
    legend(one, above=True)
    return figure


def _limits(values: Any) -> tuple[float, float]:
    low, high = float(np.min(values)), float(np.max(values))
    reach = REACH * (high - low) or 1.0
    return low - reach, high + reach


def _draw_plane(ax: Axes, seen: ArrayTable, where: list[int], shown: dict[str, Any]) -> None:
    drawn, label = thin_rows(seen.rows)
    style = {**DATA, "color": "0.6", "markersize": 4}
    ax.plot(seen.values(where[0])[drawn], seen.values(where[1])[drawn], label=label, **style)
    for i, (name, Z) in enumerate(shown.items()):
        style = {"linestyle": "none", "marker": "o^sDv"[i % 5], "color": f"C{3 + i}", "markersize": 5}
        ax.plot(Z[:, 0], Z[:, 1], label=name, markeredgecolor="white", markeredgewidth=0.5, **style)
    ax.set_ylabel(seen.names[where[1]])


def _draw_line(ax: Axes, seen: ArrayTable, where: list[int], shown: dict[str, Any]) -> None:
    ax.hist(seen.values(where[0]), bins=BINS, color="0.75", label="data")
    step = 0.06 * ax.get_ylim()[1]
    for i, (name, Z) in enumerate(shown.items()):
        style = {"linestyle": "none", "marker": "^", "color": f"C{3 + i}", "markersize": 6}
        ax.plot(Z[:, 0], np.full(len(Z), -step * (i + 1)), label=name, **style)
    ax.set_ylabel("rows")
