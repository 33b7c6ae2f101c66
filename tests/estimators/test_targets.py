"""Targets of every kind: counts, positive numbers, shares, outliers; exposures, weights, logarithms of targets."""

import io
import pickle

import numpy as np
import pytest
import scipy.stats
from helpers import as_arrays
from likelihoods.likelihood_cases import KINDS
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

import agp
from agp.estimators import GPClassifier, GPRegressor
from agp.likelihoods import LIKELIHOODS, Gamma, Gaussian, LogNormal, NegativeBinomial, Poisson
from agp.methods import METHODS

pytestmark = [  # a few steps are enough
    pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::agp.errors.RepairWarning"),
    pytest.mark.filterwarnings("ignore::agp.errors.NoSignalWarning"),
]

RNG = np.random.default_rng(5)
X = RNG.uniform(-2.0, 2.0, (90, 2))
F = np.sin(2.0 * X[:, 0])
EXPOSURE = RNG.uniform(0.5, 20.0, 90)
TARGETS = {
    "gaussian": F + 0.1 * RNG.normal(size=90),
    "student-t": F + 0.1 * RNG.standard_t(3.0, 90),
    "poisson": RNG.poisson(3.0 * np.exp(F)),
    "negative-binomial": RNG.poisson(3.0 * np.exp(F) * RNG.gamma(2.0, 0.5, 90)),
    "gamma": np.exp(F) * RNG.gamma(2.0, size=90),
    "exponential": np.exp(F) * RNG.exponential(size=90),
    "beta": RNG.beta(5.0 / (1.0 + np.exp(-F)), 5.0 / (1.0 + np.exp(F))),
    "latent-noise": F + np.exp(X[:, 1] - 2.0) * RNG.normal(size=90),
}
for name in LIKELIHOODS.keys() - TARGETS.keys():
    likelihood = as_arrays(KINDS[name].build())
    latents = np.repeat(F[:, None], likelihood.latents(1), axis=1)
    TARGETS[name] = likelihood.sample(latents, np.random.default_rng(5))[:, 0]
QUICK = {"method": "wsvgp", "num_inducing": 15, "max_steps": 60, "random_state": 0, "kernel": "rbf"}
COUNTS = [name for name, cls in LIKELIHOODS.items() if cls.whole_numbers]
RATES = [name for name, cls in LIKELIHOODS.items() if cls.log_link]


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_answers_are_of_observations(name):
    y = TARGETS[name]
    found = GPRegressor(likelihood=name, **QUICK).fit(X, y)
    quantiles = found.predict_quantiles(X, [0.05, 0.5, 0.95])
    ends = found.predict_interval(X)
    assert quantiles.shape == (90, 3)
    np.testing.assert_array_equal(ends, quantiles[:, [0, 2]])
    assert np.mean((ends[:, 0] <= y) & (y <= ends[:, 1])) > 0.8
    assert np.all(np.diff(quantiles) >= 0.0)
    if name in COUNTS:
        assert np.all(quantiles == np.floor(quantiles))
    draws = found.sample(X, 200, random_state=1)
    assert draws.shape == (90, 200)
    below = np.mean(draws <= quantiles[:, 1:2])
    assert below > 0.4 if name in COUNTS else abs(below - 0.5) < 0.1
    density = found.log_density(X, y)
    assert density.shape == (90,)
    A = found.model_inputs(X)
    np.testing.assert_allclose(density, found.predictor_.log_density(A, y[:, None].astype(float)), rtol=1e-12)
    assert found.score(X, y) > (0.1 if name in ("exponential", "negative-binomial") else 0.3)


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", [Poisson(), NegativeBinomial(0.5), Gamma(2.0)])
def test_a_likelihood_may_be_an_object(likelihood):
    y = TARGETS["poisson"] + (1.0 if isinstance(likelihood, Gamma) else 0.0)
    estimator = clone(GPRegressor(likelihood=likelihood, **QUICK))
    found = estimator.fit(X, y)
    assert type(found.predictor_.likelihood) is type(likelihood)
    assert estimator.likelihood is not None
    assert type(likelihood).__name__ in found.facts()["estimator"]


