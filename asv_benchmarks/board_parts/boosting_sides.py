"""CatBoost, LightGBM and NGBoost with their defaults.

CatBoost and LightGBM take categories as they are; NGBoost takes numbers, as skrub encodes them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.pipeline import make_pipeline
from skrub import TableVectorizer, ToCategorical

from board_parts.predictions import LogNormal, Normal
from board_parts.sklearn_sides import Fitted, by_quantiles, probabilities
from board_parts.splits import Job

HELD_SHARE = 0.2
"""Share of the training rows on which CatBoost is fitted to targets and their logarithms and compared."""


def fit_catboost(job: Job, seed: int) -> Fitted:
    """Fit CatBoost; for regression by `RMSEWithUncertainty`, to logarithms if these score better on held-out rows."""
    from catboost import CatBoostClassifier

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
    from catboost import CatBoostRegressor

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


def as_text(X: Any) -> Any:
    """Convert categories to text, with a missing cell as a category of its own."""
    return X.assign(
        **{
            name: X[name].astype(object).where(X[name].notna(), "missing").astype(str)
            for name in X.columns
            if X[name].dtype == "category"
        }
    )


def vectorizer() -> TableVectorizer:
    """Return skrub's conversion of dates and numbers, which leaves categories as they are, however many there are."""
    return TableVectorizer(low_cardinality=ToCategorical(), high_cardinality=ToCategorical())


def fit_lightgbm(job: Job, seed: int) -> Fitted:
    """Fit LightGBM to the loss of each quantile, or to classes."""
    from lightgbm import LGBMClassifier, LGBMRegressor

    options = {"random_state": seed, "n_jobs": 1, "verbosity": -1}
    if job.classes:
        return probabilities(make_pipeline(vectorizer(), LGBMClassifier(**options)), job)
    return by_quantiles(
        lambda level: make_pipeline(vectorizer(), LGBMRegressor(objective="quantile", alpha=level, **options)), job
    )


def fit_ngboost(job: Job, seed: int) -> Fitted:
    """Fit NGBoost with normal distributions, or to classes."""
    from ngboost import NGBClassifier, NGBRegressor
    from ngboost.distns import k_categorical
    from sklearn.impute import SimpleImputer

    columns = make_pipeline(TableVectorizer(), SimpleImputer(add_indicator=True))
    X = columns.fit_transform(job.X)
    if job.classes:
        model = NGBClassifier(k_categorical(job.classes), random_state=seed, verbose=False).fit(X, job.y)
        return lambda X: model.predict_proba(columns.transform(X)), {}
    model = NGBRegressor(random_state=seed, verbose=False).fit(X, job.y)

    def predict(X: Any) -> Any:
        found = model.pred_dist(columns.transform(X)).params
        return Normal(found["loc"], found["scale"])

    return predict, {}
