"""A mixture over hyperparameters is the weighted mixture of the exact GPs of its settings, in all predictions."""

import numpy as np
import pytest
from scipy import integrate as quadrature
from scipy import stats

import agp
from agp import GPR, GPRMixture, Linear, Matern52, tree
from agp.backend import to_numpy
from agp.kernels import RBF, Constant
from agp.processes import ExactMixture

RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, (12, 2))
Y = np.sin(2.0 * X[:, :1]) + 0.2 * RNG.standard_normal((12, 1))
NEW = RNG.uniform(-2.5, 2.5, (5, 2))
TARGETS = RNG.standard_normal((5, 1))
KNOWN = {"weights": 0.4 + X[:, 0] ** 2, "offset": 0.3 * X[:, 1], "noise": 0.05 + 0.1 * X[:, 1] ** 2}
CASES = {"plain": {}, "known": KNOWN}


def built(name="plain", settings=24):
    models = [GPR.from_data(X, Y, kernel=one, **CASES[name]) for one in (Matern52() + Linear.centred(X), RBF())]
    return agp.integrate(models, settings=settings).model


@pytest.fixture(scope="module", params=CASES)
def mixture(request):
    return built(request.param)


def parts_of(mixture):
    """The exact GPs of the settings, with the constant that is integrated over, and their weights."""
    models = [mixture.setting(s) for s in range(len(mixture.shares))]
    level = Constant(mixture.level)
    mean = mixture.mean_function  # all settings have the same prior mean
    return mixture.shares, [tree.replace(one, {"kernel": one.kernel + level, "mean_function": mean}) for one in models]


def moments(parts, x=NEW, observed=True):
    found = [model.predict(x, observed=observed) for model in parts]
    return np.stack([one.mean[:, 0] for one in found]), np.stack([one.variance[:, 0] for one in found])


def test_means_and_variances(mixture, backend):
    w, parts = parts_of(mixture)
    on = backend.move(mixture)
    for observed in (False, True):
        m, v = moments(parts, observed=observed)
        found = on.predict(backend.array(NEW), observed=observed)
        np.testing.assert_allclose(to_numpy(found.mean)[:, 0], w @ m, atol=1e-8)
        expected = w @ (v + (m - w @ m) ** 2)
        np.testing.assert_allclose(to_numpy(found.variance)[:, 0], expected, rtol=1e-7)
        mean = on.predict_mean(backend.array(NEW), observed=observed)
        np.testing.assert_allclose(to_numpy(mean)[:, 0], w @ m, atol=1e-8)


def test_means_of_settings_average_to_that_of_the_mixture(mixture):
    found = [mixture.setting(s).predict_mean(NEW) for s in range(len(mixture.shares))]
    np.testing.assert_allclose(np.tensordot(mixture.shares, found, axes=1), mixture.predict_mean(NEW), atol=1e-7)


def test_distribution_of_observations(mixture, backend):
    w, parts = parts_of(mixture)
    m, v = moments(parts)
    s = np.sqrt(v)
    on, x, y = backend.move(mixture).predictor(), backend.array(NEW), backend.array(TARGETS)
    density = np.log(w @ stats.norm.pdf(TARGETS[:, 0], m, s))
    np.testing.assert_allclose(to_numpy(on.log_density(x, y)), density, atol=1e-7)
    np.testing.assert_allclose(to_numpy(on.cdf(x, y))[:, 0], w @ stats.norm.cdf(TARGETS[:, 0], m, s), atol=1e-9)
    for level in (0.01, 0.5, 0.95):
        q = to_numpy(on.quantile(x, level))[:, 0]
        np.testing.assert_allclose(w @ stats.norm.cdf(q, m, s), level, atol=1e-9)


def test_crps_is_the_integral(mixture):
    w, parts = parts_of(mixture)
    m, v = moments(parts)
    s = np.sqrt(v)
    found = mixture.predictor().crps(NEW, TARGETS)[:, 0]
    for n in range(len(NEW)):
        y = TARGETS[n, 0]

        def square(t, n=n, y=y):
            return (w @ stats.norm.cdf(t, m[:, n], s[:, n]) - (t >= y)) ** 2

        ends = [m[:, n].min() - 12.0 * s[:, n].max(), m[:, n].max() + 12.0 * s[:, n].max()]
        total = sum(quadrature.quad(square, a, b, limit=400)[0] for a, b in ((ends[0], y), (y, ends[1])))
        assert np.isclose(found[n], total, rtol=1e-5)


