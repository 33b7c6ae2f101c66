"""Every kernel and combination of kernels, for inputs of any width from three columns."""

import numpy as np
from helpers import as_arrays

from agp import tree
from agp.backend import asarray_like, to_numpy
from agp.kernels import (
    RBF,
    Constant,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    Seasonal,
    White,
)

STATIONARY = {"rbf": RBF, "matern12": Matern12, "matern32": Matern32, "matern52": Matern52}


def _ard(*values):
    return lambda width: np.resize(values, width)


LENGTHS, SCALES, PERIODS = _ard(0.7, 1.1, 0.9), _ard(1.4, 0.8, 1.0), _ard(2.1, 3.3, 2.6)
CENTRES = _ard(0.4, -1.1, 2.0)

CASES = {
    **{name: lambda _, cls=cls: cls(1.2, 0.8) for name, cls in STATIONARY.items()},
    **{f"{name}-ard": lambda width, cls=cls: cls(0.8, LENGTHS(width)) for name, cls in STATIONARY.items()},
    "rq": lambda _: RationalQuadratic(1.2, 0.8, 0.7),
    "rq-ard": lambda width: RationalQuadratic(0.8, LENGTHS(width), 2.3),
    "periodic": lambda _: Periodic(1.2, 0.9, 2.2),
    "periodic-ard": lambda width: Periodic(0.8, SCALES(width), PERIODS(width)),
    "seasonal": lambda width: Seasonal(0.8, SCALES(width), PERIODS(width)),
    "periodic-mixed": lambda width: Periodic(0.8, 0.9, PERIODS(width)),
    "linear": lambda _: Linear(0.6),
    "linear-ard": lambda width: Linear(LENGTHS(width)),
    "linear-centred": lambda width: Linear(0.6, CENTRES(width)),
    "linear-centred-ard": lambda width: Linear(LENGTHS(width), CENTRES(width)),
    "constant": lambda _: Constant(0.9),
    "white": lambda _: White(0.3),
    "sum": lambda _: RBF(0.8, 0.7) + Matern32(0.5, 1.4),
    "sum-ard": lambda width: RBF(0.8, LENGTHS(width)) + Matern32(0.5, SCALES(width)) + White(0.2),
    "product": lambda width: Matern52(0.8, 1.3) * Periodic(1.1, 0.9, PERIODS(width)),
    "product-of-three": lambda width: RBF(0.8, SCALES(width)) * Linear(0.7) * Matern12(1.3, 2.0),
    "mixed": lambda width: (Linear(0.3) + Constant(0.5)) * RBF(1.1, LENGTHS(width)) + RationalQuadratic(0.4, 1.2, 1.5),
    "scaled": lambda width: 2.0 * Matern32(0.5, SCALES(width)),
    "scaled-sum": lambda _: 0.5 * (RBF(0.8, 0.7) + Linear(0.4)),
    "centred-product": lambda width: Linear(0.7, CENTRES(width)) * RBF(0.8, SCALES(width)) + Constant(0.3),
    "on-centred": lambda _: Linear((0.7, 1.3), (0.4, -1.1)).on((2, 1)) + RBF(0.8, 1.1),
    "on": lambda _: RBF(0.8, (0.7, 1.3)).on((2, 0)),
    "on-linear": lambda _: Linear((0.7, 1.3)).on((2, 1)) + Periodic(0.9, 1.1, 2.4).on([0]),
}


def kernel_case(name, width):
    """That case with host arrays as leaves, for inputs of that width."""
    return as_arrays(CASES[name](width))


def with_arrays(kernel, arrays):
    """The kernel with those of the arrays that are its parameters; its constants go beside them."""
    beside = next(iter(arrays.values()))
    constants = {name: asarray_like(to_numpy(x), beside) for name, x in tree.leaves(kernel, "constant").items()}
    return tree.with_leaves(kernel, constants | {name: arrays[name] for name in tree.leaves(kernel, "parameter")})


def inputs(width, rows=9, others=5, seed=0):
    """Random X [rows, width] and Z [others, width] on the host."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, width)), rng.normal(size=(others, width))


def textbook(kernel, X, Z):
    """k(X, Z) of a kernel with host leaves, from its formula by a broadcast over columns."""
    difference = X[:, None, :] - Z[None, :, :]
    if isinstance(kernel, Linear):
        c = 0.0 if kernel.centre is None else kernel.centre
        return np.sum(kernel.variance * (X[:, None, :] - c) * (Z[None, :, :] - c), axis=-1)
    if isinstance(kernel, Periodic | Seasonal):
        sines = np.sin(np.pi * difference / kernel.period) / kernel.lengthscale
        return kernel.variance * np.exp(-0.5 * np.sum(sines**2, axis=-1))
    r2 = np.sum((difference / kernel.lengthscale) ** 2, axis=-1)
    r = np.sqrt(r2)
    profile = {
        RBF: lambda: np.exp(-0.5 * r2),
        Matern12: lambda: np.exp(-r),
        Matern32: lambda: (1.0 + 3.0**0.5 * r) * np.exp(-(3.0**0.5) * r),
        Matern52: lambda: (1.0 + 5.0**0.5 * r + 5.0 / 3.0 * r2) * np.exp(-(5.0**0.5) * r),
        RationalQuadratic: lambda: (1.0 + 0.5 * r2 / kernel.alpha) ** -kernel.alpha,
    }
    return kernel.variance * profile[type(kernel)]()


def sees_white_noise(name):
    """Whether one argument and two are different for this case."""
    return name in ("white", "sum-ard")
