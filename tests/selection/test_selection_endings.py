"""However a fit ends, by the clock, a callback or the keyboard, it leaves a model that predicts."""

import time
import warnings
from functools import partial
from pydoc import locate

import numpy as np
import pytest
from tables import WAYS, At, assert_predicts, table

import agp
from agp import selection
from agp.errors import CheckpointError, ConvergenceWarning, Interrupted, NotPositiveDefiniteError
from agp.selection import _stages
from agp.selection._climb import SPEED, Climber, operations
from agp.selection._given import Columns, Data, Plan, subsample_rows
from agp.selection._trial import Candidate, Trial
from agp.selection._watch import Pieces, Watch
from agp.training import _resume

fit_regression = partial(selection.fit_regression, hyperparameters="mode")
"""The search for one setting; `test_few_rows.py` tests the integration over settings."""

pytestmark = pytest.mark.filterwarnings("ignore::agp.errors.NoSignalWarning")

STAGES = {
    "searched": "agp.selection._race.Race._first",
    "trained": "agp.selection._climb.Climber.__call__",
    "revived": "agp.selection._race.revive",
    "collapsed": "agp.selection._stages.collapse",
    "profile": "agp.selection._collapse.Collapse.profile",
}


def result_of(way):
    try:
        return fit(way), False
    except Interrupted as interrupted:
        return interrupted.result, True


def fit(way, **options):
    rows, method = WAYS[way]
    X, y = table(rows)
    return fit_regression(X, y, method=method, **options)


def interrupt():
    raise KeyboardInterrupt


# -- the clock ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.usefixtures("full_size")
@pytest.mark.parametrize(("rows", "method"), [(1500, "auto"), (4000, "auto"), (20_000, "auto"), (3000, "sgpr")])
def test_a_tiny_limit_in_time(rows, method):
    X, y = table(rows, 5)
    began = time.perf_counter()
    with pytest.warns(ConvergenceWarning, match=r"limit of 0\.2 s \(max_seconds\) was reached"):
        found = fit_regression(X, y, method=method, max_seconds=0.2)
    assert time.perf_counter() - began < 4.0
    assert not found.converged
    assert "limit of 0.2 s" in found.message
    assert_predicts(found.model, X[:100])


class Clock:
    """The seconds of a clock that goes on by so many at each look."""

    def __init__(self, pace):
        self.pace, self.now = pace, 0.0

    def __call__(self):
        self.now += self.pace
        return self.now


@pytest.mark.parametrize("limit", [0.5, 5.0, 50.0, 200.0, 400.0, 700.0])
@pytest.mark.parametrize("way", WAYS)
def test_a_limit_at_any_moment(way, limit, monkeypatch):
    monkeypatch.setattr("agp.selection._watch.time.perf_counter", Clock(1.0))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = fit(way, max_seconds=limit, kernel=agp.RBF())
    assert found.converged == (not any(issubclass(one.category, ConvergenceWarning) for one in told))
    assert_predicts(found.model, table(9)[0])


@pytest.mark.parametrize(("limit", "rows", "enough"), [(1e-3, 1000, False), (1e-3, 50, True), (100.0, 2000, True)])
def test_no_training_begins_that_the_time_left_cannot_end(limit, rows, enough, monkeypatch):
    monkeypatch.setattr("agp.selection._watch.time.perf_counter", Clock(0.0))
    X, y = table(30)
    everything = subsample_rows(Data(X, y[:, None], None), 30, 0, hold_out=False)
    watch = Watch(limit, (), progress=False)
    found = _stages.Fit(None, everything, 8, None, watch)
    assert found._in_time(rows) is enough
    assert watch.late is not enough


@pytest.mark.parametrize(("limit", "now"), [(5e-5, 0.0), (5e-5, 1.0), (1e-7, 0.0), (1.0, 0.0)])
def test_exact_posteriors_have_the_rows_that_fit_in_the_time_left(limit, now, monkeypatch):
    clock = Clock(0.0)
    monkeypatch.setattr("agp.selection._watch.time.perf_counter", clock)
    X, y = table(90)
    data = Data(X, y[:, None])
    watch = Watch(limit, (), progress=False)
    clock.now = now
    found = _stages.Fit(None, subsample_rows(data, 90, 0, hold_out=False), 8, None, watch)
    model = agp.GPR.from_data(X, y, kernel=agp.RBF(1.0, 1.0))
    found._keep_exact(Trial(model, Candidate("rbf", 90, 0.0, 0.0)))
    rows = found.best().model.X.shape[0]
    seconds = max(limit - now, _stages.OVER * limit)

    def takes(count):
        return _stages.POSTERIOR_SHARE * operations(count, 2) / SPEED

    assert takes(rows) <= seconds or rows == 24  # the sample
    assert takes(rows / 0.94) > seconds or rows == 90


