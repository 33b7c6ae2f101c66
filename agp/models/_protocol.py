"""What the other rooms ask of a model: names with one underscore, which classes of models override."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

from agp.backend import Array, Pullback, backend_of
from agp.batch import Batch
from agp.checks import check_inputs, check_parameters, check_targets
from agp.likelihoods import Likelihood
from agp.predictors import Conditional, check_test_inputs
from agp.priors import Priors
from agp.random import Draws, under

__all__ = ["ModelProtocol"]


class ModelProtocol(ABC):
    """The parts that every model has, and the protocol between models and the rooms that train, save and compare them.

    `_objective`, `_conditional`, `_reference` and `outputs` make a model; the others have usual answers.
    """

    priors: Priors = ()
    """Pairs of a pattern of leaf names and a prior."""
    stochastic: ClassVar[bool]
    """Whether the bound of a minibatch estimates the bound of all data without bias."""
    likelihood: Likelihood
    _row_weights: Array | None = None
    """How many observations each row [N] counts as, in a model that holds its data; None for one each."""
    _built_by: ClassVar[str] = "{name}.from_data(X, y) builds one"

    @property
    @abstractmethod
    def outputs(self) -> int:
        """The number of latent functions P."""

    # -- what fits the model ----------------------------------------------------------------------------------------

    @abstractmethod
    def _reference(self) -> tuple[str, Array]:
        """The name and value of an array [., D] that inputs must be like."""

    @property
    def _width(self) -> int:
        """The number of columns D of the inputs."""
        return self._reference()[1].shape[1]

    def _batch(self, X: Array, y: Array, /, *, scale: float = 1.0) -> Batch:
        """Data that fit the model as a batch; shapes and dtypes are checked, values are not.

        Raises
        ------
        TypeError, ValueError
            If X [B, D] or y [B] or [B, K] have other shapes, dtypes or libraries than the model.
        """
        check_inputs("X", X, finite=False)
        check_test_inputs(X, self._width, *self._reference())
        self._check_parts()
        y = check_targets(X, y, finite=False)
        self._check_outputs(y)
        if not self.stochastic and scale != 1.0:
            msg = f"the bound of {type(self).__name__} needs all data at once, but scale is {scale!r}."
            raise ValueError(msg)
        return Batch(X, y, scale)

    def _check(self, X: Array, y: Array, /) -> None:
        """Raise unless the model can be trained on valid data X [N, D], y [N, K]."""
        name, reference = self._reference()
        check_parameters(self, name, reference)
        self._batch(X, y)
        self.likelihood.check_targets(y)

    def _check_parts(self) -> None:  # noqa: B027 - most models are made of parts that always fit
        """Raise ValueError unless the parts fit each other."""

    def _check_outputs(self, y: Array) -> None:
        needed = self.likelihood.latents(y.shape[1])
        if needed != self.outputs:
            msg = f"y has {needed} outputs, the model has {self.outputs}; build the model for such targets."
            raise ValueError(msg)
        self.likelihood.check_outputs(needed)

    def _count(self, y: Array, /) -> float:
        """How many observations targets y [N, K] are: N, or the sum of their weights."""
        weights = self.likelihood.row_weights(y) if self._row_weights is None else self._row_weights
        return (0.0 if weights is None else float(backend_of(weights).xp.sum(weights))) or y.shape[0]

    # -- training ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def _objective(self, batch: Batch, /, *, memory: float | None = None) -> tuple[Array, Pullback]:
        """`bound` of a batch that is known to fit the model."""

    def _draws(self, rng: Any, rows: int, /) -> Draws:
        """The noise that a step on so many rows needs, drawn by a NumPy generator or an `agp.random.Noise`."""
        return under("likelihood", Draws(self.likelihood.draws(rng, rows, self.outputs), {}))

    @property
    def _site_paths(self) -> tuple[str, ...]:
        """The paths of the nodes that `_site_gradients` may speak of."""
        return ()

    def _site_gradients(self, batch: Batch, /, *, memory: float | None = None) -> dict[str, Any]:
        """What steps of sites and natural gradients need of a batch, by the path of the node that takes the step.

        Usually nothing. One pass over the rows, in blocks that fit `memory` MiB.
        """
        return {}

    def _settled(self) -> Self:
        """The model in the state that a step of its sites needs; usually itself."""
        return self

    # -- prediction and files ---------------------------------------------------------------------------------------

    @abstractmethod
    def _conditional(self, *, memory: float | None = None) -> Conditional:
        """The posterior at the current leaves, with all that does not depend on test inputs computed; no checks.

        Where that takes a pass over the data, it does so in blocks that fit `memory` MiB.
        """

    def _without_rows(self) -> Any:
        """A model with the same predictions that holds no rows of data, where there is one; usually itself."""
        return self

    def _on_first_datum(self) -> Self:
        """The model on the first of the data that it holds, to be tried at the cost of one; usually itself.

        Raises
        ------
        TypeError, ValueError
            If data, sites or actions do not have the shapes that fit each other.
        """
        return self

    # -- what a comparison of methods asks --------------------------------------------------------------------------

    def _inverted_matrices(self) -> tuple[Array, ...]:
        """The matrices [..., M, M] whose inverses the bound needs, or others whose condition numbers are no lower: they
        tell how much rounding the results may show.
        """
        return ()

    def _evidence_interval(self, X: Array, y: Array, /) -> tuple[Array, Array] | None:
        """Two numbers, 0-d, between which the log evidence of the exact GP at these parameters lies; arguments as
        `bound`. None where the method does not tell.
        """
        return None

    def _tightened(self) -> Self:
        """The model whose iterative solves end near the working precision of float64; usually itself."""
        return self
