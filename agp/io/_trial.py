"""Checks of models before they are saved and after they are loaded."""

from typing import Any

from agp import tree
from agp.backend import Array, backend_of, like
from agp.checks import check_leaf_like
from agp.errors import NonFiniteError, NotPositiveDefiniteError
from agp.io._structure import array_leaves
from agp.likelihoods import Likelihood
from agp.models import Model
from agp.predictors import Predictor
from agp.priors import check_priors
from agp.processes import MixedPrecision
from agp.repairs import collect_reports


def check_whole_model(model: Any) -> None:
    """Check that the arrays of a model or a model part match each other, are finite and satisfy their constraints.

    If the model is complete, also predict at one input, with only the first row of the model's data, which quickly
    reveals shapes that do not match. Numerical problems, such as a matrix without a Cholesky factor, are not errors
    here. If a check fails, raise a TypeError or ValueError, which names the leaf if only one is at fault.
    """
    arrays = array_leaves(model)
    apart = {
        tree.join_path(path, name) for path, one in tree.nodes(model, MixedPrecision).items() for name in one.in_float64
    }
    for leaf in tree.describe(model):
        if leaf.name in arrays and leaf.name not in apart:
            check_leaf_like(leaf, *next(iter(arrays.items())))
    for leaf in tree.describe(model):
        if leaf.name in arrays and bool(leaf.constraint.is_violated(leaf.value)):
            msg = f"the leaf {leaf.name} is not {leaf.constraint.name} and finite"
            raise ValueError(msg)
    for likelihood in tree.nodes(model, Likelihood).values():
        if not tree.missing(likelihood) and array_leaves(likelihood).keys() == tree.leaves(likelihood).keys():
            likelihood.check_parameters()
    if isinstance(model, Model):
        if missing := tree.missing(model) + [name for name in tree.leaves(model) if name not in arrays]:
            msg = f"the leaf {missing[0]} has no array; build the model with from_data"
            raise ValueError(msg)
        check_priors(model)
        small = model._on_first_datum()
        _, held = small._reference()
        same_width = held.ndim == 2 and held.shape[1] == small._width
        _try_input(small, held[:1, :] if same_width else _zeros(held, small._width))
    elif isinstance(model, Predictor) and not tree.missing(model):
        _try_input(model, _zeros(model.reference[1], model.width))


def _zeros(reference: Array, width: int) -> Array:
    return backend_of(reference).xp.zeros((1, width), **like(reference))


def _try_input(model: Model | Predictor, X: Array) -> None:
    """Raise an error unless the model predicts all its outputs at X [1, D]."""
    with collect_reports():  # warnings are issued when the model is used
        try:
            found = model.predict(X)
            model.predict(X, observed=True)
        except (NonFiniteError, NotPositiveDefiniteError):
            return
        except (TypeError, ValueError):
            raise
        except Exception as error:  # each library raises its own errors if shapes do not match
            msg = f"the shapes of its leaves do not match: {type(error).__name__}: {error}"
            raise ValueError(msg) from error
    for name, moment in found._asdict().items():
        if tuple(moment.shape)[-2:] != (1, model.outputs):
            msg = f"its predicted {name} has shape {tuple(moment.shape)}, but the model has {model.outputs} outputs"
            raise ValueError(msg)
