"""CuPy: closed-form gradients on CUDA devices.

New arrays go to the device that a call names, which is that of the data (`like`). CuPy itself has one current device
for each thread, on which it runs its kernels: public entrances make it that of the data (`context`).
Nothing of `cupyx` that needs CUDA libraries is imported before it is used.
"""

import functools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import array_api_compat.cupy as compat
import cupy
import numpy as np

from agp.backend import Array, Backend, is_row_major
from agp.draws import Noise
from agp_backends._cuda import whole_block
from agp_backends._together import joined_where_small


def _on_device(create: Callable) -> Callable:
    """A creation function that heeds device=, which the wrapper of the standard takes and ignores."""

    @functools.wraps(create)
    def created(*args: Any, device: Any = None, **keywords: Any) -> Array:
        with device or cupy.cuda.Device():
            return create(*args, **keywords)

    return created


def _beside(create: Callable) -> Callable:
    """A function whose new array lies on device=, or else where its first argument does."""

    @functools.wraps(create)
    def created(x: Array, /, *args: Any, device: Any = None, **keywords: Any) -> Array:
        with device or x.device:
            return create(x, *args, **keywords)

    return created


def _eigh(A: Array, /) -> Any:
    """`linalg.eigh` of A [..., N, N], where the library's routine for several matrices is slow for large ones."""
    if A.ndim == 2 or A.shape[-1] <= JACOBI:
        return compat.linalg.eigh(A)
    found = [_eigh(a) for a in A]
    return type(found[0])(*(cupy.stack(parts) for parts in zip(*found, strict=True)))


def _clip(x: Array, /, min: Any = None, max: Any = None) -> Array:  # noqa: A002 - the standard's names
    # CuPy's own, one kernel: the wrapper of the standard looks at masks, and its bounds travel
    return cupy.clip(x, min, max)


JACOBI = 32
"""Rows of matrices up to which Jacobi's rotations of several at once are faster than one matrix after another."""
NEW = ("arange", "asarray", "empty", "eye", "full", "linspace", "ones", "zeros")
NEW_LIKE = ("astype", "empty_like", "full_like", "ones_like", "zeros_like")


@functools.cache
def _memory(number: int) -> float:
    """All memory of the device of that number, in MiB: asked for once, for the driver takes its time."""
    return cupy.cuda.Device(number).mem_info[1] / 2**20


class _Noise(Noise):
    """Random numbers of the dtype of an array, by a generator on its device."""

    def __init__(self, beside: Array, seeds: tuple[int, ...]) -> None:
        self._device, self._dtype = beside.device, beside.dtype
        with self._device:
            bits = cupy.random.Philox4x3210(np.random.SeedSequence(seeds))
            self._source = cupy.random.Generator(bits)

    def standard_normal(self, size: Any = ()) -> Array:
        with self._device:
            return self._source.standard_normal(size, dtype=self._dtype)

    def integers(self, low: int, high: int, size: Any = ()) -> Array:
        with self._device:
            return self._source.integers(low, high, size)


class CupyBackend(Backend):
    name = "cupy"
    xp = SimpleNamespace(
        **vars(compat)
        | {name: _on_device(getattr(compat, name)) for name in NEW}
        | {name: _beside(getattr(compat, name)) for name in NEW_LIKE}
        | {"linalg": SimpleNamespace(**vars(compat.linalg) | {"eigh": _eigh})}
        | {"clip": _clip}
    )
    array_types = (cupy.ndarray,)
    special_module = "cupyx.scipy.special"
    needs_context = True

    # -- arrays -----------------------------------------------------------------------------------------------------

    def devices(self) -> list[str]:
        if not cupy.cuda.is_available():
            return []
        return [f"cuda:{i}" for i in range(cupy.cuda.runtime.getDeviceCount())]

    def device_name(self, x: Array, /) -> str:
        return f"cuda:{x.device.id}"

    def widest_float(self, x: Array, /) -> Any:
        return np.dtype(np.float64)

    def from_numpy(self, x: Any, /, *, dtype: str | None = None, device: str | None = None) -> Array:
        with self._device(device):
            return cupy.array(np.asarray(x, dtype=dtype))

    def row_major(self, x: Array, /) -> Array:
        return x if is_row_major(x.shape, x.strides, x.itemsize) else cupy.array(x, order="C")

    def _device(self, name: str | None) -> Any:
        """The device of a name; the current one by default."""
        library, _, number = (name or "cuda").partition(":")
        if library != "cuda" or not (number.isdigit() or not number):
            msg = f"CuPy has no device {name!r}; it has {', '.join(self.devices()) or 'none here'}."
            raise ValueError(msg)
        return cupy.cuda.Device(int(number)) if number else cupy.cuda.Device()

    def generator(self, x: Array, /, *seeds: int) -> Noise:
        return _Noise(x, seeds)

    def to_numpy(self, x: Array, /) -> Any:
        return cupy.asnumpy(x)

    def synchronise(self, x: Array, /) -> None:
        x.device.synchronize()

    def reading_waits(self, x: Array, /) -> bool:
        return True

    def peak_memory(self, x: Array, /) -> float:
        # the pool of a device never gives blocks back by itself, so its size is the peak
        with x.device:
            return cupy.get_default_memory_pool().total_bytes() / 2**20

    def device_memory(self, x: Array, /) -> float:
        return _memory(x.device.id)

    def context(self, x: Array, /) -> Any:
        return x.device

    # -- mathematics beyond the standard ----------------------------------------------------------------------------

    def device_block(self, x: Array, /) -> float:
        capability = x.device.compute_capability  # two or three digits, the last of which is the minor version
        return whole_block(x.dtype == np.float64, (int(capability[:-1]), int(capability[-1])))

    def elementwise_each(
        self, f: Callable[..., tuple], several: Sequence[tuple[Array, ...]], /, *, lower: Sequence[bool]
    ) -> list[tuple]:
        return joined_where_small(self, f, several)

    def add_diagonal(self, A: Array, d: Array | float, /) -> Array:
        out = A.copy(order="C")
        M = A.shape[-1]
        entries = out.reshape(*A.shape[:-2], M * M)[..., :: M + 1]  # a view
        entries += d
        return out

    def cholesky(self, A: Array, /) -> Array:
        if A.ndim > 2:  # the batched routine is slow for few matrices, and does not say which one failed
            return cupy.stack([self.cholesky(a) for a in A])
        from cupyx import errstate

        try:
            with errstate(linalg="raise"):
                return cupy.linalg.cholesky(A)
        except np.linalg.LinAlgError:
            return self.xp.full_like(A, np.nan)

    def solve_triangular(self, L: Array, B: Array, /, *, transpose: bool = False) -> Array:
        from cupyx.scipy.linalg import solve_triangular

        # cuBLAS takes Fortran order: L^T, upper, is that of L in C order, and is not copied
        return solve_triangular(L.mT, B, lower=False, trans=0 if transpose else 1, check_finite=False)
