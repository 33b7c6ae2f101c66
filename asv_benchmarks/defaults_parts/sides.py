"""The sides of the comparison: their names, tasks, and functions that fit them.

A fit function takes a `Job` and a seed. It returns facts about the fit and a function that predicts means and
variances, or the probabilities of the classes, at given inputs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from options import AGAINST

EVERY = ("regression", "binary", "classes")
EXACT_ROWS = 4000
"""Maximum number of training rows for GPyTorch's exact GP."""


@dataclass(frozen=True)
class Side:
    """One side of the comparison."""

    title: str
    module: str
    function: str
    tasks: tuple[str, ...]
    is_peer: bool = False
    """Whether it runs in the interpreter for other libraries."""
    has_limit: bool = False
    """Whether it has a maximum number of rows."""

    def takes(self, classes: int) -> bool:
        """Whether it supports targets with this number of classes, 0 for regression."""
        return {0: "regression", 2: "binary"}.get(classes, "classes") in self.tasks

    def fit(self) -> Callable[..., Any]:
        """Import and return the function that fits this side."""
        return getattr(import_module(f"defaults_parts.{self.module}"), self.function)


SIDES = {
    "agp": Side("agp", "agp_side", "fit", EVERY),
    "sklearn-gpr": Side("scikit-learn GP, 1,000 rows", "sklearn_sides", "fit_gpr", ("regression",)),
    "gpytorch-exact": Side("GPyTorch, exact", "gpytorch_sides", "fit_exact", ("regression",), True, True),
    "gpytorch-svgp": Side("GPyTorch, SVGP", "gpytorch_sides", "fit_svgp", ("regression", "binary"), True),
    "boosting": Side("boosting", "sklearn_sides", "fit_boosting", EVERY),
    "ridge": Side("ridge", "sklearn_sides", "fit_ridge", ("regression",)),
    "logistic": Side("logistic regression", "sklearn_sides", "fit_logistic", ("binary", "classes")),
    "mean": Side("mean", "mean_side", "fit", EVERY),
}


def side_of(name: str) -> Side:
    """Return the side with a given name; other checkouts of agp use the agp side."""
    return SIDES["agp" if name.startswith(AGAINST) else name]


def title(name: str) -> str:
    """Title of a side in tables."""
    return name if name.startswith(AGAINST) else SIDES[name].title
