"""Axes, styles and helpers for all plots."""

from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from agp.errors import count_of
from agp.inspection import in_days
from agp.random import generator

DATA: dict[str, Any] = {"color": "0.3", "linestyle": "none", "marker": ".", "markeredgewidth": 0}
FUNCTION, OBSERVATIONS = {"alpha": 0.35}, {"alpha": 0.15}
"""The opacities of the bands for the function and for observations."""
MAX_POINTS = 2000
LONGEST, ENDING, WIDTH = 24, 9, 36
"""The most letters of a label, those of its end if its middle is cut out, and those of a line of a column's name."""


def panels(
    ax: Any, count: int, *, columns: int | None = None, size: tuple[float, float] = (6.4, 4.0), **shared: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its `count` axes: those that are given, or those of a new figure."""
    if ax is None:
        columns = min(count, columns or count)
        rows = -(-count // columns)
        figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
        made = list(figure.subplots(rows, columns, squeeze=False, **shared).ravel())
        for unused in made[count:]:
            unused.remove()
        return figure, made[:count]
    given = list(np.asarray(ax, dtype=object).ravel()) if isinstance(ax, (Iterable, np.ndarray)) else [ax]
    if wrong := [x for x in given if not isinstance(x, Axes)]:
        raise TypeError(f"ax is, or contains, a {type(wrong[0]).__name__}; pass matplotlib axes.")
    if len(given) != count:
        panels_of_plot = f"{count} panel{'s' if count > 1 else ''}"
        raise ValueError(
            f"ax holds {count_of(len(given), 'axis')}, but the plot has {panels_of_plot}; pass "
            f"{count_of(count, 'axis')}."
        )
    return given[0].figure, given  # type: ignore[return-value]


def along_axis(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert durations, which matplotlib cannot draw, to days; return numbers and dates unchanged."""
    return in_days(values) if values.dtype.kind == "m" else values


def label_axis(ax: Axes, name: str, values: npt.NDArray[Any], *, vertical: bool = False) -> None:
    """Label an axis with the name of a column, and with dates or the unit of durations if its values are such."""
    axis = ax.yaxis if vertical else ax.xaxis
    name = "\n".join(wrap(name, WIDTH)) if len(name) > WIDTH else name
    axis.set_label_text(f"{name} [days]" if values.dtype.kind == "m" else name)
    if values.dtype.kind == "M":
        locator = AutoDateLocator(minticks=3, maxticks=6)
        axis.set_major_locator(locator)
        axis.set_major_formatter(ConciseDateFormatter(locator))


def band(ax: Axes, x: Any, lower: Any, upper: Any, colour: str, label: str | None, **style: Any) -> None:
    """Fill the area between two curves."""
    ax.fill_between(x, lower, upper, color=colour, label=label, linewidth=0, **style)


def shorten(names: Sequence[str]) -> list[str]:
    """Cut the middle of long names out, and number those that would be equal."""
    found: list[str] = []
    for name in names:
        line = " ".join(name.split()) or "''"
        cut = line if len(line) <= LONGEST else f"{line[: LONGEST - ENDING - 1].rstrip()}…{line[-ENDING:].lstrip()}"
        found.append(cut if cut not in found else f"{cut} ({sum(cut in one for one in found) + 1})")
    return found


def legend(ax: Axes, *, above: bool = False) -> None:
    """Draw a legend inside or above the axes."""
    place = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "ncols": 3, "frameon": False} if above else {}
    ax.legend(fontsize=8, framealpha=0.85, **place)


def thin_rows(rows: int) -> tuple[npt.NDArray[np.intp], str]:
    """Return the numbers of the rows to draw as points, and the label for the points."""
    if rows <= MAX_POINTS:
        return np.arange(rows), "data"
    chosen = np.sort(generator(0, 13).permutation(rows)[:MAX_POINTS])
    return chosen, f"data ({MAX_POINTS:,} of {rows:,})"
