"""Routines of BLAS and LAPACK, the inverse of a triangular matrix, and what keeps subnormal numbers out of both."""

import functools
from collections.abc import Callable

import numpy as np
import scipy.linalg

from agp.backend import Array
from agp.chunking import row_ranges

BLOCK = 64
"""Number of rows per block of a triangular solve."""
PANEL = 128
"""Number of rows or columns per panel of a triangular product."""
SAMPLED_ROWS, CLEARED_ENTRIES = 16, 2**16
"""Every so many rows are searched for tiny entries, and about so many entries are cleared together."""


@functools.cache
def routines(*names: str, dtype: np.dtype) -> list[Callable]:
    """BLAS or LAPACK routines for a dtype."""
    lapack = names[0] in ("potrf", "trtri", "lauum")
    found = scipy.linalg.get_lapack_funcs if lapack else scipy.linalg.get_blas_funcs
    return found(names, dtype=dtype)


def clear_tiny(A: Array, /, *, lower: bool = False) -> Array:
    """Set entries of A [M, N] to zero in place that do not matter, if the product of two may be subnormal; return A.

    If `lower` is true, entries above the diagonal are ignored, and may be anything.

    Processors take about 100 times as long for operations with subnormal numbers. Covariances of distant rows make
    many of them in float32: exp(-90) is one. Entries below eps^1.5 times the largest one are cleared, which changes the
    matrix by less than its rounding errors, of about eps times the largest entry.
    """
    limits, some = np.finfo(A.dtype), np.abs(A[::SAMPLED_ROWS])
    if lower:
        places = np.arange(A.shape[0])
        some[places[None, :] > places[::SAMPLED_ROWS, None]] = 0.0
    if not np.any((some > 0.0) & (some < limits.smallest_normal**0.5)):
        return A
    least = limits.eps**1.5 * np.max(some)
    for start, stop in row_ranges(A.shape[0], max(1, CLEARED_ENTRIES // A.shape[1])):
        rows = A[start:stop]
        rows[np.abs(rows) < least] = 0.0
    return A


def inverse_upper(U: Array, /) -> Array:
    """Inverse of an upper triangular matrix, from those of two diagonal blocks. The entries below are zero, if U's are.

    Larger products than those of LAPACK's trtri take up to half of its time.
    """
    trtri, trmm = *routines("trtri", dtype=U.dtype), *routines("trmm", dtype=U.dtype)
    M = U.shape[0]
    if M <= PANEL:
        return trtri(U, lower=False)[0]
    out, h = np.empty_like(U, order="F"), BLOCK * ((M + BLOCK) // (2 * BLOCK))
    out[:h, :h], out[h:, h:], out[h:, :h] = inverse_upper(U[:h, :h]), inverse_upper(U[h:, h:]), 0.0
    product = clear_tiny(trmm(1.0, out[:h, :h], U[:h, h:]).T).T
    out[:h, h:] = clear_tiny(trmm(-1.0, out[h:, h:], product, side=1).T).T
    return out
