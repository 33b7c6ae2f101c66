"""Estimators in scikit-learn's own tools: searches, ensembles, selection, curves, displays and metadata."""

import pickle

import joblib
import numpy as np
import pytest

pd = pytest.importorskip("pandas")
pytest.importorskip("sklearn")

import sklearn  # noqa: E402
from sklearn.calibration import CalibratedClassifierCV, CalibrationDisplay  # noqa: E402
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor  # noqa: E402
from sklearn.ensemble import BaggingClassifier, BaggingRegressor, StackingRegressor, VotingClassifier  # noqa: E402
from sklearn.exceptions import UnsetMetadataPassedError  # noqa: E402
from sklearn.experimental import enable_halving_search_cv, enable_iterative_imputer  # noqa: E402, F401
from sklearn.feature_selection import RFE, SelectFromModel, SequentialFeatureSelector  # noqa: E402
from sklearn.frozen import FrozenEstimator  # noqa: E402
from sklearn.impute import IterativeImputer  # noqa: E402
from sklearn.inspection import DecisionBoundaryDisplay, partial_dependence, permutation_importance  # noqa: E402
from sklearn.model_selection import (  # noqa: E402
    FixedThresholdClassifier,
    GridSearchCV,
    HalvingGridSearchCV,
    RandomizedSearchCV,
    TunedThresholdClassifierCV,
    cross_val_predict,
    cross_val_score,
    cross_validate,
    learning_curve,
    validation_curve,
)
from sklearn.multioutput import ClassifierChain, MultiOutputRegressor, RegressorChain  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import OneHotEncoder, StandardScaler  # noqa: E402

from agp.estimators import GPClassifier, GPRegressor  # noqa: E402
from agp.inspection import kernel_relevance  # noqa: E402

RNG = np.random.default_rng(0)
ROWS = 60
X = RNG.uniform(-2.0, 2.0, (ROWS, 3))
Y = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * RNG.standard_normal(ROWS)
LABELS = np.where(X[:, 0] + 0.3 * RNG.standard_normal(ROWS) > 0.0, "u", "v")
TABLE = pd.DataFrame(X, columns=["a", "b", "c"]).assign(kind=RNG.choice(["x", "y", "z"], ROWS))
WEIGHTS, NOISE = RNG.uniform(0.5, 2.0, ROWS), np.full(ROWS, 0.01)

pytestmark = pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")


def regressor(**settings):
    return GPRegressor(**{"kernel": "rbf", "hyperparameters": "mode", "max_steps": 10} | settings)


def classifier(**settings):
    return GPClassifier(**{"kernel": "rbf", "max_steps": 5} | settings)


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


# -- searches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "search",
    [
        lambda model, grid: GridSearchCV(model, grid, cv=2),
        lambda model, grid: HalvingGridSearchCV(model, grid, cv=2, random_state=0),
        lambda model, grid: HalvingGridSearchCV(
            model, grid, cv=2, resource="max_steps", min_resources=4, max_resources=12, random_state=0
        ),
        lambda model, grid: RandomizedSearchCV(model, grid, n_iter=2, cv=2, random_state=0),
    ],
)
def test_searches_find_the_kernel(search):
    found = search(regressor(), {"kernel": ["constant", "rbf"]}).fit(TABLE, Y)
    assert found.best_params_["kernel"] == "rbf"
    assert found.predict(TABLE).shape == (ROWS,)


@pytest.mark.long
def test_processes_share_the_work():
    assert cross_val_score(regressor(), TABLE, Y, cv=2, n_jobs=2).min() > 0.8
    search = GridSearchCV(classifier(), {"kernel": ["rbf", "linear"]}, cv=2, n_jobs=2).fit(TABLE, LABELS)
    assert search.best_score_ > 0.8


