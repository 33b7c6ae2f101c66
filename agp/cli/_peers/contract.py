"""The data that the two interpreters exchange. It needs NumPy alone: the environment of a peer has no agp."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np


class Stored:
    """Base of dataclasses of arrays, numbers and text that interpreters exchange as files."""

    def write(self, path: str | Path) -> None:
        """Write an .npz file."""
        np.savez(path, allow_pickle=False, **vars(self))

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read an .npz file."""
        with np.load(path) as file:
            return cls(**{name: file[name] if file[name].ndim else file[name].item() for name in file.files})


@dataclass(frozen=True)
class Start(Stored):
    """A whitened SVGP with Gaussian noise before its first step; the dtype of Z is that of everything."""

    Z: Any
    """[M, D]"""
    lengthscale: Any
    """[D]"""
    variance: float
    noise: float
    mean: float
    """The value of a constant mean function, which is trained; NaN for a mean of zero."""
    kernel: str
    """rbf, matern12, matern32 or matern52."""
    jitter: float
    rows: int
    """N, the number of training rows."""
    epsilon: float
    """Of Adam."""
    Z_beta1: float
    """Of Adam, for Z."""
    q_mean: Any
    """[M]"""
    q_scale: Any
    """[M, M], lower triangular."""


@dataclass(frozen=True)
class Run(Stored):
    """The data of a training, its minibatches and rates, and the steps after which test rows are predicted."""

    X: Any
    """[N, D]"""
    y: Any
    """[N]"""
    X_test: Any
    curve_rows: Any
    """Test rows of the curve."""
    curve_steps: Any
    """The steps after which the curve is computed."""
    batches: Any
    """The rows [T, B] of each step."""
    rates: Any
    """[T]"""
    Z_rates: Any
    """[T]"""
    probe_mean: Any
    """[M]; at this mean and `probe_scale` of q(u), the bound must equal that of agp."""
    probe_scale: Any
    """[M, M]"""


class Peer(Protocol):
    """A whitened SVGP of a library, trained by Adam. Bounds are totals over all data, in nats."""

    versions: dict[str, str]

    def __init__(self, start: Start) -> None: ...

    def bound(self, X: Any, y: Any) -> float:
        """The bound of a minibatch: its expected log densities times N / B, minus the KL divergence."""
        ...

    def kl(self) -> float:
        """The KL divergence of q(u) from the prior."""
        ...

    def gradient(self, X: Any, y: Any) -> float:
        """The bound of a minibatch, computed with the gradient of all parameters."""
        ...

    def step(self, X: Any, y: Any, rate: float, Z_rate: float) -> float:
        """The same, and Adam's update."""
        ...

    def predict(self, X: Any) -> tuple[Any, Any]:
        """Means and variances of f [N]."""
        ...

    def noise(self) -> float:
        """The variance of the noise."""
        ...
