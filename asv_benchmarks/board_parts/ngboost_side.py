"""NGBoost with its defaults, on numbers as skrub encodes them."""

from typing import Any

from ngboost import NGBClassifier, NGBRegressor
from ngboost.distns import k_categorical
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from skrub import TableVectorizer

from board_parts.predictions import Normal
from board_parts.sklearn_sides import Fitted
from board_parts.splits import Job


def fit(job: Job, seed: int) -> Fitted:
    """Fit NGBoost with normal distributions, or to classes."""
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
