"""Predicted moments of targets that are equal, rare, or spread over many orders of magnitude."""

import numpy as np
import pytest

import agp
from agp.errors import NoSignalWarning
from agp.estimators import GPRegressor
from agp.likelihoods import Gamma, Gaussian, LatentNoiseGaussian, LogNormal

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))

EQUAL = [
    *(("poisson", level) for level in (0.0, 7.0, 400.0)),
    *(("negative-binomial", level) for level in (1.0, 400.0)),
    *(("gamma", level) for level in (1e-9, 7.0, 1e9)),
    *(("beta", level) for level in (1e-6, 0.5, 0.9)),
    *(("latent-noise", level) for level in (0.0, 7.0, -1e5)),
    *(("gaussian", level) for level in (1e-9, 7.0, -2e9)),
    ("exponential", 7.0),
    ("student-t", 7.0),
]
TRAINED = ("poisson", "negative-binomial", "exponential")


def fitted(estimator, X, y, warning, **beside):
    with pytest.warns(warning):
        return estimator.fit(X, y, **beside)


@pytest.mark.parametrize(("name", "level"), EQUAL)
def test_equal_targets_are_predicted(name, level):
    warning = NoSignalWarning if name in TRAINED else UserWarning
    model = fitted(GPRegressor(likelihood=name, random_state=0), X, np.full(60, level), warning)
    mean, deviation = model.predict(X, return_std=True)
    size = abs(level) if level else 1.0
    np.testing.assert_allclose(mean, level, rtol=1e-3, atol=1e-3 * (level == 0.0))
    assert (deviation < 1.01 * max(size, np.sqrt(size) if name in TRAINED else 0.0)).all()
    assert not model.learned_
    if name in TRAINED and level:  # the noise is that of the likelihood
        np.testing.assert_allclose(deviation, level if name == "exponential" else np.sqrt(level), rtol=1e-2)


@pytest.mark.parametrize("method", ["wsvgp", "rsvgp", "tvgp", "tnngp", "deep-wsvgp"])
def test_equal_targets_are_predicted_by_every_kind_of_method(method):
    model = fitted(GPRegressor(likelihood="beta", method=method, random_state=0), X, np.full(60, 0.9), UserWarning)
    np.testing.assert_allclose(model.predict(X), 0.9, rtol=1e-6)


def test_equal_targets_of_several_columns_logs_and_objects():
    both = fitted(GPRegressor(likelihood="gamma"), X, np.tile([7.0, 3.0], (60, 1)), UserWarning)
    np.testing.assert_allclose(both.predict(X[:2]), [[7.0, 3.0]] * 2, rtol=1e-5)
    logs = fitted(GPRegressor(target_transform="log"), X, np.full(60, 7.0), UserWarning)
    np.testing.assert_allclose(logs.predict(X[:2]), 7.0, rtol=1e-3)
    given = fitted(GPRegressor(likelihood=Gamma(4.0)), X, np.full(60, 7.0), UserWarning)
    mean, deviation = given.predict(X[:2], return_std=True)
    np.testing.assert_allclose(mean, 7.0, rtol=1e-5)
    np.testing.assert_allclose(deviation, 3.5, rtol=1e-3)  # shape 4: half of the mean
    varying = fitted(GPRegressor(likelihood=LatentNoiseGaussian()), X, np.full(60, 1e8), UserWarning)
    mean, deviation = varying.predict(X[:2], return_std=True)
    np.testing.assert_allclose(mean, 1e8, rtol=1e-3)
    np.testing.assert_allclose(deviation, 1e7, rtol=0.05)  # a tenth of the targets, as without a likelihood object
    assert np.isfinite(varying.bound_)
    noisy = fitted(GPRegressor(likelihood=LogNormal(Gaussian(0.5))), X, np.full(60, 7.0), UserWarning)
    np.testing.assert_allclose(noisy.predict(X[:2]), 7.0, rtol=1e-4)


@pytest.mark.parametrize("name", ["gamma", "beta", "negative-binomial"])
def test_equal_first_rows_say_nothing_about_the_noise(name):
    level = 0.3 if name == "beta" else 3.0
    rest = np.where(X[:, 0] > 0.0, 2.0, 1.0) * level
    model = GPRegressor(likelihood=name, kernel="rbf").partial_fit(X, np.full(60, level))
    for _ in range(5):
        model.partial_fit(X, rest)
    assert np.isfinite(model.predict(X, return_std=True)).all()
    assert model.predict(X, return_std=True)[1].min() > 0.01 * level


