"""The training run of `learning.py`: data, starting values, minibatches and rates, as written by agp."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from exchange import Stored


@dataclass(frozen=True)
class Training(Stored):
    """A training run of a whitened SVGP with an RBF kernel, a lengthscale for each column, float64 and Adam."""

    X: Any
    """Standardised training inputs [N, D]."""
    y: Any
    """Training targets [N]: standardised, or classes 0 and 1."""
    X_test: Any
    y_test: Any
    Z: Any
    """Inducing inputs [M, D]."""
    lengthscale: Any
    """Lengthscales [D]."""
    variance: float
    noise: float
    """Noise variance; not used for classes."""
    binary: bool
    """Whether the likelihood is Bernoulli with a probit link, instead of Gaussian."""
    batches: Any
    """Row numbers [steps, B] of each step."""
    rate: float
    frozen: int
    """Number of first steps in which Z is fixed."""
    Z_rate: float
    Z_beta1: float
    epsilon: float
    """Adam's epsilon."""
    seed: int


def scores(mean: Any, variance: Any, y: Any, *, binary: bool) -> dict[str, float]:
    """NLPD (nats per row) and RMSE of predictions of y [N].

    The predictions are Gaussian. If `binary`, `mean` is the probability of class 1.
    """
    residual = y - mean
    if binary:
        density = np.log(np.where(y > 0.5, mean, 1.0 - mean))
        return {"nlpd": float(-density.mean()), "rmse": float(np.sqrt(np.mean(residual**2)))}
    density = -0.5 * (np.log(2.0 * np.pi * variance) + residual**2 / variance)
    return {"nlpd": float(-density.mean()), "rmse": float(np.sqrt(np.mean(residual**2)))}


def arguments(doc: str | None) -> argparse.Namespace:
    """Parse the command line of one side."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("training", help=".npz file from dump_training.py")
    parser.add_argument("--out", type=Path, help="JSON file for the results, which are also printed")
    return parser.parse_args()
