"""Models as trees of arrays: frozen dataclasses whose fields say what each array is.

A field of a model is one of

- ``x: Array = param(POSITIVE)``: a parameter, trained (unless frozen), its constraint declared here;
- ``x: Array = auxiliary()``: saved and needed for prediction, changed by updates, never by a gradient;
- ``x: Array = constant()``: saved, never changed;
- ``x_unit: Array = unit()``: a constant, the unit in which the parameter ``x`` is trained; None is 1;
- another model, or a tuple of models: a branch;
- anything else: a setting, which is no leaf.

Models hold constrained values. Optimisers see a flat dictionary of unconstrained ("raw") leaves, whose keys are the
paths of the leaves, such as ``kernel.lengthscale`` or ``kernel.parts.0.variance``. A parameter that names a unit,
``x: Array = param(POSITIVE, unit="x_unit")``, has the raw leaf of x / x_unit: what an optimiser sees has no dimension,
whatever the units of the data are. A gradient is a model of the same class whose leaves are cotangents, None where
there is none.
"""

from agp._deprecated import former_names
from agp.tree._arrays import to_backend
from agp.tree._copies import add, cotangent, join, replace, split, with_defaults, with_leaves
from agp.tree._declared import auxiliary, constant, model, param, unit
from agp.tree._fields import is_model, on_model_class
from agp.tree._raw import constrain, pull_raw, unconstrain
from agp.tree._walks import Leaf, describe, leaves, matches, missing, nodes

__all__ = [
    "Leaf",
    "add",
    "auxiliary",
    "constant",
    "constrain",
    "cotangent",
    "describe",
    "is_model",
    "join",
    "leaves",
    "matches",
    "missing",
    "model",
    "nodes",
    "on_model_class",
    "param",
    "pull_raw",
    "replace",
    "split",
    "to_backend",
    "unconstrain",
    "unit",
    "with_defaults",
    "with_leaves",
]

__getattr__ = former_names(__name__, filled="with_defaults", replaced="replace")

# for other subpackages
from agp.tree._arrays import (
    at_inputs,
    constant_data,
    copy_array,
    detach,
    first_leaf,
    make_contiguous,
    place_leaves,
    row_major,
    zero_like,
)
from agp.tree._fields import is_model_class, leaf_fields
from agp.tree._plans import join_path
from agp.tree._text import outline, structure
from agp.tree._walks import constraints, patterns
