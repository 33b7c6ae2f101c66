"""scikit-learn's models with their defaults."""

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from defaults_parts.job import Job

GPR_ROWS = 1000
"""Maximum number of training rows of the exact GP, which are drawn at random."""
ALPHAS = np.logspace(-3.0, 3.0, 7)
"""Penalties from which ridge regression chooses by leave-one-out cross-validation."""


def fit_gpr(job: Job, seed: int) -> Any:
    """Fit an exact GP to a limited number of training rows, from one starting point."""
    rows = len(job.y)
    chosen = np.random.default_rng(seed).choice(rows, GPR_ROWS, replace=False) if rows > GPR_ROWS else slice(None)
    kernel = ConstantKernel() * RBF(np.ones(job.X.shape[1])) + WhiteKernel()
    gpr = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
    model = make_pipeline(StandardScaler(), gpr).fit(job.X[chosen], job.y[chosen])

    def predict(X: Any) -> Any:
        mean, deviation = model.predict(X, return_std=True)
        return mean, deviation**2

    return predict, {"rows": min(rows, GPR_ROWS)}


def fit_boosting(job: Job, seed: int) -> Any:
    """Fit gradient-boosted trees; for regression, the variance is constant (see `_with_residuals`)."""
    if job.classes:
        return _probabilities(HistGradientBoostingClassifier(random_state=seed), job)
    return _with_residuals(lambda: HistGradientBoostingRegressor(random_state=seed), job, seed)


def fit_ridge(job: Job, seed: int) -> Any:
    """Fit ridge regression on standardised columns."""
    return _with_residuals(lambda: make_pipeline(StandardScaler(), RidgeCV(ALPHAS)), job, seed)


def fit_logistic(job: Job, seed: int) -> Any:
    """Fit logistic regression on standardised columns."""
    return _probabilities(make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)), job)


def _probabilities(model: Any, job: Job) -> Any:
    model.fit(job.X, job.y)

    def predict(X: Any) -> Any:
        found = np.zeros((len(X), job.classes))
        found[:, model.classes_] = model.predict_proba(X)
        return found

    return predict, {}


def _with_residuals(make: Callable[[], Any], job: Job, seed: int) -> Any:
    """Fit a model to all rows; its variance is the mean squared residual of another model on a held-out tenth."""
    held, seen = np.split(np.random.default_rng(seed).permutation(len(job.y)), [max(1, round(len(job.y) / 10))])
    residuals = job.y[held] - make().fit(job.X[seen], job.y[seen]).predict(job.X[held])
    model, variance = make().fit(job.X, job.y), np.mean(residuals**2)
    return lambda X: (model.predict(X), np.full(len(X), variance)), {}
