"""Whether a model is whole: what a file must not hide, and none is written without."""

from typing import Any

from agp import tree
from agp.checks import check_like
from agp.errors import NonFiniteError, NotPositiveDefiniteError
from agp.io._structure import array_leaves
from agp.likelihoods import Likelihood
from agp.models import Model
from agp.priors import check_priors
from agp.repairs import collected

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
    for name, x in arrays.items():
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


def _try(model: Model) -> None:
    if missing := tree.missing(model) + [name for name in tree.leaves(model) if name not in array_leaves(model)]:
        msg = f"the leaf {missing[0]} has no array; build the model with from_data"
        raise ValueError(msg)
    check_priors(model)
    small = model.on_first_datum()
    with collected():  # repairs are told when the model is used
        try:
            found = small.predict(small.example_input())
            small.predict(small.example_input(), observed=True)
        except (NonFiniteError, NotPositiveDefiniteError):
            return
        except (TypeError, ValueError):
            raise
        except Exception as error:  # each library has its own errors for shapes that do not fit
            msg = f"its leaves do not fit each other: {type(error).__name__}: {error}"
            raise ValueError(msg) from error
    for name, moment in found._asdict().items():
        if tuple(moment.shape) != (1, model.outputs):
            msg = f"its predicted {name} has shape {tuple(moment.shape)}, where it has {model.outputs} outputs"
            raise ValueError(msg)
