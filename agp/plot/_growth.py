"""How the bounds closed in while the number of inducing inputs grew."""

from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from agp.plot._panels import band, panels
from agp.training import GrowthResult, Round

__all__ = ["plot_growth"]

Columns = dict[str, npt.NDArray[np.float64]]


def plot_growth(result: Any, /, *, ax: Any = None) -> Figure:
    """The bound and the upper bound against the number of inducing inputs; and their gap beside what doublings gained.

    All in nats per datum. Where there is no upper bound, the gains stand alone. The last number has two points where
    its model was then trained to the end.

    Parameters
    ----------
    result
        What `agp.fit_growing` left behind, or a `GPRegressor` or `GPClassifier` that was fitted with
        ``num_inducing="auto"``.
    ax
        Two axes to draw into; by default a new figure.

    Raises
    ------
    TypeError, ValueError
        For what has not grown, and the wrong number of axes.
    """
    found = _columns(result)
    figure, (left, right) = panels(ax, 2, columns=2, size=(5.0, 3.4))
    M = found["num_inducing"]
    left.plot(M, found["bound"], color="C0", marker="o", markersize=4, label="bound")
    if np.isfinite(found["gap"]).any():
        left.plot(M, found["upper"], color="C1", marker="o", markersize=4, label="upper bound")
        band(left, M, found["bound"], found["upper"], "0.5", "gap", alpha=0.15)
        right.plot(M, found["gap"], color="0.3", marker="o", markersize=4, label="gap")
    at, gains = _gains(found)
    right.plot(at, gains, color="C2", marker="s", markersize=4, label="gain of a doubling")
    left.set_ylabel("nats per datum")
    for one in (left, right):
        _set_sizes(one, M)
        one.legend(fontsize=8, framealpha=0.85)
    shown = np.concatenate([found["gap"], gains])
    if (shown > 0.0).any():
        right.set_yscale("log", nonpositive="mask")
    return figure


def _columns(result: Any) -> Columns:
    if isinstance(result, GrowthResult):
        rounds: Any = {name: [getattr(one, name) for one in result.rounds] for name in Round._fields}
    else:
        rounds = {} if isinstance(result, (type, dict)) else vars(result).get("growth_", {})
    if not rounds:
        by = "agp.fit_growing, or a fitted estimator with num_inducing='auto'"
        msg = f"nothing has grown in a {type(result).__name__}; give a result of {by}."
        raise TypeError(msg)
    return {name: np.asarray(values, dtype=np.float64) for name, values in rounds.items()}


def _gains(found: Columns) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """What each M gained over the one before, the training to the end not counted."""
    M, first = np.unique(found["num_inducing"], return_index=True)
    return M[1:], np.diff(found["bound"][first])


def _set_sizes(ax: Axes, M: npt.NDArray[np.float64]) -> None:
    ax.set_xscale("log", base=2)
    ax.set_xticks(np.unique(M), [f"{m:.0f}" for m in np.unique(M)])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("inducing inputs M")
    ax.grid(alpha=0.25)
