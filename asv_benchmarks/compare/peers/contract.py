"""The data that programs exchange with the Python interpreter of another library, which need not have agp.

`Start` is a model before its first step, `Problem` a model with one batch, and `Run` a whole training run. Each module
``LIBRARY_peer.py`` has a class `Peer`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np


class Stored:
    """Base class for dataclasses of arrays, numbers and text that are exchanged as files."""

    def write(self, path: str | Path) -> None:
        """Write an .npz file."""
        np.savez(path, allow_pickle=False, **vars(self))

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read an .npz file."""
        with np.load(path) as file:
            return cls(**{name: file[name] if file[name].ndim else file[name].item() for name in file.files})


@dataclass(frozen=True, kw_only=True)
class Start(Stored):
    """A whitened SVGP before its first step. The dtype of Z is used for all computations."""

    Z: Any
    """The inducing inputs [M, D]."""
    lengthscale: Any
    """The lengthscales [D]."""
    variance: float
    noise: float
    """The noise variance; not used by the likelihood bernoulli."""
    rows: int
    """N, the number of training rows."""
    mean: float = float("nan")
    """The initial value of the trainable constant mean function; NaN if the mean function is zero."""
    kernel: str = "rbf"
    """rbf, matern12, matern32 or matern52."""
    likelihood: str = "gaussian"
    """gaussian, or bernoulli (with a probit link, for targets 0 and 1), which only GPyTorch's peer has."""
    jitter: float = 1e-6
    epsilon: float = 1e-7
    """Adam's epsilon."""
    Z_beta1: float = 0.9
    """Adam's decay rate beta1 for Z."""
    q_mean: Any = None
    """The mean [M] of q(u); by default, q(u) is the prior."""
    q_scale: Any = None
    """The lower triangular factor [M, M] of the covariance of q(u)."""

    def __post_init__(self) -> None:
        M = len(self.Z)
        if self.q_mean is None:
            object.__setattr__(self, "q_mean", np.zeros(M, self.Z.dtype))
            object.__setattr__(self, "q_scale", np.eye(M, dtype=self.Z.dtype))


@dataclass(frozen=True, kw_only=True)
class Problem(Start):
    """A model, a batch, and Adam's rate."""

    X: Any
    """Inputs [B, D] of the batch."""
    y: Any
    """Targets [B] of the batch."""
    rate: float


@dataclass(frozen=True)
class Run(Stored):
    """A training run: data, minibatches, learning rates, and the steps after which test rows are predicted."""

    X: Any
    """The training inputs [N, D]."""
    y: Any
    """The training targets [N]."""
    X_test: Any
    """The test inputs, with D columns."""
    curve_rows: Any
    """Indices of the test rows from which the curve of NLPD against time is computed."""
    curve_steps: Any
    """The steps after which the curve is computed."""
    batches: Any
    """The row numbers [T, B] of each step's minibatch."""
    rates: Any
    """The learning rates [T]."""
    Z_rates: Any
    """The learning rates [T] for Z."""
    probe_mean: Any
    """The mean [M] of the probe, a q(u) at which the bound must equal agp's bound."""
    probe_scale: Any
    """The lower triangular factor [M, M] of the probe's covariance."""


class Peer(Protocol):
    """A library's whitened SVGP, trained with Adam. Bounds are for all training rows, in nats."""

    versions: dict[str, str]

    def __init__(self, start: Start) -> None: ...

    def bound(self, X: Any, y: Any) -> float:
        """Estimate the bound from a minibatch: its expected log densities times N / B, minus the KL divergence."""
        ...

    def kl(self) -> float:
        """The KL divergence of q(u) from the prior."""
        ...

    def gradient(self, X: Any, y: Any) -> float:
        """Compute the gradient of a minibatch's bound with respect to all parameters, and return the bound."""
        ...

    def step(self, X: Any, y: Any, rate: float, Z_rate: float) -> float:
        """Compute the gradient, take an Adam step, and return the bound before the step."""
        ...

    def predict(self, X: Any) -> tuple[Any, Any]:
        """Means [N] and variances [N] of f."""
        ...

    def noise(self) -> float:
        """The noise variance."""
        ...
