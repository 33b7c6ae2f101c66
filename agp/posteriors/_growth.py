"""Helpers that add inducing variables w to u so that q(u, w) = q(u) p(w | u).

The marginals of f at any input and the KL divergence from the prior do not change.
"""

from agp.backend import Array, backend_of, like


def append_rows(x: Array, count: int, value: float = 0.0, /, *, front: bool = False) -> Array:
    """Add `count` rows filled with `value` after the rows of x [M, ...], or before these rows if `front` is true."""
    xp = backend_of(x).xp
    new = xp.full((count, *x.shape[1:]), value, **like(x))
    return xp.concat([new, x] if front else [x, new], axis=0)


def append_diagonal_block(A: Array, count: int, value: float | Array = 0.0, /, *, front: bool = False) -> Array:
    """Return blkdiag(A, value I) for A [..., M, M] and I [count, count], or blkdiag(value I, A) if `front` is true."""
    xp = backend_of(A).xp
    M, outer = A.shape[-1], A.shape[:-2]
    corner = xp.broadcast_to(value * xp.eye(count, **like(A)), (*outer, count, count))
    beside_old, beside_new = (xp.zeros((*outer, *shape), **like(A)) for shape in ((M, count), (count, M)))
    old = xp.concat([beside_old, A] if front else [A, beside_old], axis=-1)
    new = xp.concat([corner, beside_new] if front else [beside_new, corner], axis=-1)
    return xp.concat([new, old] if front else [old, new], axis=-2)


def new_weights(Lu: Array, M: int, /) -> Array:
    """Return Kwu Kuu^-1 [M' - M, M], given the Cholesky factor [M', M'] of the joint covariance of u and w."""
    B = backend_of(Lu)
    return B.solve_triangular(Lu[:M, :M], Lu[M:, :M].mT, transpose=True).mT


def transform_sites(J: Array, shift: Array, precision: Array, /) -> tuple[Array, Array]:
    """Return T l and T L2 T^T with T = [I; J], given sites l [M, P] and L2 [P, M, M] in kernel coordinates."""
    xp = backend_of(J).xp
    rows = xp.concat([precision, J @ precision], axis=-2)
    return xp.concat([shift, J @ shift], axis=0), xp.concat([rows, rows @ J.mT], axis=-1)
