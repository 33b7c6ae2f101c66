"""Models of every method for rows with weights, offsets and known noise variances, and the exact GP by NumPy."""

import dataclasses
from functools import partial
from typing import Any

import numpy as np

import agp
from agp import tree
from agp.methods import METHODS, build
from agp.updates import SiteStep

ROWS = 12
RNG = np.random.default_rng(4)
X = RNG.uniform(-2.0, 2.0, size=(ROWS, 2))
Y = np.sin(1.5 * X[:, :1]) + 0.5 * X[:, 1:] + 0.1 * RNG.normal(size=(ROWS, 1))
NEW = RNG.uniform(-2.0, 2.0, size=(5, 2))
W = 1.0 * RNG.integers(1, 4, size=ROWS)
AGAIN = np.repeat(np.arange(ROWS), W.astype(int))
KNOWN = {
    "weights": 0.2 + W * W / 7.0,
    "offset": RNG.normal(size=(ROWS, 1)),
    "noise": RNG.uniform(0.05, 0.5, size=(ROWS, 1)),
}
"""What is known of the rows; the weights are no whole numbers."""

# -- models -----------------------------------------------------------------------------------------------------------

VARIANCE, LENGTHSCALE, NOISE, LEVEL = 1.2, (0.9, 1.3), 0.3, 0.1
OPTIONS = {"num_inducing": 5, "num_orthogonal": 3, "num_actions": 4, "layers": 2, "seed": 0}
DEEP = [name for name in METHODS if name.startswith("deep")]
EXACT_OR_COLLAPSED = [name for name, method in METHODS.items() if method.gaussian_only]
ANY_LIKELIHOOD = [name for name in METHODS if name not in EXACT_OR_COLLAPSED]


def parts(noise: Any = NOISE) -> dict[str, Any]:
    """The parts that all models have, as a user writes them."""
    return {
        "kernel": agp.RBF(VARIANCE, LENGTHSCALE),
        "likelihood": agp.Gaussian(noise),
        "mean_function": agp.ConstantMean(LEVEL),
    }


def model_of(method: str, x: Any, y: Any, **given: Any) -> Any:
    """An untrained model of a method."""
    return build(method, x, y, **{**parts(), **OPTIONS, **given})


def _cagp(x: Any, y: Any, **given: Any) -> Any:
    return agp.CaGP.from_data(x, y, **{**parts(), "num_actions": 4, **given})


def _cagp_projected(x: Any, y: Any, **given: Any) -> Any:
    return dataclasses.replace(_cagp(x, y, **given), loss="projected")  # `from_data` refuses it for learned actions


def _solve(x: Any, y: Any, **given: Any) -> Any:
    return agp.SOLVEGPR.from_data(x, y, **{**parts(), "num_inducing": 4, "num_orthogonal": 3, **given})


MODELS = {name: partial(model_of, name) for name in METHODS} | {
    **{f"tsvgp-{name}": partial(model_of, "tsvgp", storage=name) for name in METHODS["tsvgp"].storages},
    "solve-tight": partial(_solve, tight=True),
    "solve-second": partial(_solve, second="whitened"),
    "cagp-inverse-free": partial(_cagp, inverse_free=True),
    "cagp-projected": _cagp_projected,
    "cagp-support": partial(_cagp, support=8),
}
"""Every method, and further forms of some."""


def moved(model: Any, scale: float = 0.2) -> Any:
    """The model on the host, away from its start, where gradients may vanish; the noise and the actions stay."""
    raw = {name: x for name, x in tree.unconstrain(model).items() if not name.startswith(("actions", "likelihood"))}
    change = {name: scale * np.random.default_rng(len(name)).normal(size=x.shape) for name, x in raw.items()}
    return tree.constrain(model, {name: x + change[name] for name, x in raw.items()})


def with_sites(model: Any, batch: Any) -> Any:
    """The model with sites for the rows of a batch, if it has sites."""
    update = SiteStep(0.7)
    return update(model, batch, update.init(model))[0] if update.applies(model) else model


def at(place: Any, known: dict[str, Any]) -> dict[str, Any]:
    """What is known of rows, as arrays of a place."""
    return {name: place.array(x) for name, x in known.items()}


# -- the exact GP, and sparse approximations of it ---------------------------------------------------------------------


def covariance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The kernel of all models here."""
    squares = (((a[:, None] - b[None]) / np.asarray(LENGTHSCALE)) ** 2).sum(axis=-1)
    return VARIANCE * np.exp(-0.5 * squares)


def nystrom(a: np.ndarray, b: np.ndarray, groups: list[np.ndarray], jitter: float) -> list[np.ndarray]:
    """The parts of the kernel that orthogonal groups of inducing inputs explain."""
    Z = np.concatenate(groups)
    L = np.linalg.cholesky(covariance(Z, Z) + jitter * np.eye(len(Z)))
    ends = np.cumsum([len(group) for group in groups])[:-1]
    left, right = (np.split(np.linalg.solve(L, covariance(Z, x)), ends) for x in (a, b))
    return [u.T @ v for u, v in zip(left, right, strict=True)]


def brute_force(
    groups: list[np.ndarray] | None = None,
    jitter: float = 0.0,
    trained: float = NOISE,
    weights: Any = 1.0,
    offset: Any = 0.0,
    noise: Any = 0.0,
) -> tuple[float, np.ndarray, np.ndarray]:
    """The evidence, or its collapsed bound, with the posterior mean and variance at NEW, by dense formulas.

    w observations of a row have the density N(y; f, v)^w, which is N(y; f, v / w) (2 pi v)^((1 - w) / 2) w^(-1/2).
    """
    weights, offset, noise = (np.broadcast_to(np.squeeze(x), ROWS) for x in (weights, offset, noise))
    v = trained + noise
    V, r = np.diag(v / weights), Y[:, 0] - offset - LEVEL
    K, Q = covariance(X, X), [covariance(X, X)]
    cross = [covariance(X, NEW)]
    if groups is not None:
        Q, cross = (nystrom(X, x, groups, jitter) for x in (X, NEW))
    C = sum(Q) + V
    value = -0.5 * (r @ np.linalg.solve(C, r) + np.log(2.0 * np.pi) * ROWS - (len(Q) - 1) * np.linalg.slogdet(V)[1])
    value -= 0.5 * sum(np.linalg.slogdet(q + V)[1] for q in Q)  # groups have independent posteriors
    value -= 0.5 * np.trace(np.linalg.solve(V, K - sum(Q)))
    value -= 0.5 * np.sum((weights - 1.0) * np.log(2.0 * np.pi * v) + np.log(weights))
    mean = LEVEL + sum(cross).T @ np.linalg.solve(C, r)
    explained = sum(np.sum(k * np.linalg.solve(q + V, k), axis=0) for q, k in zip(Q, cross, strict=True))
    return value, mean, VARIANCE - explained
