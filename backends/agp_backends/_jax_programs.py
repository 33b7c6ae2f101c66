"""Compiled programs of JAX, which later calls with the same function, settings and outline of the arguments share."""

import dataclasses
import os
import types
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache, lru_cache, partial, wraps
from typing import Any, NamedTuple

import jax
import numpy as np

from agp.repairs import Report, pack_reports
from agp_backends._jax_devices import bind_device, is_on_cpu
from agp_backends._jax_traces import OUTERMOST, current_trace, pass_reports_on, with_reports

MAX_PROGRAMS = 32
"""The number of programs that are kept, of some MiB each. The one looked up longest ago is dropped first."""

QUICK_OPTIONS = {"xla_cpu_use_fusion_emitters": False}
"""XLA options for a CPU: they disable the fusion emitters, which take a quarter of the compilation time without
speeding up the code."""

PLAIN = (types.NoneType, bool, int, float, complex, str, bytes, type, Enum)
"""Types of settings that are compared by their value."""


class _Unknown(Exception):  # noqa: N818 - it never leaves this module
    """A setting whose effect on a program cannot be compared, such as an array or a closure."""


def compile_shared(f: Callable, /) -> Callable:
    """Compile f, or use the program of an equal call.

    Programs are shared if f is a function of an imported module, or a `functools.partial` of one whose arguments are
    settings: plain values, functions of imported modules, frozen dataclasses, and tuples, lists and mappings of them.
    Closures, and functions and classes of ``__main__``, are compiled anew, because what they read may have changed.
    A kept program holds no arguments but the settings.
    """
    found: list[Callable] = []

    def compiled(*args: Any) -> Any:
        if not found:
            found.append(_find_program(f, args))
        return found[0](*args)

    return compiled


class _Shared(NamedTuple):
    """What distinguishes programs: the key of a function, and the function itself, which is not compared."""

    key: tuple[Any, ...]
    f: Callable

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shared) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def _find_program(f: Callable, args: tuple[Any, ...]) -> Callable:
    try:
        leaves, structure = jax.tree.flatten(args)
        shapes = tuple((x.shape, x.dtype) if isinstance(x, (jax.Array, np.ndarray)) else type(x) for x in leaves)
        shared = _Shared((_key_of_function(f), _key_of_structure(structure), shapes), f)
    except _Unknown:
        return _compile(f)
    return _keep_program(shared)


@lru_cache(maxsize=MAX_PROGRAMS)
def _keep_program(shared: _Shared) -> Callable:
    return _compile(shared.f)


def _key_of_function(f: Any) -> tuple[Any, ...]:
    whole = f if isinstance(f, partial) else partial(f)
    if not isinstance(whole.func, types.FunctionType) or "<locals>" in whole.func.__qualname__:
        raise _Unknown
    return _check_imported(whole.func), _key_of(whole.args), _key_of(whole.keywords)


def _key_of_structure(structure: Any) -> tuple[Any, ...]:
    """Return the classes and settings in the structure of a pytree, with the types of the settings."""
    node = structure.node_data()
    inside = tuple(map(_key_of_structure, structure.children()))
    return inside if node is None else (_check_imported(node[0]), _key_of(node[1]), inside)


def _key_of(x: Any) -> Any:
    """Return a hashable value that is equal for settings with equal effects. 1, 1.0 and True have other effects."""
    if isinstance(x, PLAIN):
        return type(x), repr(x) if isinstance(x, (float, complex)) else x
    if isinstance(x, (tuple, list)):
        return type(x), tuple(map(_key_of, x))
    if isinstance(x, (partial, types.FunctionType)):
        return _key_of_function(x)
    if isinstance(x, Mapping):
        return type(x), tuple((_key_of(name), _key_of(value)) for name, value in x.items())
    declared = vars(type(x)).get("__dataclass_params__")  # not that of a base class, whose fields may not be all
    if declared is not None and declared.frozen:
        return _check_imported(type(x)), tuple(_key_of(getattr(x, field.name)) for field in dataclasses.fields(x))
    raise _Unknown


def _check_imported(code: Any) -> Any:
    """Return a function or a class, unless it belongs to ``__main__``, where the globals that it reads may change."""
    if code.__module__ == "__main__":
        raise _Unknown
    return code


def _compile(f: Callable) -> Callable:
    @wraps(f.func if isinstance(f, partial) else f)  # for the name in JAX's logs and profiles
    def recorded(*args: Any) -> tuple[Any, list[Report]]:
        value, reports = with_reports(f)(*args)
        return value, pack_reports(reports)

    # results of a compiled step are committed to a device; uncommitted arguments would compile it twice
    quick = jax.jit(recorded, compiler_options=QUICK_OPTIONS) if takes(**QUICK_OPTIONS) else jax.jit(recorded)
    anywhere, on_cpu = pass_reports_on(jax.jit(recorded)), pass_reports_on(quick)

    def compiled(*args: Any) -> Any:
        if current_trace() != OUTERMOST or any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(args)):
            return anywhere(*args)  # inside another transformation, its options apply
        bound = jax.tree.map(bind_device, args)
        return (on_cpu if is_on_cpu(bound) else anywhere)(*bound)

    return compiled


@cache
def takes(**options: Any) -> bool:
    """Whether this version of JAX accepts all these options, and the user has set none of them."""
    if any(name in os.environ.get("XLA_FLAGS", "") for name in options):
        return False
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except (TypeError, RuntimeError):  # no such argument, no such option
        return False
    return True
