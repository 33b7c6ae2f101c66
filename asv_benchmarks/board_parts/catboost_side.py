"""CatBoost with its defaults."""

from collections.abc import Callable
from typing import Any

import numpy as np
from catboost import CatBoostClassifier, CatBoostRegressor

from board_parts.native_columns import as_text, vectorizer
from board_parts.predictions import LogNormal, Normal
from board_parts.sklearn_sides import Fitted
from board_parts.splits import Job

HELD_SHARE = 0.2
"""Share of the training rows on which CatBoost is fitted to targets and their logarithms and compared."""


def fit(job: Job, seed: int) -> Fitted:
    """Fit CatBoost; for regression by `RMSEWithUncertainty`, to logarithms if these score better on held-out rows."""
    columns = vectorizer()
    X = as_text(columns.fit_transform(job.X))
    options = {"random_seed": seed, "thread_count": 1, "allow_writing_files": False, "verbose": False}
    options["cat_features"] = [name for name in X.columns if X[name].dtype == object]
    if job.classes:
        model = CatBoostClassifier(**options).fit(X, job.y)
        return lambda X: model.predict_proba(as_text(columns.transform(X))), {}
    logs = prefers_logs(X, job.y, options, seed) if job.y.min() > 0.0 else False
    predict = with_uncertainty(X, job.y, options, logs=logs)
    return lambda X: predict(as_text(columns.transform(X))), {"logs": logs}


def with_uncertainty(X: Any, y: Any, options: dict[str, Any], *, logs: bool) -> Callable[[Any], Any]:
    """Fit CatBoost to means and variances of targets or of their logarithms."""
    model = CatBoostRegressor(loss_function="RMSEWithUncertainty", **options).fit(X, np.log(y) if logs else y)

    def predict(X: Any) -> Any:
        mean, variance = model.predict(X).T
        normal = Normal(mean, np.sqrt(variance))
        return LogNormal(normal) if logs else normal

    return predict


def prefers_logs(X: Any, y: Any, options: dict[str, Any], seed: int) -> bool:
    """Whether logarithms give a better log score on held-out rows."""
    order = np.random.default_rng(seed).permutation(len(y))
    held, seen = np.split(order, [max(1, round(HELD_SHARE * len(y)))])
    tried = [with_uncertainty(X.iloc[seen], y[seen], options, logs=logs) for logs in (False, True)]
    plain, logs = (np.mean(predict(X.iloc[held]).log_density(y[held])) for predict in tried)
    return bool(logs > plain)
