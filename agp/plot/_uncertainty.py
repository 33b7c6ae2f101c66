"""What data leave open and what computation leaves open, over one input."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from agp import tree
from agp.backend import Array, backend_of, to_numpy

__all__ = ["plot_uncertainty"]

POINTS = 400
"""Inputs at which curves are drawn."""
DEVIATIONS = 2.0
"""Half the width of the bands."""


def plot_uncertainty(path: Path | str, model: Any, X: Array, y: Array, /, *, margin: float = 0.15) -> None:
    """Mean, mathematical and computational uncertainty of a `CaGP` over one input, the first output alone.

    The inner band is two standard deviations of the exact posterior with the same hyperparameters, around the mean that
    was computed; the outer one is that of the computation-aware posterior. What lies between was not computed.

    Parameters
    ----------
    path
        Of the picture.
    model
        A `CaGP` of inputs with one column.
    X, y
        The data [N, 1] and [N] or [N, P].
    margin
        How far the picture goes beyond the data, in shares of their range.

    Raises
    ------
    ValueError
        For inputs with more columns, and as `CaGP.uncertainty`.
    """
    if X.ndim != 2 or X.shape[1] != 1:
        msg = f"X has shape {tuple(X.shape)}; this picture is for inputs with one column."
        raise ValueError(msg)
    x, targets = np.asarray(to_numpy(X))[:, 0], np.asarray(to_numpy(y)).reshape(X.shape[0], -1)[:, 0]
    reach = margin * (x.max() - x.min())
    grid = np.linspace(x.min() - reach, x.max() + reach, POINTS).astype(x.dtype)
    at = _like(grid[:, None], X)
    mean = np.asarray(to_numpy(model.predict_mean(at)))[:, 0]
    combined, mathematical, _ = (np.asarray(to_numpy(v))[:, 0] for v in model.uncertainty(at, X))
    outer, inner = (DEVIATIONS * np.sqrt(v) for v in (combined, mathematical))
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    ax = figure.subplots()
    ax.plot(x, targets, ".", color="0.35", markersize=3, label="data")
    for side, label in ((1.0, "computational"), (-1.0, None)):
        beyond = mean + side * inner, mean + side * outer
        ax.fill_between(grid, *beyond, color="C1", alpha=0.45, linewidth=0, label=label)
    ax.fill_between(grid, mean - inner, mean + inner, color="C0", alpha=0.45, linewidth=0, label="mathematical")
    ax.plot(grid, mean, color="C0", linewidth=1.4, label="mean")
    ax.set(xlabel="input", ylabel="output", title=f"{model.actions.count} actions, {x.size} data")
    ax.grid(alpha=0.3)
    ax.legend(fontsize=8)
    figure.savefig(path, dpi=150)


def _like(x: Any, X: Array) -> Array:
    B = backend_of(X)
    return tree.to_backend(x, B.name, device=B.device_name(X))
