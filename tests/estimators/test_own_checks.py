"""The checks that scikit-learn has for estimators."""

import warnings

import pytest
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import check_estimator

import agp
from agp.estimators import GPClassifier, GPRegressor

pytestmark = pytest.mark.slow

SHORT = {"max_steps": 100, "num_inducing": 20}
ESTIMATORS = [
    (GPRegressor, "auto", {}),
    (GPClassifier, "auto", {}),
    (GPRegressor, "auto", {"kernel": agp.RBF(), "hyperparameters": "mode"}),
    (GPRegressor, "auto", {"missing": "impute", "max_steps": 30}),
    (GPRegressor, "auto", {"store_data": False, "max_steps": 30}),
    (GPRegressor, "auto", {"target_transform": "yeo-johnson", "kernel": "rbf", "max_steps": 30}),
    (GPRegressor, "auto", {"likelihood": "gamma", "max_steps": 30, "num_inducing": 20}),
    (GPRegressor, "auto", {"likelihood": "student-t", "max_steps": 30, "num_inducing": 20}),
    (GPRegressor, "rsvgp", {"kernel": "rbf + linear", "max_steps": 30, "num_inducing": 10}),
    (GPClassifier, "auto", {"class_weight": "balanced", "kernel": "rbf", "max_steps": 30}),
    (GPClassifier, "auto", {"kernel": agp.RBF(), "missing": "impute", "max_steps": 30}),
    (GPRegressor, "gpr", {"max_steps": 30}),
    (GPRegressor, "wsvgp", {"likelihood": "latent-noise", "max_steps": 150, "num_inducing": 20}),
    (GPRegressor, "gpr", {"missing_targets": "ignore", "max_steps": 30}),
    (GPRegressor, "deep-wsvgp", SHORT),
    (GPClassifier, "tvgp", {"max_steps": 50}),
    (GPClassifier, "wsvgp", SHORT),
]
"""Class, method, and options that keep the many fits short: each code path of the classes once."""


def _ignored(estimator):
    """The check that passes negative targets, although the tags say that they must be positive."""
    positive = get_tags(estimator).target_tags.positive_only
    return {"check_regressor_multioutput": "the targets of the check are negative"} if positive else {}


def _check(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of checks that are skipped, and those that the checks provoke
        outcomes = check_estimator(estimator, expected_failed_checks=_ignored(estimator), on_fail=None)
    failed = {one["check_name"]: one["exception"] for one in outcomes if one["status"] == "failed"}
    assert not failed
    assert sum(one["status"] == "passed" for one in outcomes) > 40


@pytest.mark.long
@pytest.mark.parametrize(("kind", "method", "short"), ESTIMATORS)
def test_every_check_of_scikit_learn_passes(kind, method, short):
    _check(kind(method=method, **short))
