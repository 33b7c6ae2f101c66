"""Predictions as tables, and how good they are."""

from statistics import NormalDist
from typing import Any

import numpy as np

from agp import metrics

__all__ = ["answers", "scored"]


def answers(estimator: Any, X: Any, level: float) -> dict[str, Any]:
    """The columns of a table of predictions: means with intervals, or labels with probabilities."""
    if "classes_" in vars(estimator):
        probabilities = estimator.predict_proba(X)
        label = estimator.classes_[np.argmax(probabilities, axis=1)]
        named = {f"probability_{name}": p for name, p in zip(estimator.classes_, probabilities.T, strict=True)}
        return {"label": label, **named}
    mean, deviation = estimator.predict(X, return_std=True)
    if mean.ndim == 2:
        msg = "the model predicts several targets at once, and a table has one; use it in Python: agp.load."
        raise ValueError(msg)
    half = NormalDist().inv_cdf(0.5 + 0.5 * level) * deviation
    return {"mean": mean, "standard_deviation": deviation, "lower": mean - half, "upper": mean + half}


def scored(estimator: Any, found: dict[str, Any], y: Any, level: float) -> dict[str, float]:
    """Scores of predictions of known targets [N], by name."""
    if "classes_" in vars(estimator):
        chosen = np.stack([found[f"probability_{name}"] for name in estimator.classes_], axis=1)
        known = np.isin(y, estimator.classes_)
        at = np.searchsorted(estimator.classes_, np.where(known, y, estimator.classes_[0]))
        with np.errstate(divide="ignore"):
            density = np.log(np.where(known, chosen[np.arange(len(y)), at], 0.0))
        return {"error rate": float(np.mean(found["label"] != y)), "NLPD": metrics.nlpd(density)}
    mean, deviation = found["mean"], found["standard_deviation"]
    density = -0.5 * np.log(2.0 * np.pi * deviation**2) - 0.5 * ((y - mean) / deviation) ** 2
    inside = float(np.mean((found["lower"] <= y) & (y <= found["upper"])))
    return {"RMSE": metrics.rmse(mean, y), "NLPD": metrics.nlpd(density), f"inside {100 * level:g} % interval": inside}
