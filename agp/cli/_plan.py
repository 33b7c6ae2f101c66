"""The settings, data, likelihoods and initial models that the rows of a comparison share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from agp import tree
from agp.backend import Array, backend_of
from agp.data import Dataset, TaskName, load
from agp.likelihoods import LIKELIHOODS as NUMERIC
from agp.likelihoods import Bernoulli, Likelihood, Ordinal, RobustMax, Softmax
from agp.means import ZeroMean
from agp.methods import build

CURVE_ROWS = 2000
"""Maximum number of test rows from which the curve of NLPD against time is computed."""
CURVE_POINTS = 20
WARM_UP = 2
"""Number of initial steps that are not timed, because libraries compile code during them."""
OWN_UNIT = {
    "ordinal",
    *(name for name, kind in NUMERIC.items() if kind.whole_numbers or kind.support != Likelihood.support),
}
"""Likelihoods for counts, positive numbers, proportions and levels, whose targets are not standardised."""

LIKELIHOODS: dict[str, tuple[TaskName, Callable[[Dataset], Likelihood]]] = {
    **{name: ("regression", lambda _, kind=kind: kind()) for name, kind in NUMERIC.items()},
    "ordinal": ("regression", lambda data: Ordinal(max(2, 1 + int(max(data.y.max(), data.y_test.max()))))),
    "bernoulli": ("classification", lambda _: Bernoulli()),
    "bernoulli-logit": ("classification", lambda _: Bernoulli(link="logit")),
    "softmax": ("classification", lambda data: Softmax(data.classes)),
    "robustmax": ("classification", lambda data: RobustMax(data.classes)),
}
"""The task and the constructor of each likelihood. Constructors count the classes or levels in the data."""


@dataclass(frozen=True)
class Settings:
    """The settings that all rows share."""

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
        """Load, split and standardise the data."""
        counts = self.likelihood in OWN_UNIT
        return load(self.data, target=self.target, split=self.split, seed=self.seed, task=self.task, counts=counts)


@dataclass(frozen=True)
class Task:
    """One row of a comparison: a method trained on one backend, in one gradient mode and precision."""

    method: str
    backend: str
    gradient: str
    dtype: str
    device: str

    @property
    def is_reference(self) -> bool:
        """True if the other rows of the method are compared with this row."""
        return (self.backend, self.gradient, self.dtype) == ("numpy", "closed-form", "float64")

    @property
    def label(self) -> str:
        """A description of the row."""
        where = self.backend if self.device == "cpu" else f"{self.backend} ({self.device})"
        return f"{self.method} {where} {self.gradient} {self.dtype}"

    @property
    def stem(self) -> str:
        """The name that the row's files share, without an ending."""
        return "-".join((self.method, self.backend, self.device.replace(":", ""), self.gradient, self.dtype))


def make_likelihood(name: str, data: Dataset) -> Likelihood:
    """Create a likelihood for the data, without initial parameter values."""
    return LIKELIHOODS[name][1](data)


def build_model(method: str, X: Array, y: Array, data: Dataset, s: Settings) -> Any:
    """Build a method's initial model. As in other libraries, lengthscales refer to the standardised data."""
    model = build(
        method, X, y, likelihood=make_likelihood(s.likelihood, data), kernel=s.kernel, num_inducing=s.num_inducing,
        seed=s.seed, num_orthogonal=s.num_orthogonal, storage=s.storage, num_actions=s.num_actions,
        support=s.support, layers=s.layers, mean_function=ZeroMean() if s.mean == "zero" else None,
    )  # fmt: skip
    units = {name: x for name, x in tree.leaves(model).items() if name.endswith("lengthscale_unit")}
    return tree.with_leaves(model, {name: backend_of(x).xp.ones_like(x) for name, x in units.items()})


def curve_rows(data: Dataset, s: Settings) -> npt.NDArray:
    """Choose the test rows from which the curve of NLPD against time is computed."""
    return np.random.default_rng(s.seed).permutation(len(data.X_test))[:CURVE_ROWS]


def threads_of(count: int) -> dict[str, str]:
    """Environment variables that set how many threads the linear algebra libraries use."""
    return dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(count))
