"""The interface of the posteriors that a `Predictor` evaluates, and the posterior of an approximate process."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

from agp import tree
from agp._deprecated import former_methods
from agp.backend import Array, Pullback, asarray_like, check_array_type
from agp.checks import check_inputs, check_like
from agp.likelihoods import Likelihood
from agp.predictors._further import condition_process, refuse_data
from agp.predictors._mixture import mixture
from agp.processes import MultiOutput, Paths, Process
from agp.random import Draws

Observe = Callable[[Array, Array], tuple[Array, Array]]
"""A function that converts latent means and variances [N, P] to those of observations [N, K]."""
SEED = 0
"""Seed for the random draws of sampled processes."""


@former_methods(given="condition_on")
class Conditional(MultiOutput):
    """A tree of arrays with all quantities of a posterior that do not depend on the test inputs.

    Marginals have shape [S n, P]: the n rows of the first sample, then those of the second, and so on. S is the number
    of samples of a deep process, and 1 for other processes.
    """

    rows_share_work: ClassVar[bool] = False
    """Whether most of the work in `moments` does not depend on the number of rows. If so, chunks should be large."""

    takes_unknown_cells: ClassVar[bool] = False
    """Whether inputs may have unknown cells, which are NaN."""

    observes: ClassVar[bool] = False
    """Whether `observed_moments` differs from the moments of observations of a latent function with `moments`."""

    in_float64: ClassVar[tuple[str, ...]] = ()
    """The names of the leaves that are always in float64."""

    @property
    def mixing(self) -> Array | None:
        """The weights A [P, L] if the outputs are mixtures of L functions, otherwise None."""
        return None

    @abstractmethod
    def mean(self, X: Array, /) -> Array:
        """Compute the means [S n, P] at X [n, D], without the variances."""

    @abstractmethod
    def moments(self, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        """Compute the means and variances [S n, P] at X [n, D], and the pullback ``(mean_bar, var_bar) -> X_bar``."""

    def observed_moments(self, X: Array, observe: Observe, /) -> tuple[Array, Array]:
        """Compute the means and variances [n, K] of observations at X [n, D]."""
        return mixture(observe(*self.moments(X)[0]), X.shape[0])

    @abstractmethod
    def covariance(self, X: Array, /) -> Array:
        """Compute joint covariances [L, n, n] at X [n, D] for the functions that `mixing` combines.

        Raises
        ------
        TypeError
            If the posterior is not a Gaussian process.
        """

    def for_rows(self, X: Array, /) -> "Conditional":  # noqa: ARG002
        """Return the posterior with the random draws for the rows X [n, D]; by default, return it unchanged."""
        return self

    def paths(self, rng: Any, count: int, features: int, /) -> Paths:  # noqa: ARG002
        """Draw sample functions of the posterior with a NumPy generator on the host.

        Raises
        ------
        TypeError
            If the kernel, the inducing variables or the posterior do not support function samples.
        """
        msg = f"{type(self).__name__} does not support sample_functions; use sample at given inputs."
        raise TypeError(msg)

    def condition_on(self, X: Array, y: Array, likelihood: Likelihood, /) -> Self:  # noqa: ARG002
        """Return the posterior given further data X [k, D] and y [k, K], at the same hyperparameters.

        Raises
        ------
        TypeError
            If the posterior cannot be updated without the original data.
        """
        refuse_data(type(self).__name__)


def delegate(part: str, name: str, /) -> Any:
    """Return a property that reads attribute `name` of the attribute `part`."""
    return property(lambda self: getattr(getattr(self, part), name))


@tree.model
class ProcessConditional(Conditional):
    """The posterior of an approximate process.

    Parameters
    ----------
    process
        The approximate posterior process.
    factor
        The factor that ``process.factorise()`` returns.
    """

    process: Process
    factor: Any

    @classmethod
    def of(cls, process: Process, /) -> Self:
        """Update the auxiliary arrays of a process, and return its conditional."""
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


def check_test_inputs(X: Array, width: int, name: str, reference: Array) -> None:
    """Raise TypeError or ValueError unless X [..., N, D] fits the model.

    X must have `width` columns, and the library, dtype and device of the reference.
    """
    check_array_type("X", X)
    if X.ndim > 2 and 0 in X.shape:
        msg = f"X has shape {tuple(X.shape)}, but must have at least one row and one column."
        raise ValueError(msg)
    check_inputs("X", X if X.ndim <= 2 else X[(0,) * (X.ndim - 2)], finite=False)
    check_like("X", X, name, reference)
    if X.shape[-1] != width:
        msg = f"X has {X.shape[-1]} columns, but the model was built for {width}."
        raise ValueError(msg)


def check_outputs(likelihood: Likelihood, y: Array, outputs: int) -> None:
    """Raise ValueError unless targets y [N, K] fit a model with `outputs` latent functions."""
    needed = likelihood.latents(y.shape[1])
    if needed != outputs:
        msg = f"y has {needed} outputs, but the model has {outputs}; build a new model from these targets."
        raise ValueError(msg)
    likelihood.check_outputs(needed)
