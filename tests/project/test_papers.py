"""The scripts that measure the papers' tables again: splits, notes, locks, the page, and small and killed runs."""

import itertools
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import agp
from agp.bounds import Batch
from agp.random import Draws

sys.path.append(str(Path(__file__).parents[2] / "asv_benchmarks" / "papers"))

import cagp
import cells
import figures
import operations
import page
import rows
import rsvgp
import tsvgp
from cells import Cell, Figure, Paper, Run, Runs
from figures import Comparison
from gpytorch_curves import GPyTorchSVGP

CELL = Cell("table-method", "table", {}, {"nlpd": Figure(1.0, 0.5)})
PAPER = Paper(
    name="script",
    version=1,
    title="Title",
    source="Source.",
    protocol="Head.\n\n    command\n\nProtocol.",
    cells=[CELL],
    differences=("A difference.",),
)
ROOT = page.ROOT
SCRIPTS = Path(page.__file__).parent
SMALL = {
    "solve_gp": ["elevators-s*-1024*", "costs-s*-1024"],
    "tsvgp": ["mnist-*-0.03x4-0.03x1", "uci-banana-*", "uci-airfoil-t-svgp"],
    "cagp": ["bike-*"],
    "rsvgp": ["kin40k-layers2-r", "kin40k-layers1-w", "elevators-curve-r-1000", "kin40k-curve-r-2000-probes-16"],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder of small data sets under the names of those of the papers."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for name, columns in (("elevators", 4), ("bike", 17), ("kin40k", 3), ("airfoil", 5), ("banana", 2)):
        X = rng.normal(size=(300, columns))
        y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=300)
        np.savez(folder / f"{name}.npz", X=X, y=y > 0.0 if name == "banana" else y)
    images, digits = rng.integers(0, 256, (300, 64)), np.arange(300) % 10
    np.savez(folder / "mnist.npz", X=images, y=digits, train_mask=np.arange(300) < 250)
    return folder


def command(script, *arguments):
    return [sys.executable, str(SCRIPTS / f"{script}.py"), *map(str, arguments)]


def call(script, *arguments):
    return subprocess.run(command(script, *arguments), capture_output=True, text=True, check=False)


def result(seed=0, *, small=False, version=1, cell="table-method", **scores):
    identity = {"paper": "script", "version": version, "cell": cell, "seed": seed, "small": small}
    facts = {"versions": {"agp": "0.2.0"}, "processor": "abacus", "seconds": 2.0, "cpu_seconds": 1800.0}
    return {**identity, "scores": scores, **facts}


# -- rows -------------------------------------------------------------------------------------------------------------


def test_splits_are_disjoint_and_standardised_by_training_rows(data):
    parts = {"test": 0.2, "train": 0.64}
    one, other = (rows.regression(data, "kin40k", seed, **parts) for seed in (0, 1))
    assert one.X.shape == (192, 3)
    assert one.y_test.shape == (60, 1)
    np.testing.assert_allclose([one.X.mean(), one.X.std(axis=0).mean(), one.y.std()], [0.0, 1.0, 1.0], atol=1e-12)
    assert not np.isin(one.y_test, one.y).any()
    assert not np.array_equal(one.y, other.y)


def test_held_out_rows_are_training_rows(data):
    full = rows.regression(data, "kin40k", 0, test=0.1, train=0.9)
    part = rows.regression(data, "kin40k", 0, hidden=0.1, test=0.045, train=0.855)

    def places(*y):  # the targets in order, which are standardised differently
        y = np.sort(np.concatenate(y), axis=0)
        return (y - y[0]) / (y[-1] - y[0])

    np.testing.assert_allclose(places(part.y, part.y_test), places(full.y), atol=1e-12)
    assert len(part.y_test) == 14


def test_folds_cover_all_rows_once(data):
    parts = [rows.fold(data, "banana", fold, classes=True) for fold in range(5)]
    assert [len(part.y_test) for part in parts] == [60] * 5
    assert sum(part.y_test.sum() for part in parts) == np.load(data / "banana.npz")["y"].sum()
    np.testing.assert_allclose(parts[0].X.std(axis=0), 1.0)


