"""q(v) as the prior N(0, I) of v = Lu^-1 u times Gaussian sites that a gradient may pass through."""

from typing import Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.linalg import add_diagonal
from agp.posteriors._factored import WhitePosterior
from agp.posteriors._natural_state import NaturalState, natural_state

__all__ = ["WhiteSites"]


@tree.model
class WhiteSites(WhitePosterior):
    """q(v_p) ~ N(0, I) exp(t_p^T v_p - 1/2 v_p^T S_p v_p), for models that compute the sites from their parameters.

    `Dual` with ``tied="white"`` is the same q(u), whose sites are stored and have no gradient.

    Parameters
    ----------
    shift
        t [M, P].
    precision
        S [P, M, M], symmetric, with I + S_p positive definite.
    """

    shift: Array = tree.param()
    precision: Array = tree.param()

    @property
    def outputs(self) -> int:
        return self.shift.shape[1]

    @property
    def count(self) -> int:
        return self.shift.shape[0]

    def whitened(self, Lu: Array, /) -> tuple[NaturalState, Pullback]:
        state, pull = natural_state(self.shift, add_diagonal(self.precision, 1.0))

        def pullback(state_bar):
            shift_bar, precision_bar = pull(state_bar)
            return tree.cotangent(self, shift=shift_bar, precision=precision_bar), None

        return state, pullback

    @classmethod
    def from_prior(cls, Kuu: Array, outputs: int, /) -> Self:
        xp = backend_of(Kuu).xp
        M = Kuu.shape[0]
        return cls(xp.zeros((M, outputs), **like(Kuu)), xp.zeros((outputs, M, M), **like(Kuu)))
