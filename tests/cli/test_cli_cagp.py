"""The computation-aware methods of `agp compare`, and conjugate gradients: agreement, options, bad input."""

import json

import numpy as np
import pytest

import agp
from agp.actions import BlockActions, FixedActions
from agp.cli import main
from agp.methods import build, updates_of
from agp.models import CGGP, CaGP
from agp.updates import ActionsUpdate, Adam

pytestmark = pytest.mark.slow

pytest.importorskip("rich", reason="the command line needs the extra cli")
pytest.importorskip("tqdm", reason="the command line needs the extra cli")

QUICK = ["--num-inducing", "6", "--batch-size", "16", "--iterations", "3", "--kernel", "rbf", "--backend", "numpy"]


@pytest.mark.long
def test_the_rows_of_a_comparison(regression, tmp_path, capsys):
    out = tmp_path / "out"
    methods = ["cagp-opt", "cagp-cg", "cggp"]
    arguments = ["--data", str(regression), "--out", str(out), "--method", *methods, "--support", "30", *QUICK]
    assert main(["compare", *arguments]) == 0
    rows = json.loads((out / "results.json").read_text())["rows"]
    assert [(row["method"], row["dtype"]) for row in rows] == [(m, d) for m in methods for d in ("float64", "float32")]
    assert all(np.isfinite(row["nlpd"]) and row["steps"] == 3 for row in rows)
    for exact, single in zip(rows[::2], rows[1::2], strict=True):
        assert single["nlpd"] == pytest.approx(exact["nlpd"], abs=1e-2)
    assert "6 actions, which cover 30 of 48 rows" in capsys.readouterr().out


@pytest.mark.long
def test_conjugate_gradients_agree_between_libraries(tmp_path):
    # at the tolerance of training they would not: iterates magnify rounding up to that
    pytest.importorskip("torch", reason="torch is not installed: not executed")
    rng = np.random.default_rng(2)
    X = rng.normal(size=(250, 6))
    y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=250)
    np.savez(tmp_path / "six.npz", X=X, y=y, test_mask=np.arange(250) < 25)
    out = tmp_path / "out"
    arguments = ["--data", str(tmp_path / "six.npz"), "--out", str(out), "--method", "cggp", "--dtype", "float64"]
    assert main(["compare", *arguments, "--backend", "numpy", "torch", "--iterations", "10", "--rate", "0.2"]) == 0
    rows = json.loads((out / "results.json").read_text())["rows"]
    assert [(row["backend"], row["gradient"]) for row in rows[1:]] == [("torch", "closed-form"), ("torch", "autodiff")]


def test_what_the_names_mean():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(20, 2))
    common = {"likelihood": agp.Gaussian(), "kernel": "rbf", "num_inducing": 4, "seed": 0}
    learned = build("cagp-opt", X, np.sin(X[:, :1]), **common, num_actions=5, support=10)
    assert isinstance(learned, CaGP)
    assert isinstance(learned.actions, BlockActions)
    assert (learned.actions.count, learned.actions.support, learned.stochastic) == (5, 10, True)
    chosen = build("cagp-cg", X, np.sin(X[:, :1]), **common, num_actions=5, support=20)
    assert isinstance(chosen.actions, FixedActions)
    assert not chosen.stochastic
    updates = updates_of("cagp-cg", chosen, 10, rate=0.03, gradient="closed-form")
    assert [type(update) for update in updates] == [ActionsUpdate, Adam]
    assert isinstance(build("cggp", X, np.sin(X[:, :1]), **common), CGGP)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "wsvgp", "--num-actions", "3"], "--num-actions is for --method cagp-opt, cagp-cg, not wsvgp"),
        (["--method", "cggp", "--support", "3"], "--support is for --method cagp-opt, cagp-cg, not cggp"),
        (
            ["--method", "cagp-opt", "--num-actions", "0"],
            "--num-actions: must be a whole number of at least 1",
        ),
        (
            ["--method", "cagp-opt", "--num-actions", "31", "--support", "30"],
            "--num-actions is 31, --support is 30 and there are 48",
        ),
        (["--method", "cagp-cg", "--support", "49"], "--support is 49 and there are 48 training rows"),
    ],
)
def test_bad_arguments_give_one_line(regression, not_compared, arguments, message):
    assert message in not_compared(regression, *QUICK, *arguments)
