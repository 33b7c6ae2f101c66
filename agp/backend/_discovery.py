"""Find an array library's plug-in by the type of an array or by name."""

import contextlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import NoneType
from typing import Any, NamedTuple

from agp.backend._library import Array
from agp.backend._protocol import Backend
from agp.errors import BackendError, missing_package_message, unknown_name_message

GROUP = "agp.backends"


class BackendStatus(NamedTuple):
    """Status of a backend: one line in the output of `agp backends`."""

    name: str
    usable: bool
    reason: str
    version: str
    devices: list[str]
    gradients: tuple[str, ...]
    conformance: bool
    is_lazy: bool = False


_REGISTERED: dict[str, Backend] = {}
_BY_TYPE: dict[type, Backend] = {}
_NO_ARRAYS: dict[type, int] = {}
"""Types of other objects, with the number of imported modules when they were tested, because imports add libraries."""

backend_of_type: Callable[[type], Backend | None] = _BY_TYPE.get
"""Cache of `backend_of`: the backend of each array type seen so far."""


@cache
def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}


def _names() -> list[str]:
    return sorted({*_entry_points(), *_REGISTERED})


def register_backend(plugin: Backend, /) -> None:
    """Use a plug-in without an entry point, in this process only.

    If you register several plug-ins under the same name, the last one is used.

    Raises
    ------
    BackendError
        If an installed plug-in has the same name.

    Examples
    --------
    A subclass of NumPy's array gets a plug-in of its own, which inherits everything from that of NumPy.

    >>> import numpy as np
    >>> import agp
    >>> class Tagged(np.ndarray):
    ...     pass
    >>> class TaggedBackend(type(agp.get_backend("numpy"))):
    ...     name = "tagged"
    ...     array_types = (Tagged,)
    >>> agp.register_backend(TaggedBackend())
    >>> agp.backend_of(np.zeros(3).view(Tagged)).name
    'tagged'
    """
    if plugin.name in _entry_points():
        raise BackendError(f"a backend with the name {plugin.name!r} is installed already; choose another name.")
    _REGISTERED[plugin.name] = plugin
    _BY_TYPE.clear()
    _NO_ARRAYS.clear()


def get_backend(name: str) -> Backend:
    """Load the backend with a given name, and import its library.

    Raises
    ------
    BackendError
        If no plug-in has this name, if the library of the plug-in is not installed, or if loading fails. The message
        about an unknown name lists all names.

    Examples
    --------
    A backend lists its devices, and copies arrays from NumPy and back.

    >>> import numpy as np
    >>> import agp
    >>> backend = agp.get_backend("numpy")
    >>> backend.devices()
    ['cpu']
    >>> backend.from_numpy(np.asarray([1.0, 2.0]), dtype="float32").dtype.name
    'float32'
    """
    if not isinstance(name, str):
        raise BackendError(unknown_name_message("backend", name, _names()))
    return _REGISTERED[name] if name in _REGISTERED else _load(name)


@cache
def _load(name: str) -> Backend:
    if name not in _entry_points():
        raise BackendError(unknown_name_message("backend", name, _names()))
    point = _entry_points()[name]
    if not _is_installed(name):
        ours = point.value.startswith("agp_backends.")
        missing = missing_package_message(name, name) if ours else f"{name}, which is not installed"
        raise BackendError(f"backend {name!r} needs the package {missing}.")
    try:
        return point.load()()
    except Exception as error:  # third-party code may raise anything
        raise BackendError(
            f"backend {name!r} is installed but cannot be used: {type(error).__name__}: {error}"
        ) from error


def _is_installed(name: str) -> bool:
    if name in sys.modules:
        return True
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # the parent package of a dotted name is missing or cannot be imported
        return False


def known_backends() -> list[BackendStatus]:
    """List the status of every announced plug-in, usable or not, sorted by name.

    Examples
    --------
    The status of NumPy, which is always installed. For other libraries, `reason` says why they cannot be used.

    >>> import agp
    >>> [status] = [one for one in agp.known_backends() if one.name == "numpy"]
    >>> status.usable, status.reason, status.devices
    (True, '', ['cpu'])
    """
    return [_status(name) for name in _names()]


def _status(name: str) -> BackendStatus:
    try:
        B = get_backend(name)
    except BackendError as error:
        return BackendStatus(name, False, str(error), "", [], (), False)
    version = ""
    try:
        version, devices = B.version(), B.devices()
    except Exception as error:  # for example a missing or old driver
        devices, reason = [], f"{type(error).__name__}: {error}"
    else:
        reason = "" if devices else "no device"
    kinds = B.gradients, B.conformance, B.is_lazy
    return BackendStatus(name, not reason, reason, version, devices, *kinds)


