"""Actions without structure."""

from collections.abc import Callable

from agp import tree
from agp.actions._base import Actions
from agp.backend import Array, Pullback, backend_of
from agp.linalg import cholesky, diagonal, identity

__all__ = ["DenseActions", "FixedActions"]


@tree.model
class DenseActions(Actions):
    """Any linearly independent columns.

    Parameters
    ----------
    values
        S [m, i].
    """

    values: Array = tree.param()

    @property
    def count(self) -> int:
        return self.values.shape[1]

    @property
    def support(self) -> int:
        return self.values.shape[0]

    def _bar(self, values_bar: Callable[[], Array]) -> "DenseActions | None":
        return tree.cotangent(self, values=values_bar())

    def times(self, K: Array, /) -> tuple[Array, Pullback]:
        return K @ self.values, lambda bar: (self._bar(lambda: K.mT @ bar), bar @ self.values.mT)

    def project(self, r: Array, /) -> tuple[Array, Pullback]:
        return self.values.mT @ r, lambda bar: (self._bar(lambda: r @ bar.mT), self.values @ bar)

    def rows(self, at: Array, /) -> tuple[Array, Pullback]:
        xp = backend_of(self.values).xp

        def pullback(bar):
            every = xp.arange(self.support, dtype=at.dtype, device=bar.device)
            return self._bar(lambda: xp.astype(every[:, None] == at[None, :], bar.dtype) @ bar)

        return xp.take(self.values, at, axis=0), pullback

    def gram(self) -> tuple[tuple[Array, Array], Pullback]:
        xp = backend_of(self.values).xp
        S = xp.astype(self.values, xp.float64)
        SS = S.mT @ S
        L = cholesky(SS)

        def pullback(gram_bar, log_det_bar):
            # d log|S^T S| = 2 <S (S^T S)^-1, dS>
            half = backend_of(L).solve_triangular(L, identity(L))
            weights = gram_bar + gram_bar.mT + 2.0 * log_det_bar * half.mT @ half
            return self._bar(lambda: xp.astype(S @ weights, self.values.dtype))

        return (SS, 2.0 * xp.sum(xp.log(diagonal(L)))), pullback


@tree.model
class FixedActions(DenseActions):
    """Columns that a policy has chosen: unit vectors, residuals, eigenvectors. No gradient changes them.

    Parameters
    ----------
    values
        S [m, i]. Auxiliary.
    """

    values: Array = tree.auxiliary()

    def _bar(self, values_bar: Callable[[], Array]) -> None:  # noqa: ARG002
        return None
