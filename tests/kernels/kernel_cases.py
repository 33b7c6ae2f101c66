"""Every kernel and combination of kernels, for inputs of any width from three columns."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from helpers import as_arrays
from scipy.special import ive

from agp import tree
from agp.backend import asarray_like, to_numpy
from agp.kernels import (
    RBF,
    Centred,
    Constant,
    Kernel,
    LevelCovariance,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    OnSphere,
    Overlap,
    Periodic,
    Projected,
    RandomEffects,
    RationalQuadratic,
    Seasonal,
    Warped,
    White,
)


class Case(NamedTuple):
    """A kernel, and what tests know of it."""

    build: Callable[[int], Kernel]
    """Builds the kernel for inputs of a width."""
    textbook: Callable[[Any, np.ndarray, np.ndarray], np.ndarray] | None = None
    """The formula of k(X, Z) for X [N, 1, D], Z [M, D] and a kernel with host leaves; None for combinations."""
    without: tuple[str, ...] = ()
    """The optional methods that the kernel lacks: `linearise`, `linearise_groups` or `random_features`."""


def _ard(*values):
    return lambda width: np.resize(values, width)


LENGTHS, SCALES, PERIODS = _ard(0.7, 1.1, 0.9), _ard(1.4, 0.8, 1.0), _ard(2.1, 3.3, 2.6)
CENTRES = _ard(0.4, -1.1, 2.0)


def mixing(width, count):
    """Weights [width, count] of linear combinations."""
    return 0.6 * np.sin(1.0 + 2.3 * np.arange(float(width * count)).reshape(width, count))


def stationary(cls, profile, without=(), **shapes):
    """The cases of a stationary kernel with one lengthscale, and with one for each column.

    Its correlation at the scaled distance r is ``profile(r, **shape)``, where the shape consists of the further
    parameters, whose two values are in `shapes`.
    """

    def textbook(kernel, X, Z):
        r = np.sqrt(np.sum(((X - Z) / kernel.lengthscale) ** 2, axis=-1))
        return kernel.variance * profile(r, **{name: x for name, x in tree.leaves(kernel).items() if name in shapes})

    def build(index, width):
        shape = {name: values[index] for name, values in shapes.items()}
        return cls(*((0.8, LENGTHS(width)) if index else (1.2, 0.8)), **shape)

    name = cls.short_name
    return {end: Case(partial(build, index), textbook, without) for index, end in enumerate((name, f"{name}-ard"))}


def points(width):
    """Four points [4, width]."""
    return 1.2 * np.cos(0.3 + 1.7 * np.arange(4.0 * width).reshape(4, width))


def _centred(kernel, X, Z):
    S, inner = kernel.points, kernel.kernel
    w = np.ones(len(S)) if kernel.weights is None else kernel.weights
    at_X, at_Z, K = (inner(a, b)[0] @ w for a, b in ((X[:, 0, :], S), (Z, S), (S, S)))
    return inner(X[:, 0, :], Z)[0] - np.outer(at_X, at_Z) / (w @ K)


def _periodic(kernel, X, Z):
    sines = np.sin(np.pi * (X - Z) / kernel.period) / kernel.lengthscale
    return kernel.variance * np.exp(-0.5 * np.sum(sines**2, axis=-1))


def _seasonal_centred(kernel, X, Z):
    c = np.broadcast_to(0.25 / kernel.lengthscale**2, (X.shape[-1],))
    return _periodic(kernel, X, Z) - kernel.variance * np.prod(ive(0, c))


def _linear(kernel, X, Z):
    c = 0.0 if kernel.centre is None else kernel.centre
    return np.sum(kernel.variance * (X - c) * (Z - c), axis=-1)


def _overlap(kernel, X, Z):
    return np.exp(-0.5 * np.sum((np.round(X) != np.round(Z)) / kernel.lengthscale**2, axis=-1))


def _effects(kernel, X, Z):
    return np.sum(kernel.variance * (np.round(X) == np.round(Z)), axis=-1)


def _level_covariance(kernel, X, Z):
    W, v, (column,) = kernel.kernel.weights, kernel.kernel.variance, kernel.columns
    C = np.zeros((len(W) + 1, len(W) + 1))
    C[:-1, :-1] = W @ W.T + np.diag(np.broadcast_to(v, len(W)))
    C[-1, -1] = np.trace(C) / len(W)
    x, z = (np.round(A[..., column]).astype(int) for A in (X, Z))
    x, z = (np.where((code < 0) | (code >= len(W)), len(W), code) for code in (x, z))
    return C[x, z]


def _warped(kernel, X, Z):
    x, z = (
        np.where(kernel.scale > 0.0, np.arcsinh((A - kernel.centre) / np.maximum(kernel.scale, 1e-9)), A)
        for A in (X, Z)
    )
    inner = kernel.kernel
    return inner.variance * np.exp(-0.5 * np.sum(((x - z) / inner.lengthscale) ** 2, axis=-1))


def _projected(kernel, X, Z):
    inner = kernel.kernel
    return inner.variance * np.exp(-0.5 * np.sum(((X - Z) @ kernel.weights / inner.lengthscale) ** 2, axis=-1))


def _on_sphere(kernel, X, Z):
    def vectors(A):
        lon, lat = (np.deg2rad(A[..., column]) for column in kernel.columns)
        return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=-1)

    inner = kernel.kernel.kernel
    return inner.variance * np.exp(-0.5 * np.sum(((vectors(X) - vectors(Z)) / inner.lengthscale) ** 2, axis=-1))


NO_GROUPS = ("linearise_groups",)
NO_LINEARISATION = ("linearise", "linearise_groups")
NO_GROUPS_OR_FEATURES = ("linearise_groups", "random_features")
NO_CODES = ("random_features",)  # random inputs are no codes of levels
CASES = {
    **stationary(RBF, lambda r: np.exp(-0.5 * r**2)),
    **stationary(Matern12, lambda r: np.exp(-r)),
    **stationary(Matern32, lambda r: (1.0 + 3.0**0.5 * r) * np.exp(-(3.0**0.5) * r)),
    **stationary(Matern52, lambda r: (1.0 + 5.0**0.5 * r + 5.0 / 3.0 * r**2) * np.exp(-(5.0**0.5) * r)),
    **stationary(RationalQuadratic, lambda r, alpha: (1.0 + 0.5 * r**2 / alpha) ** -alpha, alpha=(0.7, 2.3)),
    "periodic": Case(lambda _: Periodic(1.2, 0.9, 2.2), _periodic, NO_GROUPS),
    "periodic-ard": Case(lambda width: Periodic(0.8, SCALES(width), PERIODS(width)), _periodic, NO_GROUPS),
    "seasonal": Case(lambda width: Seasonal(0.8, SCALES(width), PERIODS(width)), _periodic, NO_GROUPS),
    "seasonal-centred": Case(
        lambda width: Seasonal(0.8, SCALES(width), PERIODS(width), centred=True), _seasonal_centred, NO_GROUPS
    ),
    "periodic-centred": Case(lambda _: Periodic(1.2, 0.5, 2.2, centred=True), _seasonal_centred, NO_GROUPS),
    "periodic-mixed": Case(lambda width: Periodic(0.8, 0.9, PERIODS(width)), _periodic, NO_GROUPS),
    "linear": Case(lambda _: Linear(0.6), _linear),
    "linear-ard": Case(lambda width: Linear(LENGTHS(width)), _linear),
    "linear-centred": Case(lambda width: Linear(0.6, CENTRES(width)), _linear),
    "linear-centred-ard": Case(lambda width: Linear(LENGTHS(width), CENTRES(width)), _linear),
    "constant": Case(lambda _: Constant(0.9), lambda kernel, X, Z: np.full((len(X), len(Z)), kernel.variance)),
    "white": Case(lambda _: White(0.3), lambda _, X, Z: np.zeros((len(X), len(Z))), NO_GROUPS_OR_FEATURES),
    "overlap": Case(lambda _: Overlap(1.3), _overlap, NO_CODES),
    "overlap-ard": Case(lambda width: Overlap(SCALES(width)), _overlap, NO_CODES),
    "effects": Case(lambda _: RandomEffects(0.7), _effects, NO_CODES),
    "effects-ard": Case(lambda width: RandomEffects(LENGTHS(width)), _effects, NO_CODES),
    "level-covariance": Case(
        lambda width: LevelCovariance(mixing(4, 2), (0.3, 0.5, 0.2, 0.4)).on(width - 1), _level_covariance
    ),
    "level-covariance-shared": Case(lambda _: LevelCovariance(mixing(4, 1), 0.4).on(1), _level_covariance),
    "level-covariance-parts": Case(
        lambda width: (
            RBF(0.8, LENGTHS(width)) * LevelCovariance(mixing(4, 2), 0.3).on(0)
            + (0.5 * LevelCovariance(mixing(4, 2), 0.1) + Constant(0.2)).on(2)
        ),
    ),
    "mixed-columns": Case(
        lambda _: (Matern52(0.8, (0.7, 1.1)) + Linear(0.4)).on((2, 0)) * Overlap(0.9).on(1) + RandomEffects(0.6).on(1),
        without=NO_CODES,
    ),
    "warped": Case(
        lambda width: Warped(RBF(0.8, LENGTHS(width)), CENTRES(width), np.resize((0.6, 0.0, 1.3), width)),
        _warped,
    ),
    "warped-parts": Case(
        lambda width: (
            Warped(Matern52(0.8, 0.9) + Linear(LENGTHS(width)), CENTRES(width), SCALES(width)).on(tuple(range(width)))
            * RBF(1.1, 1.2)
        ),
    ),
    "centred": Case(
        lambda width: Centred(RBF(0.8, LENGTHS(width)), points(width), np.asarray([0.5, 0.0, 1.0, 2.0])),
        _centred,
        NO_GROUPS,
    ),
    "centred-linear": Case(lambda width: Centred(Linear(LENGTHS(width)), points(width)), _centred, NO_GROUPS),
    "centred-parts": Case(
        lambda width: (
            Constant(0.4)
            + Centred(Matern12(0.8, 0.5), points(1)).on(1)
            + 0.5
            * Centred(RBF(0.8, 0.7) * Linear(0.3, CENTRES(2)), points(2)).on((2, 0))
            * Matern32(1.1, LENGTHS(width))
        ),
        without=NO_GROUPS,
    ),
    "centred-white": Case(
        lambda _: Centred(RBF(0.8, 0.5) + White(0.2), points(1)).on(1),
        without=(*NO_LINEARISATION, "random_features"),
    ),
    "projected": Case(lambda width: Projected(RBF(1.2, 0.8), mixing(width, 2)), _projected),
    "projected-parts": Case(
        lambda width: (
            Projected(Matern52(0.8, LENGTHS(width)) + Linear(0.3, CENTRES(width)), mixing(width, width)).on(
                tuple(reversed(range(width)))
            )
            * RBF(1.1, 1.2)
        ),
    ),
    "on-sphere": Case(lambda width: RBF(1.2, 0.02).on_sphere((width - 1, 0)), _on_sphere),
    "on-sphere-parts": Case(
        lambda width: (
            OnSphere(0.5 * Matern52(0.8, (0.1, 0.13, 0.2)) + Linear((0.3, 0.5, 0.2))).on((2, 0))
            * RBF(1.1, SCALES(width))
            + Matern32(0.4, 0.1).on_sphere((1, 2))
            + Constant(0.2)
        ),
    ),
    "sum": Case(lambda _: RBF(0.8, 0.7) + Matern32(0.5, 1.4)),
    "sum-ard": Case(
        lambda width: RBF(0.8, LENGTHS(width)) + Matern32(0.5, SCALES(width)) + White(0.2),
        without=NO_GROUPS_OR_FEATURES,
    ),
    "product": Case(lambda width: Matern52(0.8, 1.3) * Periodic(1.1, 0.9, PERIODS(width)), without=NO_GROUPS),
    "product-of-three": Case(lambda width: RBF(0.8, SCALES(width)) * Linear(0.7) * Matern12(1.3, 2.0)),
    "mixed": Case(
        lambda width: (Linear(0.3) + Constant(0.5)) * RBF(1.1, LENGTHS(width)) + RationalQuadratic(0.4, 1.2, 1.5)
    ),
    "scaled": Case(lambda width: 2.0 * Matern32(0.5, SCALES(width))),
    "scaled-sum": Case(lambda _: 0.5 * (RBF(0.8, 0.7) + Linear(0.4))),
    "centred-product": Case(lambda width: Linear(0.7, CENTRES(width)) * RBF(0.8, SCALES(width)) + Constant(0.3)),
    "on-centred": Case(lambda _: Linear((0.7, 1.3), (0.4, -1.1)).on((2, 1)) + RBF(0.8, 1.1)),
    "on": Case(lambda _: RBF(0.8, (0.7, 1.3)).on((2, 0))),
    "on-linear": Case(lambda _: Linear((0.7, 1.3)).on((2, 1)) + Periodic(0.9, 1.1, 2.4).on([0]), without=NO_GROUPS),
}


def kernel_case(name, width):
    """That case with host arrays as leaves, for inputs of that width."""
    return as_arrays(CASES[name].build(width))


def cases_with(method):
    """The names of the cases that have an optional method."""
    return [name for name, case in CASES.items() if method not in case.without]


def with_arrays(kernel, arrays):
    """The kernel with those of the arrays that are its parameters; its constants go beside them."""
    beside = next(iter(arrays.values()))
    constants = {name: asarray_like(to_numpy(x), beside) for name, x in tree.leaves(kernel, "constant").items()}
    return tree.with_leaves(kernel, constants | {name: arrays[name] for name in tree.leaves(kernel, "parameter")})


def inputs(width, rows=9, others=5, seed=0):
    """Random X [rows, width] and Z [others, width] on the host."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, width)), rng.normal(size=(others, width))


def sees_white_noise(name):
    """Whether one argument and two are different for this case."""
    return name in ("white", "sum-ard", "centred-white")
