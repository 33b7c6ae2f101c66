"""Kernels of linear combinations of the input columns."""

from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.checks import check_like
from agp.kernels._base import Kernel
from agp.kernels._categories import Overlap, times_overlap
from agp.kernels._features import Blocks, Features, Term, select_columns
from agp.kernels._of_inputs import OfInputs, pull_unless_zero
from agp.kernels._parameters import check_matrix


@tree.model
class Projected(OfInputs):
    """A kernel of linear combinations of the columns, k(W^T x, W^T z).

    A kernel with one lengthscale for each column describes functions that vary faster along some axes than along
    others. With weights W, these axes need not be those of the columns.

    Parameters
    ----------
    kernel
        Any kernel. Its parameters refer to the combinations.
    weights
        A constant array W [D, E]; column e holds the weights of the D columns of the inputs in combination e, in the
        unit of the combination per unit of each column.

    Examples
    --------
    The function depends only on the sum of two columns, and so does the kernel.

    >>> import numpy as np
    >>> import agp
    >>> X = np.random.default_rng(0).uniform(-2.0, 2.0, (40, 2))
    >>> y = np.sin(3.0 * (X[:, 0] + X[:, 1]))
    >>> plain, projected = (
    ...     agp.fit(agp.GPR.from_data(X, y, kernel=kernel), X, y).model
    ...     for kernel in (agp.RBF(), agp.Projected(agp.RBF(), [[1.0], [1.0]]))
    ... )
    >>> print(plain.leave_one_out().mean() < projected.leave_one_out().mean() - 1.0)
    True
    """

    weights: Array = tree.constant()
    is_linear: ClassVar[bool] = True

    def change_inputs(self, X: Array, /) -> tuple[Array, Pullback]:
        return X @ self.weights, lambda bar: bar @ self.weights.mT

    def metric_inputs(self, X: Array, /) -> Array:
        """Return the combinations, with columns of zeros if they are fewer than the columns of X."""
        new, missing = self.kernel.metric_inputs(X @ self.weights), X.shape[-1] - self.weights.shape[1]
        if missing <= 0:
            return new
        xp = backend_of(X).xp
        return xp.concat([new, xp.zeros_like(X[..., :missing])], axis=-1)

    def inverse_scales(self, width: int, /) -> Array | None:
        """Return the factors of the combinations, with zeros if they are fewer than the columns.

        If they are more, or if they are codes of levels, there are no factors.
        """
        count = self.weights.shape[1]
        factors = None if self.kernel.category_levels(count) else self.kernel.inverse_scales(count)
        if factors is None or count > width:
            return None
        B = backend_of(factors)
        return B.xp.concat([factors, B.xp.zeros((width - count,), **B.like(factors))])

    def with_categories(self, width: int, columns: tuple[int, ...], /) -> Kernel:
        """Return the kernel of combinations of the other columns, times `Overlap` on these columns."""
        if not columns or len(columns) == width:
            return times_overlap(self, width, columns) if columns else self
        return self._without_columns(width, columns) * Overlap().on(columns)

    def _without_columns(self, width: int, columns: tuple[int, ...]) -> Kernel:
        numbers = tuple(d for d in range(width) if d not in columns)
        if not columns or not numbers:
            return super()._without_columns(width, columns)
        W = self.weights
        rows = [W[d] for d in numbers] if isinstance(W, list | tuple) else select_columns(W.mT, numbers).mT
        return type(self)(self.kernel, rows).on(numbers)

    def random_features(self, rng: Any, count: int, width: int, /) -> Features:  # noqa: ARG002
        found = self.kernel.random_features(rng, count, self.weights.shape[1])
        terms = (tuple(_OfProjected(one, self.weights) for one in term.factors) for term in found.terms)
        return Features(tuple(map(Term, terms)))

    def from_data(self, X: Array, variance: float, /) -> Self:
        self = tree.place_leaves(self, X)
        check_like("weights", self.weights, "X", X)
        check_matrix(self, "weights", X.shape[1])
        return type(self)(self.kernel.from_data(X @ self.weights, variance), self.weights)

    def check(self, width: int, /) -> None:
        check_matrix(self, "weights", width)
        self.kernel.check(self.weights.shape[1])


@tree.model
class _OfProjected(Blocks):
    """Blocks of linear combinations."""

    blocks: Blocks
    weights: Array = tree.constant()

    def __call__(self, X: Array, /) -> tuple[Array, Pullback]:
        value, pull = self.blocks(X @ self.weights)
        return value, lambda bar: pull_unless_zero(lambda x_bar: x_bar @ self.weights.mT, pull(bar))
