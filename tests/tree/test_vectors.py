"""Models as vectors: there and back, gradients in the vector's order, densities of vectors, errors."""

import pickle

import numpy as np
import pytest
import scipy.optimize
from helpers import EXACT, JAX, POSTERIORS, WITH_SLOPES, assert_close, inducing_inputs, named, problem, toy_data

import agp
from agp import tree
from agp.gradient import Unflatten
from agp.kernels import RBF
from agp.priors import Gamma, InverseGamma, LogNormal, Normal, Relative, log_prior
from agp.tree import POSITIVE

PRIORS = {
    "kernel.variance": Gamma(2.0, 1.5),
    "kernel.lengthscale": Relative(LogNormal(0.0, 1.0)),
    "noise_variance": InverseGamma(2.0, 0.1),
    "mean_function.value": Normal(0.0, 2.0),
}


def exact(rows=20, priors=None):
    X, y = toy_data(rows)
    return agp.GPR.from_data(X, y, priors=PRIORS if priors is None else priors), X, y


def ordinal():
    X, y = toy_data(20)
    labels = np.clip(np.round(y + 1.0), 0.0, 2.0)
    return agp.SVGP.from_data(X, labels, num_inducing=4, likelihood=agp.Ordinal(3), posterior="diagonal-whitened")


# -- there and back ---------------------------------------------------------------------------------------------------


@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_the_vector_is_the_raw_leaves_and_leads_back(posterior, dtype, backend):
    model = backend.move(problem("sum-ard", posterior, outputs=2)[0], dtype)
    vector, unflatten = agp.flatten(model)
    raw = tree.unconstrain(model)
    host = backend.numpy(vector, dtype)
    np.testing.assert_array_equal(host, np.concatenate([np.ravel(backend.numpy(x, dtype)) for x in raw.values()]))
    assert host.shape == (unflatten.size,) == (len(unflatten.names),)
    expected, found = tree.leaves(tree.constrain(model, raw)), tree.leaves(unflatten(vector))
    assert list(found) == list(expected)
    for name, x in expected.items():
        np.testing.assert_array_equal(backend.numpy(found[name], dtype), backend.numpy(x, dtype), err_msg=name)


def test_every_finite_vector_is_a_model(backend):
    model = backend.move(exact()[0])
    vector, unflatten = agp.flatten(model)
    wild = unflatten(backend.array(np.linspace(-40.0, 40.0, vector.shape[0])))
    assert not any(bool(leaf.constraint.is_violated(leaf.value)) for leaf in tree.describe(wild))


def test_a_part_of_a_model_has_a_vector_of_its_own():
    kernel = RBF(np.asarray(2.0), np.asarray([1.0, 3.0]))
    vector, unflatten = agp.flatten(kernel)
    assert vector.shape == (3,)
    assert isinstance(unflatten(vector), RBF)


def test_names_say_what_each_entry_is():
    vector, unflatten = agp.flatten(RBF(np.asarray(2.0), np.ones(2)) * RBF(np.asarray(1.0), np.ones((1, 2))))
    assert unflatten.names == (
        *("parts.0.variance", "parts.0.lengthscale[0]", "parts.0.lengthscale[1]"),
        *("parts.1.variance", "parts.1.lengthscale[0, 0]", "parts.1.lengthscale[0, 1]"),
    )
    assert len(unflatten.names) == unflatten.size == len(vector)


def test_frozen_leaves_stay_and_auxiliary_arrays_may_be_named():
    model, _, _ = problem("rbf", "relaxed")
    vector, unflatten = agp.flatten(model, frozen=("Z", "posterior.*"))
    assert unflatten.names == ("process.kernel.variance", "process.kernel.lengthscale", "likelihood.noise_variance")
    moved = unflatten(vector + 1.0)
    assert inducing_inputs(moved) is inducing_inputs(model)
    assert named(moved)["posterior.inverse_factor"] is named(model)["posterior.inverse_factor"]
    assert named(moved)["kernel.variance"] > named(model)["kernel.variance"]
    assert agp.flatten(model, frozen="inverse_factor")[1].size == agp.flatten(model)[1].size


