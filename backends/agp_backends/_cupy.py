"""CuPy plug-in: closed-form gradients on CUDA devices.

agp creates new arrays on the device of the data (`like`). CuPy runs kernels on the thread's current device, which
public functions set to the device of the data (`context`). Parts of `cupyx` that require CUDA libraries are imported
when they are used.
"""

import functools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import array_api_compat.cupy as compat
import cupy
import numpy as np

from agp.backend import Array, Backend, is_row_major
from agp.random import Noise
from agp_backends._cuda import whole_block


def _on_device(name: str, *, like: bool = False) -> Callable:
    """Wrap a creation function so that it respects device=, which the compatibility wrapper ignores.

    The default is the current device, or the device of the first argument if `like` is True.
    """
    create = getattr(compat, name)

    @functools.wraps(create)
    def created(*args: Any, device: Any = None, **keywords: Any) -> Array:
        with device or (args[0].device if like else cupy.cuda.Device()):
            return create(*args, **keywords)

    return created


def _eigh(A: Array, /) -> Any:
    """Compute eigendecompositions of A [..., N, N]; the batched routine is used only for small matrices."""
    if A.ndim == 2 or A.shape[-1] <= JACOBI:
        return compat.linalg.eigh(A)
    found = [_eigh(a) for a in A]
    return type(found[0])(*(cupy.stack(parts) for parts in zip(*found, strict=True)))


def _clip(x: Array, /, min: Any = None, max: Any = None) -> Array:  # noqa: A002 - names of the standard
    """Clip x in a single kernel; the compatibility wrapper would transfer the limits and wait for masks."""
    return cupy.clip(x, min, max)


def _polygamma(n: int, x: Array, /) -> Array:
    """Polygamma function (-1)^(n+1) n! zeta(n+1, x); CuPy's own function does not accept a Python number n."""
    from cupyx.scipy.special import digamma, zeta

    return digamma(x) if n == 0 else (-1.0) ** (n + 1) * math.factorial(n) * zeta(n + 1.0, x)


def _potrf(A: Array) -> tuple[Array, Array]:
    """Lower factors of A [..., M, M], and the status [...] of cuSOLVER (0 for success), both on the device.

    `cupy.linalg.cholesky` either ignores the status or waits for it.
    """
    from cupy.cuda import cublas, cusolver, device

    name, M = "dpotrf" if A.dtype == np.float64 else "spotrf", A.shape[-1]
    L, info = cupy.array(A, order="C"), cupy.empty(A.shape[:-2], dtype=np.int32)
    # cuSOLVER is column-major: its upper triangle is the lower triangle here
    handle, upper, step = device.get_cusolver_handle(), cublas.CUBLAS_FILL_MODE_UPPER, M * M * L.itemsize
    start = L.data.ptr
    if info.size > 1 and M <= MAX_BATCHED_ROWS:
        each = cupy.arange(start, start + L.nbytes, step, dtype=np.uintp)
        getattr(cusolver, f"{name}Batched")(handle, upper, M, each.data.ptr, M, info.data.ptr, info.size)
        return cupy.tril(L), info
    size = getattr(cusolver, f"{name}_bufferSize")(handle, upper, M, start, M)
    workspace = cupy.empty(size, dtype=L.dtype)
    for i in range(info.size):
        place = info.data.ptr + i * info.itemsize
        getattr(cusolver, name)(handle, upper, M, start + i * step, M, workspace.data.ptr, size, place)
    return cupy.tril(L), info


JACOBI = 32
"""Size up to which the batched Jacobi method is faster than processing one matrix after another."""
MAX_BATCHED_ROWS = 1024
"""Maximum size of matrices for cuSOLVER's batched factorisation.

On an H200, it takes 0.25 ms instead of 34 ms for 1,000 matrices with 51 rows in float32, and 1.9 ms instead of 3.3 ms
for four with 1,024 rows.
"""
NEW = ("arange", "asarray", "empty", "eye", "full", "linspace", "ones", "zeros")
NEW_LIKE = ("astype", "empty_like", "full_like", "ones_like", "zeros_like")


@functools.cache
def _memory(number: int) -> float:
    """Total memory of a device in MiB; it is cached because the query is slow."""
    return cupy.cuda.Device(number).mem_info[1] / 2**20


