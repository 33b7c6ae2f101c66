"""Regressors of every kind of target under hostile problems; more by ``python tests/faults/run_hostile_targets.py``."""

import pytest

from agp.likelihoods import LIKELIHOODS

pytest.importorskip("agp.estimators", exc_type=ImportError)
from hostile_targets import drawn_regression, judged_regression

PROBLEMS = 60


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, PROBLEMS, 10))
def test_regressors_answer_or_say_why(first):
    defects = {seed: judged_regression(seed)[1] for seed in range(first, first + 10)}
    assert not {seed: found for seed, found in defects.items() if found}


def test_every_family_is_drawn():
    assert {drawn_regression(seed).family for seed in range(PROBLEMS)} >= {*LIKELIHOODS, "log", "log-normal"}