def test_predictions_of_left_out_rows():
    assert cross_val_predict(regressor(), TABLE, Y, cv=2).shape == (ROWS,)
    logs = cross_val_predict(classifier(), TABLE, LABELS, cv=2, method="predict_log_proba")
    np.testing.assert_allclose(np.exp(logs).sum(axis=1), 1.0)
    scores = cross_validate(classifier(), TABLE, LABELS, cv=2, scoring=["neg_log_loss", "roc_auc", "accuracy"])
    assert scores["test_roc_auc"].min() > 0.8


# -- ensembles, chains and steps --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "build",
    [
        lambda: make_pipeline(
            ColumnTransformer(
                [("n", StandardScaler(), ["a", "b"]), ("k", OneHotEncoder(), ["kind"])], sparse_threshold=1.0
            ),
            regressor(),
        ),
        lambda: TransformedTargetRegressor(regressor(), func=np.exp, inverse_func=np.log),
        lambda: StackingRegressor([("a", regressor()), ("b", regressor(kernel="linear"))], regressor(), cv=2),
    ],
)
def test_regressors_within_others(build):
    assert build().fit(TABLE, Y).score(TABLE, Y) > 0.8


def test_ensembles_of_arrays():
    bag = BaggingRegressor(regressor(), n_estimators=2, max_features=2, oob_score=False, random_state=0)
    assert bag.fit(X, Y).score(X, Y) > 0.3
    logs = BaggingClassifier(classifier(), n_estimators=2, random_state=0).fit(X, LABELS).predict_log_proba(X)
    assert logs.shape == (ROWS, 2)
    vote = VotingClassifier([("a", classifier()), ("b", classifier(kernel="linear"))], voting="soft")
    assert vote.fit(TABLE, LABELS).score(TABLE, LABELS) > 0.8
    both = np.stack([Y, -Y], axis=1)
    assert MultiOutputRegressor(regressor()).fit(TABLE, both).predict(TABLE).shape == (ROWS, 2)
    assert RegressorChain(regressor()).fit(X, both).predict(X).shape == (ROWS, 2)
    chain = ClassifierChain(classifier()).fit(X, (X[:, :2] > 0.0).astype(int))
    assert chain.predict_log_proba(X).shape == (ROWS, 2)


def test_imputation_by_a_regressor_with_its_error_bars():
    holed = np.where(RNG.uniform(size=X.shape) < 0.1, np.nan, X)
    imputer = IterativeImputer(regressor(), max_iter=1, sample_posterior=True, random_state=0)
    assert np.isfinite(imputer.fit_transform(holed)).all()


# -- thresholds, calibration, copies ----------------------------------------------------------------------------------


def test_thresholds_and_calibration():
    assert 0.0 <= TunedThresholdClassifierCV(classifier(), cv=2).fit(TABLE, LABELS).best_threshold_ <= 1.0
    assert FixedThresholdClassifier(classifier(), threshold=0.3).fit(TABLE, LABELS).predict(TABLE).shape == (ROWS,)
    fitted = FrozenEstimator(classifier().fit(TABLE, LABELS))
    assert CalibratedClassifierCV(fitted, method="temperature").fit(TABLE, LABELS).score(TABLE, LABELS) > 0.8


def test_copies_of_fitted_estimators(tmp_path):
    model = regressor().fit(TABLE, Y)
    joblib.dump(model, tmp_path / "model.joblib")
    for copy in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model.joblib")):
        np.testing.assert_array_equal(copy.predict(TABLE), model.predict(TABLE))
    mapped = joblib.load(tmp_path / "model.joblib", mmap_mode="r")
    np.testing.assert_allclose(mapped.predict(TABLE), model.predict(TABLE))


# -- selection and inspection -----------------------------------------------------------------------------------------


