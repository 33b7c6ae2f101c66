"""Products of triangular matrices that skip blocks of zeros and use only matrix products, and `solve_lower`.

Every matrix is split in halves (blocks 11, 21, 22) until the blocks are small. The smallest size of a block is
`Backend.triangular_block`, or `Backend.device_block` on accelerators. If only one factor is triangular, this size is
doubled. Only nonzero blocks that contribute to the result are multiplied. A dense product takes 2 M^3 operations. With
many levels, a product with one triangular input or a triangular output takes M^3 operations. A product of two
triangular inputs with a triangular output takes M^3 / 3 operations. The function `lower_product` takes 2/3 M^3
operations. Dimensions before the last two are batch dimensions.
"""

from agp.backend import Array, backend_of

DENSE_BLOCK = 512
"""Up to this size, a triangle of a general product is computed densely, because joining blocks would take longer."""
SOLVE_BLOCK = 128
"""Up to this size, all entries of a triangular solution are computed."""


def blocks_of(A: Array) -> tuple[Array, Array, Array]:
    """Return the blocks 11, 21 and 22 of A [..., M, M]."""
    h = A.shape[-1] // 2
    return A[..., :h, :h], A[..., h:, :h], A[..., h:, h:]


def _rows(A: Array) -> tuple[Array, Array]:
    h = A.shape[-2] // 2
    return A[..., :h, :], A[..., h:, :]


def _columns(A: Array) -> tuple[Array, Array]:
    h = A.shape[-1] // 2
    return A[..., :h], A[..., h:]


def _join_lower(a11: Array, a21: Array, a22: Array) -> Array:
    B = backend_of(a11)
    return B.join_blocks(a11, B.xp.zeros_like(a21).mT, a21, a22)


def lower_of(X: Array, Y: Array) -> Array:
    """Return the lower triangle of X Y, for X [M, K] and Y [K, M]."""
    B = backend_of(X)
    if X.shape[-2] <= DENSE_BLOCK or X.shape[-2] <= B.triangular_block or X.shape[-2] <= B.device_block(X):
        return B.triangular_product(X, Y, lower=True)
    X1, X2 = _rows(X)
    Y1, Y2 = _columns(Y)
    return _join_lower(lower_of(X1, Y1), B.product(X2, Y1), lower_of(X2, Y2))


def times_lower(A: Array, L: Array) -> Array:
    """Return A L for A [N, M] and lower triangular L [M, M]."""
    B = backend_of(L)
    if L.shape[-1] <= 2 * B.triangular_block or L.shape[-1] <= 2 * B.device_block(L):
        return B.triangular_product(A, L, right="lower")
    A1, A2 = _columns(A)
    L11, L21, L22 = blocks_of(L)
    return backend_of(A).xp.concat([times_lower(A1, L11) + B.product(A2, L21), times_lower(A2, L22)], axis=-1)


def lower_times(L: Array, C: Array) -> Array:
    """Return L C for lower triangular L [M, M] and C [M, N]."""
    B = backend_of(L)
    if L.shape[-1] <= 2 * B.triangular_block or L.shape[-1] <= 2 * B.device_block(L):
        return B.triangular_product(L, C, left="lower")
    C1, C2 = _rows(C)
    L11, L21, L22 = blocks_of(L)
    return backend_of(C).xp.concat([lower_times(L11, C1), B.product(L21, C1) + lower_times(L22, C2)], axis=-2)


def lower_transposed_times(L: Array, C: Array) -> Array:
    """Return L^T C for lower triangular L [M, M] and C [M, N]."""
    B = backend_of(L)
    if L.shape[-1] <= 2 * B.triangular_block or L.shape[-1] <= 2 * B.device_block(L):
        return B.triangular_product(L.mT, C, left="upper")
    C1, C2 = _rows(C)
    L11, L21, L22 = blocks_of(L)
    top = lower_transposed_times(L11, C1) + B.product(L21.mT, C2)
    return backend_of(C).xp.concat([top, lower_transposed_times(L22, C2)], axis=-2)


def lower_product(A: Array, L: Array) -> Array:
    """Return the lower triangle of A L, for A [M, M] and lower triangular L [M, M]."""
    B = backend_of(L)
    if L.shape[-1] <= B.triangular_block or L.shape[-1] <= B.device_block(L):
        return B.triangular_product(A, L, right="lower", lower=True)
    (A1, A2), (L11, L21, L22) = _rows(A), blocks_of(L)
    (A11, A12), (A21, A22) = _columns(A1), _columns(A2)
    top = lower_product(A11, L11) + lower_of(A12, L21)
    return _join_lower(top, times_lower(A21, L11) + B.product(A22, L21), lower_product(A22, L22))


