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

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache, wraps
from types import NoneType
from typing import Any, NamedTuple, TypeVar, dataclass_transform
from weakref import WeakKeyDictionary

from agp.backend import Array, backend_of, check_array_type, get_backend, to_numpy
from agp.constraints import POSITIVE, REAL, Constraint

__all__ = [
    "Leaf",
    "add",
    "auxiliary",
    "constant",
    "constrain",
    "cotangent",
    "describe",
    "filled",
    "is_model",
    "is_model_class",
    "is_placed",
    "join",
    "joined",
    "leaf_fields",
    "leaves",
    "matches",
    "missing",
    "model",
    "nodes",
    "on_model_class",
    "outline",
    "param",
    "patterns",
    "pull_raw",
    "replaced",
    "split",
    "to_backend",
    "unconstrain",
    "unit",
    "with_leaves",
]

T = TypeVar("T")
K = TypeVar("K")

_ROLE, _CONSTRAINT, _UNIT, _IS_UNIT, _OPTIONAL = "agp.role", "agp.constraint", "agp.unit", "agp.is_unit", "agp.optional"


class Leaf(NamedTuple):
    """One array of a model: its path, its role ("parameter", "auxiliary" or "constant"), constraint and value."""

    name: str
    role: str
    constraint: Constraint
    value: Array
    unit: Array | None = None
    """What a parameter is measured in, broadcast to its shape; None is 1."""

    @property
    def raw(self) -> Array:
        """The unconstrained form of the value, without dimension."""
        return self.constraint.unconstrain(self.value if self.unit is None else self.value / self.unit)

    def constrained(self, raw: Array, /) -> Array:
        """The value of a raw leaf."""
        value = self.constraint.constrain(raw)
        return value if self.unit is None else self.unit * value

    def pull(self, bar: Array, /) -> Array:
        """The cotangent of the raw leaf, from that of the value."""
        if self.unit is None:
            return self.constraint.pull(self.value, bar)
        # in this order: the slope of a small value is as small as it, where the unit times the cotangent may overflow
        return self.unit * self.constraint.pull(self.value / self.unit, bar)


def param(
    constraint: Constraint = REAL,
    default: Any = dataclasses.MISSING,
    *,
    unit: str | None = None,
    optional: bool = False,
) -> Any:
    """Declare a parameter: trained, in the raw form that the constraint gives it.

    Parameters
    ----------
    constraint
        What the values must satisfy; a multiple of a value by a positive unit must satisfy it, too.
    default
        Of the field; none if it is not given.
    unit
        The name of a field of the same class, declared with `unit`, that holds what the values are measured in.
    optional
        Whether it may stay None.
    """
    return _declare("parameter", constraint, default, unit=unit, optional=optional)


def unit(default: Any = None) -> Any:
    """Declare the unit of a parameter: a positive constant that broadcasts to its shape; None, the default, is 1.

    It is a keyword of the constructor, and `from_data` takes it from the data, in which values of order 1 are usual.
    (Checkers of types see the default only where it is written: ``unit(default=None)``.)
    """
    return _declare("constant", POSITIVE, default, is_unit=True, optional=True)


def auxiliary(default: Any = dataclasses.MISSING) -> Any:
    """Declare an auxiliary array: part of the state of the model, never differentiated."""
    return _declare("auxiliary", REAL, default)


def constant(default: Any = dataclasses.MISSING, *, optional: bool = False) -> Any:
    """Declare a constant array: data, or a fixed map; an optional one may stay None."""
    return _declare("constant", REAL, default, optional=optional)


def _declare(
    role: str,
    constraint: Constraint,
    default: Any,
    *,
    unit: str | None = None,
    is_unit: bool = False,
    optional: bool = False,
) -> Any:
    metadata = {_ROLE: role, _CONSTRAINT: constraint, _UNIT: unit, _IS_UNIT: is_unit, _OPTIONAL: optional}
    kw_only = is_unit or dataclasses.MISSING  # where the class says nothing else
    return dataclasses.field(default=None if optional else default, metadata=metadata, kw_only=kw_only)


class _Field(NamedTuple):
    name: str
    role: str | None
    constraint: Constraint
    unit: str | None
    """The name of the field that holds its unit."""
    is_unit: bool
    optional: bool


