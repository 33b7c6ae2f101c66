"""Models of equal targets, and starting values of noise parameters from targets that are nearly equal."""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import logit, ndtri

from agp.backend import Array, asarray_like, to_numpy
from agp.likelihoods import (
    Beta,
    Gamma,
    Gaussian,
    LatentNoiseGaussian,
    Likelihood,
    Log,
    LogNormal,
    NegativeBinomial,
    Poisson,
    StudentT,
    Transform,
)
from agp.means import ConstantMean
from agp.selection import NO_SIGNAL_VARIANCE, NOISE_FRACTION

LARGEST = 1e150
"""The largest absolute value of equal targets, whose squares are finite."""
LEAST_DISPERSION = 1e-8
"""The smallest initial dispersion of counts."""
SMALL_VARIANCE = 0.01
"""Kernels start with the variance of the function values that the targets stand for if it is below this number."""


class Constant(NamedTuple):
    """The parts of a model that predicts the targets themselves, if they are all equal."""

    likelihood: Likelihood
    mean_function: ConstantMean
    variance: float
    """The variance of the latent functions, which is small unless the noise is known."""


def constant_parts(likelihood: Likelihood, y: Array, *, given: bool, transform: Transform | None) -> Constant:
    """Return the parts of a model for targets y [N, K] whose columns are constant, or NaN.

    The noise parameters of the likelihood are kept if the user specified them (`given`). With a transform, the targets
    are transformed, and the mean is that of the original targets.
    """
    values = np.nanmax(to_numpy(y).astype(np.float64), axis=0)
    size = float(np.abs(values).max()) or 1.0
    if size > LARGEST:
        msg = f"y has the value {size:g}, whose square exceeds the maximum of float64; divide y by a constant."
        raise ValueError(msg)
    if isinstance(likelihood, Beta):
        share = float(np.minimum(values, 1.0 - values).min())
        likelihood = likelihood if given else Beta((1.0 - share) / (share * NOISE_FRACTION**2))
        return _parts(likelihood, to_numpy(likelihood.level(y[:1, :])), 1.0, y)
    if isinstance(likelihood, Gamma):
        likelihood = likelihood if given else Gamma(NOISE_FRACTION**-2)
        return _parts(likelihood, np.log(values / _numbers(likelihood.shape)), 1.0, y)
    if isinstance(likelihood, LogNormal):
        noise = likelihood.logs.noise_variance
        return _parts(likelihood, np.log(values) - 0.5 * (0.0 if noise is None else _numbers(noise)), 1.0, y)
    if isinstance(likelihood, LatentNoiseGaussian):
        likelihood = LatentNoiseGaussian(unit=size) if likelihood.unit is None else likelihood
        noise = np.broadcast_to(_numbers(likelihood.unit) * math.log(NOISE_FRACTION), values.shape)
        return _parts(likelihood, np.concatenate([values, noise]), size, y)
    if isinstance(likelihood, StudentT):
        return _parts(likelihood if given else StudentT(NOISE_FRACTION * size), values, size, y)
    of_logs = isinstance(transform, Log)
    size = size if transform is None else 1.0
    spread = NOISE_FRACTION * size
    if isinstance(likelihood, Gaussian) and not given:
        likelihood = Gaussian(spread**2, missing=likelihood.missing)
    elif isinstance(likelihood, Gaussian) and transform is None:  # the functions have the standard deviation
        return _parts(likelihood, values, size, y)._replace(variance=spread**2)
    return _parts(likelihood, values - (0.5 * spread**2 if of_logs else 0.0), size, y)


def _numbers(x: Any) -> npt.NDArray[np.float64]:
    """Convert a leaf, which may still be a Python number, to NumPy."""
    return np.asarray(x if isinstance(x, (int, float)) else to_numpy(x), dtype=np.float64)


def _parts(likelihood: Likelihood, level: npt.NDArray[Any], size: float, y: Array) -> Constant:
    return Constant(likelihood, ConstantMean(asarray_like(level, y)), NO_SIGNAL_VARIANCE * size * size)


def small_variance(likelihood: Likelihood, y: Array) -> float | None:
    """Return the variance of the function values that counts or proportions y [N, K] stand for, if it is small.

    The kernels of these likelihoods start with variance 1, and training may stop before it reaches the variance of
    targets that are nearly equal. If the variance is not small, the result is None.
    """
    numbers = to_numpy(y).astype(np.float64)
    if isinstance(likelihood, Poisson | NegativeBinomial):
        f = np.log(numbers + 0.5)
    elif isinstance(likelihood, Beta):
        f = ndtri(numbers) if likelihood.link == "probit" else logit(numbers)
    else:
        return None
    variance = float(f.var(axis=0).max())
    return max(variance, np.finfo(float).eps) if variance < SMALL_VARIANCE else None


def with_starting_noise(likelihood: Likelihood, y: Array) -> Likelihood:
    """Return the likelihood with a noise parameter that suits targets y [N, K], if they vary little.

    The default parameters stand for a noise about as large as the targets. Training may stop before it reaches the
    noise of targets that vary by a millionth.
    """
    numbers = to_numpy(y).astype(np.float64)
    if isinstance(likelihood, Gamma | NegativeBinomial):
        spread = float(np.log(numbers + (0.0 if isinstance(likelihood, Gamma) else 0.5)).var(axis=0).max())
        if spread <= np.finfo(float).eps ** 2:  # equal numbers say nothing about noise
            return likelihood
        if isinstance(likelihood, Gamma):
            return Gamma(max(1.0, 1.0 / spread))
        return NegativeBinomial(min(1.0, max(spread, LEAST_DISPERSION)))
    if isinstance(likelihood, Beta):
        mean, variance = numbers.mean(axis=0), numbers.var(axis=0)
        some = variance > (np.finfo(float).eps * mean) ** 2
        ratios = mean[some] * (1.0 - mean[some]) / variance[some]
        return Beta(max(10.0, float(ratios.min()) - 1.0)) if some.any() else likelihood
    return likelihood
