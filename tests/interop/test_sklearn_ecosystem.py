"""Estimators as they are in MAPIE, scikit-learn's calibration, SHAP and Optuna."""

import warnings

import numpy as np
import pytest

import agp
from agp.errors import ConvergenceWarning
from agp.metrics import interval_coverage

# MAPIE asks whether an estimator is fitted by a row of zeros without names
pytestmark = pytest.mark.filterwarnings("ignore:X does not have valid feature names:UserWarning")

pd = pytest.importorskip("pandas")
pytest.importorskip("sklearn")

from sklearn.calibration import CalibratedClassifierCV, calibration_curve  # noqa: E402
from sklearn.frozen import FrozenEstimator  # noqa: E402
from sklearn.model_selection import cross_val_score  # noqa: E402

from agp.estimators import GPClassifier, GPRegressor  # noqa: E402


@pytest.fixture(autouse=True)
def _short_trainings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def table(rows, seed):
    """A data frame with a column of words, and targets whose noise grows with |x|."""
    rng = np.random.default_rng(seed)
    x, kind = rng.uniform(-3.0, 3.0, rows), rng.choice(["round", "square"], rows)
    noise = 0.1 * (1.0 + np.abs(x)) * rng.standard_normal(rows)
    frame = pd.DataFrame({"x": x, "kind": kind})
    return frame, pd.Series(np.sin(2.0 * x) + (kind == "round") + noise, name="y")


X, Y = table(150, 0)
HELD, Y_HELD = table(200, 1)
NEW, Y_NEW = table(1000, 2)
LABELS, LABELS_HELD, LABELS_NEW = (
    np.where(y > 0.8, "high", np.where(y > 0.0, "mid", "low")) for y in (Y, Y_HELD, Y_NEW)
)


def regressor():
    return GPRegressor(kernel="rbf", max_steps=50, random_state=0)


def classifier():
    return GPClassifier(max_steps=60, num_inducing=15, random_state=0)


def numbers(frame):
    """The words as 0 and 1: MAPIE's row of zeros and SHAP's maskers are numbers."""
    return frame.assign(kind=(frame["kind"] == "round").astype(float))


def coverage_of(intervals):
    return interval_coverage(intervals[:, 0, 0], intervals[:, 1, 0], Y_NEW.to_numpy())


# -- MAPIE ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_split_conformal_intervals_hold_their_level(level):
    regression = pytest.importorskip("mapie.regression")
    fitted = regressor().fit(numbers(X), Y)
    conformal = regression.SplitConformalRegressor(fitted, confidence_level=level, prefit=True)
    mean, intervals = conformal.conformalize(numbers(HELD), Y_HELD).predict_interval(numbers(NEW))
    np.testing.assert_array_equal(mean, fitted.predict(numbers(NEW)))
    # of 200 held-out rows the level itself has a deviation of sqrt(level (1 - level) / 200), the share one of 1,000
    assert abs(coverage_of(intervals) - level) < 3.5 * (level * (1.0 - level) * (1 / 200 + 1 / 1000)) ** 0.5


def test_cross_conformal_regression_clones_and_fits():
    regression = pytest.importorskip("mapie.regression")
    conformal = regression.CrossConformalRegressor(regressor(), confidence_level=0.8, cv=3, random_state=0)
    _, intervals = conformal.fit_conformalize(X, Y).predict_interval(NEW)
    assert 0.7 < coverage_of(intervals) < 0.95


def test_conformal_sets_of_classes_hold_the_label():
    classification = pytest.importorskip("mapie.classification")
    fitted = classifier().fit(numbers(X), LABELS)
    conformal = classification.SplitConformalClassifier(fitted, confidence_level=0.8, prefit=True)
    _, sets = conformal.conformalize(numbers(HELD), LABELS_HELD).predict_set(numbers(NEW))
    held = sets[np.arange(len(NEW)), np.searchsorted(fitted.classes_, LABELS_NEW), 0]
    assert abs(held.mean() - 0.8) < 0.1
    assert sets[:, :, 0].sum(axis=1).mean() < 2.5