def test_a_gaussian_object_is_trained_where_the_method_chooses():
    found = GPRegressor(likelihood=Gaussian(0.04), kernel="rbf", max_steps=20).fit(X, TARGETS["gaussian"])
    assert found.method_ == "gpr"


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", [*LIKELIHOODS, "log"])
def test_what_was_learned_is_kept_in_files_and_pickles(name, tmp_path):
    settings = {"target_transform": "log"} if name == "log" else {"likelihood": name}
    y = TARGETS["gamma" if name == "log" else name]
    weights = RNG.uniform(0.5, 2.0, 90)
    beside = {"exposure": EXPOSURE} if name in RATES else {}
    found = GPRegressor(**settings, **QUICK).fit(X, y, sample_weight=weights, **beside)
    agp.save(found, tmp_path / "e.safetensors")
    for other in (agp.load(tmp_path / "e.safetensors"), pickle.load(io.BytesIO(pickle.dumps(found)))):
        np.testing.assert_array_equal(other.predict_interval(X, **beside), found.predict_interval(X, **beside))
        assert other.target_transform == found.target_transform


# -- exposures --------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("name", RATES)
def test_exposures_are_factors_of_the_mean(name):
    rng = np.random.default_rng(1)
    mean = EXPOSURE * np.exp(F)
    y = {
        "poisson": rng.poisson(mean),
        "negative-binomial": rng.poisson(mean * rng.gamma(5.0, 0.2, 90)),
        "gamma": mean * rng.gamma(3.0, 1.0 / 3.0, 90),
        "exponential": mean * rng.exponential(size=90),
    }[name]
    found = GPRegressor(likelihood=name, **QUICK).fit(X, y, exposure=EXPOSURE)
    alone, times = found.predict(X), found.predict(X, exposure=EXPOSURE)
    np.testing.assert_allclose(times, EXPOSURE * alone, rtol=1e-10)
    assert np.corrcoef(np.log(alone), F)[0, 1] > (0.8 if name == "exponential" else 0.9)
    density = found.log_density(X, y, exposure=EXPOSURE)
    assert np.mean(density) > np.mean(found.log_density(X, y)) + 0.3
    inside = found.predict_interval(X, exposure=EXPOSURE)
    assert np.mean((inside[:, 0] <= y) & (y <= inside[:, 1])) > 0.8
    assert found.sample(X[:4], 3, exposure=EXPOSURE[:4]).shape == (4, 3)


@pytest.mark.long
@pytest.mark.parametrize("given", ["first", "later"])
def test_exposures_in_parts_are_1_where_none_are_given(given):
    def rates(others):
        estimator = GPRegressor(likelihood="poisson", num_inducing=15, random_state=0)
        for exposure in (EXPOSURE, others) if given == "first" else (others, EXPOSURE):
            estimator.partial_fit(X, TARGETS["poisson"], exposure=exposure)
        assert estimator.n_iter_ == 2
        return estimator.predict(X)

    np.testing.assert_allclose(rates(None), rates(np.ones(90)), rtol=1e-9)


# -- weights ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.sample(8)
@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_weights_are_repeated_rows(method):
    count = np.random.default_rng(2).integers(0, 4, 60)
    settings = {"method": method, "num_inducing": 60 if method == "auto" else 12, "kernel": "rbf", "max_steps": 15}
    if method == "auto":
        del settings["num_inducing"]
    y = TARGETS["gaussian"][:60]
    weighted = GPRegressor(random_state=0, **settings).fit(X[:60], y, sample_weight=count)
    repeated = GPRegressor(random_state=0, **settings).fit(np.repeat(X[:60], count, axis=0), np.repeat(y, count))
    for mine, other in zip(weighted.predict(X, True), repeated.predict(X, True), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-9)


@pytest.mark.long
def test_weights_of_classes_are_repeated_rows():
    count = np.random.default_rng(2).integers(0, 4, 60)
    labels = np.where(F[:60] > 0.0, "high", "low")
    weighted = GPClassifier(random_state=0, max_steps=10).fit(X[:60], labels, sample_weight=count)
    repeated = GPClassifier(random_state=0, max_steps=10).fit(
        np.repeat(X[:60], count, axis=0), np.repeat(labels, count)
    )
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), rtol=1e-9)


@pytest.mark.slow
def test_rows_that_differ_are_left_as_they_are():
    y = TARGETS["poisson"]
    twice = np.concatenate([X, X[:10]]), np.concatenate([y, y[:10]])
    found = GPRegressor(likelihood="poisson", **QUICK).fit(*twice)
    assert found.n_rows_seen_ == 100


