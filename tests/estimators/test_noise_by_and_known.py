"""Regressors that learn the noise of groups of rows on top of known noise variances."""

import pickle

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.stats import norm
from sklearn.model_selection import GroupKFold, cross_val_score

import agp
from agp.estimators import GPRegressor
from agp.estimators._noise_groups import _estimate, _Rows
from agp.estimators._observations import Observations
from agp.kernels import WithSlopes, stack_slopes

pytestmark = pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")

N = 160
RNG = np.random.default_rng(6)
TIME = np.sort(RNG.uniform(0.0, 80.0, N))
ERROR = RNG.choice([0.0, 0.1, 0.5], N)
UNIT = RNG.choice(["A", "B"], N)
SPREADS = {"A": 0.3, "B": 2.0}
FURTHER = np.where(UNIT == "A", 0.3, 2.0)
Y = 300.0 + 40.0 * np.sin(TIME / 12.0) + np.hypot(ERROR, FURTHER) * RNG.standard_normal(N)
TABLE = pd.DataFrame({"seconds": TIME, "unit": UNIT})
NEW = pd.DataFrame({"seconds": [10.0, 10.0, 60.0, 60.0], "unit": ["A", "B", "A", "B"]})
NEW_NOISE = np.asarray([0.0, 0.5, 1.0, 2.0])
SETTINGS = {"kernel": "rbf.on(seconds)", "noise_by": "unit", "random_state": 0}
QUICK = SETTINGS | {"hyperparameters": "mode"}


@pytest.fixture(scope="module")
def found():
    return GPRegressor(**QUICK).fit(TABLE, Y, noise=ERROR**2)


def covariance(v, ell, a, b, x=TIME, error=ERROR, is_a=UNIT == "A"):
    return v * np.exp(-0.5 * ((x[:, None] - x) / ell) ** 2) + np.diag(error**2 + np.where(is_a, a, b))


@pytest.mark.parametrize("known", [True, False])
def test_variances_and_predictions_are_those_of_maximum_likelihood(known):
    error = ERROR if known else 0.0 * ERROR

    def loss(p):
        L = np.linalg.cholesky(covariance(*np.exp(p[:4]), error=error))
        z = np.linalg.solve(L, Y - p[4])
        return 0.5 * z @ z + np.log(np.diag(L)).sum()

    best = minimize(loss, [7.0, 2.5, -2.0, 1.0, 300.0], method="Nelder-Mead", options={"maxiter": 4000}).x
    v, ell, a, b, c = *np.exp(best[:4]), best[4]
    found = GPRegressor(**QUICK).fit(TABLE, Y, noise=error**2 if known else None)
    np.testing.assert_allclose([found.noise_by_["A"], found.noise_by_["B"]], [a, b], rtol=0.06)
    ks = v * np.exp(-0.5 * ((TIME[:, None] - NEW["seconds"].to_numpy()) / ell) ** 2)
    A = np.linalg.solve(covariance(v, ell, a, b, error=error), ks)
    mean, deviation = found.predict(NEW, return_std=True, noise=NEW_NOISE)
    variance = v - (ks * A).sum(0) + np.where(NEW["unit"] == "A", a, b) + NEW_NOISE
    np.testing.assert_allclose(mean, c + A.T @ (Y - c), atol=0.05)
    np.testing.assert_allclose(deviation, np.sqrt(variance), rtol=0.03)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_slope_of_the_log_density_is_that_of_the_prior(weighted):
    w = np.random.default_rng(0).uniform(1.0, 3.0, N) if weighted else np.ones(N)
    kernel = agp.RBF(800.0, 12.0)
    model = agp.GPR.from_data(TIME[:, None], Y, kernel=kernel, mean_function=agp.ConstantMean(np.asarray([300.0])))
    group = np.where(UNIT == "A", 0, 1)
    data = Observations(TIME[:, None], Y[:, None], w if weighted else None, None, ERROR[:, None] ** 2)
    rows = _Rows.of([(1.0, model)], data, group, 2)
    K, residual = model.kernel(TIME[:, None])[0], Y - 300.0

    def log_density(u):
        t = np.exp(u)[group] + ERROR**2
        C = K + np.diag(t / w)
        exact = -0.5 * np.linalg.slogdet(C)[1] - 0.5 * residual @ np.linalg.solve(C, residual)
        return exact - 0.5 * np.sum((w - 1.0) * np.log(t))

    for u in (np.asarray([-2.0, 1.0]), np.asarray([1.0, -3.0])):
        step = 1e-4 * np.eye(2)
        slopes = [(log_density(u + one) - log_density(u - one)) / 2e-4 for one in step]
        np.testing.assert_allclose(rows.evaluate(u)[0], slopes, rtol=1e-5)
    u = _estimate(rows, np.zeros(2), -20.0, start=True)
    assert np.abs(rows.evaluate(u)[0]).max() < 2.0  # the prior's slope is small beside that of 80 rows


