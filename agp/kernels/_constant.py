"""Kernels that do not depend on the values of the inputs: a constant offset and white noise."""

from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.kernels._base import ConstantVariance, Kernel
from agp.kernels._features import Features, features_of
from agp.kernels._jets import Jets, constant_jets
from agp.kernels._linearisation import Linearisation, times_groups
from agp.kernels._parameters import check_number
from agp.kernels._stacks import spread_scalars
from agp.tree import POSITIVE


@tree.model
class _WithoutInputs(ConstantVariance):
    # the cotangents of the inputs are zero
    variance: Array = tree.param(POSITIVE, default=None, unit="variance_unit")
    variance_unit: Array | None = tree.unit(default=None)

    def _zeros(self, X: Array, Z: Array | None) -> tuple[Array, ...]:
        xp = backend_of(X).xp
        return (xp.zeros_like(X),) if Z is None else (xp.zeros_like(X), xp.zeros_like(Z))

    def with_categories(self, width: int, columns: tuple[int, ...], /) -> Kernel:  # noqa: ARG002
        return self

    def _without_columns(self, width: int, columns: tuple[int, ...]) -> Kernel:  # noqa: ARG002
        return self

    def from_data(self, _X: Array, variance: float, /) -> Self:
        return tree.with_defaults(self, variance=variance, variance_unit=variance)

    def check(self, _width: int, /) -> None:
        check_number(self, "variance")


def _shape(X: Array, Z: Array | None) -> tuple[int, ...]:
    """Return the shape [..., N, M] of the covariances between X [..., N, D] and Z [..., M, D], or within X."""
    return *X.shape[:-1], (X if Z is None else Z).shape[-2]


@tree.model
class Constant(_WithoutInputs):
    """The constant kernel, k(x, z) = variance. It models an unknown offset, such as the intercept of a `Linear` kernel.

    Parameters
    ----------
    variance
        A scalar (0-d) in squared units of the targets.

    Examples
    --------
    Functions of a linear kernel pass through the origin. With a constant, their standard deviation there is 3.

    >>> import numpy as np
    >>> import agp
    >>> X = np.asarray([[0.0], [4.0]])
    >>> for kernel in (agp.Linear(1.0), agp.Constant(9.0) + agp.Linear(1.0)):
    ...     variances, _ = kernel.diag(X)
    ...     print(np.sqrt(variances))
    [0. 4.]
    [3. 5.]
    """

    short_name: ClassVar[str] = "constant"
    floats_per_entry: ClassVar[int] = 1

    def __call__(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        xp = backend_of(X).xp

        def pullback(K_bar):
            return tree.cotangent(self, variance=xp.sum(K_bar)), *self._zeros(X, Z)

        return xp.broadcast_to(self.variance, _shape(X, Z)), pullback

    def jets(self, X: Array, V: Array, Z: Array, W: Array, /) -> tuple[Jets, Pullback]:
        return constant_jets(*self(X, Z), V, W)

    def stacked_covariance(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        K = backend_of(X).xp.broadcast_to(spread_scalars(self.variance), (self.variance.shape[0], *_shape(X, Z)))
        return K, lambda _: self._zeros(X, Z)

    def linearise(self, X: Array, /) -> Linearisation:
        B, N = backend_of(X), X.shape[0]
        xp = B.xp
        ones = xp.ones((N, N), **B.like(X))

        def pull(K_bar):
            return tree.cotangent(self, variance=B.symmetric_inner(K_bar, ones))

        def times(a, W=None):
            sums = xp.sum(a, axis=0, keepdims=True) if W is None else B.symmetric_product(W, a)
            return tree.cotangent(self, variance=xp.broadcast_to(sums, a.shape))

        return Linearisation(self.variance * ones, pull, times)

    def linearise_groups(self, X: Array, /) -> Linearisation:
        xp = backend_of(X).xp

        def times(a, W=None):
            sums = xp.broadcast_to(xp.sum(a, axis=1, keepdims=True), a.shape) if W is None else times_groups(W, a)
            return tree.cotangent(self, variance=sums)

        return Linearisation(xp.broadcast_to(self.variance, _shape(X, None)), None, times)

    def random_features(self, rng: Any, count: int, width: int, /) -> Features:  # noqa: ARG002
        return features_of(self.variance)


@tree.model
class White(_WithoutInputs):
    """White noise: k(X) = variance I with one argument, and k(X, Z) = 0 with two, even where rows of X and Z coincide.

    The noise is independent for each row. White noise is part of Kuu and of the variances k(x, x), but not of Kuf.

    Parameters
    ----------
    variance
        A scalar (0-d) in squared units of the targets.

    Examples
    --------
    Two observations at the same input share the constant, but not the noise. A call with two arguments has no noise.

    >>> import numpy as np
    >>> import agp
    >>> X = np.asarray([[0.0], [0.0]])
    >>> kernel = agp.Constant(1.0) + agp.White(0.5)
    >>> print(kernel(X)[0])
    [[1.5 1. ]
     [1.  1.5]]
    >>> print(kernel(X, X)[0])
    [[1. 1.]
     [1. 1.]]
    """

    short_name: ClassVar[str] = "white"
    floats_per_entry: ClassVar[int] = 2

    def __call__(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        xp = backend_of(X).xp
        if Z is None:
            identity = xp.broadcast_to(xp.eye(X.shape[-2], **like(X)), _shape(X, Z))

            def pullback(K_bar):
                return tree.cotangent(self, variance=xp.sum(identity * K_bar)), *self._zeros(X, Z)

            return self.variance * identity, pullback
        # the factor self.variance makes automatic differentiation return a zero gradient
        K = xp.broadcast_to(0.0 * self.variance, _shape(X, Z))
        return K, lambda _: (tree.cotangent(self, variance=xp.zeros_like(self.variance)), *self._zeros(X, Z))

    def linearise(self, X: Array, /) -> Linearisation:
        B = backend_of(X)

        def pull(K_bar):
            return tree.cotangent(self, variance=B.xp.sum(B.diagonal(K_bar)))

        def times(a, W=None):
            return tree.cotangent(self, variance=a if W is None else B.diagonal(W)[:, None] * a)

        return Linearisation(self.variance * B.xp.eye(X.shape[0], **B.like(X)), pull, times)

    def random_features(self, rng: Any, count: int, width: int, /) -> Features:  # noqa: ARG002
        raise TypeError(
            "White is independent noise, not a function of the inputs, so there is no function to sample; use the "
            "likelihood's noise instead."
        )
