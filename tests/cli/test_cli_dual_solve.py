"""The dual and the orthogonal methods of `agp compare`: agreement, storages, groups, bad input."""

import dataclasses
import json

import numpy as np
import pytest
from agp.data import load
from helpers import process
from in_process import run

import agp
from agp.cli import _checks, main
from agp.cli._plan import Settings
from agp.methods import METHODS as RECORDS
from agp.methods import build, updates_of
from agp.models import SOLVEGPR, TSVGP, TVGP
from agp.posteriors import Dual, DualInverseFree, Orthogonal, PriorSpread, RelaxedOrthogonal, Whitened
from agp.updates import Adam, InverseUpdate, NaturalGradient, SiteStep

pytestmark = pytest.mark.slow

pytest.importorskip("rich", reason="the command line needs the extra cli")
pytest.importorskip("tqdm", reason="the command line needs the extra cli")

QUICK = ["--num-inducing", "8", "--batch-size", "20", "--iterations", "6", "--kernel", "rbf"]
METHODS = ["qsvgp", "tsvgp", "tvgp", "solve", "odvgp", "solve-relaxed"]


def compare(*arguments):
    return run("compare", *arguments)


def rows_of(folder):
    return json.loads((folder / "results.json").read_text())["rows"]


@pytest.fixture
def classes(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = (np.sin(2.0 * X[:, 0]) + 0.3 * rng.normal(size=60) > 0.0).astype(np.uint8)
    np.savez(tmp_path / "waves.npz", X=X, y=y, test_mask=np.arange(60) % 5 == 0)
    return tmp_path / "waves.npz"


@pytest.mark.long
def test_all_rows_agree(classes, tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    out = tmp_path / "out"
    done = compare(
        "--data", classes, "--out", out, "--method", *METHODS, "--backend", "torch", "--gradient", "autodiff",
        "--dtype", "float64", *QUICK,
        "--kernel", "matern32",  # RBF is too ill-conditioned for nine digits of a gradient
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = rows_of(out)
    assert [row["method"] for row in rows] == [name for name in METHODS for _ in range(2)]  # NumPy and torch
    assert all(np.isfinite(row["nlpd"]) and row["steps"] == 6 for row in rows)
    assert all(max(row["max_rel_diff_bound"], row["max_rel_diff_grad"]) <= 1e-9 for row in rows)
    sizes = {row["method"]: row["num_inducing"] for row in rows}
    assert sizes == {name: {"tvgp": None, "qsvgp": 8, "tsvgp": 8}.get(name, 16) for name in METHODS}
    assert "methods that use all rows in each step: tvgp" in done.stdout
    assert "storage of tsvgp's sites: datum" in done.stdout
    assert "methods with a second group of inducing inputs: M2 = 8" in done.stdout


def test_the_methods_agree_on_jax(classes, tmp_path):
    pytest.importorskip("jax", reason="jax is not installed")
    out = tmp_path / "out"
    done = compare(
        "--data", classes, "--out", out, "--method", "tsvgp", "solve", "--backend", "jax", "--dtype", "float64",
        "--gradient", "closed-form", *QUICK,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["backend"] for row in rows_of(out)] == ["numpy", "jax"] * 2


@pytest.mark.long
def test_the_collapsed_bound_and_what_it_says_about_the_evidence(regression, tmp_path):
    out = tmp_path / "out"
    done = compare(
        "--data", regression, "--out", out, "--method", "sgpr", "solve-collapsed", "--backend", "numpy", "--dtype",
        "float64", "--num-orthogonal", "4", *QUICK,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    one, both = rows_of(out)
    assert (one["num_inducing"], both["num_inducing"]) == (8, 12)
    assert both["upper_bound"] > both["bound"]
    assert "methods that use all rows in each step: sgpr, solve-collapsed" in done.stdout
    assert "solve-collapsed: the exact GP's log evidence" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("storage", ["natural", "inverse-free"])
def test_other_storages_train_in_single_precision(classes, tmp_path, storage):
    out = tmp_path / "out"
    done = compare(
        "--data", classes, "--out", out, "--method", "tsvgp", "--storage", storage, "--backend", "numpy", "--dtype",
        "float32", *QUICK,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    exact, single = rows_of(out)
    assert single["nlpd"] < np.log(2.0)
    assert single["nlpd"] == pytest.approx(exact["nlpd"], abs=1e-3)
    assert single["max_rel_diff_bound"] < 1e-4
    assert json.loads((out / "results.json").read_text())["settings"]["storage"] == storage


def test_what_the_names_mean():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(20, 2))
    y = np.sin(X[:, :1])
    common = {"likelihood": agp.Gaussian(), "kernel": "rbf", "num_inducing": 4, "seed": 0}

    def built(method, **given):
        return build(method, X, y, **common, **given)

    assert isinstance(built("tvgp"), TVGP)
    assert isinstance(built("tsvgp"), TSVGP)
    assert RECORDS["tsvgp"].storages == ("datum", "natural", "kernel", "white", "inverse-free")
    for storage in ("natural", "kernel", "white"):
        assert process(built("tsvgp", storage=storage)).posterior.tied == storage
    free = built("tsvgp", storage="inverse-free")
    assert isinstance(process(free).posterior, DualInverseFree)
    assert isinstance(built("solve-collapsed", num_orthogonal=3), SOLVEGPR)
    solve, decoupled = (
        process(built("solve", num_orthogonal=3)).posterior,
        process(built("odvgp", num_orthogonal=3)).posterior,
    )
    assert isinstance(solve, Orthogonal)
    assert [type(part) for part in solve.parts] == [Whitened, Whitened]
    assert [type(part) for part in decoupled.parts] == [Whitened, PriorSpread]
    assert solve.sizes == decoupled.sizes == (4, 3)
    assert isinstance(process(built("solve-relaxed", num_orthogonal=3)).posterior, RelaxedOrthogonal)

    def updates(method, **given):
        return updates_of(method, built(method, **given), 10, rate=0.03, gradient="closed-form")

    natural, adam = updates("qsvgp")
    assert isinstance(natural, NaturalGradient)
    assert adam.frozen == ("posterior.*",)
    assert [type(update) for update in updates("tsvgp")] == [SiteStep, Adam]
    assert updates("tsvgp")[0].rate == natural.rate
    assert [type(update) for update in updates("tsvgp", storage="inverse-free")] == [SiteStep, Adam, InverseUpdate]
    assert isinstance(process(built("qsvgp")).posterior, Whitened)
    assert not isinstance(process(built("qsvgp")).posterior, Dual)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "tsvgp", "--storage", "tied"], "argument --storage: invalid choice: 'tied'"),
        (["--method", "wsvgp", "--storage", "datum"], "--storage is for --method tsvgp, not wsvgp; leave it out"),
        (["--method", "wsvgp", "--num-orthogonal", "3"], "--num-orthogonal is for --method solve, odvgp,"),
        (
            ["--method", "solve", "--num-orthogonal", "-1"],
            "--num-orthogonal: must be a whole number of at least 0",
        ),
        (["--method", "solve-relaxed", "--num-orthogonal", "0"], "must be at least 1 for solve-relaxed"),
        (
            ["--method", "solve", "--num-orthogonal", "41"],
            "--num-inducing plus --num-orthogonal is 49, but waves",
        ),
        (
            ["--method", "solve-collapsed"],
            "--method solve-collapsed requires the gaussian likelihood, but the task of waves is",
        ),
    ],
)
def test_bad_arguments_give_one_line(classes, not_compared, arguments, message):
    assert message in not_compared(classes, *QUICK, *arguments)