def test_rows_that_repeat_come_in_parts():
    y, labels = TARGETS["gaussian"], F > 0.0
    twice = np.concatenate([X, X])
    found = GPRegressor(num_inducing=8, kernel="rbf").partial_fit(X, y).partial_fit(twice, np.tile(y, 2))
    assert found.n_rows_seen_ == 270
    classes = GPClassifier(num_inducing=8, kernel="rbf").partial_fit(X, labels).partial_fit(twice, np.tile(labels, 2))
    assert classes.n_rows_seen_ == 270


@pytest.mark.slow
def test_every_row_is_counted_once_as_seen():
    twice = np.concatenate([X, X])
    assert GPRegressor(max_steps=3, kernel="rbf").fit(twice, np.tile(TARGETS["gaussian"], 2)).n_rows_seen_ == 180
    assert GPClassifier(max_steps=3, kernel="rbf").fit(twice, np.tile(F > 0.0, 2)).n_rows_seen_ == 180


@pytest.mark.slow
def test_weights_say_where_the_noise_is_not_learned_twice():
    """Copies tell nothing of the noise: it is as large as that of the rows."""
    found = GPRegressor(kernel="rbf", random_state=0).fit(X, TARGETS["gaussian"], sample_weight=np.full(90, 7.0))
    usual = GPRegressor(kernel="rbf", random_state=0).fit(X, TARGETS["gaussian"])
    np.testing.assert_allclose(found.predict(X, True)[1], usual.predict(X, True)[1], rtol=1e-3)


# -- logarithms of targets --------------------------------------------------------------------------------------------


@pytest.mark.long
def test_logarithms_of_targets_are_answered_as_targets():
    y = np.exp(F + 0.3 * RNG.normal(size=90))
    found = GPRegressor(target_transform="log", kernel="rbf", hyperparameters="mode").fit(X, y)
    by_hand = GPRegressor(kernel="rbf", hyperparameters="mode").fit(X, np.log(y))
    mean, deviation = by_hand.predict(X, return_std=True)
    truth = scipy.stats.lognorm(deviation, scale=np.exp(mean))
    np.testing.assert_allclose(found.predict(X, return_std=True), (truth.mean(), truth.std()), rtol=1e-8)
    np.testing.assert_allclose(found.predict_quantiles(X, [0.1, 0.9]).T, truth.ppf([[0.1], [0.9]]), rtol=1e-8)
    np.testing.assert_allclose(found.log_density(X, y), truth.logpdf(y), rtol=1e-8)
    assert found.bound_ == pytest.approx(by_hand.bound_ - np.log(y).sum())
    np.testing.assert_allclose(found.sample_y(X[:3], 2), np.exp(by_hand.sample_y(X[:3], 2)), rtol=1e-10)
    assert isinstance(found.predictor_.likelihood, LogNormal)
    assert np.isfinite(cross_val_score(found, X, y, cv=2)).all()


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "y", "beside", "error", "message"),
    [
        ({"likelihood": "poisson"}, F, {}, ValueError, "counts must be whole numbers of at least 0"),
        ({"likelihood": "gamma"}, F, {}, ValueError, "targets must be positive for the Gamma likelihood"),
        ({"likelihood": "beta"}, F + 2.0, {}, ValueError, "targets must be between 0 and 1"),
        (
            {"likelihood": "poisson", "method": "gpr"},
            TARGETS["poisson"],
            {},
            ValueError,
            "the method gpr does not support",
        ),
        ({"likelihood": 3}, F, {}, TypeError, "likelihood is 3, but must be one of 'beta', 'exponential'"),
        ({"target_transform": "sqrt"}, F, {}, ValueError, "target_transform is 'sqrt', but must be None, 'none', "),
        ({"target_transform": "log"}, F, {}, ValueError, "needs positive targets, but y has -"),
        ({"target_transform": "log", "likelihood": "gamma"}, F, {}, ValueError, "is for likelihood='gaussian', not"),
        (
            {},
            F,
            {"exposure": EXPOSURE},
            ValueError,
            "exposure is given, but likelihood='gaussian' does not use it; use one of",
        ),
        ({"likelihood": "poisson"}, TARGETS["poisson"], {"exposure": 0.0 * F}, ValueError, "exposure is 0 in row 0"),
        (
            {"likelihood": "poisson"},
            TARGETS["poisson"],
            {"exposure": F[:3]},
            ValueError,
            "X has 90 rows, but exposure has 3",
        ),
        ({}, F, {"sample_weight": -np.ones(90)}, ValueError, "sample_weight is -1 in row 0; every entry must be zero"),
        ({}, F, {"sample_weight": 0.0 * F}, ValueError, "sample_weight is zero in every row"),
        ({}, F, {"sample_weight": np.full(90, np.nan)}, ValueError, "sample_weight contains NaN"),
        ({}, F, {"sample_weight": X}, ValueError, r"sample_weight has shape \(90, 2\)"),
    ],
)
def test_what_does_not_fit_is_refused(settings, y, beside, error, message):
    with pytest.raises(error, match=message):
        GPRegressor(**settings).fit(X, y, **beside)


