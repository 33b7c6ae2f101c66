# pyright: reportMissingImports=false
"""`AGPWrapper`, `GPRegressor` with the interface of the models of the benchmark ScoringBench.

ScoringBench is not on the package index. The module needs a checkout of it on the path of Python, and the extra
``sklearn``. Only `AGPWrapper.predict_distribution` imports ScoringBench.
"""

import re
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from agp import __version__
from agp.checks import check_whole
from agp.errors import count_of, require
from agp.estimators import GPRegressor
from agp.interop._tables import without_infinities

__all__ = ["REGISTRY_KEY", "AGPWrapper"]

REGISTRY_KEY = "agp_gpregressor_v" + re.sub(r"[^0-9a-z]+", "_", __version__.lower())
"""The key of `AGPWrapper` in the registry of ScoringBench. It contains the version of agp, because results are stored
under the key and must not be mixed with those of other versions."""

TAIL_LEVELS = (1e-5, 1e-4, 1e-3)
"""Levels of the lower tail that are added to the equally spaced ones, and of the upper tail by symmetry.

The benchmark sets the density outside the outermost quantiles to zero.
"""


class AGPWrapper:
    """A model of ScoringBench that trains `agp.estimators.GPRegressor` and returns its predictive distributions.

    The class has the methods of ScoringBench's ``ProbabilisticWrapper`` but does not inherit from it, so that each
    package can be imported without the other. A wrapper in a checkout of ScoringBench inherits from both; see
    :doc:`/public-boards`.

    Rows whose target is missing or infinite are left out of training. So are columns that have the same value in all
    rows. Infinite numbers in the inputs are treated as missing cells.

    Parameters
    ----------
    num_quantiles
        The number of equally spaced levels of the quantiles that describe the distribution of a row. Six levels in the
        tails, the outermost 0.00001 and 0.99999, are added.
    settings
        Parameters of `GPRegressor`. By default ``missing="impute"`` and ``random_state=0``.

    Attributes
    ----------
    levels
        The levels [Q] of the quantiles, in ascending order.
    model_
        The trained `GPRegressor`.

    Raises
    ------
    TypeError, ValueError
        If `num_quantiles` is not a whole number of at least 1.

    Examples
    --------
    >>> import numpy as np
    >>> from agp.interop.scoringbench import AGPWrapper
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2.0, 2.0, (60, 2))
    >>> wrapper = AGPWrapper(kernel="rbf").fit(X, np.sin(X[:, 0]) + 0.1 * rng.standard_normal(60))
    >>> wrapper.predict_quantiles(X[:5]).shape
    (5, 205)
    """

    _y_train_range: tuple[float, float] | None = None

    def __init__(self, *, num_quantiles: int = 199, **settings: Any) -> None:
        count = check_whole("num_quantiles", num_quantiles)
        tails = np.asarray(TAIL_LEVELS)
        self.levels = np.unique(np.concatenate([np.arange(1, count + 1) / (count + 1), tails, 1.0 - tails]))
        self.settings = {"missing": "impute", "random_state": 0} | settings

    def fit(self, X: Any, y: Any) -> Self:
        """Train on an array or a pandas data frame X [N, D], and targets y [N].

        Raises
        ------
        ValueError
            As in `GPRegressor.fit`, or if y has no finite entry.
        """
        targets = np.asarray(y, dtype=np.float64).reshape(-1)
        known = np.isfinite(targets)
        if not known.any():
            raise ValueError(
                f"y has {count_of(targets.shape[0], 'entry')}, of which none is finite; give at least one finite "
                "target."
            )
        table, targets = _as_table(X)[known], targets[known]
        varying = [name for name in table if table[name].nunique(dropna=False) > 1]
        self._names = varying or list(table)
        self._y_train_range = float(targets.min()), float(targets.max())
        self.model_ = GPRegressor(**self.settings).fit(table[self._names], targets)
        return self

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the means [N] of new observations at X [N, D], in the unit of the targets."""
        return np.asarray(self.model_.predict(_as_table(X)[self._names]), dtype=np.float64).reshape(-1)

    def predict_quantiles(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the quantiles [N, Q] at `levels` of new observations at X [N, D], in the unit of the targets."""
        quantiles = self.model_.predict_quantiles(_as_table(X)[self._names], self.levels.tolist())
        return np.asarray(quantiles, dtype=np.float64)

    def predict_distribution(self, X: Any) -> Any:
        """Return the predictive distributions at X [N, D] as a ``DistributionPrediction`` of ScoringBench.

        Raises
        ------
        ImportError
            If ScoringBench is not on the path of Python.
        """
        try:
            from scoringbench.univariate.wrappers.quantile_based import quantiles_to_distribution
        except ImportError as error:
            raise ImportError(
                "predict_distribution needs scoringbench, which is not installed; clone "
                "https://github.com/jonaslandsgesell/ScoringBench and add the folder to PYTHONPATH."
            ) from error
        limits = self._y_train_range
        quantiles = self.predict_quantiles(X)
        return quantiles_to_distribution(
            quantiles, self.levels, mean=self.predict(X), y_range=limits, train_range=limits
        )


def _as_table(X: Any) -> Any:
    """Return X [N, D] as a pandas data frame with text as column names, and without infinite numbers."""
    pandas = require("pandas", "AGPWrapper needs", "cli")
    table = X if isinstance(X, pandas.DataFrame) else pandas.DataFrame(np.asarray(X)).infer_objects()
    table = table.set_axis([str(name) for name in table.columns], axis=1).reset_index(drop=True)
    return without_infinities(table)