class _Noise(Noise):
    """Random numbers with the dtype and device of an array, generated on that device."""

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
        | {name: _on_device(name) for name in NEW}
        | {name: _on_device(name, like=True) for name in NEW_LIKE}
        | {"clip": _clip}
        | {"linalg": SimpleNamespace(**vars(compat.linalg) | {"eigh": _eigh})}
    )
    array_types = (cupy.ndarray,)
    special_module = "cupyx.scipy.special"
    special_functions: ClassVar = {"polygamma": _polygamma}
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
        """Return the device with a given name, by default the current one."""
        library, _, number = (name or "cuda").partition(":")
        if library != "cuda" or not (number.isdigit() or not number):
            raise ValueError(f"CuPy has no device {name!r}; available devices: {', '.join(self.devices()) or 'none'}.")
        return cupy.cuda.Device(int(number)) if number else cupy.cuda.Device()

    def generator(self, x: Array, /, *seeds: int) -> Noise:
        return _Noise(x, seeds)

    def conversion(self, name: str, x: Array, dtype: str, /) -> str:
        return f'{name}.astype("{dtype}")'

    def to_numpy(self, x: Array, /) -> Any:
        return cupy.asnumpy(x)

    def synchronise(self, x: Array, /) -> None:
        x.device.synchronize()

    def reading_waits(self, x: Array, /) -> bool:
        return True

    def peak_memory(self, x: Array, /) -> float:
        # the memory pool of a device does not shrink, so its size is the peak
        with x.device:
            return cupy.get_default_memory_pool().total_bytes() / 2**20

    def device_memory(self, x: Array, /) -> float:
        return _memory(x.device.id)

    def context(self, x: Array, /) -> Any:
        return x.device

    # -- mathematics beyond the standard ----------------------------------------------------------------------------

    def device_block(self, x: Array, /) -> float:
        capability = x.device.compute_capability  # the last digit is the minor version
        return whole_block(x.dtype == np.float64, (int(capability[:-1]), int(capability[-1])))

    def fused(self, f: Callable[..., tuple], /, *args: Array | float) -> tuple[Array, ...]:
        return _kernel(f)(*args)

    def add_product(self, x: Array, a: Array, b: Array, /) -> Array:
        return self.fused(_sum_with_product, x, a, b)[0]

    def lerp(self, old: Array, new: Array, share: Array | float, /) -> Array:
        return self.fused(_interpolation, old, new, share)[0]

    def add_diagonal(self, A: Array, d: Array | float, /) -> Array:
        out = A.copy(order="C")
        M = A.shape[-1]
        entries = out.reshape(*A.shape[:-2], M * M)[..., :: M + 1]  # a view
        entries += d
        return out

    def cholesky(self, A: Array, /) -> Array:
        if A.size == 0:
            return A.copy()
        L, info = _potrf(A)
        return cupy.where((info == 0)[..., None, None], L, np.nan)

    def solve_triangular(self, L: Array, B: Array, /, *, transpose: bool = False) -> Array:
        from cupyx.scipy.linalg import solve_triangular

        if max(L.ndim, B.ndim) > 2:
            batch = np.broadcast_shapes(L.shape[:-2], B.shape[:-2])
            L, B = (cupy.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (L, B))
            if B.size == 0:
                return B.copy()
            return solve_triangular(L, B, lower=True, trans=1 if transpose else 0, check_finite=False)
        # L^T, upper, in the Fortran order of cuBLAS is L in C order, and is not copied
        return solve_triangular(L.mT, B, lower=False, trans=0 if transpose else 1, check_finite=False)


class _InsideKernel(CupyBackend):
    """Version of the plug-in that treats numbers as constants, for functions that CuPy traces into one kernel."""

    xp = SimpleNamespace(
        **vars(CupyBackend.xp)
        | {"zeros_like": lambda x, /: x.dtype.type(0), "ones_like": lambda x, /: x.dtype.type(1)}
        | {"full_like": lambda _, value, /: value}
    )

    def fused(self, f: Callable[..., tuple], /, *args: Array | float) -> tuple[Array, ...]:
        return f(self, *args)


@functools.lru_cache(maxsize=256)
def _kernel(f: Callable[..., tuple]) -> Callable[..., tuple]:
    """Fuse an elementwise function into one kernel, compiled at the first call for each set of dtypes and ranks."""
    return cupy.fuse(kernel_name=f.__name__)(functools.partial(f, _InsideKernel()))


def _sum_with_product(_: Backend, x: Array, a: Array, b: Array) -> tuple[Array]:
    return (x + a * b,)


def _interpolation(_: Backend, old: Array, new: Array, share: Array | float) -> tuple[Array]:
    # if `share` is a number, 1 - share would be in half precision; share = 1 gives exactly the new numbers
    return (old - share * old + share * new,)
