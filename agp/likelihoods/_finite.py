"""Quantiles of observations that have a few values in an order."""

from agp.backend import Array, backend_of

__all__ = ["finite_quantiles"]


def finite_quantiles(tails: list[tuple[Array, Array]], levels: tuple[float, ...]) -> Array:
    """The smallest of the values 0 .. K-1 that reaches each level [Q, N, P]: so many lie below it that do not.

    `tails` are P(y <= k) and P(y > k) [S, N, P] for k = 0 .. K-2, of S samples. The smaller of both is compared, in
    which no digits are lost.
    """
    xp, dtype = backend_of(tails[0][0]).xp, tails[0][0].dtype
    averages = [(xp.mean(up_to, axis=0), xp.mean(rest, axis=0)) for up_to, rest in tails]
    found = []
    for level in levels:
        short = [rest > 1.0 - level if level > 0.5 else up_to < level for up_to, rest in averages]
        found.append(xp.sum(xp.astype(xp.stack(short), dtype), axis=0))
    return xp.stack(found)
