"""Random computation-aware models far from any optimum, and their formulas in plain NumPy."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from helpers import as_arrays, gpr
from hypothesis import strategies as st

from agp import CaGP, backend_of, tree
from agp.actions import BlockActions, DenseActions, FixedActions
from agp.bounds import Batch
from agp.kernels import RBF, Matern32
from agp.likelihoods import Gaussian
from agp.means import ConstantMean, LinearMean, ZeroMean
from agp.posteriors import ProjectedInverseFree

KINDS = ("full", "capped", "dense", "fixed", "capped-dense")
LOG_2PI = np.log(2.0 * np.pi)


@dataclass
class Problem:
    """Kernel, data and actions on the host."""

    seed: int = 0
    rows: int = 17
    count: int = 5
    outputs: int = 1
    kind: type = RBF
    noise: float = 0.2
    mean: str = "zero"
    support: int = 11
    """Rows of the support, where it is capped."""

    def __post_init__(self):
        self.rng = np.random.default_rng([self.seed, self.rows, self.count, self.outputs])
        self.X = self.rng.normal(size=(self.rows, 2))
        self.y = np.sin(2.0 * self.X[:, :1]) + self.rng.normal(size=(self.rows, self.outputs))
        self.kernel = as_arrays(self.kind(0.8 + self.rng.uniform(), (0.7, 1.1)))
        self.likelihood = Gaussian(np.asarray(self.noise))
        P = self.outputs
        means: Any = {
            "zero": ZeroMean,
            "constant": lambda: ConstantMean(self.rng.normal(size=P)),
            "linear": lambda: LinearMean(self.rng.normal(size=(2, P)), self.rng.normal(size=P)),
        }
        self.mean_function = means[self.mean]()
        self.K = self.kernel(self.X)[0]
        self.noisy = self.K + self.noise * np.eye(self.rows)
        self.r = self.y - self.mean_function(self.X)[0]

    def actions(self, kind="full"):
        m = self.support if kind.startswith("capped") else self.rows
        if kind in ("full", "capped"):
            return BlockActions(self.rng.normal(size=m), self.count)
        return (FixedActions if kind == "fixed" else DenseActions)(self.rng.normal(size=(m, self.count)))

    def model(self, kind="full", loss: Any = "elbo", inverse_free=False, distance=0.1, actions: Any = None):
        actions = self.actions(kind) if actions is None else actions
        m = actions.support
        held: Any = {"actions": actions, "X": self.X[:m], "y": self.y[:m], "mean_function": self.mean_function}
        model = CaGP(self.kernel, self.likelihood, **held, loss=loss, capped=m < self.rows)
        if not inverse_free:
            return model
        factor = self.factor(model._matrix_to_invert(), distance)
        return dataclasses.replace(model, posterior=ProjectedInverseFree(factor))

    def factor(self, G, distance):
        """A lower L with L L^T about G^-1, off by about `distance`."""
        i = G.shape[0]
        bend = np.eye(i) + distance * np.tril(self.rng.uniform(-1.0, 1.0, size=(i, i)))
        return np.tril(np.linalg.cholesky(np.linalg.inv(G)) @ bend)

    def exact(self):
        return gpr(self.kernel, self.likelihood, self.X, self.y, self.mean_function)

    def bound(self, model, **options):
        return float(model.bound(self.X, self.y, **options)[0])


def columns(actions):
    """S [m, i] of any actions on the host."""
    return actions.rows(np.arange(actions.support))[0]


def elbo_by_formula(p, S, v=None, C=None):
    """-E_q[log p(y | f)] + KL[q || p] with q = N(h + K S v, K - K C K), negated, by explicit matrices."""
    G = S.T @ p.noisy @ S
    v = np.linalg.solve(G, S.T @ p.r) if v is None else v
    C = S @ np.linalg.solve(G, S.T) if C is None else C
    left = p.K - p.K @ C @ p.K
    misfit = p.r - p.K @ S @ v
    N, P = p.y.shape
    expected = -0.5 * (np.sum(misfit**2) + P * np.trace(left)) / p.noise - 0.5 * N * P * np.log(2 * np.pi * p.noise)
    # K^-1 (K - K C K) = I - C K
    ratio = np.eye(N) - C @ p.K
    quadratic = np.sum((S @ v) * (p.K @ S @ v))
    return expected - 0.5 * (quadratic + P * (np.trace(ratio) - N - np.linalg.slogdet(ratio)[1]))


def bound_stage(p, model, scale=1.0):
    """The bound as a function of the model's constrained parameters."""

    def stage(leaves):
        B = backend_of(next(iter(leaves.values())))
        rest = {k: B.from_numpy(v) for k, v in tree.leaves(model).items() if k not in leaves}
        here = tree.with_leaves(model, rest | dict(leaves))
        value, pull = here._objective(Batch(B.from_numpy(p.X), B.from_numpy(p.y), scale))
        return (value,), lambda bar: tree.leaves(pull(bar)[0])

    return stage


problems = st.builds(
    Problem,
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(10, 24),
    count=st.integers(1, 9),
    outputs=st.sampled_from([1, 3]),
    kind=st.sampled_from([RBF, Matern32]),
    noise=st.sampled_from([0.05, 0.3, 1.0]),
    mean=st.sampled_from(["zero", "constant"]),
    support=st.integers(9, 10),
)
