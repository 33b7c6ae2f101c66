"""A kernel object that occurs several times is one set of parameters."""

import dataclasses

import numpy as np
import pytest

import agp
from agp import tree
from agp.bounds import Batch
from agp.kernels import Linear
from agp.training import Evidence, newton_names

RNG = np.random.default_rng(5)
X = RNG.uniform(-2.0, 2.0, (50, 2))
Y = np.sin(2.0 * X[:, 0]) * X[:, 1] + 0.1 * RNG.standard_normal(50)


def in_sum_and_product():
    k = agp.RBF()
    return k * Linear() + k


def in_product_and_sum():
    k = agp.Matern52()
    return Linear() * k + k


def within_columns():
    k = agp.RBF()
    return k.on((0,)) + k.on((1,))


def scaled():
    k = agp.Matern32()
    return 2.0 * k + k * Linear()


def square():
    k = agp.RBF()
    return k * k


def whole_products():
    p = agp.RBF() * Linear()
    return p + p.on((0, 1)) + agp.Matern12()


def thrice():
    k = agp.RBF()
    return (k + Linear()) * k + k


def nested():
    k = agp.RBF()
    s = k * Linear() + k
    return s * s + s


def multiple():
    k = agp.RBF()
    s = k * Linear() + k
    return 2.0 * s + s


TIED = (in_sum_and_product, in_product_and_sum, within_columns, scaled, square, whole_products, thrice)
TIED += (nested, multiple)


def groups(model):
    """The values of tied leaves, beside those of their leaders."""
    found = tree.leaves(model)
    return [(found[name], found[leader]) for name, leader in tree.followers(model).items()]


def assert_equal(model):
    pairs = groups(model)
    assert pairs
    for one, other in pairs:
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.filterwarnings("ignore::agp.errors.NoSignalWarning")
@pytest.mark.parametrize("build", TIED)
def test_each_training_keeps_them_equal(build):
    model = agp.GPR.from_data(X, Y, kernel=build())
    assert_equal(model)
    for train in (agp.fit_lbfgs, agp.fit_newton, agp.fit, lambda *args: agp.train(*args, steps=15)):
        trained = train(model, X, Y).model
        assert_equal(trained)
        assert float(trained.bound(X, Y)[0]) > float(model.bound(X, Y)[0])


@pytest.mark.parametrize("build", TIED)
def test_the_gradient_is_that_of_one_set_of_parameters(build):
    model = agp.GPR.from_data(X, Y, kernel=build())
    vector, unflatten = agp.flatten(model)
    assert not any(name.partition("[")[0] in tree.followers(model) for name in unflatten.names)
    gradient = unflatten.vector(agp.value_and_gradient(model, X, Y)[1])
    for i, slope in enumerate(gradient):
        step = 1e-6 * (np.arange(len(vector)) == i)
        up, down = (float(unflatten(vector + sign * step).bound(X, Y)[0]) for sign in (1.0, -1.0))
        assert slope == pytest.approx((up - down) / 2e-6, rel=2e-4, abs=2e-4)


