"""CGGP: the exact GP where it is exact, an unbiased estimate of it elsewhere, in a bounded memory."""

import dataclasses

import numpy as np
import pytest
from helpers import EXACT, JAX, NUMPY, TORCH, assert_close, gpr, peak, toy_data

import agp
from agp import CGGP, GPR, Matern32, tree
from agp.backend import get_backend
from agp.bounds import Batch
from agp.errors import RepairWarning
from agp.gradient import gradient_of_batch
from agp.linalg import conjugate_gradients
from agp.random import Draws
from agp.updates import Adam

ROWS = 30


def parts():
    kernel = agp.RBF(1.2, (0.8, 1.1)) + Matern32(0.4, 0.9)
    return {"kernel": kernel, "likelihood": agp.Gaussian(0.1), "mean_function": agp.ConstantMean((0.2, -0.1))}


def models(outputs=2, **options):
    """CGGP and GPR with the same values on the host, and the data."""
    X, y = toy_data(ROWS, outputs)
    same = parts() if outputs == 2 else parts() | {"mean_function": agp.ZeroMean()}
    settings = {"rank": 8, "tolerance": 1e-12, "lanczos_steps": ROWS} | options
    return CGGP.from_data(X, y, **same, **settings), GPR.from_data(X, y, **same), X, y


@pytest.fixture(params=[ROWS, 7], ids=["one-tile", "tiles"])
def tiles(request, monkeypatch):
    """The rows of K that fit into the memory."""
    monkeypatch.setattr(CGGP, "_block_rows", lambda _self, _memory: request.param)
    return request.param


def with_draws(place, model, X, y, seed=0):
    """A batch in a place, with the probes of a seed."""
    probes = model._draws(np.random.default_rng(seed), len(X)).whole
    draws = Draws({}, {name: place.array(x) for name, x in probes.items()})
    return Batch(place.array(X), place.array(y), 1.0, None, draws)


def compiled_gradient(place, model, batch, gradient="closed-form"):
    """Value and gradient as training computes them: compiled where the library can."""
    return get_backend(place.name).compile(lambda model, batch: gradient_of_batch(model, batch, gradient))(model, batch)


def flat(gradient):
    return np.concatenate([np.ravel(gradient[name]) for name in sorted(gradient)])


# -- where it is exact ------------------------------------------------------------------------------------------------


def test_a_preconditioner_of_full_rank_gives_the_log_evidence():
    model, exact, X, y = models(rank=ROWS)
    assert float(model.bound(X, y)[0]) == pytest.approx(float(exact.bound(X, y)[0]), rel=1e-10)


@pytest.mark.parametrize("rank", [0, 8])
def test_probes_that_fill_the_space_give_the_gradient_of_the_log_evidence(rank, tiles):
    # z_i = sqrt(t) [U, sigma I] e_i: sum_i z_i z_i^T / t is P, not only on average
    model, exact, X, y = models(rank=rank)
    count = rank + ROWS
    noise = np.sqrt(count) * np.eye(count)
    draws = Draws({}, {"low": noise[:rank], "full": noise[rank:]})
    found = gradient_of_batch(model, Batch(X, y, 1.0, None, draws), "closed-form")[1]
    expected = gradient_of_batch(exact, exact._batch(X, y), "closed-form")[1]
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        assert_close(found[name], x, EXACT, name)


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 8])
def test_value_and_gradient_are_unbiased(rank):
    model, exact, X, y = models(rank=rank, probes=4)
    samples = []
    for seed in range(100):
        value, gradient = gradient_of_batch(model, with_draws(NUMPY, model, X, y, seed), "closed-form")
        samples.append(np.concatenate([[value], flat(gradient)]))
    value, gradient = gradient_of_batch(exact, exact._batch(X, y), "closed-form")
    expected = np.concatenate([[value], flat(gradient)])
    error = np.abs(np.mean(samples, axis=0) - expected)
    spread = np.std(samples, axis=0) / np.sqrt(len(samples))
    assert np.all(error <= 4.0 * spread + 1e-8)
    assert spread[0] > 1e-3  # so the limit above means something
    assert np.all(spread[[0, 1]] < 0.1 * np.abs(expected[[0, 1]]))


