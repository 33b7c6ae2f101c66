"""Nearest rows, inducing inputs or both: what is chosen for many rows, of which data, and what it stores."""

import warnings
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import peak
from tables import assert_predicts, bits, table

import agp
from agp import selection, to_numpy
from agp.backend import backend_of
from agp.bounds import near_densities
from agp.cli import main
from agp.errors import ConvergenceWarning, NoSignalWarning, RepairWarning
from agp.kernels import RBF, Linear, Matern32, White
from agp.models import GPR, NNGP, SVGP, VIF
from agp.selection import _many_rows, _near, _race, _stages
from agp.selection._climb import Climber
from agp.selection._given import Columns, Data, Plan, subsample_rows
from agp.selection._many_rows import why_not_neighbours
from agp.selection._near import exceeds, merge_rows, near_model
from agp.selection._watch import Pieces, Watch

fit_regression = partial(selection.fit_regression, hyperparameters="mode")
KINDS = {"nngp": NNGP, "vif": VIF}
pytestmark = pytest.mark.slow


@pytest.fixture
def larger(monkeypatch):
    """Samples in which a rough function can be seen."""
    for module, name, size in ((_stages, "SAMPLE", 80), (_race, "SAMPLE", 80), (_stages, "LARGER", 120)):
        monkeypatch.setattr(module, name, size)
    monkeypatch.setattr(_many_rows, "SAMPLE", 80)
    monkeypatch.setattr(_many_rows, "LARGER", 120)


