"""LightGBM with its defaults."""

from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn.pipeline import make_pipeline

from board_parts.native_columns import vectorizer
from board_parts.sklearn_sides import Fitted, by_quantiles, probabilities
from board_parts.splits import Job


def fit(job: Job, seed: int) -> Fitted:
    """Fit LightGBM to the loss of each quantile, or to classes."""
    options = {"random_state": seed, "n_jobs": 1, "verbosity": -1}
    if job.classes:
        return probabilities(make_pipeline(vectorizer(), LGBMClassifier(**options)), job)
    return by_quantiles(
        lambda level: make_pipeline(vectorizer(), LGBMRegressor(objective="quantile", alpha=level, **options)), job
    )
