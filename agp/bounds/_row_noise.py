"""Gaussian noise of rows with weights and known variances.

A row of weight w counts as w observations of y with independent noise. With the trained variance s and the known
variance nu, an observation has the variance v = s + nu, and the average of w observations has the variance v / w. Since
N(y; f, v)^w = N(y; f, v / w) (2 pi v)^((1 - w) / 2) w^(-1/2), exact models use the variances v / w and add logarithms.
"""

import math
from typing import Any, NamedTuple

from agp import tree
from agp.backend import Array, Pullback, as_widest_float, asarray_like, backend_of
from agp.bounds._batch import Batch
from agp.kernels import Kernel

LOG_2PI = math.log(2.0 * math.pi)
FOLDED_ROWS = 2**16
"""The number of rows of a lazy array whose logarithms are computed together."""


def cotangent_with_noise(model: Any, noise_bar: Array | None, /, **others: Any) -> Any:
    """Return the cotangent of a model, given those of the noise variance of its likelihood and of its other fields."""
    likelihood_bar = tree.cotangent(model.likelihood, noise_variance=noise_bar)
    return tree.cotangent(model, likelihood=likelihood_bar, **others)


def raise_noise(likelihood: Any, noise: Array, model: Any, /) -> Array:
    """Return `Likelihood.raise_noise`, or the given variances if rows have tags: slopes have other units."""
    raised = likelihood.raise_noise(noise)
    is_tagged = raised is not noise and any(kernel.reads_tags for kernel in tree.nodes(model, Kernel).values())
    return noise if is_tagged else raised


class RowNoise(NamedTuple):
    """The noise variances of rows."""

    variance: Any
    """The variance v of one observation: 0-d, or [N] if some rows have known noise."""
    weights: Any
    """The weights w [N], or None."""

    @classmethod
    def of(cls, trained: Array, batch: Batch, /) -> "RowNoise":
        """The noise of the rows of a batch, for a trained variance that the outputs share (0-d)."""
        return cls(trained if batch.noise is None else trained + batch.noise[:, 0], batch.weights)

    @property
    def by_row(self) -> Array:
        """The variances v / w: 0-d if all rows have the same variance, otherwise [N]."""
        return self.variance if self.weights is None else self.variance / self.weights

    def widen(self) -> "RowNoise":
        """The noise in float64, if the device has it."""
        return RowNoise(as_widest_float(self.variance), None if self.weights is None else as_widest_float(self.weights))

    def pull(self, by_row_bar: Array, /) -> Array:
        """The cotangent (0-d) of the trained variance, from that of v / w [N]."""
        return backend_of(by_row_bar).xp.sum(by_row_bar if self.weights is None else by_row_bar / self.weights)

    def correction(self, outputs: int, /) -> tuple[Array | None, Pullback]:
        """The logarithms -P / 2 sum_n ((w_n - 1) log(2 pi v_n) + log w_n), and ``bar -> noise_bar`` (0-d).

        Both are None without weights. For variances [S, N], the logarithms are [S], without a pullback.
        """
        if self.weights is None:
            return None, lambda _: None
        xp, (v, w) = backend_of(self.weights).xp, self
        value = -0.5 * outputs * xp.sum((w - 1.0) * (LOG_2PI + xp.log(v)) + xp.log(w), axis=-1)
        return value, lambda bar: -0.5 * outputs * bar * xp.sum((w - 1.0) / v)


class SplitNoise(NamedTuple):
    """The noise variances of rows as b + delta_n, with a common part b that grows with the trained variance s.

    Let c be the smallest known variance. Then b = s + c and delta_n = nu_n - c. Sums over rows of weight
    e_n = w_n b / (b + delta_n) and the noise variance b give the same posterior, and remain finite if s = 0.
    """

    common: Array
    """b, a 0-d array."""
    excess: Array | None
    """delta [N], or None if all rows have the same noise."""

    @classmethod
    def of(cls, trained: Array, batch: Batch, /) -> "SplitNoise":
        """The noise of the rows of a batch."""
        if batch.noise is None:
            return cls(trained, None)
        known = batch.noise[:, 0]
        B = backend_of(known)
        least = B.stop_gradient(B.gather(B.xp.min(known)))
        return cls(trained + (asarray_like(least, trained) if B.is_lazy else least), known - least)

    def correction(self, weights: Array | None, outputs: float | Array, /) -> tuple[Array | None, Pullback]:
        """The logarithms -P / 2 sum_n w_n log((b + delta_n) / b), and ``bar -> common_bar`` (0-d).

        Both are None if all rows have the same noise.
        """
        if self.excess is None:
            return None, lambda _: None
        rows = self.excess, weights
        B = backend_of(self.excess)
        total, pull = (
            B.fold(_logarithms, self.common, rows, FOLDED_ROWS, add=tree.add)
            if B.is_lazy
            else _logarithms(self.common, rows)
        )
        return -0.5 * outputs * total, lambda bar: pull(-0.5 * outputs * bar)


def split_weights(common: Array, weights: Array | None, excess: Array | None, /) -> Array | None:
    """The weights e [N] of `SplitNoise`, or None if they are all 1."""
    if excess is None:
        return weights
    share = common / (common + excess)
    return share if weights is None else weights * share


def split_weights_slope(common: Array, excess: Array, /) -> Array:
    """The derivative of log e_n with respect to b, [N]."""
    return excess / (common * (common + excess))


def split_logarithms(common: Array, weights: Array | None, excess: Array, /) -> Array:
    """The sum of w_n log((b + delta_n) / b), a 0-d array."""
    logs = backend_of(common).xp.log1p(excess / common)
    return backend_of(common).xp.sum(logs if weights is None else weights * logs)


def _logarithms(common: Array, rows: tuple[Array, Array | None]) -> tuple[Array, Pullback]:
    """Compute `split_logarithms` of rows, and its pullback ``bar -> common_bar``."""
    excess, weights = rows
    slopes = -split_weights_slope(common, excess)
    slope = backend_of(common).xp.sum(slopes if weights is None else weights * slopes)
    return split_logarithms(common, weights, excess), lambda bar: bar * slope