def test_offsets_and_noise_of_new_rows(mixture):
    w, parts = parts_of(mixture)
    m, v = moments(parts)
    offset, noise = RNG.standard_normal(5), RNG.uniform(0.1, 1.0, 5)
    p = mixture.predictor()
    found = p.predict(NEW, observed=True, offset=offset, noise=noise)
    np.testing.assert_allclose(found.mean[:, 0], w @ m + offset, atol=1e-8)
    np.testing.assert_allclose(found.variance[:, 0], w @ (v + (m - w @ m) ** 2) + noise, rtol=1e-7)
    s = np.sqrt(v + noise)
    density = np.log(w @ stats.norm.pdf(TARGETS[:, 0], m + offset, s))
    np.testing.assert_allclose(p.log_density(NEW, TARGETS, offset=offset, noise=noise), density, atol=1e-7)
    found = p.cdf(NEW, TARGETS, offset=offset, noise=noise)[:, 0]
    np.testing.assert_allclose(found, w @ stats.norm.cdf(TARGETS[:, 0], m + offset, s), atol=1e-9)
    q = p.quantile(NEW, 0.9, offset=offset, noise=noise)[:, 0]
    np.testing.assert_allclose(w @ stats.norm.cdf(q, m + offset, s), 0.9, atol=1e-9)


def test_covariances_are_those_within_and_between_settings(mixture, backend):
    w, parts = parts_of(mixture)
    m, _ = moments(parts, observed=False)
    C = np.stack([model.predict_covariance(NEW)[0] for model in parts])
    apart = m - w @ m
    expected = np.tensordot(w, C, axes=1) + (apart.T * w) @ apart
    found = to_numpy(backend.move(mixture).predict_covariance(backend.array(NEW)))
    np.testing.assert_allclose(found[0], expected, atol=1e-7 * expected.max())


def test_gradients(mixture, backend):
    found = [to_numpy(x) for x in backend.move(mixture).gradient(backend.array(NEW))]
    h = 1e-5
    for d in range(2):
        ends = [mixture.predict(NEW + sign * h * np.eye(2)[d]) for sign in (1.0, -1.0)]
        for i, name in enumerate(("mean", "variance")):
            slope = (getattr(ends[0], name) - getattr(ends[1], name)) / (2.0 * h)
            np.testing.assert_allclose(found[i][:, :, d], slope, rtol=1e-4, atol=1e-5)


def test_samples_have_the_moments_of_the_mixture(mixture):
    expected = mixture.predict(NEW)
    covariance = mixture.predict_covariance(NEW)[0]
    deviation = np.sqrt(expected.variance[:, 0])
    for draws in (mixture.sample(NEW, 4000, seed=1)[:, :, 0], mixture.sample_functions(4000, seed=2)(NEW)[:, :, 0]):
        assert draws.shape == (4000, 5)
        np.testing.assert_allclose(draws.mean(axis=0), expected.mean[:, 0], atol=0.1 * deviation.max())
        np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.15 * covariance.max())


def test_functions_at_their_own_inputs(mixture):
    functions = mixture.sample_functions(3, seed=4)
    own = RNG.uniform(-1.0, 1.0, (3, 4, 2))
    values = functions(own)
    for s in range(3):
        np.testing.assert_allclose(values[s], functions(own[s])[s], atol=1e-10)
    bar = RNG.standard_normal(values.shape)
    _, pull = functions.with_pullback(own)
    h, e = 1e-6, RNG.standard_normal(own.shape)
    slope = np.sum(bar * (functions(own + h * e) - functions(own - h * e))) / (2.0 * h)
    assert np.isclose(np.sum(pull(bar) * e), slope, rtol=1e-5)


