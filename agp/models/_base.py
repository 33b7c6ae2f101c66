"""The base class of models: the bound, predictions, and what other rooms ask of a model."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

from agp._context import public
from agp.adjoint import carrying_adjoint
from agp.backend import Array, Pullback, backend_of, like
from agp.batch import Batch
from agp.checks import check_inputs, check_parameters, check_targets, check_whole
from agp.gradient import GradientMode, check_mode
from agp.likelihoods import Likelihood, Prediction
from agp.markup import guarded
from agp.models._growth import grown
from agp.predictors import FREQUENCIES, Conditional, FunctionSamples, Predictor, check_test_inputs
from agp.priors import Priors
from agp.random import Draws, under
from agp.repairs import outside
from agp.speculation import speculate
from agp.summaries import summary_html

__all__ = ["Model", "WithoutInducing", "WithoutPosterior", "level_probabilities"]

FORMER: dict[str, tuple[Callable[[Any], Any], str]] = {
    "batch": (lambda model: model._batch, "agp.batch.Batch(X, y), or model.bound(X, y)"),
    "draws": (lambda model: model._draws, "agp.train, which draws"),
    "grown": (lambda model: partial(grown, model), "agp.models.grown(model, Z)"),
    "objective": (lambda model: model._objective, 'model.bound(X, y, gradient="autodiff")'),
    "without_rows": (lambda model: model._without_rows, "model.predictor()"),
}
"""Public names of version 0.2, and what to write instead; they still work, with a warning."""


class Model(ABC):
    """A model of y given X: its bound, and predictions. `agp.fit` and `agp.train` train it.

    Public names are for users: leaves and parts, the bound and predictions, and what one method alone has. Methods with
    one leading underscore are the protocol between models and the rooms that train, save and compare them: classes of
    models override them, users do not call them. `_objective` (the bound of a batch), `_conditional` (the posterior
    that predictors use), `_reference` (an array that inputs must be like) and `outputs` are abstract; the others have
    defaults.

    A model of one process has `kernel`, `inducing`, `posterior` and `mean_function`: as fields, from its process, or
    None where there is no such part.
    """

    likelihood: Likelihood
    priors: Priors = ()
    """Pairs of a pattern of leaf names and a prior."""
    stochastic: ClassVar[bool]
    """Whether the bound of a minibatch is an unbiased estimate of the bound of all data."""
    _row_weights: Array | None = None
    """How many observations each row [N] counts as, in a model that holds its data; None for one each."""
    _built_by: ClassVar[str] = "{name}.from_data(X, y) builds one"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if isinstance(build := vars(cls).get("from_data"), classmethod):  # each class has a signature of its own
            wrapped = classmethod(public(build.__func__, repairs=False))
            type.__setattr__(cls, "from_data", wrapped)

    def _repr_html_(self) -> str:
        return guarded(lambda: summary_html(self), self)

    @property
    @abstractmethod
    def outputs(self) -> int:
        """The number of latent functions P."""

    @public(ignore="underflow")
    def bound(
        self,
        X: Array,
        y: Array,
        /,
        *,
        scale: float = 1.0,
        gradient: GradientMode = "closed-form",
        memory: float | None = None,
    ) -> tuple[Array, Pullback]:
        """The objective to maximise, a total over the N data.

        Parameters
        ----------
        X, y
            Inputs [B, D] and targets [B] or [B, K]; all data, or a minibatch if the model is `stochastic`. The
            likelihood says which K columns y has; by default one for each of the P latent functions.
        scale
            N / B.
        gradient
            Where torch or JAX differentiates the value: "closed-form" registers the pullback, which has no second
            derivatives; "autodiff" differentiates the forward code, which has them.
        memory
            Budget for working arrays, in MiB: where the bound is a sum over the rows, more rows than fit are taken in
            blocks. None is 256 on the host, and on a device an eighth of its memory, rounded down to a power of two.

        Returns
        -------
        bound
            0-d.
        pullback
            ``bar=1.0 -> (model_bar, X_bar)``; X_bar is None where rows were taken in blocks.

        Inside a program that torch or JAX differentiates, ignore the pullback: leaves (and X) that ask for gradients
        get them from the same closed form.
        """
        batch = self._batch(X, y, scale=scale)
        check_mode(X, gradient)
        if gradient == "autodiff":
            value, pullback = self._objective(batch, memory=memory)
        else:
            value, pullback = carrying_adjoint(lambda model, x: model._objective(x, memory=memory), self, batch)
        return value, public(pullback, repairs=False, context=False, ignore="underflow")

    # -- predictions ------------------------------------------------------------------------------------------------

    @public
    def predictor(self, *, memory: float | None = None) -> Predictor:
        """The posterior of the model as it is, computed once: it predicts at the cost of the test inputs alone.

        The model's own predictions are those of its predictor, to the bit; use the predictor for several of them.

        Parameters
        ----------
        memory
            Budget for working arrays, in MiB, where the posterior takes a pass over the data; None as in `bound`.
        """
        conditional, _ = speculate(lambda: self._conditional(memory=memory), self._reference()[1])
        return Predictor((conditional,), self.likelihood)

    def _predictor_at(self, X: Array, memory: float | None = None) -> Predictor:
        """The predictor; X is checked first."""
        check_test_inputs(X, self._width, *self._reference())
        self._check_parts()
        return self.predictor(memory=memory)

    @public
    def predict(self, X: Array, /, *, observed: bool = False, memory: float | None = None) -> Prediction:
        """Means and variances [..., N, P] at X [..., N, D], as `Predictor.predict`."""
        return self._predictor_at(X, memory).predict(X, observed=observed, memory=memory)

    @public
    def predict_mean(self, X: Array, /, *, memory: float | None = None) -> Array:
        """The means [..., N, P] alone, as `Predictor.predict_mean`."""
        return self._predictor_at(X, memory).predict_mean(X, memory=memory)

    @public
    def gradient(self, X: Array, /, *, memory: float | None = None) -> Prediction:
        """The derivatives [..., N, P, D] of means and variances in X, as `Predictor.gradient`."""
        return self._predictor_at(X, memory).gradient(X, memory=memory)

    @public
    def quantile(self, X: Array, q: float | Sequence[float], /, *, memory: float | None = None) -> Array:
        """Quantiles [..., N, K] of observations, or [Q, ..., N, K], as `Predictor.quantile`."""
        return self._predictor_at(X, memory).quantile(X, q, memory=memory)

    @public
    def interval(self, X: Array, level: float = 0.9, /, *, memory: float | None = None) -> tuple[Array, Array]:
        """The ends [..., N, K] of intervals that hold an observation with probability `level`."""
        return self._predictor_at(X, memory).interval(X, level, memory=memory)

    @public
    def predict_covariance(self, X: Array, /, *, cross_outputs: bool = False) -> Array:
        """Joint covariances [..., P, N, N], as `Predictor.predict_covariance`."""
        return self._predictor_at(X).predict_covariance(X, cross_outputs=cross_outputs)

    @public
    def sample(self, X: Array, count: int = 1, /, *, seed: int = 0) -> Array:
        """Joint samples [..., S, N, P] of the latent functions at X, as `Predictor.sample`."""
        count = check_whole("count", count)
        return self._predictor_at(X).sample(X, count, seed=seed)

    @public
    def sample_functions(self, count: int = 1, /, *, seed: int = 0, features: int = FREQUENCIES) -> FunctionSamples:
        """Samples of the latent functions as functions, as `Predictor.sample_functions`."""
        return self.predictor().sample_functions(count, seed=seed, features=features)

    @public
    def log_density(self, X: Array, y: Array, /, *, memory: float | None = None) -> Array:
        """log p(y_n | x_n, data) [N] of each row, as `Predictor.log_density`."""
        return self._predictor_at(X, memory).log_density(X, y, memory=memory)

    @public
    def mean_log_density(self, X: Array, y: Array, /, *, memory: float | None = None) -> Array:
        """The same, averaged over the samples of a deep process, as `Predictor.mean_log_density`."""
        return self._predictor_at(X, memory).mean_log_density(X, y, memory=memory)

    # -- protocol: what fits the model ------------------------------------------------------------------------------

    @abstractmethod
    def _reference(self) -> tuple[str, Array]:
        """The name and value of an array [., D] that inputs must be like."""

    @property
    def _width(self) -> int:
        """The number of columns D of the inputs."""
        return self._reference()[1].shape[1]

    def _batch(self, X: Array, y: Array, /, *, scale: float = 1.0) -> Batch:
        """Data that fit the model as a batch; shapes and dtypes are checked, values are not.

        TypeError or ValueError if X [B, D] or y [B] or [B, K] have other shapes, dtypes or libraries than the model.
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

    # -- protocol: training -----------------------------------------------------------------------------------------

    @abstractmethod
    def _objective(self, batch: Batch, /, *, memory: float | None = None) -> tuple[Array, Pullback]:
        """`bound` of a batch that is known to fit the model."""

    def _draws(self, rng: Any, rows: int, /) -> Draws:
        """The noise that a step on so many rows needs, drawn by a NumPy generator or an `agp.random.Noise`."""
        return under("likelihood", Draws(self.likelihood.draws(rng, rows, self.outputs), {}))

    @property
    def _site_paths(self) -> tuple[str, ...]:
        """The paths of the nodes that `_site_gradients` may have entries for."""
        return ()

    def _site_gradients(self, batch: Batch, /, *, memory: float | None = None) -> dict[str, Any]:
        """What site steps and natural gradients need of a batch, by the path of the node that takes the step.

        One pass over the rows, in blocks that fit `memory` MiB. Empty by default.
        """
        return {}

    def _settled(self) -> Self:
        """The model in the state that a step of its sites needs; by default itself."""
        return self

    # -- protocol: prediction and files -----------------------------------------------------------------------------

    @abstractmethod
    def _conditional(self, *, memory: float | None = None) -> Conditional:
        """The posterior at the current leaves, with all that does not depend on test inputs computed; no checks.

        A pass over the data, where one is needed, is in blocks that fit `memory` MiB.
        """

    def _without_rows(self) -> Any:
        """A model with the same predictions that holds no data, where there is one; by default itself."""
        return self

    def _on_first_datum(self) -> Self:
        """The model on the first of the data that it holds, for a cheap trial; by default itself.

        TypeError or ValueError if the shapes of data, sites or actions do not fit each other.
        """
        return self

    # -- protocol: comparison of methods ----------------------------------------------------------------------------

    def _inverted_matrices(self) -> tuple[Array, ...]:
        """The matrices [..., M, M] that the bound inverts, or others with condition numbers no lower.

        They tell how much rounding the results may show.
        """
        return ()

    def _evidence_interval(self, X: Array, y: Array, /) -> tuple[Array, Array] | None:
        """Bounds, 0-d, on the log evidence of the exact GP at these parameters; None where the method has none.

        Arguments as `bound`.
        """
        return None

    def _tightened(self) -> Self:
        """The model whose iterative solves end near the working precision of float64; by default itself."""
        return self

    # -- former names -----------------------------------------------------------------------------------------------

    def _absent(self, name: str) -> str:
        """The message for a missing attribute."""
        return f"{type(self).__name__!r} object has no attribute {name!r}"

    if not TYPE_CHECKING:  # former names are not listed

        def __getattr__(self, name: str) -> Any:
            if name not in FORMER:
                raise AttributeError(self._absent(name), name=name, obj=self)
            found, instead = FORMER[name]
            msg = f"model.{name} is no longer public; write {instead}."
            warnings.warn(msg, DeprecationWarning, stacklevel=outside())
            return found(self)


class WithoutInducing:
    """A model without inducing variables."""

    inducing: ClassVar[None] = None
    """None: it has no inducing variables."""


class WithoutPosterior:
    """A model whose q follows from the data, or from their sites."""

    posterior: ClassVar[None] = None
    """None: the posterior follows from the data, or from their sites; ``model.predictor()`` has it."""


def level_probabilities(model: Any, X: Array, /) -> Array:
    """The probabilities [N, K] of the classes 0 to K - 1 at X [N, D], by a model or predictor with `Ordinal`.

    Takes a pass over X for each class; errors as `Predictor.log_density`.
    """
    xp = backend_of(X).xp
    levels = [xp.full((X.shape[0], 1), float(k), **like(X)) for k in range(model.likelihood.classes)]
    return xp.exp(xp.stack([model.log_density(X, level) for level in levels], axis=1))
