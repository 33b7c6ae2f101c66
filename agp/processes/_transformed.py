"""What processes that are made of another one have in common: its parameters are theirs, and all that is uncertain."""

from typing import Any, Self

from agp import tree
from agp.backend import Array, Pullback
from agp.processes._base import Process
from agp.random import Draws, below

__all__ = ["Transformed"]


class Transformed(Process):
    """A process whose values are made of those of another, `process`, without uncertainty of its own."""

    process: Process

    @property
    def reference(self) -> tuple[str, Array]:
        return self.process.reference

    def factorise(self) -> tuple[Any, Pullback]:
        factor, pull = self.process.factorise()
        return factor, lambda factor_bar: tree.cotangent(self, process=pull(factor_bar))

    def kl_divergence(self, factor: Any, /) -> tuple[Array, Pullback]:
        kl, pull = self.process.kl_divergence(factor)

        def pullback(bar):
            process_bar, factor_bar = pull(bar)
            return tree.cotangent(self, process=process_bar), factor_bar

        return kl, pullback

    @property
    def site_paths(self) -> tuple[str, ...]:
        return tuple(f"process.{path}" for path in self.process.site_paths)

    def site_factors(self, factor: Any, /) -> dict[str, Any]:
        return {f"process.{path}": x for path, x in self.process.site_factors(factor).items()}

    def refreshed(self) -> Self:
        process = self.process.refreshed()
        return self if process is self.process else tree.replaced(self, {"process": process})

    def drawn(self, draws: Draws, /) -> Self:
        return tree.replaced(self, {"process": self.process.drawn(below("process", draws))})
