"""Block-diagonal matrices, and operations on the matrices [P, M, M] and vectors [M, P] of several outputs."""

from collections.abc import Sequence

from agp.backend import Array, backend_of, like
from agp.linalg._cholesky import cholesky
from agp.linalg._diagonal import identity
from agp.linalg._triangular import SOLVE_BLOCK, solve_lower


def groups_of(sizes: Sequence[int]) -> list[slice]:
    """Return the slice of rows for each of the consecutive groups with the given sizes."""
    stops = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [slice(stop - size, stop) for stop, size in zip(stops, sizes, strict=True)]


def block_diagonal(
    blocks: Sequence[Array | None], sizes: Sequence[int], columns: Sequence[int] | None = None
) -> Array | None:
    """Return the matrix with these blocks on its diagonal; a block of zeros, or the whole result, may be None.

    Block i has `sizes[i]` rows and, unless `columns` is given, the same number of columns.
    """
    there = next((block for block in blocks if block is not None), None)
    if there is None:
        return None
    xp = backend_of(there).xp
    rows = []
    for i, block in enumerate(blocks):
        cells = [xp.zeros((sizes[i], width), **like(there)) for width in columns or sizes]
        cells[i] = cells[i] if block is None else block
        rows.append(xp.concat(cells, axis=1))
    return xp.concat(rows, axis=0)


def each_times(A: Array, x: Array, /) -> Array:
    """Multiply each A_p by column p of x, for A [P, M, M] and x [M, P]; the result is [M, P]."""
    return (A @ x.mT[:, :, None])[:, :, 0].mT


def each_outer(x: Array, y: Array, /) -> Array:
    """Return the symmetric matrices 1/2 (x_p y_p^T + y_p x_p^T) [P, M, M], for x and y [M, P]."""
    outer = x.mT[:, :, None] * y.mT[:, None, :]
    return 0.5 * (outer + outer.mT)


def solve_each(L: Array, C: Array, /, *, transpose: bool = False) -> Array:
    """Return L^-1 C_p or L^-T C_p [P, M, K] for lower triangular L [M, M] and C [P, M, K], by a single solve."""
    B = backend_of(C)
    P, M, K = C.shape
    columns = B.xp.reshape(B.xp.permute_dims(C, (1, 0, 2)), (M, P * K))
    solved = B.solve_triangular(L, columns, transpose=transpose)
    return B.xp.permute_dims(B.xp.reshape(solved, (M, P, K)), (1, 0, 2))


def solve_each_lower(L: Array, C: Array, /, *, transpose: bool = False) -> Array:
    """Return the lower triangles of L^-1 C_p or L^-T C_p for lower triangular L [M, M] and C_p [P, M, M]."""
    B, (P, M, _) = backend_of(C), C.shape
    if P > 1 and max(SOLVE_BLOCK, B.device_block(C)) >= M:
        X = solve_each(L, C, transpose=transpose)
        return B.tril(X) if transpose else X
    found = [solve_lower(L, C[p, ...], transpose=transpose) for p in range(P)]
    return B.xp.stack(found, axis=0) if P > 1 else found[0][None, ...]


def each_cholesky(S: Array, /) -> Array:
    """Return the Cholesky factors of S [P, M, M], each repaired separately; errors are those of `cholesky`."""
    return backend_of(S).xp.stack([cholesky(S[p, ...]) for p in range(S.shape[0])], axis=0)


def each_inverse(L: Array, /) -> Array:
    """Return L_p^-1 for lower triangular L [P, M, M]."""
    inverses = [_inverse(L[p, ...]) for p in range(L.shape[0])]
    return inverses[0][None, ...] if len(inverses) == 1 else backend_of(L).xp.stack(inverses, axis=0)


def _inverse(L: Array) -> Array:
    found = backend_of(L).triangular_inverse(L)
    return solve_lower(L, identity(L)) if found is None else found
