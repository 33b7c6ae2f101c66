"""The base class of actions. A computation-aware GP projects its data onto the actions, which are the columns of S."""

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback


class Actions(tree.Part, ABC):
    """The matrix S [m, i] of i actions over m rows of the data, as a linear map.

    The cotangent of the actions has the same class as the actions.
    """

    _is_counted: ClassVar[bool] = True

    @property
    @abstractmethod
    def count(self) -> int:
        """The number of actions i."""

    @property
    @abstractmethod
    def support(self) -> int:
        """The number of rows m."""

    @abstractmethod
    def times(self, K: Array, /) -> tuple[Array, Pullback]:
        """Return K S [n, i] for K [n, m], and its pullback ``bar -> (actions_bar, K_bar)``."""

    @abstractmethod
    def project(self, r: Array, /) -> tuple[Array, Pullback]:
        """Return S^T r [i, P] for r [m, P], and its pullback ``bar -> (actions_bar, r_bar)``."""

    @abstractmethod
    def rows(self, at: Array, /) -> tuple[Array, Pullback]:
        """Return the rows S[at] [b, i] for integers `at` [b], and their pullback ``bar -> actions_bar``."""

    @abstractmethod
    def gram(self, weights: Array | None = None, /) -> tuple[tuple[Array, Array], Pullback]:
        """Return S^T diag(weights) S [i, i] and its log determinant in float64, and their pullback.

        `weights` [m] are positive; None means 1. The pullback is
        ``(gram_bar, log_det_bar) -> (actions_bar, weights_bar)``.
        """

    @abstractmethod
    def dependent_columns(self) -> list[int]:
        """Return the indices of actions that are zero or in the span of earlier actions, up to rounding.

        The arrays must be concrete, not traced.
        """

    is_chosen: ClassVar[bool] = False
    """Whether a policy has chosen the actions and may replace them (`agp.updates.ActionsUpdate`)."""
    is_scale_invariant: ClassVar[bool] = False
    """Whether training scales the actions to unit norm after each step (`normalise`)."""

    def normalise(self) -> Self:
        """Return the actions scaled to unit norm if `is_scale_invariant`, and unchanged otherwise."""
        return self

    @property
    def floats_per_row(self) -> int:
        """The number of floats that `times` stores per row of K."""
        return self.support + self.count
