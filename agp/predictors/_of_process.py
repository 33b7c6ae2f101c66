"""The posterior of an approximate process, its factor computed."""

from typing import Any, Self

from agp import tree
from agp.backend import Array, Pullback, placed
from agp.likelihoods import Likelihood
from agp.predictors._conditional import Conditional
from agp.predictors._further import process_given
from agp.processes import Paths, Process
from agp.random import Draws

__all__ = ["ProcessConditional"]

SEED = 0
"""Of the draws of sampled processes."""


@tree.model
class ProcessConditional(Conditional):
    """A process, and what depends on its parameters alone.

    Parameters
    ----------
    process
        The approximate posterior process.
    factor
        What its `factorise` gives.
    """

    process: Process
    factor: Any

    @classmethod
    def of(cls, process: Process, /) -> Self:
        """The conditional of a process, whose auxiliary arrays are brought up to date first."""
        process = process.refreshed()
        return cls(process, process.factorise()[0])

    @property
    def outputs(self) -> int:
        return self.process.outputs

    @property
    def width(self) -> int:
        return self.process.width

    @property
    def reference(self) -> tuple[str, Array]:
        return self.process.reference

    @property
    def floats_per_row(self) -> int:
        return self.process.floats_per_row

    @property
    def mixing(self) -> Array | None:
        return self.process.mixing

    def mean(self, X: Array, /) -> Array:
        return self.process.project_mean(self.factor, X)

    def moments(self, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        moments, pull = self.process.project(self.factor, X)
        return moments, lambda mu_bar, var_bar: pull(mu_bar, var_bar)[-1]

    def covariance(self, X: Array, /) -> Array:
        return self.process.joint(self.factor, X)

    def for_rows(self, X: Array, /) -> "ProcessConditional":
        draws = self.process.common_draws(SEED, X.shape[0])
        if not draws.by_row:
            return self
        beside = Draws(*({name: placed(x, X) for name, x in part.items()} for part in draws))
        return ProcessConditional(self.process.drawn(beside), self.factor)

    def paths(self, rng: Any, count: int, features: int, /) -> Paths:
        return self.process.paths(self.factor, rng, count, features)

    def given(self, X: Array, y: Array, likelihood: Likelihood, /) -> "ProcessConditional":
        return ProcessConditional.of(process_given(self.process, self.factor, X, y, likelihood))
