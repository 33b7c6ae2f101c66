"""The pictures of `agp compare`."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agp.data import Dataset

__all__ = ["plot_curves", "plot_map"]

STYLES = {("closed-form", "float64"): "-", ("closed-form", "float32"): "--", ("autodiff", "float64"): "-."}


def plot_curves(path: Path, rows: list[dict[str, Any]]) -> None:
    """Test NLPD against seconds of training, one panel for each method, one line for each row."""
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
    figure.savefig(path, dpi=150)


def plot_map(path: Path, data: Dataset, reference: str | Path, method: str) -> None:
    """Truth, predicted mean and standard deviation over two inputs, all in the standard units of the data."""
    assert data.X_all is not None
    assert data.y_all is not None
    with np.load(reference) as file:
        mean, sd = file["map:mean"], file["map:sd"]
        Z = file["leaf:Z"] if "leaf:Z" in file.files else None
    figure = Figure(figsize=(14, 4.3), layout="constrained")
    panels = figure.subplots(1, 3, sharex=True, sharey=True)
    truth = data.y_all[:, 0]
    low, high = np.percentile(truth, [0.5, 99.5])
    for ax, values, title, limits, colours in (
        (panels[0], truth, "truth", (low, high), "terrain"),
        (panels[1], mean, "predicted mean", (low, high), "terrain"),
        (panels[2], sd, "predicted standard deviation", (None, None), "magma"),
    ):
        image = _paint(ax, data, values, limits, colours)
        ax.set(title=title, xlabel=_column(data, 0))
        figure.colorbar(image, ax=ax)
    if Z is not None:
        panels[2].plot(Z[:, 0], Z[:, 1], ".", color="white", markersize=2, label="inducing inputs")
        panels[2].legend(loc="lower right", fontsize=7)
    panels[0].set_ylabel(_column(data, 1))
    figure.suptitle(f"{data.name}, {method} (standard units)")
    figure.savefig(path, dpi=150)


def _paint(ax: Axes, data: Dataset, values: npt.NDArray, limits: tuple[Any, Any], colours: str) -> Any:
    x = data.X_all
    assert x is not None
    style: dict[str, Any] = {"vmin": limits[0], "vmax": limits[1], "cmap": colours}
    if data.grid is None:
        return ax.scatter(x[:, 0], x[:, 1], c=values, s=6, **style)
    extent = (x[:, 0].min(), x[:, 0].max(), x[:, 1].max(), x[:, 1].min())
    return ax.imshow(values.reshape(data.grid), extent=extent, aspect="auto", **style)


def _column(data: Dataset, i: int) -> str:
    return data.columns[i] if data.columns else f"input {i + 1}"