def test_the_expected_squares_are_those_of_draws():
    group, u = np.where(UNIT == "A", 0, 1), np.asarray([-1.0, 0.5])
    learned = np.exp(u)[group]
    model = agp.GPR.from_data(TIME[:, None], Y, kernel=agp.RBF(800.0, 12.0))
    rows = _Rows.of([(1.0, model)], Observations(TIME[:, None], Y[:, None], noise=ERROR[:, None] ** 2), group, 2)
    C = model.kernel(TIME[:, None])[0] + np.diag(learned + ERROR**2)
    P, residual = np.linalg.inv(C), Y - model.mean_function(TIME[:, None])[0][:, 0]
    mean, variance = learned * (P @ residual), learned - learned**2 * np.diag(P)  # of the learned noise, given y
    expected = [np.mean((mean**2 + variance)[group == k]) for k in (0, 1)]
    np.testing.assert_allclose(rows.evaluate(u)[2], expected, rtol=1e-8)


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "sgpr", "num_inducing": 40},
        {"method": "nngp"},
        {"method": "wsvgp", "num_inducing": 40, "max_steps": 200},
        {"store_data": False},
        {"hyperparameters": "mixture"},
        {"dtype": "float32"},
    ],
    ids=["sgpr", "nngp", "wsvgp", "no rows", "mixture", "float32"],
)
def test_other_models_learn_the_same(settings):
    found = GPRegressor(**(QUICK | settings)).fit(TABLE, Y, noise=ERROR**2)
    for name, spread in SPREADS.items():
        assert found.noise_by_[name] ** 0.5 == pytest.approx(spread, rel=0.35)
    plain, noisy = (found.predict(NEW, return_std=True, noise=x)[1] for x in (None, NEW_NOISE))
    np.testing.assert_allclose(noisy**2, plain**2 + NEW_NOISE, rtol=1e-4)


@pytest.mark.parametrize("known", [True, False])
def test_all_answers_add_the_noise_of_new_rows(known):
    found = GPRegressor(**QUICK).fit(TABLE, Y, noise=ERROR**2 if known else None)
    latent = found.predictor_.predict(found.model_inputs(NEW)).variance[:, 0]
    total = np.sqrt(latent + NEW["unit"].map(found.noise_by_).to_numpy() + NEW_NOISE)
    mean, deviation = found.predict(NEW, return_std=True, noise=NEW_NOISE)
    np.testing.assert_allclose(deviation, total, rtol=1e-9)
    truth = norm(mean, total)
    quantiles = found.predict_quantiles(NEW, [0.05, 0.95], noise=NEW_NOISE)
    np.testing.assert_allclose(quantiles, np.stack([truth.ppf(0.05), truth.ppf(0.95)], axis=1), rtol=1e-8)
    np.testing.assert_allclose(found.predict_interval(NEW, 0.9, noise=NEW_NOISE), quantiles, rtol=1e-10)
    np.testing.assert_allclose(found.log_density(NEW, Y[:4], noise=NEW_NOISE), truth.logpdf(Y[:4]), rtol=1e-8)
    plain, joint = (found.predict(NEW, return_cov=True, noise=x)[1] for x in (None, NEW_NOISE))
    np.testing.assert_allclose(joint, plain + np.diag(NEW_NOISE), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.sample(NEW, 4000, noise=NEW_NOISE).std(axis=1), total, rtol=0.06)