# -- gradients and backends -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("place", "rows"), [(TORCH, ROWS), (TORCH, 7), (JAX, 7)], ids=["torch", "torch-tiles", "jax"])
def test_the_closed_form_is_what_autodiff_finds(place, rows, monkeypatch):
    pytest.importorskip(place.name, reason=f"{place.name} is not installed: not executed")
    monkeypatch.setattr(CGGP, "_block_rows", lambda _self, _memory: rows)
    model, _, X, y = models()
    value, gradient = compiled_gradient(place, place.move(model), with_draws(place, model, X, y), "autodiff")
    expected_value, expected = gradient_of_batch(model, with_draws(NUMPY, model, X, y), "closed-form")
    assert float(place.numpy(value)) == pytest.approx(float(expected_value), rel=1e-10)
    assert np.linalg.norm(flat(expected)) > 1.0
    for name, x in expected.items():
        assert_close(place.numpy(gradient[name]), x, EXACT, name)


@pytest.mark.slow
def test_every_backend_gives_the_same_numbers_from_any_tiles(backend, monkeypatch):
    model, _, X, y = models()
    expected_value, expected = gradient_of_batch(model, with_draws(NUMPY, model, X, y), "closed-form")
    monkeypatch.setattr(CGGP, "_block_rows", lambda _self, _memory: 7)
    value, gradient = compiled_gradient(backend, backend.move(model), with_draws(backend, model, X, y))
    assert float(backend.numpy(value)) == pytest.approx(float(expected_value), rel=1e-9)
    for name, x in expected.items():
        assert_close(backend.numpy(gradient[name]), x, 1e-9, name)


@pytest.mark.slow
def test_training_takes_the_same_steps_everywhere(backend):
    model, _, X, y = models(outputs=1, probes=3, lanczos_steps=10)
    expected = agp.train(model, X, y, steps=3, updates=[Adam(0.05)], seed=5)
    assert not expected.repairs
    here = backend.array(X), backend.array(y)
    found = agp.train(backend.move(model), *here, steps=3, updates=[Adam(0.05)], seed=5)
    np.testing.assert_allclose(found.trace["bound"], expected.trace["bound"], rtol=1e-8)
    for name, leaf in tree.leaves(expected.model).items():
        assert_close(backend.numpy(tree.leaves(found.model)[name]), leaf, 1e-8, name)
    other = agp.train(model, X, y, steps=3, updates=[Adam(0.05)], seed=6)
    assert other.trace["bound"][0] != expected.trace["bound"][0]


def test_a_bound_without_draws_has_probes_of_its_own():
    model, exact, X, y = models(probes=40)
    value = float(model.bound(X, y)[0])
    assert value == float(model.bound(X, y)[0])
    assert value == pytest.approx(float(exact.bound(X, y)[0]), abs=4.0)
    assert value != float(exact.bound(X, y)[0])


@pytest.mark.slow
def test_training_comes_near_the_exact_optimum():
    X, y = toy_data(40)
    model = CGGP.from_data(X, y)
    exact = GPR.from_data(X, y)
    best = agp.fit_lbfgs(exact, X, y)
    trained = agp.train(model, X, y, steps=80, updates=[Adam(0.1)]).model
    reached = gpr(trained.kernel, trained.likelihood, X, y).bound(X, y)[0]
    start = exact.bound(X, y)[0]
    assert reached > best.trace["bound"][-1] - 0.05 * (best.trace["bound"][-1] - start)


def test_lbfgs_refuses_a_noisy_objective():
    model, _, X, y = models()
    with pytest.raises(TypeError, match=r"uses random draws \(low, full\); use agp.train"):
        agp.fit_lbfgs(model, X, y)