def test_images_are_shuffled_and_all_test_images_are_kept(data):
    found = rows.images(data, "mnist", 0)
    assert found.X.shape == (250, 64)
    assert found.X.max() <= 1.0
    np.testing.assert_array_equal(found.y_test[:, 0], np.arange(250, 300) % 10)
    assert not np.array_equal(found.y[:, 0], np.arange(250) % 10)


def test_missing_data_are_one_sentence(data, tmp_path):
    with pytest.raises(rows.InputError, match=r"--data is .*none, but there is no folder with this name; name the"):
        rows.check_file(tmp_path / "none", "kin40k")
    with pytest.raises(rows.InputError, match=r"kin40k.npz does not exist; store inputs X \[N, D\] and targets"):
        rows.check_file(tmp_path, "kin40k")
    with pytest.raises(rows.InputError, match=r"kin40k.npz has no array train_mask; store X, y, train_mask in"):
        rows.read(data, "kin40k", "train_mask")


def test_cells_without_their_library_are_left_out(capsys):
    lacking = replace(CELL, name="other", needs="no_such_library")
    assert cells.installed([CELL, lacking]) == [CELL]
    assert "other need no_such_library, which is not installed; the other cells" in capsys.readouterr().err
    with pytest.raises(rows.InputError, match=r"need no_such_library, which is not installed; install no_such_library"):
        cells.installed([lacking])


def test_an_impossible_folder_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(rows.InputError, match=r"--out is .*file, but this folder cannot be made \(.*\); name another"):
        cells.make_folder(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "kept"


# -- runs -------------------------------------------------------------------------------------------------------------


def test_a_standard_deviation_becomes_a_standard_error():
    assert Figure.from_deviation(1.0, 5.0, 25) == Figure(1.0, 1.0)


def test_notes_and_seconds_survive_the_process(tmp_path):
    path = tmp_path / "script.cell.0.json"
    run = Run(tmp_path, path, 0, version=1, small=False)
    assert run.note("a", lambda: {"nlpd": 1.0}) == {"nlpd": 1.0}
    sum(i * i for i in range(300_000))
    run.note("b", lambda: {"nlpd": 2.0})
    before = json.loads(path.with_suffix(".notes").read_text())
    again = Run(tmp_path, path, 0, version=1, small=False)
    assert again.note("a", lambda: pytest.fail("measured again")) == {"nlpd": 1.0}
    assert again.seconds()["cpu_seconds"] >= before["cpu_seconds"] > 0.0
    again.finish(result())
    assert list(tmp_path.iterdir()) == [path]
    assert json.loads(path.read_text())["cpu_seconds"] >= before["cpu_seconds"]


def test_notes_and_checkpoints_of_other_versions_are_deleted(tmp_path):
    path = tmp_path / "script.cell.0.json"
    Run(tmp_path, path, 0, version=1, small=False).note("a", lambda: {"nlpd": 1.0})
    checkpoint = path.with_suffix(".safetensors")
    checkpoint.write_text("")
    Run(tmp_path, path, 0, version=1, small=False)
    assert checkpoint.exists()
    again = Run(tmp_path, path, 0, version=2, small=False)
    assert not checkpoint.exists()
    assert again.note("a", lambda: {"nlpd": 2.0}) == {"nlpd": 2.0}
    checkpoint.write_text("")
    path.with_suffix(".notes").unlink()
    Run(tmp_path, path, 0, version=2, small=False)
    assert not checkpoint.exists()  # without notes, its version is unknown


def test_results_of_other_versions_are_measured_again(tmp_path, capsys):
    settings = SimpleNamespace(data=tmp_path, out=tmp_path, seeds=1, small=False)
    for version in (1, 2, 2):
        Runs(replace(PAPER, version=version), [CELL], lambda _: {"nlpd": 2.0}, settings).measure_all()
    assert capsys.readouterr().out.count("nlpd 2.0000") == 2


@pytest.mark.parametrize("parts", [(0,), (1, 2)])
def test_updates_on_parts_are_updates_on_batches(parts):
    rng = np.random.default_rng(0)
    X, eps = rng.normal(size=(12, 2)), rng.normal(size=(3, 12, 1))
    batch = Batch(X, X[:, :1], 5.0, np.arange(12), Draws({"eps": eps}, {"probes": X}))
    seen = []

    class Count:
        def init(self, model):
            return 0

        def __call__(self, model, batch, state):
            seen.append(batch)
            return model, state + 1, {}

    update = tsvgp.OnParts(Count(), parts, 3)
    assert update(None, batch, update.init(None))[1] == len(parts)
    for part, own in zip(parts, seen, strict=True):
        chosen = slice(4 * part, 4 * part + 4)
        np.testing.assert_array_equal(own.X, X[chosen])
        np.testing.assert_array_equal(own.y, X[chosen, :1])
        np.testing.assert_array_equal(own.rows, np.arange(12)[chosen])
        np.testing.assert_array_equal(own.draws.by_row["eps"], eps[:, chosen])
        assert own.draws.whole["probes"] is X
        assert own.scale == 15.0


@pytest.mark.parametrize("method", ["w", "l", "r"])
def test_layers_start_as_in_the_paper(method):
    X = np.random.default_rng(0).normal(size=(30, 2))
    model = rsvgp.deep(SimpleNamespace(small=True, seed=0), rows.Rows(X, X[:, :1], X, X[:, :1]), method, 3)
    found = {name.rpartition(".")[2]: value for name, value in agp.tree.leaves(model).items() if "layers.2" in name}
    expected = {"scale": 0.01 * np.eye(8)[None]} if method == "w" else {"site": np.full(8, 1e-6)}
    if method == "r":
        expected["inverse_factor"] = 0.001 * np.eye(8)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value)


