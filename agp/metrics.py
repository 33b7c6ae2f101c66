"""Scores of predictions, on the host: lower is better, except coverage, which should equal its level.

Arguments are arrays of any library and device, or lists of numbers.
"""

import numpy as np

from agp.backend import Array, to_numpy

__all__ = ["coverage", "error_rate", "nlpd", "rmse"]

Z95 = 1.959963984540054
"""The 97.5 % quantile of the standard normal distribution."""


def _on_host(*arrays: Array) -> list[np.ndarray]:
    return [np.asarray(x) if isinstance(x, (int, float, list, tuple)) else to_numpy(x) for x in arrays]


def _alike(*arrays: Array) -> list[np.ndarray]:
    # [N] against [N, 1] would silently broadcast to [N, N]
    *predictions, y = found = _on_host(*arrays)
    for x in predictions:
        if x.shape != y.shape:
            msg = f"predictions have shape {x.shape}, targets {y.shape}; give both as [N, P]."
            raise ValueError(msg)
    return found


def nlpd(log_density: Array) -> float:
    """Mean negative log predictive density, in nats for each datum, from log densities [N]."""
    return float(-np.mean(_on_host(log_density)[0]))


def rmse(mean: Array, y: Array) -> float:
    """Root mean squared error of means [N, P] for targets [N, P], in units of the targets."""
    mean, y = _alike(mean, y)
    return float(np.sqrt(np.mean((mean - y) ** 2)))


def coverage(mean: Array, variance: Array, y: Array) -> float:
    """The share of targets [N, P] inside the central 95 % interval of N(mean, variance), both [N, P]."""
    mean, variance, y = _alike(mean, variance, y)
    return float(np.mean(np.abs(y - mean) <= Z95 * np.sqrt(variance)))


def error_rate(probability: Array, y: Array) -> float:
    """The share of labels that the most probable class misses.

    Parameters
    ----------
    probability
        For two classes p(y = 1) [N, P]; for C classes their probabilities [N, C].
    y
        Labels in {0, 1} [N, P]; for C classes labels 0 to C - 1 [N, 1].

    Raises
    ------
    ValueError
        For other shapes, and labels of C classes that are none of them.
    """
    probability, y = _on_host(probability, y)
    if probability.ndim == 2 and probability.shape[1] > 1 and y.shape == (len(probability), 1):
        classes = probability.shape[1]
        if not np.isin(y, np.arange(classes)).all():
            msg = f"labels must be whole numbers from 0 to {classes - 1}, as many as probability has columns."
            raise ValueError(msg)
        return float(np.mean(np.argmax(probability, axis=1) != y[:, 0]))
    probability, y = _alike(probability, y)
    return float(np.mean((probability > 0.5) != (y > 0.5)))