@pytest.mark.parametrize("given", ["2.5", "many"])
def test_a_group_has_a_whole_number_of_inputs(classes, capsys, given):
    with pytest.raises(SystemExit) as ending:
        main(["compare", "--data", str(classes), "--method", "solve", "--num-orthogonal", given])
    assert ending.value.code == 2
    assert f"--num-orthogonal: must be a whole number of at least 0, not '{given}'" in capsys.readouterr().err


def test_too_many_rows_for_a_site_at_each_datum_without_inducing_inputs(classes, monkeypatch, capsys):
    dense = dataclasses.replace(RECORDS["tvgp"], dense_arrays=(10**12, 0))
    monkeypatch.setitem(RECORDS, "tvgp", dense)
    assert main(["compare", "--data", str(classes), "--method", "tvgp"]) == 2
    said = capsys.readouterr().err
    assert "tvgp needs about" in said
    assert "GiB for the 48 training rows of waves, but this machine has" in said
    assert "leave --method tvgp out" in said


def test_tvgp_needs_no_inducing_inputs(classes):
    data = load(str(classes))
    settings = Settings(
        "waves", None, 0, "classification", "bernoulli", "rbf", num_inducing=128, batch_size=20, iterations=1, rate=0.1,
        seed=0, device="cpu",
    )  # fmt: skip
    _checks.check_fit(data, ["tvgp"], settings)
    with pytest.raises(ValueError, match="--num-inducing is 128, but waves has only 48 training rows"):
        _checks.check_fit(data, ["tvgp", "tsvgp"], settings)
