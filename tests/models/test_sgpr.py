"""SGPR: construction, the order of the bounds, conversion to W-SVGP, predictions, training."""

import math

import numpy as np
import pytest
from helpers import assert_close, gpr, inducing_inputs, named, process, replaced, toy_data, value_and_gradient
from hypothesis import given, settings
from hypothesis import strategies as st

from agp import GPR, RBF, SGPR, SVGP, Bernoulli, ConstantMean, Gaussian, Matern32, to_backend, to_numpy, train
from agp.posteriors import Whitened

deterministic = settings(derandomize=True, max_examples=60, deadline=None, database=None)


def build(X, y, Z, *, kernel=None, noise=0.1, jitter=1e-6):
    return SGPR.from_data(X, y, kernel=kernel or Matern32(1.0, 0.8), likelihood=Gaussian(noise), Z=Z, jitter=jitter)


def exact(model):
    return gpr(model.kernel, model.likelihood, model.X, model.y, model.mean_function)


def value(bound):
    return float(bound[0])


# -- construction -----------------------------------------------------------------------------------------------------


def test_it_starts_where_svgp_starts(backend):
    X, y = (backend.array(x) for x in toy_data(30))
    model = SGPR.from_data(X, y, num_inducing=7, seed=4)
    start = SVGP.from_data(X, y, posterior=Whitened, num_inducing=7, seed=4)
    assert not model.stochastic
    assert model.outputs == 1
    assert list(named(model, "parameter")) == [
        "kernel.variance",
        "kernel.lengthscale",
        "likelihood.noise_variance",
        "Z",
        "mean_function.value",
    ]
    for name, leaf in named(model, "parameter").items():
        np.testing.assert_array_equal(backend.numpy(leaf), backend.numpy(named(start)[name]))


def test_it_holds_a_copy_of_the_data():
    X, y = toy_data(20)
    expected = X.copy()
    model = SGPR.from_data(X, y[:, 0], num_inducing=5)
    X[:] = 0.0
    np.testing.assert_array_equal(model.X, expected)
    assert model.y.shape == (20, 1)


def test_other_likelihoods_are_refused():
    X, y = toy_data(20)
    with pytest.raises(TypeError, match="SGPR needs the Gaussian likelihood, not Bernoulli; use SVGP"):
        SGPR.from_data(X, y, likelihood=Bernoulli(), num_inducing=5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_inducing": 21}, "num_inducing is 21"),
        ({"Z": np.zeros((21, 2))}, "Z has 21 rows, but X has 20"),
        ({"num_inducing": 5, "jitter": -1.0}, "jitter is -1.0"),
        ({"num_inducing": 5, "kernel": RBF(-1.0, 1.0)}, "variance is -1.0, but must be positive"),
    ],
)
def test_bad_options_are_refused(options, message):
    X, y = toy_data(20)
    with pytest.raises(ValueError, match=message):
        SGPR.from_data(X, y, **options)


def test_it_needs_all_data_at_once():
    X, y = toy_data(20)
    model = SGPR.from_data(X, y, num_inducing=5)
    with pytest.raises(ValueError, match="the bound of SGPR needs all data at once, but scale is 2"):
        model.bound(X, y, scale=2.0)
    with pytest.raises(ValueError, match="the bound of SGPR needs all rows at once; omit batch_size"):
        train(model, X, y, steps=1, batch_size=10)


def test_it_is_trained_on_the_data_that_it_holds():
    X, y = toy_data(20)
    model = SGPR.from_data(X, y, num_inducing=5)
    for data in ((X, y + 1.0), (X + 1.0, y), (X[:10], y[:10])):
        with pytest.raises(ValueError, match="SGPR predicts from the data with which it was built"):
            train(model, *data, steps=1)


@pytest.mark.slow
@pytest.mark.sample(2)
def test_training_raises_the_bound_and_resumes(tmp_path, backend):
    X, y = (backend.array(x) for x in toy_data(25, 2))
    model = SGPR.from_data(X, y, num_inducing=6)
    whole = train(model, X, y, steps=20)
    assert whole.trace["bound"][-1] > whole.trace["bound"][0] + 1.0
    train(model, X, y, steps=20, checkpoint=tmp_path / "whole.safetensors", callbacks=[lambda seen: seen.step == 7])
    resumed = train(model, X, y, steps=20, checkpoint=tmp_path / "whole.safetensors")
    for name, leaf in named(whole.model).items():
        assert_close(backend.numpy(named(resumed.model)[name]), backend.numpy(leaf), 1e-9, name)


