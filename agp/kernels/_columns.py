"""Chosen columns of inputs, and the way back."""

from agp.backend import Array, backend_of

__all__ = ["chosen", "scattered"]


def chosen(X: Array, columns: tuple[int, ...]) -> Array:
    """Those columns of X [..., N, D], in that order."""
    if columns == tuple(range(columns[0], columns[0] + len(columns))):
        return X[..., columns[0] : columns[0] + len(columns)]
    return backend_of(X).xp.stack([X[..., column] for column in columns], axis=-1)


def scattered(bar: Array | None, columns: tuple[int, ...], width: int) -> Array | None:
    """The adjoint of `chosen` [..., N, D]: zero in the other columns."""
    if bar is None:
        return None
    xp = backend_of(bar).xp
    zero = xp.zeros_like(bar[..., 0])
    place = {column: i for i, column in enumerate(columns)}
    return xp.stack([bar[..., place[column]] if column in place else zero for column in range(width)], axis=-1)
