"""The arrays of a library: their types, devices and dtypes, and transfers to and from the host."""

import contextlib
import importlib.metadata
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from agp.random import generator

Array: TypeAlias = Any
"""An array of any library that follows the standard; docstrings give the shapes."""

Pullback: TypeAlias = Callable[..., Any]
"""Maps the cotangents of a function's outputs to the cotangents of its inputs."""

ClosedForm: TypeAlias = Callable[
    [dict[str, Array]], tuple[Array, Callable[[Array, tuple[str, ...]], Mapping[str, Array]]]
]
"""A function of named arrays with its pullback, as `Backend.with_pullback` takes it."""

DTYPES = ("float64", "float32", "int64", "int32", "bool", "int16", "int8", "uint8", "complex128", "complex64")
"""Names of dtypes of the standard, frequent ones first."""


@lru_cache(maxsize=4096)  # called for every array of the training state in every step
def is_row_major(shape: tuple[int, ...], strides: tuple[int, ...], step: int = 1) -> bool:
    """Whether these are the strides of a new array of the shape, for entries of size `step`.

    The strides of axes of length 1 count too: libraries ignore them for contiguity, but not for the choice of routines.
    """
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if stride != step:
            return False
        step *= max(length, 1)
    return True


class Library(ABC):
    """The attributes that a plug-in sets, and its arrays: devices, dtypes, transfers from and to the host."""

    name: str
    """The name for users, and the import name of the library."""
    xp: Any
    """The namespace of the standard."""
    array_types: tuple[type, ...]
    """The types of arrays that this backend serves."""
    refused_types: tuple[type, ...] = ()
    """Subclasses of those that do not behave like arrays of the standard."""
    gradients: tuple[str, ...] = ("closed-form",)
    """The available gradient modes."""
    special_module: str = ""
    """The library's module of special functions with SciPy's names, imported at the first use."""
    special_functions: ClassVar[Mapping[str, Callable[..., Array]]] = {}
    """Special functions by SciPy's name, if that module has none or a worse one."""
    triangular_block: float = 128
    """The largest triangular matrices that `agp.linalg` multiplies at once; larger ones are halved. Raise it if
    `triangular_product` skips the zeros."""
    needs_context: bool = False
    """Whether `context` would change any setting of this thread."""
    loops_on_device: bool = False
    """Whether `repeat` compiles to a loop on the device."""
    is_lazy: bool = False
    """Whether arrays are lazy or distributed rows of data: `fold` sums over them in place, `gathered` loads them."""
    conformance: bool = False
    """True for a library that tests conformance, which is only chosen by name."""

    def version(self) -> str:
        """The version of the array library."""
        package = self.name.partition(".")[0]
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
        distributions = importlib.metadata.packages_distributions().get(package, [])  # slow: reads all packages
        return importlib.metadata.version(distributions[0]) if distributions else ""

    def devices(self) -> list[str]:
        """Names of the available devices."""
        return ["cpu"]

    def device_name(self, x: Array, /) -> str:
        """The name of the device of x, one of `devices()`; empty while x is traced."""
        return str(x.device)

    def like(self, x: Array, /) -> dict[str, Any]:
        """The keywords that give a new array the dtype and device of x."""
        return {"dtype": x.dtype, "device": x.device}

    def dtype_name(self, x: Array, /) -> str:
        """NumPy's name of the dtype of x."""
        return next(name for name in DTYPES if getattr(self.xp, name) == x.dtype)

    def widest_float(self, x: Array, /) -> Any:
        """The widest real floating-point dtype on the device of x: float64 if there is one."""
        found = self.xp.__array_namespace_info__().dtypes(device=x.device, kind="real floating")
        return found.get("float64", x.dtype)

    @abstractmethod
    def from_numpy(self, x: Any, /, *, dtype: str | None = None, device: str | None = None) -> Array:
        """Copy a host array to this library, on a device by name; the dtype is kept unless given."""

    @abstractmethod
    def to_numpy(self, x: Array, /) -> Any:
        """The array as a NumPy array on the host; it may share the memory of x."""

    def row_major(self, x: Array, /) -> Array:
        """The array in row-major order without gaps, like one read from a file; x itself if it is so already.

        Sums and products round differently in other memory layouts, and in some libraries with other alignments. The
        default, x, is for libraries with a single layout.
        """
        return x

    def row_major_each(self, arrays: Sequence[Array], /) -> list[Array]:
        """`row_major` of each of several arrays."""
        return list(map(self.row_major, arrays))

    def generator(self, x: Array, /, *seeds: Any) -> Any:
        """A generator of random numbers for arrays like x, the same for the same seeds: an `agp.random.Noise`.

        By default NumPy's generator, on the host. The last of the seeds may be traced if `loops_on_device`.
        """
        return generator(*seeds)

    def synchronise(self, x: Array, /) -> None:  # noqa: B027 - eager libraries on the host need not wait
        """Wait until the device has computed x."""

    def reading_waits(self, x: Array, /) -> bool:
        """Whether the host waits for a device when it reads a number computed from x."""
        return False

    def peak_memory(self, x: Array, /) -> float:
        """The peak memory in MiB of the allocator of x's device, or of the process if x is on the host."""
        status = Path("/proc/self/status")
        if status.exists():  # Linux; the other counter includes the memory of the parent process
            for line in status.read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return float(line.split()[1]) / 2**10
        import resource  # not on Windows

        unit = 2**20 if sys.platform == "darwin" else 2**10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit

    def device_memory(self, x: Array, /) -> float | None:
        """The total memory of the device of x in MiB, used or free; None if x is on the host.

        It should be the same in every run, since blocks of rows follow it. While x is traced, that of the default
        device.
        """
        return None

    def enable_float64(self) -> None:  # noqa: B027 - most libraries have it
        """Enable float64 arrays in the whole process: for programs, never for libraries."""

    def is_concrete(self, x: Array, /) -> bool:
        """Whether x has values that the host can read now; False while a function is being traced."""
        return True

    def context(self, x: Array, /) -> contextlib.AbstractContextManager[Any]:
        """A context with the settings of library and thread for computations with arrays like x.

        The current device, if a library has one, is that of x; products are as precise as their dtype, unless the user
        has asked for less; on a CPU, thread pools are limited to one thread. The user's settings are restored on exit.
        If it sets anything, `needs_context` is True.
        """
        return contextlib.nullcontext()
