"""What every kernel offers, and the sums of kernels that `+` makes."""

from abc import ABC, abstractmethod
from typing import Any, Self

from agp import tree
from agp.backend import Array, Pullback

__all__ = ["Kernel", "Sum"]


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

    @property
    def floats_per_entry(self) -> int:
        """Arrays of the shape of K that an evaluation holds at once, for memory budgets."""
        return 3

    @abstractmethod
    def from_data(self, X: Array, variance: float, /) -> Self:
        """A kernel whose missing leaves start at values that suit inputs X [N, D] and a variance of the targets."""

    @abstractmethod
    def check(self, width: int, /) -> None:
        """Raise ValueError if this kernel cannot take inputs with that many columns."""

    def __add__(self, other: Any) -> "Sum":
        if not isinstance(other, Kernel):
            return NotImplemented
        return Sum((*_summands(self), *_summands(other)))


def _summands(kernel: Kernel) -> tuple[Kernel, ...]:
    return kernel.parts if isinstance(kernel, Sum) else (kernel,)


@tree.model
class Sum(Kernel):
    """The sum of kernels, k(x, z) = sum_i k_i(x, z), also written ``k1 + k2``."""

    parts: tuple[Kernel, ...]

    def __call__(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        inputs = (X,) if Z is None else (X, Z)
        return self._sum([part(*inputs) for part in self.parts])

    def diag(self, X: Array, /) -> tuple[Array, Pullback]:
        return self._sum([part.diag(X) for part in self.parts])

    def _sum(self, terms: list[tuple[Array, Pullback]]) -> tuple[Array, Pullback]:
        # every part receives the same cotangent
        value = None
        for K, _ in terms:
            value = tree.add(value, K)

        def pullback(bar):
            bars: list[Any] = []
            inputs_bar: Any = None
            for _, pull in terms:
                part_bar, *input_bars = pull(bar)
                bars.append(part_bar)
                inputs_bar = tree.add(inputs_bar, tuple(input_bars))
            return tree.cotangent(self, parts=tuple(bars)), *inputs_bar

        return value, pullback

    @property
    def floats_per_entry(self) -> int:
        return sum(part.floats_per_entry for part in self.parts)

    def from_data(self, X: Array, variance: float, /) -> Self:
        share = variance / len(self.parts)
        return type(self)(tuple(part.from_data(X, share) for part in self.parts))

    def check(self, width: int, /) -> None:
        for part in self.parts:
            part.check(width)
