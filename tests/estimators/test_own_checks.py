"""The checks that scikit-learn has for estimators: all of them, without expected failures."""

import warnings

import pytest
from sklearn.utils.estimator_checks import check_estimator

from agp.estimators import GPClassifier, GPRegressor

pytestmark = pytest.mark.slow

SHORT = {"max_steps": 350, "num_inducing": 20}
ESTIMATORS = [
    (GPRegressor, "gpr", {}),
    (GPRegressor, "sgpr", {}),
    (GPRegressor, "wsvgp", {}),
    (GPRegressor, "wsvgp", {"likelihood": "latent-noise", "max_steps": 150, "num_inducing": 20}),
    (GPRegressor, "gpr", {"missing_targets": "ignore"}),
    (GPRegressor, "rsvgp", SHORT),
    (GPRegressor, "deep-wsvgp", SHORT | {"max_steps": 100}),
    (GPClassifier, "tvgp", {"max_steps": 50}),
    (GPClassifier, "wsvgp", {"max_steps": 100, "num_inducing": 20}),
    (GPClassifier, "rsvgp", {"max_steps": 100, "num_inducing": 20}),
]
"""Class, method, and what makes the many fits short."""


def _check(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of checks that are skipped, and those that the checks provoke
        outcomes = check_estimator(estimator, on_fail=None)
    failed = {one["check_name"]: one["exception"] for one in outcomes if one["status"] == "failed"}
    assert not failed
    assert sum(one["status"] == "passed" for one in outcomes) > 40


@pytest.mark.parametrize(("kind", "method", "short"), ESTIMATORS)
def test_every_check_of_scikit_learn_passes(kind, method, short):
    _check(kind(method=method, **short))
