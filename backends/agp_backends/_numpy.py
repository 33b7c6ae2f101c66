"""NumPy: closed-form gradients, LAPACK and special functions from SciPy."""

from typing import Any

import array_api_compat.numpy as xp
import numpy as np
import scipy.linalg
import scipy.special

from agp.backend import Array, Backend


class NumpyBackend(Backend):
    name = "numpy"
    xp = xp
    array_types = (np.ndarray, np.generic)
    refused_types = (np.ma.MaskedArray, np.matrix)

    def device_name(self, x: Array, /) -> str:
        return "cpu"

    def like(self, x: Array, /) -> dict[str, Any]:
        return {"dtype": x.dtype}

    def from_numpy(self, x: Any, /, *, dtype: str | None = None, device: str | None = None) -> Array:
        if device not in (None, "cpu"):
            msg = f"NumPy has no device {device!r}; it has 'cpu'."
            raise ValueError(msg)
        return np.array(x, dtype=dtype)

    def to_numpy(self, x: Array, /) -> Any:
        return np.asarray(x)

    def cholesky(self, A: Array, /) -> Array:
        if A.ndim > 2:
            return np.stack([self.cholesky(a) for a in A])
        # potrf on the transposed (Fortran-ordered) view of a symmetric matrix: U^T U = A with U^T = L in C order.
        upper, info = scipy.linalg.get_lapack_funcs(("potrf",), (A,))[0](A.T, lower=False, clean=True)
        return upper.T if info == 0 else np.full_like(A, np.nan)

    def solve_triangular(self, L: Array, B: Array, /, *, transpose: bool = False) -> Array:
        # L in C order is L^T in the Fortran order that LAPACK reads without a copy: swap `lower` and `trans`.
        return scipy.linalg.solve_triangular(L.T, B, lower=False, trans=0 if transpose else 1, check_finite=False)

    def _special_functions(self):
        s = scipy.special
        return {"log_ndtr": s.log_ndtr, "ndtr": s.ndtr, "erf": s.erf, "gammaln": s.gammaln}
