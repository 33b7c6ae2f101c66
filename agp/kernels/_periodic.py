"""Periodic kernels, which are RBF kernels on inputs that are mapped to circles."""

import dataclasses
import math
import warnings
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

from agp import tree
from agp.backend import Array, Pullback, asarray_like, backend_of, to_numpy
from agp.checks import check_instance
from agp.chunking import column_spreads, unit_by_column
from agp.errors import ColumnWarning
from agp.kernels._base import ConstantVariance
from agp.kernels._circle import CircleAverage, average_on_circles
from agp.kernels._distance import centre_of, own_distances, squared_distances, sums_by_column
from agp.kernels._features import Features, Waves, features_of
from agp.kernels._jets import Jets
from agp.kernels._linearisation import DistanceSums, Linearisation, apply_weights, times_vectors
from agp.kernels._parameters import check_number, check_per_column, per_column
from agp.kernels._stacks import spread_scalars, weighted_columns
from agp.kernels._stationary import RBF
from agp.repairs import outside
from agp.tree import POSITIVE


class TurnSums(NamedTuple):
    """Sums over pairs of rows that contain the derivatives of r2 = sum_d sin^2(pi (x_d - z_d) / p_d) / l_d^2 by p.

    The derivative by p_d is -pi (x_d - z_d) sin(2 pi (x_d - z_d) / p_d) / (p_d l_d)^2, and the sine is that of a
    difference of angles: sin(a - b) = sin a cos b - cos a sin b.
    """

    x: Array
    """Centred inputs [N, D]."""
    circle: Array
    """Cosines and sines [N, 2 D] of 2 pi x / p."""
    period: Array
    lengthscale: Array

    def total(self, W: Array, /) -> Array:
        """Return the sum [D] of W_nm times the derivative of r2_nm, for a symmetric W [N, N]."""
        B, D = backend_of(W), self.x.shape[1]
        products, cos, sin = B.symmetric_product(W, self.circle), self.circle[:, :D], self.circle[:, D:]
        found = B.inner_by_column(self.x, sin * products[:, :D] - cos * products[:, D:])
        return 2.0 * self._factor * found

    def times(self, W: Array, a: Array, /) -> Array:
        """Return sum_m W_nm (dr2_nm / dp_d) a_mp [N, P, D] for a symmetric W [N, N] and a [N, P]."""
        xp, D = backend_of(W).xp, self.x.shape[1]
        x, cos, sin = self.x, self.circle[:, :D], self.circle[:, D:]
        products = times_vectors(W, a, xp.concat([cos, sin, x * cos, x * sin], axis=1))
        x, cos, sin = x[:, None, :], cos[:, None, :], sin[:, None, :]
        own = x * (sin * products[:, :, :D] - cos * products[:, :, D : 2 * D])
        return self._factor * (own - sin * products[:, :, 2 * D : 3 * D] + cos * products[:, :, 3 * D :])

    @property
    def _factor(self) -> Array:
        scale = self.period * self.lengthscale
        return -math.pi / (scale * scale)


