"""Jitter: the multiple of the identity that keeps a covariance matrix positive definite in finite precision."""

from agp.backend import Array, backend_of

__all__ = ["add_diagonal", "add_jitter", "checked_jitter", "default_jitter", "diagonal", "identity"]


def identity(A: Array) -> Array:
    """The identity of the shape [M, M], dtype and device of A [..., M, M]."""
    B = backend_of(A)
    return B.xp.eye(A.shape[-1], **B.like(A))


def diagonal(A: Array) -> Array:
    """The diagonal [..., M] of A [..., M, M]; without the linear algebra extension, as inverse-free methods need it."""
    return backend_of(A).diagonal(A)


def add_diagonal(A: Array, d: Array | float) -> Array:
    """A + diag(d), for A [..., M, M] and d [M], [..., M], or one number for all entries."""
    return backend_of(A).add_diagonal(A, d)


def default_jitter(A: Array) -> Array:
    """1e-6 (float64) or 1e-4 (float32) of the mean diagonal of each A [..., M, M], constants [...]."""
    B = backend_of(A)
    relative = 1e-6 if float(B.xp.finfo(A.dtype).eps) < 1e-10 else 1e-4
    return B.stop_gradient(relative * B.xp.mean(B.diagonal(A), axis=-1))


def add_jitter(A: Array, jitter: float | None = None) -> Array:
    """A + jitter I, for A [..., M, M]; an explicit jitter is absolute, the default is relative (`default_jitter`)."""
    if jitter is not None:
        return add_diagonal(A, jitter)
    relative = default_jitter(A)
    return backend_of(A).add_diagonal(A, relative if A.ndim == 2 else relative[..., None])


def checked_jitter(jitter: float | None) -> float | None:
    """ValueError unless the jitter is None or a finite number from zero on."""
    if jitter is not None and not 0 <= jitter < float("inf"):
        msg = f"jitter is {jitter!r}, but must be None, or a finite number from zero on."
        raise ValueError(msg)
    return jitter
