"""Predictions as tables, and how good they are."""

from typing import Any, NamedTuple

import numpy as np

from agp import metrics
from agp.cli._labels import positions_of

__all__ = ["Asked", "answers", "scored"]


class Asked(NamedTuple):
    """What is asked for."""

    level: float
    """Of intervals."""
    quantiles: tuple[float, ...] = ()
    exposure: Any = None
    """Of each row [N]; None is 1."""


def answers(estimator: Any, X: Any, asked: Asked, targets: list[str]) -> dict[str, Any]:
    """The columns of a table of predictions: means with intervals and quantiles, or labels with probabilities.

    Those of several targets have their names.
    """
    if "classes_" in vars(estimator):
        probabilities = estimator.predict_proba(X)
        label = estimator.classes_[np.argmax(probabilities, axis=1)]
        named = {f"probability_{name}": p for name, p in zip(estimator.classes_, probabilities.T, strict=True)}
        return {"label": label, **named}
    mean, deviation = estimator.predict(X, return_std=True, exposure=asked.exposure)
    ends = estimator.predict_interval(X, asked.level, exposure=asked.exposure)
    found = {"mean": mean, "standard_deviation": deviation, "lower": ends[..., 0], "upper": ends[..., 1]}
    if asked.quantiles:
        quantiles = estimator.predict_quantiles(X, asked.quantiles, exposure=asked.exposure)
        found |= {f"quantile_{q:g}": quantiles[..., i] for i, q in enumerate(asked.quantiles)}
    if mean.ndim == 1:
        return found
    names = targets or [f"y{k}" for k in range(mean.shape[1])]
    return {f"{what}_{name}": x[:, k] for k, name in enumerate(names) for what, x in found.items()}


def scored(estimator: Any, X: Any, found: dict[str, Any], y: Any, asked: Asked, targets: list[str]) -> dict[str, float]:
    """Scores of predictions of known targets [N], or of several [N, K] of which some are NaN, by name.

    Of one target the log density is that of the model; of several, that of normal variables of these moments.
    """
    if "classes_" in vars(estimator):
        return _scores_of_labels(estimator, found, y)
    if y.ndim == 1:
        density = estimator.log_density(X, y, exposure=asked.exposure)
        return _scores_of_numbers(found, y, density, asked.level)
    scores = {}
    for k, target in enumerate(targets):
        if (rows := ~np.isnan(y[:, k])).any():
            own = {what: found[f"{what}_{target}"][rows] for what in ("mean", "standard_deviation", "lower", "upper")}
            residual, deviation = y[rows, k] - own["mean"], own["standard_deviation"]
            density = -0.5 * np.log(2.0 * np.pi * deviation**2) - 0.5 * (residual / deviation) ** 2
            each = _scores_of_numbers(own, y[rows, k], density, asked.level)
            scores |= {f"{what} of {target}": x for what, x in each.items()}
    return scores


def _scores_of_labels(estimator: Any, found: dict[str, Any], y: Any) -> dict[str, float]:
    chosen = np.stack([found[f"probability_{name}"] for name in estimator.classes_], axis=1)
    at = positions_of(y, estimator.classes_)
    with np.errstate(divide="ignore"):
        density = np.log(np.where(at < 0, 0.0, chosen[np.arange(len(y)), at]))
    return {"error rate": float(np.mean(np.argmax(chosen, axis=1) != at)), "NLPD": metrics.nlpd(density)}


def _scores_of_numbers(found: dict[str, Any], y: Any, density: Any, level: float) -> dict[str, float]:
    inside = float(np.mean((found["lower"] <= y) & (y <= found["upper"])))
    return {
        "RMSE": metrics.rmse(found["mean"], y),
        "NLPD": metrics.nlpd(density),
        f"inside {100 * level:g} % interval": inside,
    }
