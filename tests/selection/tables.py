"""Small tables for the tests of `fit_regression`, and what they ask of its results."""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from agp import to_numpy, tree

WAYS = {"sample": (20, "auto"), "larger": (36, "auto"), "exact": (55, "auto"), "collapsed": (110, "sgpr")}
WAYS |= {"near": (110, "auto"), "both": (110, "vif")}
"""Rows and method: every way that `fit_regression` can take at the sizes of these tests."""


SIZES = {
    "_stages": {
        "SAMPLE": 24,
        "LARGER": 40,
        "SAMPLED_ROWS": 60,
        "COMPARED_ROWS": 80,
        "FEW": 8,
        "JUDGED": 6,
        "JUDGED_ROWS": 50,
        "TRAIN_STEPS": 5,
        "SAMPLED_STEPS": 5,
        "REVIVAL_STEPS": 3,
        "POLISH_STEPS": 6,
    },
    "_race": {"SAMPLE": 24, "RACE_ROWS": 12, "SMALL": 20, "HEAT_STEPS": 2, "RACE_STEPS": 4, "STEPS": 5},
    "_kernel": {"SAMPLE": 24},
    "_sizes": {"EXACT_ROWS": 60},
    "_near": {
        "WITH_INDUCING": 8,
        "INDUCING": 10,
        "TRAINED": 10,
        "LEVELS": ((40, 2), (60, 2), (80, 2)),
        "CALIBRATED": 8,
        "REVIVAL_STEPS": 1,
    },
    "_many_rows": {
        "SAMPLE": 24,
        "QUICK": 6,
        "FEW": 12,
        "MANY": 24,
        "JUDGED": 6,
        "JUDGED_ROWS": 50,
        "LARGER": 40,
        "SAMPLED_STEPS": 5,
    },
}


def shrink(to: Callable[..., None]) -> None:
    """Few rows, few inducing inputs, few iterations."""
    for name, sizes in SIZES.items():
        module = importlib.import_module(f"agp.selection.{name}")
        for constant, size in sizes.items():
            to(module, constant, size)


def table(rows: int = 110, columns: int = 2, outputs: int | None = None, seed: int = 0, noise: float = 0.1) -> Any:
    """A smooth function of the first and the last column: X [N, D], and y [N] or [N, P]."""
    rng = np.random.default_rng([seed, rows, columns])
    X = rng.uniform(-2.0, 2.0, size=(rows, columns))
    f = np.sin(1.5 * X[:, :1] + np.arange(1 if outputs is None else outputs)) + 0.5 * X[:, -1:] ** 2
    y = f + noise * rng.normal(size=f.shape)
    return X, y[:, 0] if outputs is None else y


def bits(result: Any) -> Any:
    """Of all that a fit has found but the time: two that are equal are the same to the last bit."""
    leaves = {name: to_numpy(x).tobytes() for name, x in tree.leaves(result.model).items()}
    numbers = np.array([result.bound, result.baseline, result.log_density]).tobytes()
    candidates = [(name, rows, np.array(numbers).tobytes()) for name, rows, *numbers in result.candidates]
    return leaves, numbers, candidates, result.kernel, result.steps, result.trace["bound"], result.learned


def assert_predicts(model: Any, X: Any) -> None:
    """Fail unless predictions at X are finite, and variances positive."""
    mean, variance = (to_numpy(x) for x in model.predict(X, observed=True))
    assert np.isfinite(mean).all()
    assert np.isfinite(variance).all()
    assert (variance >= 0.0).all()


class At:
    """A callback that does something at the k-th step."""

    def __init__(self, step: int, act: Callable[[], Any]) -> None:
        self.step, self.act, self.seen = step, act, 0

    def __call__(self, progress: Any) -> bool:
        self.seen += 1
        return bool(self.act()) if self.seen == self.step else False
