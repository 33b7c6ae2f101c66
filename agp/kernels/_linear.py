"""The linear kernel."""

import dataclasses
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, assume, backend_of
from agp.checks import check_like
from agp.chunking import unit_by_column
from agp.kernels._base import Kernel
from agp.kernels._distance import sums_by_column
from agp.kernels._features import Features, Slopes, Term
from agp.kernels._jets import Jets
from agp.kernels._linearisation import Linearisation, times_vectors
from agp.kernels._parameters import check_per_column, per_column
from agp.kernels._stacks import weighted_columns
from agp.tree import POSITIVE


@tree.model
class Linear(Kernel):
    """The kernel of linear functions, k(x, z) = sum_d variance_d (x_d - c_d) (z_d - c_d).

    The functions vanish at the centre c. Add `Constant` for an intercept, or use a `ConstantMean`.

    Parameters
    ----------
    variance
        The variance of the slope, in squared units of the targets per squared unit of the inputs: scalar (0-d), or one
        for each column [D]. If None, each column starts with an equal share of the variance of the targets.
    centre
        The point c [D] where the functions vanish, or one number for all columns. The default is the origin.
        `Linear.centred` computes c from the data.
    at_mean
        Whether a centre that is None is the mean of the data from which `from_data`, or a model, starts. In text,
        ``"linear"`` is ``Linear(at_mean=True)``.

    Examples
    --------
    A GP with this kernel is Bayesian linear regression, which extrapolates with growing error bars.

    >>> import numpy as np
    >>> import agp
    >>> X = np.asarray([[1.0], [2.0], [4.0]])
    >>> parts = {"kernel": agp.Linear(100.0), "likelihood": agp.Gaussian(1e-4)}
    >>> model = agp.GPR.from_data(X, 3.0 * X, mean_function=agp.ZeroMean(), **parts)
    >>> mean, variance = model.predict(np.asarray([[0.0], [100.0], [200.0]]))
    >>> print(mean[:, 0].round(1), np.sqrt(variance[:, 0]).round(2))
    [  0. 300. 600.] [0.   0.22 0.44]
    """

    short_name: ClassVar[str] = "linear"
    variance: Array = tree.param(POSITIVE, default=None, unit="variance_unit")
    centre: Array | None = tree.constant(default=None, optional=True)
    variance_unit: Array | None = tree.unit(default=None)
    at_mean: bool = dataclasses.field(default=False, kw_only=True)
    takes_groups: ClassVar[bool] = True
    slopes: ClassVar[tuple[str, ...]] = ("variance",)
    floats_per_entry: ClassVar[int] = 2

    @classmethod
    def centred(cls, X: Array, /) -> Self:
        """Return a linear kernel whose functions vanish at the column means of X [N, D]. Its variance is None.

        Raises
        ------
        TypeError
            If X is no array of floats, such as a data frame or dates; ``Linear(at_mean=True)`` reads the means of the
            inputs that a model or an estimator makes of a table.
        """
        try:
            is_float = backend_of(X).xp.isdtype(X.dtype, "real floating")
        except TypeError:
            is_float = False
        if not is_float:
            raise TypeError(
                f"X is a {type(X).__name__}, but must be an array of floats; for a table or dates, write "
                "Linear(at_mean=True), which is zero at the mean of the rows from which a model is built."
            )
        return cls(centre=backend_of(X).xp.mean(X, axis=0))

    def _from_centre(self, X: Array) -> Array:
        return X if self.centre is None else X - self.centre

    def __call__(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        xp, X = backend_of(X).xp, self._from_centre(X)
        Z = None if Z is None else self._from_centre(Z)

        def pullback(K_bar):
            if Z is None:
                product = (K_bar + K_bar.mT) @ X
                return self._bar(0.5 * sums_by_column(xp, X * product)), self.variance * product
            product = K_bar @ Z
            bar = self._bar(sums_by_column(xp, X * product))
            return bar, self.variance * product, self.variance * (K_bar.mT @ X)

        root = xp.sqrt(self.variance)
        scaled = root * X
        if Z is not None:
            return scaled @ (root * Z).mT, pullback
        products = scaled @ scaled.mT
        return 0.5 * (products + products.mT), pullback  # exactly symmetric

    def linearise(self, X: Array, /) -> Linearisation:
        B, X = backend_of(X), self._from_centre(X)
        xp = B.xp
        scaled = xp.sqrt(self.variance) * X

        def pull(K_bar):
            return self._bar(B.inner_by_column(X, B.symmetric_product(K_bar, X)))

        def times(a, W=None):
            inner = (a.mT @ X)[None, :, :] if W is None else times_vectors(W, a, X)
            by_column = X[:, None, :] * inner
            return tree.cotangent(self, variance=by_column if self.variance.ndim else xp.sum(by_column, axis=2))

        return Linearisation(scaled @ scaled.mT, pull, times)

    def linearise_groups(self, X: Array, /) -> Linearisation:
        xp, X = backend_of(X).xp, self._from_centre(X)
        scaled = xp.sqrt(self.variance) * X

        def times(a, W=None):
            a = a[:, :, None] * X
            by_column = X * (xp.sum(a, axis=1, keepdims=True) if W is None else W @ a)
            return tree.cotangent(self, variance=by_column if self.variance.ndim else xp.sum(by_column, axis=2))

        return Linearisation(scaled @ scaled.mT, None, times)

    def diag(self, X: Array, /) -> tuple[Array, Pullback]:
        xp, X = backend_of(X).xp, self._from_centre(X)

        def pullback(bar):
            by_column = xp.sum(bar[:, None] * (X * X), axis=0)
            return self._bar(by_column), 2.0 * self.variance * (bar[:, None] * X)

        return xp.sum(self.variance * (X * X), axis=1), pullback

    def jets(self, X: Array, V: Array, Z: Array, W: Array, /) -> tuple[Jets, Pullback]:
        xp, x, z, s = backend_of(X).xp, self._from_centre(X), self._from_centre(Z), self.variance

        def pullback(bars: Jets) -> tuple[Any, ...]:
            k, a, b, c = bars
            of_x, of_v = k @ z + b @ W, a @ z + c @ W
            bar = self._bar(sums_by_column(xp, x * of_x) + sums_by_column(xp, V * of_v))
            return bar, s * of_x, s * of_v, s * (k.mT @ x + a.mT @ V), s * (b.mT @ x + c.mT @ V)

        sx, sv = s * x, s * V
        return Jets(sx @ z.mT, sv @ z.mT, sx @ W.mT, sv @ W.mT), pullback

    def stacked_covariance(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        xp, x = backend_of(X).xp, self._from_centre(X)
        z = x if Z is None else self._from_centre(Z)
        K, pull = weighted_columns(x[:, None, :] * z[None, :, :], self.variance)

        def pullback(K_bar):
            by_entry = pull(K_bar)
            X_bar, Z_bar = xp.sum(by_entry * z[None, :, :], axis=1), xp.sum(by_entry * x[:, None, :], axis=0)
            return (X_bar + Z_bar,) if Z is None else (X_bar, Z_bar)

        return K, pullback

    def stacked_variances(self, X: Array, /) -> tuple[Array, Pullback]:
        x = self._from_centre(X)
        variances, pull = weighted_columns(x * x, self.variance)
        return variances, lambda bar: 2.0 * x * pull(bar)

    def random_features(self, rng: Any, count: int, width: int, /) -> Features:  # noqa: ARG002
        return Features((Term((Slopes(backend_of(self.variance).xp.sqrt(self.variance), self.centre),)),))

    def _bar(self, by_column: Array) -> "Linear":
        return tree.cotangent(self, variance=per_column(by_column, self.variance))

    def from_data(self, X: Array, variance: float, /) -> Self:
        if self.centre is None and self.at_mean:
            self = dataclasses.replace(self, centre=backend_of(X).xp.mean(X, axis=0))
        if self.centre is not None:
            self = tree.place_leaves(self, X)
            check_like("centre", self.centre, "X", X)
            check_per_column(self, "centre", X.shape[1])
        xp, X = backend_of(X).xp, self._from_centre(X)
        small = xp.max(xp.abs(X), axis=0) < (float(xp.finfo(X.dtype).max) / X.shape[0]) ** 0.5
        if not assume(xp.all(small), likely=True):
            column = int(xp.argmin(xp.astype(small, xp.int64)))
            raise ValueError(
                f"column {column} of X has values whose squares exceed the maximum of {X.dtype}; divide it by a "
                "constant, or remove wrong values."
            )
        # the mean of the variances k(x, x) is then the given variance; all-zero columns are ignored
        square = xp.mean(X * X, axis=0)
        usual = xp.where(square > 0.0, square, xp.ones_like(square))
        unit = unit_by_column(self.variance, variance / usual)
        return tree.with_defaults(self, variance=variance / X.shape[1] / usual, variance_unit=unit)

    def with_categories(self, width: int, columns: tuple[int, ...], /) -> Kernel:
        from agp.kernels._categories import plus_effects  # a later module

        return plus_effects(self, width, columns) if columns else self

    def check(self, width: int, /) -> None:
        check_per_column(self, "variance", width)
        if self.centre is not None:
            check_per_column(self, "centre", width)
