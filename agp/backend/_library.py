"""Arrays of a library: their types, devices and dtypes, and transfers to and from the host."""

import contextlib
import importlib.metadata
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from agp.random import generator

Array: TypeAlias = Any
"""An array of any library that follows the Array API standard; docstrings give the shapes."""

Pullback: TypeAlias = Callable[..., Any]
"""A function from the cotangents of a function's outputs to the cotangents of its inputs."""

ClosedForm: TypeAlias = Callable[
    [dict[str, Array]], tuple[Array, Callable[[Array, tuple[str, ...]], Mapping[str, Array]]]
]
"""A function of named arrays that returns a value and a pullback, for `Backend.with_pullback`."""


def has_pullback(result: Any, /) -> bool:
    """Whether the result of a function is a pair of its value and its pullback."""
    return type(result) is tuple and len(result) == 2 and callable(result[1])


DTYPES = ("float64", "float32", "int64", "int32", "bool", "int16", "int8", "uint8", "complex128", "complex64")
"""Names of the standard's dtypes, frequent ones first."""


@lru_cache(maxsize=4096)  # called for every array of the training state in every step
def is_row_major(shape: tuple[int, ...], strides: tuple[int, ...], step: int = 1) -> bool:
    """Whether these are the strides of a new row-major array with this shape and entries of size `step`.

    The strides of axes with length 1 must agree, too. Libraries ignore such strides when they test for contiguity, but
    not when they choose a routine.
    """
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if stride != step:
            return False
        step *= max(length, 1)
    return True


class Library(ABC):
    """Attributes of a plug-in, and operations on its arrays: devices, dtypes, and transfers from and to the host."""

    name: str
    """Name of the backend, which is the import name of the library."""
    xp: Any
    """Array API namespace of the library."""
    array_types: tuple[type, ...]
    """Array types of the library."""
    refused_types: tuple[type, ...] = ()
    """Subclasses of `array_types` that do not behave like arrays of the standard."""
    gradients: tuple[str, ...] = ("closed-form",)
    """Available gradient modes."""
    special_module: str = ""
    """Name of the library's module with special functions under SciPy's names, imported when first used."""
    special_functions: ClassVar[Mapping[str, Callable[..., Array]]] = {}
    """Special functions, by SciPy's names, that `special_module` lacks or computes less accurately."""
    triangular_block: float = 128
    """Size up to which `agp.linalg` multiplies triangular matrices without splitting them. Raise it if
    `triangular_product` skips the zeros."""
    needs_context: bool = False
    """Whether `context` would change a setting of the current thread."""
    loops_on_device: bool = False
    """Whether `repeat` compiles to a loop on the device."""
    is_lazy: bool = False
    """Whether arrays are lazy or distributed rows of data, which `fold` sums in place and `gather` loads."""
    conformance: bool = False
    """Whether the library tests conformance to the standard; such a library must be selected by name."""

    def version(self) -> str:
        """Version of the array library."""
        package = self.name.partition(".")[0]
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
        distributions = importlib.metadata.packages_distributions().get(package, [])  # slow: reads all packages
        return importlib.metadata.version(distributions[0]) if distributions else ""

    def devices(self) -> list[str]:
        """List the names of the available devices."""
        return ["cpu"]

    def device_name(self, x: Array, /) -> str:
        """Name of the device of x, one of `devices()`; an empty string while x is traced.

        By default, it is the text of the device, or "cpu" if the plug-in does not override `devices`.
        """
        return "cpu" if type(self).devices is Library.devices else str(x.device)

    def like(self, x: Array, /) -> dict[str, Any]:
        """Keyword arguments that create an array with the dtype and device of x."""
        return {"dtype": x.dtype, "device": x.device}

    def dtype_name(self, x: Array, /) -> str:
        """NumPy name of the dtype of x."""
        return next(name for name in DTYPES if getattr(self.xp, name) == x.dtype)

    def widest_float(self, x: Array, /) -> Any:
        """Widest real floating-point dtype on the device of x: float64 if available."""
        found = self.xp.__array_namespace_info__().dtypes(device=x.device, kind="real floating")
        return found.get("float64", x.dtype)

    def conversion(self, name: str, x: Array, dtype: str, /) -> str:
        """Code that converts the array x, which has this name, to a dtype on its device; error messages show it.

        Users may put it into programs that are differentiated, so it should keep gradients if the library has them.
        """
        device = self.device_name(x)
        place = f', device="{device}"' if device not in ("", "cpu") else ""
        return f'agp.to_backend({name}, "{self.name}", dtype="{dtype}"{place})'

    @abstractmethod
    def from_numpy(self, x: Any, /, *, dtype: str | None = None, device: str | None = None) -> Array:
        """Copy a host array to an array of this library on the named device; by default, the dtype is kept."""

    @abstractmethod
    def to_numpy(self, x: Array, /) -> Any:
        """Convert x to a NumPy array on the host, which may share the memory of x."""

    def row_major(self, x: Array, /) -> Array:
        """Return x in row-major order without gaps, like an array read from a file; x is copied only if necessary.

        The rounding of sums and products depends on the memory layout, and in some libraries on the alignment. The
        default returns x, for libraries with a single memory layout.
        """
        return x

    def row_major_each(self, arrays: Sequence[Array], /) -> list[Array]:
        """Apply `row_major` to each array."""
        return list(map(self.row_major, arrays))

    def generator(self, x: Array, /, *seeds: Any) -> Any:
        """Create a reproducible random number generator, an `agp.random.Noise`, for the dtype and device of x.

        The default is NumPy's generator on the host. If `loops_on_device` is True, the last seed may be traced.
        """
        return generator(*seeds)

    def synchronise(self, x: Array, /) -> None:  # noqa: B027 - eager libraries on the host need not wait
        """Wait until the device has computed x."""

    def reading_waits(self, x: Array, /) -> bool:
        """Whether reading a number computed from x makes the host wait for a device."""
        return False

    def peak_memory(self, x: Array, /) -> float:
        """Peak memory in MiB of the device allocator for x, or of the process if x is on the host.

        The peak memory of the process is NaN on Windows.
        """
        status = Path("/proc/self/status")
        if status.exists():  # Linux: `resource` would include the memory of the parent process
            for line in status.read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return float(line.split()[1]) / 2**10
        try:
            import resource
        except ImportError:
            return math.nan
        unit = 2**20 if sys.platform == "darwin" else 2**10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit

    def device_memory(self, x: Array, /) -> float | None:
        """Total memory, used or free, on the device of x in MiB; None if x is on the host.

        The value should be the same in every run, since it determines the size of row blocks. While x is traced, the
        default device is used.
        """
        return None

    def enable_float64(self) -> None:  # noqa: B027 - most libraries have it
        """Enable float64 arrays in the whole process; libraries should not call this method, but programs may."""

    def float64_context(self) -> contextlib.AbstractContextManager[Any]:
        """Context manager inside which the library has float64 arrays, for `agp.testing.check_pullback`."""
        return contextlib.nullcontext()

    def is_concrete(self, x: Array, /) -> bool:
        """Whether x has values that the host can read now; False while a function is being traced."""
        return True

    def context(self, x: Array, /) -> contextlib.AbstractContextManager[Any]:
        """Context manager with the library and thread settings for computations on the device of x.

        If the library has a current device, the context sets it to the device of x. Products are computed in the
        precision of their dtype, unless the user has chosen a lower precision; torch's autocast is off. On a CPU,
        thread pools are limited to one thread. The user's settings are restored on exit. If the context changes a
        setting, `needs_context` is True.
        """
        return contextlib.nullcontext()
