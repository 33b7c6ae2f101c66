"""Rows with equal inputs, which are replaced by one row."""

from typing import Any, NamedTuple

import numpy as np

PRIMES = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)
"""Odd numbers for the hash of a row."""


class Merged(NamedTuple):
    """Different rows, as arrays on the host."""

    X: Any
    """Inputs [n, D]."""
    y: Any
    """The weighted means [n, P] of the targets."""
    weights: Any
    """The number of observations [n] in each row, or None if each row is one."""
    noise: Any
    """Known noise variances [n], or None."""
    squares: Any
    """The sums [n] of w (y - mean)^2 over the rows that became one, and over outputs; None if no row is repeated."""


def merge_repeats(X: Any, y: Any, weights: Any = None, noise: Any = None, /) -> Merged:
    """Replace rows with equal inputs and equal known noise by one row.

    Parameters
    ----------
    X, y
        Inputs [N, D] and targets [N, P] on the host.
    weights, noise
        The number of observations [N] in each row, and their known noise variances [N]; None means 1 and 0.

    Notes
    -----
    For observations of variance v, the log density of a group with W observations, mean m and squares S around it is
    that of m with the variance v / W, minus S / (2 v) and terms that depend on W and v only (`agp.NNGP` adds them).
    """
    keys = X if noise is None else np.concatenate([X, noise[:, None]], axis=1)
    group = _groups(keys + 0.0)  # equal zeros have equal bits
    if group is None:
        return Merged(X, y, weights, noise, None)
    first, place = group
    w = np.ones(len(X)) if weights is None else weights
    total = np.bincount(place, w)
    means = np.stack([np.bincount(place, w * column) for column in y.T], axis=1) / total[:, None]
    squares = np.bincount(place, w * np.sum((y - means[place]) ** 2, axis=1))
    # keep the targets of single rows to the bit
    single = np.bincount(place) == 1
    means[single], squares[single] = y[first[single]], 0.0
    return Merged(X[first], means, total, None if noise is None else noise[first], squares)


def _groups(keys: Any) -> tuple[Any, Any] | None:
    """Return the first row of each group of equal rows, in the order of the rows, and the group of each row.

    Return None if no row is repeated.
    """
    bits, hashed = np.ascontiguousarray(keys).view(np.uint64), np.zeros(len(keys), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column in bits.T:
            hashed = (hashed ^ column) * np.uint64(PRIMES[0])
            hashed = (hashed ^ (hashed >> np.uint64(29))) * np.uint64(PRIMES[1])
    ordered = np.sort(hashed)  # takes less time than the order itself
    if not (ordered[1:] == ordered[:-1]).any():
        return None
    order = np.argsort(hashed, kind="stable")
    same = hashed[order[1:]] == hashed[order[:-1]]
    (at,) = np.nonzero(same)
    if not np.array_equal(bits[order[at]], bits[order[at + 1]]):  # different rows have the same hash
        _, first, place = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        place = place.reshape(-1)
    else:
        starts = np.concatenate([[True], ~same])
        place = np.empty(len(keys), dtype=np.intp)
        place[order] = np.cumsum(starts) - 1
        first = order[starts]
    if len(first) == len(keys):
        return None
    ranks = np.argsort(first, kind="stable")  # the groups in the order of their first rows
    renamed = np.empty_like(ranks)
    renamed[ranks] = np.arange(len(ranks))
    return first[ranks], renamed[place]
