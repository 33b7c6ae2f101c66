"""Posteriors that a `Predictor` evaluates at test inputs: the interface, and that of approximate processes."""

from abc import abstractmethod
from typing import Any, ClassVar, Self

from agp import tree
from agp._deprecated import former_methods
from agp.backend import Array, Pullback, asarray_like
from agp.likelihoods import Likelihood
from agp.predictors._further import condition_process, refuse_data
from agp.processes import MultiOutput, Paths, Process
from agp.random import Draws

__all__ = ["Conditional", "ProcessConditional", "delegate"]

SEED = 0
"""Of the draws of sampled processes."""


@former_methods(given="condition_on")
class Conditional(MultiOutput):
    """All of a posterior that does not depend on test inputs, as a tree of arrays.

    Marginals of a sampled process are [S n, P], sample after sample; S = 1 for other processes.
    """

    rows_share_work: ClassVar[bool] = False
    """Whether most of the work of `moments` does not depend on the number of rows, so that chunks should be large."""

    in_float64: ClassVar[tuple[str, ...]] = ()
    """Leaves that are always in float64."""

    @property
    def mixing(self) -> Array | None:
        """A [P, L] if the outputs are mixtures of L functions, else None."""
        return None

    @abstractmethod
    def mean(self, X: Array, /) -> Array:
        """The means [S n, P] at X [n, D], at the cost of the means alone."""

    @abstractmethod
    def moments(self, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        """The means and variances [S n, P] at X [n, D], and ``(mean_bar, var_bar) -> X_bar``."""

    @abstractmethod
    def covariance(self, X: Array, /) -> Array:
        """The joint covariances [L, n, n] of the functions that `mixing` mixes, at X [n, D].

        Raises
        ------
        TypeError
            If the posterior is not a Gaussian process.
        """

    def for_rows(self, X: Array, /) -> "Conditional":  # noqa: ARG002
        """The posterior with the draws of a chunk X [n, D], if each row has its own; by default itself."""
        return self

    def paths(self, rng: Any, count: int, features: int, /) -> Paths:  # noqa: ARG002
        """Samples of the posterior as functions, drawn from a NumPy generator on the host.

        Raises
        ------
        TypeError
            If a kernel, a place of inducing variables or a posterior does not offer them.
        """
        msg = f"{type(self).__name__} has no samples of functions; use sample at given inputs."
        raise TypeError(msg)

    def condition_on(self, X: Array, y: Array, likelihood: Likelihood, /) -> Self:  # noqa: ARG002
        """The posterior after further data X [k, D] and y [k, K], at the same hyperparameters.

        Raises
        ------
        TypeError
            If that needs all data.
        """
        refuse_data(type(self).__name__)


def delegate(part: str, name: str, /) -> Any:
    """A property that is that of a part."""
    return property(lambda self: getattr(getattr(self, part), name))


@tree.model
class ProcessConditional(Conditional):
    """The posterior of an approximate process.

    Parameters
    ----------
    process
        The approximate posterior process.
    factor
        The result of its `factorise`.
    """

    process: Process
    factor: Any

    @classmethod
    def of(cls, process: Process, /) -> Self:
        """The conditional of a process; its auxiliary arrays are updated first."""
        process = process.recompute_factors()
        return cls(process, process.factorise()[0])

    outputs = delegate("process", "outputs")  # type: ignore[override]
    width = delegate("process", "width")  # type: ignore[override]
    reference = delegate("process", "reference")  # type: ignore[override]
    floats_per_row = delegate("process", "floats_per_row")  # type: ignore[override]
    mixing = delegate("process", "mixing")  # type: ignore[override]

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
        beside = Draws(*({name: asarray_like(x, X) for name, x in part.items()} for part in draws))
        return ProcessConditional(self.process.with_draws(beside), self.factor)

    def paths(self, rng: Any, count: int, features: int, /) -> Paths:
        return self.process.paths(self.factor, rng, count, features)

    def condition_on(self, X: Array, y: Array, likelihood: Likelihood, /) -> "ProcessConditional":
        return ProcessConditional.of(condition_process(self.process, self.factor, X, y, likelihood))
