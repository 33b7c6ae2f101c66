"""Estimators on hostile and on ordinary tables; more by ``python tests/faults/run_hostile_tables.py --count 3000``."""

import numpy as np
import pytest

pytest.importorskip("agp.estimators", exc_type=ImportError)
pytest.importorskip("pandas")
from hostile_tables import (
    COLUMNS,
    FAMILIES,
    LIMIT,
    TARGETS,
    drawn_table,
    judge_table,
    judged_ordinary,
    judged_table,
    ordinary_table,
)

TABLES = 60
DRAWN = 120


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(TABLES))
def test_predictions_stay_near_the_targets_of_a_hostile_table(seed):
    assert not judged_table(seed).defects


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(TABLES))
def test_an_ordinary_table_causes_no_warning(seed):
    outcome = judged_ordinary(seed)
    assert not outcome.defects
    assert not outcome.warned


@pytest.mark.slow
def test_everything_is_drawn():
    tables = [drawn_table(seed) for seed in range(DRAWN)]
    assert {kind for table in tables for kind in table.kinds.values()} == set(COLUMNS)
    assert {table.target for table in tables} == set(TARGETS)
    assert {table.family for table in tables} == set(FAMILIES)


def test_a_seed_gives_one_table():
    for draw in (drawn_table, ordinary_table):
        first, second = draw(3), draw(3)
        assert first.X.equals(second.X)
        np.testing.assert_array_equal(first.y, second.y)
        assert str(first) == str(second)


class _Fake:
    """An estimator whose predictions are given."""

    def __init__(self, mean, deviation, reach=0.0):
        self.answers, self.reach = (np.full(4, mean), np.full(4, deviation)), reach

    def fit(self, X, y):
        return self

    def predict(self, X, return_std):
        return self.answers

    def predict_interval(self, X, level):
        return self.answers[0][:, None] + self.reach * np.asarray([-1.0, 1.0])


@pytest.mark.parametrize(
    ("fake", "kind"),
    [
        (_Fake(5.0, 1.0), None),
        (_Fake(5.0 + 10.1 * LIMIT, 1.0), "unbounded"),
        (_Fake(5.0, 10.1 * LIMIT), "unbounded"),
        (_Fake(5.0, 1.0, 10.1 * LIMIT), None),  # intervals may be wider
        (_Fake(5.0, 1.0, np.inf), "not finite"),
        (_Fake(5.0, 1.0, -1.0), "out of order"),
        (_Fake(5.0, -1.0), "negative"),
        (_Fake(np.nan, 1.0), "not finite"),
    ],
)
def test_the_judge_finds_each_defect(fake, kind):
    table = drawn_table(0)._replace(family="gaussian", estimator=fake, y=np.asarray([0.0, 10.0]))
    judge, _ = judge_table(table)
    assert {text.partition(": ")[0] for text in judge.defects} == ({kind} if kind else set())
