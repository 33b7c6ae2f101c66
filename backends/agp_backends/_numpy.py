"""NumPy: closed-form gradients, LAPACK and special functions from SciPy."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import array_api_compat.numpy as xp
import numpy as np
import scipy.linalg
import scipy.special

from agp.backend import Array, Backend

BLOCK = 64
"""Rows that a triangular solve eliminates at once."""
PANEL = 128
"""Rows or columns of a triangular matrix that are multiplied at once."""
TILE = 2**14
"""Entries of an array that are worked on at once where each stands by itself: a few such pieces fit into the caches."""
LARGEST = 2**25 - 2**16
"""Bytes of an array that is just below the largest that glibc's allocator learns from."""


def _polygamma(n: int, x: Array) -> Array:
    return scipy.special.polygamma(n, x).astype(x.dtype)


class NumpyBackend(Backend):
    name = "numpy"
    xp = xp
    array_types = (np.ndarray, np.generic)
    refused_types = (np.ma.MaskedArray, np.matrix)
    special_module = "scipy.special"
    triangular_block = float("inf")
    special_functions: ClassVar = {"polygamma": _polygamma}  # SciPy's gives float64 whatever it takes

    def __init__(self) -> None:
        # glibc gives memory back to the system, to ask for it anew page by page, as soon as it has more than twice the
        # largest block that the program was seen to free: a tenth to a quarter of the time of a step. Once it has seen
        # this one, whose pages are never touched, it keeps up to 64 MiB. Other allocators take no notice.
        np.empty(LARGEST, dtype=np.uint8)

    def device_name(self, x: Array, /) -> str:
        return "cpu"

    def like(self, x: Array, /) -> dict[str, Any]:
        return {"dtype": x.dtype}

    def widest_float(self, x: Array, /) -> Any:
        return np.dtype(np.float64)

    def from_numpy(self, x: Any, /, *, dtype: str | None = None, device: str | None = None) -> Array:
        if device not in (None, "cpu"):
            msg = f"NumPy has no device {device!r}; it has 'cpu'."
            raise ValueError(msg)
        return np.array(x, dtype=dtype)

    def to_numpy(self, x: Array, /) -> Any:
        return np.asarray(x)

    def rows_at(self, x: Array, index: Array, /) -> Array:
        return x[index]  # `take` copies the whole of what is not contiguous: a mapped file, numbers of a data frame

    def cholesky(self, A: Array, /) -> Array:
        if A.ndim > 2:
            return np.stack([self.cholesky(a) for a in A])
        # potrf on the transposed (Fortran-ordered) view of a symmetric matrix: U^T U = A with U^T = L in C order.
        upper, info = scipy.linalg.get_lapack_funcs(("potrf",), (A,))[0](A.T, lower=False, clean=True)
        return upper.T if info == 0 else np.full_like(A, np.nan)

    def solve_triangular(self, L: Array, B: Array, /, *, transpose: bool = False) -> Array:
        # Substitution by blocks, as exact as the whole at once; most operations become products, which are faster. They
        # are SciPy's as well: NumPy has another BLAS, and threads of the two that take turns wait for each other.
        # C order is the transpose in the Fortran order of BLAS: X_i^T L_ii^T = rows^T, or X_i^T L_ii = rows^T.
        gemm, trsm = scipy.linalg.get_blas_funcs(("gemm", "trsm"), (L, B))
        M = L.shape[0]
        X = np.empty(B.shape, dtype=trsm.dtype)
        blocks = [slice(start, min(start + BLOCK, M)) for start in range(0, M, BLOCK)]
        for i in reversed(blocks) if transpose else blocks:
            rows, done = B[i].T, slice(i.stop, M) if transpose else slice(0, i.start)
            if done.start < done.stop:
                panel = L[done, i] if transpose else L[i, done]
                rows = gemm(-1.0, X[done].T, panel.T, beta=1.0, c=rows, trans_b=int(transpose))
            X[i] = trsm(1.0, L[i, i].T, rows, side=1, lower=0, trans_a=int(transpose)).T
        return X

    def triangular_product(
        self, X: Array, Y: Array, /, *, left: str = "", right: str = "", lower: bool = False
    ) -> Array:
        # Panels of the rows of a triangular X, and of the columns of a triangular Y, each with the rows or columns of
        # the other that meet no zeros; the products are written where they belong.
        (M, K), N = X.shape[-2:], Y.shape[-1]
        lower = lower or (left, right) == ("lower", "lower")
        if max(M if left or lower else 0, N if right or lower else 0) <= PANEL:
            return super().triangular_product(X, Y, lower=lower)
        by_rows = left == "upper" or (left == "lower" and right != "upper") or not right
        by_columns = right == "upper" or (right == "lower" and left != "upper")
        out = np.empty_like(X, shape=(*np.broadcast_shapes(X.shape[:-2], Y.shape[:-2]), M, N), order="C")
        for r0, r1 in _panels(M) if by_rows else [(0, M)]:
            for c0, c1 in _panels(N) if by_columns else [(0, N)]:
                first = max(r0 if left == "upper" else 0, c0 if right == "lower" else 0)
                last = min(r1 if left == "lower" else K, c1 if right == "upper" else K)
                rows = slice(max(r0, c0) if lower else r0, r1)
                columns = slice(c0, min(c1, r1) if lower else c1)
                if rows.start < rows.stop and columns.start < columns.stop:
                    parts = X[..., rows, first:last], Y[..., first:last, columns]
                    np.matmul(*parts, out=out[..., rows, columns])
        return _cleared(out) if lower else out

    def elementwise(self, f: Callable[..., tuple], /, *arrays: Array, lower: bool = False) -> tuple[Array, ...]:
        shape = np.shape(arrays[0])
        if np.size(arrays[0]) <= TILE:
            return f(*arrays)
        if not lower:
            rows = [np.reshape(x, (-1,)) for x in arrays]
            pieces = [(slice(start, start + TILE),) for start in range(0, rows[0].shape[0], TILE)]
        else:
            rows = [np.reshape(x, (-1, *shape[-2:])) for x in arrays]
            high = max(1, TILE // shape[-1])
            panels = [(start, min(start + high, shape[-1])) for start in range(0, shape[-1], high)]
            pieces = [(p, slice(i, j), slice(0, j)) for p in range(rows[0].shape[0]) for i, j in panels]
        found: list[Any] = []
        for piece in pieces:
            parts = f(*(x[piece] for x in rows))
            found = found or [(np.zeros_like if lower else np.empty_like)(part, shape=rows[0].shape) for part in parts]
            for x, part in zip(found, parts, strict=True):
                x[piece] = part
        return tuple(np.reshape(x, shape) for x in found)

    def inner(self, x: Array, y: Array, /) -> Array:
        return np.sum(np.vecdot(x, y))

    def add_diagonal(self, A: Array, d: Array | float, /) -> Array:
        out = A.copy()
        np.einsum("...ii->...i", out)[...] += d  # the diagonal as a view that can be written to
        return out

    def inverse_from_cholesky(self, L: Array, /) -> Array:
        # L in C order is the upper factor of LAPACK's order: potri gives one triangle of the inverse
        inverse, _ = scipy.linalg.get_lapack_funcs(("potri",), (L,))[0](L.T, lower=False)
        return self.symmetric_from_lower(inverse.T)

    def tril(self, A: Array, /) -> Array:
        if A.shape[-1] <= PANEL and A.shape[-2] == A.shape[-1]:
            return _cleared(A.copy())
        out = np.zeros_like(A)
        for start, stop in _panels(A.shape[-1]):
            out[..., start:stop, :stop] = A[..., start:stop, :stop]
            out[..., start:stop, start:stop] = self.tril(A[..., start:stop, start:stop])
        return out

    def symmetric_from_lower(self, A: Array, /) -> Array:
        if A.shape[-1] <= PANEL:
            out = A.copy()
            np.copyto(out, A.mT, where=_upper(A.shape[-1]))
            return out
        out = A.copy()
        for start, stop in _panels(A.shape[-1]):
            block = out[..., start:stop, start:stop]
            block[...] = self.symmetric_from_lower(block)
            out[..., start:stop, stop:] = A[..., stop:, start:stop].mT
        return out


@functools.cache
def _upper(size: int) -> Array:
    """Which entries of a small square matrix are above its diagonal."""
    return ~np.tri(size, dtype=bool)


def _panels(size: int) -> list[tuple[int, int]]:
    """The ends of consecutive panels of so many rows or columns."""
    return [(start, min(start + PANEL, size)) for start in range(0, size, PANEL)]


def _cleared(A: Array) -> Array:
    """A [..., M, M], whose entries above the diagonal become zero."""
    for start, stop in _panels(A.shape[-1]):
        np.copyto(A[..., start:stop, start:stop], 0.0, where=_upper(stop - start))
        A[..., start:stop, stop:] = 0.0
    return A
