"""The base class for kernels of other inputs, which are functions of the inputs without parameters."""

import dataclasses
from abc import abstractmethod
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback
from agp.kernels._base import Kernel, check_part
from agp.kernels._composites import evaluate
from agp.kernels._jets import Jets
from agp.kernels._linearisation import Linearisation


@tree.model
class OfInputs(Kernel):
    """Base class for kernels k(g(x), g(z)), with another kernel k and a function g."""

    kernel: Kernel
    is_linear: ClassVar[bool] = False
    """Whether g is linear, so that it maps directions as it maps inputs."""

    def __post_init__(self) -> None:
        check_part("kernel", self.kernel)

    takes_groups: ClassVar[bool] = True

    @abstractmethod
    def change_inputs(self, X: Array, /) -> tuple[Array, Pullback]:
        """Return g(X) [..., N, E] for inputs X [..., N, D], and the pullback ``bar -> X_bar``."""

    def __call__(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        x, pull_X = self.change_inputs(X)
        if Z is None:
            return self._after((pull_X,), *evaluate(self.kernel, x, None))
        z, pull_Z = self.change_inputs(Z)
        return self._after((pull_X, pull_Z), *evaluate(self.kernel, x, z))

    def diag(self, X: Array, /) -> tuple[Array, Pullback]:
        x, pull_X = self.change_inputs(X)
        return self._after((pull_X,), *self.kernel.diag(x))

    def _after(self, pulls: tuple[Pullback, ...], K: Array, pull: Pullback) -> tuple[Array, Pullback]:
        def pullback(bar):
            kernel_bar, *bars = pull(bar)
            return tree.cotangent(self, kernel=kernel_bar), *map(pull_unless_zero, pulls, bars)

        return K, pullback

    def linearise(self, X: Array, /) -> Linearisation | None:
        return self._linearise(self.kernel.linearise(self.change_inputs(X)[0]))

    def linearise_groups(self, X: Array, /) -> Linearisation | None:
        return self._linearise(self.kernel.linearise_groups(self.change_inputs(X)[0]))

    def _linearise(self, found: Linearisation | None) -> Linearisation | None:
        if found is None:
            return None
        return Linearisation(
            found.K,
            lambda K_bar: tree.cotangent(self, kernel=found.pull(K_bar)),
            lambda a, W=None: tree.cotangent(self, kernel=found.times(a, W)),
        )

    def stacked_covariance(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        inputs, pulls = zip(*(self.change_inputs(x) for x in ((X,) if Z is None else (X, Z))), strict=True)
        K, pull = self.kernel.stacked_covariance(*inputs)
        return K, lambda bar: tuple(map(pull_unless_zero, pulls, pull(bar)))

    def stacked_variances(self, X: Array, /) -> tuple[Array, Pullback]:
        x, pull_X = self.change_inputs(X)
        variances, pull = self.kernel.stacked_variances(x)
        return variances, lambda bar: pull_unless_zero(pull_X, pull(bar))

    @property
    def has_jets(self) -> bool:
        return self.is_linear

    def jets(self, X: Array, V: Array, Z: Array, W: Array, /) -> tuple[Jets, Pullback]:
        if not self.is_linear:
            return super().jets(X, V, Z, W)
        changed, pulls = zip(*map(self.change_inputs, (X, V, Z, W)), strict=True)
        found, pull = self.kernel.jets(*changed)

        def pullback(bars: Jets) -> tuple[Any, ...]:
            kernel_bar, *row_bars = pull(bars)
            return tree.cotangent(self, kernel=kernel_bar), *map(pull_unless_zero, pulls, row_bars)

        return found, pullback

    @property
    def floats_per_entry(self) -> int:  # type: ignore[override]
        return self.kernel.floats_per_entry

    def scale_by(self, factor: Array | float, /) -> Self:
        return dataclasses.replace(self, kernel=self.kernel.scale_by(factor))


def pull_unless_zero(pull: Pullback, bar: Array | None, /) -> Array | None:
    """Apply a pullback to a cotangent, for which None stands for zero."""
    return None if bar is None else pull(bar)
