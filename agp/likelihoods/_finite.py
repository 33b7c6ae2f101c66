"""Observations that have a few values in an order: quantiles, distribution functions, CRPS."""

from abc import abstractmethod
from typing import ClassVar

from agp.backend import Array, backend_of
from agp.likelihoods._base import Likelihood

__all__ = ["OrderedCategories", "Tails"]

Tails = list[tuple[Array, Array]]
"""P(y <= k) and P(y > k) [S, N, P] for k = 0 .. K-2, of S samples."""


class OrderedCategories(Likelihood):
    """What likelihoods of the values 0 .. K-1 share."""

    whole_numbers: ClassVar[bool] = True

    @abstractmethod
    def _tails(self, mu: Array, var: Array) -> Tails:
        """The tails for marginals [S, N, P]."""

    def _quantiles(self, mu: Array, var: Array, levels: tuple[float, ...]) -> Array:
        return finite_quantiles(self._tails(mu, var), levels)

    def _cdf(self, mu: Array, var: Array, y: Array) -> Array:
        return finite_cdf(self._tails(mu, var), y)

    def _crps(self, mu: Array, var: Array, y: Array) -> Array:
        return finite_crps(self._tails(mu, var), y)


def finite_quantiles(tails: Tails, levels: tuple[float, ...]) -> Array:
    """The smallest of the values 0 .. K-1 that reaches each level [Q, N, P]: so many lie below it that do not.

    The smaller of both tails is compared, in which no digits are lost.
    """
    xp, dtype = backend_of(tails[0][0]).xp, tails[0][0].dtype
    averages = [(xp.mean(up_to, axis=0), xp.mean(rest, axis=0)) for up_to, rest in tails]
    found = []
    for level in levels:
        short = [rest > 1.0 - level if level > 0.5 else up_to < level for up_to, rest in averages]
        found.append(xp.sum(xp.astype(xp.stack(short), dtype), axis=0))
    return xp.stack(found)


def finite_cdf(tails: Tails, y: Array) -> Array:
    """P(Y <= y) [N, P]; NaN where y is."""
    xp = backend_of(y).xp
    one, found = xp.ones_like(y), 0.0 * y
    for k, share in enumerate([*(xp.mean(up_to, axis=0) for up_to, _ in tails), one]):
        found = xp.where(y >= float(k), xp.minimum(share, one), found)
    return found


def finite_crps(tails: Tails, y: Array) -> Array:
    """The sum over k of (P(Y <= k) - [y <= k])^2 [N, P]: the ranked probability score."""
    xp = backend_of(y).xp
    total = 0.0 * y
    for k, (up_to, _) in enumerate(tails):
        total = total + (xp.mean(up_to, axis=0) - xp.astype(y <= float(k), y.dtype)) ** 2
    return total
