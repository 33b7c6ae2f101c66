"""Weights of rows in `fit_regression`: those of whole numbers are repeated rows."""

import numpy as np
import pytest
from tables import WAYS, assert_predicts, bits, table

import agp
from agp.kernels import RBF
from agp.likelihoods import Bernoulli, Weighted
from agp.selection import fit_regression, select_kernel


def replicates(rows, seed=0):
    """Two targets at each input, which tell the noise whatever the weights, and whole weights."""
    rng = np.random.default_rng(seed)
    X = np.tile(rng.uniform(-2.0, 2.0, size=(rows // 2, 2)), (2, 1))
    y = np.sin(1.5 * X[:, 0]) + 0.5 * X[:, 1] ** 2 + 0.2 * rng.normal(size=len(X))
    return X, y, 1.0 * rng.integers(1, 4, size=len(X))


@pytest.mark.long
@pytest.mark.parametrize(("rows", "seed"), [(16, 2), (30, 0), (60, 0)])  # one kernel is clearly the best
def test_whole_weights_are_repeated_rows(rows, seed, full_size):
    X, y, weights = replicates(rows, seed)
    again = np.repeat(np.arange(len(X)), weights.astype(int))
    weighted, repeated = fit_regression(X, y, weights=weights), fit_regression(X[again], y[again])
    assert weighted.kernel == repeated.kernel
    for name in ("bound", "baseline", "log_density"):
        np.testing.assert_allclose(getattr(weighted, name), getattr(repeated, name), rtol=1e-6)
    for found, expected in zip(weighted.model.predict(X), repeated.model.predict(X), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
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
    found = fit_regression(X, y, weights=weights, kernel=RBF())
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
    weights = np.where(np.arange(40)[:, None] % 3 == 0, 0.0, 1.0)
    kept = weights[:, 0] > 0.0
    found = select_kernel(X, np.concatenate([labels, weights], axis=1), Weighted(Bernoulli()))
    assert type(found) is type(select_kernel(X[kept], labels[kept], Bernoulli()))
