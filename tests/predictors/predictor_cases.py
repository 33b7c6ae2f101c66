"""Small models of every method, trained for a few steps, and others that predict in a way of their own."""

import dataclasses
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

import agp
from agp import methods
from agp.backend import asarray_like
from agp.random import Draws

ROWS, COLUMNS = 40, 2
RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, (ROWS, COLUMNS))
F = np.sin(1.5 * X[:, :1]) + 0.5 * np.cos(2.0 * X[:, 1:])
Y = F + 0.1 * RNG.normal(size=F.shape)
PAIR = np.concatenate([Y, 0.3 - F + 0.2 * RNG.normal(size=F.shape)], axis=1)
LABELS = 1.0 * (Y > 0.2)
COUNTS = np.asarray(RNG.poisson(np.exp(F)), dtype=float)
NEW = RNG.uniform(-2.5, 2.5, (7, COLUMNS))
BATCH = RNG.uniform(-2.5, 2.5, (2, 3, 4, COLUMNS))


def targets_of(name: str) -> np.ndarray:
    """What the model of that name is trained on."""
    return next((y for key, y in TARGETS.items() if key in name), Y)


TARGETS = {"bernoulli": LABELS, "poisson": COUNTS, "outputs": PAIR, "coregionalised": PAIR}


def _method(name: str) -> Any:
    sizes = {"num_inducing": 8, "num_actions": 5, "seed": 0}
    model = methods.build(name, X, Y, likelihood=agp.Gaussian(0.05), kernel=agp.RBF(1.0, (1.2, 0.9)), **sizes)
    if name in DEEP:
        model = dataclasses.replace(model, prediction_samples=3)
    return agp.train(model, X, Y, steps=3, updates=methods.updates_of(name, model, 3)).model


def _other(name: str, kind: Callable[..., Any], **options: Any) -> Any:
    y = targets_of(name)
    return agp.train(kind(X, y, kernel=agp.RBF(1.0, (1.2, 0.9)), **options), X, y, steps=5).model


SPARSE = {"num_inducing": 8}
OTHERS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "bernoulli-wsvgp": (agp.SVGP.from_data, SPARSE | {"likelihood": agp.Bernoulli()}),
    "poisson-wsvgp": (agp.SVGP.from_data, SPARSE | {"likelihood": agp.Poisson()}),
    "bernoulli-tvgp": (agp.TVGP.from_data, {"likelihood": agp.Bernoulli()}),
    "poisson-tvgp": (agp.TVGP.from_data, {"likelihood": agp.Poisson()}),
    "bernoulli-tnngp": (agp.TNNGP.from_data, {"likelihood": agp.Bernoulli()}),
    "poisson-tnngp": (agp.TNNGP.from_data, {"likelihood": agp.Poisson(), "neighbours": 5}),
    "bernoulli-tsvgp": (agp.TSVGP.from_data, SPARSE | {"likelihood": agp.Bernoulli()}),
    "poisson-tsvgp": (agp.TSVGP.from_data, SPARSE | {"likelihood": agp.Poisson()}),
    "outputs-shared": (agp.SVGP.from_data, SPARSE | {"outputs": "shared"}),
    "outputs-separate": (agp.SVGP.from_data, SPARSE | {"outputs": "separate"}),
    "coregionalised": (agp.SVGP.from_data, SPARSE | {"outputs": agp.Coregionalised(latents=2)}),
    "outputs-gpr": (agp.GPR.from_data, {"mean_function": agp.ConstantMean()}),
    "outputs-sgpr": (agp.SGPR.from_data, SPARSE | {"mean_function": agp.LinearMean()}),
}
CASES: dict[str, Callable[[], Any]] = {
    **{name: partial(_method, name) for name in methods.METHODS},
    **{name: partial(_other, name, kind, **options) for name, (kind, options) in OTHERS.items()},
}
DEEP = [name for name, method in methods.METHODS.items() if "layers" in method.takes]
FEW = ("gpr", "sgpr", "cggp", "cagp-opt", "solve", "deep-wsvgp", "poisson-wsvgp", "bernoulli-tvgp", "coregionalised")
"""One of each kind, for what is slow."""


@cache
def model_of(name: str) -> Any:
    """The trained model of that name, on NumPy."""
    return CASES[name]()


@cache
def predictor_of(name: str) -> agp.Predictor:
    """The predictor of that model; "cggp-iterative" is one that has no matrix."""
    if name == "cggp-iterative":
        return dataclasses.replace(model_of("cggp"), prediction_tolerance=1e-13).predictor(memory=0.01)
    return model_of(name).predictor()


def with_draws_for(process: Any, X: Any) -> Any:
    """A process with the random draws that predictions at X use; only deep processes have any."""
    draws = process.common_draws(0, X.shape[0])
    return process.with_draws(Draws(*({name: asarray_like(x, X) for name, x in part.items()} for part in draws)))


def new_targets(name: str, rows: int = len(NEW)) -> np.ndarray:
    """Targets for test inputs."""
    y = targets_of(name)
    return y[np.arange(rows) % len(y)]
