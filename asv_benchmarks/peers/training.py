"""What both sides of `learning.py` train on: data, starting values, minibatches and rates, written by agp's side."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from exchange import Stored


@dataclass(frozen=True)
class Training(Stored):
    """A training run of the whitened SVGP: RBF with a lengthscale for each column, float64, Adam."""

    X: Any
    """[N, D], standardised, as all data here."""
    y: Any
    """[N], standardised, or 0 and 1 of two classes."""
    X_test: Any
    y_test: Any
    Z: Any
    """[M, D]"""
    lengthscale: Any
    """[D]"""
    variance: float
    noise: float
    """Not used for classes."""
    binary: bool
    """Whether the likelihood is Bernoulli (probit), not Gaussian."""
    batches: Any
    """The rows [steps, B] of every step."""
    rate: float
    frozen: int
    """Steps for which Z stays where it starts."""
    Z_rate: float
    Z_beta1: float
    epsilon: float
    """Adam's."""
    seed: int


def scores(mean: Any, variance: Any, y: Any, *, binary: bool) -> dict[str, float]:
    """Test NLPD (nats for each datum) and RMSE of predictions of y [N]: Gaussian, or `mean` the probability of 1."""
    residual = y - mean
    if binary:
        density = np.log(np.where(y > 0.5, mean, 1.0 - mean))
        return {"nlpd": float(-density.mean()), "rmse": float(np.sqrt(np.mean(residual**2)))}
    density = -0.5 * (np.log(2.0 * np.pi * variance) + residual**2 / variance)
    return {"nlpd": float(-density.mean()), "rmse": float(np.sqrt(np.mean(residual**2)))}


def arguments(doc: str | None) -> argparse.Namespace:
    """The command line of a side."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("training", help="an .npz file that dump_training.py wrote")
    parser.add_argument("--out", type=Path, help="a .json file for the results, which are printed, too")
    return parser.parse_args()