def test_further_data_reweight_the_settings(mixture, backend):
    w, parts = parts_of(mixture)
    x, y = NEW[:3], TARGETS[:3]
    known = {"weights": np.asarray([1.0, 0.5, 2.0]), "offset": np.asarray([0.1, -0.2, 0.0]), "noise": np.full(3, 0.3)}
    more = []
    for model in parts:
        held = {name: getattr(model, name) for name in ("weights", "offset", "noise")}
        usual = {"weights": np.ones(12), "offset": np.zeros((12, 1)), "noise": np.zeros((12, 1))}
        rows = {name: usual[name] if one is None else one for name, one in held.items()}
        rows = {name: np.concatenate([one, known[name].reshape((3, *one.shape[1:]))]) for name, one in rows.items()}
        data = {"X": np.concatenate([X, x]), "y": np.concatenate([Y, y])}
        more.append(GPR(model.kernel, model.likelihood, mean_function=model.mean_function, **data, **rows))
    gain = [float(b.bound(b.X, b.y)[0]) - float(a.bound(a.X, a.y)[0]) for a, b in zip(parts, more, strict=True)]
    # the part of the correction that depends on the weights alone is common to all settings
    new = w * np.exp(gain - np.max(gain))
    new = new / new.sum()
    m, v = moments(more)
    on = backend.move(mixture).predictor()
    given = {name: backend.array(one) for name, one in known.items()}
    found = on.condition_on(backend.array(x), backend.array(y), **given).predict(backend.array(NEW), observed=True)
    np.testing.assert_allclose(to_numpy(found.mean)[:, 0], new @ m, atol=1e-7)
    np.testing.assert_allclose(to_numpy(found.variance)[:, 0], new @ (v + (m - new @ m) ** 2), rtol=1e-6)


def test_several_sets_of_further_data(mixture):
    p = mixture.predictor()
    sets = RNG.uniform(-1.0, 1.0, (3, 2, 2)), RNG.standard_normal((3, 2))
    both = p.condition_on(*sets)
    assert both.predict(NEW).mean.shape == (3, 5, 1)
    for i in range(3):
        alone = p.condition_on(sets[0][i], sets[1][i])
        np.testing.assert_allclose(both.log_density(NEW, TARGETS)[i], alone.log_density(NEW, TARGETS), atol=1e-9)


def test_left_out_rows_are_those_of_settings_without_them():
    """p(y_n | others) = 1 / E[1 / p(y_n | others, theta)] follows from Bayes' rule for the settings."""
    mixture = built()
    w, parts = parts_of(mixture)
    found = mixture.leave_one_out()
    for n in (0, 5, 11):
        keep = np.arange(12) != n
        rest = [GPR(one.kernel, one.likelihood, X=X[keep], y=Y[keep], mean_function=one.mean_function) for one in parts]
        gains = [float(a.bound(a.X, a.y)[0]) - float(b.bound(b.X, b.y)[0]) for a, b in zip(rest, parts, strict=True)]
        without = w * np.exp(gains - np.max(gains))
        without = without / without.sum()
        m, v = moments(rest, X[n : n + 1])
        expected = np.log(without @ stats.norm.pdf(Y[n, 0], m[:, 0], np.sqrt(v[:, 0])))
        assert np.isclose(found[n], expected, rtol=1e-6)


def test_parts_and_names():
    mixture = built()
    assert isinstance(mixture.mode, GPR)
    assert mixture.kernel is mixture.mode.kernel
    assert mixture.outputs == 1
    assert np.isclose(sum(mixture.kernel_shares()), 1.0)
    assert np.isclose(float(mixture.bound(X, Y)[0]), float(mixture.mode.bound(X, Y)[0]))
    assert isinstance(mixture._posterior_process(), ExactMixture)
    with pytest.raises(IndexError, match="there are 2. settings, numbered from 0"):
        mixture.setting(1000)
    with pytest.raises(TypeError, match="models must be a tuple of one or more GPR"):
        GPRMixture((), mixture.settings, mixture.shares)
    with pytest.raises(ValueError, match="shares must be positive with the sum 1"):
        GPRMixture(mixture.models, mixture.settings, 2.0 * mixture.shares, mixture.mean_function).predict(NEW)
    with pytest.raises(TypeError, match="ExactMixture has an evidence, not a KL divergence; train the model"):
        mixture._posterior_process().sample_marginals(None, NEW, TARGETS)


def test_summary_shows_intervals():
    text = agp.summary(built(), columns=["width", "height"])
    assert "90 % interval" in text
    assert " to " in next(line for line in text.splitlines() if "noise_variance" in line)
    assert not any(line.startswith("settings.") for line in text.splitlines())
    assert "90 % interval" in built()._repr_html_()


def test_several_outputs_share_the_settings():
    both = np.concatenate([Y, np.cos(X[:, :1])], axis=1)
    mixture = agp.integrate(GPR.from_data(X, both, kernel=RBF()), settings=24).model
    w, parts = parts_of(mixture)
    found = mixture.predict(NEW)
    means = np.stack([model.predict(NEW).mean for model in parts])
    np.testing.assert_allclose(found.mean, np.tensordot(w, means, axes=1), atol=1e-8)
    assert mixture.predict_covariance(NEW, cross_outputs=True).shape == (5, 2, 5, 2)
    assert mixture.sample(NEW, 3).shape == (3, 5, 2)
