"""Models as JSON and arrays, and back.

A model, or a part of one, is ``{"class": NAME, "fields": {...}}``. A field that holds an array is the text "array":
its name in the file is the path of the leaf, such as ``process.kernel.variance``. A leaf that is still missing is null,
one that was given as a number is that number. Settings are themselves; tuples (and lists, which come back as tuples)
are lists, and the numbers that JSON does not know are ``{"float": "inf"}`` and the like.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from agp import tree
from agp.io._classes import class_named, declared, fits, is_own, name_of

ARRAY = "array"
"""The text in place of an array."""
NOT_FINITE = ("inf", "-inf", "nan")


# -- writing ----------------------------------------------------------------------------------------------------------


def array_leaves(model: Any) -> dict[str, Any]:
    """The leaves that are arrays, by name; before a model has met data, leaves may be missing, or numbers."""
    return {name: x for name, x in tree.leaves(model).items() if not _is_given(x)}


def _is_given(x: Any) -> bool:
    # the exact type: NumPy scalars count as arrays
    return type(x) in (int, float) or (type(x) in (list, tuple) and all(map(_is_given, x)))


def structure_of(x: Any, path: str = "") -> tuple[Any, dict[str, type]]:
    """The structure of a model as JSON, and the classes in it by their names.

    Raises
    ------
    TypeError
        If files cannot hold a setting; the message names the field.
    """
    classes: dict[str, type] = {}
    return _written_node(x, path, classes), classes


def _written_node(x: Any, path: str, classes: dict[str, type]) -> dict[str, Any]:
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
        place = tree.joined(path, field.name)
        value = getattr(x, field.name)
        if not field.init:
            _refuse(place, "a field that the constructor does not take")
        fields[field.name] = _written_leaf(value, place) if field.name in leaves else _written(value, place, classes)
    return {"class": name, "fields": fields}


def _written_leaf(value: Any, place: str) -> Any:
    if value is None or _is_given(value):
        return _finite(value, place)
    return ARRAY


def _finite(given: Any, place: str) -> Any:
    """None, a number, or numbers in tuples. ValueError if one is not finite."""
    if isinstance(given, (list, tuple)):
        return tuple(_finite(part, place) for part in given)
    if given is not None and not math.isfinite(given):
        msg = f"the leaf {place} is not finite"
        raise ValueError(msg)
    return given


def _written(value: Any, place: str, classes: dict[str, type]) -> Any:
    """The JSON of a setting, or of a part."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if type(value) in (tuple, list):
        return [_written(part, f"{place}.{i}", classes) for i, part in enumerate(value)]
    if isinstance(value, type) or not dataclasses.is_dataclass(value):
        _refuse(place, f"{type(value).__module__}.{type(value).__qualname__}")
    return _written_node(value, place, classes)


def _refuse(place: str, what: str) -> NoReturn:
    msg = (
        f"{place or 'the model'} cannot be saved, for it is {what}: files hold numbers, texts, Booleans, None, tuples "
        "and parts of models, and arrays in fields declared as leaves."
    )
    raise TypeError(msg)


# -- reading ----------------------------------------------------------------------------------------------------------


def restored(structure: Any, arrays: Mapping[str, Any], known: Mapping[str, type], path: str | Path) -> Any:
    """The model of a structure, with the given arrays and known classes.

    No code runs but the constructors of these classes.

    Raises
    ------
    agp.errors.FileError
        For an unknown class.
    TypeError, ValueError
        If the structure is malformed, does not name every array once, or does not fit the types of a class.
    """
    model = _read_node(structure, "", arrays, known, path)
    found = array_leaves(model) if tree.is_model(model) else {}
    if found.keys() != arrays.keys():
        msg = f"its structure has no place for the array {min(arrays.keys() - found.keys())}"
        raise ValueError(msg)
    return model


def _read_node(node: Any, place: str, *given: Any) -> Any:
    arrays, known, path = given
    if not isinstance(node, dict) or node.keys() != {"class", "fields"} or not isinstance(node["fields"], dict):
        msg = f"its structure has {str(node)[:80]!r} where a part of a model belongs"
        raise ValueError(msg)
    cls, fields = class_named(node["class"], known, path), node["fields"]
    if unknown := fields.keys() - {field.name for field in dataclasses.fields(cls) if field.init}:
        msg = f"{cls.__name__} has no field {min(unknown)[:80]}"
        raise ValueError(msg)
    leaves = tree.leaf_fields(cls) if tree.is_model_class(cls) else frozenset()
    values = {}
    for name, x in fields.items():
        here = tree.joined(place, name)
        values[name] = _read_leaf(x, here, arrays) if name in leaves else _read(x, here, *given)
        if is_own(cls) and name not in leaves and not fits(values[name], declared(cls)[name]):
            msg = f"{here} is {values[name]!r:.80}, which {cls.__name__} does not take there"
            raise ValueError(msg)
    return cls(**values)


def _read_leaf(x: Any, place: str, arrays: Mapping[str, Any]) -> Any:
    if x == ARRAY:
        if place not in arrays:
            msg = f"it has no array {place}"
            raise ValueError(msg)
        return arrays[place]
    if x is not None and not _is_given(x):
        msg = f"{place} is {x!r:.80}, which is no array"
        raise ValueError(msg)
    return _finite(x, place)


def _read(x: Any, place: str, *given: Any) -> Any:
    """A setting, or a part."""
    if x is None or type(x) in (bool, int, str):
        return x
    if isinstance(x, list):
        return tuple(_read(part, f"{place}.{i}", *given) for i, part in enumerate(x))
    if isinstance(x, dict) and x.keys() == {"float"} and x["float"] in NOT_FINITE:
        return float(x["float"])
    if isinstance(x, float) and math.isfinite(x):
        return x
    return _read_node(x, place, *given)
