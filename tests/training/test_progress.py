"""Tests of what long fits show: shares, times, scores in words, bars, lines and log files. All clocks are false."""

import io
import math
import re
import sys
from functools import partial

import numpy as np
import pytest

import agp
from agp.errors import ConvergenceWarning, Interrupted
from agp.training import Piece, Score, track
from agp.training._progress import Lines, State, Tracker, expected_steps, format_seconds

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d agp: .+")


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless a test moves it, and no threads."""
    now = [1000.0]
    monkeypatch.setattr("agp.training._progress.time.monotonic", lambda: now[0])
    monkeypatch.setattr(Tracker, "watch", lambda self: None)
    return now


class Shown:
    """An output that keeps what it is shown."""

    threads = False

    def __init__(self):
        self.states, self.last = [], None

    def show(self, state):
        self.states.append(state)

    def end(self, state, words):
        self.last = words, state


def toy(rows=30):
    X = np.linspace(0.0, 6.0, rows)[:, None]
    return X, np.sin(X[:, 0]) + 0.1 * np.cos(37.0 * X[:, 0])


def text_of(lines):
    return "".join(lines)


# -- shares and times -------------------------------------------------------------------------------------------------


def test_the_share_never_falls_and_ends_with_all(clock):
    shown = Shown()
    tracker = Tracker([shown])
    with tracker.inside([Piece("a", 10.0), Piece("b", 30.0)]):
        tracker.begin("a", "first")
        for _ in range(30):
            clock[0] += 1.0  # three times as long as expected
            tracker.tick()
        tracker.begin("b", "second")
        for done in range(1, 11):
            clock[0] += 2.0
            tracker.step(done, 10 if done > 2 else 1000)  # a wrong number of steps at first
    tracker.end("ended")
    shares = [state.share for state in shown.states]
    assert shares == sorted(shares)
    assert max(shares) < 1.0
    assert shown.last[1].share == 1.0


@pytest.mark.parametrize("factor", [0.25, 1.0, 4.0])
def test_what_was_measured_corrects_what_is_expected(clock, factor):
    tracker = Tracker([])
    with tracker.inside([Piece("a", 10.0), Piece("b", 10.0), Piece("c", 20.0)]):
        assert tracker.left() == 40.0
        tracker.begin("a")
        clock[0] += 10.0 * factor
        tracker.begin("b")
        assert tracker.left() == pytest.approx(30.0 * factor)
        clock[0] += 10.0 * factor
        tracker.begin("c")
        assert tracker.left() == pytest.approx(20.0 * factor)


def test_costs_without_a_unit_need_a_measurement(clock):
    tracker = Tracker([])
    with tracker.inside([Piece("a", 1.0), Piece("b", 1.0), Piece("c", 1.0)], in_seconds=False):
        tracker.begin("a")
        assert tracker.left() is None
        clock[0] += 5.0
        with tracker.inside():
            tracker.begin("steps")
            clock[0] += 5.0
            tracker.step(5.0, 10.0)
            assert tracker.left() == pytest.approx(5.0 + 2 * 15.0)
        clock[0] += 2.0
        tracker.begin("b")
        assert tracker.left() == pytest.approx(2 * 12.0)


def test_stages_that_are_left_out_count_no_more(clock):
    tracker = Tracker([])
    with tracker.inside([Piece("a", 10.0), Piece("b", 10.0), Piece("c", 20.0)]):
        tracker.begin("c")
        assert tracker.left() == pytest.approx(20.0)
        tracker.begin("unplanned")
        clock[0] += 3.0
        assert tracker.left() is None


@pytest.mark.parametrize(("limit", "left"), [(5.0, 2.0), (100.0, 7.0)])
def test_a_time_limit_bounds_the_time_left(clock, limit, left):
    tracker = Tracker([])
    with tracker.inside([Piece("a", 10.0)], max_seconds=limit):
        tracker.begin("a")
        clock[0] += 3.0
        assert tracker.left() == pytest.approx(left)


def test_a_resumed_fit_counts_the_time_before(clock):
    shown = Shown()
    tracker = Tracker([shown])
    tracker.before = 30.0
    with tracker.inside([Piece("a", 10.0)]):
        tracker.begin("a")
    assert shown.states[0].share == pytest.approx(0.75)


@pytest.mark.parametrize("factor", [0.25, 1.0, 4.0])
def test_stages_from_a_checkpoint_correct_nothing(clock, factor):
    tracker = Tracker([])
    with tracker.inside([Piece("a", 10.0), Piece("b", 10.0), Piece("c", 10.0)]):
        tracker.begin("a")
        tracker.read_old()
        clock[0] += 0.1
        tracker.begin("b")
        assert tracker.left() == pytest.approx(20.0)
        clock[0] += 10.0 * factor
        tracker.begin("c")
        assert tracker.left() == pytest.approx(10.0 * factor)


@pytest.mark.parametrize("power", [1.5, 2.0, 4.0])
def test_gains_that_fall_like_a_power_tell_the_number_of_steps(power):
    gains = [(i + 1.0) ** -power for i in range(40)]
    assert expected_steps(gains, 100.0**-power, 1000.0) == pytest.approx(100.0)
    assert expected_steps(gains, 100.0**-power, 60.0) == 60.0
    assert expected_steps(gains, 1.0, 1000.0) == 40.0
    assert expected_steps([], 1.0, 30.0) == 30.0
    assert expected_steps([math.inf, math.nan], 1.0, 30.0) == 30.0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (59.4, "59 s"), (61.0, "1 min 1 s"), (3599.0, "1 h"), (7500.0, "2 h 5 min"), (200_000.0, "55 h")],
)
def test_durations_in_words(seconds, words):
    assert format_seconds(seconds) == words


# -- scores in words --------------------------------------------------------------------------------------------------


def normal(deviation):
    return -0.5 * math.log(2.0 * math.pi * math.e * deviation**2)


@pytest.mark.parametrize(
    ("kind", "alone", "density", "words"),
    [
        ("error", normal(5.1), normal(2.3), "typical error 2.3 (mean alone 5.1)"),
        ("error", normal(5.1), normal(6.0), "no better than mean alone yet"),
        ("label", math.log(0.5), math.log(0.73), "probability of the right label 73 % (frequencies alone 50 %)"),
        ("fit", -2.1, -1.234, "fit per row -1.23 (noise alone -2.10)"),
        ("fit", math.nan, -1.234, "fit per row -1.23"),
        ("error", 0.0, -math.inf, ""),
    ],
)
def test_scores_in_words(kind, alone, density, words):
    assert Score(kind, alone).describe(density) == words


# -- lines ------------------------------------------------------------------------------------------------------------


def state(elapsed, stage="training"):
    return State(0.4, elapsed, 12.0, stage, "step 3", "typical error 2.3")


def test_a_line_a_minute_and_at_each_new_stage():
    lines = []
    log = Lines(lines.append, 5.0)
    for second in range(200):
        log.show(state(float(second), "first" if second < 100 else "second"))
    log.end(state(200.0), "ended: converged")
    seconds = [re.search(r"after (.*?)[,;]", line)[1] for line in lines]
    assert seconds == ["5 s", "1 min 5 s", "1 min 40 s", "2 min 40 s", "3 min 20 s"]
    assert all(LINE.fullmatch(line.rstrip("\n")) for line in lines)
    assert "about 12 s left; first, step 3; typical error 2.3" in lines[0]
    assert lines[-1].endswith("ended: converged after 3 min 20 s; typical error 2.3\n")


def test_a_short_fit_writes_nothing_except_to_a_file():
    lines, logged = [], []
    for log in (Lines(lines.append, 5.0), Lines(logged.append, 0.0)):
        log.show(state(0.5))
        log.end(state(1.0), "ended")
    assert lines == []
    assert len(logged) == 2


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("closed"), FileNotFoundError()])
def test_a_full_disk_never_stops_a_training(error):
    def write(_line):
        raise error

    log = Lines(write, 0.0)
    log.show(state(0.5))
    log.end(state(1.0), "ended")


def test_lines_hold_no_codes_of_terminals():
    lines = []
    Lines(lines.append, 0.0).show(state(0.5, "column 'a\rb\nc'"))
    assert lines[0].count("\n") == 1
    assert "\r" not in lines[0]


# -- what functions take ----------------------------------------------------------------------------------------------


def fits():
    X, y = toy()
    exact, sparse = agp.GPR.from_data(X, y), agp.SGPR.from_data(X, y, num_inducing=8)
    whitened = agp.SVGP.from_data(X, y, num_inducing=8)
    return {
        "train": lambda shown: agp.train(whitened, X, y, steps=12, progress=shown),
        "fit by Newton": lambda shown: agp.fit(exact, X, y, progress=shown),
        "fit by L-BFGS": lambda shown: agp.fit(sparse, X, y, progress=shown),
        "fit by steps": lambda shown: agp.fit(whitened, X, y, batch_size=10, max_steps=20, progress=shown),
        "fit_newton": lambda shown: agp.fit_newton(exact, X, y, progress=shown),
        "fit_lbfgs": lambda shown: agp.fit_lbfgs(sparse, X, y, restarts=1, max_iterations=5, progress=shown),
        "fit_growing": lambda shown: agp.fit_growing(sparse, X, y, progress=shown),
        "fit_regression": lambda shown: agp.fit_regression(X, y, hyperparameters="mode", progress=shown),
        "fit_classification": lambda shown: agp.fit_classification(
            X, (y > 0.0).astype(float), likelihood=agp.Bernoulli(link="logit"), progress=shown
        ),
    }


@pytest.mark.parametrize("name", [*fits()])
@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
def test_every_fit_appends_to_a_log_file(name, tmp_path, capfd):
    path = tmp_path / "fit.log"
    path.write_text("before\n")
    found = fits()[name](path)
    lines = path.read_text().splitlines()
    assert lines[0] == "before"
    assert all(LINE.fullmatch(line) for line in lines[1:])
    assert re.search(r"agp: +\d+ % after", lines[1])
    assert "agp: ended" in lines[-1]
    assert sum("ended" in line for line in lines) == 1
    assert capfd.readouterr() == ("", "")
    again = fits()[name](False)
    assert found.trace["bound"] == again.trace["bound"]


@pytest.mark.parametrize("name", [*fits()])
@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
def test_every_fit_shows_one_bar_that_never_goes_back(name, monkeypatch):
    pytest.importorskip("tqdm")
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr("agp.training._progress.REFRESH", 0.0)
    fits()[name](True)
    shares = [int(share) for share in re.findall(r"(\d+)%\|", screen.getvalue())]
    assert shares == sorted(shares)
    assert shares[-1] == 100
    assert len(shares) > 2


def test_a_short_fit_writes_nothing_to_a_file_of_errors(capfd):
    fits()["fit by Newton"](True)
    assert capfd.readouterr() == ("", "")


def test_a_long_fit_writes_lines_to_a_file_of_errors(capfd, monkeypatch):
    monkeypatch.setattr("agp.training._progress.FIRST", 0.0)
    fits()["fit by Newton"](True)
    err = capfd.readouterr().err.splitlines()
    assert all(LINE.fullmatch(line) for line in err)
    assert "ended: converged, further steps gain less than" in err[-1]
    assert "typical error" in err[-1]


@pytest.mark.parametrize("shown", [3.5, b"log", ["log"]])
def test_progress_of_a_wrong_type(shown):
    with pytest.raises(TypeError, match=r"True or the path of a log file, not .*; pass one\."):
        fits()["train"](shown)


def test_a_log_file_in_no_folder(tmp_path):
    path = tmp_path / "none" / "fit.log"
    with pytest.raises(ValueError, match=r"none.fit\.log' cannot be written \(No such file .*\); name a file"):
        fits()["train"](path)
    with pytest.raises(ValueError, match="Is a directory"):
        fits()["train"](tmp_path)
    with pytest.raises(ValueError, match="null byte"):
        fits()["train"]("a\0b")


def test_a_deleted_log_file_does_not_stop_a_training(tmp_path):
    path = tmp_path / "folder" / "fit.log"
    path.parent.mkdir()
    X, y = toy()

    def delete(seen):
        if seen.step == 2:
            path.unlink()
            path.parent.rmdir()

    model = agp.SVGP.from_data(X, y, num_inducing=8)
    assert agp.train(model, X, y, steps=12, callbacks=[delete], progress=path).steps == 12


# -- endings ----------------------------------------------------------------------------------------------------------


def test_an_interrupt_and_an_error_are_the_last_lines(tmp_path):
    X, y = toy()
    path = tmp_path / "fit.log"
    model = agp.SVGP.from_data(X, y, num_inducing=8)

    def interrupt(_seen):
        raise KeyboardInterrupt

    def fail(_seen):
        raise LookupError("mine")

    with pytest.raises(Interrupted) as caught:
        agp.train(model, X, y, steps=12, callbacks=[interrupt], progress=path)
    assert caught.value.result.steps == 1
    assert "agp: interrupted after" in path.read_text().splitlines()[-1]
    with pytest.raises(LookupError):
        agp.train(model, X, y, steps=12, callbacks=[fail], progress=path)
    assert "agp: stopped by LookupError: mine after" in path.read_text().splitlines()[-1]


def stop_early(seen):
    return seen.step >= 3


class Stops:
    def __call__(self, seen):
        return seen.step >= 3

    def after_three(self, seen):
        return seen.step >= 3


@pytest.mark.parametrize(
    ("callback", "who"),
    [
        (stop_early, "the callback stop_early"),
        (Stops().after_three, "the callback after_three"),
        (Stops(), "the callback Stops"),
        (partial(stop_early), "a callback"),
        (lambda seen: seen.step >= 3, "a callback"),
        (lambda seen: "the loss rises" * (seen.step >= 3), "a callback (the loss rises)"),
    ],
)
def test_a_callback_that_ends_a_fit_is_named(callback, who):
    X, y = toy()
    exact, sparse = agp.GPR.from_data(X, y), agp.SGPR.from_data(X, y, num_inducing=8)
    for fit in (agp.fit_newton, agp.fit_lbfgs):
        assert fit(exact, X, y, callbacks=[callback]).message == f"{who} ended the optimisation"
    settings = {"callbacks": [callback], "batch_size": 10}
    with pytest.warns(ConvergenceWarning, match=re.escape(f"{who} ended the training.") + "$"):  # no advice
        agp.fit(agp.SVGP.from_data(X, y, num_inducing=8), X, y, **settings)
    with pytest.warns(ConvergenceWarning, match=re.escape(f"{who} ended the training.") + "$"):
        agp.fit(exact, X, y, callbacks=[callback])
    with pytest.warns(ConvergenceWarning, match=re.escape(f"{who} ended")):
        grown = agp.fit_growing(sparse, X, y, callbacks=[callback])
    assert (grown.reason, grown.message) == ("callback", f"{who} ended the growth")
    with pytest.warns(ConvergenceWarning, match=re.escape(f"{who} ended the fit")):
        found = agp.fit_regression(X, y, hyperparameters="mode", callbacks=[callback])
    assert found.ending == f"{who} ended the fit"


STEPS, SECONDS = r"the limit of 2 steps \(max_steps\) was reached", r"the limit of 1e-09 s \(max_seconds\) was reached"


@pytest.mark.parametrize(("limit", "words"), [({"max_steps": 2}, STEPS), ({"max_seconds": 1e-9}, SECONDS)])
def test_limits_are_named(limit, words):
    X, y = toy()
    labels = (y > 0.0).astype(float)
    logit = agp.Bernoulli(link="logit")
    calls = [
        lambda: agp.fit(agp.GPR.from_data(X, y), X, y, **limit).message,
        lambda: agp.fit(agp.SGPR.from_data(X, y, num_inducing=8), X, y, **limit).message,
        lambda: agp.fit(agp.SVGP.from_data(X, y, num_inducing=8), X, y, batch_size=10, **limit).message,
        lambda: agp.fit_growing(agp.SGPR.from_data(X, y, num_inducing=8), X, y, **limit).message,
        lambda: agp.fit_regression(X, y, hyperparameters="mode", **limit).ending,
        lambda: agp.fit_classification(X, labels, likelihood=logit, **limit).ending,
    ]
    for call in calls:
        with pytest.warns(ConvergenceWarning, match=words):
            message = call()
        assert re.search(words, message)


def test_the_limit_of_iterations_is_named():
    X, y = toy()
    found = agp.fit_lbfgs(agp.GPR.from_data(X, y), X, y, max_iterations=2)
    assert found.message == "the limit of 2 iterations (max_iterations) was reached"


def test_threads_end_with_the_fit(tmp_path):
    import threading

    with track(tmp_path / "log") as tracker:
        assert any(thread.name == "agp-progress" for thread in threading.enumerate())
    assert tracker._over.is_set()
