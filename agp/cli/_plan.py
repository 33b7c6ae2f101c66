"""What the rows of a comparison share: settings, data, the likelihood, how models start."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from agp import methods, tree
from agp.backend import Array, backend_of
from agp.data import Dataset, TaskName, load
from agp.likelihoods import Bernoulli, Likelihood, Ordinal, RobustMax, Softmax
from agp.means import ZeroMean

CURVE_ROWS = 2000
"""Test rows that the curve of NLPD against time is computed from."""
CURVE_POINTS = 20
WARM_UP = 2
"""Steps that are not timed: libraries compile and warm up in them."""
OWN_UNIT = ("poisson", "negative-binomial", "gamma", "exponential", "beta", "ordinal")
"""Likelihoods of counts, positive numbers, shares and levels, which are not standardised."""

LIKELIHOODS: dict[str, tuple[TaskName, Callable[[Dataset], Likelihood]]] = {
    **{name: ("regression", lambda _, kind=kind: kind()) for name, kind in methods.LIKELIHOODS.items()},
    "ordinal": ("regression", lambda data: Ordinal(max(2, 1 + int(max(data.y.max(), data.y_test.max()))))),
    "bernoulli": ("classification", lambda _: Bernoulli()),
    "bernoulli-logit": ("classification", lambda _: Bernoulli(link="logit")),
    "softmax": ("classification", lambda data: Softmax(data.classes)),
    "robustmax": ("classification", lambda data: RobustMax(data.classes)),
}
"""The task, and the constructor, which takes the data: they tell how many classes or levels there are."""


@dataclass(frozen=True)
class Settings:
    """What all rows share."""

    data: str
    target: str | None
    split: int
    task: TaskName
    likelihood: str
    kernel: str
    num_inducing: int
    batch_size: int
    iterations: int
    rate: float
    seed: int
    device: str
    num_orthogonal: int | None = None
    storage: str | None = None
    num_actions: int | None = None
    support: int | None = None
    fall: float = 0.1
    q_steps: str = "natural"
    mean: str = "constant"
    layers: int | None = None

    def load(self) -> Dataset:
        """The data, split and standardised."""
        counts = self.likelihood in OWN_UNIT
        return load(self.data, target=self.target, split=self.split, seed=self.seed, task=self.task, counts=counts)


@dataclass(frozen=True)
class Task:
    """One row: a method trained on one backend, in one gradient mode and precision."""

    method: str
    backend: str
    gradient: str
    dtype: str
    device: str

    @property
    def is_reference(self) -> bool:
        """Whether the other rows of the method are compared with this one."""
        return (self.backend, self.gradient, self.dtype) == ("numpy", "closed-form", "float64")

    @property
    def label(self) -> str:
        """A description of the row."""
        where = self.backend if self.device == "cpu" else f"{self.backend} ({self.device})"
        return f"{self.method} {where} {self.gradient} {self.dtype}"

    @property
    def stem(self) -> str:
        """For file names."""
        return "-".join((self.method, self.backend, self.device.replace(":", ""), self.gradient, self.dtype))


def make_likelihood(name: str, data: Dataset) -> Likelihood:
    """The likelihood without starting values, for these data."""
    return LIKELIHOODS[name][1](data)


def build_model(method: str, X: Array, y: Array, data: Dataset, s: Settings) -> Any:
    """The model of a method on a row's arrays.

    Lengthscales are trained in units of the data, which are standardised, as other libraries train them.
    """
    model = methods.build(
        method, X, y, likelihood=make_likelihood(s.likelihood, data), kernel=s.kernel, num_inducing=s.num_inducing,
        seed=s.seed, num_orthogonal=s.num_orthogonal, storage=s.storage or "datum", num_actions=s.num_actions,
        support=s.support, layers=s.layers or methods.LAYERS, mean_function=ZeroMean() if s.mean == "zero" else None,
    )  # fmt: skip
    units = {name: x for name, x in tree.leaves(model).items() if name.endswith("lengthscale_unit")}
    return tree.with_leaves(model, {name: backend_of(x).xp.ones_like(x) for name, x in units.items()})


def curve_rows(data: Dataset, s: Settings) -> npt.NDArray:
    """The test rows of the curve."""
    return np.random.default_rng(s.seed).permutation(len(data.X_test))[:CURVE_ROWS]


def threads_of(count: int) -> dict[str, str]:
    """Environment variables that set the number of threads of the linear algebra libraries."""
    return dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(count))
