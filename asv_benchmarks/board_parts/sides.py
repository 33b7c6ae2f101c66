"""The sides of the board: their names, the tables that they take, and the functions that fit them.

A fit function takes a `Job` and a seed. It returns a function that predicts distributions (`predictions.Prediction`)
or the probabilities [N, C] of classes for a frame of inputs, and facts about the fit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from options import AGAINST

GP_ROWS, NGBOOST_ROWS = 1000, 10_000
"""Maximum number of rows of a table for scikit-learn's GP and for NGBoost, which take minutes for more rows."""


@dataclass(frozen=True)
class Side:
    """One side of the board."""

    title: str
    module: str
    function: str
    library: str
    """The package that it needs."""
    numbers: bool = True
    """Whether it predicts numbers."""
    classes: bool = True
    """Whether it predicts classes."""
    max_rows: int | None = None
    """The maximum number of rows of a table."""

    def takes(self, rows: int, classes: bool) -> bool:
        """Whether it takes a table with so many rows, with classes or numbers as targets."""
        return (self.classes if classes else self.numbers) and (self.max_rows is None or rows <= self.max_rows)

    @property
    def is_installed(self) -> bool:
        """Whether its package is installed."""
        return find_spec(self.library) is not None

    def fit(self) -> Callable[..., Any]:
        """Import and return the function that fits this side."""
        return getattr(import_module(f"board_parts.{self.module}"), self.function)


SIDES = {
    "agp": Side("agp", "agp_side", "fit", "agp"),
    "boosting": Side("boosting", "sklearn_sides", "fit_boosting", "skrub"),
    "boosting-quantiles": Side(
        "boosting, quantiles", "sklearn_sides", "fit_boosting_quantiles", "skrub", classes=False
    ),
    "catboost": Side("CatBoost", "catboost_side", "fit", "catboost"),
    "lightgbm": Side("LightGBM", "lightgbm_side", "fit", "lightgbm"),
    "ngboost": Side("NGBoost", "ngboost_side", "fit", "ngboost", max_rows=NGBOOST_ROWS),
    "linear": Side("linear", "sklearn_sides", "fit_linear", "skrub"),
    "sklearn-gp": Side("scikit-learn GP", "sklearn_sides", "fit_gp", "skrub", max_rows=GP_ROWS),
    "mean": Side("mean", "mean_side", "fit", "numpy"),
}
BASELINE = "mean"
"""The side whose scores stand in for those of a side that failed."""


def side_of(name: str) -> Side:
    """Return the side with a given name; other checkouts of agp use the agp side."""
    return SIDES["agp" if name.startswith(AGAINST) else name]


def title(name: str) -> str:
    """Title of a side in tables."""
    return name if name.startswith(AGAINST) else SIDES[name].title
