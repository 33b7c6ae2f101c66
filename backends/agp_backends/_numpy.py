"""NumPy plug-in: closed-form gradients, with LAPACK and special functions from SciPy."""

import contextlib
import functools
import importlib
import itertools
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import array_api_compat.numpy as standard
import numpy as np
import scipy.linalg
import scipy.special

from agp.backend import Array, Backend, is_row_major
from agp.chunking import row_ranges
from agp_backends._lapack import BLOCK, PANEL, clear_tiny, inverse_upper, routines
from agp_backends._threads import one_thread

TILE = 2**14
"""Number of entries that an elementwise operation processes together; a few such pieces fit into the caches."""
MIN_ROWS = 32
"""Minimum number of rows in a panel of a lower triangle."""
MAX_STACKED, MIN_STACKED, STACKED_BLOCK = 32, 4, 16
"""Up to the first size, the matrices of a stack are factorised and solved together if there are at least `MIN_STACKED`
of them. Triangular systems are solved in blocks of `STACKED_BLOCK` rows. For larger matrices, LAPACK's routines take
less time than NumPy's, and more than the calls."""
MAX_SMALL_ENTRIES = 2**10
"""Maximum number of entries in arrays that are concatenated with others."""
MAX_ARRAY_BYTES = 2**25 - 2**16
"""Size in bytes, just below the largest block for which glibc's allocator adapts its thresholds."""


def _reduction(ufunc: np.ufunc) -> Callable[..., Array]:
    """Reduction of a ufunc, which takes a third of the time of NumPy's function for small arrays."""
    return functools.partial(ufunc.reduce, axis=None)


def _tril(A: Array, /, *, k: int = 0) -> Array:
    if max(A.shape[-2:]) > PANEL:
        return np.tril(A, k)
    out = A.copy()
    np.copyto(out, 0, where=_above(*A.shape[-2:], k))
    return out


@functools.cache
def _above(rows: int, columns: int, k: int = 0) -> Array:
    """Mask of the entries above the k-th diagonal of a small matrix."""
    return ~np.tri(rows, columns, k, dtype=bool)


_is_row_major = functools.lru_cache(maxsize=1024)(is_row_major)


@functools.cache
def _distances() -> Any:
    """SciPy's distances, whose import takes long."""
    return importlib.import_module("scipy.spatial.distance")


@functools.lru_cache(maxsize=256)
def _triangle_panels(M: int) -> tuple[tuple[int, int], ...]:
    """Ranges of rows of a lower triangle [M, M], each with at most `TILE` entries unless it has `MIN_ROWS` rows."""
    stops = [0]
    while stops[-1] < M:
        start = stops[-1]  # the largest h with h (start + h) <= TILE
        rows = int(0.5 * (math.sqrt(start * start + 4 * TILE) - start))
        stops.append(min(M, start + max(MIN_ROWS, rows - rows % 8)))
    return tuple(itertools.pairwise(stops))


@functools.lru_cache(maxsize=256)
def _pieces(*shapes: tuple[int, ...]) -> tuple[slice, ...]:
    """Positions of the entries of arrays with these shapes in their concatenation."""
    stops = [*itertools.accumulate(map(math.prod, shapes))]
    return tuple(itertools.starmap(slice, itertools.pairwise([0, *stops])))