_FIELDS: dict[type, tuple[_Field, ...]] = {}
_WATCHERS: list[Callable[[type], None]] = []


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(param, auxiliary, constant, unit))
def model(cls: type[T]) -> type[T]:
    """Class decorator: a frozen dataclass, compared by identity, whose arrays are named leaves.

    A class attribute ``built_by`` may say how users come by an instance: with the name of the class for ``{name}``, it
    ends the error about arguments that the constructor does not take.

    Raises
    ------
    TypeError
        If a parameter names a unit that is no field declared with `unit`.
    """
    cls = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)  # type: ignore[assignment]
    cls.__repr__ = _repr  # type: ignore[method-assign]
    cls.__init__ = _explained(cls)  # type: ignore[method-assign]
    fields = tuple(_field(f) for f in dataclasses.fields(cls))  # type: ignore[arg-type]
    units = {field.name for field in fields if field.is_unit}
    for field in fields:
        if field.unit is not None and field.unit not in units:
            msg = f"{cls.__name__}.{field.name} has the unit {field.unit!r}; declare that field with tree.unit()."
            raise TypeError(msg)
    _FIELDS[cls] = fields
    for watcher in _WATCHERS:
        watcher(cls)
    return cls


def _explained(cls: type) -> Callable[..., None]:
    """The constructor of a class, whose errors about missing or unknown arguments say what to do."""
    init = cls.__init__

    @wraps(init)
    def explained(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except TypeError:
            signature = inspect.signature(init)
            try:
                signature.bind(self, *args, **kwargs)
            except TypeError as error:
                fields = ", ".join(list(signature.parameters)[1:])
                remedy = getattr(cls, "built_by", f"the arguments are {fields}").format(name=cls.__name__)
                msg = f"{cls.__name__}: {error}; {remedy}."
                raise TypeError(msg) from None
            raise

    return explained


def _field(f: dataclasses.Field) -> _Field:
    found = (f.metadata.get(key) for key in (_ROLE, _CONSTRAINT, _UNIT, _IS_UNIT, _OPTIONAL))
    role, constraint, unit, is_unit, optional = found
    return _Field(f.name, role, constraint or REAL, unit, bool(is_unit), bool(optional))


def on_model_class(watcher: Callable[[type], None]) -> None:
    """Call `watcher` with every model class, those that exist and those to come (plug-ins register them)."""
    _WATCHERS.append(watcher)
    for cls in _FIELDS:
        watcher(cls)


def is_model(x: Any) -> bool:
    """Whether x is an instance of a class made by `model`.

    Raises
    ------
    TypeError
        If its class inherits from such a class but was not decorated itself, so that its leaves would be lost.
    """
    cls = type(x)
    if cls in _FIELDS:
        return True
    if any(base in _FIELDS for base in cls.__mro__):
        msg = f"{cls.__name__} inherits from a model but is none; decorate it with @agp.tree.model."
        raise TypeError(msg)
    return False


def is_model_class(cls: type, /) -> bool:
    """Whether a class was made by `model`."""
    return cls in _FIELDS


def leaf_fields(cls: type, /) -> frozenset[str]:
    """The names of the fields of a model class that hold arrays."""
    return frozenset(field.name for field in _FIELDS[cls] if field.role is not None)


def _fields(x: Any) -> tuple[_Field, ...]:
    found = _FIELDS.get(type(x))
    if found is None and not is_model(x):
        msg = f"{type(x).__module__}.{type(x).__qualname__} is not a model; decorate its class with @agp.tree.model."
        raise TypeError(msg)
    return found or ()


_PLAIN = frozenset({NoneType, bool, int, float, str})
"""The types of most settings: what need not be looked at further."""


def _is_branch(x: Any) -> bool:
    """Whether x is a model or a tuple with models (and Nones, in a gradient)."""
    kind = type(x)
    if kind in _FIELDS or kind in _PLAIN:
        return kind in _FIELDS
    if isinstance(x, (list, dict)) and any(map(is_model, x.values() if isinstance(x, dict) else x)):
        msg = f"models stand in a {type(x).__name__}, where their leaves would be lost; use a tuple."
        raise TypeError(msg)
    return is_model(x) or (isinstance(x, tuple) and any(map(is_model, x)))


def _walk(x: Any, prefix: str, out: list[Leaf]) -> list[Leaf]:
    # a list, not a generator: models are walked several times in each step, and nested generators are slow
    if isinstance(x, tuple):
        for i, part in enumerate(x):
            if part is not None:
                _walk(part, f"{prefix}{i}.", out)
        return out
    values = vars(x)
    for name, role, constraint, unit, _, _ in _fields(x):
        value = values[name]
        if value is None:
            continue
        if role is not None:
            out.append(Leaf(prefix + name, role, constraint, value, None if unit is None else values[unit]))
        elif _is_branch(value):
            _walk(value, f"{prefix}{name}.", out)
    return out


_DESCRIBED: WeakKeyDictionary[Any, tuple[Leaf, ...]] = WeakKeyDictionary()
"""What has been said of models that are still there: each is asked several times in a step, and never changes."""


def describe(model: Any) -> tuple[Leaf, ...]:
    """Every leaf of a model, in the order of declaration: name, role, constraint, value and unit."""
    if type(model) not in _FIELDS:  # a tuple of models, or an error
        return tuple(_walk(model, "", []))
    found = _DESCRIBED.get(model)
    if found is None:
        found = _DESCRIBED[model] = tuple(_walk(model, "", []))
    return found


def missing(model: Any) -> list[str]:
    """The names of the leaves that are None; a unit may be."""
    names = []
    for field in _fields(model):
        value = getattr(model, field.name)
        if field.role is not None:
            names += [field.name] if value is None and not field.optional else []
        elif _is_branch(value):
            parts = {str(i): part for i, part in enumerate(value)} if isinstance(value, tuple) else {"": value}
            names += [
                ".".join(filter(None, (field.name, key, name))) for key, part in parts.items() for name in missing(part)
            ]
    return names


@lru_cache(maxsize=1024)
def _needed(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in _FIELDS.get(cls, ()) if field.role is not None and not field.optional)


_NO_ARRAY = frozenset({NoneType, bool, int, float, list, tuple})
"""What a leaf may be until it is an array."""


def is_placed(model: Any) -> bool:
    """Whether the leaves of a node itself are arrays, rather than None, or numbers and lists as users give them."""
    values = vars(model)  # asked at each evaluation of a kernel: the types alone are looked at
    return all(type(values[name]) not in _NO_ARRAY for name in _needed(type(model)))


def leaves(model: Any, role: str | None = None) -> dict[str, Array]:
    """The leaves by name: all, or those of one role."""
    return {leaf.name: leaf.value for leaf in describe(model) if role is None or leaf.role == role}


def nodes(model: Any, kind: type[K], /) -> dict[str, K]:
    """The models of a kind within a model, itself included, by their paths; the path of the model itself is empty.

    The kind is a class, usually an abstract one that says what a node can do. What stands within a found node is
    looked at, too.
    """
    return _nodes(model, kind, "", {})


def _nodes(x: Any, kind: type, path: str, found: dict[str, Any]) -> dict[str, Any]:
    if isinstance(x, tuple):
        for i, part in enumerate(x):
            if part is not None:
                _nodes(part, kind, f"{path}.{i}", found)
        return found
    if _is_kind(type(x), kind):
        found[path] = x
    values = vars(x)
    for field in _fields(x):
        if field.role is None and _is_branch(value := values[field.name]):
            _nodes(value, kind, joined(path, field.name), found)
    return found


_is_kind = lru_cache(maxsize=4096)(issubclass)  # asked for every node in every step; abstract classes answer slowly


def joined(*parts: str) -> str:
    """The path made up of these, of which some may be empty."""
    return ".".join(filter(None, parts))


def replaced(model: T, new: Mapping[str, Any], /) -> T:
    """A copy of the model in which the nodes at these paths are others; the empty path is the model itself."""
    if "" in new:
        return new[""]
    return _replaced(model, new, "")


def _replaced(x: Any, new: Mapping[str, Any], path: str) -> Any:
    if path in new:
        return new[path]
    inside = f"{path}." if path else ""
    if not any(name.startswith(inside) for name in new):
        return x
    if isinstance(x, tuple):
        return tuple(_replaced(part, new, f"{path}.{i}") for i, part in enumerate(x))
    values = dict(vars(x))
    for field in _fields(x):
        if field.role is None and _is_branch(values[field.name]):
            values[field.name] = _replaced(values[field.name], new, inside + field.name)
    return _make(type(x), values)


@lru_cache(maxsize=4096)  # asked for every leaf in every step
def matches(name: str, pattern: str, /) -> bool:
    """Whether a leaf's name matches a pattern, in whole or from one of its parts on.

    ``kernel.*`` matches ``process.kernel.variance``, and ``Z`` every leaf of that name, wherever it stands.
    """
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def patterns(one_or_more: str | Iterable[str], /) -> tuple[str, ...]:
    """Patterns of leaf names as users give them, one or several."""
    return (one_or_more,) if isinstance(one_or_more, str) else tuple(one_or_more)


def with_leaves(model: T, new: Mapping[str, Array]) -> T:
    """A copy of the model in which the named leaves are replaced; no constructor runs and nothing is checked.

    Raises
    ------
    KeyError
        If the model has no leaf of such a name (its names are listed).
    """
    seen: set[str] = set()
    out = _rebuild(model, new, "", seen)
    if len(seen) < len(new):
        msg = f"no leaf named {', '.join(sorted(set(new) - seen))}; the leaves are {', '.join(leaves(model))}."
        raise KeyError(msg)
    return out


def _rebuild(x: Any, new: Mapping[str, Array], prefix: str, seen: set[str]) -> Any:
    if isinstance(x, tuple):
        parts = ((f"{prefix}{i}.", part) for i, part in enumerate(x))
        return tuple(None if part is None else _rebuild(part, new, path, seen) for path, part in parts)
    values = dict(vars(x))
    for field in _fields(x):
        path = prefix + field.name
        if field.role is None:
            if _is_branch(values[field.name]):
                values[field.name] = _rebuild(values[field.name], new, path + ".", seen)
        elif path in new:
            seen.add(path)
            values[field.name] = new[path]
    return _make(type(x), values)


def _make(cls: type[T], values: Mapping[str, Any]) -> T:
    out = object.__new__(cls)
    vars(out).update(values)  # frozen: no attribute can be set
    return out


def filled(model: T, **start: Any) -> T:
    """A copy of the model in which the named fields that are None have these values."""
    values = {field.name: getattr(model, field.name) for field in _fields(model)}
    return _make(type(model), values | {name: x for name, x in start.items() if values[name] is None})


def split(model: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The fields that hold arrays or models, in order, and their names with the settings: what a plug-in registers."""
    fields = [(field, getattr(model, field.name)) for field in _fields(model)]
    inside = [(field.name, x) for field, x in fields if field.role is not None or _is_gradient(x)]
    names = tuple(name for name, _ in inside)
    settings = tuple((field.name, x) for field, x in fields if field.name not in names)
    return tuple(x for _, x in inside), (names, settings)


def join(cls: type[T], structure: tuple[Any, ...], parts: tuple[Any, ...]) -> T:
    """The inverse of `split` for a model of that class."""
    names, settings = structure
    return _make(cls, dict(settings) | dict(zip(names, parts, strict=True)))


# -- gradients in the structure of the model --------------------------------------------------------------------------


def cotangent(model: T, **bars: Any) -> T:
    """A gradient of the model's class: the named fields, None (no gradient) in all others; settings are kept."""
    values = dict(vars(model))
    for name, role, *_ in _fields(model):
        if role is not None or _is_branch(values[name]):
            values[name] = None
    if not bars.keys() <= values.keys():
        msg = f"{type(model).__name__} has no field {', '.join(sorted(bars.keys() - values.keys()))}."
        raise TypeError(msg)
    values.update(bars)
    return _make(type(model), values)


def add(a: Any, b: Any) -> Any:
    """A + b for arrays, models and tuples of them; None is zero."""
    if a is None or b is None:
        return b if a is None else a
    if is_model(a):
        sums, others = dict(vars(a)), vars(b)
        for f in _fields(a):
            x, y = sums[f.name], others[f.name]
            if y is not None and (f.role is not None or _is_gradient(x)):
                sums[f.name] = y if x is None else add(x, y)
        return _make(type(a), sums)
    if isinstance(a, tuple):
        parts = [add(x, y) for x, y in zip(a, b, strict=True)]
        return type(a)(*parts) if hasattr(a, "_fields") else tuple(parts)
    return a + b


def _is_gradient(x: Any) -> bool:
    return x is None or is_model(x) or (isinstance(x, tuple) and all(map(_is_gradient, x)))


# -- raw leaves -------------------------------------------------------------------------------------------------------


def unconstrain(model: Any) -> dict[str, Array]:
    """The raw leaves of the parameters, by name."""
    return {leaf.name: leaf.raw for leaf in describe(model) if leaf.role == "parameter"}


def constrain(model: T, raw: Mapping[str, Array]) -> T:
    """The model whose named parameters have these raw leaves."""
    found = {leaf.name: leaf for leaf in describe(model)}
    return with_leaves(model, {name: found[name].constrained(x) for name, x in raw.items()})


def pull_raw(model: Any, bar: Any) -> dict[str, Array]:
    """The gradient with respect to the raw leaves, from a gradient in the model's structure; None becomes zero."""
    bars = leaves(bar) if bar is not None else {}
    out = {}
    for leaf in describe(model):
        if leaf.role == "parameter":
            known = bars.get(leaf.name)
            out[leaf.name] = leaf.pull(backend_of(leaf.value).xp.zeros_like(leaf.value) if known is None else known)
    return out


# -- crossing on purpose ----------------------------------------------------------------------------------------------


FLOATS = ("float64", "float32")
"""The types that `to_backend` can be asked for."""


def _dtype_name(dtype: Any) -> str | None:
    """The name of a dtype, given by its name or as an object of any library: numpy.float32, torch.float64, ..."""
    name = dtype if isinstance(dtype, str) else str(dtype).rpartition(".")[2].rstrip("'>")
    if dtype is not None and name not in FLOATS:
        msg = f"dtype is {dtype!r}, but must be {' or '.join(map(repr, FLOATS))}."
        raise ValueError(msg)
    return None if dtype is None else name


def to_backend(x: T, name: str, *, dtype: Any = None, device: str | None = None) -> T:
    """Copy an array or a model to another array library, device or floating-point type.

    Parameters
    ----------
    x
        An array of any known library, a model of such arrays, or (nested) lists of numbers.
    name
        The backend, as `agp backends` lists it.
    dtype
        "float64" or "float32", or such a dtype of any library; by default each array keeps its own.
    device
        A device of that backend; by default the library's default device.

    Raises
    ------
    TypeError, ValueError
        If x is nothing of the kind, the dtype is another one, or the backend has no such device (it names those there).
    agp.errors.BackendError
        If the backend is unknown or not installed.
    """
    B, dtype = get_backend(name), _dtype_name(dtype)
    if is_model(x):
        here = {k: v for k, v in leaves(x).items() if not backend_of(v).rows_elsewhere}
        moved = {k: B.from_numpy(to_numpy(v), dtype=dtype, device=device) for k, v in here.items()}
        return with_leaves(x, moved)
    if isinstance(x, (int, float, list, tuple)):
        return B.from_numpy(get_backend("numpy").from_numpy(x), dtype=dtype, device=device)
    check_array_type("x", x)
    return B.from_numpy(to_numpy(x), dtype=dtype, device=device)


# -- text -------------------------------------------------------------------------------------------------------------

SHOWN = 8
"""Numbers of a leaf that are printed; of a larger one its type and shape."""


def outline(model: Any) -> str:
    """The classes and settings of a model, and the types and shapes of its leaves: all but the numbers."""
    return _text(model, _shape)


def _repr(self: Any) -> str:
    return _text(self, _numbers)


def _text(x: Any, shown: Callable[[Any], str]) -> str:
    if isinstance(x, tuple):
        return f"({', '.join(_text(part, shown) for part in x)}{',' if len(x) == 1 else ''})"
    if x is None or not is_model(x):
        return repr(x)
    parts = []
    for field in _fields(x):
        value = getattr(x, field.name)
        if field.role is None:
            text = _text(value, shown) if _is_branch(value) else repr(value)
        elif field.is_unit:
            continue
        else:
            text = shown(value) if type(value) not in _NO_ARRAY else repr(value)
        parts.append(f"{field.name}={text}")
    return f"{type(x).__name__}({', '.join(parts)})"


def _shape(x: Array) -> str:
    return f"{str(x.dtype).rpartition('.')[2]}{list(x.shape)}"


def _numbers(x: Array) -> str:
    if not backend_of(x).is_concrete(x) or math.prod(x.shape) > SHOWN:
        return _shape(x)
    return _rounded(to_numpy(x).tolist())


def _rounded(x: Any) -> str:
    if isinstance(x, list):
        return f"[{', '.join(map(_rounded, x))}]"
    return f"{x:.6g}" if isinstance(x, float) else repr(x)
