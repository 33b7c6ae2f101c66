"""What every kernel offers."""

from abc import ABC, abstractmethod
from typing import Any, Self

from agp.backend import Array, Pullback

__all__ = ["Kernel"]


class Kernel(ABC):
    """A covariance function k(x, z) of inputs with D columns.

    Its leaves may be left None, or given as plain numbers, until `from_data` or a model's constructor turns them into
    arrays like the data.
    """

    @abstractmethod
    def __call__(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        """The covariances k(X, Z), or the symmetric k(X, X) where Z is omitted, with their pullback.

        Parameters
        ----------
        X
            Inputs [N, D].
        Z
            Other inputs [M, D]. One argument and two are different calls, never told apart by the identity of arrays:
            k(X, X) of one argument is exactly symmetric, and sees white noise.

        Returns
        -------
        K
            [N, M], or [N, N].
        pullback
            ``K_bar -> (kernel_bar, X_bar, Z_bar)``, or ``K_bar -> (kernel_bar, X_bar)`` for one argument.
        """

    @abstractmethod
    def diag(self, X: Array, /) -> tuple[Array, Pullback]:
        """The variances k(x, x) [N] of inputs X [N, D], and the pullback ``bar [N] -> (kernel_bar, X_bar)``.

        X_bar is None where the variances do not depend on the inputs.
        """

    @abstractmethod
    def from_data(self, X: Array, variance: float, /) -> Self:
        """A kernel whose missing leaves start at values that suit inputs X [N, D] and a variance of the targets."""

    @abstractmethod
    def check(self, width: int, /) -> None:
        """Raise ValueError if this kernel cannot take inputs with that many columns."""

    def __add__(self, other: Any) -> Any:
        from agp.kernels._combine import Sum  # a sum is a kernel, so it imports this file

        if not isinstance(other, Kernel):
            return NotImplemented
        return Sum((*_parts(self), *_parts(other)))


def _parts(kernel: Kernel) -> tuple[Kernel, ...]:
    return getattr(kernel, "parts", (kernel,))
