"""Periodic kernels, which are RBF kernels on inputs that are mapped to circles."""

import math
from abc import abstractmethod
from typing import Any, Self

from agp import tree
from agp.backend import Array, Pullback, asarray_like, backend_of, to_numpy
from agp.constraints import POSITIVE
from agp.kernels._base import ConstantVariance
from agp.kernels._distance import centre_of, squared_distances, sums_by_column
from agp.kernels._features import Features, Waves, features_of
from agp.kernels._parameters import check_number, check_per_column, per_column
from agp.scaling import column_spreads, unit_by_column


@tree.model
class Winding(ConstantVariance):
    """Base class for kernels that map each input column to a circle whose circumference is the period."""

    variance: Array = tree.param(POSITIVE, default=None, unit="variance_unit")
    lengthscale: Array = tree.param(POSITIVE, default=None)
    period: Array = tree.constant(default=None)
    variance_unit: Array | None = tree.unit(default=None)

    def __call__(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        # the squared distance of (cos, sin)(2 pi x / p) and (cos, sin)(2 pi z / p) is 4 sin^2(pi (x - z) / p)
        B = backend_of(X)
        xp, D = B.xp, X.shape[-1]
        centre = B.stop_gradient(centre_of(xp, X if Z is None else Z))
        x_features, pull_x = self._map_to_circle(X - centre)
        z_features, pull_z = (None, None) if Z is None else self._map_to_circle(Z - centre)
        scale = xp.concat([self.lengthscale, self.lengthscale]) if self.lengthscale.ndim else self.lengthscale
        r2, pull = squared_distances(x_features, z_features, 2.0 * scale)
        g = xp.exp(-0.5 * r2)
        del r2

        def pullback(K_bar):
            x_features_bar, z_features_bar, scale_bar = pull(K_bar * g, -0.5 * self.variance)
            inputs_bar, period_bar = pull_x(x_features_bar)
            inputs_bar = (inputs_bar,)
            if pull_z is not None:
                Z_bar, z_period_bar = pull_z(z_features_bar)
                inputs_bar, period_bar = (*inputs_bar, Z_bar), period_bar + z_period_bar
            bar = tree.cotangent(
                self,
                variance=xp.sum(K_bar * g),
                lengthscale=2.0 * (scale_bar[:D] + scale_bar[D:] if scale_bar.ndim else scale_bar),
                period=self._pull_period(period_bar),
            )
            return bar, *inputs_bar

        return self.variance * g, pullback

    def _map_to_circle(self, Xc: Array) -> tuple[Array, Pullback]:
        """Return cosines and sines [..., N, 2 D] of angles 2 pi Xc / period for centred inputs Xc, and the pullback.

        The pullback is ``bar -> (X_bar, period_bar [D])``. Centring preserves the precision of large angles.
        """
        xp = backend_of(Xc).xp
        frequency = 2.0 * math.pi / self.period
        cos, sin = xp.cos(frequency * Xc), xp.sin(frequency * Xc)

        def pullback(bar):
            D = Xc.shape[-1]
            X_bar = frequency * (cos * bar[..., D:] - sin * bar[..., :D])
            return X_bar, -sums_by_column(xp, Xc * X_bar) / self.period

        return xp.concat([cos, sin], axis=-1), pullback

    @abstractmethod
    def _pull_period(self, bar: Array) -> Array | None:
        """Return the cotangent of the period, given one cotangent per column [D]; None if the period is constant."""

    def random_features(self, rng: Any, count: int, width: int, /) -> Features:
        # exp(c (cos a - 1)) = sum_n e^-c I_n(c) cos(n a) with c = 1 / (4 lengthscale^2), a = 2 pi (x - z) / period. The
        # weights are the probabilities that two Poisson numbers with mean c / 2 differ by n.
        mean = 0.125 / to_numpy(self.lengthscale) ** 2
        first, second = (rng.poisson(mean, (count, width)) for _ in range(2))
        cycles = asarray_like((first - second).astype(float), self.period)
        return features_of(self.variance, Waves(2.0 * math.pi * cycles / self.period))

    def check(self, width: int, /) -> None:
        check_number(self, "variance")
        check_per_column(self, "lengthscale", width)
        check_per_column(self, "period", width)


@tree.model
class Periodic(Winding):
    """The periodic kernel, k(x, z) = variance exp(-1/2 sum_d sin^2(pi (x_d - z_d) / period_d) / lengthscale_d^2).

    Source: D. J. C. MacKay, Introduction to Gaussian processes, 1998. Some libraries use 2 sin^2 instead of sin^2 / 2,
    so their lengthscale is twice as large. Other libraries do not square the lengthscale.

    Parameters
    ----------
    variance
        The variance k(x, x), a scalar (0-d) in squared units of the targets.
    lengthscale
        The dimensionless smoothness within a period: scalar (0-d), or one for each column [D]. If None, it starts at 1.
    period
        The period in units of the inputs: scalar (0-d), or one for each column [D]. If None, it starts at twice the
        spread of each column, which is slightly more than half the range of uniform inputs. Training objectives have
        many local optima as functions of the period. Use `Seasonal` if the period is known.
    """

    period: Array = tree.param(POSITIVE, default=None, unit="period_unit")
    period_unit: Array | None = tree.unit(default=None)

    def _pull_period(self, bar: Array) -> Array:
        return per_column(bar, self.period)

    def from_data(self, X: Array, variance: float, /) -> Self:
        spread = column_spreads(X)
        ones = backend_of(X).xp.ones_like(spread)
        units = {"variance_unit": variance, "period_unit": unit_by_column(self.period, spread)}
        return tree.with_defaults(self, variance=variance, lengthscale=ones, period=2.0 * spread, **units)


@tree.model
class Seasonal(Winding):
    """A periodic kernel with a known, constant period, such as a day, a year or one revolution of a shaft.

    Multiply this kernel by an RBF kernel to model a seasonal pattern that changes slowly.

    Parameters
    ----------
    variance, lengthscale
        As for `Periodic`.
    period
        The period in units of the inputs: scalar (0-d), or one for each column [D]. Dates in tables are counted in
        days, so a period of one year is 365.25.

    Raises
    ------
    ValueError
        In `from_data`, if the period is missing or not positive.
    """

    def _pull_period(self, bar: Array) -> None:  # noqa: ARG002 - a constant has no gradient
        return None

    def from_data(self, X: Array, variance: float, /) -> Self:
        if self.period is None:
            msg = (
                "Seasonal has no period; pass period= in units of the inputs, or use Periodic, which trains the period."
            )
            raise ValueError(msg)
        self = tree.place_leaves(self, X)
        period = to_numpy(self.period)
        if not ((period > 0.0) & (period < math.inf)).all():
            msg = f"period of Seasonal is {period}, but must be positive and finite."
            raise ValueError(msg)
        ones = backend_of(X).xp.ones_like(X[0, :])
        return tree.with_defaults(self, variance=variance, lengthscale=ones, variance_unit=variance)
