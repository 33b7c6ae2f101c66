"""The base class of models, with the bound, the predictions, and the interface that other subpackages use."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar

from agp import tree
from agp.backend import Array, Pullback, check_array_type, find_backend
from agp.bounds import Batch, raise_noise
from agp.checks import (
    check_inputs,
    check_instance,
    check_outputs,
    check_targets,
    check_test_inputs,
    known_of_rows,
)
from agp.gradient import GradientMode, bound_of_batch
from agp.kernels import Kernel
from agp.likelihoods import Likelihood
from agp.models._constructor import complete_constructor, takes_shared_arguments
from agp.models._stale import warn_about_stale
from agp.predictors import FREQUENCIES, FunctionSamples, Predictor
from agp.priors import Priors
from agp.processes import Process, SparsePrior
from agp.random import Draws, prefix_draws
from agp.repairs import public, speculate
from agp.summaries import html_with_fallback, summary_html

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def by_predictor(
    method: Callable[Concatenate[Predictor, Array, Arguments], Result], /
) -> Callable[Concatenate["Model", Array, Arguments], Result]:
    """Return the method of models that checks X, builds a predictor, and calls this method of it."""

    @public
    @wraps(method)
    def call(self: "Model", X: Array, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return method(self._predictor_at(X, kwargs.get("memory")), X, *args, **kwargs)  # type: ignore[arg-type]

    summary = (method.__doc__ or "").partition("\n")[0]
    call.__doc__ = f"{summary}\n\nThe arguments and errors are those of `Predictor.{method.__name__}`."
    return call


class Model(ABC):
    """A model of y given X, with a bound and predictions. `agp.fit` and `agp.train` train it.

    The public attributes and methods give access to the leaves, the parts, the bound and the predictions. Some model
    classes have further public methods.

    Methods with one leading underscore form the protocol between models and the subpackages that train, save and
    compare them. Model classes override these methods; users do not call them. `_objective` (the bound of a batch),
    `_posterior_process` (the process for predictors), `_reference` (an array with the library, dtype and device of
    valid inputs) and `outputs` are abstract. All other methods have defaults.

    A model with one process has the attributes `kernel`, `inducing`, `posterior` and `mean_function`. These attributes
    are fields of the model, or parts of its process. An attribute is None if the model has no such part.
    """

    likelihood: Likelihood
    priors: Priors = ()
    """Pairs of a leaf-name pattern and a prior."""
    stochastic: ClassVar[bool]
    """Whether the bound computed from a minibatch is an unbiased estimate of the full-data bound."""
    _holds_data: ClassVar[bool] = False
    """Whether predictions use inputs of the training data, which the model stores."""
    _searches_rows: ClassVar[bool] = False
    """Whether predictions search for near rows, so that a predictor is worth keeping."""
    _built_by: ClassVar[str] = "{name}.from_data(X, y) builds one"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, build in [*vars(cls).items()]:
            if isinstance(build, classmethod) and (name == "from_data" or takes_shared_arguments(build.__func__)):
                wrapped = classmethod(public(complete_constructor(build.__func__), repairs=False))
                type.__setattr__(cls, name, wrapped)

    def __post_init__(self) -> None:
        """Check the parts, and convert leaves that are numbers or lists to arrays like the arrays among the leaves."""
        for name, kind in (("kernel", Kernel), ("likelihood", Likelihood)):
            if name in vars(self):
                check_instance(name, vars(self)[name], kind)
        leaves = tree.leaves(self)
        if not any(type(x) in (float, int, list, tuple) for x in leaves.values()):
            return
        arrays = [x for x in leaves.values() if find_backend(x) is not None]
        if not arrays:
            check_array_type(*(("X", leaves["X"]) if "X" in leaves else next(iter(leaves.items()))))
        for name, value in vars(tree.place_leaves(self, arrays[0])).items():
            object.__setattr__(self, name, value)

    def _repr_html_(self) -> str:
        return html_with_fallback(lambda: summary_html(self), self)

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
        weights: Array | None = None,
        offset: Array | None = None,
        noise: Array | None = None,
        gradient: GradientMode = "closed-form",
        memory: float | None = None,
    ) -> tuple[Array, Pullback]:
        """Compute the training objective, a sum over the N rows of the data. Training maximises it.

        Parameters
        ----------
        X, y
            Inputs [B, D] and targets [B] or [B, K]: all data, or a minibatch if the model is `stochastic`. The
            likelihood defines the K columns of y, by default one for each of the P latent functions.
        scale
            The factor N / B, which multiplies the likelihood terms of a minibatch.
        weights, offset, noise
            What is known of each row: weights [B], the number of observations that it represents; an offset [B] or
            [B, P], which is added to the latent functions; and noise variances [B] or [B, P], which are added to the
            trained noise variance of a Gaussian likelihood. By default, models that hold their data use what was given
            to `from_data`.
        gradient
            How torch or JAX differentiates the bound. "closed-form" uses the pullback and supports only first
            derivatives. "autodiff" differentiates the forward code and also supports second derivatives.
        memory
            Memory budget for working arrays, in MiB. If the bound is a sum over rows, it is computed in blocks of rows
            that fit within this budget. None means 256 MiB on the host and, on a device, an eighth of its memory,
            rounded down to a power of two.

        Returns
        -------
        bound
            The bound, a scalar array.
        pullback
            The function ``bar=1.0 -> (model_bar, X_bar)``. X_bar is None if rows were processed in blocks.

        If torch or JAX differentiates your program, ignore the pullback, because these libraries call it themselves
        (unless `gradient` is "autodiff").

        Raises
        ------
        TypeError, ValueError
            If X and y do not fit the model, or a target is not finite or outside the support of the likelihood, such as
            a label that is no class. The host reads one or two numbers from the device to find such targets. Inside a
            traced function, such as one of `jax.jit`, it cannot, and the bound and its gradient are NaN instead.

        Warns
        -----
        agp.errors.UntouchedWarning
            If torch differentiates the bound with respect to parameters, and the model has inverse factors or
            sites that depend on them, which only agp's updates change.
        """
        warn_about_stale(self)
        batch = self._batch(X, y, scale=scale, weights=weights, offset=offset, noise=noise)
        value, pullback = bound_of_batch(self, batch, gradient, memory=memory)
        return value, public(pullback, repairs=False, context=False, ignore="underflow")

    # -- predictions ------------------------------------------------------------------------------------------------

    @public
    def predictor(self, *, memory: float | None = None) -> Predictor:
        """Build a predictor, which stores all quantities that do not depend on the test inputs.

        Use a predictor for repeated predictions. Its predictions are exactly those of the model.

        Parameters
        ----------
        memory
            Memory budget for working arrays, in MiB. It is used only if computing the posterior requires a pass over
            the data. The default is that of `bound`.
        """

        def factorised() -> tuple[Process, Any]:
            process = self._posterior_process(memory=memory).recompute_factors()
            return process, process.prepare_means(process.factorise()[0])

        (process, factor), _ = speculate(factorised, self._reference()[1])
        return Predictor((process,), (factor,), self._observed_likelihood)

    @property
    def _observed_likelihood(self) -> Likelihood:
        """Return the likelihood of predicted observations, by default `likelihood`."""
        return self.likelihood

    def _predictor_at(self, X: Array, memory: float | None = None) -> Predictor:
        """Check X, and return the predictor."""
        check_test_inputs(X, self._width, *self._reference())
        self._check_parts()
        return self.predictor(memory=memory)

    predict = by_predictor(Predictor.predict)
    predict_mean = by_predictor(Predictor.predict_mean)
    gradient = by_predictor(Predictor.gradient)
    quantile = by_predictor(Predictor.quantile)
    interval = by_predictor(Predictor.interval)
    predict_covariance = by_predictor(Predictor.predict_covariance)
    sample = by_predictor(Predictor.sample)
    log_density = by_predictor(Predictor.log_density)
    mean_log_density = by_predictor(Predictor.mean_log_density)

    @public
    def sample_functions(self, count: int = 1, /, *, seed: int = 0, features: int = FREQUENCIES) -> FunctionSamples:
        """Draw function samples that can be evaluated at any inputs; see `Predictor.sample_functions`."""
        return self.predictor().sample_functions(count, seed=seed, features=features)

    # -- protocol: data of the model ---------------------------------------------------------------------------------

    @abstractmethod
    def _reference(self) -> tuple[str, Array]:
        """Return the name and value of an array [., D] with the library, dtype and device that inputs must have."""

    @property
    def _width(self) -> int:
        """Return the number of columns D of the inputs."""
        return self._reference()[1].shape[1]

    def _batch(
        self,
        X: Array,
        y: Array,
        /,
        *,
        scale: float = 1.0,
        weights: Array | None = None,
        offset: Array | None = None,
        noise: Array | None = None,
    ) -> Batch:
        """Check the shapes and dtypes of the data, but not the values of X and y, and return a batch.

        Raises TypeError or ValueError if the shape, dtype or library of X [B, D] and y [B] or [B, K], or what is known
        of the rows, does not fit the model.
        """
        name, reference = self._reference()
        check_inputs("X", X, reference, finite=False)
        check_test_inputs(X, self._width, name, reference)
        self._check_parts()
        y = check_targets(X, y, finite=False)
        check_outputs(self.likelihood, y, self.outputs)
        if not self.stochastic and scale != 1.0:
            raise ValueError(
                f"the bound of {type(self).__name__} needs all data at once, but scale is {scale!r}; omit scale=."
            )
        if noise is not None:
            self.likelihood.check_takes_noise()
        known = known_of_rows(X, self.outputs, weights, offset, noise)
        self.likelihood.check_offset(known["offset"])
        if known["noise"] is not None:
            known["noise"] = raise_noise(self.likelihood, known["noise"], self)
        return Batch(X, y, scale, **known)

    def _check(self, batch: Batch, /) -> None:
        """Raise an error if the data, all rows in one batch, or the model's parameters are not valid for training."""
        self._check_same_data(batch)
        self.likelihood.check_targets(batch.y)
        self.likelihood.check_noise(batch.noise)

    def _check_same_data(self, batch: Batch, /) -> None:  # noqa: B027 - most models store no data
        """Raise ValueError if the model predicts from stored data that differ from those of a batch."""

    def _check_parts(self) -> None:  # noqa: B027 - most models have parts that always fit
        """Raise ValueError unless the parts are compatible with each other."""

    def _replace_data(self, batch: Batch, /) -> Self:
        """Return the model with the rows of a checked batch as its only data.

        Raises ValueError if the model has no data, or if its other arrays belong to the rows with which it was built.
        """
        name = type(self).__name__
        why = "it has an array for each row with which it was built" if self._holds_data else "it stores no data"
        raise ValueError(f"the data of {name} cannot be replaced, because {why}; use GPR or SGPR.")

    # -- protocol: training -----------------------------------------------------------------------------------------

    @abstractmethod
    def _objective(self, batch: Batch, /, *, memory: float | None = None) -> tuple[Array, Pullback]:
        """Compute `bound` for a batch, without checks."""

    def _expand(self, _batch: Batch, _scales: Mapping[str, Array], /) -> Any:
        """Return the bound of a batch to second order, as `agp.bounds.Expansion`, or None by default."""
        return None

    def _draws(self, rng: Any, rows: int, /) -> Draws:
        """Draw the noise for a training step on `rows` rows, with a NumPy generator or an `agp.random.Noise`."""
        return prefix_draws("likelihood", Draws(self.likelihood.draws(rng, rows, self.outputs), {}))

    @property
    def _site_paths(self) -> tuple[str, ...]:
        """Return the paths of the nodes for which `_site_gradients` may return gradients."""
        return ()

    def _site_gradients(self, batch: Batch, /, *, memory: float | None = None) -> dict[str, Any]:
        """Compute the gradients for site steps and natural gradients.

        The keys of the result are the paths of the nodes that these steps update; by default, the result is empty. The
        method makes one pass over the rows, in blocks that fit within `memory` MiB.
        """
        return {}

    def _prepare_site_step(self) -> Self:
        """Prepare the model for a site step; by default, return it unchanged."""
        return self

    # -- protocol: prediction and files -----------------------------------------------------------------------------

    @abstractmethod
    def _posterior_process(self, *, memory: float | None = None) -> Process:
        """Return the posterior process for predictions, without checks.

        If a pass over the data is required, the rows are processed in blocks that fit within `memory` MiB.
        """

    _mixes: ClassVar[bool] = False
    """Whether `agp.integrate` can integrate over the hyperparameters."""

    @classmethod
    def _mixture_of(cls, *_: Any) -> Any:
        """Return the mixture of such models at several settings, if `_mixes` is true; see `GPRMixture`."""
        return None

    def _held_rows(self) -> dict[str, Array]:
        """Return the stored X and y, and what is known of these rows, by name; by default, an empty dictionary."""
        return {}

    def _weighted_settings(self) -> list[tuple[float, "Model"]]:
        """Return models at several settings of the hyperparameters with their weights; by default, only this model."""
        return [(1.0, self)]

    def _leaf_intervals(self) -> dict[str, tuple[Any, Any]]:
        """Return the ends of intervals that contain leaves with probability 90 %, by name; by default, none."""
        return {}

    def _drop_data(self) -> Any:
        """Return a model with the same predictions but without data; by default, return the model unchanged."""
        return self

    def _on_first_datum(self) -> Self:
        """Return the model with only its first row of data, for a cheap test; by default, return it unchanged.

        Raises TypeError or ValueError if the shapes of the data, sites or actions are inconsistent.
        """
        return self


class WithInducing(SparsePrior):
    """Base class of models with one set of inducing variables.

    Test inputs must have the same library, dtype, device and number of columns as the inducing inputs.
    """

    @property
    def _width(self) -> int:
        return self.inducing.width

    def _reference(self) -> tuple[str, Array]:
        return self.inducing.reference