# -- the order of the bounds ------------------------------------------------------------------------------------------

problems = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32 - 1),
        "rows": st.integers(8, 20),
        "inducing": st.integers(1, 7),
        "columns": st.integers(1, 3),
        "outputs": st.sampled_from([1, 3]),
        "kernel": st.sampled_from([RBF, Matern32]),
        "noise": st.sampled_from([0.01, 0.1, 1.0]),
        "lengthscale": st.sampled_from([0.3, 1.0, 3.0]),
    }
)


def random_model(seed, rows, inducing, columns, outputs, kernel, noise, lengthscale, jitter=1e-6):
    rng = np.random.default_rng(seed)
    X, Z = rng.normal(size=(rows, columns)), rng.normal(size=(inducing, columns))
    y = rng.normal(size=(rows, outputs))
    return build(X, y, Z, kernel=kernel(0.8, lengthscale), noise=noise, jitter=jitter)


def slack(x):
    return 1e-9 * (1.0 + abs(x))


@pytest.mark.long
@deterministic
@given(problems)
def test_the_evidence_lies_between_the_bounds(options):
    model = random_model(**options)
    evidence = value(exact(model).bound(model.X, model.y))
    upper = float(model.upper_bound(model.X, model.y))
    assert value(model.bound(model.X, model.y)) <= evidence + slack(evidence)
    assert evidence <= upper + slack(upper)


@pytest.mark.slow
@deterministic
@given(problems)
def test_one_more_inducing_point_never_hurts(options):
    model = random_model(**options)
    Z = inducing_inputs(model)
    more = replaced(model, Z=np.concatenate([Z, np.random.default_rng(9).normal(size=(1, Z.shape[1]))]))
    bound = value(model.bound(model.X, model.y))
    # jitter acts as noise on u, so that a point next to another one helps a little less than it could
    assert value(more.bound(model.X, model.y)) >= bound - slack(bound)


@pytest.mark.slow
@deterministic
@given(problems)
def test_the_textbook_bound(options):
    model = random_model(**options)
    Kuu = model.kernel(inducing_inputs(model))[0] + 1e-6 * np.eye(inducing_inputs(model).shape[0])
    Kuf, kff = model.kernel(inducing_inputs(model), model.X)[0], model.kernel.diag(model.X)[0]
    Qff, noise = Kuf.T @ np.linalg.solve(Kuu, Kuf), float(model.likelihood.noise_variance)
    K, y = Qff + noise * np.eye(len(Qff)), model.y
    r = y - model.mean_function.value
    fit = np.sum(r * np.linalg.solve(K, r)) + y.shape[1] * np.linalg.slogdet(K)[1] + y.size * math.log(2.0 * math.pi)
    expected = -0.5 * (fit + y.shape[1] * np.sum(kff - np.diag(Qff)) / noise)
    assert value(model.bound(model.X, y)) == pytest.approx(expected, rel=1e-8, abs=1e-8)


@pytest.mark.slow
@deterministic
@given(problems)
def test_the_converted_model_has_the_same_bound(options):
    model = random_model(**options)
    sparse = model.to_svgp()
    assert isinstance(process(sparse).posterior, Whitened)
    assert process(sparse).posterior.scale.shape == (model.outputs, *(2 * inducing_inputs(model).shape[:1]))
    np.testing.assert_array_equal(process(sparse).posterior.scale, np.tril(process(sparse).posterior.scale))
    bound = value(model.bound(model.X, model.y))
    assert value(sparse.bound(model.X, model.y)) == pytest.approx(bound, rel=1e-8, abs=1e-8)