@tree.model
class Winding(ConstantVariance):
    """Base class for kernels that map each input column to a circle whose circumference is the period.

    A centred kernel is that of the same function f given that its average over the period is zero. Before, the
    average has the covariance a with f(x) and the variance a, where a is the average of k(x, z) over z. The covariance
    given the average is thus k(x, z) - a, which is stationary and does not depend on the period.
    """

    variance: Array = tree.param(POSITIVE, default=None, unit="variance_unit")
    lengthscale: Array = tree.param(POSITIVE, default=None)
    period: Array = tree.constant(default=None)
    variance_unit: Array | None = tree.unit(default=None)
    centred: bool = dataclasses.field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_instance("centred", self.centred, bool)

    def _average(self, width: int, *, stacked: bool = False) -> CircleAverage:
        return average_on_circles(self.lengthscale, width, stacked=stacked)

    def _correlation(self, r2: Array, average: CircleAverage | None) -> Array:
        """Return k / variance at squared distances r2."""
        return backend_of(r2).xp.exp(-0.5 * r2) if average is None else average.subtract(r2)

    def __call__(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        # the squared distance of (cos, sin)(2 pi x / p) and (cos, sin)(2 pi z / p) is 4 sin^2(pi (x - z) / p)
        B = backend_of(X)
        xp, D = B.xp, X.shape[-1]
        centre = B.stop_gradient(centre_of(xp, X if Z is None else Z))
        x_features, pull_x = self._map_to_circle(X - centre)
        z_features, pull_z = (None, None) if Z is None else self._map_to_circle(Z - centre)
        scale = xp.concat([self.lengthscale, self.lengthscale]) if self.lengthscale.ndim else self.lengthscale
        r2, pull = squared_distances(x_features, z_features, 2.0 * scale)
        average = self._average(D) if self.centred else None
        correlation = self._correlation(r2, average)
        del r2

        def pullback(K_bar):
            g = correlation if average is None else correlation + average.value
            x_features_bar, z_features_bar, scale_bar = pull(K_bar * g, -0.5 * self.variance)
            inputs_bar, period_bar = pull_x(x_features_bar)
            inputs_bar = (inputs_bar,)
            if pull_z is not None:
                Z_bar, z_period_bar = pull_z(z_features_bar)
                inputs_bar, period_bar = (*inputs_bar, Z_bar), period_bar + z_period_bar
            lengthscale_bar = 2.0 * (scale_bar[:D] + scale_bar[D:] if scale_bar.ndim else scale_bar)
            if average is not None:
                lengthscale_bar = lengthscale_bar - self.variance * xp.sum(K_bar) * average.slope
            variance_bar, period_bar = xp.sum(K_bar * correlation), self._pull_period(period_bar)
            bar = tree.cotangent(self, variance=variance_bar, lengthscale=lengthscale_bar, period=period_bar)
            return bar, *inputs_bar

        return self.variance * correlation, pullback

    def diag(self, X: Array, /) -> tuple[Array, Pullback]:
        if not self.centred:
            return super().diag(X)
        B, average = backend_of(X), self._average(X.shape[1])

        def pullback(bar):
            total = B.xp.sum(bar)
            lengthscale_bar = -self.variance * total * average.slope
            return tree.cotangent(self, variance=total * average.rest, lengthscale=lengthscale_bar), None

        return B.xp.zeros((X.shape[0],), **B.like(X)) + self.variance * average.rest, pullback

    def stacked_variances(self, X: Array, /) -> tuple[Array, Pullback]:
        if not self.centred:
            return super().stacked_variances(X)
        variances = (self.variance * self._average(X.shape[1], stacked=True).rest)[:, None]
        return backend_of(X).xp.broadcast_to(variances, (variances.shape[0], X.shape[0])), lambda _: None

    def linearise(self, X: Array, /) -> Linearisation:
        B, D = backend_of(X), X.shape[1]
        xp = B.xp
        Xc = X - B.stop_gradient(centre_of(xp, X))
        circle, _ = self._map_to_circle(Xc)
        scale = xp.concat([self.lengthscale, self.lengthscale]) if self.lengthscale.ndim else self.lengthscale
        x, distances = own_distances(circle, 2.0 * scale)
        average = self._average(D) if self.centred else None

        def entries(start: int, stop: int) -> tuple[Array, ...]:
            r2 = distances(start, stop)
            uncentred = self.variance * xp.exp(-0.5 * r2)
            return (uncentred,) if average is None else (uncentred, self.variance * self._correlation(r2, average))

        uncentred, *centred = B.lower_tiles(entries, X.shape[0])
        K = centred[0] if centred else uncentred
        sums, turns = DistanceSums(x), TurnSums(Xc, circle, self.period, self.lengthscale)

        def pull(K_bar):
            W = K_bar * uncentred  # dk = -k dr2 / 2, and r2 is proportional to 1 / lengthscale^2
            by_feature = sums.total(W)
            by_column = (by_feature[:D] + by_feature[D:]) / self.lengthscale
            lengthscale_bar = per_column(by_column, self.lengthscale)
            if average is not None:
                total = B.symmetric_inner(K_bar, xp.ones_like(K))
                lengthscale_bar = lengthscale_bar - self.variance * total * average.slope
            period_bar = self._pull_period(-0.5 * turns.total(W))
            variance_bar = B.symmetric_inner(K_bar, K) / self.variance
            return tree.cotangent(self, variance=variance_bar, lengthscale=lengthscale_bar, period=period_bar)

        def times(a, W=None):
            by_variance = B.symmetric_product(apply_weights(W, K), a) / self.variance
            ones = xp.ones_like(K) if W is None else W
            W = apply_weights(W, uncentred)
            by_feature = sums.times(W, a)
            by_column = (by_feature[:, :, :D] + by_feature[:, :, D:]) / self.lengthscale
            by_lengthscale = by_column if self.lengthscale.ndim else xp.sum(by_column, axis=2)
            if average is not None:
                total = self.variance * B.symmetric_product(ones, a)
                slope = average.slope
                by_lengthscale = by_lengthscale - (total[:, :, None] if slope.ndim else total) * slope
            by_period = self._times_period(lambda: -0.5 * turns.times(W, a))
            return tree.cotangent(self, variance=by_variance, lengthscale=by_lengthscale, period=by_period)

        return Linearisation(K, pull, times)

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

    def jets(self, X: Array, V: Array, Z: Array, W: Array, /) -> tuple[Jets, Pullback]:
        B, D = backend_of(X), X.shape[-1]
        centre = B.stop_gradient(B.xp.mean(Z, axis=-2, keepdims=True))
        x, pull_x = self._turn(X - centre, V)
        z, pull_z = self._turn(Z - centre, W)
        scale = B.xp.concat([self.lengthscale, self.lengthscale]) if self.lengthscale.ndim else self.lengthscale
        found, pull = RBF(self.variance, 2.0 * scale).jets(*x, *z)
        average = self._average(D) if self.centred else None

        def pullback(bars: Jets) -> tuple[Any, ...]:
            bar, *row_bars = pull(bars)
            (X_bar, V_bar, by_x), (Z_bar, W_bar, by_z) = pull_x(*row_bars[:2]), pull_z(*row_bars[2:])
            by_scale = bar.lengthscale[:D] + bar.lengthscale[D:] if scale.ndim else bar.lengthscale
            period_bar, variance_bar, lengthscale_bar = self._pull_period(by_x + by_z), bar.variance, 2.0 * by_scale
            if average is not None:
                total = B.xp.sum(bars.value)
                variance_bar = variance_bar - total * average.value
                lengthscale_bar = lengthscale_bar - self.variance * total * average.slope
            bar = tree.cotangent(self, variance=variance_bar, lengthscale=lengthscale_bar, period=period_bar)
            return bar, X_bar, V_bar, Z_bar, W_bar

        if average is not None:
            found = found._replace(value=found.value - self.variance * average.value)
        return found, pullback

    def _turn(self, Xc: Array, V: Array) -> tuple[tuple[Array, Array], Pullback]:
        """Return the places [..., N, 2 D] of `_map_to_circle`, and the images of directions V, which are tangents.

        The pullback is ``(places_bar, tangents_bar) -> (X_bar, V_bar, period_bar [D])``.
        """
        xp, D = backend_of(Xc).xp, Xc.shape[-1]
        places, pull_places = self._map_to_circle(Xc)
        frequency, cos, sin = 2.0 * math.pi / self.period, places[..., :D], places[..., D:]
        turns = frequency * V

        def pullback(places_bar, tangents_bar):
            by_cos, by_sin = tangents_bar[..., :D], tangents_bar[..., D:]
            X_bar, period_bar = pull_places(places_bar + xp.concat([turns * by_sin, -turns * by_cos], axis=-1))
            V_bar = frequency * (cos * by_sin - sin * by_cos)
            return X_bar, V_bar, period_bar - sums_by_column(xp, V * V_bar) / self.period

        return (places, xp.concat([-sin * turns, cos * turns], axis=-1)), pullback

    @abstractmethod
    def _pull_period(self, bar: Array) -> Array | None:
        """Return the cotangent of the period, given one cotangent per column [D]; None if the period is constant."""

    @abstractmethod
    def _times_period(self, by_column: Callable[[], Array]) -> Array | None:
        """Return the products [N, P] or [N, P, D] with the derivatives by the period; None if it is constant."""

    def random_features(self, rng: Any, count: int, width: int, /) -> Features:
        # exp(c (cos a - 1)) = sum_n e^-c I_n(c) cos(n a) with c = 1 / (4 lengthscale^2), a = 2 pi (x - z) / period. The
        # weights are the probabilities that two Poisson numbers with mean c / 2 differ by n.
        mean, variance = 0.125 / to_numpy(self.lengthscale) ** 2, self.variance
        if self.centred:  # without the terms that are constant
            cycles, variance = waves_on_circles(rng, mean, count, width), variance * self._average(width).rest
        else:
            cycles = rng.poisson(mean, (count, width)) - rng.poisson(mean, (count, width))
        return features_of(
            variance, Waves(2.0 * math.pi * asarray_like(cycles.astype(float), self.period) / self.period)
        )

    def check(self, width: int, /) -> None:
        check_number(self, "variance")
        check_per_column(self, "lengthscale", width)
        check_per_column(self, "period", width)


def waves_on_circles(rng: Any, mean: Any, count: int, width: int, /) -> Any:
    """Return differences [count, width] of two Poisson numbers with this mean, given that not all of a row are zero.

    At least one event occurs. The time of the first one of a Poisson process is exponential; the others come later.
    """
    rates = mean + 0.0 * rng.poisson(0.0, width)
    total = 2.0 * rates.sum()
    found = rng.poisson(0.0, (count, width))
    rows = (found == 0).all(axis=1).nonzero()[0]
    while rows.size:
        left = 1.0 - (rng.exponential(size=(rows.size, 1)) % total) / total
        found[rows, :] = rng.poisson(left * rates) - rng.poisson(left * rates)
        found[rows, rng.choice(width, rows.size, p=rates / rates.sum())] += 2 * rng.integers(0, 2, rows.size) - 1
        rows = (found == 0).all(axis=1).nonzero()[0]
    return found


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
        The period in units of the inputs: scalar (0-d), or one for each column [D]. If None, the constructors of models
        choose the peak of a periodogram with the most evidence, and `from_data` of the kernel sets twice the spread of
        each column. Training objectives have many local optima as functions of the period. Use `Seasonal` if the period
        is known.
    centred
        Whether the average over a period is zero; see `Seasonal`.

    Examples
    --------
    Training starts from a period near a peak of the periodogram, and finds the exact value.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 20.0, 60)[:, None]
    >>> y = np.sin(2.0 * np.pi * X[:, 0] / 3.0)
    >>> y = y + 0.1 * np.random.default_rng(0).standard_normal(60)
    >>> model = agp.GPR.from_data(X, y, kernel=agp.Periodic())
    >>> trained = agp.fit(model, X, y).model
    >>> round(float(trained.kernel.period[0]), 1)
    3.0
    """

    short_name: ClassVar[str] = "periodic"
    period: Array = tree.param(POSITIVE, default=None, unit="period_unit")
    period_unit: Array | None = tree.unit(default=None)

    def _pull_period(self, bar: Array) -> Array:
        return per_column(bar, self.period)

    def _times_period(self, by_column: Callable[[], Array]) -> Array:
        products = by_column()
        return products if self.period.ndim else backend_of(products).xp.sum(products, axis=2)

    def from_data(self, X: Array, variance: float, /) -> Self:
        spread = column_spreads(X)
        ones = backend_of(X).xp.ones_like(spread)
        units = {"variance_unit": variance, "period_unit": unit_by_column(self.period, spread)}
        return tree.with_defaults(self, variance=variance, lengthscale=ones, period=2.0 * spread, **units)


@tree.model
class Seasonal(Winding):
    """A periodic kernel with a known, constant period, such as a day, a year or one revolution of a shaft.

    Multiply a centred kernel by an RBF kernel to model a seasonal pattern that changes slowly, and that leaves the
    trend to the other terms of a sum: ``Seasonal(period=1.0, centred=True) * RBF()``.

    Parameters
    ----------
    variance, lengthscale
        As for `Periodic`.
    period
        The period in units of the inputs: scalar (0-d), or one for each column [D]. Dates in tables are counted in
        days, so a period of one year is 365.25.
    centred
        Whether the average of the functions over a period is zero: the kernel is k(x, z) minus its average over z,
        variance exp(-c) I_0(c) with c = 1 / (4 lengthscale^2), the covariance given that the average is zero. With
        several columns, this is the average over all of them.

    Raises
    ------
    TypeError
        If `centred` is neither True nor False.
    ValueError
        In `from_data`, if the period is missing or not positive.

    Examples
    --------
    The model learns a weekly pattern from four weeks, and predicts it a year ahead. The period is not trained.

    >>> import numpy as np
    >>> import agp
    >>> days = np.arange(28.0)[:, None]
    >>> visitors = np.where(days[:, 0] % 7.0 < 5.0, 10.0, 2.0)
    >>> model = agp.GPR.from_data(days, visitors, kernel=agp.Seasonal(period=7.0))
    >>> trained = agp.fit(model, days, visitors).model
    >>> print(trained.predict_mean(np.asarray([[364.0], [369.0]]))[:, 0].round(1))
    [10.  2.]
    >>> "kernel.period" in agp.flatten(model)[1].names
    False
    """

    short_name: ClassVar[str] = "seasonal"

    def stacked_covariance(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        # the sines do not depend on the setting
        xp = backend_of(X).xp
        turns = (math.pi / self.period) * (X[:, None, :] - (X if Z is None else Z)[None, :, :])
        sines = xp.sin(turns)
        r2, pull = weighted_columns(sines * sines, 1.0 / (self.lengthscale * self.lengthscale))
        variance = spread_scalars(self.variance)
        correlation = self._correlation(r2, self._average(X.shape[1], stacked=True) if self.centred else None)

        def pullback(bar):
            by_entry = pull(-0.5 * variance * xp.exp(-0.5 * r2) * bar) * (math.pi / self.period) * xp.sin(2.0 * turns)
            X_bar, Z_bar = xp.sum(by_entry, axis=1), -xp.sum(by_entry, axis=0)
            return (X_bar + Z_bar,) if Z is None else (X_bar, Z_bar)

        return variance * correlation, pullback

    def _pull_period(self, bar: Array) -> None:  # noqa: ARG002 - a constant has no gradient
        return None

    def _times_period(self, by_column: Callable[[], Array]) -> None:  # noqa: ARG002 - a constant has no derivative
        return None

    def from_data(self, X: Array, variance: float, /) -> Self:
        if self.period is None:
            raise ValueError(
                "Seasonal has no period; pass period= in units of the inputs, or use Periodic, which trains the period."
            )
        self = tree.place_leaves(self, X)
        period = to_numpy(self.period)
        if not ((period > 0.0) & (period < math.inf)).all():
            raise ValueError(f"period of Seasonal is {period}, but must be positive and finite.")
        _warn_of_equal_phases(X, self.period)
        ones = backend_of(X).xp.ones_like(X[0, :])
        return tree.with_defaults(self, variance=variance, lengthscale=ones, variance_unit=variance)


def _warn_of_equal_phases(X: Array, period: Array) -> None:
    """Warn if all rows of a column that is not constant have the same phase, up to rounding."""
    xp = backend_of(X).xp
    turns = (X - X[:1, :]) / period
    rounding = 8.0 * float(xp.finfo(X.dtype).eps) * xp.max(xp.abs(X) / period, axis=0)
    apart = xp.max(xp.abs(turns - xp.round(turns)), axis=0)
    (equal,) = xp.nonzero((apart <= rounding) & (xp.max(xp.abs(turns), axis=0) > 0.5))
    if not equal.shape[0]:
        return
    column = int(equal[0])
    number = to_numpy(period if not period.ndim else period[column]).item()
    text = (
        f"all rows have the same phase of the period {number:g}, so the data say nothing about this season; pass the "
        "period in the unit of the column, such as 365.25 for a year of dates, which are counted in days."
    )
    warnings.warn(text, ColumnWarning, stacklevel=outside())
