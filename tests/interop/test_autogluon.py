"""Models in AutoGluon: predictions are those of the estimators, whatever the problem, and limits are kept."""

import subprocess
import sys
import time
import types

import numpy as np
import pandas as pd
import pytest

import agp
from agp.estimators import GPClassifier, GPRegressor

pytest.importorskip("autogluon.tabular", reason="autogluon.tabular is not installed: not executed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # AutoGluon and its dependencies warn

from autogluon.core.utils.exceptions import TimeLimitExceeded  # noqa: E402
from autogluon.tabular import TabularPredictor  # noqa: E402

adapter = agp.interop.autogluon
AGPModel = adapter.AGPModel
LEVELS = [0.1, 0.5, 0.9]
KINDS = ("regression", "binary", "multiclass", "quantile")


def table_of(kind, rows=90):
    """Numbers, text, dates, gaps, a rare value, and a column of one value."""
    rng = np.random.default_rng(0)
    size, shape = rng.uniform(-2.0, 2.0, rows), rng.choice(["round", "square"], rows)
    y = np.sin(2.0 * size) + (shape == "round") + 0.1 * rng.standard_normal(rows)
    table = pd.DataFrame({"size": size, "shape": shape, "when": pd.date_range("2020-01-01", periods=rows)})
    table["rare"], table["same"] = np.where(np.arange(rows) < 2, "odd", "usual"), "x"
    table.loc[rng.uniform(size=rows) < 0.1, "size"] = np.nan
    table.loc[rng.uniform(size=rows) < 0.1, "shape"] = None
    names = np.asarray(["low", "middle", "high"])
    cuts = {"binary": [0.5], "multiclass": [-0.2, 0.8]}
    return table.assign(y=names[np.digitize(y, cuts[kind])] if kind in cuts else y)


def fit(folder, kind, settings=None, **options):
    levels = {"quantile_levels": LEVELS} if kind == "quantile" else {}
    predictor = TabularPredictor(label="y", problem_type=kind, path=str(folder), verbosity=0, **levels)
    models = {AGPModel: {"kernel": "rbf"} | (settings or {})}
    options = {"fit_weighted_ensemble": False, "num_cpus": 1} | options
    return predictor.fit(table_of(kind), hyperparameters=models, **options)


def inner(predictor):
    return predictor._trainer.load_model(predictor.model_names()[0])


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_those_of_the_estimator(kind, tmp_path):
    predictor, table = fit(tmp_path, kind), table_of(kind).head(20)
    (name,) = predictor.model_names()
    assert name == "AGP"
    model = inner(predictor)
    A = model.preprocess(predictor.transform_features(table, model=name))
    if kind == "regression":
        np.testing.assert_allclose(predictor.predict(table), model.model.predict(A), rtol=1e-5)
    elif kind == "quantile":
        expected = model.model.predict_quantiles(A, LEVELS)
        np.testing.assert_allclose(predictor.predict(table), expected, rtol=1e-5)
    else:
        found = predictor.predict_proba(table)
        assert [*found.columns] == sorted(set(table_of(kind)["y"]))
        np.testing.assert_allclose(found, model.model.predict_proba(A), atol=1e-6)
    assert isinstance(model.model, GPRegressor if kind in ("regression", "quantile") else GPClassifier)


@pytest.mark.parametrize("kind", ["regression", "multiclass"])
def test_bagged_models_are_stored_and_loaded_in_a_new_process(kind, tmp_path):
    ensemble = {"fold_fitting_strategy": "sequential_local", "vary_seed_across_folds": True}
    options = {"num_bag_folds": 3, "ag_args_ensemble": ensemble}
    predictor, table = fit(tmp_path / "models", kind, **options), table_of(kind)
    assert predictor.model_names() == ["AGP_BAG_L1"]
    assert len(predictor.leaderboard(table)) == 1
    table.to_pickle(tmp_path / "table.pkl")
    loads = f"""
import sys, warnings
warnings.simplefilter("ignore")
import pandas as pd
from autogluon.tabular import TabularPredictor
predictor = TabularPredictor.load({str(tmp_path / "models")!r})
predictor.predict(pd.read_pickle({str(tmp_path / "table.pkl")!r})).to_pickle({str(tmp_path / "found.pkl")!r})
"""
    subprocess.run([sys.executable, "-c", loads], check=True, capture_output=True, timeout=300)
    pd.testing.assert_series_equal(pd.read_pickle(tmp_path / "found.pkl"), predictor.predict(table))
    seeds = {inner(predictor).load_child(child).model.random_state for child in inner(predictor).models}
    assert len(seeds) == 3
    predictor.refit_full()
    assert predictor.predict(table, model="AGP_BAG_L1_FULL").notna().all()


def direct(kind="regression", **settings):
    return AGPModel(path="", name="AGP", problem_type=kind, hyperparameters={"kernel": "rbf"} | settings)


def numbers(rows=60):
    rng = np.random.default_rng(1)
    X = pd.DataFrame(rng.uniform(-2.0, 2.0, (rows, 2)), columns=["a", "b"])
    return X, pd.Series(np.sin(2.0 * X["a"]) + 0.1 * rng.standard_normal(rows))


def test_weights_are_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (X, y), weights = numbers(), pd.Series(np.linspace(0.5, 3.0, 60))
    one, two = (direct().fit(X=X, y=y, sample_weight=c * weights, num_cpus=1) for c in (1.0, 7.0))
    np.testing.assert_allclose(one.predict(X), two.predict(X), rtol=1e-5)
    plain = direct().fit(X=X, y=y, num_cpus=1)
    assert abs(one.predict(X) - plain.predict(X)).max() > 1e-4


def test_infinite_numbers_are_missing_cells(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, y = numbers()
    infinite, missing = X.copy(), X.copy()
    infinite.loc[3, "a"], missing.loc[3, "a"] = np.inf, np.nan
    one, two = (direct().fit(X=table, y=y, num_cpus=1).predict(table) for table in (infinite, missing))
    np.testing.assert_array_equal(one, two)
    assert infinite.loc[3, "a"] == np.inf


def test_a_class_that_a_fold_lacks_has_probability_zero(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, y = numbers()
    labels = pd.Series(np.where(y > 0.0, 3, 1))
    model = direct("multiclass").fit(X=X, y=labels, num_cpus=1, num_classes=4)
    found = model.predict_proba(X)
    assert found.shape == (60, 4)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-6)
    assert not found[:, [0, 2]].any()
    assert np.mean(found.argmax(axis=1) == labels) > 0.9


def test_the_time_limit_ends_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, y = numbers()
    model = direct().fit(X=X, y=y, num_cpus=1, time_limit=30.0)
    assert 20.0 < model.model.max_seconds < 24.0
    assert direct(max_seconds=5.0).fit(X=X, y=y, num_cpus=1, time_limit=30.0).model.max_seconds == 5.0
    labels = pd.Series((y > 0.0).astype(int))
    for limit, kernel in ((30.0, "rbf"), (100.0, "auto")):
        model = direct("binary", kernel="auto").fit(X=X, y=labels, num_cpus=1, time_limit=limit)
        assert model.model.kernel == kernel
    monkeypatch.setattr(AGPModel, "preprocess", lambda self, X, **kwargs: time.sleep(0.2) or X)
    with pytest.raises(TimeLimitExceeded):
        direct()._fit(X, y, time_limit=0.1)


def test_the_memory_grows_linearly_once_there_are_inducing_inputs():
    def gigabytes(rows, **options):
        X = pd.DataFrame({"a": np.zeros(rows)})
        return AGPModel._estimate_memory_usage_static(X=X, **options) / 1e9

    assert gigabytes(100) < 0.31
    assert 0.75 < gigabytes(4000) < 1.5  # 0.73 were measured
    assert gigabytes(80_000) < 20.0 * gigabytes(4000)
    assert gigabytes(80_000, problem_type="binary", num_classes=2) < 0.5 * gigabytes(80_000)
    several = gigabytes(4000, problem_type="multiclass", num_classes=3)
    assert several > 1.5 * gigabytes(4000, problem_type="binary", num_classes=2)


def test_tabarena_takes_the_model_class_and_its_configurations(monkeypatch):
    records = {name: type(name, (types.SimpleNamespace,), {}) for name in ("MethodMetadata", "ModelInfo")}
    records["MethodMetadata"].config = classmethod(lambda cls, **facts: cls(**facts))
    generator = type("ConfigGenerator", (types.SimpleNamespace,), {})
    for name, members in {
        "tabarena": {},
        "tabarena.models": records,
        "tabarena.utils": {},
        "tabarena.utils.config_utils": {"ConfigGenerator": generator},
    }.items():
        module = types.ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    info = adapter.tabarena_info()
    assert info.model_cls is info.search_space.model_cls is AGPModel
    assert info.search_space.manual_configs == [{}]
    assert info.method_metadata.suite == f"agp-{agp.__version__}"
    for kernel in info.search_space.search_space["kernel"].data:
        agp.kernels.kernel_or_auto(kernel)


def test_without_tabarena_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tabarena", None)
    with pytest.raises(ImportError, match=r"^tabarena_info needs tabarena, which is not installed: pip install tab"):
        adapter.tabarena_info()
