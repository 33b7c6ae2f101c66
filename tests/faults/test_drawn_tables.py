"""Tables drawn by hypothesis: more by ``python tests/faults/run_drawn_tables.py --count 10000 --jobs 2``."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

pytest.importorskip("agp.estimators", exc_type=ImportError)
pytest.importorskip("pandas")
pytest.importorskip("polars")
import pandas as pd
from drawn_tables import MAX_DEVIATION, MAX_MEAN, Verdict, judge_drawn_table, measure
from table_strategies import DOORS, tables

CHECKED = settings(
    max_examples=40, derandomize=True, deadline=None, suppress_health_check=[*HealthCheck], database=None
)


@pytest.mark.slow
@CHECKED
@given(tables())
def test_a_table_gets_a_sane_answer_or_one_sentence(table):
    assert judge_drawn_table(table).defects == []


@pytest.mark.slow
@settings(CHECKED, max_examples=200)
@given(tables())
def test_tables_are_tables(table):
    assert isinstance(table.frame, pd.DataFrame)
    assert table.door in DOORS
    assert len(table.kinds) == table.frame.shape[1] >= 1
    assert repr(table)


class TestTheJudge:
    """The judge finds what must not be."""

    def test_foreign_errors(self):
        verdict = Verdict()
        verdict.stage("fit", lambda: int("a"))
        assert "foreign" in verdict.defects[0]

    def test_foreign_warnings(self):
        verdict = Verdict()
        verdict.stage("fit", lambda: np.asarray([1.0]) / 0.0)
        assert "foreign warning" in verdict.defects[0]

    @pytest.mark.parametrize("text", ["short.", "x" * 1000, "a message of agp\nin several lines."])
    def test_messages_that_are_no_short_sentence(self, text):
        verdict = Verdict()
        verdict.message("fit", text)
        assert verdict.defects

    @pytest.mark.parametrize("message", ["X has 3 rows, but y has 4; pass one target per row."])
    def test_sentences_are_no_defects(self, message):
        verdict = Verdict()
        verdict.message("fit", message)
        assert not verdict.defects

    @pytest.mark.parametrize(
        ("mean", "deviation", "sane"),
        [
            (0.5, 1.0, True),
            (0.5 + 0.99 * MAX_MEAN, 0.99 * MAX_DEVIATION, True),
            (0.5 + 1.01 * MAX_MEAN, 1.0, False),
            (0.5, 1.01 * MAX_DEVIATION, False),
        ],
    )
    @pytest.mark.parametrize("shape", [(2,), (2, 1)])
    def test_insane_numbers(self, mean, deviation, sane, shape):
        verdict = Verdict()
        measure(verdict, np.asarray([0.0, 1.0]).reshape(shape), np.full(2, mean), np.full(2, deviation), "rows")
        assert (not verdict.defects) == sane