def test_an_unpickled_function_does_the_same():
    model, _, _ = problem("rbf", "whitened")
    vector, unflatten = agp.flatten(model)
    there = pickle.loads(pickle.dumps(unflatten))
    for name, x in tree.leaves(unflatten(vector)).items():
        np.testing.assert_array_equal(tree.leaves(there(vector))[name], x)
    with pytest.raises(ValueError, match="above the diagonal"):
        there.log_jacobian(vector)


def test_small_numbers_underflow_in_silence():
    vector, unflatten = agp.flatten(RBF(np.asarray(1.0), np.asarray(1.0)))
    with np.errstate(all="raise"):
        assert unflatten(vector - 800.0).variance < 1e-300
        value, pullback = unflatten.log_jacobian(np.asarray([-800.0, 800.0]))
    assert value == -800.0
    np.testing.assert_array_equal(pullback(), [1.0, 0.0])


# -- gradients --------------------------------------------------------------------------------------------------------


def test_a_gradient_by_names_becomes_a_vector_in_the_same_order(backend):
    model, X, y = exact()
    model, X, y = backend.move(model), backend.array(X), backend.array(y)
    vector, unflatten = agp.flatten(model)
    slopes = backend.numpy(unflatten.vector(agp.value_and_gradient(model, X, y)[1]))
    host = backend.numpy(vector)
    for i, step in enumerate(1e-5 * np.eye(len(host))):
        ends = [agp.value_and_gradient(unflatten(backend.array(host + s * step)), X, y)[0] for s in (1.0, -1.0)]
        found = (float(ends[0]) - float(ends[1])) / 2e-5
        assert slopes[i] == pytest.approx(found, rel=1e-6, abs=1e-5), unflatten.names[i]


def objective_of(unflatten, X, y):
    def objective(vector):
        model = unflatten(vector)
        return model.bound(X, y)[0] + log_prior(model)[0]

    return objective


@pytest.mark.filterwarnings("ignore:optimisers other than agp's do not update:agp.errors.UntouchedWarning")
@pytest.mark.parametrize("posterior", ["exact", *WITH_SLOPES])
def test_autograd_through_the_way_back_is_the_closed_form(posterior, torch_place):
    model, X, y = exact() if posterior == "exact" else problem("sum-ard", posterior)
    model, X, y = torch_place.move(model), torch_place.array(X), torch_place.array(y)
    vector, unflatten = agp.flatten(model)
    at = vector.clone().requires_grad_()
    value = objective_of(unflatten, X, y)(at)
    value.backward()
    expected, by_name = agp.value_and_gradient(model, X, y)
    assert_close(value.detach(), expected, EXACT)
    assert_close(at.grad, unflatten.vector(by_name), EXACT)


@pytest.mark.parametrize("posterior", ["exact", "whitened", "relaxed"])
def test_jax_differentiates_compiles_and_maps_the_way_back(posterior, available):
    jax = pytest.importorskip("jax", reason="jax is not installed")
    place = available(JAX)
    model, X, y = exact() if posterior == "exact" else problem("rbf-ard", posterior)
    model, X, y = place.move(model), place.array(X), place.array(y)
    vector, unflatten = agp.flatten(model)
    objective = objective_of(unflatten, X, y)
    several = vector + place.array(0.1 * np.random.default_rng(0).normal(size=(3, unflatten.size)))
    points = [agp.value_and_gradient(unflatten(x), X, y) for x in several]
    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(objective)))(several)
    assert_close(values, np.asarray([value for value, _ in points]), EXACT)
    for found, (_, by_name) in zip(slopes, points, strict=True):
        assert_close(found, unflatten.vector(by_name), EXACT)
    np.testing.assert_allclose(jax.jit(lambda model: agp.flatten(model)[0])(model), vector, rtol=1e-14)