def test_columns_are_selected():
    chosen = SequentialFeatureSelector(regressor(), n_features_to_select=2, cv=2).fit(X, Y)
    assert chosen.get_support().tolist() == [True, True, False]
    relevance = {"importance_getter": lambda model: kernel_relevance(model).mean}
    assert RFE(regressor(), n_features_to_select=2, **relevance).fit(X, Y).support_.tolist() == [True, True, False]
    selected = SelectFromModel(regressor(), max_features=1, threshold=-np.inf, **relevance).fit(X, Y)
    assert selected.get_support().sum() == 1

    def shuffled(model):
        return permutation_importance(
            model, X[:, : model.n_features_in_], Y, n_repeats=1, random_state=0
        ).importances_mean

    assert RFE(regressor(), n_features_to_select=2, importance_getter=shuffled).fit(X, Y).support_[:2].all()


def test_curves_and_dependence():
    assert learning_curve(regressor(), TABLE, Y, cv=2, train_sizes=[0.5, 1.0])[1].shape == (2, 2)
    parts = {"method": "wsvgp", "num_inducing": 8}
    grown = learning_curve(GPRegressor(**parts), X, Y, cv=2, train_sizes=[0.5, 1.0], exploit_incremental_learning=True)
    assert grown[1].shape == (2, 2)
    scores = validation_curve(regressor(), TABLE, Y, param_name="kernel", param_range=["constant", "rbf"], cv=2)[1]
    assert (scores[1] > scores[0]).all()
    found = partial_dependence(
        regressor().fit(TABLE, Y), TABLE, ["a", "kind"], categorical_features=["kind"], grid_resolution=4
    )
    assert found["average"].shape == (1, 4, 3)
    assert permutation_importance(regressor().fit(TABLE, Y), TABLE, Y, n_repeats=2).importances_mean[2] < 0.05


def test_displays_of_fitted_classifiers():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    model = classifier().fit(X[:, :2], LABELS)
    DecisionBoundaryDisplay.from_estimator(model, X[:, :2], grid_resolution=5, response_method="predict_proba")
    CalibrationDisplay.from_estimator(model, X[:, :2], LABELS, n_bins=3)
    matplotlib.pyplot.close("all")


# -- metadata ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("routing")
def test_what_is_known_of_rows_is_routed():
    model = regressor().set_fit_request(sample_weight=True, noise=True)
    model.set_score_request(sample_weight=True, noise=False)
    known = {"sample_weight": WEIGHTS, "noise": NOISE}
    found = cross_validate(model, X, Y, cv=2, params=known, return_estimator=True)
    half = slice(ROWS // 2, None)  # the first fold trains on the second half
    alone = regressor().fit(X[half], Y[half], sample_weight=WEIGHTS[half], noise=NOISE[half])
    score = alone.score(X[: ROWS // 2], Y[: ROWS // 2], sample_weight=WEIGHTS[: ROWS // 2])
    assert found["test_score"][0] == pytest.approx(score, abs=1e-9)
    assert GridSearchCV(model, {"kernel": ["rbf", "constant"]}, cv=2).fit(X, Y, **known).best_params_["kernel"] == "rbf"
    steps = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), model)
    assert cross_val_score(steps, X, Y, cv=2, params=known).min() > 0.8
    with pytest.raises(UnsetMetadataPassedError, match=r"GPRegressor\.fit"):
        cross_val_score(regressor(), X, Y, cv=2, params={"noise": NOISE}, error_score="raise")
    labels = classifier().set_fit_request(sample_weight=True).set_score_request(sample_weight=False)
    assert cross_val_score(labels, X, LABELS, cv=2, params={"sample_weight": WEIGHTS}).min() > 0.7


@pytest.mark.usefixtures("routing")
def test_exposures_are_routed_to_scores():
    hours = np.where(RNG.uniform(size=ROWS) < 0.5, 1.0, 20.0)
    counts = RNG.poisson(hours * np.exp(0.5 * Y))
    model = GPRegressor(kernel="rbf", likelihood="poisson", max_steps=30).set_fit_request(exposure=True)
    known = {"params": {"exposure": hours}, "cv": 2}
    with_hours = cross_val_score(model.set_score_request(exposure=True), X, counts, **known)
    assert with_hours.min() > 0.6
    assert cross_val_score(model.set_score_request(exposure=False), X, counts, **known).max() < with_hours.min()
