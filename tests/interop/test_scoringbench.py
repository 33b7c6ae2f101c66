"""The wrapper for ScoringBench: quantiles are those of the estimator, and its input is repaired."""

import doctest
import re
import sys
import types

import numpy as np
import pandas as pd
import pytest

import agp
import agp.interop.scoringbench
from agp.estimators import GPRegressor

AGPWrapper = agp.interop.scoringbench.AGPWrapper

N = 40
RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, (N, 2))
Y = np.sin(2.0 * X[:, 0]) + 0.1 * RNG.normal(size=N)


@pytest.fixture(scope="module")
def fitted():
    return AGPWrapper(kernel="rbf", num_quantiles=9).fit(X, Y)


@pytest.fixture
def calls(monkeypatch):
    """A stand-in for ScoringBench that records the arguments of `quantiles_to_distribution`."""
    recorded = []
    names = ("scoringbench", "scoringbench.univariate", "scoringbench.univariate.wrappers")
    for name in names:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    module = types.ModuleType(f"{names[-1]}.quantile_based")

    def quantiles_to_distribution(q, alphas, mean=None, y_range=None, *, train_range):
        recorded.append({"q": q, "alphas": alphas, "mean": mean, "y_range": y_range, "train_range": train_range})
        return "a distribution"

    module.quantiles_to_distribution = quantiles_to_distribution
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return recorded


def test_the_distribution_has_the_quantiles_and_means_of_the_estimator(fitted, calls):
    assert fitted.predict_distribution(X[:5]) == "a distribution"
    (call,) = calls
    reference = GPRegressor(kernel="rbf", missing="impute", random_state=0).fit(X, Y)
    assert call["alphas"] == pytest.approx([1e-5, 1e-4, 1e-3, *np.arange(1, 10) / 10, 0.999, 0.9999, 0.99999])
    np.testing.assert_allclose(call["q"], reference.predict_quantiles(X[:5], call["alphas"].tolist()), rtol=1e-6)
    np.testing.assert_allclose(call["mean"], reference.predict(X[:5]), rtol=1e-6)
    assert call["y_range"] == call["train_range"] == fitted._y_train_range == (Y.min(), Y.max())


def test_without_scoringbench_the_error_says_where_it_is(fitted, monkeypatch):
    monkeypatch.setitem(sys.modules, "scoringbench", None)
    with pytest.raises(ImportError, match=r"needs scoringbench, which is not installed; clone https://github\.com"):
        fitted.predict_distribution(X[:5])


def test_a_class_may_also_inherit_from_the_base_class_of_the_benchmark():
    class ProbabilisticWrapper:
        _y_train_range = None

        def predict(self, X):
            raise NotImplementedError

    class Registered(AGPWrapper, ProbabilisticWrapper):
        pass

    found = Registered(kernel="rbf").fit(X, Y)
    assert found.predict(X).shape == (N,)
    assert found._y_train_range == (Y.min(), Y.max())


@pytest.mark.slow
def test_tables_with_text_gaps_infinities_and_a_constant_column():
    table = pd.DataFrame({"size": X[:, 0], "kind": RNG.choice(["a", "b"], N), "same": "x", "all": np.inf})
    table.loc[3, "size"], table.loc[4, "kind"] = np.inf, None
    targets = pd.Series(Y + (table["kind"] == "b").to_numpy(), index=np.arange(N)[::-1])
    targets.iloc[7] = np.nan
    found = AGPWrapper(kernel="rbf", num_quantiles=3).fit(table, targets)
    assert found.model_.n_rows_seen_ == N - 1
    assert [*found.model_.feature_names_in_] == ["size", "kind"]
    new = table.head(6).assign(same="never seen", kind="never seen")
    quantiles = found.predict_quantiles(new)
    assert quantiles.shape == (6, 9)
    assert np.all(np.diff(quantiles, axis=1) > 0.0)
    assert table["size"][3] == np.inf  # the caller's table is unchanged


def test_arrays_of_objects_are_tables():
    mixed = np.stack([X[:, 0].astype(object), RNG.choice(["a", "b"], N)], axis=1)
    found = AGPWrapper(kernel="rbf").fit(mixed, Y)
    assert found.model_.feature_names_in_.tolist() == ["0", "1"]
    np.testing.assert_allclose(found.predict(mixed[:2]), found.predict(mixed)[:2], rtol=1e-9)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"^num_quantiles is 0, but must be a whole number of at least 1\.$"):
        AGPWrapper(num_quantiles=0)
    with pytest.raises(ValueError, match=r"^y has 40 entries, of which none is finite; give at least one"):
        AGPWrapper().fit(X, np.full(N, np.nan))


def test_the_key_names_the_version():
    key = agp.interop.scoringbench.REGISTRY_KEY
    assert key == f"agp_gpregressor_v{agp.__version__.replace('.', '_')}"
    assert re.fullmatch(r"[a-z0-9_]+", key)


@pytest.mark.slow
def test_the_example_of_the_class_runs():
    found = doctest.DocTestFinder().find(AGPWrapper, "AGPWrapper", globs={})
    results = [doctest.DocTestRunner().run(example) for example in found]
    assert sum(result.attempted for result in results) == 6
    assert not any(result.failed for result in results)