def backend_of(x: Array, /) -> Backend:
    """Return the backend of x, an array or a tracer; the plug-ins of other libraries are not loaded.

    Raises
    ------
    TypeError
        If x is not an array of a known library. The message explains how to convert x.

    Examples
    --------
    A function for arrays of any library takes its operations from the namespace `xp` of the backend.

    >>> import numpy as np
    >>> import agp
    >>> def norm(x):
    ...     xp = agp.backend_of(x).xp
    ...     return xp.sqrt(xp.sum(x * x))
    >>> float(norm(np.asarray([3.0, 4.0])))
    5.0
    """
    try:
        return _BY_TYPE[type(x)]
    except KeyError:
        return _BY_TYPE.setdefault(type(x), _resolve(x, "x"))


def find_backend(x: Any, /) -> Backend | None:
    """Return the backend of x, or None if x is not an array of a known library."""
    kind, imported = type(x), len(sys.modules)
    if kind not in _BY_TYPE and _NO_ARRAYS.get(kind) == imported:
        return None
    try:
        return backend_of(x)
    except TypeError:
        _NO_ARRAYS[kind] = imported
        return None


def check_array_type(name: str, x: Any, /) -> None:
    """Raise a TypeError unless x is an array of a known library; the message refers to x by `name`."""
    if type(x) not in _BY_TYPE:
        _BY_TYPE[type(x)] = _resolve(x, name)


def _resolve(x: Any, name: str) -> Backend:
    kind, reasons = type(x), []
    for candidate in _candidates(x):
        try:
            B = get_backend(candidate)
        except BackendError as error:
            reasons.append(str(error))
            continue
        if issubclass(kind, B.array_types):
            if not issubclass(kind, B.refused_types):
                return B
            break
    raise TypeError(" ".join([_no_array(name, kind), *reasons]))


CONVERSIONS = {
    "builtins": "numpy.asarray({0}, dtype=float)",
    "numpy.matrix": "numpy.asarray({0}, dtype=float)",
    "numpy.ma": "{0}.data, after dropping or filling its masked entries",
    "pandas": "{0}.to_numpy(dtype=float)",
    "polars": "{0}.to_numpy().astype(float)",
    "scipy.sparse": "{0}.toarray()",
}
"""Code that converts other objects to arrays, by the module or the full name of their type."""
TABLES, COLUMNS = ("DataFrame", "LazyFrame", "Table"), ("Series", "DatetimeIndex", "PeriodIndex", "TimedeltaIndex")
"""The names of types of tables, and of their columns, which may contain dates."""


def _no_array(name: str, kind: type) -> str:
    """Message for an object that is not an array, with code that converts it."""
    if kind is NoneType:
        return f"{name} is None, but must be an array; pass an array of one of the libraries {', '.join(_names())}."
    full = f"{kind.__module__}.{kind.__qualname__}"
    known = f"an array of a known library ({', '.join(_names())})"
    if kind.__module__ == "builtins" and not issubclass(kind, (bool, int, float, list, tuple)):
        return f"{name} is {full}, not {known}."
    for module, conversion in CONVERSIONS.items():
        if _is_within(full, module):
            what = " ".join(filter(None, (module.partition(".")[0].replace("builtins", ""), kind.__name__)))
            article = "an" if what[0] in "aeiou" else "a"
            return f"{name} is {article} {what}, not {known}; pass {_for_rows(name, kind, conversion.format(name))}."
    if kind.__name__ in TABLES:
        return f"{name} is {full}, not {known}; pass {_for_rows(name, kind, 'an array')}."
    return f"{name} is {full}, not {known}; convert it with that library's own asarray, or numpy.asarray."


def _for_rows(name: str, kind: type, conversion: str) -> str:
    """Return code that converts `name`. Inputs in a table are converted by an estimator, because they may be dates."""
    if name not in ("X", "x") or kind.__name__ not in TABLES + COLUMNS:
        return conversion
    estimator = "the GPRegressor or GPClassifier, in which dates are days"
    return f"model_inputs(table) of {estimator}, or {conversion} if all cells are numbers"


def _candidates(x: Any) -> Iterator[str]:
    """Yield names of backends that may support x, from its base classes, its namespace, and all imported libraries."""
    seen: dict[str, None] = {}
    for cls in type(x).__mro__[:-1]:
        seen |= {name: None for name, B in _REGISTERED.items() if cls in B.array_types}
        seen |= {name: None for name in _entry_points() if _is_within(cls.__module__, name)}
    yield from seen
    if type(x).__module__ == "builtins":
        return
    # the type may be defined outside the package, for example in a compiled module
    namespace = ""
    with contextlib.suppress(Exception):
        namespace = x.__array_namespace__().__name__
    inside = [name for name in _entry_points() if name not in seen and _is_within(namespace, name)]
    yield from inside
    seen |= dict.fromkeys(inside)
    yield from (name for name in _names() if name not in seen and (name in _REGISTERED or name in sys.modules))


def _is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")