@pytest.mark.parametrize("name", ["poisson", "negative-binomial", "beta"])
def test_a_stream_learns_after_equal_first_rows(name):
    rng = np.random.default_rng(1)
    rows, f = 2.0 * rng.normal(size=(60, 2)), np.sin
    level = {"beta": 0.5}.get(name, 0.0)
    model = GPRegressor(likelihood=name, kernel="rbf", random_state=0).partial_fit(rows, np.full(60, level))
    for _ in range(400):
        new = 2.0 * rng.normal(size=(60, 2))
        rate = 3.0 * np.exp(1.5 * f(new[:, 0]))
        model.partial_fit(new, rng.beta(rate, 3.0).clip(1e-6, 1.0 - 1e-6) if name == "beta" else rng.poisson(rate))
    rate = 3.0 * np.exp(1.5 * f(rows[:, 0]))
    expected = rate / (rate + 3.0) if name == "beta" else rate
    assert np.corrcoef(model.predict(rows), expected)[0, 1] > 0.97


def test_equal_counts_with_exposures_are_different_rates():
    exposure = np.exp(X[:, 0])
    model = GPRegressor(likelihood="poisson", kernel="rbf", random_state=0).fit(X, np.full(60, 7.0), exposure=exposure)
    assert model.learned_
    np.testing.assert_allclose(model.predict(X, exposure=exposure), 7.0, rtol=0.3)


def test_equal_rates_are_predicted_for_every_exposure():
    exposure = np.tile([1.0, 2.0, 4.0], 20)
    model = fitted(GPRegressor(likelihood="gamma"), X, 8.0 * exposure, UserWarning, exposure=exposure)
    np.testing.assert_allclose(model.predict(X, exposure=exposure), 8.0 * exposure, rtol=1e-5)


@pytest.mark.parametrize("likelihood", [agp.Poisson(), agp.NegativeBinomial(), agp.Beta(), agp.Beta(link="logit")])
def test_the_prior_mean_of_models_starts_at_the_data(likelihood):
    level = 0.9 if isinstance(likelihood, agp.Beta) else 7.0
    y = np.full((60, 1), level)
    model = agp.SVGP.from_data(X, y, likelihood=likelihood, num_inducing=5)
    f = model.mean_function.value
    np.testing.assert_allclose(likelihood.predict(f[None, :], 0.0 * f[None, :]).mean, level, rtol=1e-12)


# -- targets that are refused ------------------------------------------------------------------------------------------

ZEROS = {
    "exponential": (X[:, 0] > 0.0) * 1.0,
    "gamma": (X[:, 0] > 0.0) * 1.0,
    "beta": (X[:, 0] > 0.0) * 0.5,
}


@pytest.mark.parametrize("name", ZEROS)
@pytest.mark.parametrize("method", ["auto", "tvgp", "tnngp"])
def test_zeros_without_a_density_are_refused(name, method):
    with pytest.raises(ValueError, match=r"targets must be (positive|between 0 and 1).* found 0"):
        GPRegressor(likelihood=name, method=method).fit(X, ZEROS[name])
    with pytest.raises(ValueError, match="found 0"):
        GPRegressor(likelihood=name).partial_fit(X, ZEROS[name])


def test_the_exponential_likelihood_refuses_zeros_in_models():
    y = np.where(X[:, :1] > 0.0, 1.0, 0.0)
    with pytest.raises(ValueError, match="targets must be positive for the Exponential likelihood; found 0"):
        agp.SVGP.from_data(X, y, likelihood=agp.Exponential(), num_inducing=5)


# -- moments in the range of the targets -------------------------------------------------------------------------------


def rows_between(X, count=200):
    rng = np.random.default_rng(1)
    i, j = rng.integers(len(X), size=(2, count))
    share = rng.uniform(size=(count, 1))
    return np.concatenate([X, X[i] + share * (X[j] - X[i])])


def lattice(seed=2):
    return np.round(np.random.default_rng(seed).normal(size=(40, 2)))


