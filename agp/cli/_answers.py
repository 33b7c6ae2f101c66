"""Predictions as tables, and how good they are."""

from statistics import NormalDist
from typing import Any

import numpy as np

from agp import metrics
from agp.cli._labels import positions_of

__all__ = ["answers", "scored"]


def answers(estimator: Any, X: Any, level: float, targets: list[str]) -> dict[str, Any]:
    """The columns of a table of predictions: means with intervals, or labels with probabilities.

    Those of several targets have their names.
    """
    if "classes_" in vars(estimator):
        probabilities = estimator.predict_proba(X)
        label = estimator.classes_[np.argmax(probabilities, axis=1)]
        named = {f"probability_{name}": p for name, p in zip(estimator.classes_, probabilities.T, strict=True)}
        return {"label": label, **named}
    mean, deviation = estimator.predict(X, return_std=True)
    half = NormalDist().inv_cdf(0.5 + 0.5 * level) * deviation
    found = {"mean": mean, "standard_deviation": deviation, "lower": mean - half, "upper": mean + half}
    if mean.ndim == 1:
        return found
    names = targets or [f"y{k}" for k in range(mean.shape[1])]
    return {f"{what}_{name}": x[:, k] for k, name in enumerate(names) for what, x in found.items()}


def scored(estimator: Any, found: dict[str, Any], y: Any, level: float, targets: list[str]) -> dict[str, float]:
    """Scores of predictions of known targets [N], or of several [N, K] of which some are NaN, by name."""
    if "classes_" in vars(estimator):
        return _scores_of_labels(estimator, found, y)
    if y.ndim == 1:
        return _scores_of_numbers(found, y, level)
    scores = {}
    for k, target in enumerate(targets):
        if (rows := ~np.isnan(y[:, k])).any():
            own = {what: found[f"{what}_{target}"][rows] for what in ("mean", "standard_deviation", "lower", "upper")}
            scores |= {f"{what} of {target}": x for what, x in _scores_of_numbers(own, y[rows, k], level).items()}
    return scores


def _scores_of_labels(estimator: Any, found: dict[str, Any], y: Any) -> dict[str, float]:
    chosen = np.stack([found[f"probability_{name}"] for name in estimator.classes_], axis=1)
    at = positions_of(y, estimator.classes_)
    with np.errstate(divide="ignore"):
        density = np.log(np.where(at < 0, 0.0, chosen[np.arange(len(y)), at]))
    return {"error rate": float(np.mean(np.argmax(chosen, axis=1) != at)), "NLPD": metrics.nlpd(density)}


def _scores_of_numbers(found: dict[str, Any], y: Any, level: float) -> dict[str, float]:
    mean, deviation = found["mean"], found["standard_deviation"]
    density = -0.5 * np.log(2.0 * np.pi * deviation**2) - 0.5 * ((y - mean) / deviation) ** 2
    inside = float(np.mean((found["lower"] <= y) & (y <= found["upper"])))
    return {"RMSE": metrics.rmse(mean, y), "NLPD": metrics.nlpd(density), f"inside {100 * level:g} % interval": inside}
