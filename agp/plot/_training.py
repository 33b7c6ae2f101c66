"""Plots of training: logged values, and bounds as a function of the number of inducing inputs."""

from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from agp.checks import check_choice
from agp.errors import explain_call
from agp.plot._panels import band, legend, panels
from agp.training import GrowthResult, Result, Round

Columns = dict[str, npt.NDArray[np.float64]]

RATE = "rate of "
"""The prefix in the names of logged learning rates."""
FIRST_PART = 10
"""The first 1 / FIRST_PART of the steps may lie outside the plot."""
WINDOWS = 40
"""Noisy curves are averaged over windows of 1 / WINDOWS of the steps."""


@explain_call
def plot_learning(result: Any, /, *, against: str = "steps", ax: Any = None) -> Figure:
    """Plot learning curves: the bound, the learning rates, and other values that training logged, in separate panels.

    If minibatches make the bound noisy, its running mean is also drawn. The first tenth of the steps may lie outside
    the plot, because the bound is far lower there. Values that are always 0 have no panel.

    Parameters
    ----------
    result
        The result of `agp.fit`, `agp.train` or `agp.fit_lbfgs`; a fitted `GPRegressor` or `GPClassifier`; or a dict
        that maps each name to one number per step.
    against
        The horizontal axis: "steps", or "seconds" if `result` is a training result. For "seconds", all steps are
        assumed to take the same time.
    ax
        Axes to draw into, one for each panel; by default a new figure.

    Raises
    ------
    TypeError, ValueError
        If `result` has no curves, if `against` is unknown, or if the number of axes is wrong.
    """
    trace, seconds = _trace(result)
    x, label = _times(trace, seconds, against)
    rates = [name for name in trace if name.startswith(RATE)]
    others = [name for name in trace if name not in rates and name != "bound" and trace[name].any()]
    kinds = [["bound"]] * ("bound" in trace) + [rates] * bool(rates) + [[name] for name in others]
    figure, axes = panels(ax, len(kinds), columns=3, size=(5.0, 3.4))
    for one, names in zip(axes, kinds, strict=True):
        one.set_xlabel(label)
        one.grid(alpha=0.25)
        if names == ["bound"]:
            _draw_bound(one, x, trace["bound"])
        else:
            _draw_numbers(one, x, {name: trace[name] for name in names}, "rate" if names is rates else names[0])
    return figure


def _trace(result: Any) -> tuple[Columns, float | None]:
    """Return the logged numbers by name, and the total time in seconds if known."""
    seconds, logged = None, result
    if isinstance(result, Result):
        seconds, logged = result.seconds, result.trace
    elif not isinstance(result, dict):
        held = {} if isinstance(result, type) else vars(result)
        if "history_" not in held:
            kind = type(result).__name__
            raise TypeError(f"a {kind} has no learning curves; pass a result of agp.fit or a fitted estimator.")
        logged = held["history_"]
    trace = {name: np.asarray(values, dtype=np.float64) for name, values in logged.items() if len(values)}
    if not trace:
        raise ValueError("nothing was logged; train for at least one step.")
    return trace, seconds


def _times(trace: dict[str, Any], seconds: float | None, against: str) -> tuple[npt.NDArray[Any], str]:
    steps = np.arange(1, max(map(len, trace.values())) + 1)
    check_choice("against", against, ("steps", "seconds"))
    if against == "steps":
        return steps, "step"
    if seconds is None:
        raise ValueError(
            "an estimator does not store times; pass a result of agp.fit or agp.train, or set against='steps'."
        )
    return steps * (seconds / len(steps)), "training time [s]"


def _draw_bound(ax: Axes, x: npt.NDArray[Any], bound: npt.NDArray[np.float64]) -> None:
    noisy = len(bound) > WINDOWS and np.mean(np.diff(bound) < 0.0) > 0.1
    ax.plot(x, bound, color="C0", alpha=0.3 if noisy else 1.0, linewidth=0.8 if noisy else 1.6, label="each step")
    if noisy:
        ax.plot(x, _running_mean(bound), color="C0", linewidth=1.6, label="running mean")
        ax.legend(fontsize=8, loc="lower right")
    ax.set_ylabel("bound on the log evidence [nats]")
    later = bound[len(bound) // FIRST_PART :]
    lowest, highest = float(np.min(later)), float(np.max(bound))
    if highest > lowest > np.min(bound):
        ax.set_ylim(lowest - 0.05 * (highest - lowest), highest + 0.05 * (highest - lowest))


def _running_mean(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Compute the running mean. Each window contains a fraction 1 / WINDOWS of the numbers."""
    half = max(1, len(values) // (2 * WINDOWS))
    total, at = np.cumsum(np.concatenate([np.zeros(1), values])), np.arange(len(values))
    first, last = np.maximum(at - half, 0), np.minimum(at + half + 1, len(values))
    return (total[last] - total[first]) / (last - first)


def _draw_numbers(ax: Axes, x: npt.NDArray[Any], curves: dict[str, Any], what: str) -> None:
    for name, values in curves.items():
        ax.plot(x[: len(values)], values, linewidth=1.4, label=name.removeprefix(RATE))
    together = np.concatenate(list(curves.values()))
    if together.min() > 0.0 and together.max() > 20.0 * together.min():
        ax.set_yscale("log")
    ax.set_ylabel(what.replace("_", " "))
    if len(curves) > 1:
        legend(ax)


# -- growth ----------------------------------------------------------------------------------------------------------


@explain_call
def plot_growth(result: Any, /, *, ax: Any = None) -> Figure:
    """Plot the bound, the upper bound, their gap, and the gain per doubling against the number of inducing inputs.

    All values are in nats per row. Without an upper bound, the gap is not drawn. If the largest model was also trained
    to convergence, the plot has two points at its number of inducing inputs.

    Parameters
    ----------
    result
        The result of `agp.fit_growing`, or a `GPRegressor` or `GPClassifier` that was fitted with
        ``num_inducing="auto"``.
    ax
        Two axes to draw into; by default a new figure.

    Raises
    ------
    TypeError, ValueError
        If training did not increase the number of inducing inputs, or if the number of axes is wrong.
    """
    found = _columns(result)
    figure, (left, right) = panels(ax, 2, columns=2, size=(5.0, 3.4))
    M = found["num_inducing"]
    left.plot(M, found["bound"], color="C0", marker="o", markersize=4, label="bound")
    if np.isfinite(found["gap"]).any():
        left.plot(M, found["upper"], color="C1", marker="o", markersize=4, label="upper bound")
        band(left, M, found["bound"], found["upper"], "0.5", "gap", alpha=0.15)
        right.plot(M, found["gap"], color="0.3", marker="o", markersize=4, label="gap")
    sizes, index = np.unique(M, return_index=True)  # without the gain of the final training
    gains = np.diff(found["bound"][index])
    right.plot(sizes[1:], gains, color="C2", marker="s", markersize=4, label="gain of a doubling")
    left.set_ylabel("nats per datum")
    for one in (left, right):
        one.set_xscale("log", base=2)
        one.set_xticks(sizes, [f"{m:.0f}" for m in sizes])
        one.xaxis.set_minor_locator(NullLocator())
        one.set_xlabel("inducing inputs M")
        one.grid(alpha=0.25)
        legend(one)
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
        raise TypeError(f"a {type(result).__name__} has no record of growth; pass a result of {by}.")
    return {name: np.asarray(values, dtype=np.float64) for name, values in rounds.items()}
