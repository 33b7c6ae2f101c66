"""The deep methods of `agp compare`: agreement, layers, what the names mean, bad input."""

import json

import numpy as np
import pytest
from in_process import run

import agp
from agp.methods import LAYERS, METHODS, build

pytestmark = pytest.mark.slow

pytest.importorskip("rich", reason="the command line needs the extra cli")
pytest.importorskip("tqdm", reason="the command line needs the extra cli")

QUICK = ["--num-inducing", "6", "--batch-size", "20", "--iterations", "4", "--kernel", "rbf"]
POSTERIORS = {
    "deep-msvgp": agp.posteriors.Marginal,
    "deep-wsvgp": agp.posteriors.Whitened,
    "deep-lsvgp": agp.posteriors.LikelihoodForm,
    "deep-rsvgp": agp.posteriors.Relaxed,
    "deep-asvgp": agp.posteriors.InverseFree,
    "deep-solve": agp.posteriors.Orthogonal,
}
DEEP = [name for name, method in METHODS.items() if "layers" in method.takes]


def test_rows_agree(regression, tmp_path):
    out = tmp_path / "out"
    arguments = ["--method", "deep-solve", "--layers", "3", "--backend", "numpy", *QUICK]
    done = run("compare", "--data", regression, "--out", out, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "deep methods have 3 layers, and each layer has its own inducing inputs" in done.stdout
    found = json.loads((out / "results.json").read_text())
    assert found["settings"]["layers"] == 3
    assert [row["num_inducing"] for row in found["rows"]] == [3 * 12] * 2  # float64 and float32
    assert all(row["max_rel_diff_bound"] < 1e-5 for row in found["rows"])


@pytest.mark.parametrize("method", DEEP)
def test_what_the_names_mean(method):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(20, 2))
    common = {"likelihood": agp.Gaussian(), "kernel": "matern32", "num_inducing": 4, "seed": 0}
    models = [build(method, X, np.sin(X[:, :1]), **common, **given) for given in ({}, {"layers": 3})]
    assert [len(model.process.layers) for model in models] == [LAYERS, 3]
    for model in models:
        assert {type(layer.posterior) for layer in model.process.layers} == {POSTERIORS[method]}
        assert {type(layer.kernel) for layer in model.process.layers} == {agp.Matern32}
        assert_wide(model.process.layers[0].kernel.lengthscale, X)
    if method == "deep-solve":
        few = build(method, X, np.sin(X[:, :1]), **common, num_orthogonal=3)
        assert {layer.posterior.sizes for layer in models[0].process.layers} == {(4, 4)}
        assert {layer.posterior.sizes for layer in few.process.layers} == {(4, 3)}


def assert_wide(lengthscale, X):
    """Layers are smooth at first: twice the spread of each column."""
    np.testing.assert_allclose(lengthscale, 2.0 * X.std(axis=0), rtol=1e-12)


def test_all_deep_methods_are_listed():
    assert list(POSTERIORS) == DEEP
    assert all("deep" in METHODS[name].description for name in DEEP)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "wsvgp", "--layers", "2"], "--layers is for --method deep-msvgp, deep-wsvgp"),
        (["--method", "deep-wsvgp", "--layers", "0"], "--layers: must be a whole number of at least 1, not '0'"),
        (["--method", "deep-solve", "--num-orthogonal", "43"], "--num-inducing plus --num-orthogonal is 49, but"),
        (["--method", "deep-rsvgp", "--num-orthogonal", "3"], "--num-orthogonal is for --method solve, odvgp,"),
    ],
)
def test_bad_arguments_give_one_line(regression, not_compared, arguments, message):
    assert message in not_compared(regression, *QUICK, *arguments)
