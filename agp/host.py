"""What is made on the host for every backend alike: quadrature nodes, seeded draws. NumPy is at home here."""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

LEAST_VARIANCE = 1e-2
"""Of a principal direction that starts a latent function; one without any would never move."""

F = TypeVar("F", bound=Callable[..., Any])

MOST_REPEATED = 20_000
"""To how many rows weights repeat them, unless there are as many before."""
MOST_NODES = 370
"""Nodes of a quadrature: with more, functions that give the weights overflow, and the weights become zero or NaN."""


@cache
def gauss_hermite(points: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Nodes t_i and weights w_i with sum_i w_i g(mu + sqrt(2 var) t_i) ~ E[g(f)], f ~ N(mu, var); sum w_i = 1.

    Raises
    ------
    ValueError
        For more nodes than float64 has weights for.
    """
    if points > MOST_NODES:
        msg = f"points is {points}, but Gauss-Hermite quadrature has finite weights up to {MOST_NODES}; 20 are usual."
        raise ValueError(msg)
    nodes, weights = np.polynomial.hermite.hermgauss(points)
    return tuple(map(float, nodes)), tuple(map(float, weights / np.sqrt(np.pi)))


@cache
def gauss_legendre(points: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Nodes x_i in (-1, 1) and weights w_i with sum_i w_i g(x_i) ~ the integral of g from -1 to 1."""
    nodes, weights = np.polynomial.legendre.leggauss(points)
    return tuple(map(float, nodes)), tuple(map(float, weights))


def normal_quantiles(bins: int) -> tuple[float, ...]:
    """What divides the standard normal distribution into so many equally probable bins, in ascending order."""
    from scipy.special import ndtri

    return tuple(float(ndtri(k / bins)) for k in range(1, bins))


def generator(seed: int, *purpose: int) -> np.random.Generator:
    """The generator of a seed, independent for each purpose."""
    return np.random.default_rng([seed, *purpose])


def row_normals(seed: int, start: int, rows: int, count: int) -> npt.NDArray[np.float64]:
    """Standard normal numbers [rows, count] for the rows from `start` on, which depend on seed and row number alone.

    A counter-based generator is set to where the first row begins, and each number takes one draw of it, so that any
    chunking of the rows sees the same numbers.
    """
    from scipy.special import ndtri

    per_row = -(-count // 4)  # the generator counts in blocks of four numbers
    bits = np.random.Philox(key=[seed, 8])
    bits.advance(start * per_row)
    uniform = np.random.Generator(bits).random((rows, 4 * per_row))
    # multiples of 2^-53 from 0 to 1, moved off both ends
    return ndtri(np.clip(uniform[:, :count], 2.0**-54, 1.0 - 2.0**-53))


def common_normals(seed: int, samples: int, rows: int, width: int) -> npt.NDArray[np.float64]:
    """Standard normal numbers [samples, rows, width], the same for all rows; they depend on the seed alone.

    In every column one comes from each of `samples` parts of equal probability: a Latin hypercube, whose averages are
    closer to expectations than those of independent numbers.
    """
    from scipy.special import ndtri

    rng = generator(seed, 9)
    parts = rng.permuted(np.tile(np.arange(samples)[:, None], width), axis=0)
    normals = ndtri((parts + rng.uniform(2.0**-53, 1.0, (samples, width))) / samples)
    return np.broadcast_to(normals[:, None, :], (samples, rows, width))


def scalar(number: float) -> npt.NDArray[np.float64]:
    """A number of Python as a 0-d array."""
    return np.asarray(number, dtype=np.float64)


def principal_directions(x: npt.NDArray[Any], count: int) -> npt.NDArray[np.float64]:
    """The leading eigenvectors [D, count] of x^T x, for x [N, D]; the largest entry of each is positive."""
    x = np.asarray(x, dtype=np.float64)
    vectors = np.linalg.eigh(x.T @ x)[1][:, ::-1][:, :count]
    return _signed(vectors)


def _signed(vectors: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Eigenvectors whose largest entry is positive: their sign is a matter of rounding."""
    return vectors * np.sign(np.take_along_axis(vectors, np.argmax(np.abs(vectors), axis=0)[None, :], axis=0))


def relevance(X: npt.NDArray[Any], y: npt.NDArray[Any], /, bins: int = 6) -> npt.NDArray[np.float64]:
    """The share of the variance of y [N, Q] that each column of X [N, D] by itself tells: [D], relative to the largest.

    The rows are cut into bins of equal counts by the column; the share is that of the variance between the averages of
    the bins, less what chance gives, at least zero, and averaged over the targets. All ones where no column tells any.
    """
    N, bins = len(y), max(2, min(bins, len(y) // 4))
    deviation = y - y.mean(axis=0)
    starts = np.linspace(0, N, bins + 1).astype(int)[:-1]
    counts = np.diff([*starts, N])[:, None, None]
    order = np.argsort(X, axis=0, kind="stable")  # [N, D]
    sums = np.add.reduceat(deviation[order], starts, axis=0)  # [bins, D, Q]
    share = np.sum(sums**2 / counts, axis=0) / np.sum(deviation**2, axis=0)
    told = np.maximum(1.0 - (1.0 - share) * (N - 1) / (N - bins), 0.0).mean(axis=1)
    return told / told.max() if told.max() > 0.0 else np.ones_like(told)


def correlation_root(y: npt.NDArray[Any], count: int) -> npt.NDArray[np.float64]:
    """R [P, count] with R R^T close to the correlations of the columns of y [N, P], of which entries may be NaN.

    The symmetric root for all directions, so that uncorrelated columns stay by themselves; else the leading principal
    directions, each as long as its standard deviation. Correlations are over the rows where both columns are known.
    """
    y = np.asarray(y, dtype=np.float64)
    known = ~np.isnan(y)
    y = y - np.nanmean(y, axis=0)
    spread = np.nanstd(y, axis=0)
    z = np.where(known, y / np.where(spread > 0.0, spread, 1.0), 0.0)
    both = known.T.astype(np.float64) @ known
    values, vectors = np.linalg.eigh(z.T @ z / np.maximum(both, 1.0))
    lengths = np.sqrt(np.maximum(values, LEAST_VARIANCE))
    if count == y.shape[1]:
        return (vectors * lengths) @ vectors.T
    return _signed((vectors * lengths)[:, ::-1][:, :count])


def repetitions(weights: npt.NDArray[Any]) -> npt.NDArray[np.int64] | None:
    """The numbers of rows, each as often as its weight in [N] says; None where all weights are zero.

    Whole weights give just the repeated rows, one after the other, up to `MOST_REPEATED`. Others, and more, are scaled
    and rounded along their running sum, so that there are as many rows as before at the least.
    """
    ends = np.cumsum(weights.astype(np.float64))
    N, total = len(ends), ends[-1]
    if not total > 0.0:
        return None
    rows = max(N, min(total, MOST_REPEATED))
    return np.repeat(np.arange(N), np.diff(np.floor(ends * (rows / total) + 0.5), prepend=0.0).astype(np.int64))


def underflow_is_zero(f: F) -> F:
    """A public entrance in which numbers too small for a float are zero, also after ``np.seterr(under="raise")``.

    A covariance of distant rows is such a number, and nothing is wrong with it. What a user has set for overflow, for
    division by zero and for invalid operations holds, and all of it is as before in the end.
    """

    @wraps(f)
    def entered(*args: Any, **kwargs: Any) -> Any:
        with np.errstate(under="ignore"):
            return f(*args, **kwargs)

    return entered  # type: ignore[return-value]


def overflow_is_judged(f: F) -> F:
    """A public entrance that refuses what is not finite in the end, and so needs no warnings of NumPy on the way there.

    Other libraries give none. Overflow, division by zero and invalid operations stay what a user has made them by
    ``np.seterr``, if anything but warnings.
    """

    @wraps(f)
    def entered(*args: Any, **kwargs: Any) -> Any:
        warned: Any = {kind: "ignore" for kind, how in np.geterr().items() if how == "warn"}
        with np.errstate(**warned):
            return f(*args, **kwargs)

    return entered  # type: ignore[return-value]
