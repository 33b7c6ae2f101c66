"""Models as trees of arrays: frozen dataclasses whose fields declare the role of each array.

A model class has fields of these kinds:

- ``x: Array = param(POSITIVE)`` is a parameter with a constraint. Training changes this parameter unless it is frozen.
- ``x: Array = auxiliary()`` is an array that is used in predictions and changed by updates. It has no gradient.
- ``x: Array = constant()`` is an array that never changes.
- ``x_unit: Array = unit()`` is a constant, the unit in which the parameter ``x`` is trained. None means 1.
- A field that holds another model, or a tuple of models, is a branch of the tree.
- ``ties: tuple = ties()`` names parts inside a branch that are equal: they share one set of parameters.
- Any other field is a setting, which contains no arrays.

Models hold constrained values. Optimisers see a flat dictionary of unconstrained ("raw") leaves. The keys of this
dictionary are the paths of the leaves, such as ``kernel.lengthscale`` or ``kernel.parts.0.variance``. A parameter may
have a unit, declared by ``x: Array = param(POSITIVE, unit="x_unit")``. The raw leaf of such a parameter is the
unconstrained form of ``x / x_unit``, so raw leaves are dimensionless whatever the units of the data. A gradient is a
model of the same class whose leaves are cotangents, or None for leaves without a gradient.
"""

from agp.tree._arrays import to_backend
from agp.tree._constraints import LOWER, NONNEGATIVE, ORDERED, POSITIVE, PROPORTION, REAL, Constraint
from agp.tree._copies import add, cotangent, equalise, join, replace, split, with_defaults, with_leaves
from agp.tree._declared import auxiliary, constant, model, param, ties, unit
from agp.tree._fields import is_model, on_model_class
from agp.tree._raw import constrain, pull_raw, unconstrain
from agp.tree._walks import Leaf, describe, leaves, matches, missing, nodes

__all__ = [
    "LOWER",
    "NONNEGATIVE",
    "ORDERED",
    "POSITIVE",
    "PROPORTION",
    "REAL",
    "Constraint",
    "Leaf",
    "add",
    "auxiliary",
    "constant",
    "constrain",
    "cotangent",
    "describe",
    "equalise",
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
    "ties",
    "to_backend",
    "unconstrain",
    "unit",
    "with_defaults",
    "with_leaves",
]

# for other subpackages
from agp.tree._arrays import (
    constant_data,
    copy_array,
    detach,
    first_leaf,
    make_contiguous,
    place_host_arrays,
    place_leaves,
    row_major,
    zero_like,
)
from agp.tree._copies import arguments, with_argument
from agp.tree._fields import is_model_class, leaf_fields
from agp.tree._parts import Part
from agp.tree._plans import join_path, plan_of
from agp.tree._raw import zero_leaves
from agp.tree._text import outline, settings, structure
from agp.tree._walks import (
    constraints,
    entries_matching,
    followers,
    holds_arrays,
    no_match_message,
    patterns,
    tied_parts,
    whole_pattern,
)
