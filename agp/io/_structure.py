"""Conversion of models to JSON and arrays, and back.

A model, or a part of one, becomes ``{"class": NAME, "fields": {...}}``. An array becomes the text "array", and its name
in the file is the path of the leaf, such as ``process.kernel.variance``. A missing leaf becomes null. A leaf that is a
Python number stays a number. Settings are stored as they are, except that tuples become lists, and infinity and NaN
become objects such as ``{"float": "inf"}``. All lists are loaded as tuples.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from agp import tree
from agp.io._classes import find_class, fits, is_agp_class, name_of, resolved_annotations

ARRAY = "array"
"""The text that replaces an array."""


# -- writing ----------------------------------------------------------------------------------------------------------


def array_leaves(model: Any) -> dict[str, Any]:
    """Return the leaves that are arrays, by name. Missing leaves and Python numbers are left out."""
    return {name: x for name, x in tree.leaves(model).items() if not _is_plain_number(x)}


def _is_plain_number(x: Any) -> bool:
    # the exact type: NumPy scalars count as arrays
    return type(x) in (int, float) or (type(x) in (list, tuple) and all(map(_is_plain_number, x)))


def structure_of(model: Any) -> tuple[Any, dict[str, type]]:
    """Return the structure of a model as JSON, and the classes in it by name.

    Raise a TypeError that names the field if a setting cannot be saved.
    """
    classes: dict[str, type] = {}
    return _encode_node(model, "", classes), classes


def _encode_node(x: Any, path: str, classes: dict[str, type]) -> dict[str, Any]:
    cls = type(x)
    if any(map(tree.is_model_class, cls.__mro__)):
        tree.is_model(x)  # raises unless the class itself was decorated
    try:
        name = name_of(cls)
    except TypeError as error:
        _refuse(path, str(error))
    classes[name] = cls
    leaves = tree.leaf_fields(cls) if tree.is_model_class(cls) else frozenset()
    fields = {}
    for field in dataclasses.fields(x):
        place = tree.join_path(path, field.name)
        value = getattr(x, field.name)
        if not field.init:
            _refuse(place, "the constructor does not accept this field")
        if field.name not in leaves:
            fields[field.name] = _encode_setting(value, place, classes)
        else:
            fields[field.name] = _finite(value, place) if value is None or _is_plain_number(value) else ARRAY
    return {"class": name, "fields": fields}


def _finite(given: Any, place: str) -> Any:
    """Convert lists of numbers to tuples. Raise a ValueError if a number is not finite."""
    if isinstance(given, (list, tuple)):
        return tuple(_finite(part, place) for part in given)
    if given is not None and not math.isfinite(given):
        raise ValueError(f"the leaf {place} is not finite")
    return given


def _encode_setting(value: Any, place: str, classes: dict[str, type]) -> Any:
    """Convert a setting or a part of a model to JSON."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if type(value) in (tuple, list):
        return [_encode_setting(part, f"{place}.{i}", classes) for i, part in enumerate(value)]
    if isinstance(value, type) or not dataclasses.is_dataclass(value):
        from array_api_compat import is_array_api_obj

        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        remedy = "; declare the field with agp.tree.constant() or agp.tree.param()" if is_array_api_obj(value) else ""
        _refuse(place, f"it is {kind}", remedy)
    return _encode_node(value, place, classes)


def encode_setting(value: Any, name: str) -> Any:
    """Convert a setting, such as a prior, to JSON. Raise a TypeError that names the setting if it cannot be saved."""
    return _encode_setting(value, name, {})


def _refuse(place: str, reason: str, remedy: str = "") -> NoReturn:
    raise TypeError(
        f"{place or 'the model'} cannot be saved, because {reason}; files hold numbers, text, Booleans, None, tuples, "
        f"parts of models, and arrays declared as leaves{remedy}."
    )


# -- reading ----------------------------------------------------------------------------------------------------------


def decode_model(structure: Any, arrays: Mapping[str, Any], known: Mapping[str, type], path: str | Path) -> Any:
    """Build a model from its structure, its arrays and known classes. Only the constructors of these classes run.

    Raise a FileError for an unknown class. Raise a TypeError or ValueError if the structure is malformed, does not
    contain every array exactly once, or has fields of wrong types.
    """
    model = _read_node(structure, "", arrays, known, path)
    found = array_leaves(model) if tree.is_model(model) else {}
    if numbers := found.keys() - arrays.keys():  # constructors convert numbers
        raise ValueError(f"the leaf {min(numbers)} has no array")
    if found.keys() != arrays.keys():
        raise ValueError(f"its structure does not contain the array {min(arrays.keys() - found.keys())}")
    return model


def _read_node(node: Any, place: str, *given: Any) -> Any:
    arrays, known, path = given
    if not isinstance(node, dict) or node.keys() != {"class", "fields"} or not isinstance(node["fields"], dict):
        raise ValueError(f"its structure has {str(node)[:80]!r} instead of a part of a model")
    cls, fields = find_class(node["class"], known, path), node["fields"]
    if unknown := fields.keys() - {field.name for field in dataclasses.fields(cls) if field.init}:
        raise ValueError(f"{cls.__name__} has no field {min(unknown)[:80]}")
    leaves = tree.leaf_fields(cls) if tree.is_model_class(cls) else frozenset()
    values = {}
    for name, x in fields.items():
        here = tree.join_path(place, name)
        values[name] = _read_leaf(x, here, arrays) if name in leaves else _read(x, here, *given)
        if is_agp_class(cls) and name not in leaves and not fits(values[name], resolved_annotations(cls)[name]):
            raise ValueError(f"{here} is {values[name]!r:.80}, which {cls.__name__} does not accept")
    return cls(**values)


def decode_setting(x: Any, name: str, known: Mapping[str, type], path: str | Path) -> Any:
    """Convert what `encode_setting` returned to the setting; the arguments and errors are those of `decode_model`."""
    return _read(x, name, {}, known, path)


def _read_leaf(x: Any, place: str, arrays: Mapping[str, Any]) -> Any:
    if x == ARRAY:
        if place not in arrays:
            raise ValueError(f"it has no array {place}")
        return arrays[place]
    if x is not None and not _is_plain_number(x):
        raise ValueError(f"{place} is {x!r:.80}, which is not an array")
    return _finite(x, place)


def _read(x: Any, place: str, *given: Any) -> Any:
    """Convert JSON to a setting or a part of a model."""
    if x is None or type(x) in (bool, int, str):
        return x
    if isinstance(x, list):
        return tuple(_read(part, f"{place}.{i}", *given) for i, part in enumerate(x))
    if isinstance(x, dict) and x.keys() == {"float"} and x["float"] in ("inf", "-inf", "nan"):
        return float(x["float"])
    if isinstance(x, float) and math.isfinite(x):
        return x
    return _read_node(x, place, *given)
