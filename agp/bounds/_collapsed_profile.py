"""The collapsed bound as a function of the kernel's variance and the noise alone: O(M) for each pair of them."""

import math
from typing import NamedTuple

from agp.backend import Array, backend_of, like
from agp.bounds._collapsed import Statistics
from agp.linalg import nonnegative

__all__ = ["Profile", "first_inducing", "profile_of", "scaled_statistics"]

LOG_2PI = math.log(2.0 * math.pi)


def scaled_statistics(totals: Statistics, factor: Array | float, /) -> Statistics:
    """The statistics of the kernel times a factor: A = Lu^-1 Kuf grows by its root, kff by the factor."""
    root = factor**0.5
    return Statistics(factor * totals.gram, root * totals.projected, factor * totals.residual, totals.square)


def first_inducing(totals: Statistics, count: int, /) -> Statistics:
    """The statistics of the first inducing inputs alone: their A is the first rows of that of all."""
    xp = backend_of(totals.gram).xp
    rest = xp.sum(xp.linalg.diagonal(totals.gram)[count:])
    gram, projected = totals.gram[:count, :count], totals.projected[:count, :]
    return Statistics(gram, projected, totals.residual + rest, totals.square)


class Profile(NamedTuple):
    """What the bound of N observations needs to know for every factor v of the kernel, and every noise variance s."""

    eigenvalues: Array
    """Of A A^T [M]."""
    squares: Array
    """Of A (y - h) in its eigenvectors, summed over the outputs [M]."""
    residual: Array
    """tr(Kff - Qff), 0-d."""
    square: Array
    """|y - h|^2, 0-d."""
    observations: float
    """N; or the sum of the weights of the rows."""
    outputs: int

    def bound(self, factor: Array | float, noise: Array | float, /) -> Array:
        """log N(y; h, v Qff + s I) - v tr(Kff - Qff) / (2 s), summed over the outputs, 0-d."""
        xp = backend_of(self.eigenvalues).xp
        ratio = factor * self.eigenvalues / noise
        log_det = self.observations * (LOG_2PI + xp.log(xp.asarray(noise, **like(ratio)))) + xp.sum(xp.log1p(ratio))
        explained = factor / noise**2 * xp.sum(self.squares / (1.0 + ratio))
        misfit = (self.square + self.outputs * factor * self.residual) / noise
        return -0.5 * (self.outputs * log_det + misfit - explained)


def profile_of(totals: Statistics, observations: float, /) -> Profile:
    """By one eigendecomposition of A A^T, O(M^3)."""
    xp = backend_of(totals.gram).xp
    eigenvalues, vectors = xp.linalg.eigh(totals.gram)
    squares = xp.sum((vectors.mT @ totals.projected) ** 2, axis=1)
    outputs = totals.projected.shape[1]
    return Profile(nonnegative(eigenvalues)[0], squares, totals.residual, totals.square, observations, outputs)
