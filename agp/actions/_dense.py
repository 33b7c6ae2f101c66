"""Actions that are stored as a dense matrix."""

import warnings
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, Self

from agp import tree
from agp.actions._base import Actions
from agp.backend import Array, Pullback, as_widest_float, asarray_like, backend_of, row_numbers, to_numpy
from agp.linalg import cholesky, diagonal, identity, solve_lower


def _factors(S: Array, share: float) -> tuple[Array, list[int]]:
    """Return orthonormal columns with the same span as S [m, i], and the indices of dependent columns of S.

    A column is dependent if at most the fraction `share` of its norm is orthogonal to all earlier columns.
    """
    B = backend_of(S)
    xp = B.xp
    Q, R = xp.linalg.qr(S, mode="reduced")
    if not B.is_concrete(S):
        return Q, []
    dependent = xp.abs(diagonal(R)) <= share * xp.sqrt(xp.sum(S * S, axis=0))
    return Q, [j for j, one in enumerate(to_numpy(dependent)) if one]


class Columns(Actions):
    """Actions with linearly independent columns, stored as the dense matrix `values` = S [m, i]."""

    values: Array

    @property
    def count(self) -> int:
        return self.values.shape[1]

    @property
    def support(self) -> int:
        return self.values.shape[0]

    def dependent_columns(self) -> list[int]:
        xp = backend_of(self.values).xp
        return _factors(self.values, float(xp.finfo(self.values.dtype).eps) ** 0.5)[1]

    @abstractmethod
    def _bar(self, values_bar: Callable[[], Array]) -> Self | None:
        """Return the cotangent of the actions, or None if they have no gradient.

        `values_bar` is a function that returns the cotangent of `values`.
        """

    def times(self, K: Array, /) -> tuple[Array, Pullback]:
        return K @ self.values, lambda bar: (self._bar(lambda: K.mT @ bar), bar @ self.values.mT)

    def project(self, r: Array, /) -> tuple[Array, Pullback]:
        return self.values.mT @ r, lambda bar: (self._bar(lambda: r @ bar.mT), self.values @ bar)

    def rows(self, at: Array, /) -> tuple[Array, Pullback]:
        xp = backend_of(self.values).xp

        def pullback(bar):
            every = row_numbers(self.support, bar)
            return self._bar(lambda: xp.astype(every[:, None] == at[None, :], bar.dtype) @ bar)

        return xp.take(self.values, at, axis=0), pullback

    def gram(self, weights: Array | None = None, /) -> tuple[tuple[Array, Array], Pullback]:
        xp = backend_of(self.values).xp
        S = as_widest_float(self.values)
        WS = S if weights is None else weights[:, None] * S
        SS = S.mT @ WS
        L = cholesky(SS)

        def pullback(gram_bar, log_det_bar):
            # d log|S^T W S| = 2 <W S (S^T W S)^-1, dS> + <S (S^T W S)^-1 S^T, dW>
            half = solve_lower(L, identity(L))
            both = gram_bar + gram_bar.mT + 2.0 * log_det_bar * half.mT @ half
            own = self._bar(lambda: xp.astype(WS @ both, self.values.dtype))
            return own, None if weights is None else 0.5 * xp.sum(S * (S @ both), axis=1)

        return (SS, 2.0 * xp.sum(xp.log(diagonal(L)))), pullback


@tree.model
class DenseActions(Columns):
    """Trainable actions with any linearly independent columns.

    Parameters
    ----------
    values
        The matrix S [m, i].
    """

    values: Array = tree.param()

    def _bar(self, values_bar: Callable[[], Array]) -> Self | None:
        return tree.cotangent(self, values=values_bar())


@tree.model
class FixedActions(Columns):
    """Actions chosen by a policy, such as unit vectors, residuals or eigenvectors. Fixed actions have no gradient.

    Parameters
    ----------
    values
        The matrix S [m, i], stored as an auxiliary leaf.
    """

    values: Array = tree.auxiliary()

    is_chosen: ClassVar[bool] = True

    @classmethod
    def spanning(cls, S: Array, /) -> Self:
        """Return orthonormal actions with the same span as S [m, i]. The posterior depends only on the span.

        Columns that are zero or in the span of earlier columns are dropped with a warning. In compiled functions, such
        columns are replaced by arbitrary orthogonal directions.
        """
        xp = backend_of(S).xp
        Q, dependent = _factors(S, 8.0 * S.shape[0] * float(xp.finfo(S.dtype).eps))
        if len(dependent) == S.shape[1]:
            raise ValueError("every action is zero; pass at least one nonzero action.")
        if dependent:
            msg = f"actions {dependent} were dropped: they are zero or in the span of earlier actions; omit them."
            warnings.warn(msg, UserWarning, stacklevel=2)
            kept = [j for j in range(S.shape[1]) if j not in dependent]
            Q = _factors(xp.take(S, asarray_like(kept, S), axis=1), 0.0)[0]
        return cls(Q)

    def _bar(self, values_bar: Callable[[], Array]) -> Self | None:  # noqa: ARG002
        return None