WIDE = {
    "rare, latent noise": ("latent-noise", lattice(), (np.arange(40) < 3) * 1.0),
    "rare, latent noise, other rows": ("latent-noise", lattice(5), (np.arange(40) % 13 == 0) * 1.0),
    "one outlier, latent noise": ("latent-noise", X, np.where(np.arange(60) == 7, 1e4, 0.1 * X[:, 1])),
    "many orders of magnitude": ("gamma", X, np.exp(15.0 * X[:, 0])),
    "nearly zero": ("exponential", X, np.where(X[:, 0] > 0.0, 1.0, 1e-9)),
    "counts in two clusters": ("poisson", X, np.where(X[:, 0] > 0.0, 1e6, 0.0)),
    "a huge count": ("negative-binomial", X, np.where(np.arange(60) == 7, 5e8, 3.0)),
    "large and nearly equal counts": ("poisson", X, 1e6 + np.arange(60) % 7),
    "large and nearly equal counts of more variance": ("negative-binomial", X, 1e6 + np.arange(60) % 7),
    "nearly equal proportions": ("beta", X, 0.999 + 1e-4 / (1.0 + np.exp(-X[:, 0]))),
    "large and nearly equal numbers": ("gamma", X, 1e6 + np.sin(X[:, 0])),
}


LONG = (
    "rare, latent noise",
    "rare, latent noise, other rows",
    "nearly zero",
    "counts in two clusters",
    "a huge count",
    "one outlier, latent noise",
)


@pytest.mark.filterwarnings("ignore:.*was not at its optimum:agp.errors.RepairWarning")  # of noise that varies
@pytest.mark.parametrize("case", [pytest.param(x, marks=pytest.mark.long if x in LONG else ()) for x in WIDE])
@pytest.mark.filterwarnings("ignore::agp.errors.NoSignalWarning", "ignore::agp.errors.ConvergenceWarning")
def test_moments_stay_near_the_range_of_the_targets(case):
    name, X, y = WIDE[case]
    model = GPRegressor(likelihood=name, kernel="rbf", random_state=0, max_seconds=20).fit(X, y)
    mean, deviation = model.predict(rows_between(X), return_std=True)
    scale = max(np.ptp(y), np.sqrt(y.max()) if name in ("poisson", "negative-binomial") else 0.0)
    assert np.abs(mean - y.mean()).max() < 100.0 * scale
    assert deviation.max() < 100.0 * scale


@pytest.mark.filterwarnings("ignore:.*was not at its optimum:agp.errors.RepairWarning")  # rounding decides
def test_the_rare_targets_of_a_lattice_have_small_deviations():
    model = GPRegressor(likelihood="latent-noise", kernel="rbf").fit(lattice(), (np.arange(40) < 3) * 1.0)
    assert model.predict(lattice(), return_std=True)[1].max() < 1.0


def test_logarithms_without_signal_have_moments_near_the_targets():
    y = np.exp(np.clip(np.random.default_rng(5).standard_cauchy(60), -15.0, 15.0))
    with pytest.warns(NoSignalWarning):
        model = GPRegressor(target_transform="log").fit(X, y)
    mean, deviation = model.predict(X, return_std=True)
    assert max(mean.max(), deviation.max()) < 100.0 * np.ptp(y)


@pytest.mark.parametrize("name", ["poisson", "gamma"])
def test_limits_do_not_matter_near_the_data_and_do_not_depend_on_units(name):
    rates = np.exp(np.sin(2.0 * X[:, 0]))
    rng = np.random.default_rng(1)
    y = rng.poisson(5.0 * rates) * 1.0 if name == "poisson" else rates * rng.gamma(5.0, size=60)
    model = GPRegressor(likelihood=name, kernel="rbf", random_state=0).fit(X, y)
    plain = model.model_.predict(X, observed=True)
    np.testing.assert_allclose(model.predict(X, return_std=True)[0], plain.mean[:, 0], rtol=1e-6)
    far = model.predict(100.0 + X[:1], return_std=True)
    assert far[1][0] < model.model_.predict(100.0 + X[:1], observed=True).variance[0, 0] ** 0.5


def test_limits_are_saved_and_follow_further_rows(tmp_path):
    y = np.exp(8.0 * X[:, 0])
    model = GPRegressor(likelihood="gamma", kernel="rbf", max_steps=30).partial_fit(X[:30], y[:30])
    before = model._largest
    model.partial_fit(X[30:], y[30:])
    assert model._largest == [max(y.max(), *before)]
    agp.save(model, tmp_path / "m.safetensors")
    found = agp.load(tmp_path / "m.safetensors").predict(3.0 * X, return_std=True)
    np.testing.assert_array_equal(found, model.predict(3.0 * X, return_std=True))
