"""The comparison in asv_benchmarks/compare: rows agree, what differs or fails, and other libraries by a stand-in."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "asv_benchmarks" / "compare"))

import peering
import problem
import row
import run

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::agp.errors.RepairWarning")]

QUICK = ("--num-inducing", "8", "--batch-size", "20", "--iterations", "6")
PYTHONS = [sys.executable, *filter(None, os.environ.get("AGP_PEERS", "").split(os.pathsep))]
"""Interpreters that may have other libraries."""
LOOK = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"


def here(task, a, file, reference):
    """Run a row in this process; replaces `run.run_task`."""
    row.Row(a, **task).run(file, None if reference is None else f"{reference}.npz")
    return json.loads(file.with_suffix(".json").read_text())


@pytest.fixture
def compare(tmp_path, monkeypatch):
    """Compare rows on a smooth function, or on its sign; the exit status and the rows."""
    monkeypatch.setattr(run, "run_task", here)
    rng = np.random.default_rng(0)
    X, test = rng.normal(size=(60, 2)), np.arange(60) < 12
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=60)
    np.savez(tmp_path / "plane.npz", X=X, y=y, test_mask=test)
    np.savez(tmp_path / "waves.npz", X=X, y=(y > 0.0).astype(np.uint8), test_mask=test)

    def compared(name, *arguments):
        files = ["--data", str(tmp_path / f"{name}.npz"), "--out", str(tmp_path / "out.json")]
        status = run.main([*files, *QUICK, *arguments])
        return status, json.loads((tmp_path / "out.json").read_text())["rows"]

    return compared


def test_rows_agree_with_numpy(compare, capsys):
    pytest.importorskip("torch", reason="torch is not installed")
    status, rows = compare("plane", "--method", "wsvgp", "rsvgp", "--backend", "torch", "--dtype", "float64")
    assert status == 0
    both = [("numpy", "closed-form"), ("torch", "closed-form"), ("torch", "autodiff")]
    assert [(x["backend"], x["gradient"]) for x in rows] == both * 2
    assert all(max(x["diff_bound"], x["diff_grad"]) <= 1e-9 and x["steps"] == 6 for x in rows)
    assert all(np.isfinite(x["nlpd"]) and len(x["curve"]) == 6 for x in rows)
    assert "all float64 rows agree with NumPy" in capsys.readouterr().out


@pytest.mark.long
def test_every_method_agrees_between_libraries(compare):
    pytest.importorskip("torch", reason="torch is not installed")
    only = ("--backend", "torch", "--gradient", "closed-form", "--dtype", "float64")
    methods = [name for name, method in run.METHODS.items() if not method.gaussian_only]
    assert compare("waves", "--method", *methods, *only)[0] == 0
    methods = [name for name, method in run.METHODS.items() if method.gaussian_only and name != "vif"]
    # so few rows are all neighbours, so that the bound of VIF does not depend on its inducing inputs
    assert compare("plane", "--method", *methods, "--support", "30", *only)[0] == 0


def test_the_methods_agree_on_jax(compare):
    pytest.importorskip("jax", reason="jax is not installed")
    options = ("--backend", "jax", "--dtype", "float64", "--gradient", "closed-form")
    assert compare("waves", "--method", "tsvgp", "solve", *options)[0] == 0


def test_evidence_and_scores(compare, capsys):
    status, rows = compare("plane", "--method", "gpr", "sgpr", "--backend", "numpy", "--dtype", "float64")
    assert status == 0
    exact, sparse = rows
    assert exact["upper_bound"] == exact["bound"]
    assert sparse["upper_bound"] > sparse["bound"]
    assert f"sgpr: the exact GP's log evidence is at most {sparse['upper_bound']:,.1f}" in capsys.readouterr().out
    assert compare("waves", "--method", "wsvgp", "--backend", "numpy")[1][0]["error_rate"] <= 1.0


def test_a_row_that_fails_does_not_stop_the_others(compare, monkeypatch, capsys):
    monkeypatch.setattr(run, "run_task", lambda *_: {"error": "exit status 1"})
    status, rows = compare("plane", "--method", "wsvgp", "rsvgp", "--backend", "numpy", "--dtype", "float64")
    assert (status, len(rows)) == (1, 2)
    assert "FAILED wsvgp numpy closed-form float64: exit status 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"bound": -124.9}, None),
        ({"bound": -126.0}, "its trained bound differs by 0.12 nats"),
        ({"bound": float("nan")}, "its trained bound differs by nan nats"),
        ({"diff_bound": 2e-9}, "differs by more than 1e-09"),
        ({"diff_grad": float("nan")}, "differs by more than 1e-09"),
        ({"diff_grad": 1e-2, "dtype": "float32"}, None),
        ({"peer": "fake", "diff_bound": 2e-4}, "its bound for the same model differs by 2.0e-04"),
        ({"error": "exit status 3"}, "exit status 3"),
    ],
)
def test_what_is_a_fault(change, fault):
    first = {"method": "wsvgp", "dtype": "float64", "bound": -120.0, "diff_bound": 0.0, "diff_grad": 0.0}
    found = run.fault_of(first | change, [first, first | change], 50)
    assert found is None if fault is None else found.startswith(fault)


def test_targets_decide_the_task(tmp_path):
    def classes(y, **options):
        np.savez(tmp_path / "d.npz", X=np.arange(float(len(y)))[:, None], y=y)
        a = {"data": str(tmp_path / "d.npz"), "split": 0, "seed": 0, "task": "auto", "likelihood": None} | options
        return problem.load(run.argparse.Namespace(**a))

    assert classes(np.arange(40) % 3).classes == 3
    for data in (classes(np.arange(400) % 21), classes(np.arange(40) % 3 / 2), classes(np.arange(40) % 3 + 1)):
        assert (data.classes, len(data.X_test)) == (0, round(0.1 * (len(data.X) + len(data.X_test))))
        np.testing.assert_allclose([data.y.mean(), data.y.std()], [0.0, 1.0], atol=1e-12)
    assert classes(np.arange(400) % 21, task="classification").classes == 21
    assert classes(np.arange(40) % 3, likelihood="poisson").y.max() == 2.0
    with pytest.raises(SystemExit, match="must be 0, 1, "):
        classes(np.arange(40) % 3 + 1, likelihood="softmax")


OWN = ("--method", "wsvgp", "--backend", "numpy", "--dtype", "float64", "--kernel", "rbf", "--q-steps", "adam")


@pytest.mark.parametrize("name", ["plane", "waves"])
def test_a_peer_has_the_same_start_minibatches_and_rates(compare, name):
    status, (ours, theirs) = compare(name, *OWN, "--peer", f"agp={sys.executable}")
    assert status == 0
    assert theirs["peer"].startswith("agp ")
    assert theirs["diff_bound"] < 1e-12
    for score in {"bound", "nlpd", "rmse", "error_rate"} & ours.keys():
        assert theirs[score] == pytest.approx(ours[score], rel=1e-6), score
    np.testing.assert_allclose([y for _, y in theirs["curve"]], [y for _, y in ours["curve"]], rtol=1e-6)


def test_a_peer_that_is_not_there_is_a_failed_row(compare, capfd):
    status, rows = compare("plane", *OWN, "--peer", f"none={sys.executable}")
    assert status == 1
    assert rows[1]["error"] == "exit status 1"
    assert "none_peer" in capfd.readouterr().err


@pytest.mark.parametrize("library", ["gpytorch", "gpflow", "gpjax"])
def test_a_real_library(compare, library):
    fits = (python for python in PYTHONS if not subprocess.run([python, "-c", LOOK, library], check=False).returncode)
    if (python := next(fits, None)) is None:
        pytest.skip(f"{library} is not installed for {', '.join(PYTHONS)}")
    names = ("plane", "waves") if library == "gpytorch" else ("plane",)
    for name in names:
        status, (ours, theirs) = compare(name, *OWN, "--mean", "zero", "--peer", f"{library}={python}")
        assert status == 0
        # GPJax trains the standard deviation of the noise and q(u) in other raw numbers, so its path is its own
        assert theirs["nlpd"] == pytest.approx(ours["nlpd"], abs=0.5 if library == "gpjax" else 1e-3)


def test_the_libraries_are_known():
    there = {path.stem.removesuffix("_peer") for path in peering.PEERS.glob("*_peer.py")}
    assert there == {"agp", "gpytorch", "gpflow", "gpjax"}
