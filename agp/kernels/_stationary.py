"""Stationary kernels k(x, z) = variance g(r2), with r2 = sum_d (x_d - z_d)^2 / lengthscale_d^2.

Each kernel defines its profile g and the slope g' = dg/dr2. A kernel whose profile has parameters of its own also
defines the derivatives of g with respect to them, `shape_slopes`. The base class does everything else.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, asarray_like, backend_of
from agp.chunking import column_spreads, unit_by_column
from agp.kernels._base import no_slopes
from agp.kernels._derived_slopes import own_parameters, parameter_bars, with_slope
from agp.kernels._distance import group_distances, own_distances, squared_distances
from agp.kernels._features import Features, Waves, features_of
from agp.kernels._jets import Jets, distance_jets
from agp.kernels._linearisation import DistanceSums, Linearisation, apply_weights, distance_times_groups, times_groups
from agp.kernels._parameters import check_number, check_per_column, per_column
from agp.kernels._shifts import Shiftable
from agp.kernels._stacks import spread_scalars, stacked_distances
from agp.repairs import derived_pullback
from agp.tree import POSITIVE


@tree.model
class Stationary(Shiftable):
    """The base class for stationary kernels, which computes the distances and their pullback."""

    variance: Array = tree.param(POSITIVE, default=None, unit="variance_unit")
    lengthscale: Array = tree.param(POSITIVE, default=None, unit="lengthscale_unit")
    variance_unit: Array | None = tree.unit(default=None)
    lengthscale_unit: Array | None = tree.unit(default=None)
    differences = False
    """Whether distances and their pullback must be computed from differences, because the slope is singular at 0."""
    differences_for_slopes: ClassVar[bool] = False
    """Whether this holds for covariances of slopes, because the second derivative of the profile is singular at 0."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "profile" in vars(cls) and cls.__module__.partition(".")[0] != "agp":
            cls.profile = with_slope(vars(cls)["profile"])  # type: ignore[method-assign]

    @abstractmethod
    def profile(self, r2: Array, /) -> tuple[Array, Callable[[], Array]]:
        """Return g(r2), and a function without arguments that returns the slope dg/dr2.

        Outside of agp, the function may be None. It is then derived by the automatic differentiation of torch or JAX.
        """

    def shape_slopes(self, _r2: Array, /) -> dict[str, Array]:
        """Return the derivatives of g(r2) with respect to the profile's own parameters (0-d), by name.

        By default, the profile has no parameters.
        """
        return {}

    def pull_shape(self, r2: Array, /) -> Callable[[Array], dict[str, Array]]:
        """Return a function that maps the cotangent of K to the cotangents of the profile's own parameters, by name.

        By default, it uses `shape_slopes`. Without `shape_slopes`, torch or JAX differentiates the profile. Newton's
        method for exact GPs requires `shape_slopes`.
        """
        if type(self).shape_slopes is Stationary.shape_slopes:
            own = own_parameters(type(self))
            if not own:
                return lambda _: {}
            pull = derived_pullback(type(self).profile, self, (r2,), {}, 0)
            return lambda K_bar: parameter_bars(pull(self.variance * K_bar), own)

        def pullback(K_bar):
            xp, slopes = backend_of(r2).xp, self.shape_slopes(r2)
            return {name: self.variance * xp.sum(K_bar * slope) for name, slope in slopes.items()}

        return pullback

    def higher_slopes(self, r2: Array, /) -> tuple[Array, Array, Callable[[], Array]]:  # noqa: ARG002
        """Return dg/dr2, the second derivative, and a function without arguments that returns the third one.

        This method is needed only for observations of slopes. The higher derivatives may be singular at 0, where they
        are then 0.
        """
        raise TypeError(no_slopes(self))

    def higher_shape_slopes(self, _r2: Array, /) -> dict[str, tuple[Array, Array, Array]]:
        """Return the derivatives of g and of its first two derivatives by the profile's own parameters, by name.

        By default, the profile has no parameters. Slopes of other profiles need this method, as `shape_slopes`.
        """
        return {}

    @property
    def has_jets(self) -> bool:
        return type(self).higher_slopes is not Stationary.higher_slopes

    def jets(self, X: Array, V: Array, Z: Array, W: Array, /) -> tuple[Jets, Pullback]:
        return distance_jets(self, X, V, Z, W)

    def frequencies(self, rng: Any, count: int, width: int, /) -> Any:  # noqa: ARG002
        """Draw frequencies [count, width] from the spectral density of g at lengthscale 1, with a NumPy generator.

        g(r2) is the average of cos(w^T r) over such frequencies w, for any r [width] with r^T r = r2. This method is
        needed only for sampling functions. Raise TypeError if the kernel does not implement it.
        """
        raise TypeError(
            f"{type(self).__name__} has no spectral sampler, so its functions cannot be sampled; implement "
            "`frequencies`, or call `sample` at fixed inputs."
        )

    def random_features(self, rng: Any, count: int, width: int, /) -> Features:
        waves = Waves(asarray_like(self.frequencies(rng, count, width), self.lengthscale) / self.lengthscale)
        return features_of(self.variance, waves)

    def __call__(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        r2, pull = squared_distances(X, Z, self.lengthscale, differences=self.differences)
        g, slope, pull_shape = *self.profile(r2), self.pull_shape(r2)
        del r2  # free memory: most profiles no longer need r2

        def pullback(K_bar):
            X_bar, Z_bar, lengthscale_bar = pull(K_bar * slope(), self.variance)
            variance_bar = backend_of(g).inner(K_bar, g)
            bar = tree.cotangent(self, variance=variance_bar, lengthscale=lengthscale_bar, **pull_shape(K_bar))
            return (bar, X_bar) if Z is None else (bar, X_bar, Z_bar)

        return self.variance * g, pullback

    def stacked_covariance(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        r2, pull = stacked_distances(X, Z, self.lengthscale)
        g, slope = self._spread_shapes().profile(r2)
        variance = spread_scalars(self.variance)
        return variance * g, lambda K_bar: pull(K_bar * slope() * variance)

    def _spread_shapes(self) -> Self:
        return self if self._has_no_shape else self._with_shapes_spread()

    def _with_shapes_spread(self) -> Self:
        """Return the stack with the profile's own parameters as [S, 1, 1]."""
        leaves = tree.leaves(self, "parameter").items()
        shapes = {name: spread_scalars(x) for name, x in leaves if name not in ("variance", "lengthscale")}
        return tree.with_leaves(self, shapes)

    def linearise(self, X: Array, /) -> Linearisation | None:
        # dK/dlog l_d = -2 v g'(r2) (x_d - z_d)^2 / l_d^2
        if not self._has_shape_slopes:
            return None
        B = backend_of(X)
        x, distances = own_distances(X, self.lengthscale, differences=self.differences)
        names: list[str] = []

        def entries(start: int, stop: int) -> tuple[Array, ...]:
            r2 = distances(start, stop)
            (g, slope), shape = self.profile(r2), self.shape_slopes(r2)
            names[:] = shape
            return self.variance * g, slope(), *shape.values()

        K, slope, *shape = B.lower_tiles(entries, X.shape[0])
        sums = DistanceSums(x, self.differences)

        def pull(K_bar):
            (W,) = B.lower_tiles(lambda i, j: (K_bar[i:j, :j] * slope[i:j, :j],), X.shape[0])
            by_column = (-2.0 * self.variance) / self.lengthscale * sums.total(W)
            shape_bars = {
                name: self.variance * B.symmetric_inner(K_bar, by) for name, by in zip(names, shape, strict=True)
            }
            variance_bar = B.symmetric_inner(K_bar, K) / self.variance
            lengthscale_bar = per_column(by_column, self.lengthscale)
            return tree.cotangent(self, variance=variance_bar, lengthscale=lengthscale_bar, **shape_bars)

        def times(a, W=None):
            by_column = (-2.0 * self.variance) / self.lengthscale * sums.times(apply_weights(W, slope), a)
            by_lengthscale = by_column if self.lengthscale.ndim else B.xp.sum(by_column, axis=2)
            by_variance = B.symmetric_product(apply_weights(W, K), a) / self.variance
            by_shape = {
                name: self.variance * B.symmetric_product(apply_weights(W, by), a)
                for name, by in zip(names, shape, strict=True)
            }
            return tree.cotangent(self, variance=by_variance, lengthscale=by_lengthscale, **by_shape)

        return Linearisation(K, pull, times)

    def linearise_groups(self, X: Array, /) -> Linearisation | None:
        if not self._has_shape_slopes:
            return None
        xp = backend_of(X).xp
        x, r2 = group_distances(X, self.lengthscale, differences=self.differences)
        (g, slope), shapes = self.profile(r2), self.shape_slopes(r2)
        slope = slope()

        def times(a: Array, W: Array | None = None) -> Any:
            by_column = (-2.0 * self.variance) / self.lengthscale * distance_times_groups(x, apply_weights(W, slope), a)
            return tree.cotangent(
                self,
                variance=times_groups(apply_weights(W, g), a),
                lengthscale=by_column if self.lengthscale.ndim else xp.sum(by_column, axis=2),
                **{name: self.variance * times_groups(apply_weights(W, by), a) for name, by in shapes.items()},
            )

        return Linearisation(self.variance * g, None, times)

    def inverse_scales(self, width: int, /) -> Array:
        return backend_of(self.lengthscale).xp.broadcast_to(1.0 / self.lengthscale, (width,))

    def grouped_sums(self, X: Array, Z: Array, w: Array, /) -> tuple[Array, Pullback]:
        # K_bar = bar w^T has rank one in each group: its factors scale the narrow arrays of the pullback
        if not self._scales_cotangents:
            return super().grouped_sums(X, Z, w)
        r2, pull = squared_distances(X, Z, self.lengthscale)
        g, slope = self.profile(r2)
        sums = (g @ w[:, :, None])[:, :, 0]

        def pullback(bar):
            X_bar, Z_bar, kernel_bar = self._scale_pullback(pull, slope(), sums, (bar, w))
            return kernel_bar, X_bar, Z_bar, self.variance * (bar[:, None, :] @ g)[:, 0, :]

        return self.variance * sums, pullback

    def quadratic_forms(self, X: Array, w: Array, /) -> tuple[Array, Pullback]:
        # by symmetry, X_bar is the sum of the cotangents for both arguments
        if not self._scales_cotangents:
            return super().quadratic_forms(X, w)
        r2, pull = squared_distances(X, X, self.lengthscale)
        g, slope = self.profile(r2)
        sums = (g @ w[:, :, None])[:, :, 0]

        def pullback(bar):
            scale = bar[:, None] * w
            X_bar, Z_bar, kernel_bar = self._scale_pullback(pull, slope(), sums, (scale, w))
            return kernel_bar, X_bar + Z_bar, 2.0 * self.variance * bar[:, None] * sums

        return self.variance * backend_of(X).xp.sum(w * sums, axis=-1), pullback

    @property
    def _scales_cotangents(self) -> bool:
        """Whether distances are computed from products and the profile has no parameters of its own."""
        return not self.differences and self._has_no_shape

    @property
    def _has_no_shape(self) -> bool:
        """Whether the profile has no parameters of its own."""
        usual = (Stationary.pull_shape, Stationary.shape_slopes)
        return (type(self).pull_shape, type(self).shape_slopes) == usual and not own_parameters(type(self))

    @property
    def _has_shape_slopes(self) -> bool:
        """Whether the derivatives of the profile with respect to its own parameters are known."""
        if type(self).pull_shape is not Stationary.pull_shape:
            return False
        return type(self).shape_slopes is not Stationary.shape_slopes or not own_parameters(type(self))

    def _scale_pullback(self, pull: Callable, slope: Array, sums: Array, scales: tuple[Array, Array]) -> tuple:
        X_bar, Z_bar, lengthscale_bar = pull(slope, self.variance, scales)
        variance_bar = backend_of(sums).inner(scales[0], sums)
        return X_bar, Z_bar, tree.cotangent(self, variance=variance_bar, lengthscale=lengthscale_bar)

    def from_data(self, X: Array, variance: float, /) -> Self:
        # r2 between two rows is then about 2 for any number of columns, and g(r2) and its slope do not vanish
        spreads = column_spreads(X) * X.shape[1] ** 0.5
        units = {"variance_unit": variance, "lengthscale_unit": unit_by_column(self.lengthscale, spreads)}
        return tree.with_defaults(self, variance=variance, lengthscale=spreads, **units)

    def check(self, width: int, /) -> None:
        check_number(self, "variance")
        check_per_column(self, "lengthscale", width)


@tree.model
class RBF(Stationary):
    """The squared exponential kernel, g(r2) = exp(-r2 / 2). Its functions are very smooth.

    Parameters
    ----------
    variance
        The variance k(x, x), a scalar (0-d) in squared units of the targets.
    lengthscale
        The lengthscale in units of the inputs: scalar (0-d), or one for each column [D]. If None, it starts at the
        spread of each column times the square root of the number of columns. The `from_data` methods of models compare
        several multiples of this starting value.

    Examples
    --------
    The covariance depends on the distance in units of the lengthscale. A call also returns the pullback.

    >>> import numpy as np
    >>> import agp
    >>> kernel = agp.RBF(variance=4.0, lengthscale=2.0)
    >>> K, pullback = kernel(np.asarray([[0.0], [2.0], [4.0]]))
    >>> print(K.round(2))
    [[4.   2.43 0.54]
     [2.43 4.   2.43]
     [0.54 2.43 4.  ]]

    A column with a long lengthscale hardly matters.

    >>> K, _ = agp.RBF(1.0, [1.0, 100.0])(np.asarray([[0.0, 0.0], [0.0, 5.0], [1.0, 0.0]]))
    >>> print(K[0, :].round(3))
    [1.    0.999 0.607]
    """

    short_name: ClassVar[str] = "rbf"

    def profile(self, r2: Array, /) -> tuple[Array, Callable[[], Array]]:
        g = backend_of(r2).xp.exp(-0.5 * r2)
        return g, lambda: -0.5 * g

    def log_profile(self, r2: Array, /) -> Array:
        return -0.5 * r2

    def higher_slopes(self, r2: Array, /) -> tuple[Array, Array, Callable[[], Array]]:
        g = backend_of(r2).xp.exp(-0.5 * r2)
        return -0.5 * g, 0.25 * g, lambda: -0.125 * g

    def frequencies(self, rng: Any, count: int, width: int, /) -> Any:
        return rng.standard_normal((count, width))