# -- predictions ------------------------------------------------------------------------------------------------------


def posterior_moments(model, X):
    process = model._posterior_process()
    return process.project(process.factorise()[0], X)[0]


def test_predictions_are_those_of_the_exact_gp(backend, monkeypatch):
    monkeypatch.setattr(CGGP, "_block_rows", lambda _self, _memory: 17)
    model, exact, X, _ = models(prediction_tolerance=1e-10)
    there = X[:9] + 0.3
    here, inputs = backend.move(model), backend.array(there)
    if backend.name == "jax":  # an eager loop compiles each of its operations
        mean, variance = get_backend("jax").compile(posterior_moments)(here, inputs)
    else:
        mean, variance = here.predict(inputs)
    expected = exact.predict(there)
    assert_close(backend.numpy(mean), expected.mean, 1e-8)
    assert_close(backend.numpy(variance), expected.variance, 1e-8)


@pytest.fixture
def in_tiles(monkeypatch):
    """A memory in which K does not fit, so that predictions solve by iteration, with the preconditioner of training."""
    monkeypatch.setattr(CGGP, "_block_rows", lambda _self, _memory: 7)
    monkeypatch.setattr("agp.models._cggp.PREDICTION_RANK", 0)


@pytest.mark.slow
def test_the_tolerance_bounds_the_error_and_variances_are_never_too_small(in_tiles):
    model, exact, X, _ = models(prediction_tolerance=1e-2)
    there = X + 0.3
    expected = exact.predict(there)
    loose = model.predict(there)
    assert np.all(loose.variance >= expected.variance - 1e-12)
    assert np.max(loose.variance - expected.variance) > 1e-9  # so the tolerance means something
    assert_close(loose.mean, expected.mean, 0.1)
    tight = dataclasses.replace(model, prediction_tolerance=1e-6).predict(there)
    assert_close(tight.mean, expected.mean, 1e-4)
    assert_close(tight.variance, expected.variance, 1e-4)


def test_covariances_samples_and_densities_are_those_of_the_exact_gp(tiles):
    model, exact, X, y = models(prediction_tolerance=1e-12)
    there = X[:6] + 0.3
    assert_close(model.predict_covariance(there), exact.predict_covariance(there), 1e-9)
    assert_close(model.predict_mean(there), exact.predict_mean(there), 1e-9)
    assert_close(model.log_density(there, y[:6]), exact.log_density(there, y[:6]), 1e-9)
    assert model.sample(there, 3).shape == (3, 6, 2)