@pytest.mark.slow
@deterministic
@given(problems)
def test_the_converted_q_is_optimal(options):
    model = random_model(**options)
    gradient = value_and_gradient(model.to_svgp(), model.X, model.y)[1]
    scale = 1.0 / float(model.likelihood.noise_variance)
    for name in ("posterior.mean", "posterior.scale"):
        np.testing.assert_allclose(gradient[name], 0.0, atol=1e-7 * scale * model.X.shape[0])


@pytest.mark.long
@deterministic
@given(problems)
def test_hyperparameters_have_the_gradient_of_the_converted_model(options):
    # q(u) is optimal, so that its change with the hyperparameters does not count
    model = random_model(**options, jitter=1e-3)
    ours = value_and_gradient(model, model.X, model.y)[1]
    theirs = value_and_gradient(model.to_svgp(), model.X, model.y)[1]
    for name in ours:
        size = max(1.0, float(np.max(np.abs(ours[name]))))
        np.testing.assert_allclose(ours[name], theirs[name], atol=1e-6 * size, err_msg=name)


@pytest.mark.slow
@deterministic
@given(problems)
def test_inducing_points_at_the_data_give_the_evidence(options):
    model = random_model(**options | {"kernel": Matern32}, jitter=1e-10)
    model = replaced(model, Z=model.X)
    evidence = value(exact(model).bound(model.X, model.y))
    assert value(model.bound(model.X, model.y)) == pytest.approx(evidence, rel=1e-5, abs=1e-5)
    assert float(model.upper_bound(model.X, model.y)) == pytest.approx(evidence, rel=1e-5, abs=1e-5)


@pytest.mark.slow
@deterministic
@given(problems)
def test_the_order_of_inducing_points_and_rows_does_not_matter(options):
    model = random_model(**options)
    X, y = model.X[::-1].copy(), model.y[::-1].copy()
    other = replaced(model, Z=inducing_inputs(model)[::-1].copy(), X=X, y=y)
    assert value(other.bound(X, y)) == pytest.approx(value(model.bound(model.X, model.y)), rel=1e-8, abs=1e-8)
    upper = float(model.upper_bound(model.X, model.y))
    assert float(other.upper_bound(X, y)) == pytest.approx(upper, rel=1e-8, abs=1e-8)


@pytest.mark.slow
@deterministic
@given(problems, st.sampled_from([0.1, 3.0, 100.0]))
def test_units_of_the_targets_shift_both_bounds(options, a):
    model = random_model(**options)
    kernel = type(model.kernel)(a * a * model.kernel.variance, model.kernel.lengthscale)
    likelihood = Gaussian(a * a * model.likelihood.noise_variance)
    mean = ConstantMean(a * model.mean_function.value)
    parts = {"kernel": kernel, "likelihood": likelihood, "mean_function": mean, "jitter": a * a * 1e-6}
    scaled = replaced(model, y=a * model.y, **parts)
    shift = -model.y.size * math.log(a)
    for ours, theirs in (
        (value(scaled.bound(scaled.X, scaled.y)), value(model.bound(model.X, model.y))),
        (float(scaled.upper_bound(scaled.X, scaled.y)), float(model.upper_bound(model.X, model.y))),
    ):
        assert ours == pytest.approx(theirs + shift, rel=1e-9, abs=1e-9 * model.y.size / 1e-2)


def test_the_gap_closes_with_more_inducing_points():
    X, y = toy_data(200)
    gaps = []
    for M in (5, 20, 80):
        model = build(X, y, X[:M], kernel=RBF(1.0, 1.0))
        gaps.append((float(model.upper_bound(X, y)) - value(model.bound(X, y))) / 200)
    assert gaps[0] > gaps[1] > gaps[2] > 0.0
    assert gaps[2] < 0.05 * gaps[0]


# -- prediction -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [1, 3])
def test_predictions_are_the_textbook_ones(outputs):
    X, y = toy_data(40, outputs)
    Xs = toy_data(15, seed=8)[0]
    model = build(X, y, X[:9, :])
    Z, noise = inducing_inputs(model), float(model.likelihood.noise_variance)
    Kuu = model.kernel(Z)[0] + 1e-6 * np.eye(9)
    Kuf, Kus, Kss = (model.kernel(Z, X)[0], model.kernel(Z, Xs)[0], model.kernel(Xs)[0])
    Sigma = np.linalg.inv(Kuu + Kuf @ Kuf.T / noise)
    covariance = Kss - Kus.T @ (np.linalg.inv(Kuu) - Sigma) @ Kus
    mean, variance = model.predict(Xs)
    level = model.mean_function.value
    assert_close(mean, level + Kus.T @ Sigma @ Kuf @ (y - level) / noise, 1e-8)
    assert_close(variance, np.tile(np.diag(covariance)[:, None], (1, outputs)), 1e-6)
    assert_close(model.predict_covariance(Xs), np.tile(covariance, (outputs, 1, 1)), 1e-6)