def test_scripts_limit_threads_before_they_import_numpy():
    for script in SMALL:
        text = (SCRIPTS / f"{script}.py").read_text("utf-8")
        assert 0 < text.index("import one_thread") < text.index("import numpy")


@pytest.mark.slow
def test_a_stage_continues_from_the_checkpoint_of_the_last_one(tmp_path):
    X = np.linspace(-1.0, 1.0, 30)[:, None]
    model = agp.SVGP.from_data(X, np.sin(3.0 * X), posterior="whitened", num_inducing=4)
    asked = []

    def scores(run):
        def score(step):
            asked.append(step)
            trained = run.train(model, X, np.sin(3.0 * X), steps=step, updates=[agp.updates.Adam(0.01)])
            return {f"bound_{step}": trained.trace["bound"][-1], f"steps_{step}": float(len(trained.trace["bound"]))}

        return score

    whole = Run(tmp_path, tmp_path / "whole.json", 0, version=1, small=False)
    expected = whole.stages((4,), scores(whole)) | whole.stages((7,), scores(whole))
    first = Run(tmp_path, tmp_path / "parts.json", 0, version=1, small=False)
    first.stages((4,), scores(first))
    second = Run(tmp_path, tmp_path / "parts.json", 0, version=1, small=False)
    assert second.stages((4, 7), scores(second)) == expected
    assert asked == [4, 7, 4, 7]


@pytest.mark.slow
def test_an_interrupted_training_continues_where_it_stopped(tmp_path):
    X = np.linspace(-1.0, 1.0, 30)[:, None]
    y = np.sin(3.0 * X)
    model = agp.SVGP.from_data(X, y, posterior="whitened", num_inducing=4)
    seen = []

    class Stopped(agp.updates.Adam):
        def __call__(self, model, batch, state):
            seen.append(float(state["count"]))
            if len(seen) == 8:
                raise KeyboardInterrupt
            return super().__call__(model, batch, state)

    def train(name):
        run = Run(tmp_path, tmp_path / f"{name}.json", 0, version=1, small=False)
        settings = {"batch_size": 10, "seed": 3, "updates": [Stopped(0.01)]}
        return run.train(model, X, y, steps=12, every=5, **settings)

    with pytest.raises(KeyboardInterrupt):
        train("parts")
    parts, first = train("parts").model, seen[8]
    assert first == 7.0
    whole = train("whole").model
    assert seen[-12:] == [float(i) for i in range(12)]
    for name, value in agp.tree.leaves(whole).items():
        np.testing.assert_array_equal(agp.tree.leaves(parts)[name], value)


