"""agp's estimators with their defaults, on the frame as it is; missing cells are imputed if there are any."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from defaults_parts.agp_side import facts

from agp.backend import to_numpy
from agp.estimators import GPClassifier, GPRegressor
from board_parts.predictions import Prediction
from board_parts.splits import Job


class Estimated(Prediction):
    """The predictive distributions of a trained estimator at the rows of a frame."""

    def __init__(self, model: GPRegressor, X: Any) -> None:
        self.model, self.X = model, X
        self.mean, self.deviation = model.predict(X, return_std=True)

    def quantiles(self, levels: Sequence[float]) -> Any:
        return self.model.predict_quantiles(self.X, list(levels))

    def log_density(self, y: Any) -> Any:
        return self.model.log_density(self.X, y)

    def cdf(self, y: Any) -> Any:
        at = self.model._predictor_at(self.X)
        return to_numpy(at.predictor.cdf(at.X, np.asarray(y)[:, None]))[:, 0]

    def log_probability(self, y: Any) -> Any:
        whole = self.model.predictor_.likelihood.whole_numbers
        return self.log_density(y) if whole else super().log_probability(y)


def fit(job: Job, seed: int) -> tuple[Callable[[Any], Any], dict[str, Any]]:
    """Fit an estimator with no arguments except the seed and, for a table with missing cells, ``missing="impute"``.

    Some tables mark missing cells by words that pandas reads as text. The error of agp then advises this argument.
    """
    estimator = GPClassifier if job.classes else GPRegressor
    model: Any = estimator(random_state=seed, missing="impute" if job.missing else "refuse")
    try:
        model.fit(job.X, job.y)
    except ValueError as error:
        if "missing='impute'" not in str(error):
            raise
        model.set_params(missing="impute").fit(job.X, job.y)

    def predict(X: Any) -> Any:
        if not job.classes:
            return Estimated(model, X)
        found = np.zeros((len(X), job.classes))
        found[:, model.classes_] = model.predict_proba(X)
        return found

    return predict, facts(model) | {"left_out": list(getattr(model, "left_out_", []))}
