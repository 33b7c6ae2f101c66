"""What stands by itself in each entry, over several arrays, where every call costs a launch."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from agp.backend import Array, Backend, constant

__all__ = ["joined_where_small"]

SMALL = 2**16
"""Entries of an array up to which a copy costs less than launches."""
APART = 128
"""Each begins at a multiple of so many entries: at least 512 bytes, as new arrays of the libraries do. Their products
and sums of the same numbers that begin elsewhere are rounded in another way."""


def joined_where_small(
    B: Backend, f: Callable[..., tuple], several: Sequence[tuple[Array, ...]], numbers: Sequence, /
) -> list[tuple[Array, ...]]:
    """`Backend.elementwise_each`: small arrays are put one behind the other, and f is evaluated once for all of them.

    The arrays of a tuple have one shape, and those of all tuples in one place have one dtype.
    """
    sizes = [math.prod(arrays[0].shape) for arrays in several]
    small = [i for i, size in enumerate(sizes) if size <= SMALL]
    found: dict[int, tuple[Any, ...]] = {i: f(B, *several[i], *numbers) for i in range(len(several)) if i not in small}
    if len(small) < 2:
        return [found[i] if i in found else f(B, *several[i], *numbers) for i in range(len(several))]
    xp = B.xp
    columns = zip(*(several[i] for i in small), strict=True)
    joined = f(B, *(_apart(B, column) for column in columns), *numbers)
    start = 0
    for i in small:
        found[i] = tuple(xp.reshape(x[start : start + sizes[i]], several[i][0].shape) for x in joined)
        start += sizes[i] + -sizes[i] % APART
    return [found[i] for i in range(len(several))]


def _apart(B: Backend, arrays: Sequence[Array]) -> Array:
    """The arrays one behind the other, with ones between them, of which every function has a value."""
    xp = B.xp
    ones = constant((1.0,) * APART, arrays[0])
    parts = [xp.reshape(x, (-1,)) for x in arrays]
    return xp.concat([piece for x in parts for piece in (x, ones[: -x.shape[0] % APART])])
