"""Weights and known noise of rows in `fit_regression`: weights of whole numbers are repeated rows."""

from functools import partial

import numpy as np
import pytest
from tables import WAYS, assert_predicts, bits, table

import agp
from agp import selection
from agp.kernels import RBF
from agp.likelihoods import Bernoulli, Poisson
from agp.selection import _stages, select_kernel

fit_regression = partial(selection.fit_regression, hyperparameters="mode")
"""The search for one setting; `test_few_rows.py` tests the integration over settings."""


def replicates(rows, seed=0):
    """Two targets at each input, which tell the noise whatever the weights, and whole weights."""
    rng = np.random.default_rng(seed)
    X = np.tile(rng.uniform(-2.0, 2.0, size=(rows // 2, 2)), (2, 1))
    y = np.sin(1.5 * X[:, 0]) + 0.5 * X[:, 1] ** 2 + 0.2 * rng.normal(size=len(X))
    return X, y, 1.0 * rng.integers(1, 4, size=len(X))


@pytest.mark.long
@pytest.mark.parametrize(("rows", "seed"), [(16, 2), (30, 0), (60, 0)])  # one kernel is clearly the best
def test_whole_weights_are_repeated_rows(rows, seed, full_size, monkeypatch):
    monkeypatch.setattr(_stages, "POLISH_TOLERANCE", 1e-13)  # where training ends depends on rounding
    monkeypatch.setattr(_stages, "POLISH_STEPS", 200)
    X, y, weights = replicates(rows, seed)
    again = np.repeat(np.arange(len(X)), weights.astype(int))
    weighted, repeated = fit_regression(X, y, weights=weights), fit_regression(X[again], y[again])
    assert weighted.kernel == repeated.kernel
    for name in ("bound", "baseline", "log_density"):
        np.testing.assert_allclose(getattr(weighted, name), getattr(repeated, name), rtol=1e-6)
    for found, expected in zip(weighted.model.predict(X), repeated.model.predict(X), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("way", [way for way in WAYS if way != "both"])  # which learns nothing from so few rows
def test_weights_come_along_every_way(way):
    rows, method = WAYS[way]
    X, y = table(rows)
    weights = np.where(X[:, 0] > 0.0, 1.99, 0.01)
    found = fit_regression(X, y, method=method, weights=weights)
    assert_predicts(found.model, X)
    others = X[:, 0] > 0.3
    uncertain, sure = (found.model.predict(X[side]).variance.mean() for side in (~others, others))
    assert uncertain > 2.0 * sure
    plain = fit_regression(X, y, method=method)
    ones = fit_regression(X, y, method=method, weights=np.ones(rows))
    np.testing.assert_allclose([ones.bound, ones.baseline], [plain.bound, plain.baseline], rtol=1e-3)


@pytest.mark.slow
def test_collapsed_posteriors_take_weights():
    X, y = table(110)
    weights = np.random.default_rng(1).uniform(0.5, 1.5, size=110)
    found = fit_regression(X, y, weights=weights, kernel=RBF(), method="sgpr")
    model = agp.SGPR(
        found.model.kernel,
        found.model.likelihood,
        found.model.inducing,
        X,
        y[:, None],
        found.model.mean_function,
        weights=weights,
    )
    np.testing.assert_allclose(found.bound, float(model.bound(X, y)[0]), rtol=1e-6)
    np.testing.assert_allclose(found.model.predict(X).mean, model.predict(X).mean, atol=1e-6)


@pytest.mark.slow
def test_a_fit_without_signal_predicts_the_weighted_mean(recwarn):
    X, _ = table(50)
    y, weights = np.random.default_rng(3).normal(size=50), np.linspace(0.2, 1.8, 50)
    found = fit_regression(X, y, weights=weights)
    assert not found.learned
    mean, variance = found.model.predict(X[:1], observed=True)
    np.testing.assert_allclose(mean[0, 0], np.average(y, weights=weights), rtol=1e-3)
    np.testing.assert_allclose(variance[0, 0], np.average((y - mean[0, 0]) ** 2, weights=weights), rtol=1e-3)


@pytest.mark.slow
def test_a_checkpoint_knows_its_weights(tmp_path):
    X, y = table(20)
    path, weights = tmp_path / "run.agp", np.linspace(0.5, 1.5, 20)
    first = fit_regression(X, y, weights=weights, checkpoint=path)
    assert bits(fit_regression(X, y, weights=weights, checkpoint=path)) == bits(first)
    for other in (None, weights[::-1].copy()):
        with pytest.raises(ValueError, match="was written by a fit with other values of data"):
            fit_regression(X, y, weights=other, checkpoint=path)


@pytest.mark.slow
def test_kernels_are_compared_with_weights():
    X, y = table(40)
    labels = 1.0 * (y > 1.0)[:, None]
    weights = np.where(np.arange(40) % 3 == 0, 0.0, 1.0)
    kept = weights > 0.0
    found = select_kernel(X, labels, Bernoulli(), weights=weights)
    assert type(found) is type(select_kernel(X[kept], labels[kept], Bernoulli()))


@pytest.mark.slow
def test_kernels_of_counts_are_compared_with_offsets():
    X, y = table(60)
    rng = np.random.default_rng(0)
    offset = rng.normal(size=(60, 1))
    counts = 1.0 * rng.poisson(np.exp(y[:, None] + 3.0 + offset))
    found = select_kernel(X, counts, Poisson(), offset=offset)
    plain = select_kernel(X, 1.0 * rng.poisson(np.exp(y[:, None] + 3.0)), Poisson())
    np.testing.assert_allclose(found.lengthscale, plain.lengthscale, rtol=0.3)


# -- known noise ------------------------------------------------------------------------------------------------------


def noisy_table(rows):
    """A table in which the noise of every third row is large, with the noise variances and the function."""
    X, f = table(rows, noise=0.0)
    noise = np.where(np.arange(rows) % 3 == 0, 4.0, 1e-3)
    return X, f + np.sqrt(noise) * np.random.default_rng(5).normal(size=rows), noise, f


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::agp.errors.NoSignalWarning")  # without the noise
@pytest.mark.parametrize("likelihood", [None, agp.Gaussian(0.0)], ids=["trained", "all known"])
@pytest.mark.parametrize("way", WAYS)
def test_noise_comes_along_every_way(way, likelihood):
    rows, method = WAYS[way]
    X, y, noise, f = noisy_table(rows)
    found = fit_regression(X, y, method=method, noise=noise, likelihood=likelihood)
    assert_predicts(found.model, X)
    plain = fit_regression(X, y, method=method)
    errors = [np.mean((one.model.predict(X).mean[:, 0] - f) ** 2) for one in (found, plain)]
    assert errors[0] < 0.5 * errors[1]
    if likelihood is not None:
        assert found.model.likelihood.noise_variance == 0.0


@pytest.mark.slow
def test_the_bound_with_noise_is_that_of_the_model():
    X, y, noise, _ = noisy_table(50)
    found = fit_regression(X, y, noise=noise, kernel=RBF())
    np.testing.assert_allclose(found.bound, float(found.model.bound(X, y)[0]), rtol=1e-9)
    assert found.model.noise.shape == (50, 1)
    X, y, noise, _ = noisy_table(110)
    found = fit_regression(X, y, noise=noise, kernel=RBF(), method="sgpr")
    parts = found.model.kernel, found.model.likelihood, found.model.inducing
    model = agp.SGPR(*parts, X, y[:, None], found.model.mean_function, noise=noise[:, None])
    np.testing.assert_allclose(found.bound, float(model.bound(X, y)[0]), rtol=1e-6)
    np.testing.assert_allclose(found.model.predict(X).mean, model.predict(X).mean, atol=1e-6)


@pytest.mark.slow
def test_a_checkpoint_knows_its_noise(tmp_path):
    X, y, noise, _ = noisy_table(40)
    path = tmp_path / "run.agp"
    first = fit_regression(X, y, noise=noise, checkpoint=path)
    assert bits(fit_regression(X, y, noise=noise, checkpoint=path)) == bits(first)
    for other in ({}, {"noise": np.roll(noise, 1)}, {"weights": noise}):
        with pytest.raises(ValueError, match="was written by a fit with other values of data"):
            fit_regression(X, y, checkpoint=path, **other)