@pytest.mark.slow
def test_scores_of_cagp_cg_take_actions_of_the_trained_model(tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 2))
    split = rows.Rows(X, X[:, :1] ** 3, X, X[:, :1])
    run = Run(tmp_path, tmp_path / "run.json", 0, version=1, small=True)
    trained = []

    def train(model, *given, **settings):
        trained.append(agp.train(model, *given, steps=settings["steps"], updates=settings["updates"]))
        return trained[0]

    run.train = train
    found = cagp.fit(run, split, "cagp-cg", epochs=1.0, rate=1.0, name="test")
    expected = cagp.policy(run)(trained[0].model).values
    np.testing.assert_array_equal(found.actions.values, expected)
    assert np.abs(trained[0].model.actions.values - expected).max() > 1e-6


@pytest.mark.slow
def test_an_interrupted_l_bfgs_continues_from_its_last_stage(tmp_path, monkeypatch):
    X = np.linspace(-1.0, 1.0, 30)[:, None]
    y = np.sin(9.0 * X) + 0.1 * np.cos(99.0 * X)
    model, stages, bounds = agp.SGPR.from_data(X, y, num_inducing=8), [], []
    fit = agp.fit_lbfgs

    def counted(model, *given, **settings):
        stages.append(settings["max_iterations"])
        if len(stages) == 2:
            raise KeyboardInterrupt
        result = fit(model, *given, **settings)
        bounds.append((float(model.bound(*given)[0]), result.bounds[0]))
        return result

    monkeypatch.setattr(agp, "fit_lbfgs", counted)
    monkeypatch.setattr(cagp, "STAGE", 4)

    def train(name):
        run = Run(tmp_path, tmp_path / f"{name}.json", 0, version=1, small=False)
        return cagp.fit_in_stages(run, model, rows.Rows(X, y, X, y), 10)

    with pytest.raises(KeyboardInterrupt):
        train("parts")
    parts = train("parts")
    assert stages == [4, 4, 4, 2]
    whole = train("whole")
    assert stages[4:] == [4, 4, 2]
    for (_, end), (start, better) in itertools.pairwise(bounds[3:]):
        assert start == pytest.approx(end, rel=1e-12)
        assert better > end
    for name, value in agp.tree.leaves(whole).items():
        np.testing.assert_array_equal(agp.tree.leaves(parts)[name], value)


def test_a_lock_holds_until_it_is_released(tmp_path):
    path = tmp_path / "run.json"
    with cells.lock(path) as first, cells.lock(path) as second:
        assert (first, second) == (True, False)
    with cells.lock(path) as third:
        assert third
        path.write_text("{}")
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


def test_rehearsals_have_their_own_folder(tmp_path):
    settings = {"data": tmp_path, "out": tmp_path, "seeds": 1}
    full, small = (Runs(PAPER, [CELL], lambda _: {}, SimpleNamespace(small=x, **settings)) for x in (False, True))
    assert full.file_of(CELL, 0) == tmp_path / "script.table-method.0.json"
    assert small.file_of(CELL, 0) == tmp_path / "small" / "script.table-method.0.json"


def test_a_full_run_repeats_a_rehearsal_and_a_rehearsal_keeps_its_result(tmp_path, capsys):
    def measured(small):
        settings = SimpleNamespace(data=tmp_path, out=tmp_path, seeds=1, small=small)
        work = Runs(PAPER, [CELL], lambda run: {"nlpd": 0.0 if run.small else 2.0}, settings)
        assert work.measure_all() == 0
        return capsys.readouterr().out

    assert "[1/1] table-method, seed 0: nlpd 0.0000 (paper 1); 0 s, CPU 0 s" in measured(small=True)
    assert "nlpd 2.0000 (paper 1)" in measured(small=False)
    assert measured(small=True) == measured(small=False) == ""
    (run,) = figures.collect(tmp_path, [PAPER])
    assert run["scores"] == {"nlpd": 2.0}


