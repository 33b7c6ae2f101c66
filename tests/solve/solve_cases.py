"""Random models with two groups of inducing inputs, far from any optimum, and their formulas in plain NumPy."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from helpers import LIKELIHOODS, as_arrays, solvegp, solvegpr
from hypothesis import strategies as st

from agp import backend_of
from agp.kernels import RBF, Matern32
from agp.likelihoods import Gaussian
from agp.linalg import add_jitter
from agp.posteriors import (
    DiagonalMarginal,
    DiagonalWhitened,
    Marginal,
    Orthogonal,
    PriorSpread,
    RelaxedOrthogonal,
    RelaxedUnion,
    Whitened,
)

RELAXED = {"relaxed-orthogonal": RelaxedOrthogonal, "relaxed-union": RelaxedUnion}
STOCHASTIC = (
    "whitened",
    "marginal",
    "diagonal",
    "odvgp",
    "marginal-odvgp",
    *RELAXED,
    *(f"{kind}-plain" for kind in RELAXED),
)
COLLAPSED = ("optimal", "free-whitened", "free-marginal", "free-diagonal", "free-prior", "tight")
KINDS = (*STOCHASTIC, *COLLAPSED)
FREE = {
    "free-whitened": Whitened,
    "free-marginal": Marginal,
    "free-diagonal": DiagonalWhitened,
    "free-prior": PriorSpread,
}


def _part(kind: Any, mean: Any, scale: Any) -> Any:
    """A q of one group of that kind, from a mean [M, P] and factors [P, M, M]."""
    if kind is PriorSpread:
        return kind(mean)
    if kind in (DiagonalWhitened, DiagonalMarginal):
        return kind(mean, np.diagonal(scale, axis1=1, axis2=2).T.copy())
    return kind(mean, scale)


@dataclass
class Groups:
    """Kernel, data and inducing inputs of two groups on the host."""

    seed: int = 0
    rows: int = 12
    first: int = 4
    second: int = 3
    outputs: int = 1
    kind: type = RBF
    jitter: float = 1e-3
    noise: float = 0.2

    def __post_init__(self):
        self.rng = np.random.default_rng([self.seed, self.first, self.second, self.outputs])
        self.X, self.Z, self.O = (self.rng.normal(size=(n, 2)) for n in (self.rows, self.first, self.second))
        self.y = np.sin(2.0 * self.X[:, :1]) + self.rng.normal(size=(self.rows, self.outputs))
        self.kernel = as_arrays(self.kind(0.8 + self.rng.uniform(), (0.7, 1.1)))
        self.likelihood = Gaussian(np.asarray(self.noise))
        self.union = np.concatenate([self.Z, self.O])
        self.sizes = self.first, self.second
        self.K = add_jitter(self.kernel(self.union)[0], self.jitter)
        self.Kf = self.kernel(self.union, self.X)[0]
        M = self.first
        self.Kuu, self.Kvu, self.Kvv = self.K[:M, :M], self.K[M:, :M], self.K[M:, M:]
        self.Kuf, self.Kvf, self.kff = self.Kf[:M], self.Kf[M:], self.kernel.diag(self.X)[0]
        # section by section as in the paper: everything by explicit inverses
        self.J = self.Kvu @ np.linalg.inv(self.Kuu)
        self.Cvv = self.Kvv - self.J @ self.Kvu.T
        self.Cvf = self.Kvf - self.J @ self.Kuf

    def state(self, size):
        """A mean [size, P] and lower scales [P, size, size]."""
        scale = np.tril(0.4 * self.rng.normal(size=(self.outputs, size, size)))
        scale[:, np.arange(size), np.arange(size)] = 0.5 + self.rng.uniform(size=(self.outputs, size))
        return self.rng.normal(size=(size, self.outputs)), scale

    def model(self, posterior, likelihood=None):
        return solvegp(self.kernel, likelihood or self.likelihood, posterior, self.union, self.jitter)

    def orthogonal(self, first: Any = Whitened, second: Any = Whitened):
        (m, C), (n, E) = self.state(self.first), self.state(self.second)
        return Orthogonal((_part(first, m, C), _part(second, n, E)), self.sizes)

    def factors(self, cls, site, distance):
        """The inverse factors of a form at these s, off by about `distance`; each target sees the factors before it."""
        M = self.first
        exact = {"prior_inverse": self.Kuu, "first_inverse": self.Kuu + np.diag(site[:M])}
        found: dict[str, np.ndarray] = {}
        for name in cls.inverse_factors:
            if name not in exact:
                blank = np.zeros((self.first + self.second, 1))
                so_far = cls(blank, site, **found, second_inverse=np.eye(self.second), sizes=self.sizes)
                exact[name] = so_far.inverse_target(self.K, name)
            size = len(exact[name])
            bend = np.eye(size) + distance * np.tril(self.rng.uniform(-1.0, 1.0, size=(size, size)))
            found[name] = np.tril(np.linalg.cholesky(np.linalg.inv(exact[name])) @ bend)
        return found

    def relaxed(self, kind, distance=0.1):
        cls, n = RELAXED[kind.removesuffix("-plain")], self.first + self.second
        mean, site = self.rng.normal(size=(n, self.outputs)), 0.1 + self.rng.uniform(size=n)
        factors = self.factors(cls, site, distance)
        return cls(mean, site, **factors, sizes=self.sizes, preconditioned=not kind.endswith("-plain"))

    def collapsed(self, second=None, tight=False, sizes=None, Z=None):
        Z = self.union if Z is None else Z
        sizes = self.sizes if sizes is None else sizes
        return solvegpr(
            self.kernel, self.likelihood, Z, self.X, self.y, sizes=sizes, second=second, tight=tight, jitter=self.jitter
        )


def case(kind, likelihood="gaussian", **settings):
    """A model of a kind with its data: X [N, 2], y [N, P]."""
    groups = Groups(**settings)
    if kind in COLLAPSED:
        second = FREE.get(kind)
        q = None if second is None else groups.orthogonal(second=second).parts[1]
        return groups.collapsed(q, kind == "tight"), groups.X, groups.y
    if kind.startswith("relaxed"):
        q = groups.relaxed(kind)
    else:
        first = {"marginal": Marginal, "diagonal": DiagonalWhitened}.get(kind.removesuffix("-odvgp"), Whitened)
        second = {"diagonal": DiagonalMarginal}.get(kind, first)
        q = groups.orthogonal(first, PriorSpread if kind.endswith("odvgp") else second)
    y = groups.y if likelihood == "gaussian" else 1.0 * (groups.y > 0)
    return groups.model(q, as_arrays(LIKELIHOODS[likelihood]())), groups.X, y


def lower(stage):
    """The stage as a function of the lower triangles of scales."""

    def of_lower(leaves):
        xp = backend_of(leaves["X"]).xp
        return stage({k: xp.tril(v) if k.endswith("scale") and v.ndim == 3 else v for k, v in leaves.items()})

    return of_lower


groups = st.builds(
    Groups,
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(8, 20),
    first=st.integers(1, 5),
    second=st.integers(1, 5),
    outputs=st.sampled_from([1, 3]),
    kind=st.sampled_from([RBF, Matern32]),
    jitter=st.sampled_from([1e-3, 0.1, 3.0]),
    noise=st.sampled_from([0.05, 0.3, 1.0]),
)
