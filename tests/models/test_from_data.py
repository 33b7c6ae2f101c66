"""Where models start."""

import numpy as np
import pytest
from helpers import inducing_covariance, inducing_inputs, process

from agp import GPR, RBF, SVGP, Bernoulli, Gaussian, Matern32, to_backend, to_numpy, tree
from agp.inducing import kmeans
from agp.posteriors import Relaxed, Whitened
from agp.training import initial_state


def data(dtype="float64"):
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(40, 2)) * [1.0, 20.0]).astype(dtype)
    return X, (3 * np.sin(X[:, :1])).astype(dtype)


@pytest.mark.parametrize(
    "start", [GPR.from_data, lambda X, y: SVGP.from_data(X, y, num_inducing=5)], ids=["gpr", "svgp"]
)
def test_hyperparameters_start_at_the_scales_of_the_data(start):
    # lengthscales: the spreads times sqrt(D), here the shorter of three multiples, and long for the idle column
    X, y = data()
    model = start(X, y)
    usual = np.sqrt(2.0) * X.std(axis=0)
    np.testing.assert_allclose(process(model).kernel.lengthscale_unit, usual)
    first, second = process(model).kernel.lengthscale / usual
    assert 0.3 <= first <= 1.0
    assert second > 3.0 * first
    np.testing.assert_allclose(process(model).kernel.variance, y.var())
    np.testing.assert_allclose(model.likelihood.noise_variance, 0.1 * y.var())


def test_rows_of_many_columns_are_not_strangers_at_the_start():
    # of 784 columns at one spread each, every covariance would be exp(-784), zero with all its slopes; at sqrt(784) of
    # them, which is where the comparison begins, r2 is about 2
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 784)).astype(np.float32)
    model = SVGP.from_data(X, X[:, :1], num_inducing=10, inducing="random")
    kernel = process(model).kernel
    first = RBF().from_data(X, 1.0)
    np.testing.assert_allclose(first.lengthscale, X.std(axis=0) * 28.0, rtol=1e-5)
    for one in (first, kernel):
        assert 1e-8 < np.median(one(X)[0] / one.variance) < 0.999


def test_what_the_user_gives_stays():
    X, y = data()
    kernel = Matern32(lengthscale=0.25)
    model = SVGP.from_data(X, y, kernel=kernel, likelihood=Gaussian(0.5), Z=X[:3], jitter=1e-3)
    assert process(model).kernel.lengthscale == 0.25
    np.testing.assert_allclose(process(model).kernel.variance, y.var())
    assert model.likelihood.noise_variance == 0.5
    assert process(model).jitter == 1e-3
    np.testing.assert_array_equal(inducing_inputs(model), X[:3])
    assert kernel.variance is None


def test_parts_of_a_sum_share_the_variance():
    X, y = data()
    kernel = process(SVGP.from_data(X, y, kernel=RBF() + Matern32(), num_inducing=5)).kernel
    assert [float(part.variance) for part in kernel.parts] == pytest.approx([y.var() / 2] * 2)


def test_the_latent_variance_of_classification_starts_at_one():
    X, y = data()
    model = SVGP.from_data(X, (y > 0) * 1.0, likelihood=Bernoulli(), num_inducing=5)
    assert process(model).kernel.variance == 1.0


@pytest.mark.parametrize("P", [1, 3])
def test_whitened_starts_at_the_prior(P):
    X, y = data()
    model = SVGP.from_data(X, np.tile(y, (1, P)), posterior=Whitened, num_inducing=5)
    mu, var = model.predict(X)
    assert model.process.kl_divergence(model.process.factorise()[0])[0] == 0
    assert process(model).posterior.outputs == P
    np.testing.assert_allclose(mu, y.mean(), rtol=1e-12)
    np.testing.assert_allclose(var, y.var())


@pytest.mark.parametrize("P", [1, 3])
def test_relaxed_begins_with_zero_mean_and_small_sites(P):
    X, y = data()
    model = initial_state(SVGP.from_data(X, np.tile(y, (1, P)), posterior=Relaxed, num_inducing=5))
    np.testing.assert_array_equal(process(model).posterior.mean, np.zeros((5, P)))
    np.testing.assert_allclose(process(model).posterior.site, 1e-4 * process(model).kernel.variance, rtol=1e-5)
    assert process(model).posterior.preconditioned


@pytest.mark.parametrize(("dtype", "relative"), [("float64", 1e-6), ("float32", 1e-4)])
def test_jitter_is_relative_by_default_and_absolute_if_given(dtype, relative):
    X, y = data(dtype)
    kernel = RBF(4.0, [1.0, 20.0])
    for jitter, expected in ((None, 4.0 * relative), (0.125, 0.125), (0.0, 0.0)):
        model = SVGP.from_data(X, y, kernel=kernel, num_inducing=5, jitter=jitter)
        diagonal = np.diag(inducing_covariance(model)) - 4.0
        np.testing.assert_allclose(diagonal, expected, rtol=1e-2, atol=1e-12)


def test_inducing_inputs_depend_on_the_seed_alone():
    X, y = data()
    first, again, other = (inducing_inputs(SVGP.from_data(X, y, num_inducing=5, seed=seed)) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    np.testing.assert_array_equal(first, kmeans(X, 5, seed=3))


@pytest.mark.parametrize("library", ["torch", "array_api_strict"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("posterior", [Whitened, Relaxed])
def test_every_library_starts_at_the_same_numbers(posterior, dtype, library):
    pytest.importorskip(library)
    X, y = data(dtype)
    expected = tree.leaves(SVGP.from_data(X, y, posterior=posterior, num_inducing=5))
    found = tree.leaves(
        SVGP.from_data(to_backend(X, library), to_backend(y, library), posterior=posterior, num_inducing=5)
    )
    rtol = 1e-9 if dtype == "float64" else 1e-4
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert to_numpy(found[name]).dtype == np.dtype(dtype), name
        np.testing.assert_allclose(to_numpy(found[name]), value, rtol=rtol, atol=rtol * np.abs(value).max())


def test_the_outline_of_a_model_shows_names_and_shapes_and_no_numbers():
    X, y = data()
    text = tree.outline(SVGP.from_data(X, y, num_inducing=5))
    assert text.startswith(
        "SVGP(process=Sparse(kernel=RBF(variance=float64[], lengthscale=float64[2]), inducing=Points(Z=float64[5, 2])"
    )
    assert "likelihood=Gaussian(noise_variance=float64[], missing=False)" in text


def test_models_are_frozen():
    X, y = data()
    with pytest.raises(AttributeError):
        SVGP.from_data(X, y, num_inducing=5).process = None