@pytest.mark.long
def test_an_ample_limit_changes_nothing():
    free, limited = (fit("collapsed", max_seconds=limit) for limit in (None, 1000.0))
    assert limited.converged
    assert limited.message == free.message


@pytest.mark.parametrize("tolerance", [1.0, 1e-2, 1e-4])
def test_training_of_an_exact_gp_ends_by_its_predicted_gain(tolerance):
    X, y = table(40)
    model = agp.GPR.from_data(X, y, kernel=agp.RBF(1.0, (5.0, 0.1)))

    def trained(least):
        with Watch(None, (), progress=False) as watch:
            plan = Plan("auto", agp.Gaussian(), None, "auto", None, 1e-3, Columns(X.shape[1]))
            climb = Climber(plan, Pieces(None, {}, watch), watch)
            return 40.0 * climb("test", "rbf", model, 100, tolerance=least).scores.evidence, watch.steps

    (height, steps), (top, most) = trained(tolerance), trained(1e-9)
    assert top - height < 10.0 * tolerance
    assert steps <= most


# -- callbacks ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 2, 9, 20, 30])
@pytest.mark.parametrize("way", WAYS)
def test_a_callback_ends_it_at_any_step(way, step):
    callback = At(step, lambda: True)
    with pytest.warns(ConvergenceWarning, match="the callback At ended the fit"):
        found = fit(way, callbacks=[callback])
    assert found.steps == callback.seen == step
    assert not found.converged
    assert found.message.endswith("; the callback At ended the fit") or not found.learned
    assert_predicts(found.model, table(9)[0])


# -- the keyboard ------------------------------------------------------------------------------------------------------


def assert_interrupted(caught):
    assert not caught.value.result.converged
    assert_predicts(caught.value.result.model, table(9)[0])


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 9, 25])
@pytest.mark.parametrize("way", WAYS)
def test_the_keyboard_interrupts_a_callback(way, step):
    with pytest.raises(Interrupted) as caught:
        fit(way, callbacks=[At(step, interrupt)])
    assert_interrupted(caught)


@pytest.mark.slow
@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("call", [1, 2, 3, 4])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("way", WAYS)
def test_the_keyboard_interrupts_a_stage(way, stage, call, monkeypatch):
    usual, calls = locate(STAGES[stage]), []

    def hit(*args, **options):
        calls.append(0)
        return interrupt() if len(calls) == call else usual(*args, **options)

    monkeypatch.setattr(STAGES[stage], hit)
    found, interrupted = result_of(way)
    assert len(calls) <= call  # nothing goes on once it is interrupted
    assert interrupted == (len(calls) == call)
    assert found.converged == (not interrupted)
    assert_predicts(found.model, table(9)[0])


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_the_keyboard_interrupts_the_result(way, monkeypatch):
    usual, calls = _stages.Fit.result, []

    def hit(self):
        calls.append(0)
        return interrupt() if len(calls) == 1 else usual(self)

    monkeypatch.setattr(_stages.Fit, "result", hit)
    with pytest.raises(Interrupted) as caught:
        fit(way, kernel=agp.RBF())
    assert_interrupted(caught)


@pytest.mark.slow
def test_an_interrupted_fit_says_so():
    with pytest.raises(Interrupted) as caught:
        fit("exact", callbacks=[At(25, interrupt)])
    assert caught.value.result.message.endswith("; the fit was interrupted")


# -- trouble -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_disk_that_fills_up_loses_nothing(tmp_path, monkeypatch):
    usual, calls = _resume.save_checkpoint, []

    def full(*args):
        calls.append(0)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return usual(*args)

    monkeypatch.setattr(_resume, "save_checkpoint", full)
    with pytest.raises(CheckpointError, match=r"run\.agp could not be written .*No space left.*make room") as caught:
        fit("exact", checkpoint=tmp_path / "run.agp")
    assert_predicts(caught.value.result.model, table(9)[0])


@pytest.mark.long
def test_a_kernel_that_cannot_be_factorised_is_left_out(monkeypatch):
    usual = _stages.collapse

    def collapse(hyper, *args, **options):
        if type(hyper.kernel).__name__ == "RBF":
            raise NotPositiveDefiniteError
        return usual(hyper, *args, **options)

    monkeypatch.setattr(_stages, "collapse", collapse)
    found = fit("collapsed")
    assert found.kernel != "rbf"
    alone = fit("collapsed", kernel=agp.RBF())
    assert isinstance(alone.model, agp.GPR)  # of the sample
    assert np.isfinite(alone.bound)
