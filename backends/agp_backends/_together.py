"""What stands by itself in each entry, over several arrays, where every call costs a launch."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from agp.backend import Array, Backend

__all__ = ["joined_where_small"]

SMALL = 2**16
"""Entries of an array up to which a copy costs less than launches."""


def joined_where_small(
    B: Backend, f: Callable[..., tuple], several: Sequence[tuple[Array, ...]], /
) -> list[tuple[Array, ...]]:
    """`Backend.elementwise_each`: small arrays are put one behind the other, and f is evaluated once for all of them.

    The arrays of a tuple have one shape, and those of all tuples in one place have one dtype.
    """
    sizes = [math.prod(arrays[0].shape) for arrays in several]
    small = [i for i, size in enumerate(sizes) if size <= SMALL]
    found: dict[int, tuple[Any, ...]] = {i: f(*several[i]) for i in range(len(several)) if i not in small}
    if len(small) < 2:
        return [found[i] if i in found else f(*several[i]) for i in range(len(several))]
    xp = B.xp
    columns = zip(*(several[i] for i in small), strict=True)
    joined = f(*(xp.concat([xp.reshape(x, (-1,)) for x in column]) for column in columns))
    start = 0
    for i in small:
        here = slice(start, start := start + sizes[i])
        found[i] = tuple(xp.reshape(x[here], several[i][0].shape) for x in joined)
    return [found[i] for i in range(len(several))]
