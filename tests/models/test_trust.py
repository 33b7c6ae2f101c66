"""What must not go wrong in silence: lost leaves, stale factors, graphs that grow, arrays that do not fit."""

import dataclasses
import functools
import pickle
import warnings

import numpy as np
import pytest
from helpers import named, process, replaced, with_leaves

import agp
from agp import GPR, RBF, SVGP, Bernoulli, Matern32, train, tree
from agp.errors import RepairWarning
from agp.kernels import Sum
from agp.posteriors import Relaxed, Whitened
from agp.updates import Adam, delayed


def data(rows=40, outputs=1):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 2))
    return X, np.sin(X[:, :1]) + 0.1 * rng.normal(size=(rows, outputs))


def sparse(X, y):
    return SVGP.from_data(X, y, num_inducing=5)


# -- leaves that could get lost ----------------------------------------------------------------------------------------


def test_a_part_without_a_gradient_does_not_hide_the_others():
    kernel = RBF(1.0, 1.0) + Matern32(1.0, 1.0)
    bar = tree.cotangent(kernel, parts=(tree.cotangent(kernel.parts[0], variance=np.asarray(2.0)), None))
    placed = with_leaves(kernel, {name: np.asarray(x) for name, x in named(kernel).items()})
    gradient = tree.pull_raw(placed, bar)
    assert gradient["kernel.parts.0.variance".removeprefix("kernel.")] > 1.0
    assert gradient["parts.1.variance"] == 0.0
    assert list(named(with_leaves(bar, {}))) == ["parts.0.variance"]
    assert list(named(tree.add(bar, bar))) == ["parts.0.variance"]


def test_models_in_a_list_are_refused():
    X, y = data()
    model = SVGP.from_data(X, y, num_inducing=5)
    with pytest.raises(TypeError, match="parts of Sum is .*, but must be a tuple of kernels"):
        Sum([process(model).kernel, process(model).kernel])
    with pytest.raises(TypeError, match="a field holds models in a list, where .* lost; use a tuple"):
        named(replaced(model, posterior=[process(model).posterior]))


def test_a_subclass_that_is_not_decorated_is_refused():
    class Mine(RBF):
        pass

    X, y = data()
    with pytest.raises(
        TypeError, match=r"Mine inherits from a model but is not a model class; decorate it with @agp\.tree\.model"
    ):
        SVGP.from_data(X, y, kernel=Mine(1.0, 1.0), num_inducing=5)


def test_a_leaf_without_a_value_is_named():
    X, y = data()
    model = replaced(SVGP.from_data(X, y, num_inducing=5), kernel=RBF() + RBF(1.0))
    with pytest.raises(ValueError, match=r"kernel\.parts\.0\.variance, .*kernel\.parts\.1\.lengthscale has no value"):
        train(model, X, y, steps=1)


# -- inverse factors that do not fit -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_predictions_bring_a_stale_factor_up_to_date_and_say_so():
    X, y = data()
    model = train(SVGP.from_data(X, y, num_inducing=10), X, y, steps=200).model
    moved = with_leaves(model, {"kernel.lengthscale": 0.3 * process(model).kernel.lengthscale})
    with pytest.warns(RepairWarning, match="the inverse factor was inaccurate"):
        mean, variance = moved.predict(X)
    assert np.abs(mean).max() < 10 * np.abs(y).max()
    assert variance.max() < 2 * float(process(model).kernel.variance)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(X)


