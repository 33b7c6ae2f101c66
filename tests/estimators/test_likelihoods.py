"""Noise that depends on the inputs, classes in an order, and targets that were not observed."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, cross_val_score

from agp.estimators import GPClassifier, GPRegressor
from agp.methods import METHODS

pytestmark = [  # a few steps are enough
    pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::agp.errors.RepairWarning"),
]

RNG = np.random.default_rng(3)
X = RNG.uniform(-2.0, 2.0, (120, 1))
WAVE = np.sin(2.0 * X)
Y = np.concatenate([WAVE, 100.0 - 50.0 * WAVE], axis=1) + np.asarray([0.1, 5.0]) * RNG.normal(size=(120, 2))
HOLED = np.where(RNG.uniform(size=Y.shape) < 0.3, np.nan, Y)
SIZE = np.exp(0.8 * X - 1.5)
NOISY = (WAVE + SIZE * RNG.normal(size=X.shape))[:, 0]
LEVEL = np.digitize(1.5 * X[:, 0] + 0.3 * RNG.normal(size=120), [-1.0, 1.0])
WORDS = np.asarray(["low", "mid", "high"])[LEVEL]
IN_ORDER = pd.Series(WORDS, dtype=pd.CategoricalDtype(["low", "mid", "high"], ordered=True))
QUICK = {"num_inducing": 12, "max_steps": 4, "random_state": 0}
SOME = {"num_inducing": 20, "max_steps": 200, "random_state": 0}
ANY_METHODS = [name for name, method in METHODS.items() if not method.gaussian_only]


# -- targets that were not observed -----------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("outputs", ["shared", "separate", "coregionalised", "intrinsic"])
def test_missing_targets_count_for_nothing(outputs):
    found = clone(GPRegressor(outputs=outputs, missing_targets="ignore", **SOME)).fit(X, HOLED)
    assert found.method_ == "wsvgp"
    assert found.n_rows_seen_ == (~np.isnan(HOLED)).any(axis=1).sum() < len(X)
    mean, deviation = found.predict(X, return_std=True)
    assert np.all(np.sqrt(np.mean((mean - Y) ** 2, axis=0)) < [0.15, 7.5])
    assert np.all(deviation.mean(axis=0) / [0.1, 5.0] < 1.6)
    by_hand = [1.0 - np.nanmean((HOLED - mean) ** 2, axis=0)[k] / np.nanvar(HOLED[:, k]) for k in range(2)]
    assert found.score(X, HOLED) == pytest.approx(np.mean(by_hand), rel=1e-9)
    assert found.score(X, Y) > 0.95


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("method", ["auto", "gpr", "sgpr", "rsvgp", "cagp-opt"])
def test_one_target_that_is_missing_is_a_row_left_out(method):
    y, rows = HOLED[:, 0], ~np.isnan(HOLED[:, 0])
    found = GPRegressor(method=method, missing_targets="ignore", **QUICK).fit(X, y)
    expected = GPRegressor(method=method, **QUICK).fit(X[rows], y[rows])
    np.testing.assert_array_equal(found.predict(X), expected.predict(X))
    assert found.score(X, y) == pytest.approx(expected.score(X[rows], y[rows]), rel=1e-12)
    weight = RNG.uniform(size=len(y))
    assert found.score(X, y, weight) == pytest.approx(expected.score(X[rows], y[rows], weight[rows]), rel=1e-12)


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("method", sorted({*ANY_METHODS} - {"tnngp"}))
def test_every_variational_method_takes_rows_with_some_targets(method):
    found = GPRegressor(method=method, missing_targets="ignore", **QUICK).fit(X, HOLED / [1.0, 50.0])
    assert np.isfinite(found.predict(X, return_std=True)).all()


def test_outputs_that_share_precisions_refuse_rows_with_some_targets():
    with pytest.raises(ValueError, match="missing"):
        GPRegressor(method="tnngp", missing_targets="ignore", **QUICK).fit(X, HOLED / [1.0, 50.0])


@pytest.mark.slow
def test_exact_methods_take_all_targets_of_a_row_or_none():
    y = np.where(np.isnan(HOLED).any(axis=1, keepdims=True), np.nan, HOLED) / [1.0, 50.0]
    found = GPRegressor(method="gpr", missing_targets="ignore", **QUICK).fit(X, y)
    assert found.n_rows_seen_ == (~np.isnan(y[:, 0])).sum()
    with pytest.raises(
        ValueError, match=r"y has rows with some targets missing, but the method gpr needs .*; use auto, or msv"
    ):
        GPRegressor(method="gpr", missing_targets="ignore").fit(X, HOLED / [1.0, 50.0])


@pytest.mark.slow
def test_missing_targets_are_refused_unless_told():
    with pytest.raises(
        ValueError,
        match=r"y has NaN in row \d+, column \d; remove rows with missing targets, or set missing_targets='ignore'",
    ):
        GPRegressor().fit(X, HOLED)
    with pytest.raises(ValueError, match="y has no target: every entry is NaN"):
        GPRegressor(missing_targets="ignore").fit(X, np.full(len(X), np.nan))
    with pytest.raises(ValueError, match=r"all targets in y\[:, 1\] are NaN"):
        GPRegressor(missing_targets="ignore").fit(X, np.where([True, False], Y, np.nan))
    with pytest.raises(ValueError, match="missing_targets is 'drop', but must be 'refuse' or 'ignore'"):
        GPRegressor(missing_targets="drop").fit(X, Y)
    with pytest.raises(ValueError, match="y has no target"):
        GPRegressor(missing_targets="ignore", **QUICK).fit(X, Y).score(X, np.full(Y.shape, np.nan))
    infinite = np.where(np.isnan(HOLED), np.inf, HOLED)
    with pytest.raises(ValueError, match="y has inf in row"):
        GPRegressor(missing_targets="ignore").fit(X, infinite)


def test_targets_that_are_all_the_same_but_for_gaps_are_said():
    with pytest.warns(UserWarning, match="all targets are the same"):
        GPRegressor(missing_targets="ignore").fit(X, np.where(np.isnan(HOLED), np.nan, [1.0, 7.0]))


@pytest.mark.long
def test_searches_and_tables_take_gaps():
    frame = pd.DataFrame(HOLED, columns=["a", "b"]).astype({"a": object})
    frame.loc[frame["a"].isna(), "a"] = None
    search = GridSearchCV(GPRegressor(missing_targets="ignore", **QUICK), {"kernel": ["rbf", "linear"]}, cv=2)
    assert search.fit(X, HOLED).best_params_ == {"kernel": "rbf"}
    assert np.isfinite(cross_val_score(GPRegressor(missing_targets="ignore", **QUICK), X, HOLED, cv=3)).all()
    by_table = GPRegressor(missing_targets="ignore", kernel="rbf", **QUICK).fit(X, frame.astype(float))
    np.testing.assert_array_equal(by_table.predict(X), search.best_estimator_.predict(X))


@pytest.mark.slow
def test_scores_leave_out_targets_without_two_observations():
    model = GPRegressor(missing_targets="ignore", **QUICK).fit(X, HOLED / [1.0, 50.0])
    few, alone = Y / [1.0, 50.0], [0.5 * k for k in range(1, 121)]
    few[:, 1] = np.nan
    both = r2_score(few[:, 0], model.predict(X)[:, 0], sample_weight=alone)
    assert model.score(X, few, sample_weight=alone) == both
    few[3, 1] = 1.0
    assert model.score(X, few, sample_weight=alone) == both
    few[:, 0] = np.nan
    with pytest.warns(UndefinedMetricWarning, match="less than two samples"):
        assert np.isnan(model.score(X, few))
    with pytest.raises(ValueError, match="every entry is NaN"):
        model.score(X, np.full((120, 2), np.nan))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("y", "weight", "message"),
    [
        (HOLED[:50], None, "X has 120 rows, but y has 50"),
        (HOLED, np.ones(5), "X has 120 rows, but sample_weight has 5"),
        (NOISY, None, r"y has shape \(120, 1\), but must have 2 columns, as in training"),
    ],
)
def test_scores_of_what_does_not_fit_are_refused(y, weight, message):
    model = GPRegressor(missing_targets="ignore", **QUICK).fit(X, HOLED / [1.0, 50.0])
    with pytest.raises(ValueError, match=message):
        model.score(X, y, sample_weight=weight)


@pytest.mark.slow
def test_parts_may_have_gaps_in_other_places():
    found = GPRegressor(missing_targets="ignore", num_inducing=12, random_state=0).partial_fit(X[:60], Y[:60])
    found.partial_fit(X[60:], HOLED[60:])
    assert found.predict(X).shape == (120, 2)


@pytest.mark.long
def test_gaps_of_another_library_stay_there():
    torch = pytest.importorskip("torch")
    found = GPRegressor(missing_targets="ignore", **QUICK)
    mean = found.fit(torch.asarray(X), torch.asarray(HOLED)).predict(torch.asarray(X))
    assert isinstance(mean, torch.Tensor)
    np.testing.assert_allclose(mean, clone(found).fit(X, HOLED).predict(X), rtol=1e-6)
    assert found.score(torch.asarray(X), torch.asarray(HOLED)) == pytest.approx(found.score(X, HOLED), rel=1e-12)
    with pytest.raises(ValueError, match="set missing_targets='ignore'"):
        GPRegressor().fit(torch.asarray(X), torch.asarray(HOLED))


# -- noise that depends on the inputs ---------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("outputs", ["shared", "separate"])
def test_error_bars_follow_the_noise(outputs):
    found = clone(GPRegressor(likelihood="latent-noise", outputs=outputs, **SOME | {"max_steps": 400})).fit(X, NOISY)
    assert found.method_ == "wsvgp"
    at = np.asarray([[-1.5], [0.0], [1.5]])
    mean, deviation = found.predict(at, return_std=True)
    assert mean.shape == deviation.shape == (3,)
    np.testing.assert_allclose(deviation / np.exp(0.8 * at[:, 0] - 1.5), 1.0, atol=0.45)
    assert deviation[2] > 4.0 * deviation[0]
    covariance = found.predict(at, return_cov=True)[1]
    np.testing.assert_allclose(np.sqrt(np.diagonal(covariance)), deviation, rtol=1e-8)
    assert found.sample_y(at, 5).shape == (3, 5)
    spread = np.std(found.sample_y(at, 2000), axis=1)
    function = np.sqrt(found.model_.predict(at).variance[:, 0])
    np.testing.assert_allclose(spread, function, rtol=0.1)


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("method", ANY_METHODS)
def test_every_variational_method_takes_noise_that_depends_on_the_inputs(method):
    found = GPRegressor(method=method, likelihood="latent-noise", **QUICK).fit(X, NOISY)
    assert np.isfinite(found.predict(X, return_std=True)).all()


@pytest.mark.slow
def test_each_target_has_its_own_noise_function():
    y = np.stack([NOISY, 7.0 + 100.0 * NOISY[::-1]], axis=1)
    found = GPRegressor(likelihood="latent-noise", outputs="separate", **QUICK).fit(X, y)
    assert found.model_.outputs == 4
    assert found.predict(X, return_std=True)[1].shape == (120, 2)
    assert found.predict(X[:3], return_cov=True)[1].shape == (3, 3, 2)
    assert found.sample_y(X[:3], 5).shape == (3, 2, 5)


@pytest.mark.parametrize(
    ("options", "y", "message"),
    [
        (
            {"likelihood": "laplace"},
            NOISY,
            "likelihood is 'laplace', but must be 'beta', 'exponential', 'gamma'",
        ),
        (
            {"method": "gpr"},
            NOISY,
            "likelihood is 'latent-noise', but the method gpr does not support it; use auto, or ms",
        ),
        (
            {"outputs": "coregionalised"},
            np.stack([NOISY, NOISY], axis=1),
            "outputs is 'coregionalised', but must be 'shared' or 'separate' for likelihood='latent-noise'",
        ),
        ({"outputs": "intrinsic"}, NOISY, "outputs is 'intrinsic', but must be 'shared' or"),
        (
            {"missing_targets": "ignore"},
            HOLED,
            "y has rows with some targets missing, but likelihood='latent-noise'",
        ),
    ],
)
def test_what_noise_functions_do_not_take_is_refused(options, y, message):
    with pytest.raises(ValueError, match=message):
        GPRegressor(**{"likelihood": "latent-noise"} | options).fit(X, y)


# -- classes in an order ----------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("labels", [LEVEL, 10.0 * LEVEL - 7.0, LEVEL > 0, IN_ORDER, pd.Series(LEVEL)], ids=range(5))
def test_classes_in_an_order_share_one_function(labels):
    found = clone(GPClassifier(likelihood="ordinal", **SOME)).fit(X, labels)
    values, count = np.asarray(labels), len(np.unique(np.asarray(labels)))
    assert found.model_.outputs == 1
    assert (found.classes_ == np.unique(values)).all()  # sorted, as scikit-learn's scores expect
    probabilities = found.predict_proba(X)
    assert probabilities.shape == (120, count)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-12)
    assert found.score(X, values) > 0.8
    levels = found.classes_[found.order_]
    assert found.predict([[-2.0]])[0] == levels[0]
    assert found.predict([[2.0]])[0] == levels[-1]


@pytest.mark.long
def test_the_order_is_that_of_the_type_not_of_the_alphabet():
    found = GPClassifier(likelihood="ordinal", **SOME).fit(X, IN_ORDER)
    by_number = GPClassifier(likelihood="ordinal", **SOME).fit(X, LEVEL)
    assert found.classes_.tolist() == ["high", "low", "mid"]
    assert found.order_.tolist() == [1, 2, 0]
    np.testing.assert_array_equal(found.predict_proba(X)[:, found.order_], by_number.predict_proba(X))


@pytest.mark.slow
def test_probabilities_are_those_of_the_likelihood():
    found = GPClassifier(likelihood="ordinal", **QUICK).fit(X, LEVEL)
    mean, variance = found.model_.predict(X, observed=True)
    probabilities = found.predict_proba(X)
    np.testing.assert_allclose(probabilities @ np.arange(3.0), mean[:, 0], rtol=1e-10)
    np.testing.assert_allclose(probabilities @ np.arange(3.0) ** 2 - mean[:, 0] ** 2, variance[:, 0], rtol=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("method", ["tvgp", "tnngp", "rsvgp", "tsvgp", "solve", "deep-wsvgp"])
def test_other_methods_take_classes_in_an_order(method):
    found = GPClassifier(method=method, likelihood="ordinal", **QUICK).fit(X, IN_ORDER)
    np.testing.assert_allclose(found.predict_proba(X).sum(axis=1), 1.0, rtol=1e-9)


@pytest.mark.slow
def test_few_rows_of_classes_in_an_order_have_no_inducing_inputs():
    assert GPClassifier(likelihood="ordinal", max_steps=2).fit(X, LEVEL).method_ == "tvgp"


def test_an_order_that_nobody_can_tell_is_refused():
    for labels in (WORDS, pd.Series(WORDS), IN_ORDER.cat.as_unordered()):
        with pytest.raises(
            ValueError, match="y holds text, such as 'high', whose order is unknown; convert it to whole numbers"
        ):
            GPClassifier(likelihood="ordinal").fit(X, labels)
    with pytest.raises(ValueError, match="likelihood is 'softmax', but must be 'auto' or 'ordinal'"):
        GPClassifier(likelihood="softmax").fit(X, LEVEL)


@pytest.mark.slow
def test_a_second_fit_forgets_the_order():
    found = GPClassifier(likelihood="ordinal", **QUICK).fit(X, LEVEL)
    assert "order_" not in vars(found.set_params(likelihood="auto").fit(X, LEVEL))
    assert found.model_.outputs == 3


@pytest.mark.slow
def test_classes_in_an_order_come_in_parts():
    found = GPClassifier(likelihood="ordinal", num_inducing=12, random_state=0)
    first = IN_ORDER[LEVEL < 2]
    found.partial_fit(X[LEVEL < 2], first, classes=pd.Series(IN_ORDER.cat.categories, dtype=IN_ORDER.dtype))
    found.partial_fit(X, WORDS)
    assert found.order_.tolist() == [1, 2, 0]
    assert found.predict_proba(X).shape == (120, 3)


@pytest.mark.long
def test_tensors_of_classes_in_an_order_come_back_as_tensors():
    torch = pytest.importorskip("torch")
    found = GPClassifier(likelihood="ordinal", **QUICK).fit(torch.asarray(X), torch.asarray(LEVEL))
    assert isinstance(found.predict_proba(torch.asarray(X)), torch.Tensor)
    np.testing.assert_allclose(
        found.predict_proba(X), GPClassifier(likelihood="ordinal", **QUICK).fit(X, LEVEL).predict_proba(X), rtol=1e-6
    )
