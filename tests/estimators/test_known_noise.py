"""Regressors of rows with known noise variances."""

import pickle

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from sklearn.base import clone
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, cross_val_score

import agp
from agp.estimators import GPClassifier, GPRegressor

pytestmark = [  # a few steps are enough
    pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::agp.errors.NoSignalWarning"),
]

N = 60
RNG = np.random.default_rng(3)
X = RNG.uniform(-2.0, 2.0, (N, 2))
F = np.sin(2.0 * X[:, 0])
NOISE = np.where(np.arange(N) % 2, 0.01, 1.0)
Y = F + np.sqrt(NOISE) * RNG.normal(size=N)
NEW, NEW_NOISE = X[:7] + 0.1, np.linspace(0.0, 2.0, 7)
SHORT = {"kernel": "rbf", "max_steps": 30, "random_state": 0}
QUICK = SHORT | {"hyperparameters": "mode"}
ALL_KNOWN = {"likelihood": agp.Gaussian(0.0)}
METHODS = ["auto", "gpr", "sgpr", "wsvgp"]
OTHERS = ["cggp", "cagp-opt", "cagp-cg", "solve", "solve-collapsed", "tsvgp", "tvgp", "tnngp", "rsvgp"]


def fitted(noise=NOISE, method="auto", **settings):
    sizes = {} if method == "auto" else {"num_inducing": 15}
    return GPRegressor(method=method, **(QUICK | sizes | settings)).fit(X, Y, noise=noise)


# -- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", ["gaussian", agp.Gaussian(0.0)], ids=["trained", "all known"])
@pytest.mark.parametrize("method", ["auto", "gpr"])
def test_predictions_are_those_of_the_textbook(method, likelihood):
    found = fitted(method=method, likelihood=likelihood)
    model = found.model_
    m, total = model.mean_function.value[0], model.likelihood.noise_variance + NOISE
    covariance = model.kernel(X)[0] + np.diag(total)
    cross = model.kernel(NEW, X)[0]
    mean, deviation = found.predict(NEW, return_std=True)
    np.testing.assert_allclose(mean, m + cross @ np.linalg.solve(covariance, Y - m), rtol=1e-8)
    explained = np.sum(cross * np.linalg.solve(covariance, cross.T).T, axis=1)
    variance = model.kernel.diag(NEW)[0] - explained + model.likelihood.noise_variance
    np.testing.assert_allclose(deviation**2, variance, rtol=1e-7)
    density = scipy.stats.multivariate_normal(np.full(N, m), covariance).logpdf(Y)
    assert found.bound_ == pytest.approx(density, rel=1e-8)


@pytest.mark.slow
@pytest.mark.sample(5)
@pytest.mark.parametrize("method", METHODS + OTHERS)
def test_rows_with_more_noise_have_less_influence(method):
    noise = np.where(np.arange(N) < 30, 9.0, 1e-4)
    y = F + np.sqrt(noise) * np.random.default_rng(1).normal(size=N)
    settings = QUICK | ({} if method == "auto" else {"num_inducing": 25})
    errors = [
        np.mean((GPRegressor(method=method, **settings).fit(X, y, noise=given).predict(X) - F) ** 2)
        for given in (noise, None)
    ]
    assert errors[0] < 0.3 * errors[1]


@pytest.mark.parametrize("method", METHODS)
def test_zero_stays_zero_where_all_noise_is_known(method):
    found = fitted(method=method, **ALL_KNOWN)
    assert found.predictor_.likelihood.noise_variance == 0.0
    A = found.model_inputs(NEW)
    _, latent = found.predictor_.predict(A)
    np.testing.assert_allclose(found.predict(NEW, return_std=True)[1] ** 2, latent[:, 0], rtol=1e-12)
    assert found.n_iter_ > 1


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_units_of_inputs_and_targets_do_not_matter(method):
    c, found = 1e4, fitted(method=method, max_steps=10)
    settings = QUICK | {"max_steps": 10} | ({} if method == "auto" else {"num_inducing": 15})
    other = GPRegressor(method=method, **settings).fit(1e-3 * X, c * Y, noise=c**2 * NOISE)
    expected = found.predict_quantiles(NEW, noise=NEW_NOISE)
    np.testing.assert_allclose(other.predict_quantiles(1e-3 * NEW, noise=c**2 * NEW_NOISE), c * expected, rtol=1e-5)
    assert other.bound_ == pytest.approx(found.bound_ - N * np.log(c), rel=1e-6)


def test_repeated_rows_with_different_noise_stay_apart():
    twice, y = np.concatenate([X, X]), np.tile(Y, 2)
    apart = GPRegressor(**QUICK).fit(twice, y, noise=np.concatenate([NOISE, 2.0 * NOISE]))
    assert apart.model_.X.shape[0] == 2 * N
    merged = GPRegressor(**QUICK).fit(twice, y, noise=np.tile(NOISE, 2))
    assert merged.model_.X.shape[0] == N
    np.testing.assert_allclose(np.sort(merged.model_.noise[:, 0]), np.sort(NOISE))
    assert apart.n_rows_seen_ == merged.n_rows_seen_ == 2 * N