def product_lower(L: Array, X: Array) -> Array:
    """Return the lower triangle of L X, for lower triangular L [M, M] and X [M, M]."""
    B = backend_of(L)
    if L.shape[-1] <= B.triangular_block or L.shape[-1] <= B.device_block(L):
        return B.triangular_product(L, X, left="lower", lower=True)
    (X1, X2), (L11, L21, L22) = _rows(X), blocks_of(L)
    (X11, X12), (X21, X22) = _columns(X1), _columns(X2)
    low = product_lower(L22, X22) + lower_of(L21, X12)
    return _join_lower(product_lower(L11, X11), B.product(L21, X11) + lower_times(L22, X21), low)


def lower_transposed_product(L: Array, C: Array) -> Array:
    """Return the lower triangle of L^T C, for lower triangular L and C [M, M]."""
    B = backend_of(L)
    if L.shape[-1] <= B.triangular_block or L.shape[-1] <= B.device_block(L):
        return B.triangular_product(L.mT, C, left="upper", right="lower", lower=True)
    (L11, L21, L22), (C11, C21, C22) = blocks_of(L), blocks_of(C)
    top = lower_transposed_product(L11, C11) + lower_of(L21.mT, C21)
    return _join_lower(top, lower_transposed_times(L22, C21), lower_transposed_product(L22, C22))


def product_lower_transposed(C: Array, L: Array) -> Array:
    """Return the lower triangle of C L^T, for lower triangular C and L [M, M]."""
    B = backend_of(L)
    if L.shape[-1] <= B.triangular_block or L.shape[-1] <= B.device_block(L):
        return B.triangular_product(C, L.mT, left="lower", right="upper", lower=True)
    (C11, C21, C22), (L11, L21, L22) = blocks_of(C), blocks_of(L)
    low = product_lower_transposed(C22, L22) + lower_of(C21, L21.mT)
    return _join_lower(product_lower_transposed(C11, L11), lower_times(L11, C21.mT).mT, low)


def lower_times_lower(L: Array, Y: Array) -> Array:
    """Return L Y for lower triangular L and Y [M, M]."""
    B = backend_of(L)
    if L.shape[-1] <= B.triangular_block or L.shape[-1] <= B.device_block(L):
        return B.triangular_product(L, Y, left="lower", right="lower")
    (L11, L21, L22), (Y11, Y21, Y22) = blocks_of(L), blocks_of(Y)
    left = times_lower(L21, Y11) + lower_times(L22, Y21)
    return _join_lower(lower_times_lower(L11, Y11), left, lower_times_lower(L22, Y22))


def solve_lower(L: Array, C: Array, /, *, transpose: bool = False) -> Array:
    """Return the lower triangle of L^-1 C, or of L^-T C, for lower triangular L and C [M, M].

    With many levels, this takes M^3 / 3 operations. Blocks of at most `SOLVE_BLOCK` rows are solved densely.
    """
    B = backend_of(L)
    if L.shape[-1] <= SOLVE_BLOCK or L.shape[-1] <= B.device_block(L):
        X = B.solve_triangular(L, C, transpose=transpose)
        return B.tril(X) if transpose else X  # L^-1 C is lower triangular
    (L11, L21, L22), (C11, C21, C22) = blocks_of(L), blocks_of(C)
    if transpose:  # the lower triangle of the solution depends only on that of the right-hand side
        X21 = B.solve_triangular(L22, C21, transpose=True)
        X11 = solve_lower(L11, C11 - lower_of(L21.mT, X21), transpose=True)
    else:
        X11 = solve_lower(L11, C11)
        X21 = B.solve_triangular(L22, C21 - times_lower(L21, X11))
    return _join_lower(X11, X21, solve_lower(L22, C22, transpose=transpose))


def gram(A: Array, L: Array) -> Array:
    """Return the lower triangle of L^T A L for symmetric A and lower triangular L [M, M], in M^3 operations."""
    # low(L^T C) needs only low(C), since L^T is upper
    return lower_transposed_product(L, lower_product(A, L))


def congruence(L: Array, X: Array) -> Array:
    """Return L X L^T for lower triangular L and symmetric X [M, M], in M^3 operations."""
    # low(C L^T) needs only low(C), since L^T is upper
    return symmetric_from_lower(product_lower_transposed(product_lower(L, X), L))


def symmetric_from_lower(A: Array) -> Array:
    """Return the symmetric matrix with the lower triangle of A [..., M, M]."""
    return backend_of(A).symmetric_from_lower(A)


def symmetric_from_blocks(A11: Array, A12: Array, A22: Array) -> Array:
    """Return the symmetric matrix [[A11, A12], [A12^T, A22]]."""
    return backend_of(A11).join_blocks(A11, A12, A12.mT, A22)
