"""CuPy: closed-form gradients on CUDA devices.

CuPy's Cholesky factorisation reports no failure by default; what it returns is looked at here. Nothing of `cupyx` that
needs CUDA libraries is imported before it is used.
"""

import importlib.metadata
from typing import Any

import array_api_compat.cupy as xp
import cupy
import numpy as np

from agp.backend import Array, Backend


class CupyBackend(Backend):
    name = "cupy"
    xp = xp
    array_types = (cupy.ndarray,)
    special_module = "cupyx.scipy.special"

    # -- arrays -----------------------------------------------------------------------------------------------------

    def version(self) -> str:
        # the distribution is called cupy, cupy-cuda12x, cupy-cuda13x, ...
        names = importlib.metadata.packages_distributions().get("cupy", ["cupy"])
        return importlib.metadata.version(names[0])

    def devices(self) -> list[str]:
        if not cupy.cuda.is_available():
            return []
        return [f"cuda:{i}" for i in range(cupy.cuda.runtime.getDeviceCount())]

    def device_name(self, x: Array, /) -> str:
        return f"cuda:{x.device.id}"

    def like(self, x: Array, /) -> dict[str, Any]:
        # new arrays go to the current device, which `_on` makes the device of the data
        return {"dtype": x.dtype}

    def from_numpy(self, x: Any, /, *, dtype: str | None = None, device: str | None = None) -> Array:
        with self._on(device):
            return cupy.array(np.asarray(x, dtype=dtype))

    def _on(self, device: str | None) -> Any:
        name, _, number = (device or "cuda:0").partition(":")
        if name != "cuda":
            msg = f"CuPy has no device {device!r}; it has {', '.join(self.devices()) or 'none here'}."
            raise ValueError(msg)
        return cupy.cuda.Device(int(number or 0))

    def to_numpy(self, x: Array, /) -> Any:
        return cupy.asnumpy(x)

    def synchronise(self, x: Array, /) -> None:
        x.device.synchronize()

    def peak_memory(self) -> float:
        # the pool never gives blocks back by itself, so its size is the peak
        return cupy.get_default_memory_pool().total_bytes() / 2**20

    # -- mathematics beyond the standard ----------------------------------------------------------------------------

    def cholesky(self, A: Array, /) -> Array:
        L = cupy.linalg.cholesky(A)
        # where the factorisation stopped early, the rest of the diagonal still holds that of A: compare L L^T with A
        diagonal = cupy.einsum("...ij,...ij->...i", L, L)
        target = cupy.einsum("...ii->...i", A)
        tolerance = 100.0 * A.shape[-1] * float(cupy.finfo(A.dtype).eps)
        good = cupy.isfinite(diagonal) & (cupy.abs(diagonal - target) <= tolerance * cupy.abs(target))
        positive = cupy.einsum("...ii->...i", L) > 0
        return cupy.where(cupy.all(good & positive, axis=-1)[..., None, None], L, cupy.nan)

    def solve_triangular(self, L: Array, B: Array, /, *, transpose: bool = False) -> Array:
        from cupyx.scipy.linalg import solve_triangular

        return solve_triangular(L, B, lower=True, trans=1 if transpose else 0, check_finite=False)