# -- scikit-learn's calibration ---------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("method", ["sigmoid", "isotonic"])
def test_a_fitted_classifier_is_calibrated(method):
    high = LABELS == "high"
    calibrated = CalibratedClassifierCV(FrozenEstimator(classifier().fit(X, high)), method=method)
    probability = calibrated.fit(HELD, LABELS_HELD == "high").predict_proba(NEW)[:, 1]
    observed, predicted = calibration_curve(LABELS_NEW == "high", probability, n_bins=4, strategy="quantile")
    assert np.abs(observed - predicted).max() < 0.15
    assert np.mean((probability - (LABELS_NEW == "high")) ** 2) < 0.15


@pytest.mark.long
def test_calibration_with_folds_fits_copies_of_several_classes():
    calibrated = CalibratedClassifierCV(classifier(), cv=2).fit(X, LABELS)
    np.testing.assert_allclose(calibrated.predict_proba(NEW).sum(axis=1), 1.0)
    assert calibrated.score(NEW, LABELS_NEW) > 0.7


# -- SHAP -------------------------------------------------------------------------------------------------------------


def test_shap_values_sum_to_the_prediction_less_the_base_value():
    shap = pytest.importorskip("shap")
    rows = numbers(NEW)[:10]
    fitted = regressor().fit(numbers(X), Y)
    found = shap.KernelExplainer(fitted.predict, numbers(X)[:40])(rows)
    np.testing.assert_allclose(found.base_values + found.values.sum(axis=1), fitted.predict(rows), atol=1e-9)
    np.testing.assert_allclose(found.base_values, fitted.predict(numbers(X)[:40]).mean(), atol=1e-9)
    # kind adds 1 for round: the mean over the background is taken off
    effect = found.values[:, 1]
    gap = effect[rows["kind"] == 1.0].mean() - effect[rows["kind"] == 0.0].mean()
    assert gap == pytest.approx(1.0, abs=0.15)
    assert list(found.feature_names) == ["x", "kind"]


def test_shap_explains_probabilities():
    shap = pytest.importorskip("shap")
    fitted, rows = classifier().fit(numbers(X), LABELS), numbers(NEW)[:4]
    found = shap.KernelExplainer(fitted.predict_proba, numbers(X)[:20])(rows)
    np.testing.assert_allclose(found.base_values + found.values.sum(axis=1), fitted.predict_proba(rows), atol=1e-9)


# -- Optuna -----------------------------------------------------------------------------------------------------------


def study_of(optuna, **settings):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0), **settings)


def test_optuna_chooses_the_kernel():
    optuna = pytest.importorskip("optuna")

    def objective(trial):
        kernel = trial.suggest_categorical("kernel", ["linear", "rbf"])
        return cross_val_score(regressor().set_params(kernel=kernel), X, Y, cv=2).mean()

    study = study_of(optuna)
    study.enqueue_trial({"kernel": "linear"})
    study.enqueue_trial({"kernel": "rbf"})
    study.optimize(objective, n_trials=2)
    assert study.best_params == {"kernel": "rbf"}
    assert study.best_value > study.trials[0].value + 0.2


def test_optuna_prunes_a_training_by_a_callback():
    optuna = pytest.importorskip("optuna")
    x, y = X[["x"]].to_numpy(), Y.to_numpy()[:, None]

    def objective(trial):
        def report(seen):
            trial.report(float(seen.info["bound"]), seen.step)
            if trial.should_prune():
                raise optuna.TrialPruned

        lengthscale = trial.suggest_float("lengthscale", 0.01, 100.0, log=True)
        model = agp.SVGP.from_data(x, y, kernel=agp.RBF(1.0, (lengthscale,)), num_inducing=10)
        return agp.train(model, x, y, steps=20, callbacks=[report]).trace["bound"][-1]

    study = study_of(optuna, pruner=optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=2))
    study.enqueue_trial({"lengthscale": 0.8})
    study.enqueue_trial({"lengthscale": 50.0})
    study.optimize(objective, n_trials=2)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED"]
    assert len(study.trials[1].intermediate_values) < 20
