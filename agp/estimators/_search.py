"""Calls of `agp.fit_regression`, and of other training, with the parameters of an estimator."""

from typing import Any

from agp import tree
from agp.backend import asarray_like, to_numpy
from agp.estimators._observations import Observations
from agp.kernels import Kernel, White, kernel_or_auto
from agp.likelihoods import LIKELIHOODS, Gaussian
from agp.means import ConstantMean
from agp.models import TNNGP
from agp.selection import (
    EXACT_ROWS,
    RegressionResult,
    fit_near_rows,
    fit_regression,
    is_searched_quickly,
    level_effects,
)
from agp.training import fit, fit_growing


def search_model(regressor: Any, data: Observations, **settings: Any) -> RegressionResult:
    """Return the model of one target that `fit_regression` chooses. `settings` are further arguments."""
    return fit_regression(
        data.X,
        data.y,
        categories=regressor._categories,
        kernel=regressor._given_kernel(data.X),
        likelihood=regressor.likelihood if isinstance(regressor.likelihood, Gaussian) else None,
        mean_function=regressor.mean_function or ConstantMean(),
        priors=regressor.priors,
        frozen=regressor.frozen,
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


def takes_near_rows(regressor: Any, data: Observations) -> bool:
    """Whether the default for noise that is not Gaussian depends on nearest rows."""
    (rows, columns), several = data.X.shape, regressor.outputs != "shared" or data.y.shape[1] > 1
    given = regressor.num_inducing, regressor.layers, regressor.batch_size
    if regressor._is_gaussian or several or given != (None, None, None):
        return False
    if rows <= EXACT_ROWS or not is_searched_quickly(rows, columns):
        return False
    kernel = kernel_or_auto(regressor.kernel)
    parts = [] if isinstance(kernel, str) else tree.nodes(kernel, Kernel).values()
    if any(isinstance(part, White) or type(part).linearise_groups is Kernel.linearise_groups for part in parts):
        return False
    likelihood = regressor.likelihood
    return (LIKELIHOODS[likelihood]() if isinstance(likelihood, str) else likelihood).latents(1) == 1


def train_model(estimator: Any, model: Any, X: Any, y: Any, **settings: Any) -> Any:
    """Train the model of an estimator on X [N, D] and y [N, K], and return the result."""
    near, grows = isinstance(model, TNNGP), estimator._grows()
    training: Any = fit_near_rows if near else fit_growing if grows else fit
    own = {"kernels": {}} if near and estimator.kernel != "auto" else {}
    return training(
        model,
        X,
        y,
        **{"fit_tolerance" if grows else "tolerance": estimator.tolerance},
        max_steps=estimator.max_steps,
        max_seconds=estimator._seconds_per_fit,
        updates=estimator._record.updates,
        seed=estimator._seed,
        **own,
        **settings,
    )
