"""Backends: what an array library must bring beyond the Array API standard, and how one is found.

A plug-in is a subclass of `Backend` with one instance per library, announced by an entry point in the group
``agp.backends`` whose name is the import name of the library. Nothing stores a backend: every function that needs one
asks `backend_of(array)`, one dictionary look-up on the type of the array.
"""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import resource
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from agp.errors import BackendError
from agp.ledger import collected

__all__ = [
    "Array",
    "Backend",
    "BackendStatus",
    "Pullback",
    "backend_of",
    "get_backend",
    "known_backends",
    "like",
    "to_numpy",
]

Array: TypeAlias = Any
"""An array of any library that follows the standard; its shape stands in the docstring of whatever takes it."""

Pullback: TypeAlias = Callable[..., Any]
"""Maps the cotangents of a function's outputs to the cotangents of its inputs."""

GROUP = "agp.backends"


class Backend(ABC):
    """What the mathematics asks of an array library; the defaults are right for eager libraries without autodiff.

    A plug-in sets the class attributes and supplies at least `cholesky`, `solve_triangular`, `special`, `from_numpy`
    and `to_numpy`.
    """

    name: str
    """The name that users type, which is also the import name of the library."""
    xp: Any
    """The namespace of the standard."""
    array_types: tuple[type, ...]
    """The types whose instances this backend serves."""
    refused_types: tuple[type, ...] = ()
    """Subclasses of those that do not behave as arrays of the standard."""
    gradients: tuple[str, ...] = ("closed-form",)
    """The gradient modes on offer."""
    conformance: bool = False
    """True for a library that exists to test conformance: it is never chosen unless named."""

    # -- arrays -----------------------------------------------------------------------------------------------------

    def version(self) -> str:
        """The version of the array library."""
        return importlib.metadata.version(self.name)

    def devices(self) -> list[str]:
        """Names of the devices that arrays can be put on here."""
        return ["cpu"]

    def device_name(self, x: Array, /) -> str:
        """The name of the device that holds x; empty while x is traced."""
        return str(x.device)

    def like(self, x: Array, /) -> dict[str, Any]:
        """The keywords with which a new array gets the dtype and device of x."""
        return {"dtype": x.dtype, "device": x.device}

    @abstractmethod
    def from_numpy(self, x: Any, /, *, dtype: str | None = None, device: str | None = None) -> Array:
        """Copy a host array to this library; the dtype is kept unless named."""

    @abstractmethod
    def to_numpy(self, x: Array, /) -> Any:
        """The array on the host, as NumPy; it may share the memory of x."""

    def synchronise(self, x: Array, /) -> None:  # noqa: B027 - nothing to wait for where libraries are eager
        """Wait until the device has computed x."""

    def peak_memory(self) -> float:
        """Largest memory so far, in MiB: of the device's allocator where there is one, of the process elsewhere."""
        status = Path("/proc/self/status")
        if status.exists():  # Linux; the other counter starts at the memory of the process that started this one
            for line in status.read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return float(line.split()[1]) / 2**10
        unit = 2**20 if sys.platform == "darwin" else 2**10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit

    def is_concrete(self, x: Array, /) -> bool:
        """Whether x has values that the host can read now; False while a function is being traced."""
        return True

    # -- mathematics beyond the standard ----------------------------------------------------------------------------

    @abstractmethod
    def cholesky(self, A: Array, /) -> Array:
        """Lower factor L with L L^T = A [..., M, M]; NaN on the diagonal, and no exception, where A has none."""

    @abstractmethod
    def solve_triangular(self, L: Array, B: Array, /, *, transpose: bool = False) -> Array:
        """L^-1 B, or L^-T B, for lower L [M, M] and B [M, N]."""

    def special(self, name: str, x: Array, /) -> Array:
        """The special function of SciPy's name at x: log_ndtr, ndtr, erf, gammaln."""
        table = self._special_functions()
        if name not in table:
            msg = f"backend {self.name!r} has no special function {name!r}; it has {', '.join(sorted(table))}."
            raise BackendError(msg)
        return table[name](x)

    def _special_functions(self) -> Mapping[str, Callable[[Array], Array]]:
        return {}

    # -- control flow -----------------------------------------------------------------------------------------------

    # What is reported to `agp.repairs` inside a transformation belongs to its trace: a library that traces hands it
    # out beside the results, and reports it again outside.

    def cond(self, predicate: Array, if_true: Callable[[], Any], if_false: Callable[[], Any], /) -> Any:
        """`if_true()` where the 0-d predicate holds, else `if_false()`; both give the same shapes."""
        return if_true() if bool(predicate) else if_false()

    def while_loop(self, condition: Callable[..., Array], body: Callable[..., tuple], carry: tuple, /) -> tuple:
        """Repeat `carry = body(*carry)` while `condition(*carry)`; never differentiated."""
        while bool(condition(*carry)):
            carry = body(*carry)
        return carry

    def fold(self, f: Callable, params: Any, blocks: Sequence, /, *, add: Callable) -> tuple[Any, Pullback]:
        """The sum of `f(params, block)[0]` over the blocks, with its pullback to params, in the memory of one block.

        `f(params, block)` returns a value and its pullback to params. Each block is evaluated once for the value and
        again in the pullback, and nothing is kept between.
        """
        value_of = self.remat(lambda params, block: f(params, block)[0])
        total = None
        for block in blocks:
            total = add(total, value_of(params, block))

        def pullback(bar):
            params_bar = None
            with collected():  # what was repaired has been reported with the value
                for block in blocks:
                    params_bar = add(params_bar, f(params, block)[1](bar))
            return params_bar

        return total, pullback

    def remat(self, f: Callable, /) -> Callable:
        """f, whose intermediates automatic differentiation recomputes instead of keeping."""
        return f

    def compile(self, f: Callable, /) -> Callable:
        """f, compiled where the library can do so and get the same numbers."""
        return f

    # -- gradients --------------------------------------------------------------------------------------------------

    def stop_gradient(self, x: Array, /) -> Array:
        """X as a constant for automatic differentiation."""
        return x

    def value_and_grad(self, f: Callable, leaves: dict[str, Array], /) -> tuple[Array, dict[str, Array]]:
        """f(leaves) and its gradient by automatic differentiation."""
        msg = f"backend {self.name!r} has no automatic differentiation; use gradient='closed-form'."
        raise BackendError(msg)