@pytest.mark.parametrize("outputs", [1, 3])
def test_predictions_are_those_of_the_converted_model(outputs, backend):
    X, y = (backend.array(x) for x in toy_data(40, outputs))
    Xs = backend.array(toy_data(15, seed=8)[0])
    model = build(X, y, X[:9, :])
    sparse = model.to_svgp()
    for observed in (False, True):
        for ours, theirs in zip(
            model.predict(Xs, observed=observed), sparse.predict(Xs, observed=observed), strict=True
        ):
            assert_close(backend.numpy(ours), backend.numpy(theirs), 1e-9)
    assert_close(backend.numpy(model.predict_mean(Xs)), backend.numpy(sparse.predict_mean(Xs)), 1e-9)
    covariance = model.predict_covariance(Xs)
    assert covariance.shape == (outputs, 15, 15)
    assert_close(backend.numpy(covariance), backend.numpy(sparse.predict_covariance(Xs)), 1e-9)
    ys = backend.array(toy_data(15, outputs, seed=8)[1])
    assert_close(backend.numpy(model.log_density(Xs, ys)), backend.numpy(sparse.log_density(Xs, ys)), 1e-9)


def test_covariances_have_the_variances_on_their_diagonal():
    X, y = toy_data(40, 3)
    model, Xs = build(X, y, X[:9]), toy_data(15, seed=8)[0]
    covariance = model.predict_covariance(Xs)
    np.testing.assert_allclose(np.diagonal(covariance, axis1=1, axis2=2).T, model.predict(Xs).variance, atol=1e-12)
    np.testing.assert_allclose(covariance, np.swapaxes(covariance, 1, 2), atol=1e-12)


def test_predictions_with_all_points_are_exact():
    X, y = toy_data(40, 3)
    model, Xs = build(X, y, X, jitter=1e-10), toy_data(15, seed=8)[0]
    for ours, theirs in zip(model.predict(Xs), exact(model).predict(Xs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7)


def test_chunks_change_nothing():
    X, y = toy_data(40, 3)
    model, Xs = build(X, y, X[:9]), toy_data(50, seed=8)[0]
    for ours, theirs in zip(model.predict(Xs, memory=0.01), model.predict(Xs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)


def test_the_converted_model_lives_where_the_data_live(backend):
    X, y = (backend.array(x, "float32") for x in toy_data(40, 2))
    sparse = SGPR.from_data(X, y, num_inducing=9).to_svgp()
    for leaf in named(sparse).values():
        backend.check(leaf, "float32")


def test_it_moves_between_libraries(backend):
    X, y = toy_data(40, 2)
    model, Xs = build(X, y, X[:9]), toy_data(15, seed=8)[0]
    moved = backend.move(model)
    for ours, theirs in zip(moved.predict(backend.array(Xs)), model.predict(Xs), strict=True):
        assert_close(backend.numpy(ours), theirs, 1e-9)
    back = to_backend(moved, "numpy")
    for name, leaf in named(back).items():
        np.testing.assert_array_equal(to_numpy(leaf), named(model)[name])


# -- the exact GP -----------------------------------------------------------------------------------------------------


def test_chunks_of_the_exact_gp_count_the_arrays_of_its_kernel():
    X, y = toy_data(20)
    one = GPR.from_data(X, y, kernel=RBF(1.0, 1.0))._posterior_process().floats_per_row
    two = GPR.from_data(X, y, kernel=RBF(1.0, 1.0) + RBF(1.0, 0.1))._posterior_process().floats_per_row
    assert two > one >= 20 * RBF(1.0, 1.0).floats_per_entry