# -- arrays that do not fit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "build", [functools.partial(SVGP.from_data, num_inducing=5), GPR.from_data], ids=["svgp", "gpr"]
)
@pytest.mark.parametrize("entrance", ["bound", "value_and_gradient"])
def test_bounds_refuse_data_of_other_shapes(build, entrance):
    X, y = data()
    model = build(X, y)
    call = model.bound if entrance == "bound" else functools.partial(agp.value_and_gradient, model)
    for bad_X, bad_y, message in (
        (X, y[:1], "X has 40 rows, but y has 1"),
        (X, np.concatenate([y, y, y], axis=1), "y has 3 outputs, but the model has 1"),
        (X[:, :1], y, "X has 1 column"),
        (X.astype(np.float32), y.astype(np.float32), "X has dtype float32"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            call(bad_X, bad_y)
    assert float(call(X, y[:, 0])[0]) == float(call(X, y)[0])


@pytest.mark.parametrize("cls", [np.ma.MaskedArray, np.matrix])
def test_numpy_subclasses_that_are_no_arrays_are_refused(cls):
    X, y = data()
    with pytest.raises(TypeError, match=f"{cls.__name__}, not an array of a known library"):
        SVGP.from_data(X.view(cls), y, num_inducing=5)


@pytest.mark.parametrize("squash", [-0.1, 0.5, 1.0, np.nan])
def test_a_squash_that_flips_labels_is_refused(squash):
    X, y = data()
    with pytest.raises(ValueError, match="squash is .*, but must be at least 0 and less than 0.5"):
        SVGP.from_data(X, (y > 0) * 1.0, likelihood=Bernoulli(squash=squash), num_inducing=5)


def test_classes_instead_of_instances_are_refused():
    X, y = data()
    with pytest.raises(TypeError, match=r"kernel is .*RBF.*; write RBF\(\)"):
        SVGP.from_data(X, y, kernel=RBF)
    with pytest.raises(TypeError, match="updates is Adam.*must be a list of updates"):
        train(SVGP.from_data(X, y, num_inducing=5), X, y, steps=1, updates=Adam())


def test_the_users_arrays_stay_the_users():
    X, y = data()
    Z = X[:5].copy()
    exact, sparse = GPR.from_data(X, y), SVGP.from_data(X, y, Z=Z)
    before = exact.predict(X).mean, sparse.predict(X).mean
    at = X.copy()
    X += 1.0
    y += 10.0
    Z += 5.0
    np.testing.assert_array_equal(exact.predict(at).mean, before[0])
    np.testing.assert_array_equal(sparse.predict(at).mean, before[1])


# -- settings, budgets, scales -----------------------------------------------------------------------------------------


def test_settings_of_the_posterior_can_be_chosen():
    X, y = data()
    plain = functools.partial(Relaxed.from_prior, preconditioned=False)
    assert not process(SVGP.from_data(X, y, posterior=plain, num_inducing=5)).posterior.preconditioned


@pytest.mark.slow
@pytest.mark.parametrize("posterior", [Whitened, Relaxed])
def test_a_small_budget_changes_the_bound_by_rounding_only(posterior):
    X, y = data(rows=3000)
    model = SVGP.from_data(X, y, posterior=posterior, num_inducing=20)
    whole, blocked = model.bound(X, y, memory=np.inf), model.bound(X, y, memory=0.2)
    assert blocked[1](1.0)[1] is None
    assert float(blocked[0]) == pytest.approx(float(whole[0]), rel=1e-12)
    found, expected = (tree.pull_raw(model, bound[1](1.0)[0]) for bound in (blocked, whole))
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-8, atol=1e-8)


@pytest.mark.long
@pytest.mark.parametrize("scale", [1e-6, 1e2, 1e4])
def test_relaxed_models_learn_targets_of_any_scale(scale):
    X, y = data(rows=100)
    model = train(SVGP.from_data(X, scale * y, num_inducing=20), X, scale * y, steps=300).model
    unit = train(SVGP.from_data(X, y, num_inducing=20), X, y, steps=300).model
    found = agp.metrics.rmse(model.predict(X).mean, scale * y) / scale
    assert found < 1.5 * agp.metrics.rmse(unit.predict(X).mean, y)


def test_updates_can_be_pickled():
    updates = pickle.loads(
        pickle.dumps([Adam(delayed(0.1, 3)), *agp.recipe(SVGP.from_data(*data(), num_inducing=5), 9)])
    )
    assert updates[0] == Adam(delayed(0.1, 3))


# -- graphs of torch ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["closed-form", "autodiff"])
def test_no_graph_hangs_on_a_trained_model(mode):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    X, y = (tree.to_backend(x, "torch").requires_grad_() for x in data())
    length = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    model = SVGP.from_data(X, y, kernel=RBF(lengthscale=length), Z=X[:5])
    assert not any(x.requires_grad for x in named(model).values())
    moved = with_leaves(model, {"kernel.lengthscale": length})
    trained = train(moved, X, y, steps=3, updates=[Adam(gradient=mode, frozen="inverse_factor")]).model
    assert not any(x.requires_grad for x in named(trained).values())


def test_autodiff_works_in_inference_mode():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    X, y = (tree.to_backend(x, "torch") for x in data())
    model = SVGP.from_data(X, y, num_inducing=5)
    with torch.inference_mode():
        bound, gradient = agp.value_and_gradient(model, X, y, gradient="autodiff")
    assert float(bound) == pytest.approx(float(agp.value_and_gradient(model, X, y)[0]), rel=1e-12)
    assert all(bool(torch.isfinite(x).all()) for x in gradient.values())


@pytest.mark.parametrize("posterior", ["whitened", "relaxed", "dual", "inverse-free"])
def test_a_posterior_of_another_size_is_refused_at_every_entrance(posterior):
    X = np.random.default_rng(0).uniform(-2.0, 2.0, (30, 2))
    y = np.sin(X[:, :1])
    model, larger = (agp.SVGP.from_data(X, y, num_inducing=M, posterior=posterior) for M in (8, 10))
    mixed = agp.SVGP(dataclasses.replace(model.process, posterior=larger.process.posterior), model.likelihood)
    for entrance in (lambda: mixed.bound(X, y), lambda: mixed.predict(X), lambda: agp.train(mixed, X, y, steps=1)):
        with pytest.raises(ValueError, match="has 10 inducing variables, but the process has 8"):
            entrance()
