"""Dual models of every storage on small problems, with sites that mean something."""

from functools import partial
from typing import Any

import numpy as np
from helpers import KERNELS, as_arrays, inducing_covariance, inducing_inputs, named, process, with_leaves

from agp.backend import backend_of
from agp.bounds import Batch
from agp.likelihoods import (
    Bernoulli,
    Beta,
    Exponential,
    Gamma,
    Gaussian,
    NegativeBinomial,
    Ordinal,
    Poisson,
    RobustMax,
    Softmax,
    StudentT,
)
from agp.means import ConstantMean
from agp.models import SVGP, TSVGP, TVGP, SiteModel
from agp.posteriors import Dual, DualInverseFree, Orthogonal
from agp.updates import SiteStep

TIED = ("natural", "kernel", "white")
STORAGES = (*TIED, "orthogonal", "inverse-free", "datum", "full")
SPARSE = STORAGES[:-1]
JITTER = 1e-3

LIKELIHOODS: dict[str, tuple] = {
    "gaussian": (lambda: Gaussian(0.2), lambda f: f),
    "known-noise": (lambda: Gaussian(0.1), lambda f: f),
    "bernoulli": (lambda: Bernoulli(), lambda f: 1.0 * (f > 0.0)),
    "logit": (lambda: Bernoulli(link="logit"), lambda f: 1.0 * (f > 0.0)),
    "poisson": (lambda: Poisson(), lambda f: np.floor(np.exp(np.clip(f, -1.0, 2.0)))),
    "gamma": (lambda: Gamma(1.7), lambda f: np.exp(f)),
    "exponential": (lambda: Exponential(), lambda f: np.exp(f)),
    "negative-binomial": (lambda: NegativeBinomial(0.5), lambda f: np.floor(np.exp(np.clip(f, -1.0, 2.0)))),
    "beta": (lambda: Beta(6.0), lambda f: 1.0 / (1.0 + np.exp(-f))),
    "ordinal": (lambda: Ordinal(3), lambda f: np.clip(np.rint(f + 1.0), 0.0, 2.0)),
    "student-t": (lambda: StudentT(0.3, degrees_of_freedom=3.0), lambda f: f + 3.0 * (f > 1.0)),
    "robust-max": (lambda: RobustMax(3), lambda f: np.clip(np.rint(f[:, :1] + 1.0), 0.0, 2.0)),
    "softmax": (lambda: Softmax(3, fixed_samples=20), lambda f: np.clip(np.rint(f[:, :1] + 1.0), 0.0, 2.0)),
}


def known(likelihood: str, y: Any) -> dict[str, Any]:
    """What is known of the rows beside their targets."""
    return {"noise": 0.1 + y * y} if likelihood == "known-noise" else {}


def data(likelihood: str = "bernoulli", *, outputs: int = 2, rows: int = 14, seed: int = 0) -> tuple:
    """Inputs [N, 3] and targets that suit a likelihood, on the host."""
    rng = np.random.default_rng([seed, outputs, rows])
    X = rng.normal(size=(rows, 3))
    f = np.sin(1.5 * X[:, :1] + np.arange(outputs)) + 0.5 * X[:, 1:2] + 0.2 * rng.normal(size=(rows, outputs))
    return X, LIKELIHOODS[likelihood][1](f)


def blank(
    storage: str,
    X: Any,
    y: Any,
    likelihood: str = "bernoulli",
    kernel: str = "rbf-ard",
    inducing: int = 6,
    **given: Any,
) -> Any:
    """A model without sites on the host; its inducing inputs are moved rows of X."""
    given = {
        "kernel": as_arrays(KERNELS[kernel]()),
        "likelihood": LIKELIHOODS[likelihood][0](),
        "mean_function": ConstantMean(),
    } | given
    if storage == "full":
        return TVGP.from_data(X, y, **given)
    Z = X[:inducing] + 0.3 * np.cos(np.arange(inducing))[:, None]
    given = {"Z": Z, "jitter": JITTER} | given
    if storage == "datum":
        return TSVGP.from_data(X, y, **given)
    return SVGP.from_data(X, y, posterior=start_of(storage), **given)


def start_of(storage: str) -> Any:
    """What makes the starting posterior of a storage."""
    if storage == "inverse-free":
        return DualInverseFree
    if storage == "orthogonal":
        return partial(Orthogonal.from_prior, parts=Dual)
    return partial(Dual.from_prior, tied=storage)


def stepped(model: Any, X: Any, y: Any, rate: float = 0.7, times: int = 2, **rows: Any) -> Any:
    """The model after some site steps on all data."""
    update = SiteStep(rate)
    state, batch = update.init(model), model._batch(X, y, **rows)
    for _ in range(times):
        model, state, _ = update(model, batch, state)
    return model


def case(storage: str, likelihood: str = "bernoulli", **given: Any) -> tuple:
    """A model that is neither at the prior nor at an optimum, with its data, on the host."""
    shapes = {k: given.pop(k) for k in ("outputs", "rows", "seed") if k in given}
    X, y = data(likelihood, **shapes)
    rows = known(likelihood, y)
    return stepped(blank(storage, X, y, likelihood, **given, **rows), X, y, **rows), X, y


def converged(model: Any, X: Any, y: Any, rate: float = 0.7, times: int = 60) -> Any:
    """The model whose sites have settled."""
    return stepped(model, X, y, rate, times)


def q_of(model: Any, X: Any) -> tuple:
    """The marginals at X and the bound's data-free part, through public functions only: predictions."""
    return tuple(model.predict(X))


def moved(model: Any, factor: float = 1.2) -> Any:
    """The model with other hyperparameters and inducing inputs, and the same sites."""
    new = {
        "kernel.lengthscale": factor * process(model).kernel.lengthscale,
        "kernel.variance": process(model).kernel.variance / factor,
    }
    if "Z" in named(model):
        new["Z"] = inducing_inputs(model) + 0.1 * np.sin(inducing_inputs(model))
    return with_leaves(model, new)


def bound_stage(model: Any, y: Any, scale: float = 1.0, **rows: Any) -> Any:
    """The bound as a function of the constrained parameters and of the inputs, which are called "inputs"."""

    def stage(leaves):
        B = backend_of(leaves["inputs"])
        device = B.device_name(leaves["inputs"])
        others = {k: B.from_numpy(v, device=device) for k, v in named(model).items() if k not in leaves}
        here = with_leaves(model, others | {k: v for k, v in leaves.items() if k != "inputs"})
        targets, *moved = (B.from_numpy(x, device=device) for x in (y, *rows.values()))
        value, pull = here._objective(Batch(leaves["inputs"], targets, scale, **dict(zip(rows, moved, strict=True))))

        def pullback(bar):
            model_bar, X_bar = pull(bar)
            return named(model_bar) | {"inputs": X_bar}

        return (value,), pullback

    return stage


def inducing(model: Any) -> np.ndarray:
    """Kuu [M, M]."""
    return np.asarray(inducing_covariance(model))


def is_per_datum(model: Any) -> bool:
    """Whether each datum has its own site."""
    return isinstance(model, SiteModel)