@pytest.mark.long
def test_answers_that_there_are_not_are_refused():
    found = GPRegressor(likelihood="poisson", **QUICK).fit(X, TARGETS["poisson"])
    with pytest.raises(TypeError, match="joint covariances need Gaussian noise, but the likelihood is Poisson"):
        found.predict(X, return_cov=True)
    with pytest.raises(ValueError, match="exposure is 0 in row 0; every entry must be positive"):
        found.predict(X[:1], exposure=[0.0])
    with pytest.raises(ValueError, match="quantile|level"):
        found.predict_quantiles(X, [1.5])
    classifier = GPClassifier(max_steps=5).fit(X, F > 0.0)
    with pytest.raises(ValueError, match="exposure is given, but classification does not use it"):
        classifier.sample(X, exposure=EXPOSURE)


# -- classes ----------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 3])
def test_classes_are_drawn_and_have_densities(count):
    labels = np.asarray(["low", "mid", "high"])[np.digitize(F, [0.0] if count == 2 else [-0.5, 0.5])]
    found = GPClassifier(max_steps=20, num_inducing=15, random_state=0).fit(X, labels)
    probabilities = found.predict_proba(X)
    at = np.searchsorted(found.classes_, labels)
    np.testing.assert_allclose(found.log_density(X, labels), np.log(probabilities[np.arange(90), at]), atol=1e-6)
    draws = found.sample(X, 400)
    assert draws.shape == (90, 400)
    shares = np.stack([np.mean(draws == label, axis=1) for label in found.classes_], axis=1)
    assert np.abs(shares - probabilities).max() < 0.12


@pytest.mark.long
def test_classes_in_an_order_have_intervals():
    grade = np.digitize(F, [-0.5, 0.0, 0.5]) * 10
    found = GPClassifier(likelihood="ordinal", max_steps=20, num_inducing=15, random_state=0).fit(X, grade)
    ends = found.predict_interval(X, 0.9)
    assert set(np.unique(ends)) <= {0, 10, 20, 30}
    assert np.mean((ends[:, 0] <= grade) & (grade <= ends[:, 1])) > 0.85
    with pytest.raises(TypeError, match="without an order"):
        GPClassifier(max_steps=5).fit(X, np.digitize(F, [-0.5, 0.5])).predict_interval(X)


# -- several targets --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_answers_of_several_targets_have_an_axis_for_them():
    y = np.stack([TARGETS["poisson"], TARGETS["negative-binomial"]], axis=1)
    found = GPRegressor(likelihood="poisson", **QUICK).fit(X, y)
    assert found.predict_interval(X).shape == (90, 2, 2)
    assert found.predict_quantiles(X, [0.1, 0.5, 0.9]).shape == (90, 2, 3)
    assert found.sample(X, 4).shape == (90, 2, 4)
    assert found.log_density(X, y).shape == (90,)


@pytest.mark.slow
def test_deep_models_draw_observations():
    found = GPRegressor(likelihood="poisson", method="deep-wsvgp", num_inducing=8, max_steps=3).fit(
        X, TARGETS["poisson"], exposure=EXPOSURE
    )
    draws = found.sample(X, 5, exposure=EXPOSURE)
    assert draws.shape == (90, 5)
    assert np.all(draws == np.floor(draws))