def test_predictions_where_the_matrix_fits_take_no_iteration(monkeypatch):
    monkeypatch.setattr("agp.bounds._iterative.conjugate_gradients", None)
    model, exact, X, _ = models()
    for found, expected in zip(model.predict(X + 0.3), exact.predict(X + 0.3), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.long
@pytest.mark.parametrize("kernel", [agp.RBF(1.0, 0.8), Matern32(1.0, 0.8)])
def test_predictions_in_tiles_take_few_iterations_and_few_passes(kernel, monkeypatch):
    X, y = toy_data(400)
    parts = {"kernel": kernel, "likelihood": agp.Gaussian(0.01)}
    model, there = CGGP.from_data(X, y, **parts), X[:50] + 0.3
    monkeypatch.setattr(CGGP, "_block_rows", lambda _self, _memory: 100)
    iterations = []

    def counted(*args, **options):
        iterations.append(conjugate_gradients(*args, **options))
        return iterations[-1]

    monkeypatch.setattr("agp.bounds._iterative.conjugate_gradients", counted)
    mean, variance = model.predict(there)
    expected = GPR.from_data(X, y, **parts).predict(there)
    assert_close(mean, expected.mean, 1e-5)
    assert_close(variance, expected.variance, 1e-5)
    assert len(iterations) == 2  # for the mean, and for all variances together
    assert max(float(found.iterations) for found in iterations) <= 10.0
    monkeypatch.setattr("agp.models._cggp.PREDICTION_RANK", 0)
    model.predict(there)
    assert max(float(found.iterations) for found in iterations) > 25.0  # so the limit above means something


def test_the_mean_after_few_iterations_is_that_of_a_projection_on_the_krylov_space(in_tiles):
    # what a computation-aware GP with these actions has for its mean
    model, _, X, y = models(outputs=1, rank=0, max_iterations=4)
    A = model.kernel(X)[0] + 0.1 * np.eye(ROWS)
    S = np.linalg.qr(np.concatenate([np.linalg.matrix_power(A / 10.0, j) @ y for j in range(4)], axis=1))[0]
    there = X[:7] + 0.3
    expected = model.kernel(there, X)[0] @ S @ np.linalg.solve(S.T @ A @ S, S.T @ y)
    with pytest.warns(RepairWarning, match="stopped after 4 iterations"):
        assert_close(model.predict_mean(there), expected, 1e-8)


# -- trouble ----------------------------------------------------------------------------------------------------------


def test_solves_that_do_not_converge_name_the_remedy():
    model, _, X, y = models(max_iterations=2, rank=0)
    with pytest.warns(RepairWarning, match="increase rank, max_iterations or the noise variance"):
        model.bound(X, y)
    with pytest.warns(RepairWarning, match="2 numerical repairs; the first: conjugate gradients stopped"):
        result = agp.train(model, X, y, steps=2)
    assert "stopped after 2 iterations with 12 of 12 systems above" in next(iter(result.repairs))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": ROWS + 1}, "rank is 31, but must be at most .* 30"),
        ({"rank": -1}, "rank is -1"),
        ({"rank": 2.5}, "rank is 2.5"),
        ({"probes": 0}, "probes is 0"),
        ({"max_iterations": 0}, "max_iterations is 0"),
        ({"lanczos_steps": 0}, "lanczos_steps is 0"),
        ({"tolerance": 0.0}, "tolerance is 0, "),
        ({"prediction_tolerance": float("nan")}, "prediction_tolerance is nan"),
        ({"tolerance": "tight"}, "tolerance is 'tight'"),
        ({"kernel": agp.RBF() + agp.White(0.1)}, "remove White from the kernel"),
        ({"kernel": 2.0 * (agp.RBF() + agp.White(0.1)).on([0])}, "remove White from the kernel"),
    ],
)
def test_bad_settings_are_named(options, message):
    X, y = toy_data(ROWS)
    with pytest.raises(ValueError, match=message):
        CGGP.from_data(X, y, **options)


@tree.model
class Wrapped(agp.kernels.Kernel):
    """A user's kernel that holds another one under a name of its own."""

    inner: agp.kernels.Kernel

    def __call__(self, X, Z=None, /):
        return self.inner(X, Z)

    def diag(self, X, /):
        return self.inner.diag(X)

    def from_data(self, X, variance, /):
        return type(self)(self.inner.from_data(X, variance))

    def check(self, width, /):
        self.inner.check(width)


@pytest.mark.parametrize("model_class", [CGGP, agp.CaGP])
def test_white_noise_is_seen_inside_a_kernel_of_the_user(model_class):
    X, y = toy_data(ROWS)
    model_class.from_data(X, y, kernel=Wrapped(agp.RBF()))
    with pytest.raises(ValueError, match="remove White from the kernel"):
        model_class.from_data(X, y, kernel=Wrapped(agp.RBF() + agp.White(0.1)))
    with pytest.raises(ValueError, match="remove White from the kernel"):  # too small to be told from rounding
        model_class.from_data(X, y, kernel=agp.RBF() + agp.White(1e-6))


@tree.model
class Nugget(Wrapped):
    """A user's kernel with white noise of its own."""

    def __call__(self, X, Z=None, /):
        value, pull = self.inner(X, Z)
        return (value * (1.0 + 0.01 * np.eye(len(X))) if Z is None else value), pull