def test_a_run_that_diverges_has_a_result_without_scores(tmp_path, capsys):
    def measured(score):
        settings = SimpleNamespace(data=tmp_path, out=tmp_path, seeds=2, small=False)
        return Runs(PAPER, [CELL], lambda run: {"nlpd": np.nan if run.seed else score}, settings).measure_all()

    assert measured(1.0) == 1
    assert "[2/2] table-method, seed 1: diverged, the scores are not finite: {'nlpd': nan}" in capsys.readouterr().out
    assert measured(2.0) == 0
    assert capsys.readouterr().out == ""
    runs = figures.merge([], figures.collect(tmp_path, [PAPER]), [PAPER])
    assert [run["scores"] for run in runs] == [{"nlpd": 1.0}, {}]


def test_diverged_runs_have_no_mean_and_no_distance():
    runs = [result(seed, **scores) for seed, scores in enumerate([{"nlpd": 1.0}, {}, {"nlpd": 2.0}, {"nlpd": 3.0}])]
    (found,) = figures.comparisons(runs, PAPER)
    assert (found.ours.value, found.runs, found.diverged, found.distance) == (2.0, 3, 1, None)
    text = page.tables(runs, [PAPER])
    assert "| table-method | NLPD | 1 (0.5) | 2 (0.6) | 3, 1 diverged |  | diverged | 1,800 |" in text
    assert "0 of them are measured in at least 3 runs" in text
    assert "|  | 0, 1 diverged |  | diverged |" in page.tables([result(0)], [PAPER])
    scores = page.score_table(cells.Table("Table", "*", {"nlpd": "NLPD"}), PAPER, runs)
    assert "| table-method | 2 (0.6) | 3, 1 diverged |" in scores[1]


def test_tables_of_seconds_have_the_cpu_time():
    table = cells.curve_table("Seconds", "*", "seconds", [1, 1000], "step")
    _, text = page.score_table(table, PAPER, [result(0, seconds_1=0.5, seconds_1000=500.25)])
    assert "| cell | 1 step | 1,000 steps | runs | CPU s |" in text
    assert "| table-method | 0.500 | 500.2 | 1 | 1,800 |" in text


def test_parameters_without_units():
    X = np.linspace(0.0, 9.0, 30)[:, None]
    model = agp.SVGP.from_data(X, 5.0 * X, kernel=agp.RBF(1.0, [2.0]), num_inducing=4, posterior="whitened")
    raw = agp.tree.unconstrain(cells.remove_units(model))
    np.testing.assert_allclose(np.logaddexp(0.0, raw["process.kernel.lengthscale"]), [2.0])


# -- figures ----------------------------------------------------------------------------------------------------------


def test_distances_are_in_combined_standard_errors():
    ours = figures.mean_of([1.0, 2.0, 3.0])  # standard deviation 1, standard error 1 / sqrt(3)
    assert ours == Figure(2.0, pytest.approx(3.0**-0.5))
    found = Comparison(CELL, "nlpd", Figure(1.0, 0.5), ours, 3)
    assert found.distance == pytest.approx(1.0 / (1.0 / 3.0 + 0.25) ** 0.5)  # 1.31
    assert found.mark == "within 2"


@pytest.mark.parametrize(("theirs", "mark"), [(1.5, "within 1"), (1.0, "within 2"), (0.0, "outside")])
def test_figures_without_errors_have_that_of_five_runs_like_ours(theirs, mark):
    found = Comparison(CELL, "nlpd", Figure(theirs), figures.mean_of([1.0, 2.0, 3.0]), 3)
    assert (found.distance, found.mark) == (pytest.approx((2.0 - theirs) / (1.0 / 3.0 + 1.0 / 5.0) ** 0.5), mark)


def test_few_runs_and_fewer_steps_have_no_distance():
    few = Comparison(CELL, "nlpd", Figure(1.0, 0.5), figures.mean_of([2.0, 3.0]), 2)
    assert (few.distance, few.mark) == (None, "few runs")
    short = Comparison(replace(CELL, full=False), "nlpd", Figure(1.0, 0.5), figures.mean_of([1.0, 2.0, 3.0]), 3)
    assert (short.distance, short.mark) == (None, "fewer steps")


