"""Averages of models that were fitted to the same data."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback
from agp.bounds import Batch
from agp.checks import check_equal
from agp.errors import count_of
from agp.likelihoods import Likelihood
from agp.models._base import Model
from agp.priors import Priors, has_densities
from agp.processes import Averaged, check_average
from agp.random import Draws, draws_with_prefix, merge_draws, prefix_draws

OF_MODELS = ("kernel", "mean_function", "process")
"""Attributes that only the models of an ensemble have."""


class OfModels(Model):
    """Base class of models that consist of models of the same data."""

    models: tuple[Any, ...]

    inducing: ClassVar[None] = None
    posterior: ClassVar[None] = None
    stochastic: ClassVar[bool] = False

    @property
    def outputs(self) -> int:
        return self.models[0].outputs

    def _reference(self) -> tuple[str, Array]:
        return self.models[0]._reference()

    @property
    def _width(self) -> int:
        return self.models[0]._width

    def _on_first_datum(self) -> Self:
        return self._with_models(lambda model: model._on_first_datum())

    def _with_models(self, change: Callable[[Model], Any]) -> Self:
        """Return the model with the changed models; if no model changes, return the model itself."""
        new = tuple(change(model) for model in self.models)
        same = all(a is b for a, b in zip(new, self.models, strict=True))
        return self if same else dataclasses.replace(self, models=new)  # type: ignore[type-var]


@tree.model
class Ensemble(OfModels):
    """A weighted average of models that were fitted to the same data, for example with different kernels.

    If the models' latent functions have the means m_k and the variances v_k, those of the ensemble have the mean
    sum_k w_k m_k and the variance spread sum_k w_k v_k; see `agp.processes.Averaged`. The bound sum_k w_k bound_k is at
    most the logarithm of the average sum_k w_k p_k(y) of the models' evidences, by Jensen's inequality.

    Models are usually trained before they are averaged. Training an ensemble trains each of its models.

    Parameters
    ----------
    models
        The K models, with the same number of outputs and likelihoods of the same class. The ensemble predicts
        observations with the likelihood of the first model.
    weights
        The weights w [K], which are positive with the sum 1. Training does not change them.
    spread
        The factor by which variances of latent functions are multiplied.
    priors
        See `SVGP`. These priors replace those of the models: an ensemble of models with priors cannot be trained.

    Examples
    --------
    The mean of the ensemble is the weighted average of the means.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 6.0, 20)[:, None]
    >>> y = np.sin(X[:, 0])
    >>> kernels = agp.RBF(1.0, 1.0), agp.Matern12(1.0, 1.0)
    >>> models = tuple(agp.GPR.from_data(X, y, kernel=kernel) for kernel in kernels)
    >>> ensemble = agp.Ensemble(models, np.asarray([0.75, 0.25]))
    >>> smooth, rough, mean = (float(model.predict_mean(X)[3, 0]) for model in (*models, ensemble))
    >>> round(mean - (0.75 * smooth + 0.25 * rough), 9)
    0.0
    """

    models: tuple[Model, ...]
    weights: Array = tree.constant()
    spread: float = 1.0
    priors: Priors = ()

    _built_by: ClassVar[str] = "{name}(models, weights) builds one"

    def __post_init__(self) -> None:
        if not isinstance(self.models, tuple):
            raise TypeError(
                f"the models of an Ensemble are a {type(self.models).__name__}, but must be a tuple of models."
            )
        if not self.models:
            raise ValueError("there are no models in the Ensemble; pass at least one model.")
        for i, model in enumerate(self.models):
            if not isinstance(model, Model):
                raise TypeError(f"entry {i} in the models of an Ensemble is {model!r}, but must be a model.")
        super().__post_init__()
        self._check_equal("likelihoods", lambda model: _kind_of(model.likelihood))

    @property
    def likelihood(self) -> Likelihood:  # type: ignore[override]
        """The likelihood of the first model."""
        return self.models[0].likelihood

    @property
    def _holds_data(self) -> bool:  # type: ignore[override]
        return any(model._holds_data for model in self.models)

    if not TYPE_CHECKING:  # hides the names from type checkers

        def __getattr__(self, name: str) -> Any:
            msg = f"'Ensemble' object has no attribute {name!r}"
            if name in OF_MODELS:
                models = count_of(len(self.models), "model")
                msg = f"Ensemble has {models}, each with its own {name}; use model.models[0].{name}, for example."
            raise AttributeError(msg, name=name, obj=self)

    # -- checks -----------------------------------------------------------------------------------------------------

    def _batch(self, X: Array, y: Array, /, **known: Any) -> Batch:
        super()._batch(X, y, **known)
        return self.models[0]._batch(X, y, **known)  # models that hold data add what they know of the rows

    def _check(self, batch: Batch, /) -> None:
        for i, model in enumerate(self.models):
            if has_densities(model):
                raise ValueError(
                    f"models[{i}] has priors, which an Ensemble does not use in training; train the models before you "
                    "average them, or pass priors= to Ensemble instead."
                )
            model._check(batch)

    def _check_same_data(self, batch: Batch, /) -> None:
        for model in self.models:
            model._check_same_data(batch)

    def _check_parts(self) -> None:
        self._check_equal("numbers of outputs", lambda model: model.outputs)
        self._check_equal("numbers of input columns", lambda model: model._width)
        check_average("model", self.weights, self.spread, len(self.models), self._reference())
        for model in self.models:
            model._check_parts()

    def _check_equal(self, what: str, of: Callable[[Model], Any]) -> None:
        """Raise ValueError unless a property has the same value for all models."""
        differ = f"the models of an Ensemble have different {what}"
        check_equal(differ, map(of, self.models), "average models of the same kind")

    # -- bound ------------------------------------------------------------------------------------------------------

    def _objective(self, batch: Batch, /, *, memory: float | None = None) -> tuple[Array, Pullback]:
        found = [model._objective(own, memory=memory) for _, model, own in self._with_batches(batch)]

        def pullback(bar=1.0):
            bars = [pull(bar * self.weights[k]) for k, (_, pull) in enumerate(found)]
            X_bar = None if any(x is None for _, x in bars) else reduce(tree.add, (x for _, x in bars))
            return tree.cotangent(self, models=tuple(model_bar for model_bar, _ in bars)), X_bar

        return reduce(tree.add, (self.weights[k] * bound for k, (bound, _) in enumerate(found))), pullback

    def _draws(self, rng: Any, rows: int, /) -> Draws:
        return merge_draws(prefix_draws(f"models.{i}", model._draws(rng, rows)) for i, model in enumerate(self.models))

    def _with_batches(self, batch: Batch) -> Iterator[tuple[str, Model, Batch]]:
        """Yield the path of each model, the model, and the batch with the model's own draws."""
        for i, model in enumerate(self.models):
            path = f"models.{i}"
            yield path, model, batch._replace(draws=draws_with_prefix(path, batch.draws))

    @property
    def _site_paths(self) -> tuple[str, ...]:
        models = enumerate(self.models)
        return tuple(tree.join_path(f"models.{i}", path) for i, model in models for path in model._site_paths)

    def _site_gradients(self, batch: Batch, /, *, memory: float | None = None) -> dict[str, Any]:
        return {
            tree.join_path(path, inside): x
            for path, model, own in self._with_batches(batch)
            for inside, x in model._site_gradients(own, memory=memory).items()
        }

    def _prepare_site_step(self) -> Self:
        return self._with_models(lambda model: model._prepare_site_step())

    # -- prediction and files ---------------------------------------------------------------------------------------

    def _posterior_process(self, *, memory: float | None = None) -> Averaged:
        parts = tuple(model._posterior_process(memory=memory) for model in self.models)
        average = Averaged(parts, self.weights, self.spread)
        average.check()
        return average

    def _drop_data(self) -> Self:
        return self._with_models(lambda model: model._drop_data())


def _kind_of(likelihood: Likelihood) -> str:
    """Return the class of a likelihood, and whether its latent functions are log odds."""
    return type(likelihood).__name__ + (" of log odds" if likelihood.is_logistic else "")