# -- densities of vectors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [lambda: exact()[0], ordinal], ids=["positive", "ordered"])
def test_the_jacobian_is_that_of_all_values(case, torch_place):
    import torch

    vector, unflatten = agp.flatten(torch_place.move(case()))

    def values(vector):
        leaves = tree.leaves(unflatten(vector))
        return torch.cat([leaves[leaf.name].reshape(-1) for leaf in unflatten.leaves])

    at = (vector + 0.3).requires_grad_()
    value, pullback = unflatten.log_jacobian(at)
    expected = torch.linalg.slogdet(torch.autograd.functional.jacobian(values, at))[1]
    assert_close(value.detach(), expected, 1e-12)
    (slopes,) = torch.autograd.grad(value, at)
    assert_close(pullback(2.0).detach(), 2.0 * slopes, 1e-12)


def test_noise_that_stays_zero_is_no_part_of_the_jacobian(backend):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(12, 2)), rng.normal(size=12)
    found = []
    for likelihood in (agp.Gaussian(0.0), agp.Gaussian(0.3)):
        model = agp.GPR.from_data(X, y, likelihood=likelihood, noise=0.1 + X[:, 0] ** 2)
        vector, unflatten = agp.flatten(backend.move(model))
        value, pullback = unflatten.log_jacobian(vector)
        at = [leaf.name for leaf in unflatten.leaves].index("likelihood.noise_variance")
        found.append((float(value), backend.numpy(pullback()), at))
    (zero, slopes, at), (trained, _, _) = found
    unit = y.var()
    assert zero == pytest.approx(trained - np.log(-np.expm1(-0.3 / unit)), rel=1e-9)
    assert slopes[sum(int(np.prod(leaf.value.shape)) for leaf in unflatten.leaves[:at])] == 0.0


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_jacobian_is_the_same_everywhere(dtype, backend):
    model = exact()[0]
    vector, unflatten = agp.flatten(model)
    value, pullback = unflatten.log_jacobian(vector)
    expected = 0.0
    for leaf in unflatten.leaves:
        expected += np.sum(np.log(np.broadcast_to(leaf.unit, leaf.value.shape)))
        if isinstance(leaf.constraint, type(POSITIVE)):
            expected += np.sum(np.log(-np.expm1(-leaf.value / leaf.unit)))
    assert value == pytest.approx(expected, rel=1e-12)
    there, unflatten = agp.flatten(backend.move(model, dtype))
    found, pull = unflatten.log_jacobian(there)
    tolerance = 1e-12 if dtype == "float64" else 1e-5
    assert_close(backend.numpy(found, dtype), value, tolerance)
    assert_close(backend.numpy(pull(), dtype), pullback(), tolerance)


@pytest.mark.slow
def test_a_density_of_a_vector_integrates_as_that_of_the_values():
    # one parameter: the density of the vector, with the Jacobian, has the mass that the prior has
    model, _, _ = exact(priors={"kernel.variance": Gamma(3.0, 2.0)})
    _, unflatten = agp.flatten(model, frozen=("lengthscale", "likelihood.*", "mean_function.*"))
    grid = np.linspace(-25.0, 25.0, 501)[:, None]  # the trapezoid rule is exact to rounding for what is smooth
    density = [np.exp(log_prior(unflatten(x))[0] + unflatten.log_jacobian(x)[0]) for x in grid]
    assert np.trapezoid(density, grid[:, 0]) == pytest.approx(1.0, abs=1e-8)


# -- errors -----------------------------------------------------------------------------------------------------------


def test_several_dtypes_are_one_error():
    kernel = RBF(np.asarray(1.0), np.ones(2, dtype=np.float32))
    with pytest.raises(TypeError, match="lengthscale has dtype float32, variance has float64; convert one of them"):
        agp.flatten(kernel)


def test_a_vector_of_another_size_is_refused(backend):
    _, unflatten = agp.flatten(backend.move(RBF(np.asarray(1.0), np.ones(2))))
    for shape in [(2,), (4,), (1, 3), ()]:
        with pytest.raises(ValueError, match=r"vector has shape \(.*\), but must have shape \(3,\)"):
            unflatten(backend.array(np.zeros(shape)))
    with pytest.raises(TypeError, match="vector has dtype .*float32, variance has .*float64"):
        unflatten(backend.array(np.zeros(3), "float32"))