def test_equal_figures_have_no_distance_and_no_error_is_infinitely_far():
    assert Comparison(CELL, "nlpd", Figure(2.0), figures.mean_of([2.0] * 3), 3).distance == 0.0
    assert Comparison(CELL, "nlpd", Figure(1.0), figures.mean_of([2.0] * 3), 3).distance == np.inf


def test_results_of_several_folders_accumulate():
    old, new = [result(0, nlpd=1.0), result(1, nlpd=2.0)], [result(2, nlpd=3.0), result(1, nlpd=4.0)]
    assert [run["scores"]["nlpd"] for run in figures.merge(old, new, [PAPER])] == [1.0, 4.0, 3.0]
    assert figures.merge(old, [result(3, version=2)], [replace(PAPER, version=2)]) == [result(3, version=2)]


@pytest.mark.parametrize("text", ["{", "[]", '{"paper": "script"}'])
def test_other_files_are_refused(text, tmp_path):
    (tmp_path / "script.table-method.0.json").write_text(text)
    with pytest.raises(
        rows.InputError, match=r"method.0.json is not a results file of these scripts; move or delete it"
    ):
        figures.collect(tmp_path, [PAPER])


def test_rehearsals_and_unknown_cells_are_refused():
    with pytest.raises(rows.InputError, match=r"script, cell table-method, seed 0 are from a rehearsal"):
        figures.merge([], [result(small=True)], [PAPER])
    with pytest.raises(rows.InputError, match=r"script, cell other, seed 0 belong to no cell"):
        figures.merge([], [result(cell="other")], [PAPER])


def test_operations_are_those_of_the_paper():
    M, M2, N = 2, 3, 5
    expected = {
        "cholesky": M**3 + M2**3,
        "solve": M**3 + 2 * N * M**2 + M2**3 + 2 * N * M2**2 + M2 * M**2,
        "product": N * M**2 + N * M2**2 + N * M * M2 + M * M2**2,
    }
    for kind, number in expected.items():
        found = [one for one in operations.operations(M, M2, N) if one[0] == kind]
        assert sum(map(operations.count, found)) == number
        assert all(operations.prepare(one)().shape == (one[1][0], one[1][-1]) for one in found)
    assert sum(map(operations.count, operations.operations(M, 0, N))) == 2 * M**3 + 3 * N * M**2


# -- the page ---------------------------------------------------------------------------------------------------------


def docs(folder):
    (folder / "docs").mkdir()
    (folder / "docs" / "papers.md").write_text("# A page\n\n<!-- papers -->\nold\n<!-- /papers -->\n")
    return folder / "docs"


def test_the_page_compares_and_accumulates(tmp_path):
    folder, outs = docs(tmp_path), [tmp_path / "one", tmp_path / "two"]
    for out, runs in zip(outs, ([result(0, nlpd=4.0)], [result(1, nlpd=5.0), result(2, nlpd=6.0)]), strict=True):
        out.mkdir()
        for run in [*runs, result(9, small=True, nlpd=0.0)]:
            (out / f"script.table-method.{run['seed']}.json").write_text(json.dumps(run))
    page.write(tmp_path, outs[0], [PAPER])
    text = (folder / "papers.md").read_text()
    assert "| table-method | NLPD | 1 (0.5) | 4 | 1 |  | few runs | 1,800 |" in text
    assert "papers.json has 3 runs; 2 of them are new." in page.write(tmp_path, outs[1], [PAPER])
    text = (folder / "papers.md").read_text()
    # 4 / sqrt(1 / 3 + 1 / 4) = 5.24
    assert "| table-method | NLPD | 1 (0.5) | 5 (0.6) | 3 | 5.24 | outside | 1,800 |" in text
    assert "- Title, table-method (NLPD): The reason is unknown." in text
    assert "| `script.py` | 1 | 1 | 0 | 1 | 0 | 0 | 3 | 1.5 |" in text
    assert "Protocol.\n\nDifferences from the paper:\n\n- A difference." in text
    assert "old" not in text
    before = text, (folder / "papers.json").read_text()
    page.write(tmp_path, None, [PAPER])
    assert ((folder / "papers.md").read_text(), (folder / "papers.json").read_text()) == before


