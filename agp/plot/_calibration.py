"""Calibration plots."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agp.backend import asarray_like
from agp.checks import check_whole
from agp.errors import count_of, explain_call
from agp.inspection import Z95, Host, Subject, subject_of
from agp.metrics import reliability, rmse
from agp.plot._panels import band, panels

LEVELS = np.linspace(0.02, 0.98, 49)


@explain_call
def plot_calibration(
    model: Any, X: Any, y: Any, /, *, bins: int = 10, ax: Any = None, offset: Any = None, noise: Any = None
) -> Figure:
    """Plot observed frequencies against predicted frequencies, preferably for data unseen in training.

    For regression, the plot shows the fraction of targets inside central intervals of the predictive distribution as a
    function of the nominal level, with one line per output. If a target is a count that lies at the end of an interval,
    it is treated as inside or outside at random, as in the randomised PIT. The legend gives the average predicted
    standard deviation and the root mean squared error.

    For classification, the plot is a reliability diagram. The legend gives the average gap between observed and
    predicted frequencies, and a histogram shows the number of predictions in each bin. For more than two classes, the
    diagram shows the probability of the most probable class.

    At each level, the curve of a perfect model lies inside the grey band with a probability of 95 %; the width of the
    band depends on the number of rows.

    Parameters
    ----------
    model
        An `agp.models.Model`, or a fitted `GPRegressor` or `GPClassifier`.
    X, y
        Inputs [N, D] and targets [N] or [N, K] of the model or estimator. NaN targets are ignored.
    bins
        The number of equal-width probability bins.
    ax
        Axes to draw into; by default a new figure.
    offset, noise
        Known offsets and noise variances of the rows, as in `agp.Predictor.predict`. If X has the column `error_column`
        of an estimator, the noise is that of this column.

    Raises
    ------
    TypeError, ValueError
        If `model` is not a model, if the data do not fit it, or if `ax` has more than one element.
    """
    subject, inputs, targets = _predictions_and_targets(model, X, y)
    figure, (one,) = panels(ax, 1, size=(4.8, 4.6))
    known = _known_of_rows(subject, X, inputs, offset, noise)
    found = subject.predict(inputs, **known)
    if subject.classes:
        _draw_reliability(one, subject, found.mean, targets, bins)
    else:
        _draw_coverage(one, found.mean, found.variance, targets, subject.pit(inputs, targets, **known))
    one.plot([0.0, 1.0], [0.0, 1.0], color="0.35", linewidth=1.0, linestyle="--", zorder=1)
    one.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0), aspect="equal")
    one.grid(alpha=0.25)
    one.legend(fontsize=8, framealpha=0.85, loc="upper left")
    return figure


@explain_call
def plot_pit(
    model: Any,
    X: Any,
    y: Any,
    /,
    *,
    bins: int = 10,
    seed: int = 0,
    ax: Any = None,
    offset: Any = None,
    noise: Any = None,
) -> Figure:
    """Plot a histogram of the probability integral transforms F(y) for each output.

    The histogram of a calibrated model is flat. Peaks at the ends mean that predictive distributions are too narrow, a
    peak in the middle means that they are too wide, and a slope means that predictions are biased. For counts,
    transforms are randomised (`agp.Predictor.pit`). Each bar of a perfect model ends inside the grey band with a
    probability of 95 %; the width of the band depends on the number of rows.

    Parameters
    ----------
    model
        An `agp.models.Model`, or a fitted `GPRegressor`.
    X, y
        Data as in `plot_calibration`.
    bins
        The number of equal-width bins.
    seed
        The seed for randomised transforms.
    ax
        Axes to draw into; by default a new figure.
    offset, noise
        As in `plot_calibration`.

    Raises
    ------
    TypeError, ValueError
        For the reasons listed in `plot_calibration`, if `model` predicts classes, or if `bins` is less than 2.
    """
    if (bins := check_whole("bins", bins)) < 2:
        raise ValueError("bins is 1, but must be at least 2 to show a distribution.")
    subject, inputs, targets = _predictions_and_targets(model, X, y)
    if subject.classes:
        raise TypeError("classes have no probability integral transforms; use plot_calibration.")
    figure, (one,) = panels(ax, 1, size=(5.2, 3.6))
    known, edges = _known_of_rows(subject, X, inputs, offset, noise), np.linspace(0.0, 1.0, bins + 1)
    pit = subject.pit(inputs, targets, seed, **known)
    fewest = int(np.min(np.sum(np.isfinite(pit), axis=0)))
    for p in range(pit.shape[1]):
        density, _ = np.histogram(pit[np.isfinite(pit[:, p]), p], edges, density=True)
        label = f"output {p + 1}" if pit.shape[1] > 1 else f"{fewest:,} targets"
        one.stairs(density, edges, color=f"C{p % 10}", linewidth=1.8, label=label, fill=pit.shape[1] == 1, alpha=0.75)
    reach = bins * Z95 * np.sqrt((1.0 - 1.0 / bins) / (bins * max(fewest, 1)))
    band(one, [0.0, 1.0], max(0.0, 1.0 - reach), 1.0 + reach, "0.6", "chance, 95 %", alpha=0.3, zorder=3)
    one.axhline(1.0, color="0.35", linewidth=1.0, linestyle="--")
    one.set(xlim=(0.0, 1.0), xlabel="probability integral transform", ylabel="density")
    one.margins(y=0.25)
    one.set_ylim(bottom=0.0)
    one.legend(fontsize=8, framealpha=0.85, loc="upper right", ncols=3)
    return figure


def _predictions_and_targets(model: Any, X: Any, y: Any) -> tuple[Subject, Any, Host]:
    """Return the wrapped model, the inputs and the targets [N, K]. Raise ValueError if the row counts differ."""
    subject = subject_of(model)
    table, targets = subject.table(X), subject.targets(y)
    if len(targets) != table.rows:
        raise ValueError(
            f"X has {count_of(table.rows, 'row')}, but y has {len(targets)}; give one target for each row."
        )
    return subject, subject.inputs(X), targets


def _known_of_rows(subject: Subject, X: Any, inputs: Any, offset: Any, noise: Any) -> dict[str, Any]:
    """Return the offset and the noise of the rows X as arrays beside their inputs."""
    moved = None if offset is None else asarray_like(np.asarray(offset, float), inputs)
    return {"offset": moved, "noise": subject.noise(X, noise)}


def _draw_coverage(ax: Axes, mean: Host, variance: Host, targets: Host, pit: Host) -> None:
    fewest = len(targets)
    for p in range(mean.shape[1]):
        seen = np.isfinite(targets[:, p])
        fewest = min(int(seen.sum()), fewest)
        at, var, y = mean[seen, p], variance[seen, p], targets[seen, p]
        inside = np.abs(2.0 * pit[seen, p] - 1.0)  # the level of the central interval that ends at y
        name = "" if mean.shape[1] == 1 else f"output {p + 1}: "
        label = f"{name}mean deviation {np.mean(np.sqrt(var)):.3g}, RMSE {rmse(at, y):.3g}"
        ax.plot(LEVELS, [np.mean(inside <= level) for level in LEVELS], color=f"C{p % 10}", linewidth=1.8, label=label)
    _chance(ax, LEVELS, np.full(LEVELS.shape, fewest))
    ax.set(xlabel="nominal level of the interval", ylabel="share of the targets inside")


def _draw_reliability(ax: Axes, subject: Subject, probability: Host, targets: Host, bins: int) -> None:
    found = reliability(probability, targets, bins)
    below = ax.inset_axes((0.55, 0.06, 0.42, 0.18))
    edges = np.linspace(0.0, 1.0, bins + 1)
    below.bar(found.predicted, found.counts, width=0.7 * (edges[1] - edges[0]), color="C0", alpha=0.5)
    below.set_xlim(0.0, 1.0)
    below.set_title("predictions", fontsize=7, pad=2)
    below.tick_params(labelsize=6)
    ax.plot(found.predicted, found.observed, "o-", color="C0", markersize=5, label=f"average gap {found.error:.3f}")
    _chance(ax, found.predicted, found.counts)
    if subject.several_classes:
        ax.set(xlabel="probability of the most probable class", ylabel="share of the labels that are this class")
    else:
        ax.set(
            xlabel=f"predicted probability of {subject.classes[1]}", ylabel=f"share of the labels {subject.classes[1]}"
        )


def _chance(ax: Axes, level: Host, count: Any) -> None:
    """Draw the band that contains 95 % of a perfect model's observed fractions, in a normal approximation."""
    reach = Z95 * np.sqrt(level * (1.0 - level) / count)
    band(
        ax, level, np.clip(level - reach, 0.0, 1.0), np.clip(level + reach, 0.0, 1.0), "0.6", "chance, 95 %", alpha=0.3
    )