@pytest.mark.parametrize("unit", [1e-3, 1e3])
def test_white_noise_of_a_user_is_seen_in_any_unit(unit):
    X, y = toy_data(ROWS)
    kernel = agp.RBF(unit**2, 1.0)
    CGGP.from_data(X, y, kernel=Wrapped(kernel))
    with pytest.raises(ValueError, match="remove White from the kernel"):
        CGGP.from_data(X, y, kernel=Nugget(kernel))


def test_other_data_and_other_likelihoods_are_refused():
    X, y = toy_data(ROWS)
    with pytest.raises(TypeError, match="CGGP needs the Gaussian likelihood"):
        CGGP.from_data(X, y, likelihood=agp.StudentT())
    with pytest.raises(ValueError, match="CGGP predicts from the data with which it was built"):
        agp.train(CGGP.from_data(X, y), X + 1.0, y, steps=1)
    with pytest.raises(ValueError, match="needs all rows at once; omit batch_size"):
        agp.train(CGGP.from_data(X, y), X, y, steps=1, batch_size=10)


def test_a_broken_parameter_gives_nan_and_no_number():
    model, _, X, y = models()
    broken = tree.with_leaves(model, {"kernel.parts.0.variance": np.asarray(np.nan)})
    assert np.isnan(float(broken.bound(X, y)[0]))


def test_float32_stays_float32(backend):
    model, exact, X, y = models(tolerance=1e-4, prediction_tolerance=1e-5)
    here = backend.move(model, "float32")
    batch = Batch(backend.array(X, "float32"), backend.array(y, "float32"))  # with the fixed probes
    value, gradient = compiled_gradient(backend, here, batch)
    expected_value, expected = gradient_of_batch(model, Batch(X, y), "closed-form")
    assert float(backend.numpy(value, "float32")) == pytest.approx(float(expected_value), rel=1e-3)
    for name, x in expected.items():
        assert_close(backend.numpy(gradient[name], "float32"), x, 1e-2, name)
    mean, variance = here.predict(batch.X)
    assert_close(backend.numpy(mean, "float32"), exact.predict_mean(X), 1e-3)
    assert_close(backend.numpy(variance, "float32"), exact.predict(X).variance, 1e-2)


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_no_matrix_of_all_rows_is_held():
    X, y = toy_data(1000)
    whole = X.shape[0] ** 2 * 8 / 2**20  # 7.6 MiB
    model = CGGP.from_data(X, y, likelihood=agp.Gaussian(1.0), probes=4, rank=4, lanczos_steps=5, tolerance=1e-1)
    assert peak(lambda: model.bound(X, y, memory=1.0)[1](1.0)) < 0.3 * whole
    assert peak(lambda: model.bound(X, y)[1](1.0)) > whole  # so the limit above means something
    model = dataclasses.replace(model, prediction_tolerance=1e-1)
    assert peak(lambda: model.predict(X[:20], memory=1.0)) < 0.4 * whole


def test_the_copies_of_a_matrix_count_against_the_budget():
    X, y = toy_data(200)
    model = CGGP.from_data(X, y, likelihood=agp.Gaussian(1.0), probes=4, rank=4, lanczos_steps=5, tolerance=1e-1)
    once = X.shape[0] ** 2 * 8 / 2**20
    assert peak(lambda: model.bound(X, y, memory=1.2 * once)[1](1.0)) < 2.4 * once
    # so the limit above means something:
    assert peak(lambda: model.bound(X, y, memory=10.0 * once)[1](1.0)) > 3.0 * once


def test_the_preconditioner_of_predictions_follows_the_budget():
    X, y = toy_data(80)
    model = CGGP.from_data(X, y, likelihood=agp.Gaussian(1.0), probes=4, rank=4, prediction_tolerance=1e-1)
    least, ample = (peak(lambda memory=memory: model.predict(X[:3], memory=memory)) for memory in (0.05, 0.2))
    assert least < 0.11 < 0.14 < ample
