"""The sums over the rows by themselves: in parts, for fewer inducing inputs, for a scaled kernel, and as a profile."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import KERNELS, assert_close, inducing_inputs, problem, process, sgpr

from agp import GPR, RBF, SGPR
from agp.bounds import (
    Batch,
    Statistics,
    bound_from_totals,
    collapsed_bound,
    collapsed_posterior,
    collapsed_statistics,
    posterior_of,
    profile_of,
    statistics_of,
)
from agp.linalg import cholesky
from agp.selection._collapse import first_inducing, scaled_statistics

SCALES = [(1.0, None), (0.3, 0.2), (40.0, 1e-3), (1e-6, 3.0), (2.5, 50.0)]


def collapsed(kernel="rbf-ard", outputs=1, rows=12, jitter=None):
    """A random model on the host with its data; the default jitter is a share of the kernel."""
    start, X, y = problem(kernel, "whitened", outputs=outputs, rows=rows)
    return sgpr(process(start).kernel, start.likelihood, inducing_inputs(start), X, y, jitter=jitter), X, y


def moved(backend, *args, **options):
    model, X, y = collapsed(*args, **options)
    return backend.move(model), backend.array(X), backend.array(y)


def rescaled(model, factor, noise):
    """The model whose kernel is multiplied, with another noise variance."""
    likelihood = model.likelihood if noise is None else replace(model.likelihood, noise_variance=noise)
    return replace(model, kernel=model.kernel.scale_by(factor), likelihood=likelihood)


def assert_same_statistics(backend, found, expected, tolerance=1e-11):
    for name in Statistics._fields:
        assert_close(backend.numpy(getattr(found, name)), backend.numpy(getattr(expected, name)), tolerance, name)


# -- the bound and the posterior of them ------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [None, 5])
@pytest.mark.parametrize("outputs", [1, 3])
def test_bound_and_posterior_are_those_of_the_statistics(outputs, rows, backend):
    model, X, y = moved(backend, outputs=outputs)
    totals, noise = collapsed_statistics(model, Batch(X, y), block_rows=rows), model.likelihood.noise_variance
    bound, expected = bound_from_totals(totals, noise, X.shape[0], None)[0], collapsed_bound(model, Batch(X, y))[0]
    np.testing.assert_allclose(backend.numpy(bound), backend.numpy(expected), rtol=1e-12)
    found = posterior_of(cholesky(model._inducing_covariance()[0]), totals, noise)
    for name, x in zip(("Lu", "LB", "c"), collapsed_posterior(model, Batch(X, y))[:3], strict=True):
        assert_close(backend.numpy(getattr(found, name)), backend.numpy(x), 1e-11, name)


def test_a_model_gives_its_statistics(backend):
    model, X, y = moved(backend, outputs=3)
    assert_same_statistics(backend, model._statistics(), collapsed_statistics(model, Batch(X, y)))
    assert_same_statistics(backend, model._statistics(memory=1e-4), model._statistics())


def test_statistics_are_sums_over_the_rows(backend):
    model, X, y = moved(backend, outputs=3)
    parts = [collapsed_statistics(model, Batch(X[a:b, :], y[a:b, :])) for a, b in ((0, 5), (5, 6), (6, 12))]
    total = Statistics(*(x + z + w for x, z, w in zip(*parts, strict=True)))
    assert_same_statistics(backend, total, collapsed_statistics(model, Batch(X, y)), 1e-12)


def test_statistics_of_features(backend):
    model, X, y = moved(backend, outputs=3)
    (Kuf, kff, h), _ = model._features(X)
    Lu = cholesky(model._inducing_covariance()[0])
    A = backend.array(np.linalg.solve(backend.numpy(Lu), backend.numpy(Kuf)))
    assert_same_statistics(backend, statistics_of(A, kff, y - h), collapsed_statistics(model, Batch(X, y)), 1e-10)
    assert float(statistics_of(A, 0.0 * kff, y - h).residual) == 0.0  # no term is negative


# -- fewer inducing inputs --------------------------------------------------------------------------------------------


@pytest.mark.sample(10)
@pytest.mark.parametrize("jitter", [1e-3, 1e-8])
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_first_inducing_inputs_are_a_smaller_model(kernel, jitter, backend):
    model, X, y = moved(backend, kernel, outputs=2, rows=20, jitter=jitter)
    totals, M = collapsed_statistics(model, Batch(X, y)), model.inducing.Z.shape[0]
    for count in range(1, M + 1):
        fewer = replace(model, inducing=replace(model.inducing, Z=model.inducing.Z[:count, :]))
        assert_same_statistics(backend, first_inducing(totals, count), collapsed_statistics(fewer, Batch(X, y)), 1e-7)
        found = bound_from_totals(first_inducing(totals, count), model.likelihood.noise_variance, X.shape[0], None)[0]
        expected = collapsed_bound(fewer, Batch(X, y))[0]
        np.testing.assert_allclose(backend.numpy(found), backend.numpy(expected), rtol=1e-8)


# -- a scaled kernel --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("factor", "noise"), SCALES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_statistics_of_a_scaled_kernel(kernel, factor, noise):
    model, X, y = collapsed(kernel, outputs=2)
    found = scaled_statistics(collapsed_statistics(model, Batch(X, y)), factor)
    for name, x in collapsed_statistics(rescaled(model, factor, noise), Batch(X, y))._asdict().items():
        assert_close(getattr(found, name), x, 1e-9, name)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_profile_is_the_bound_of_the_scaled_model(kernel, outputs, backend):
    model, X, y = moved(backend, kernel, outputs=outputs, rows=20)
    profile = profile_of(collapsed_statistics(model, Batch(X, y)), X.shape[0])
    for factor, noise in SCALES:
        noise = float(model.likelihood.noise_variance) if noise is None else noise
        there = rescaled(model, backend.array(np.asarray(factor)), backend.array(np.asarray(noise)))
        expected = float(collapsed_bound(there, Batch(X, y))[0])
        for pair in ((factor, noise), (backend.array(np.asarray(factor)), backend.array(np.asarray(noise)))):
            found = profile.bound(*pair)
            assert found.shape == ()
            assert float(found) == pytest.approx(expected, rel=1e-10, abs=1e-10)


def test_the_profile_of_fewer_inducing_inputs(backend):
    model, X, y = moved(backend, outputs=2, rows=20)
    totals = collapsed_statistics(model, Batch(X, y))
    fewer = replace(model, inducing=replace(model.inducing, Z=model.inducing.Z[:3, :]))
    there = rescaled(fewer, backend.array(np.asarray(0.7)), backend.array(np.asarray(0.2)))
    expected = collapsed_bound(there, Batch(X, y))
    found = profile_of(first_inducing(totals, 3), X.shape[0]).bound(0.7, 0.2)
    assert float(found) == pytest.approx(float(expected[0]), rel=1e-9)


def test_the_profile_in_float32(backend):
    model, X, y = collapsed(outputs=2, rows=20)
    single = backend.move(model, "float32")
    totals = collapsed_statistics(single, Batch(backend.array(X, "float32"), backend.array(y, "float32")))
    profile = profile_of(totals, len(X))
    exact = profile_of(collapsed_statistics(replace(model, jitter=1e-4), Batch(X, y)), len(X))
    found = profile.bound(2.0, 0.5)
    assert backend.numpy(found, "float32").dtype == np.float32
    assert float(found) == pytest.approx(float(exact.bound(2.0, 0.5)), rel=2e-3)


def test_all_rows_as_inducing_inputs_are_the_evidence():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, (15, 2))
    y = np.sin(X[:, :1]) + 0.1 * rng.standard_normal((15, 1))
    model = SGPR.from_data(X, y, kernel=RBF(1.0, 1.0), Z=X, jitter=1e-10)
    profile = profile_of(model._statistics(), 15)
    exact = GPR.from_data(X, y, kernel=RBF(1.0, 1.0))
    for factor, noise in ((1.0, 0.1), (3.0, 0.01), (0.2, 2.0)):
        there = rescaled(replace(exact, mean_function=model.mean_function), factor, np.asarray(noise))
        assert float(profile.bound(factor, noise)) == pytest.approx(float(there.bound(X, y)[0]), rel=1e-5)