def test_repeated_and_weighted_rows_are_those_of_copies():
    twice = pd.concat([TABLE, TABLE], ignore_index=True)
    weighted = GPRegressor(**QUICK).fit(TABLE, Y, sample_weight=np.full(N, 2.0), noise=ERROR**2)
    copies = GPRegressor(**QUICK).fit(twice, np.tile(Y, 2), noise=np.tile(ERROR**2, 2))
    np.testing.assert_allclose([*copies.noise_by_.values()], [*weighted.noise_by_.values()], rtol=1e-3)


def test_errors_that_explain_all_noise_leave_nothing_to_learn():
    y = 300.0 + 40.0 * np.sin(TIME / 12.0) + np.hypot(0.4, 0.0) * RNG.standard_normal(N)
    found = GPRegressor(**QUICK).fit(TABLE, y, noise=np.full(N, 0.16))
    assert max(found.noise_by_.values()) < 0.06


def test_equal_targets_and_a_single_level():
    with pytest.warns(UserWarning, match="all targets are the same"):
        found = GPRegressor(**QUICK).fit(TABLE, np.full(N, 3.0), noise=ERROR**2)
    assert np.isfinite(found.predict(NEW, return_std=True, noise=NEW_NOISE)[1]).all()
    alone = GPRegressor(**QUICK).fit(TABLE.assign(unit="A"), Y, noise=ERROR**2)
    plain = GPRegressor(kernel="rbf.on(seconds)", hyperparameters="mode").fit(TABLE, Y, noise=ERROR**2)
    assert alone.noise_by_["A"] == pytest.approx(float(plain.model_.likelihood.noise_variance), rel=1e-3)


def test_files_pickles_and_folds_keep_both(found, tmp_path):
    agp.save(found, tmp_path / "m.safetensors")
    for other in (agp.load(tmp_path / "m.safetensors"), pickle.loads(pickle.dumps(found))):
        assert other.noise_by_ == found.noise_by_
        answers = [x.predict(NEW, return_std=True, noise=NEW_NOISE)[1] for x in (other, found)]
        np.testing.assert_array_equal(*answers)
    scores = cross_val_score(
        GPRegressor(**(QUICK | {"max_steps": 5})),
        TABLE,
        Y,
        groups=np.arange(N) // 8,
        cv=GroupKFold(2),
        params={"noise": ERROR**2},
    )
    assert (scores > 0.9).all()


def test_slopes_have_noise_of_their_own_beside_known_errors():
    rng = np.random.default_rng(2)
    X = np.linspace(0.0, 10.0, 60)[:, None]
    values = np.sin(X[:, 0]) + np.hypot(0.02, 0.01) * rng.standard_normal(60)
    slopes = np.cos(X) + np.hypot(0.3, 0.2) * rng.standard_normal((60, 1))
    rows, targets = stack_slopes(X, values, slopes)
    known = np.where(rows[:, 1] == 0.0, 0.01**2, 0.2**2)
    found = GPRegressor(kernel=WithSlopes(agp.RBF()), noise_by=1, hyperparameters="mode")
    found.fit(rows, targets, noise=known)
    deviations = {tag: variance**0.5 for tag, variance in found.noise_by_.items()}
    assert deviations[0.0] == pytest.approx(0.02, rel=0.35)
    assert deviations[1.0] == pytest.approx(0.3, rel=0.35)


def test_a_likelihood_without_noise_remains_a_contradiction():
    with pytest.raises(ValueError, match="noise_by is 'unit', but the likelihood says that there is no noise"):
        GPRegressor(likelihood=agp.Gaussian(0.0), **QUICK).fit(TABLE, Y, noise=ERROR**2 + 1.0)
