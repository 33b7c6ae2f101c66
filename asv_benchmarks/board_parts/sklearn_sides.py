"""scikit-learn's models with their defaults, behind the encoding of columns that skrub chooses for them."""

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LogisticRegression, PoissonRegressor, RidgeCV
from sklearn.model_selection import KFold, TimeSeriesSplit
from skrub import tabular_pipeline

from board_parts.predictions import Counts, Normal, Quantiles
from board_parts.splits import Job

QUANTILES = (0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.975)
"""The levels of the quantiles that boosting by quantiles fits, one model each."""
ALPHAS = np.logspace(-3.0, 3.0, 7)
"""Penalties from which ridge regression chooses by leave-one-out cross-validation."""
FOLDS = 5
"""Number of folds whose residuals give the variance of models without one."""
TINY = 1e-9
"""Minimum mean of a count."""
Fitted = tuple[Callable[[Any], Any], dict[str, Any]]


def fit_boosting(job: Job, seed: int) -> Fitted:
    """Fit gradient-boosted trees on histograms; for regression, with a constant variance (see `with_residuals`)."""
    if job.classes:
        return probabilities(tabular_pipeline(HistGradientBoostingClassifier(random_state=seed)), job)
    return with_residuals(lambda: tabular_pipeline(HistGradientBoostingRegressor(random_state=seed)), job, seed)


def fit_boosting_quantiles(job: Job, seed: int) -> Fitted:
    """Fit gradient-boosted trees on histograms to the loss of each of the `QUANTILES`."""

    def make(level: float) -> Any:
        trees = HistGradientBoostingRegressor(loss="quantile", quantile=level, random_state=seed)
        return tabular_pipeline(trees)

    return by_quantiles(make, job)


def fit_linear(job: Job, seed: int) -> Fitted:
    """Fit logistic or ridge regression or, for counts, the better of ridge and Poisson regression in validation."""
    if job.classes:
        return probabilities(tabular_pipeline(LogisticRegression(max_iter=1000)), job)
    if job.kind == "counts":
        tried = [validate(make, job, seed) for make in (ridge, poisson)]
        losses = [np.mean((y - mean) ** 2) for y, mean in tried]
        if losses[1] < losses[0]:
            y, mean = tried[1]
            # moments: (y - m)^2 has the expectation m + dispersion m^2
            dispersion = max(0.0, float(np.sum((y - mean) ** 2 - mean) / np.sum(mean**2)))
            model = poisson().fit(job.X, job.y)
            return lambda X: Counts(np.maximum(model.predict(X), TINY), dispersion), {"model": "poisson"}
    return with_residuals(ridge, job, seed)


def ridge() -> Any:
    """Return ridge regression."""
    return tabular_pipeline(RidgeCV(ALPHAS))


def poisson() -> Any:
    """Return Poisson regression."""
    return tabular_pipeline(PoissonRegressor(max_iter=1000))


def fit_gp(job: Job, seed: int) -> Fitted:
    """Fit scikit-learn's exact Gaussian process, for classes by the Laplace approximation with its default kernel."""
    if job.classes:
        return probabilities(tabular_pipeline(GaussianProcessClassifier(random_state=seed)), job)
    kernel = ConstantKernel() * RBF() + WhiteKernel()
    gp = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
    model = tabular_pipeline(gp).fit(job.X, job.y)
    return lambda X: Normal(*model.predict(X, return_std=True)), {}


def with_residuals(make: Callable[[], Any], job: Job, seed: int) -> Fitted:
    """Fit a model to all rows; its variance is the mean squared residual in validation."""
    y, mean = validate(make, job, seed)
    deviation = max(float(np.sqrt(np.mean((y - mean) ** 2))), 1e-6 * job.spread)
    model = make().fit(job.X, job.y)
    return lambda X: Normal(model.predict(X), np.full(len(X), deviation)), {}


def validate(make: Callable[[], Any], job: Job, seed: int) -> tuple[Any, Any]:
    """Targets and predictions in cross-validation; for a series, models predict rows after those of their training."""
    parts = TimeSeriesSplit(FOLDS) if job.ordered else KFold(FOLDS, shuffle=True, random_state=seed)
    pairs = [
        (job.y[held], make().fit(job.X.iloc[seen], job.y[seen]).predict(job.X.iloc[held]))
        for seen, held in parts.split(job.X)
    ]
    return np.concatenate([y for y, _ in pairs]), np.concatenate([mean for _, mean in pairs])


def by_quantiles(make: Callable[[float], Any], job: Job) -> Fitted:
    """Fit a model for each of the `QUANTILES`."""
    models = [make(level).fit(job.X, job.y) for level in QUANTILES]
    return lambda X: Quantiles(QUANTILES, np.stack([model.predict(X) for model in models], axis=1), job.spread), {}


def probabilities(model: Any, job: Job) -> Fitted:
    """Fit a classifier; return a function that gives the probabilities [N, C] of all classes."""
    model.fit(job.X, job.y)

    def predict(X: Any) -> Any:
        found = np.zeros((len(X), job.classes))
        found[:, np.asarray(model.classes_, dtype=int)] = model.predict_proba(X)
        return found

    return predict, {}
