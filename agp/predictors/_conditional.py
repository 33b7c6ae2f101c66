"""A Gaussian process given data, whatever the method: what a `Predictor` asks at test inputs."""

from abc import abstractmethod
from typing import Any, ClassVar, Self

from agp.backend import Array, Pullback
from agp.likelihoods import Likelihood
from agp.predictors._further import refuse_data
from agp.processes import MultiOutput, Paths

__all__ = ["Conditional"]


class Conditional(MultiOutput):
    """All of a posterior that does not depend on test inputs, as a tree of arrays.

    The marginals of a process that is sampled stand sample after sample, [S n, P]; S = 1 for most.
    """

    rows_share_work: ClassVar[bool] = False
    """Whether most of the work of `moments` does not depend on the number of rows, so that they come all at once."""

    in_float64: ClassVar[tuple[str, ...]] = ()
    """Leaves that are more precise than the inputs may be."""

    @property
    def mixing(self) -> Array | None:
        """A [P, L], where the outputs are mixtures of L functions; None where they are these functions."""
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
            If the posterior is no Gaussian process.
        """

    def for_rows(self, X: Array, /) -> "Conditional":  # noqa: ARG002
        """The same for a chunk X [n, D], where each row has draws of its own; usually itself."""
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

    def given(self, X: Array, y: Array, likelihood: Likelihood, /) -> Self:  # noqa: ARG002
        """The posterior after further data X [k, D] and y [k, K], at the same hyperparameters.

        Raises
        ------
        TypeError
            If it cannot be found without all data.
        """
        refuse_data(type(self).__name__)