# -- discovery ------------------------------------------------------------------------------------------------------


class BackendStatus(NamedTuple):
    """One line of `agp backends`."""

    name: str
    usable: bool
    reason: str
    version: str
    devices: list[str]
    gradients: tuple[str, ...]
    conformance: bool


@cache
def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}


@cache
def get_backend(name: str) -> Backend:
    """The backend of that name, its library imported now.

    Raises
    ------
    BackendError
        If no plug-in has the name (the known ones are listed), or if its library is not installed.
    """
    points = _entry_points()
    if name not in points:
        msg = f"unknown backend {name!r}; known are {', '.join(sorted(points))}."
        raise BackendError(msg)
    if importlib.util.find_spec(name) is None:
        msg = f'backend {name!r} needs the package {name}, which is not installed: pip install "agp[{name}]".'
        raise BackendError(msg)
    try:
        return points[name].load()()
    except (ImportError, OSError, TypeError) as error:  # TypeError: a plug-in that lacks a method
        msg = f"backend {name!r} is installed but cannot be used: {error}"
        raise BackendError(msg) from error


def known_backends() -> list[BackendStatus]:
    """The state of every plug-in that is announced, usable or not, in the order of their names."""
    return [_status(name) for name in sorted(_entry_points())]


def _status(name: str) -> BackendStatus:
    try:
        B = get_backend(name)
    except BackendError as error:
        return BackendStatus(name, False, str(error), "", [], (), False)
    try:
        devices = B.devices()
    except RuntimeError as error:  # a driver that is missing or too old
        return BackendStatus(name, False, str(error), B.version(), [], B.gradients, B.conformance)
    reason = "" if devices else "no device"
    return BackendStatus(name, bool(devices), reason, B.version(), devices, B.gradients, B.conformance)


_BY_TYPE: dict[type, Backend] = {}


def backend_of(x: Array, /) -> Backend:
    """The backend that serves the type of x (a tracer counts).

    Raises
    ------
    TypeError
        If x is not an array of a known library.
    """
    try:
        return _BY_TYPE[type(x)]
    except KeyError:
        return _BY_TYPE.setdefault(type(x), _resolve(type(x)))


def _resolve(kind: type) -> Backend:
    # An array exists, so its library has been imported: only those plug-ins need to be loaded.
    for name in _entry_points():
        if name in sys.modules:
            with contextlib.suppress(BackendError):
                B = get_backend(name)
                if issubclass(kind, B.array_types) and not issubclass(kind, B.refused_types):
                    return B
    msg = (
        f"{kind.__module__}.{kind.__qualname__} is not an array of a known library "
        f"({', '.join(sorted(_entry_points()))}); convert it with agp.to_backend or the library's own asarray."
    )
    raise TypeError(msg)


def like(x: Array, /) -> dict[str, Any]:
    """dtype= and device= for creation calls: ``xp.eye(M, **like(x))``."""
    return backend_of(x).like(x)


def to_numpy(x: Array, /) -> Any:
    """An array of any library and device on the host, on purpose; it may share the memory of x."""
    return backend_of(x).to_numpy(x)
