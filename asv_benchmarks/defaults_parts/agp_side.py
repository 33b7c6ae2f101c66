"""agp's estimators with their defaults, on data in the units of the table."""

from typing import Any

import numpy as np

from agp import tree
from agp.estimators import GPClassifier, GPRegressor
from defaults_parts.job import Job


def fit(job: Job, seed: int) -> Any:
    """Fit an estimator with no arguments except the seed."""
    model: Any = (GPClassifier if job.classes else GPRegressor)(random_state=seed).fit(job.X, job.y)

    def predict(X: Any) -> Any:
        if not job.classes:
            mean, deviation = model.predict(X, return_std=True)
            return mean, deviation**2
        found = np.zeros((len(X), job.classes))
        found[:, model.classes_] = model.predict_proba(X)
        return found

    return predict, facts(model)


def facts(model: Any) -> dict[str, Any]:
    """The choices of the estimator, and the end of its training."""
    inducing = [len(leaf) for name, leaf in tree.leaves(model.model_).items() if name.endswith("inducing.Z")]
    steps, converged = getattr(model, "n_iter_", None), getattr(model, "converged_", None)
    return {
        "method": model.method_, "num_inducing": inducing[0] if inducing else None,
        "steps": None if steps is None else int(steps), "converged": None if converged is None else bool(converged),
    }  # fmt: skip