def rough_table(rows, seed=0):
    """A sum of many waves over a square: X [N, 2] and y [N]."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(rows, 2))
    frequencies = np.random.default_rng(99).normal(scale=12.0, size=(2, 40))
    phases = np.random.default_rng(98).uniform(0.0, 6.3, size=40)
    return X, np.sin(X @ frequencies + phases).sum(axis=1) / 4.0 + 0.02 * rng.normal(size=rows)


def mean_density(model, X, y):
    return float(np.mean(model.log_density(X, y[:, None])))


# -- the choice -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("larger")
@pytest.mark.filterwarnings("ignore::agp.errors.NoSignalWarning")  # of so few inducing inputs
def test_a_rough_function_is_answered_by_nearest_rows():
    X, y = rough_table(700)
    new, targets = rough_table(200, seed=1)
    near, collapsed = (fit_regression(X, y, kernel=Matern32(), method=method, most=32) for method in ("auto", "sgpr"))
    assert near.method == "nngp"
    assert mean_density(near.model, new, targets) > mean_density(collapsed.model, new, targets) + 0.3
    assert near.log_density > collapsed.log_density


@pytest.mark.usefixtures("larger")
@pytest.mark.parametrize(
    ("kernel", "columns", "function"),
    [
        (Linear(), 5, lambda X: X.sum(axis=1)),
        (RBF(), 1, lambda X: np.sin(X[:, 0])),
    ],
    ids=["linear", "smooth"],
)
def test_a_function_that_inducing_inputs_carry_keeps_them(kernel, columns, function, monkeypatch):
    for module, name, size in ((_many_rows, "JUDGED_ROWS", 400), (_stages, "COMPARED_ROWS", 600), (_stages, "FEW", 32)):
        monkeypatch.setattr(module, name, size)
    monkeypatch.setattr(_many_rows, "JUDGED", 32)
    rng = np.random.default_rng(0)
    X, new = rng.normal(size=(900, columns)), rng.normal(size=(300, columns))
    y = function(X) + 1.0 * rng.normal(size=900)
    found, near = (fit_regression(X, y, kernel=kernel, method=one, most=32) for one in ("auto", "nngp"))
    assert found.method in ("sgpr", "vif")
    assert found.log_density > near.log_density
    errors = [np.mean((one.model.predict(new).mean[:, 0] - function(new)) ** 2) for one in (found, near)]
    assert errors[0] < errors[1]


@pytest.mark.parametrize("method", KINDS)
def test_a_method_is_the_kind_of_the_model(method):
    X, y = table(110)
    found = fit_regression(X, y, method=method, kernel=RBF())
    assert type(found.model) is KINDS[method]
    assert found.method == method
    assert found.learned
    assert found.bound == pytest.approx(110 * found.log_density)
    assert found.model.X.shape == (110, 2)
    assert_predicts(found.model, table(9)[0])


@pytest.mark.parametrize("method", ["auto", *KINDS])
def test_a_small_table_asks_for_a_method_as_well(method):
    X, y = table(40)
    found = fit_regression(X, y, method=method, kernel=RBF())
    assert found.method == ("gpr" if method == "auto" else method)


def test_kernels_are_compared_on_near_rows():
    X, y = table(110)
    found = fit_regression(X, y, method="nngp")
    assert {one.kernel.removesuffix(" + linear") for one in found.candidates} >= {
        found.kernel.removesuffix(" + linear")
    }
    assert found.kernel.removesuffix(" + linear") in ("rbf", "matern52", "matern32")


@pytest.mark.parametrize(
    ("kernel", "why"),
    [(RBF() + White(), "the kernel contains white noise"), (RBF(), "")],
)
def test_where_near_rows_cannot_be_used(kernel, why):
    X, y = table(110)
    plan = Plan(kernel, agp.Gaussian(), None, None, None, 1e-3, Columns(X.shape[1]))
    assert why_not_neighbours(plan, X) == why
    if why:
        assert fit_regression(X, y, kernel=kernel).method == "sgpr"
        with pytest.raises(ValueError, match=f"method is 'nngp', but {why}; use 'auto' or 'sgpr'"):
            fit_regression(X, y, kernel=kernel, method="nngp")


def test_rows_elsewhere_have_inducing_inputs():
    da = pytest.importorskip("dask.array")
    X, y = (da.from_array(x, chunks=40) for x in table(110))
    remedy = "compute as many random rows as fit in memory, or use 'auto' or 'sgpr'."
    for method in KINDS:
        with pytest.raises(ValueError, match=f"^method is '{method}', but the rows are not in memory; {remedy}$"):
            fit_regression(X, y, kernel=RBF(), method=method)
        with pytest.raises(ValueError, match=f"the rows are not in memory; {remedy}$"):
            agp.GPRegressor(method=method, kernel=RBF()).fit(X, y)
    with pytest.raises(
        ValueError, match="are in a dask array; compute it, or as many random rows as fit in memory, or"
    ):
        NNGP.from_data(X, y)


def test_one_exceeds_another_by_more_than_chance():
    rng = np.random.default_rng(0)
    x = rng.normal(size=100)
    assert exceeds(x + 1.0, x)
    assert not exceeds(x, x)
    assert not exceeds(x, x + 1.0)
    assert not exceeds(x, np.full(100, -np.inf))


# -- libraries --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", KINDS)
def test_every_library_gives_the_same_model(method, backend):
    X, y = table(90, outputs=2)
    options = {"method": method, "kernel": RBF()}
    expected = fit_regression(X, y, **options)
    found = fit_regression(backend.array(X), backend.array(y), **options)
    for leaf in agp.tree.leaves(found.model).values():
        backend.check(leaf)
    assert found.message == expected.message
    # hyperparameters are trained in float32
    assert found.log_density == pytest.approx(expected.log_density, abs=1e-4)
    new = table(6, seed=1)[0]
    for one, two in zip(found.model.predict(backend.array(new)), expected.model.predict(new), strict=True):
        np.testing.assert_allclose(to_numpy(one), two, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("place", ["cupy_stand_in", "torch_device"])
def test_densities_are_trained_on_an_accelerator(place, request, monkeypatch):
    device, trained = request.getfixturevalue(place), []

    class Watched(_near.Evidence):
        def __init__(self, model, *given):
            trained.append(model.X)
            super().__init__(model, *given)

    monkeypatch.setattr(_near, "Evidence", Watched)
    X, y = table(90)
    found = fit_regression(device.array(X, "float32"), device.array(y, "float32"), method="nngp", kernel=RBF())
    assert trained
    assert {backend_of(x).device_name(x) for x in trained} == {"cuda:0"}
    device.check(found.model.X, "float32")


@pytest.mark.parametrize("method", KINDS)
def test_single_precision(method):
    X, y = (x.astype("float32") for x in table(110))
    found = fit_regression(X, y, method=method, kernel=RBF())
    assert {str(x.dtype) for x in agp.tree.leaves(found.model, "parameter").values()} == {"float32"}
    assert_predicts(found.model, X)
    assert np.sqrt(np.mean((found.model.predict(X).mean[:, 0] - y) ** 2)) < 0.3


# -- repeated rows, weights and noise ---------------------------------------------------------------------------------


def test_weights_are_repeated_rows():
    rng = np.random.default_rng(1)
    X, y = table(30, outputs=2)
    X[20:] = X[:10]
    weights = 1.0 * rng.integers(1, 5, size=30)
    again = np.repeat(np.arange(30), weights.astype(int))
    hyper = GPR.from_data(X, y, kernel=RBF(1.0, 0.8), likelihood=agp.Gaussian(0.1))
    one, two = (near_model(hyper, merge_rows(data), 8) for data in (Data(X, y, weights), Data(X[again], y[again])))
    new = table(9, seed=1)[0]
    for a, b in zip(one.predict(new), two.predict(new), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    for data in (one.weights, two.weights), (one.squares, two.squares):
        np.testing.assert_allclose(*data, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(one.bound(one.X, one.y)[0], two.bound(two.X, two.y)[0], rtol=1e-9)


@pytest.mark.parametrize("with_weights", [False, True])
@pytest.mark.parametrize("outputs", [1, 2])
def test_training_holds_the_rows_that_it_uses(outputs, with_weights):
    X, y = table(80, outputs=outputs)
    weights = 1.0 + np.arange(80) % 3 if with_weights else None
    merged = merge_rows(Data(X, y, weights, 0.01 + 0.02 * X[:, 0] ** 2))
    hyper = GPR.from_data(X, y, kernel=RBF(1.0, 0.8), likelihood=agp.Gaussian(0.1))
    model = near_model(hyper, merged, 6, among="others")
    rows = np.array([50, 3, 79, 0])
    sets = model._others(rows, None)
    training = _near.NearTraining(SimpleNamespace(merged=merged, beside=merged.X), None)
    own, numbers = training._with_neighbours(model, rows, sets)
    assert len(own.X) == len({*rows, *sets.ravel()}) < 80
    np.testing.assert_array_equal(own.X[numbers], X[sets])
    np.testing.assert_array_equal(
        near_densities(own, own._near_data, np.arange(4), numbers), near_densities(model, model._near_data, rows, sets)
    )


@pytest.mark.usefixtures("full_size")
@pytest.mark.parametrize("only_variances", [False, True])
def test_the_memory_of_training_does_not_contain_the_neighbours_of_all_rows(only_variances, monkeypatch):
    monkeypatch.setattr(_near, "LEVELS", ((200, 1),))
    monkeypatch.setattr(_near, "CALIBRATED_ROWS", 200)
    X, y = table(100_000)
    rows, watch = subsample_rows(Data(X, y[:, None]), 500, 0, hold_out=True), Watch(None, (), progress=False)
    plan = Plan(RBF(), agp.Gaussian(), None, None, None, 1e-3, Columns(2))
    near = _near.NearCandidates(rows, watch, 0)
    training = _near.NearTraining(near, Climber(plan, Pieces(None, {}, watch), watch, exact=False))
    hyper = GPR.from_data(X[:100], y[:100], kernel=RBF(1.0, 0.8), likelihood=agp.Gaussian(0.1))
    with watch:
        train = partial(training.calibrate, hyper) if only_variances else partial(training.train, hyper, "rbf", {})
        assert peak(train) < 20.0  # the 50 or 60 neighbours of all rows are 38 or 46 MiB


@pytest.mark.parametrize("method", KINDS)
def test_repeats_become_one_row(method):
    X, y = table(120)
    X, y = X[np.arange(120) % 50], y[np.arange(120) % 50] + 0.1 * np.random.default_rng(1).normal(size=120)
    found = fit_regression(X, y, method=method, kernel=RBF())
    model = found.model
    assert len(np.unique(model.X, axis=0)) == len(model.X) == 50
    for row, mean, weight, squares in zip(model.X, model.y, model.weights, model.squares, strict=True):
        same = y[(row == X).all(axis=1)]
        assert weight == len(same)
        np.testing.assert_allclose(mean, same.mean())
        np.testing.assert_allclose(squares, np.sum((same - same.mean()) ** 2), atol=1e-12)
    assert f"of {50:,} rows" in found.message


@pytest.mark.parametrize("method", KINDS)
@pytest.mark.parametrize("likelihood", [None, agp.Gaussian(0.0)], ids=["trained", "all known"])
def test_known_noise(method, likelihood):
    X, f = table(110, noise=0.0)
    noise = np.where(np.arange(110) % 3 == 0, 4.0, 1e-3)
    y = f + np.sqrt(noise) * np.random.default_rng(5).normal(size=110)
    found = fit_regression(X, y, method=method, noise=noise, likelihood=likelihood, kernel=RBF())
    assert_predicts(found.model, X)
    assert np.mean((found.model.predict(X).mean[:, 0] - f) ** 2) < 0.2
    assert found.model.noise.shape == (110, 1)
    if likelihood is not None:
        assert found.model.likelihood.noise_variance == 0.0


@pytest.mark.parametrize(("factor", "scale", "level"), [(1e6, 1e-6, 0.0), (1e-6, 1e6, 1e7)])
@pytest.mark.parametrize("method", KINDS)
def test_units_do_not_matter(method, factor, scale, level):
    X, y = table(110)
    here = fit_regression(X, y, method=method, kernel=RBF())
    there = fit_regression(X * factor, scale * y + level, method=method, kernel=RBF())
    new = table(9, seed=1)[0]
    found, expected = there.model.predict(new * factor, observed=True), here.model.predict(new, observed=True)
    np.testing.assert_allclose((found.mean - level) / scale, expected.mean, atol=1e-3)
    np.testing.assert_allclose(found.variance / scale**2, expected.variance, atol=1e-3)
    assert there.log_density + np.log(scale) == pytest.approx(here.log_density, abs=1e-3)


# -- endings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", KINDS)
def test_a_checkpoint_gives_the_same_bits(method, tmp_path):
    X, y = table(110)
    options = {"method": method, "kernel": RBF()}
    expected = bits(fit_regression(X, y, **options))
    path = tmp_path / "run.agp"
    assert bits(fit_regression(X, y, checkpoint=path, **options)) == expected
    assert bits(fit_regression(X, y, checkpoint=path, **options)) == expected
    with pytest.raises(ValueError, match="other values of method"):
        fit_regression(X, y, checkpoint=path, kernel=RBF(), method="sgpr")


@pytest.mark.parametrize("limit", [0.001, 0.3])
def test_a_limit_ends_with_a_model(limit):
    X, y = table(400)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = fit_regression(X, y, max_seconds=limit)
    assert_predicts(found.model, X[:9])


@pytest.mark.parametrize("method", ["auto", *KINDS])
def test_noise_is_not_learned(method):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 3)), rng.normal(size=200)
    with pytest.warns(NoSignalWarning):
        found = fit_regression(X, y, method=method)
    assert not found.learned
    mean, variance = found.model.predict(X[:5], observed=True)
    np.testing.assert_allclose(mean, y.mean(), atol=1e-3)
    np.testing.assert_allclose(variance, y.var(), rtol=1e-3)


# -- hostile tables ---------------------------------------------------------------------------------------------------

HOSTILE = {
    "one distinct row": lambda X, y: (np.ones_like(X), y),
    "two distinct rows": lambda X, y: (np.ones_like(X) * (np.arange(len(X))[:, None] % 2), y),
    "repeats": lambda X, y: (X[np.arange(len(X)) % 3], y),
    "repeats without noise": lambda X, y: (X[np.arange(len(X)) % 7], y[np.arange(len(X)) % 7]),
    "fewer distinct rows than neighbours": lambda X, y: (X[np.arange(len(X)) % 9], y),
    "a constant column": lambda X, y: (np.column_stack([X[:, 0], np.full(len(X), 7.0)]), y),
    "ties": lambda X, y: (np.round(X), y),
    "a grid": lambda X, y: (np.stack(np.divmod(np.arange(len(X)) % 64, 8), axis=1).astype(float), y),
    "far from zero": lambda X, y: (X + 1e6 * X.std(axis=0), y + 1e6 * y.std()),
    "one far row": lambda X, y: (np.where(np.arange(len(X))[:, None] == 3, 1e9, X), y),
    "an outlier": lambda X, y: (X, np.where(np.arange(len(y)) == 3, 1e9, y)),
    "equal targets": lambda X, y: (X, np.full_like(y, 3.7)),
    "huge": lambda X, y: (X * 1e150, y * 1e150),
    "tiny": lambda X, y: (X * 1e-150, y * 1e-150),
}
ALLOWED = (RepairWarning, NoSignalWarning, ConvergenceWarning)


@pytest.mark.sample(10)
@pytest.mark.parametrize("kernel", ["auto", RBF()], ids=["auto", "rbf"])
@pytest.mark.parametrize("method", ["auto", *KINDS])
@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_hostile_tables(change, method, kernel):
    check_hostile(change(*table(100)), method=method, kernel=kernel)


@pytest.mark.sample(4)
@pytest.mark.parametrize("noise", [0.0, 1e-300, 1e-12, 1e12])
@pytest.mark.parametrize("likelihood", [None, agp.Gaussian(0.0)], ids=["trained", "all known"])
@pytest.mark.parametrize("method", KINDS)
def test_hostile_noise(method, likelihood, noise):
    check_hostile(table(100), method=method, kernel=RBF(), likelihood=likelihood, noise=np.full(100, noise))


def check_hostile(data, **options):
    X, y = data
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in ALLOWED:
            warnings.simplefilter("ignore", kind)
        found = fit_regression(X, y, **options)
        assert_predicts(found.model, X)
    assert np.isfinite([found.bound, found.baseline, found.log_density]).all()


# -- models without rows, estimators and commands ---------------------------------------------------------------------


@pytest.mark.parametrize("rows", [40, 110])
def test_models_without_rows(rows):
    X, y = table(rows)
    found = fit_regression(X, y, kernel=RBF(), store_data=False, most=10)
    assert type(found.model) is SVGP
    assert found.method == "sgpr"
    assert all(rows not in x.shape for x in agp.tree.leaves(found.model).values())
    for method in ("gpr", "nngp", "vif"):
        with pytest.raises(ValueError, match=f"models of the method '{method}' store the training rows"):
            fit_regression(X, y, store_data=False, method=method)
    with pytest.raises(TypeError, match="store_data is 1, but must be True or False"):
        fit_regression(X, y, store_data=1)


@pytest.fixture
def trees(monkeypatch):
    """The k-d trees planted so far."""
    planted, usual = [], agp.neighbours._tree_of

    def plant(X):
        planted.append(len(X))
        return usual(X)

    monkeypatch.setattr("agp.neighbours._tree_of", plant)
    return planted


@pytest.mark.parametrize("method", ["nngp", "vif", "sgpr"])
def test_estimators(method, trees, tmp_path):
    X, y = table(110)
    found = agp.GPRegressor(method=method, kernel=RBF()).fit(X, y)
    assert found.method_ == method
    planted = len(trees)
    assert bool(planted) == (method != "sgpr")
    expected = found.predict(X, return_std=True)
    assert len(trees) == planted
    agp.save(found, tmp_path / "m.safetensors")
    again = agp.load(tmp_path / "m.safetensors")
    planted = len(trees)
    for one, two in zip(again.predict(X, return_std=True), expected, strict=True):
        np.testing.assert_array_equal(one, two)
    assert len(trees) == planted
    assert again.facts()["rows"] == ("not stored in the model" if method == "sgpr" else "stored in the model")


def test_estimators_without_rows():
    X, y = table(40)
    found = agp.GPRegressor(store_data=False, kernel=RBF(), random_state=0).fit(X, y)
    assert found.method_ == "sgpr"
    assert not hasattr(found.model_, "X")
    with pytest.raises(ValueError, match="store_data is False, which is for one target"):
        agp.GPRegressor(store_data=False, method="wsvgp").fit(X, y)
    with pytest.raises(TypeError, match="store_data is 'no', but must be True or False"):
        agp.GPRegressor(store_data="no").fit(X, y)


@pytest.mark.parametrize("stored", [True, False])
def test_commands(stored, tmp_path, capsys):
    X, y = table(90)
    text = "\n".join(["a,b,y", *(f"{a},{b},{c}" for (a, b), c in zip(X, y, strict=True))])
    (tmp_path / "t.csv").write_text(text)
    out = tmp_path / "m.safetensors"
    method = ["--method", "nngp"] if stored else ["--no-data"]
    assert main(["fit", str(tmp_path / "t.csv"), "--target", "y", "--out", str(out), "--kernel", "rbf", *method]) == 0
    says = "contains" if stored else "does not contain"
    assert f"the model {says} the training rows" in "".join(capsys.readouterr())
    assert main(["describe", str(out)]) == 0
    shown = "".join(capsys.readouterr())
    assert f"{'stored' if stored else 'not stored'} in the model" in shown
    assert main(["predict", str(out), str(tmp_path / "t.csv"), "--out", str(tmp_path / "p.csv")]) == 0


def test_classifiers_without_rows_are_refused(tmp_path, capsys):
    text = "\n".join(["a,y", *(f"{i},{'no' if i % 3 else 'yes'}" for i in range(30))])
    (tmp_path / "t.csv").write_text(text)
    out = tmp_path / "m.safetensors"
    assert main(["fit", str(tmp_path / "t.csv"), "--target", "y", "--out", str(out), "--no-data"]) != 0
    assert "--no-data is for regression" in capsys.readouterr().err
    assert not out.exists()


def test_held_out_rows_that_cannot_be_computed_have_no_density():
    worse = _near.Densities(None, np.full(5, -np.inf), -np.inf)
    better = _near.Densities(None, np.zeros(5), 0.0)
    is_better = _near.NearCandidates.is_better
    assert is_better(None, better, worse)
    assert not is_better(None, worse, better)
    assert not is_better(None, worse, worse)