def _mean(x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    total = np.add.reduce(x, axis=axis, keepdims=keepdims)
    return total / (x.size // total.size)


def _broadcast_to(x: Array, /, shape: tuple[int, ...]) -> Array:
    if math.prod(shape) > MAX_SMALL_ENTRIES:
        return np.broadcast_to(x, shape)
    out = np.empty(shape, dtype=x.dtype)  # copying few entries takes a tenth of the time of making a view
    out[...] = x
    return out


def _clip(x: Array, /, min: Any = None, max: Any = None) -> Array:  # noqa: A002 - the standard's names
    above = x if min is None else np.maximum(x, min)
    return above if max is None else np.minimum(above, max)


xp = SimpleNamespace(
    **vars(standard)
    | {name: getattr(np, name) for name in ("arange", "empty", "eye", "finfo", "full_like")}
    | {name: getattr(np, name) for name in ("ones_like", "zeros", "zeros_like")}
    | {"sum": _reduction(np.add), "max": _reduction(np.maximum), "min": _reduction(np.minimum)}
    | {"all": _reduction(np.logical_and), "any": _reduction(np.logical_or), "tril": _tril, "clip": _clip}
    | {"broadcast_to": _broadcast_to, "mean": _mean}
)
"""Array API namespace of NumPy, in which faster equivalents replace some functions."""

THREADS = one_thread("blas")  # NumPy's and SciPy's BLAS libraries are loaded at this point


def _polygamma(n: int, x: Array) -> Array:
    return scipy.special.polygamma(n, x).astype(x.dtype)


class NumpyBackend(Backend):
    name = "numpy"
    xp = xp
    array_types = (np.ndarray, np.generic)
    refused_types = (np.ma.MaskedArray, np.matrix)
    special_module = "scipy.special"
    triangular_block = float("inf")
    special_functions: ClassVar = {"polygamma": _polygamma}  # SciPy's function always returns float64

    def __init__(self) -> None:
        # glibc returns memory to the system when it holds more than twice the largest block freed so far, and requests
        # it again page by page, which takes up a tenth to a quarter of a step's time. Freeing this block, whose pages
        # are never touched, makes glibc keep up to 64 MiB. Other allocators are not affected.
        np.empty(MAX_ARRAY_BYTES, dtype=np.uint8)

    @property
    def needs_context(self) -> bool:  # type: ignore[override]
        return THREADS.here.depth == 0

    def context(self, x: Array, /) -> contextlib.AbstractContextManager[Any]:
        return THREADS

    def device_name(self, x: Array, /) -> str:
        return "cpu"

    def like(self, x: Array, /) -> dict[str, Any]:
        return {"dtype": x.dtype}

    def widest_float(self, x: Array, /) -> Any:
        return np.dtype(np.float64)

    def from_numpy(self, x: Any, /, *, dtype: str | None = None, device: str | None = None) -> Array:
        if device not in (None, "cpu"):
            raise ValueError(f"NumPy has no device {device!r}; use 'cpu'.")
        return np.array(x, dtype=dtype)

    def conversion(self, name: str, x: Array, dtype: str, /) -> str:
        return f'{name}.astype("{dtype}")'

    def to_numpy(self, x: Array, /) -> Any:
        return np.asarray(x)

    def row_major(self, x: Array, /) -> Array:
        return self.row_major_each([x])[0]

    def row_major_each(self, arrays: Sequence[Array], /) -> list[Array]:
        found = list(arrays)
        for i, x in enumerate(found):
            # scalars become 0-d arrays, as in files: NumPy computes powers of scalars by other routines
            plain = isinstance(x, np.ndarray) and x.flags.aligned and _is_row_major(x.shape, x.strides, x.itemsize)
            if not plain:
                found[i] = np.array(x, order="C")
        return found

    def rows_at(self, x: Array, index: Array, /) -> Array:
        # `take` is faster, but would copy a whole non-contiguous array, such as a memory-mapped file
        plain = type(x) is np.ndarray and x.flags.c_contiguous
        return x.take(index, axis=0) if plain else x[index]

    def cholesky(self, A: Array, /) -> Array:
        if A.ndim > 2:
            return self._cholesky_each(A.copy(), clean=True)
        # potrf on the transposed, Fortran-ordered view of a symmetric matrix gives U^T U = A, and U^T is L in C order
        (potrf,) = routines("potrf", dtype=A.dtype)
        with THREADS.threads_for(A.shape[-1] ** 3 / 3):
            upper, info = potrf(A.T, lower=False, clean=True)
        return upper.T if info == 0 else np.full_like(A, np.nan)

    def _cholesky_each(self, A: Array, *, clean: bool) -> Array:
        """Factorise the matrices of a stack, which is overwritten; `clean` sets the other triangles to zero."""
        if A.shape[-1] <= MAX_STACKED:
            with contextlib.suppress(np.linalg.LinAlgError):  # one of the matrices is not positive definite
                return np.linalg.cholesky(A)
        (potrf,) = routines("potrf", dtype=A.dtype)
        for L in A:
            if potrf(L.T, lower=False, clean=clean, overwrite_a=True)[1] != 0:
                L[...] = np.nan
        return A

    def solve_triangular(self, L: Array, B: Array, /, *, transpose: bool = False) -> Array:
        if B.ndim > 2:
            return self._solve_each(L, B, transpose)
        if B.shape[1] == 1 and L.flags.c_contiguous:  # reading L dominates the time; BLAS is fastest for a vector
            (trsv,) = routines("trsv", dtype=np.result_type(L, B))
            return trsv(L.T, B[:, 0], lower=0, trans=int(not transpose))[:, None]
        if L.shape[0] <= BLOCK and B.size <= TILE:
            (trsm,) = routines("trsm", dtype=L.dtype if L.dtype == B.dtype else np.result_type(L, B))
            return trsm(1.0, L.T, B.T, side=1, lower=0, trans_a=int(transpose)).T
        with THREADS.threads_for(L.shape[0] * B.size):
            return self._substitute(L, B, transpose)

    def _solve_each(self, L: Array, B: Array, transpose: bool) -> Array:
        # Small systems of a stack are solved together, by blocked substitution.
        G, M, N = B.shape
        if G < MIN_STACKED or M > MAX_STACKED:
            L, found, trans = np.ascontiguousarray(L), np.empty_like(B), int(not transpose)
            if N == 1:
                (trsv,) = routines("trsv", dtype=L.dtype)
                for g in range(G):
                    found[g, :, 0] = trsv(L[g].T, B[g, :, 0], lower=0, trans=trans)
            else:
                for g in range(G):
                    found[g] = self.solve_triangular(L[g], B[g], transpose=transpose)
            return found
        X = np.array(B, dtype=np.result_type(L, B))
        starts = range(0, M, STACKED_BLOCK)
        for start in reversed(starts) if transpose else starts:
            stop = min(start + STACKED_BLOCK, M)
            part, corner = X[:, start:stop, :], L[:, start:stop, start:stop]
            if transpose:
                part -= L[:, stop:, start:stop].mT @ X[:, stop:, :]
                for i in range(stop - start - 1, -1, -1):
                    part[:, i, :] /= corner[:, i, i, None]
                    part[:, :i, :] -= corner[:, i, :i, None] * part[:, i, None, :]
            else:
                part -= L[:, start:stop, :start] @ X[:, :start, :]
                for i in range(stop - start):
                    part[:, i, :] /= corner[:, i, i, None]
                    part[:, i + 1 :, :] -= corner[:, i + 1 :, i, None] * part[:, i, None, :]
        return X

    def smallest(self, A: Array, count: int, /) -> Array:
        return np.argpartition(A, count - 1, axis=1)[:, :count]

    def sum_at(self, x: Array, index: Array, count: int, /) -> Array:
        order = np.argsort(index, kind="stable")
        found, (rows, starts) = np.zeros((count, x.shape[1]), dtype=x.dtype), np.unique(index[order], return_index=True)
        if len(rows):
            found[rows] = np.add.reduceat(x[order], starts, axis=0)
        return found

    def _substitute(self, L: Array, B: Array, transpose: bool) -> Array:
        # Blocked substitution is as exact as unblocked substitution and faster: most operations become products. These
        # use SciPy's BLAS as well, since threads of NumPy's BLAS would wait for those of SciPy. An array in C order is
        # its transpose in the Fortran order of BLAS: the equations are X_i^T L_ii^T = rows^T, or X_i^T L_ii = rows^T.
        gemm, trsm = routines("gemm", "trsm", dtype=np.result_type(L, B))
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
        if max(X.shape[-2:]) <= PANEL >= Y.shape[-1]:
            product = X @ Y
            if lower:
                np.copyto(product, 0.0, where=_above(*product.shape[-2:]))
            return product
        with THREADS.threads_for(X.size * Y.shape[-1]):  # half of the entries are zero
            return self._by_panels(X, Y, left, right, lower)

    def _by_panels(self, X: Array, Y: Array, left: str, right: str, lower: bool) -> Array:
        # Multiply panels of rows of a triangular X, and panels of columns of a triangular Y, without the entries of the
        # other factor that would be multiplied by zeros.
        (M, K), N = X.shape[-2:], Y.shape[-1]
        lower = lower or (left, right) == ("lower", "lower")
        if max(M if left or lower else 0, N if right or lower else 0) <= PANEL:
            return _tril(X @ Y) if lower else X @ Y
        by_rows = left == "upper" or (left == "lower" and right != "upper") or not right
        by_columns = right == "upper" or (right == "lower" and left != "upper")
        out = np.empty_like(X, shape=(*np.broadcast_shapes(X.shape[:-2], Y.shape[:-2]), M, N), order="C")
        for r0, r1 in row_ranges(M, PANEL) if by_rows else [(0, M)]:
            for c0, c1 in row_ranges(N, PANEL) if by_columns else [(0, N)]:
                first = max(r0 if left == "upper" else 0, c0 if right == "lower" else 0)
                last = min(r1 if left == "lower" else K, c1 if right == "upper" else K)
                rows = slice(max(r0, c0) if lower else r0, r1)
                columns = slice(c0, min(c1, r1) if lower else c1)
                if rows.start < rows.stop and columns.start < columns.stop:
                    parts = X[..., rows, first:last], Y[..., first:last, columns]
                    np.matmul(*parts, out=out[..., rows, columns])
        return _clear_upper(out) if lower else out

    def elementwise(
        self, f: Callable[..., tuple], /, *arrays: Array, numbers: Sequence = (), lower: bool = False
    ) -> tuple[Array, ...]:
        shape = np.shape(arrays[0])
        if np.size(arrays[0]) <= TILE:
            return f(self, *arrays, *numbers)
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
            parts = f(self, *(x[piece] for x in rows), *numbers)
            found = found or [(np.zeros_like if lower else np.empty_like)(part, shape=rows[0].shape) for part in parts]
            for x, part in zip(found, parts, strict=True):
                x[piece] = part
        return tuple(np.reshape(x, shape) for x in found)

    def elementwise_each(
        self, f: Callable, several: Sequence[tuple], /, *, numbers: Sequence = (), lower: Sequence[bool]
    ) -> list[Any]:
        # small arrays are concatenated, because the overhead of a NumPy call exceeds its work on them
        if len(several) == 1:
            return [self.elementwise(f, *several[0], numbers=numbers, lower=lower[0])]
        found: list[Any] = [None] * len(several)
        places, shapes, small = [], [], []
        for i, arrays in enumerate(several):
            shape = arrays[0].shape
            if arrays[0].size > MAX_SMALL_ENTRIES:
                found[i] = self.elementwise(f, *arrays, numbers=numbers, lower=lower[i])
                continue
            places.append(i)
            shapes.append(shape)
            small.append(arrays)
        if small:
            flatten = functools.partial(np.concatenate, axis=None)
            joined = f(self, *map(flatten, zip(*small, strict=True)), *numbers)
            for i, piece, shape in zip(places, _pieces(*shapes), shapes, strict=True):
                found[i] = parts = []
                for x in joined:
                    part = x[piece]
                    parts.append(part if len(shape) == 1 else part.reshape(shape))
        return found

    def join_blocks(self, A11: Array, A12: Array, A21: Array, A22: Array, /) -> Array:
        *lead, M, N = A11.shape
        out = np.empty((*lead, M + A21.shape[-2], N + A12.shape[-1]), dtype=A11.dtype)
        out[..., :M, :N], out[..., :M, N:], out[..., M:, :N], out[..., M:, N:] = A11, A12, A21, A22
        return out

    def log(self, x: Array, /) -> Array:
        with np.errstate(divide="ignore"):
            return np.log(x)

    def inner_by_column(self, x: Array, y: Array, /) -> Array:
        return np.vecdot(x, y, axis=0) if x.ndim == 2 else super().inner_by_column(x, y)  # type: ignore[call-overload]

    def squared_differences(self, X: Array, Z: Array, scale: Array, /) -> Array:
        if X.ndim > 2 or Z.ndim > 2 or X.shape[1] == 1:
            return super().squared_differences(X, Z, scale)
        # SciPy's loop makes one pass. Division by powers of two is exact, and the remaining weights cannot overflow
        share, power = np.frexp(scale)
        X, Z = np.ldexp(X, -power), np.ldexp(Z, -power)
        share = np.full(X.shape[1], share, dtype=np.float64)
        return _distances().cdist(X, Z, "sqeuclidean", w=1.0 / (share * share)).astype(X.dtype, copy=False)

    def norm(self, x: Array, /) -> Array:
        return np.sqrt(np.vdot(x, x))

    def inner(self, x: Array, y: Array, /) -> Array:
        return xp.sum(np.vecdot(x, y))

    def hollow_from_lower(self, A: Array, /) -> Array:
        out, M = self.symmetric_from_lower(A), A.shape[-1]
        out.reshape((*A.shape[:-2], M * M))[..., :: M + 1] = 0.0
        return out

    def diagonal(self, A: Array, /) -> Array:
        return A.diagonal(axis1=-2, axis2=-1)

    def add_diagonal(self, A: Array, d: Array | float, /) -> Array:
        out, M = A.copy(), A.shape[-1]
        entries = out.reshape((*A.shape[:-2], M * M))[..., :: M + 1]  # a view
        entries += d
        return out

    def times_own_transpose(self, A: Array, /) -> Array:
        with THREADS.threads_for(A.size * A.shape[-2]):
            return A @ A.mT

    def inverse_from_cholesky(self, L: Array, /) -> Array:
        return self.symmetric_from_lower(self.lower_inverse_from_cholesky(L))

    def triangular_inverse(self, L: Array, /) -> Array:
        with THREADS.threads_for(L.shape[-1] ** 3 / 3):
            return inverse_upper(L.T).T

    def lower_cholesky(self, A: Array, d: Array, /) -> Array:
        if A.ndim > 2:
            return self._cholesky_each(self.add_diagonal(A, d), clean=False)
        (potrf,) = routines("potrf", dtype=A.dtype)
        with THREADS.threads_for(A.shape[-1] ** 3 / 3):
            moved = clear_tiny(self.add_diagonal(A, d), lower=True)
            upper, info = potrf(moved.T, lower=False, clean=False, overwrite_a=True)
        return clear_tiny(upper.T, lower=True) if info == 0 else np.full_like(A, np.nan)

    def lower_inverse_from_cholesky(self, L: Array, /) -> Array:
        # L in C order is an upper factor U in LAPACK's order; lauum computes a triangle of U^-1 U^-T
        (lauum,) = routines("lauum", dtype=L.dtype)
        with THREADS.threads_for(2 * L.shape[-1] ** 3 / 3):
            inverse, _ = lauum(inverse_upper(L.T), lower=False, overwrite_c=True)
        return inverse.T

    def lower_tiles(
        self, f: Callable[[int, int], tuple[Array, ...]], M: int, /, *, groups: int | None = None
    ) -> tuple[Array, ...]:
        if M * M <= TILE:
            return f(0, M)
        allocate, lead = (np.empty, ()) if groups is None else (np.zeros, (groups,))
        found: list[Any] = []
        for start, stop in _triangle_panels(M) if groups is None else row_ranges(M, max(BLOCK, M // 3 + 1)):
            parts = f(start, stop)
            found = found or [allocate((*lead, M, M), dtype=part.dtype) for part in parts]
            for x, part in zip(found, parts, strict=True):
                x[..., start:stop, :stop] = part
        return tuple(found)

    def hollow_tile(self, A: Array, start: int, /) -> Array:
        rows = np.arange(A.shape[0])
        A[rows, start + rows] = 0.0
        return A

    def symmetric_product(self, A: Array, X: Array, /) -> Array:
        if X.shape[1] == 1:  # reading A dominates the time
            (symv,) = routines("symv", dtype=A.dtype)
            return symv(1.0, A.T, X[:, 0], lower=0)[:, None]
        (symm,) = routines("symm", dtype=A.dtype)
        with THREADS.threads_for(A.size * X.shape[1]):
            return symm(1.0, A.T, X.T, side=1, lower=0).T  # X^T A, whose factors and result are in Fortran order

    def symmetric_inner(self, A: Array, C: Array, /) -> Array:
        total = 0.0
        for start, stop in row_ranges(A.shape[-1], PANEL):
            own = A[start:stop, start:stop] * C[start:stop, start:stop]
            np.copyto(own, 0.0, where=_above(*own.shape, -1))
            total += np.add.reduce(own, axis=None)
            total += np.add.reduce(np.vecdot(A[start:stop, :start], C[start:stop, :start]))
        return 2.0 * total + np.vdot(self.diagonal(A), self.diagonal(C))

    def tril(self, A: Array, /) -> Array:
        if A.shape[-1] <= PANEL:
            out = A.copy()
            np.copyto(out, 0.0, where=_above(*A.shape[-2:]))
            return out
        out = np.zeros_like(A)
        for start, stop in row_ranges(A.shape[-1], PANEL):
            out[..., start:stop, :stop] = A[..., start:stop, :stop]
            out[..., start:stop, start:stop] = self.tril(A[..., start:stop, start:stop])
        return out

    def symmetric_from_lower(self, A: Array, /) -> Array:
        if A.shape[-1] <= PANEL:
            out = A.copy()
            np.copyto(out, A.mT, where=_above(*A.shape[-2:]))
            return out
        out = A.copy()
        for start, stop in row_ranges(A.shape[-1], PANEL):
            block = out[..., start:stop, start:stop]
            block[...] = self.symmetric_from_lower(block)
            out[..., start:stop, stop:] = A[..., stop:, start:stop].mT
        return out


def _clear_upper(A: Array) -> Array:
    """Set the entries of A [..., M, M] above the diagonal to zero, in place, and return A."""
    for start, stop in row_ranges(A.shape[-1], PANEL):
        np.copyto(A[..., start:stop, start:stop], 0.0, where=_above(stop - start, stop - start))
        A[..., start:stop, stop:] = 0.0
    return A
