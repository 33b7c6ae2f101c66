"""What likelihoods for several classes share: C latent functions for one column of labels."""

import math
from typing import Any, Self

from agp.backend import Array, backend_of, like
from agp.checks import check_whole
from agp.likelihoods._base import Likelihood

__all__ = ["MultiClass", "check_labels"]


class MultiClass(Likelihood):
    """Labels 0 .. C-1 in one column [N, 1], with a latent function for each of the C classes."""

    classes: int

    def latents(self, columns: int, /) -> int:
        if columns != 1:
            msg = (
                f"y has {columns} columns, but {type(self).__name__} takes one column of labels 0 to "
                f"{self.classes - 1}; it has a latent function for each class by itself."
            )
            raise ValueError(msg)
        return self.classes

    def chosen(self, y: Array) -> Array:
        """Whether a class is the label: Boolean [N, C], for labels [N, 1]."""
        return y == backend_of(y).xp.arange(self.classes, **like(y))

    def proxies(self, y: Array, /) -> Array:
        """Whether a class is the label, as 0 and 1 [N, C]."""
        return backend_of(y).xp.astype(self.chosen(y), y.dtype)

    def _on_host(self, what: str, mu: Array, var: Array) -> tuple[Any, Any, Any]:
        msg = (
            f"{type(self).__name__} predicts classes, which have no order and so no {what}; `predict` gives their "
            "probabilities, and Ordinal is for classes in an order."
        )
        raise TypeError(msg)

    def from_data(self, variance: float, /) -> Self:
        return self

    def check_parameters(self) -> None:
        check_whole("classes", self.classes, least=2)

    def check_targets(self, y: Array, /) -> None:
        check_whole("classes", self.classes, least=2)
        self.latents(y.shape[1])
        check_labels(y, self.classes, type(self).__name__)


def check_labels(y: Array, classes: int, name: str) -> None:
    """ValueError unless the targets are labels 0 to classes - 1, for the likelihood of that name."""
    xp = backend_of(y).xp
    fraction = y != xp.floor(y)
    if bool(xp.any(fraction)):
        example = float(xp.max(xp.where(fraction, y, xp.full_like(y, -math.inf))))
        msg = f"labels must be whole numbers, the classes 0 to {classes - 1}; found {example:g}."
        raise ValueError(msg)
    lowest, highest = float(xp.min(y)), float(xp.max(y))
    if lowest < 0.0 or highest >= classes:
        found = lowest if lowest < 0.0 else highest
        msg = f"labels must be from 0 to {classes - 1} for {name} with classes={classes}; found {found:g}."
        raise ValueError(msg)
