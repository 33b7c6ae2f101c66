"""Scores of predictions, on the host: lower is better, except coverage, which should equal its level."""

import numpy as np
import numpy.typing as npt

__all__ = ["coverage", "error_rate", "nlpd", "rmse"]

Z95 = 1.959963984540054
"""The 97.5 % quantile of the standard normal distribution."""


def _check_shapes(a: npt.NDArray, b: npt.NDArray) -> None:
    # [N] against [N, 1] would silently broadcast to [N, N]
    if a.shape != b.shape:
        msg = f"predictions have shape {a.shape}, targets {b.shape}; give both as [N, P]."
        raise ValueError(msg)


def nlpd(log_density: npt.NDArray) -> float:
    """Mean negative log predictive density, in nats for each datum, from log densities [N]."""
    return float(-np.mean(log_density))


def rmse(mean: npt.NDArray, y: npt.NDArray) -> float:
    """Root mean squared error of means [N, P] for targets [N, P], in units of the targets."""
    _check_shapes(mean, y)
    return float(np.sqrt(np.mean((mean - y) ** 2)))


def coverage(mean: npt.NDArray, variance: npt.NDArray, y: npt.NDArray) -> float:
    """The share of targets [N, P] inside the central 95 % interval of N(mean, variance), both [N, P]."""
    _check_shapes(mean, y)
    return float(np.mean(np.abs(y - mean) <= Z95 * np.sqrt(variance)))


def error_rate(probability: npt.NDArray, y: npt.NDArray) -> float:
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
    if probability.ndim == 2 and probability.shape[1] > 1 and y.shape == (len(probability), 1):
        classes = probability.shape[1]
        if not np.isin(y, np.arange(classes)).all():
            msg = f"labels must be whole numbers from 0 to {classes - 1}, as many as probability has columns."
            raise ValueError(msg)
        return float(np.mean(np.argmax(probability, axis=1) != y[:, 0]))
    _check_shapes(probability, y)
    return float(np.mean((probability > 0.5) != (y > 0.5)))