def test_rows_that_are_left_out_take_their_noise_along():
    few = slice(N // 2)
    expected = GPRegressor(**QUICK).fit(X[few], Y[few], noise=NOISE[few])
    weights = np.where(np.arange(N) < N // 2, 1.0, 0.0)
    gaps = np.where(weights > 0.0, Y, np.nan)
    for found in (
        GPRegressor(**QUICK).fit(X, Y, sample_weight=weights, noise=NOISE),
        GPRegressor(missing_targets="ignore", **QUICK).fit(X, gaps, noise=NOISE),
    ):
        np.testing.assert_allclose(found.predict(NEW), expected.predict(NEW), rtol=1e-9)


def test_noise_comes_in_parts():
    found = GPRegressor(num_inducing=10, kernel="rbf", random_state=0, **ALL_KNOWN)
    for rows in (slice(20), slice(20, 40), slice(40, N)):
        found.partial_fit(X[rows], Y[rows], noise=NOISE[rows])
    assert np.isfinite(found.predict(NEW)).all()
    assert found.n_rows_seen_ == N
    with pytest.raises(ValueError, match="noise_variance is 0, but rows have no known noise; pass noise="):
        found.partial_fit(X, Y)


def test_equal_targets_with_known_noise():
    with pytest.warns(UserWarning, match="all targets are the same"):
        found = GPRegressor(**QUICK).fit(X, np.full(N, 3.0), noise=NOISE)
    mean, deviation = found.predict(NEW, return_std=True)
    np.testing.assert_allclose(mean, 3.0)
    assert np.isfinite(deviation).all()


@pytest.mark.parametrize("shape", ["one for all", "one for each"])
def test_several_targets(shape):
    both = np.stack([Y, -2.0 * F + 0.1 * RNG.normal(size=N)], axis=1)
    noise = NOISE if shape == "one for all" else np.stack([NOISE, np.full(N, 0.01)], axis=1)
    found = GPRegressor(num_inducing=15, **QUICK).fit(X, both, noise=noise)
    assert found.method_ == "wsvgp"
    known = np.stack([NEW_NOISE, NEW_NOISE], axis=1) if shape == "one for all" else np.outer(NEW_NOISE, [1.0, 3.0])
    given = NEW_NOISE if shape == "one for all" else known
    plain, noisy = (found.predict(NEW, return_std=True, noise=x)[1] for x in (None, given))
    np.testing.assert_allclose(noisy**2, plain**2 + known, rtol=1e-9)
    assert found.sample(NEW, 3, noise=given).shape == (7, 2, 3)


@pytest.mark.parametrize("kind", [list, pd.Series, "torch"])
def test_noise_is_a_column_of_any_kind(kind):
    torch = pytest.importorskip("torch")
    convert = torch.asarray if kind == "torch" else kind
    expected = fitted(max_steps=5)
    rows, y = (torch.asarray(X), torch.asarray(Y)) if kind == "torch" else (X, Y)
    found = GPRegressor(**(QUICK | {"max_steps": 5})).fit(rows, y, noise=convert(NOISE))
    at = torch.asarray(NEW) if kind == "torch" else NEW
    ends = found.predict_interval(at, noise=convert(NEW_NOISE))
    np.testing.assert_allclose(np.asarray(ends), expected.predict_interval(NEW, noise=NEW_NOISE), rtol=1e-6)


# -- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_answers_are_of_observations_with_that_noise(method):
    found = fitted(method=method, max_steps=10)
    mean, plain = found.predict(NEW, return_std=True)
    same, deviation = found.predict(NEW, return_std=True, noise=NEW_NOISE)
    np.testing.assert_array_equal(same, mean)
    np.testing.assert_allclose(deviation**2, plain**2 + NEW_NOISE, rtol=1e-9)
    truth = scipy.stats.norm(mean, deviation)
    levels = [0.05, 0.3, 0.95]
    quantiles = found.predict_quantiles(NEW, levels, noise=NEW_NOISE)
    np.testing.assert_allclose(quantiles.T, truth.ppf(np.asarray(levels)[:, None]), rtol=1e-8)
    np.testing.assert_allclose(found.predict_interval(NEW, noise=NEW_NOISE), quantiles[:, [0, 2]], rtol=1e-12)
    np.testing.assert_allclose(found.log_density(NEW, Y[:7], noise=NEW_NOISE), truth.logpdf(Y[:7]), rtol=1e-8)
    covariance = found.predict(NEW, return_cov=True, noise=NEW_NOISE)[1]
    np.testing.assert_allclose(covariance - found.predict(NEW, return_cov=True)[1], np.diag(NEW_NOISE), atol=1e-9)
    draws = found.sample(NEW, 4000, noise=NEW_NOISE)
    np.testing.assert_allclose(draws.std(axis=1), deviation, rtol=0.06)
    assert found.sample_y(NEW, 3).shape == (7, 3)
    assert found.score(X, Y) == pytest.approx(r2_score(Y, found.predict(X)))


def test_deep_models_answer_with_noise():
    found = fitted(method="deep-wsvgp", max_steps=5)
    plain, noisy = (found.predict(NEW, return_std=True, noise=x)[1] for x in (None, NEW_NOISE))
    np.testing.assert_allclose(noisy**2, plain**2 + NEW_NOISE, rtol=1e-9)
    assert found.sample(NEW, 3, noise=NEW_NOISE).shape == (7, 3)


# -- scikit-learn and files -------------------------------------------------------------------------------------------


def test_cross_validation_slices_the_noise_by_rows():
    estimator = GPRegressor(**(QUICK | {"max_steps": 5}))
    found = cross_val_score(estimator, X, Y, params={"noise": NOISE}, cv=KFold(3))
    expected = [
        clone(estimator).fit(X[train], Y[train], noise=NOISE[train]).score(X[test], Y[test])
        for train, test in KFold(3).split(X)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("method", ["auto", "sgpr", "wsvgp"])
def test_what_was_learned_is_kept_in_files_and_pickles(method, tmp_path):
    found = fitted(method=method, max_steps=5, **ALL_KNOWN)
    agp.save(found, tmp_path / "e.safetensors")
    for other in (agp.load(tmp_path / "e.safetensors"), pickle.loads(pickle.dumps(found))):
        answer, expected = (x.predict_interval(NEW, noise=NEW_NOISE) for x in (other, found))
        np.testing.assert_array_equal(answer, expected)
        assert other.predictor_.likelihood.noise_variance == 0.0


# -- what is refused --------------------------------------------------------------------------------------------------

BAD = {
    "negative": (np.where(np.arange(N) == 3, -0.5, NOISE), ValueError, "noise is -0.5 in row 3; every noise variance"),
    "one row": (NOISE[:5], ValueError, "X has 60 rows, but noise has 5"),
    "NaN": (np.full(N, np.nan), ValueError, "noise contains NaN"),
    "infinite": (np.full(N, np.inf), ValueError, "noise contains infinity"),
    "two columns": (np.stack([NOISE, NOISE], axis=1), ValueError, r"noise has shape \(60, 2\), but must have shape"),
    "a number": (0.1, TypeError, "noise is 0.1, but must be an array or a list"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_noise_is_refused(case):
    noise, error, message = BAD[case]
    with pytest.raises(error, match=message):
        GPRegressor(**QUICK).fit(X, Y, noise=noise)
    if case not in ("one row", "a number"):
        with pytest.raises(error, match=message):
            fitted(max_steps=2).predict(X, noise=noise)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"likelihood": "poisson"}, "noise is given, but likelihood='poisson' does not use it; use likelihood='gauss"),
        ({"likelihood": agp.StudentT()}, "noise is given, but likelihood=StudentT does not use it"),
        ({"target_transform": "log"}, "noise is given, but target_transform='log' does not use it"),
    ],
)
def test_other_likelihoods_refuse_noise(settings, message):
    with pytest.raises(ValueError, match=message):
        GPRegressor(**settings).fit(X, np.round(np.exp(F)) + 1.0, noise=NOISE)


def test_answers_of_other_likelihoods_refuse_noise():
    counts = GPRegressor(likelihood="poisson", num_inducing=8, **(QUICK | {"max_steps": 2})).fit(X, np.round(np.exp(F)))
    with pytest.raises(ValueError, match="noise is given, but likelihood='poisson' does not use it"):
        counts.predict_interval(NEW, noise=NEW_NOISE)
    classes = GPClassifier(num_inducing=8, **(SHORT | {"max_steps": 2})).fit(X, F > 0.0)
    with pytest.raises(ValueError, match="noise is given, but classification does not use it"):
        classes.sample(NEW, noise=NEW_NOISE)


def test_all_noise_known_and_none_given_interpolates_or_is_refused():
    with pytest.raises(ValueError, match="noise_variance is 0, but rows have no known noise; pass noise="):
        GPRegressor(method="wsvgp", **QUICK, **ALL_KNOWN).fit(X, Y)
    for how in ("mode", "mixture"):
        settings = QUICK | ALL_KNOWN | {"hyperparameters": how}
        np.testing.assert_allclose(GPRegressor(**settings).fit(X, F).predict(X), F, atol=1e-4)


def test_exact_methods_have_one_noise_for_all_targets():
    both, noise = np.stack([Y, F], axis=1), np.stack([NOISE, 2.0 * NOISE], axis=1)
    with pytest.raises(ValueError, match=r"noise has 2 columns, but the outputs of GPR share one covariance"):
        GPRegressor(method="gpr", **QUICK).fit(X, both, noise=noise)
