"""The arrays of a library: what they are called, where they lie, how they come and go."""

import contextlib
import importlib.metadata
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from agp.backend._types import Array
from agp.random import generator

__all__ = ["Library", "is_row_major"]

DTYPES = ("float64", "float32", "int64", "int32", "bool", "int16", "int8", "uint8", "complex128", "complex64")
"""Names of dtypes of the standard, the frequent ones first."""


@lru_cache(maxsize=4096)  # asked of every array that training holds, in every step
def is_row_major(shape: tuple[int, ...], strides: tuple[int, ...], step: int = 1) -> bool:
    """Whether these are the strides of a new array of the shape, in units of which an entry takes `step`.

    Axes of length 1 count as well: libraries call any stride of theirs contiguous, but hand some to other products.
    """
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if stride != step:
            return False
        step *= max(length, 1)
    return True


class Library(ABC):
    """The names and types that a plug-in sets, and its arrays: devices, dtypes, copies from and to the host."""

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
    special_module: str = ""
    """The library's own module of special functions, under the names of SciPy; imported when one is asked for."""
    special_functions: ClassVar[Mapping[str, Callable[..., Array]]] = {}
    """Special functions by SciPy's name, where that module has none of the name or a worse one."""
    triangular_block: float = 128
    """Triangular matrices up to this size are multiplied at once by `agp.linalg`, larger ones in halves. To be raised
    where `triangular_product` skips the zeros."""
    needs_context: bool = False
    """Whether `context` sets anything that this thread has not set already."""
    loops_on_device: bool = False
    """Whether `repeat`, compiled, is a loop on the device."""
    is_lazy: bool = False
    """Whether arrays are lazy or distributed rows of data: `fold` sums over them in place, `gathered` loads them."""
    conformance: bool = False
    """True for a library that exists to test conformance: it is never chosen unless named."""

    def version(self) -> str:
        """The version of the array library."""
        package = self.name.partition(".")[0]
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
        distributions = importlib.metadata.packages_distributions().get(package, [])  # slow: every file is looked at
        return importlib.metadata.version(distributions[0]) if distributions else ""

    def devices(self) -> list[str]:
        """Names of the devices that arrays can be put on here."""
        return ["cpu"]

    def device_name(self, x: Array, /) -> str:
        """The name of the device that holds x, one of `devices()`; empty while x is traced."""
        return str(x.device)

    def like(self, x: Array, /) -> dict[str, Any]:
        """The keywords with which a new array gets the dtype and device of x."""
        return {"dtype": x.dtype, "device": x.device}

    def dtype_name(self, x: Array, /) -> str:
        """The name of the dtype of x, as NumPy has it."""
        return next(name for name in DTYPES if getattr(self.xp, name) == x.dtype)

    def widest_float(self, x: Array, /) -> Any:
        """The widest real floating-point dtype on the device of x: float64 where there is one."""
        found = self.xp.__array_namespace_info__().dtypes(device=x.device, kind="real floating")
        return found.get("float64", x.dtype)

    @abstractmethod
    def from_numpy(self, x: Any, /, *, dtype: str | None = None, device: str | None = None) -> Array:
        """Copy a host array to this library, on the device of that name; the dtype is kept unless named."""

    @abstractmethod
    def to_numpy(self, x: Array, /) -> Any:
        """The array on the host, as NumPy; it may share the memory of x."""

    def row_major(self, x: Array, /) -> Array:
        """The array as one that comes from a file lies in memory: row after row, without gaps; x itself if it does.

        Sums and products of the same numbers in another layout are rounded in another way, and so are, in some
        libraries, those of arrays that begin elsewhere than a new one. By default x: for libraries whose arrays all lie
        alike.
        """
        return x

    def row_major_each(self, arrays: Sequence[Array], /) -> list[Array]:
        """`row_major` of each of several arrays."""
        return list(map(self.row_major, arrays))

    def generator(self, x: Array, /, *seeds: Any) -> Any:
        """A generator of random numbers for arrays like x, the same for the same seeds: an `agp.random.Noise`.

        By default NumPy's generator, whose numbers come from the host. The last of the seeds may be traced where
        `loops_on_device`.
        """
        return generator(*seeds)

    def synchronise(self, x: Array, /) -> None:  # noqa: B027 - nothing to wait for where libraries are eager
        """Wait until the device has computed x."""

    def reading_waits(self, x: Array, /) -> bool:
        """Whether the host waits for a device when it reads a number that is computed from x."""
        return False

    def peak_memory(self, x: Array, /) -> float:
        """Largest memory so far, in MiB: of the allocator of x's device, or of the process where x is on the host."""
        status = Path("/proc/self/status")
        if status.exists():  # Linux; the other counter starts at the memory of the process that started this one
            for line in status.read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return float(line.split()[1]) / 2**10
        import resource  # not on Windows

        unit = 2**20 if sys.platform == "darwin" else 2**10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit

    def device_memory(self, x: Array, /) -> float | None:
        """All memory of the device of x, used or free, in MiB; None where x is on the host.

        The same number in every run on the device, as far as the library can tell: blocks of rows follow it. While x is
        traced, that of the usual device.
        """
        return None

    def enable_float64(self) -> None:  # noqa: B027 - most libraries have it
        """Make float64 arrays possible for the whole process: for programs that own it, never for a library."""

    def is_concrete(self, x: Array, /) -> bool:
        """Whether x has values that the host can read now; False while a function is being traced."""
        return True

    def context(self, x: Array, /) -> contextlib.AbstractContextManager[Any]:
        """Inside, this library computes with arrays like x, whose library and thread have the settings for that.

        For libraries that compute on a current device, which becomes that of x, and for those that round what they
        multiply to fewer digits on some devices: products become as precise as their dtype, unless the user has asked
        for less. On a CPU, pools of threads are kept to one. All is as before outside. Where it sets anything,
        `needs_context` is True.
        """
        return contextlib.nullcontext()
