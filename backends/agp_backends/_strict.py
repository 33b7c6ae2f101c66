"""array-api-strict plug-in for tests: this library provides only the functions of the Array API standard."""

from typing import Any

import array_api_strict as xp
import numpy as np

from agp.backend import Array, Backend, is_row_major

CPU = xp.Device("CPU_DEVICE")


def _name(device: Any) -> str:
    return str(device).split("'")[1]


class StrictBackend(Backend):
    name = "array_api_strict"
    xp = xp
    array_types = (type(xp.zeros(())),)
    special_module = "scipy.special"
    conformance = True

    def devices(self) -> list[str]:
        return [_name(device) for device in xp.__array_namespace_info__().devices()]

    def device_name(self, x: Array, /) -> str:
        return _name(x.device)

    def from_numpy(self, x: Any, /, *, dtype: str | None = None, device: str | None = None) -> Array:
        return xp.asarray(np.array(x, dtype=dtype), device=xp.Device(device) if device else None)

    def to_numpy(self, x: Array, /) -> Any:
        return np.asarray(x.to_device(CPU))

    def log(self, x: Array, /) -> Array:
        with np.errstate(divide="ignore"):  # its arrays are those of NumPy
            return xp.log(x)

    def row_major(self, x: Array, /) -> Array:
        # the standard has no strides; a view on the host has those of the array
        host = self.to_numpy(x)
        if is_row_major(host.shape, host.strides, host.itemsize):
            return x
        return self.from_numpy(host.copy(order="C"), device=self.device_name(x))

    def cholesky(self, A: Array, /) -> Array:
        if A.ndim > 2:
            return xp.stack([self.cholesky(A[i, ...]) for i in range(A.shape[0])])
        try:
            return xp.linalg.cholesky(A)
        except np.linalg.LinAlgError:
            return xp.full_like(A, xp.nan)

    def solve_triangular(self, L: Array, B: Array, /, *, transpose: bool = False) -> Array:
        return xp.linalg.solve(L.mT if transpose else L, B)

    def special(self, name: str, /, *args: Any) -> Array:
        # evaluate on the host, in the precision of the first array
        function, reference = self.special_function(name), next(x for x in args if isinstance(x, self.array_types))
        host = [self.to_numpy(x) if isinstance(x, self.array_types) else x for x in args]
        return xp.asarray(function(*host), **self.like(reference))
