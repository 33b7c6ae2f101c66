"""Kernels made of kernels."""

from typing import Any, Self

from agp import tree
from agp.backend import Array, Pullback
from agp.kernels._base import Kernel

__all__ = ["Sum"]


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

    def from_data(self, X: Array, variance: float, /) -> Self:
        share = variance / len(self.parts)
        return type(self)(tuple(part.from_data(X, share) for part in self.parts))

    def check(self, width: int, /) -> None:
        for part in self.parts:
            part.check(width)
