"""Base classes for likelihoods with labels 0 to C-1: ordered categories, and classes without an order."""

import math
from abc import abstractmethod
from typing import Any, ClassVar, Literal

from agp.backend import Array, backend_of, like
from agp.checks import check_whole
from agp.errors import count_of
from agp.likelihoods._base import Likelihood, average_samples

Tails = list[tuple[Array, Array]]
"""The pairs P(y <= k) and P(y > k), each [S, N, P] for S samples, for k from 0 to C-2."""


class OrderedCategories(Likelihood):
    """Base class for ordered categories 0 to C-1. Quantiles, distribution functions and the CRPS are finite sums."""

    whole_numbers: ClassVar[bool] = True
    quality: ClassVar[Literal["error", "label", "fit"]] = "label"

    @abstractmethod
    def _tails(self, mu: Array, var: Array) -> Tails:
        """Compute the tails for latent means and variances [S, N, P]."""

    def _quantiles(self, mu: Array, var: Array, levels: tuple[float, ...], shares: Array | None) -> Array:
        # count the categories with P(y <= k) < level; the smaller of the two tails is the accurate one
        xp, tails = backend_of(mu).xp, self._tails(mu, var)
        averages = [(average_samples(up_to, shares), average_samples(rest, shares)) for up_to, rest in tails]
        found = []
        for level in levels:
            short = [rest > 1.0 - level if level > 0.5 else up_to < level for up_to, rest in averages]
            found.append(xp.sum(xp.astype(xp.stack(short), mu.dtype), axis=0))
        return xp.stack(found)

    def _cdf(self, mu: Array, var: Array, y: Array, shares: Array | None) -> Array:
        xp = backend_of(y).xp
        one, found = xp.ones_like(y), 0.0 * y  # NaN where y is NaN
        for k, share in enumerate([*(average_samples(up_to, shares) for up_to, _ in self._tails(mu, var)), one]):
            found = xp.where(y >= float(k), xp.minimum(share, one), found)
        return found

    def _crps(self, mu: Array, var: Array, y: Array, shares: Array | None) -> Array:
        # the ranked probability score, the sum over k of (P(Y <= k) - [y <= k])^2
        xp = backend_of(y).xp
        total = 0.0 * y
        for k, (up_to, _) in enumerate(self._tails(mu, var)):
            total = total + (average_samples(up_to, shares) - xp.astype(y <= float(k), y.dtype)) ** 2
        return total


class MultiClass(Likelihood):
    """Base class for classes 0 to C-1. Labels have one column [N, 1], and each class has a latent function."""

    classes: int

    couples_outputs: ClassVar[bool] = True
    quality: ClassVar[Literal["error", "label", "fit"]] = "label"
    bounded_curvature: ClassVar[bool] = True

    def latents(self, columns: int, /) -> int:
        if columns != 1:
            raise ValueError(
                f"y has {count_of(columns, 'column')}, but {type(self).__name__} takes one column of labels 0 to "
                f"{self.classes - 1}."
            )
        return self.classes

    def is_label(self, y: Array) -> Array:
        """Compare labels y [N, 1] with all classes, and return a Boolean array [N, C]."""
        return y == backend_of(y).xp.arange(self.classes, **like(y))

    def proxies(self, y: Array, /) -> Array:
        """Return the labels in one-hot encoding [N, C]."""
        return backend_of(y).xp.astype(self.is_label(y), y.dtype)

    def _on_host(self, what: str, mu: Array, var: Array, shares: Array | None) -> tuple[Any, Any, Any]:
        raise TypeError(
            f"{type(self).__name__} predicts classes without an order, so there are no {what}; call `predict` for "
            "class probabilities, or use Ordinal for ordered classes."
        )

    def check_parameters(self) -> None:
        check_whole("classes", self.classes, least=2)

    def check_targets(self, y: Array, /) -> None:
        check_whole("classes", self.classes, least=2)
        self.latents(y.shape[1])
        check_labels(y, self.classes, type(self).__name__)

    def in_support(self, y: Array, /) -> Array:
        return are_labels(y, self.classes)


def are_labels(y: Array, classes: int) -> Array:
    """Return a Boolean array, true for labels from 0 to classes - 1."""
    return (y == backend_of(y).xp.floor(y)) & (y >= 0.0) & (y < classes)


def check_labels(y: Array, classes: int, name: str) -> None:
    """Raise ValueError unless the targets are labels from 0 to classes - 1; `name` is the name of the likelihood."""
    xp = backend_of(y).xp
    fraction = y != xp.floor(y)
    if bool(xp.any(fraction)):
        example = float(xp.max(xp.where(fraction, y, xp.full_like(y, -math.inf))))
        raise ValueError(f"labels must be whole numbers from 0 to {classes - 1}; found {example:g}.")
    lowest, highest = float(xp.min(y)), float(xp.max(y))
    if lowest < 0.0 or highest >= classes:
        found = lowest if lowest < 0.0 else highest
        raise ValueError(f"labels must be from 0 to {classes - 1} for {name} with classes={classes}; found {found:g}.")