def test_a_vector_of_another_library_is_refused(torch_place):
    _, unflatten = agp.flatten(torch_place.move(RBF(np.asarray(1.0), np.ones(2))))
    with pytest.raises(
        TypeError, match="vector is a numpy array, but variance is a torch array; move one with agp.to_backend"
    ):
        unflatten(np.zeros(3))


def test_patterns_are_checked():
    model, _, _ = problem("rbf", "whitened")
    with pytest.raises(ValueError, match="no parameter matches 'Q'; the parameters are process.kernel.variance, "):
        agp.flatten(model, frozen="Q")
    with pytest.raises(
        ValueError, match=r"every parameter is frozen by process\.\*, likelihood\.\*, so the vector would be empty"
    ):
        agp.flatten(model, frozen=("process.*", "likelihood.*"))
    with pytest.raises(ValueError, match="the model has no parameters"):
        agp.flatten(agp.ZeroMean())


def test_a_model_without_values_or_no_model_is_refused():
    with pytest.raises(ValueError, match="variance, lengthscale has no value; build the model with from_data"):
        agp.flatten(RBF())
    with pytest.raises(TypeError, match="is not a model"):
        agp.flatten(np.ones(3))


def test_a_gradient_without_a_leaf_is_refused():
    _, unflatten = agp.flatten(RBF(np.asarray(1.0), np.ones(2)))
    with pytest.raises(KeyError, match="lengthscale"):
        unflatten.vector({"variance": np.asarray(1.0)})


def test_a_triangle_has_no_density():
    vector, unflatten = agp.flatten(problem("rbf", "whitened")[0])
    with pytest.raises(ValueError, match="posterior.scale above the diagonal have no effect"):
        unflatten.log_jacobian(vector)


# -- what it is for ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_scipy_finds_the_optimum_of_fit_lbfgs():
    model, X, y = exact(40)
    vector, unflatten = agp.flatten(model)

    def loss(vector):
        value, slopes = agp.value_and_gradient(unflatten(vector), X, y)
        return -float(value), -unflatten.vector(slopes)

    found = scipy.optimize.minimize(loss, vector, jac=True, method="BFGS", options={"gtol": 1e-6})
    expected = agp.fit_lbfgs(model, X, y, tolerance=1e-9)
    assert -found.fun == pytest.approx(expected.trace["bound"][-1], abs=1e-8)
    for name, x in tree.leaves(expected.model, "parameter").items():
        assert_close(tree.leaves(unflatten(found.x))[name], x, 1e-4, name)


@pytest.mark.slow
def test_nuts_finds_the_posterior_of_a_lengthscale(available):
    jax = pytest.importorskip("jax", reason="jax is not installed")
    blackjax = pytest.importorskip("blackjax", reason="blackjax is not installed")
    place = available(JAX)
    model, X, y = exact(15)
    model, X, y = place.move(model), place.array(X), place.array(y)
    names = ("lengthscale", "mean_function.*", "noise_variance")
    vector, unflatten = agp.flatten(model, frozen=names)
    objective = objective_of(unflatten, X, y)

    def log_density(vector):
        return objective(vector) + unflatten.log_jacobian(vector)[0]

    key, run = jax.random.split(jax.random.key(0))
    warmup = blackjax.window_adaptation(blackjax.nuts, log_density)
    (state, settings), _ = warmup.run(key, vector, num_steps=300)
    step = blackjax.nuts(log_density, **settings).step
    _, drawn = jax.lax.scan(lambda s, k: (step(k, s)[0],) * 2, state, jax.random.split(run, 2000))
    grid = place.array(np.linspace(-8.0, 12.0, 801)[:, None])
    weights = np.exp(np.asarray(jax.vmap(log_density)(grid)) - float(log_density(vector)))
    mean = np.sum(weights * np.asarray(grid[:, 0])) / np.sum(weights)
    spread = np.sqrt(np.sum(weights * (np.asarray(grid[:, 0]) - mean) ** 2) / np.sum(weights))
    assert abs(float(drawn.position.mean()) - mean) < 0.15 * spread
    assert float(drawn.position.std()) == pytest.approx(spread, rel=0.15)


def test_lbfgs_and_the_public_function_share_the_way_back():
    from agp.training import _objective

    assert _objective.Unflatten is Unflatten