def test_the_page_needs_results(tmp_path, capsys):
    docs(tmp_path)
    assert page.main(["--root", str(tmp_path)]) == 2
    assert "papers.json does not exist; pass --out OUT" in capsys.readouterr().err
    assert page.main(["--root", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert "has no results; run a script" in capsys.readouterr().err
    (tmp_path / "tsvgp.uci-banana-adam.0.json").write_text(json.dumps(result(small=True)))
    assert page.main(["--root", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert "has only rehearsals (--small); run a script" in capsys.readouterr().err


def test_the_page_is_that_of_its_file():
    text = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    runs = json.loads((ROOT / "docs" / "papers.json").read_text(encoding="utf-8"))["runs"]
    assert figures.merge(runs, [], page.PAPERS) == runs
    assert page.replace_tables(text, page.tables(runs, page.PAPERS)) == text


@pytest.mark.parametrize("paper", page.PAPERS, ids=lambda paper: paper.name)
def test_a_paper_has_names_of_its_own_and_patterns_that_match(paper):
    names = [cell.name for cell in paper.cells]
    assert len(names) == len(set(names))
    for pattern in (*paper.reasons, *(table.cells for table in paper.tables)):
        assert cells.choose(paper.cells, [pattern])
    for sentence in (*paper.differences, *paper.reasons.values()):
        assert sentence.endswith(".")
    assert {score for cell in paper.cells for score in cell.theirs} <= page.SCORES.keys()
    assert f"{paper.name}.py --data DIR --out OUT" in (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")


# -- scripts ----------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("script", SMALL)
def test_cells_in_small_and_again(script, data, tmp_path):
    common = ["--data", data, "--out", tmp_path, "--small", "--seeds", 1, "--cells", *SMALL[script]]
    done = call(script, *common)
    assert done.returncode == 0, done.stderr
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "small").iterdir()}
    assert len(files) == len(done.stdout.splitlines()) > 0
    for path in files:
        found = json.loads(path.read_text("utf-8"))
        assert found["paper"] == script
        assert found["small"]
        assert all(map(np.isfinite, found["scores"].values()))
        assert found["cpu_seconds"] > 0.0
    assert call(script, *common).stdout == ""
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "small").iterdir()} == files


def kill(process, when):
    """Kill a process by SIGKILL as soon as a condition holds."""
    deadline = time.monotonic() + 60.0
    while not when():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.long
def test_a_run_killed_in_training_continues_from_its_checkpoint(data, tmp_path, monkeypatch):
    name, train, steps = "mnist-t-svgp-0.04x1-0.05x1", agp.train, []
    process = subprocess.Popen(
        command("tsvgp", "--data", data, "--out", tmp_path / "killed", "--seeds", 1, "--cells", name),
        stdout=subprocess.DEVNULL,
    )
    seen = set()

    def is_written_twice():
        seen.update(path.stat().st_mtime_ns for path in (tmp_path / "killed").glob("*.safetensors"))
        return len(seen) > 1  # the first checkpoint is that of step 0

    kill(process, is_written_twice)
    (notes,) = (tmp_path / "killed").glob("*.notes")
    before = json.loads(notes.read_text())

    def watched(*given, callbacks, **settings):
        return train(*given, callbacks=[*callbacks, lambda progress: steps.append(progress.step)], **settings)

    monkeypatch.setattr(agp, "train", watched)
    found = []
    for folder in ("killed", "whole"):
        settings = SimpleNamespace(data=data, out=tmp_path / folder, seeds=1, small=False)
        assert Runs(tsvgp.PAPER, cells.choose(tsvgp.PAPER.cells, [name]), tsvgp.measure, settings).measure_all() == 0
        (path,) = (tmp_path / folder).iterdir()
        found.append(json.loads(path.read_text()))
    first = steps[0]
    assert first > cells.CHECKPOINT_EVERY
    assert steps == [*range(first, tsvgp.ITERATIONS + 1), *range(1, tsvgp.ITERATIONS + 1)]
    assert found[0]["scores"] == found[1]["scores"]
    assert found[0]["cpu_seconds"] > before["cpu_seconds"] > 0.0


@pytest.mark.long
def test_a_run_killed_between_stages_continues_with_the_same_scores_and_all_notes(data, tmp_path):
    def arguments(name):
        return "tsvgp", "--data", data, "--out", tmp_path / name, "--seeds", 1, "--cells", "uci-banana-t-svgp"

    notes = tmp_path / "killed" / "tsvgp.uci-banana-t-svgp.0.notes"
    process = subprocess.Popen(command(*arguments("killed")), stdout=subprocess.DEVNULL)
    kill(process, lambda: notes.exists() and "step 2" in notes.read_text())
    before = json.loads(notes.read_text())
    assert f"step {tsvgp.SCORED[-1]}" not in before["notes"]

    found = []
    for name in ("killed", "whole"):
        done = call(*arguments(name))
        assert done.returncode == 0, done.stderr
        assert "bound_20" in done.stdout
        (path,) = (tmp_path / name).iterdir()
        found.append(json.loads(path.read_text()))
    resumed, whole = ({k: v for k, v in run["scores"].items() if "seconds" not in k} for run in found)
    assert resumed == whole
    assert found[0]["scores"].items() >= {k: v for note in before["notes"].values() for k, v in note.items()}.items()
    seconds = [found[0]["scores"][f"seconds_{i}"] for i in tsvgp.SCORED]
    assert seconds == sorted(seconds)
    assert found[0]["cpu_seconds"] > before["cpu_seconds"] > 0.0


@pytest.mark.long
def test_gpytorch_has_the_curve_of_w_svgp(data, tmp_path):
    pytest.importorskip("gpytorch")
    done = call(
        "rsvgp", "--data", data, "--small", "--seeds", 1, "--out", tmp_path,
        "--cells", "elevators-curve-gpytorch-1000", "elevators-curve-w-1000",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    peer, ours = (
        json.loads((tmp_path / "small" / f"rsvgp.elevators-curve-{method}-1000.0.json").read_text())
        for method in ("gpytorch", "w")
    )
    assert peer["versions"].keys() - ours["versions"].keys() == {"gpytorch", "torch"}
    for step in rsvgp.SMALL["steps"]:
        assert peer["scores"][f"nlpd_{step}"] == pytest.approx(ours["scores"][f"nlpd_{step}"], abs=1e-4)
    assert not list((tmp_path / "small").glob("*.pt*"))


@pytest.mark.slow
def test_gpytorch_takes_the_same_batches_and_continues(data, tmp_path):
    pytest.importorskip("gpytorch")
    split = rows.regression(data, "elevators", 0, **rsvgp.SPLIT)
    model = rsvgp.shallow(SimpleNamespace(small=True, seed=0), split, "w", 8)
    run = Run(data, tmp_path / "run.json", 0, version=1, small=True)
    settings = {"batch_size": 20, "seed": 3, "rate": 0.1, "epsilon": 1e-7, "every": 2, "keep": run.keep}
    whole, first = (GPyTorchSVGP(model, split, file=tmp_path / name, **settings) for name in ("whole.pt", "run.pt"))
    whole.train(7)
    first.train(3)
    assert Run(data, tmp_path / "run.json", 0, version=1, small=True).seconds()["cpu_seconds"] > 0.0
    second = GPyTorchSVGP(model, split, file=tmp_path / "run.pt", **settings)
    assert (second.step, second.seconds) == (3, first.seconds)
    second.train(7)
    assert second.nlpd() == whole.nlpd() != first.nlpd()
    updates = [agp.updates.Adam(0.1)]
    ours = agp.train(model, split.X, split.y, steps=7, batch_size=20, seed=3, updates=updates).model
    expected = -float(np.mean(ours.log_density(split.X_test, split.y_test)))
    assert whole.nlpd() == pytest.approx(expected, abs=1e-4)
    run.finish(result())
    assert not list(tmp_path.glob("run.pt"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cells", "none"], "no cell has a name like none; choose from mnist-q-svgp"),
        (
            ["--data", "nowhere"],
            "--data is nowhere, but there is no folder with this name; name the folder of",
        ),
    ],
)
def test_wrong_arguments_are_one_sentence(arguments, message, data, tmp_path):
    done = call("tsvgp", "--data", data, "--out", tmp_path, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(message)
    assert len(done.stderr.splitlines()) == 1
