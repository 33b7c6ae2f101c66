"""Calls of `agp.fit_regression` with the parameters of an estimator."""

from typing import Any

from agp.backend import asarray_like, to_numpy
from agp.estimators._observations import Observations
from agp.likelihoods import Gaussian
from agp.means import ConstantMean
from agp.selection import RegressionResult, fit_regression, level_effects


def search_model(regressor: Any, data: Observations, **settings: Any) -> RegressionResult:
    """Return the model of one target that `fit_regression` chooses. `settings` are further arguments."""
    return fit_regression(
        data.X,
        data.y,
        categories=regressor._categories,
        kernel=regressor._given_kernel(data.X),
        likelihood=regressor.likelihood if isinstance(regressor.likelihood, Gaussian) else None,
        mean_function=ConstantMean(),
        weights=data.weights,
        noise=None if data.noise is None else data.noise[:, 0],
        tolerance=regressor.tolerance,
        max_seconds=regressor._seconds_per_fit,
        seed=regressor._seed,
        max_steps=regressor.max_steps,
        times=regressor.columns_.dates if "columns_" in vars(regressor) else (),
        **settings,
    )


def insert_level_effects(regressor: Any, data: Observations) -> Observations:
    """Add the effects of levels to the inputs if the kernel is chosen."""
    if not regressor._categories or regressor.kernel != "auto":
        return data
    effects = level_effects(data.X, data.y, regressor._categories, weights=data.weights, seed=regressor._seed)
    inputs = regressor.columns_.insert_effects(to_numpy(data.X), effects)
    return data._replace(X=asarray_like(inputs, data.X))
