"""The plots of `agp compare`."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from agp.data import Dataset

STYLES = {("closed-form", "float64"): "-", ("closed-form", "float32"): "--", ("autodiff", "float64"): "-."}


def plot_comparison(rows: list[dict[str, Any]], /) -> Figure:
    """Plot test NLPD against training time; each method has a panel, and each result of `agp compare` has a line."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    figure = Figure(figsize=(5.2 * len(methods), 4.2), layout="constrained")
    axes = figure.subplots(1, len(methods), sharey=True, squeeze=False)[0]
    backends = list(dict.fromkeys(row["backend"] for row in rows))
    for ax, method in zip(axes, methods, strict=True):
        for row in (row for row in rows if row["method"] == method):
            seconds, nlpd = np.asarray(row["curve"]).T
            style = STYLES.get((row["gradient"], row["dtype"]), ":")
            label = f"{row['backend']}, {row['gradient']}, {row['dtype']}"
            ax.plot(seconds, nlpd, style, color=f"C{backends.index(row['backend'])}", label=label, linewidth=1.4)
        ax.set(title=method, xlabel="training time [s]", xscale="log")
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("test NLPD [nats per datum]")
    axes[-1].legend(fontsize=7)
    return figure


def plot_map(data: Dataset, reference: str | Path, method: str, /) -> Figure:
    """Plot the targets and the predictions as functions of two inputs.

    Predictions are the mean and the standard deviation, or the most probable class and its probability. Values are
    standardised, except for classes and counts.
    """
    assert data.y_all is not None
    with np.load(reference) as file:
        arrays = {name: file[name] for name in file.files if name.startswith("map:")}
        Z = file["leaf:Z"] if "leaf:Z" in file.files else None
    figure = Figure(figsize=(14, 4.3), layout="constrained")
    panels = figure.subplots(1, 3, sharex=True, sharey=True)
    draw = _draw_classes if data.classes else _draw_values
    draw(figure, panels, data, data.y_all[:, 0], arrays)
    if Z is not None:
        panels[2].autoscale(False)  # some inducing inputs may lie outside the data
        dots = {"color": "white", "markeredgecolor": "black", "markeredgewidth": 0.4}
        panels[2].plot(Z[:, 0], Z[:, 1], "o", markersize=2.5, label="inducing inputs", **dots)
        panels[2].legend(loc="lower right", fontsize=7)
    for ax in panels:
        ax.set_xlabel(_column(data, 0))
    panels[0].set_ylabel(_column(data, 1))
    units = "inputs in standard units" if data.classes or data.counts else "standard units"
    figure.suptitle(f"{data.name}, {method} ({units})")
    return figure


def _draw_values(figure: Figure, panels: Any, data: Dataset, truth: npt.NDArray, arrays: dict[str, Any]) -> None:
    low, high = np.percentile(truth, [0.5, 99.5])
    # avoid white on scatter plots, where single points would be invisible
    heights, spread = ("viridis", "plasma") if data.grid is None else ("terrain", "magma")
    for ax, values, title, limits, colours in (
        (panels[0], truth, "truth", (low, high), heights),
        (panels[1], arrays["map:mean"], "predicted mean", (low, high), heights),
        (panels[2], arrays["map:sd"], "predicted standard deviation", (None, None), spread),
    ):
        image = _paint(ax, data, values, {"vmin": limits[0], "vmax": limits[1], "cmap": colours})
        ax.set_title(title)
        figure.colorbar(image, ax=ax)


def _draw_classes(figure: Figure, panels: Any, data: Dataset, truth: npt.NDArray, arrays: dict[str, Any]) -> None:
    probability = arrays["map:probability"]
    C = data.classes
    colours = {"cmap": _class_colours(C), "vmin": -0.5, "vmax": C - 0.5}
    chosen = np.argmax(probability, axis=1)
    for ax, values, title in (
        (panels[0], truth, "truth"),
        (panels[1], chosen.astype(float), "most probable class"),
    ):
        image = _paint(ax, data, values, colours)
        ax.set_title(title)
        figure.colorbar(image, ax=ax, ticks=range(C), label="class")
    certainty = _paint(panels[2], data, probability.max(axis=1), {"cmap": "viridis", "vmin": 1.0 / C, "vmax": 1.0})
    panels[2].set_title("its probability")
    figure.colorbar(certainty, ax=panels[2])


def _class_colours(C: int) -> Any:
    if C <= 10:
        return ListedColormap([colormaps["tab10"](c) for c in range(C)])
    return colormaps["tab20" if C <= 20 else "turbo"].resampled(C)


def _paint(ax: Axes, data: Dataset, values: npt.NDArray, style: dict[str, Any]) -> Any:
    x = data.X_all
    assert x is not None
    if data.grid is None:
        return ax.scatter(x[:, 0], x[:, 1], c=values, s=6, **style)
    extent = (x[:, 0].min(), x[:, 0].max(), x[:, 1].max(), x[:, 1].min())
    return ax.imshow(values.reshape(data.grid), extent=extent, aspect="auto", **style)


def _column(data: Dataset, i: int) -> str:
    return data.columns[i] if data.columns else f"input {i + 1}"