@pytest.mark.parametrize("build", TIED)
def test_both_gradients_agree(build):
    pytest.importorskip("torch")
    model = agp.to_backend(agp.GPR.from_data(X, Y, kernel=build()), "torch")
    data = [agp.to_backend(x, "torch") for x in (X, Y)]
    closed, automatic = (agp.value_and_gradient(model, *data, gradient=mode)[1] for mode in ("closed-form", "autodiff"))
    assert closed.keys() == automatic.keys()
    for name, x in closed.items():
        np.testing.assert_allclose(x, automatic[name], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("build", TIED)
def test_newtons_slopes_are_those_of_the_evidence(build):
    model = agp.GPR.from_data(X, Y, kernel=build(), mean_function=agp.ZeroMean())
    objective = Evidence(model, Batch(X, Y[:, None]), newton_names(model))
    at = objective.coordinates.vector_of(model)
    point = objective(at)
    for i, slope in enumerate(point.slope):
        step = 1e-5 * (np.arange(len(at)) == i)
        assert slope == pytest.approx(
            (objective(at + step).value - objective(at - step).value) / 2e-5, rel=1e-4, abs=1e-4
        )


def test_equal_parameters_are_those_of_the_expanded_kernel():
    # k x + k = k (x + 1)
    k, one = agp.RBF(0.7, [1.0, 2.0]), agp.kernels.Constant(1.0)
    linear = Linear([0.5, 0.2], [0.0, 0.0])
    tied, expanded = k * linear + k, k * (linear + one)
    bounds, steps = [], []
    for kernel in (tied, expanded):
        model = agp.GPR.from_data(X, Y, kernel=kernel)
        fixed = () if kernel is tied else ("kernel.parts.1.parts.1.*",)
        found = agp.fit_newton(model, X, Y, frozen=fixed)
        bounds.append(float(found.model.bound(X, Y)[0]))
        steps.append(float(model.bound(X, Y)[0]))
    assert steps[0] == pytest.approx(steps[1], rel=1e-10)
    assert bounds[0] == pytest.approx(bounds[1], abs=1e-2)


def test_all_backends_agree(backend):
    model = agp.SVGP.from_data(X, Y, kernel=in_sum_and_product(), num_inducing=10)
    expected = agp.train(model, X, Y, steps=5).model
    found = agp.train(backend.move(model), backend.array(X), backend.array(Y), steps=5).model
    for name, x in tree.leaves(agp.to_backend(found, "numpy")).items():
        np.testing.assert_allclose(x, tree.leaves(expected)[name], rtol=1e-7, atol=1e-9)


def test_integration_and_its_mixture_keep_them_equal():
    few = slice(0, 25)
    found = agp.integrate(agp.GPR.from_data(X[few], Y[few], kernel=in_sum_and_product()), settings=20).model
    kernel = found.settings[0].kernel
    followers = tree.followers(kernel)
    assert followers
    leaves = tree.leaves(kernel)
    for name, leader in followers.items():
        if "unit" not in name:
            np.testing.assert_array_equal(leaves[name], leaves[leader])
    assert_equal(found.setting(0))
    assert np.isfinite(found.predict(X).variance).all()


def test_fit_regression_keeps_them_equal():
    found = agp.fit_regression(X, Y, kernel=in_sum_and_product())
    model = found.model
    assert_equal(model)


def test_files_keep_the_ties(tmp_path):
    model = agp.GPR.from_data(X, Y, kernel=thrice())
    agp.save(model, tmp_path / "model.safetensors")
    loaded = agp.load(tmp_path / "model.safetensors")
    assert tree.followers(loaded) == tree.followers(model)
    assert_equal(agp.fit_lbfgs(loaded, X, Y, max_iterations=5).model)


def test_new_values_reach_all_occurrences():
    model = agp.GPR.from_data(X, Y, kernel=in_sum_and_product())
    moved = tree.with_leaves(model, {"kernel.parts.0.parts.0.lengthscale": np.asarray([3.0, 4.0])})
    assert_equal(moved)


def test_new_nodes_reach_all_occurrences():
    model = agp.GPR.from_data(X, Y, kernel=in_sum_and_product())
    new = dataclasses.replace(model.kernel.parts[1], lengthscale=np.asarray([3.0, 4.0]))
    moved = tree.replace(model, {"kernel.parts.0.parts.0": new})
    assert tree.followers(moved) == tree.followers(model)
    assert_equal(moved)
    own = tree.replace(model, {"kernel.parts.1": new}).kernel.parts  # a follower of its own, until the next training
    np.testing.assert_array_equal(own[1].lengthscale, new.lengthscale)


def test_separate_objects_are_separate():
    for kernel in (agp.RBF() * Linear() + agp.RBF(), agp.RBF() + agp.RBF(), agp.RBF() + 2.0 * agp.RBF()):
        assert not tree.followers(agp.GPR.from_data(X, Y, kernel=kernel))


def test_different_numbers_of_columns_are_refused():
    k = agp.RBF()
    with pytest.raises(ValueError, match="a parameter of the same object, has the shape"):
        agp.GPR.from_data(X, Y, kernel=k + k.on((0,)))


def test_estimators_list_equal_parameters_once():
    k = agp.RBF(lengthscale=1.0)
    estimator = agp.GPRegressor(kernel=k * Linear() + k, frozen="kernel.*lengthscale")
    names = [name for name in estimator.get_params() if name.endswith("__lengthscale")]
    assert names == ["kernel__parts__0__parts__0__lengthscale"]
    estimator.set_params(**{names[0]: 2.0})
    assert estimator.kernel.parts[1].lengthscale == 2.0
    assert k.lengthscale == 1.0


def test_ties_end_where_parts_are_replaced_and_survive_unused_categories():
    k = agp.RBF()
    tied = k + k
    assert dataclasses.replace(tied, parts=(agp.RBF(), agp.Matern32())).ties == ()
    trained = agp.GPR.from_data(X, Y, kernel=k * Linear() + k).kernel
    assert trained.with_categories(2, ()).ties == trained.ties
    again = agp.fit_regression(X, Y, kernel=trained, hyperparameters="mode").model
    assert_equal(again)
    with pytest.raises(ValueError, match="cannot be combined with categories"):
        trained.with_categories(3, (2,))


def test_additive_kernels_have_parameters_for_each_column():
    kernel = agp.kernels.additive(agp.RBF() + agp.Matern12(), (0, 1))
    assert not tree.followers(agp.GPR.from_data(X, Y, kernel=kernel))
