"""Shapes of parameters: one number, or one number for each column of the inputs."""

from typing import Any

from agp import tree
from agp.backend import Array, backend_of
from agp.errors import count_of


def _shape(kernel: Any, name: str) -> tuple[int, ...]:
    # a list that is not yet an array counts as a vector
    value = tree.leaves(kernel)[name]
    return (len(value),) if isinstance(value, (list, tuple)) else tuple(value.shape)


def check_number(kernel: Any, name: str, /) -> None:
    """Raise ValueError unless this leaf of the kernel is scalar (0-d); for use in `Kernel.check`."""
    shape = _shape(kernel, name)
    if shape != ():
        raise ValueError(f"{type(kernel).__name__} has {name} of shape {shape}; pass one number.")


def check_per_column(kernel: Any, name: str, width: int, /) -> None:
    """Raise ValueError unless this leaf is scalar (0-d) or has one entry per column; there are `width` columns."""
    shape = _shape(kernel, name)
    if shape not in ((), (width,)):
        raise ValueError(
            f"{type(kernel).__name__} has {name}s of shape {shape}, but the inputs have {count_of(width, 'column')}; "
            f"pass one {name}, or one for each column."
        )


def check_matrix(kernel: Any, name: str, width: int, /) -> None:
    """Raise ValueError unless this leaf is a matrix [D, E] with one row per column; there are `width` columns."""
    value = tree.leaves(kernel)[name]
    shape = tuple(value.shape)
    if len(shape) != 2 or shape[0] != width or not shape[1]:
        raise ValueError(
            f"{type(kernel).__name__} has {name} of shape {shape}, but the inputs have {count_of(width, 'column')}; "
            f"pass a matrix with {width} rows."
        )


def per_column(by_column: Array, leaf: Array) -> Array:
    """Return the cotangent of a leaf with shape [] or [D], given a cotangent [D] with one entry per column."""
    return by_column if leaf.ndim == 1 else backend_of(by_column).xp.sum(by_column)
