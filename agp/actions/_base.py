"""The base class of actions: the columns of S, on which a computation-aware GP projects its data."""

from abc import ABC, abstractmethod
from typing import Self

from agp.backend import Array, Pullback, backend_of, like


def whole_numbers(count: int, x: Array, /) -> Array:
    """The whole numbers from zero to count - 1, on the device of x."""
    return backend_of(x).xp.arange(count, **{name: value for name, value in like(x).items() if name != "dtype"})


class Actions(ABC):
    """The matrix S [m, i] of i actions over m rows of the data, as a linear map.

    Cotangents have the class of the actions, as for any model.
    """

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
        """K S [n, i] for K [n, m], and ``bar -> (actions_bar, K_bar)``."""

    @abstractmethod
    def project(self, r: Array, /) -> tuple[Array, Pullback]:
        """S^T r [i, P] for r [m, P], and ``bar -> (actions_bar, r_bar)``."""

    @abstractmethod
    def rows(self, at: Array, /) -> tuple[Array, Pullback]:
        """The rows S[at] [b, i] for whole numbers `at` [b], and ``bar -> actions_bar``."""

    @abstractmethod
    def gram(self) -> tuple[tuple[Array, Array], Pullback]:
        """S^T S [i, i] and its log determinant in float64, and ``(gram_bar, log_det_bar) -> actions_bar``."""

    @abstractmethod
    def dependent(self) -> list[int]:
        """The actions that are zero or in the span of earlier ones to working precision; for concrete arrays."""

    @property
    def chosen(self) -> bool:
        """Whether a policy has chosen the actions and may replace them (`agp.updates.ActionsUpdate`)."""
        return False

    @property
    def normalises(self) -> bool:
        """Whether training scales the actions to unit norm after each step (`normalised`)."""
        return False

    def normalised(self) -> Self:
        """The actions with unit norm, if no bound depends on it; usually themselves."""
        return self

    @property
    def floats_per_row(self) -> int:
        """The numbers held by `times` for each row of K."""
        return self.support + self.count
