"""Whether a model is whole: what a file must not hide, and none is written without."""

from typing import Any

from agp import tree
from agp.backend import Array, backend_of, like
from agp.checks import check_like
from agp.errors import NonFiniteError, NotPositiveDefiniteError
from agp.io._structure import array_leaves
from agp.likelihoods import Likelihood
from agp.models import Model
from agp.predictors import Conditional, Predictor
from agp.priors import check_priors
from agp.repairs import collect_reports

__all__ = ["check_whole_model"]


def check_whole_model(model: Any) -> None:
    """Raise unless the arrays of a model, or of a part of one, are alike, finite and satisfy their constraints.

    A whole model must be able to predict, too: it is tried at one input, on the first of the data that it holds, so
    that shapes which do not fit each other are found at little cost. Trouble of numbers alone, such as a matrix that
    cannot be factorised, is left to predictions to tell.

    Raises
    ------
    TypeError, ValueError
        With the name of the leaf, where there is one.
    """
    arrays = array_leaves(model)
    apart = {tree.joined(path, name) for path, one in tree.nodes(model, Conditional).items() for name in one.in_float64}
    for name, x in arrays.items():
        if name not in apart:
            check_like(name, x, *next(iter(arrays.items())))
    for leaf in tree.describe(model):
        if leaf.name in arrays and bool(leaf.constraint.violated(leaf.value)):
            msg = f"the leaf {leaf.name} is not {leaf.constraint.name} and finite"
            raise ValueError(msg)
    for likelihood in tree.nodes(model, Likelihood).values():
        if not tree.missing(likelihood) and array_leaves(likelihood).keys() == tree.leaves(likelihood).keys():
            likelihood.check_parameters()
    if isinstance(model, Model):
        _try(model)
    if isinstance(model, Predictor) and not tree.missing(model):
        _, reference = model.conditionals[0].reference
        _try_input(model, backend_of(reference).xp.zeros((1, model.width), **like(reference)))


def _try(model: Model) -> None:
    if missing := tree.missing(model) + [name for name in tree.leaves(model) if name not in array_leaves(model)]:
        msg = f"the leaf {missing[0]} has no array; build the model with from_data"
        raise ValueError(msg)
    check_priors(model)
    small = model._on_first_datum()
    _try_input(small, _example_input(small))


def _example_input(model: Model) -> Array:
    """An input [1, D] that the model can take: the first of those that it holds, or zeros."""
    _, reference = model._reference()
    if reference.ndim == 2 and reference.shape[1] == model._width:
        return reference[:1, :]
    return backend_of(reference).xp.zeros((1, model._width), **like(reference))


def _try_input(model: Model | Predictor, X: Array) -> None:
    """Raise unless the model predicts so many numbers at X [1, D]."""
    with collect_reports():  # repairs are told when the model is used
        try:
            found = model.predict(X)
            model.predict(X, observed=True)
        except (NonFiniteError, NotPositiveDefiniteError):
            return
        except (TypeError, ValueError):
            raise
        except Exception as error:  # each library has its own errors for shapes that do not fit
            msg = f"its leaves do not fit each other: {type(error).__name__}: {error}"
            raise ValueError(msg) from error
    for name, moment in found._asdict().items():
        if tuple(moment.shape)[-2:] != (1, model.outputs):
            msg = f"its predicted {name} has shape {tuple(moment.shape)}, where it has {model.outputs} outputs"
            raise ValueError(msg)
