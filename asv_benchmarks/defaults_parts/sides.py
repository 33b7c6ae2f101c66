"""The sides by their names: what they are for, and where the function that fits each of them is.

Such a function takes a `Job` and a seed. It returns a function from inputs to means and variances, or to probabilities
of the classes, and facts about the fit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

EVERY = ("regression", "binary", "classes")
EXACT_ROWS = 4000
"""Training rows that GPyTorch's exact GP is given at most."""
AGAINST = "agp@"
"""How sides begin that are other checkouts of agp."""


@dataclass(frozen=True)
class Side:
    """One side of the comparison."""

    title: str
    module: str
    function: str
    tasks: tuple[str, ...]
    is_peer: bool = False
    """Whether it runs in the interpreter of the peers."""
    has_limit: bool = False
    """Whether tables may have too many rows for it."""

    def takes(self, classes: int) -> bool:
        """Whether it is for targets with so many classes, 0 for regression."""
        return {0: "regression", 2: "binary"}.get(classes, "classes") in self.tasks

    def fit(self) -> Callable[..., Any]:
        """The function that fits it, with all that it imports."""
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
    """The side of that name; other checkouts of agp run as agp does."""
    return SIDES["agp" if name.startswith(AGAINST) else name]


def title(name: str) -> str:
    """What a side is called in tables."""
    return name if name.startswith(AGAINST) else SIDES[name].title
