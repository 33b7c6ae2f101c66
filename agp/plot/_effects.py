"""Plots of each column's effect on predictions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agp.errors import count_of, explain_call
from agp.inspection import Effect, Subject, partial_dependence, subject_of
from agp.plot._panels import FUNCTION, along_axis, band, label_axis, legend, panels, shorten

WIDEST, MANY, SLANT, STEEP = 24, 8, 35.0, 55.0
"""The number of letters of all labels that fit side by side, the number of slanted labels above which they are steep,
and these angles in degrees."""
MAX_COLUMNS = 12
"""The maximum number of columns that are drawn by default."""


@explain_call
def plot_effects(
    model: Any,
    X: Any,
    /,
    *,
    columns: Sequence[str | int] | None = None,
    sharey: bool = True,
    ax: Any = None,
    samples: int = 100,
    seed: int = 0,
) -> Figure:
    """Plot the partial dependence on each column.

    The partial dependence is the average prediction over all rows after every cell of the column is set to one value.
    Bands contain 95 % of the posterior of the average function (`agp.inspection.partial_dependence`). Categories of
    data frames are drawn as points, and columns of dates have an axis of dates. In regression, each output has a row of
    panels; in classification, each class has a line. All columns share one vertical scale by default, so a flat panel
    indicates a column with little influence.

    Parameters
    ----------
    model
        An `agp.models.Model`, or a fitted `GPRegressor` or `GPClassifier`.
    X
        The inputs of the model or estimator as a table [N, D].
    columns
        The names or numbers of the columns; by default all columns.
    sharey
        Whether the panels of a new figure that show the same output have the same vertical scale.
    ax
        Axes to draw into, one for each column (and output); by default a new figure.
    samples
        The number of function samples for bands that have no closed form.
    seed
        The seed for drawing the samples and for choosing rows from a large table.

    Raises
    ------
    TypeError, ValueError
        If the arguments are not a model and a table, if a column does not exist, if the number of axes is wrong, or if
        the table has more than 12 columns and `columns` is not given.
    """
    subject = subject_of(model)
    names = subject.table(X).names
    if columns is None and len(names) > MAX_COLUMNS:
        raise ValueError(
            f"X has {count_of(len(names), 'column')}; choose the columns to draw, such as columns=[{names[0]!r}, "
            f"{names[1]!r}]."
        )
    chosen = list(range(len(names))) if columns is None else [columns] if isinstance(columns, (str, int)) else columns
    effects = [partial_dependence(model, X, column, samples=samples, seed=seed) for column in chosen]
    outputs = effects[0].mean.shape[1]
    rows = 1 if subject.classes else outputs
    width = min(len(effects), 4) if rows == 1 else len(effects)
    same = sharey if rows == 1 or not sharey else "row"
    figure, axes = panels(ax, rows * len(effects), columns=width, size=(3.3, 2.9), sharey=same)
    several = subject.several_classes and not subject.order
    labels = [str(c) for c in subject.classes] if several else [None] * outputs
    for i, one in enumerate(axes):
        effect = effects[i % len(effects)]
        for p in range(outputs) if rows == 1 else [i // len(effects)]:
            draw_effect(one, effect, p, f"C{p % 10}", labels[p])
        label_axis(one, effect.name, effect.values)
        one.grid(alpha=0.25)
        if i % width == 0:
            one.set_ylabel(_what(subject, i // len(effects), rows))
    if several:
        legend(axes[-1])
    return figure


def draw_effect(ax: Axes, effect: Effect, p: int, colour: str, label: str | None) -> None:
    """Draw output p of an effect: a curve with a band or, for categories, points with bars."""
    mean, lower, upper = effect.mean[:, p], effect.lower[:, p], effect.upper[:, p]
    if effect.is_number:
        values = along_axis(effect.values)
        band(ax, values, lower, upper, colour, None, **FUNCTION)
        ax.plot(values, mean, color=colour, linewidth=1.6, label=label)
        return
    at = np.arange(len(effect.values))
    reach = np.maximum(np.stack([mean - lower, upper - mean]), 0.0)
    ax.errorbar(at, mean, yerr=reach, fmt="o", color=colour, capsize=3, label=label)
    names = shorten(["missing" if value is None or value != value else str(value) for value in effect.values])
    long = max(map(len, names)) * len(names) > WIDEST
    steep = STEEP if len(names) > MANY else SLANT
    ax.set_xticks(at, names, rotation=steep if long else 0, ha="right" if long else "center", rotation_mode="anchor")
    ax.set_xlim(-0.5, len(names) - 0.5)


def _what(subject: Subject, output: int, rows: int) -> str:
    if subject.order:
        lowest, highest = (subject.classes[subject.order[end]] for end in (0, -1))
        return f"average class, from 0 ({lowest}) to {len(subject.order) - 1} ({highest})"
    if subject.several_classes:
        return "average probability"
    if subject.classes:
        return f"average probability of {subject.classes[1]}"
    return "average prediction" if rows == 1 else f"average of output {output + 1}"
