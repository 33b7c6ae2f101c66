"""Regression with neighbours as users build and train it."""

import dataclasses

import numpy as np
import pytest
from helpers import JAX, TORCH, assert_close, toy_data

import agp
from agp import GPR, NNGP, RBF, VIF, Bernoulli, Gaussian, White, train, tree
from agp.means import LinearMean, ZeroMean
from agp.processes import _near

X, Y = toy_data(60)
CLASSES = {"nngp": NNGP, "nngp-others": NNGP, "vif": VIF}
OPTIONS = {"nngp": {}, "nngp-others": {"among": "others"}, "vif": {"num_inducing": 6}}


def build(name, x=X, y=Y, **options):
    return CLASSES[name].from_data(x, y, neighbours=8, **OPTIONS[name] | options)


@pytest.mark.parametrize("name", CLASSES)
def test_training_raises_the_bound_and_keeps_the_sets(name, backend):
    model = build(name, backend.array(X), backend.array(Y))
    result = train(model, backend.array(X), backend.array(Y), steps=15)
    first, last = (backend.numpy(m.bound(backend.array(X), backend.array(Y))[0]) for m in (model, result.model))
    assert last > first + 0.5
    assert np.array_equal(agp.to_numpy(result.model.sets), agp.to_numpy(model.sets))


@pytest.mark.parametrize("name", ["nngp", "nngp-others"])
def test_minibatches_train(name):
    model = build(name)
    result = train(model, X, Y, steps=40, batch_size=15)
    assert result.model.bound(X, Y)[0] > model.bound(X, Y)[0]


def test_inducing_inputs_take_all_rows():
    assert NNGP.stochastic
    assert not VIF.stochastic


@pytest.mark.parametrize("name", CLASSES)
def test_neighbours_are_renewed_on_request(name):
    model = build(name)
    moved = tree.with_leaves(model, {"kernel.lengthscale": model.kernel.lengthscale * np.array([0.1, 10.0])})
    assert np.array_equal(model.renew_neighbours().sets, model.sets)
    assert not np.array_equal(moved.renew_neighbours().sets, model.sets)
    assert np.array_equal(moved.renew_neighbours(memory=0.01).sets, moved.renew_neighbours().sets)


@pytest.mark.parametrize("name", CLASSES)
def test_predictions_are_near_those_of_an_exact_model(name):
    model = build(name, kernel=RBF(1.0, 1.0), likelihood=Gaussian(0.01))
    exact = GPR.from_data(X, Y, kernel=RBF(1.0, 1.0), likelihood=Gaussian(0.01))
    new = np.random.default_rng(0).uniform(-1.5, 1.5, size=(50, 2))
    found, expected = model.predict(new), exact.predict(new)
    assert np.sqrt(np.mean((found.mean - expected.mean) ** 2)) < 0.1 * np.std(Y)
    assert 1.0 <= np.median(found.variance / expected.variance) < 2.5


@pytest.mark.parametrize("name", ["nngp", "vif"])
def test_with_all_rows_as_neighbours_means_along_lines_are_those_of_points(name, backend):
    options = {"num_inducing": 6} if name == "vif" else {}
    parts = {"kernel": RBF(1.0, 0.5), "likelihood": Gaussian(0.01), "mean_function": LinearMean(np.ones((2, 1)))}
    model = backend.move(CLASSES[name].from_data(X, Y, neighbours=60, **options, **parts))
    lines = np.random.default_rng(0).normal(size=(3, 4, 2))
    found = backend.numpy(model.predict_mean_along(backend.array(lines)))
    expected = backend.numpy(model.predict_mean(backend.array(lines.reshape(12, 2))))
    assert_close(found, expected.reshape(3, 4, 1), 1e-9)


def test_means_along_a_line_are_those_of_an_exact_model_of_the_union(monkeypatch):
    parts = {"kernel": RBF(1.0, 0.5), "likelihood": Gaussian(0.01), "mean_function": ZeroMean()}
    model = NNGP.from_data(X, Y, neighbours=8, **parts)
    line = np.linspace([-1.0, 0.5], [1.0, 0.0], 30)
    near = np.argsort(np.sum((X[None, :, :] - line[:, None, :]) ** 2, axis=2), axis=1)
    for most in (1024, 14):
        monkeypatch.setattr(_near, "TOGETHER", most)
        found = model.predict_mean_along(line[None, :, :])[0]
        k = 8 if most > 14 else max(k for k in range(1, 8) if len(np.unique(near[:, :k])) <= most)
        used = np.unique(near[:, :k])
        assert_close(found, GPR.from_data(X[used], Y[used], **parts).predict_mean(line), 1e-9)


def test_means_do_not_jump_along_a_line():
    model = NNGP.from_data(X, Y, neighbours=5, kernel=RBF(1.0, 0.5), likelihood=Gaussian(0.01))
    line = np.linspace([-1.0, 0.5], [1.0, 0.0], 2001)
    steps, together = (
        np.abs(np.diff(mean[:, 0]))
        for mean in (model.predict_mean(line), model.predict_mean_along(line[None, :, :])[0])
    )
    assert np.max(together) < 0.2 * np.max(steps)


def test_lines_have_three_axes_and_no_unknown_cells():
    model = build("nngp")
    with pytest.raises(ValueError, match=r"\[L, n, D\]"):
        model.predict_mean_along(X)
    with pytest.raises(ValueError, match="4 NaN or infinite entries"):
        model.predict_mean_along(np.full((1, 2, 2), np.nan))
    with pytest.raises(ValueError, match="memory is -1"):
        model.predict_mean_along(X[None, :, :], memory=-1)


def test_the_seed_is_that_of_the_order():
    first, again, other = (build("vif", seed=seed) for seed in (1, 1, 2))
    assert first.seed == 1
    assert np.array_equal(first.sets, again.sets)
    assert not np.array_equal(first.sets, other.sets)
    assert not np.array_equal(build("nngp", seed=1).sets, build("nngp", seed=2).sets)
    assert np.array_equal(build("nngp-others", seed=1).sets, build("nngp-others", seed=2).sets)


def test_one_row_is_a_model():
    for name in CLASSES:
        options = {"num_inducing": 1} if name == "vif" else {}
        model = build(name, X[:1], Y[:1], **options)
        assert np.isfinite(model.bound(X[:1], Y[:1])[0])
        assert np.isfinite(model.predict(X).variance).all()


@pytest.mark.parametrize("name", CLASSES)
def test_parts_that_do_not_fit_are_refused(name):
    with pytest.raises(TypeError, match="Gaussian"):
        build(name, y=1.0 * (Y > 0.0), likelihood=Bernoulli())
    with pytest.raises(ValueError, match="White"):
        build(name, kernel=RBF() + White())
    with pytest.raises(ValueError, match="neighbours is -1"):
        dataclasses.replace(build(name), neighbours=-1)._check_neighbours()


def test_posterior_rows_are_checked():
    assert build("vif", posterior_rows=10).posterior_rows == 10
    with pytest.raises(ValueError, match="posterior_rows is 0"):
        build("vif", posterior_rows=0)


def test_a_program_of_torch_differentiates_the_bound():
    torch = pytest.importorskip("torch")
    model = TORCH.move(build("vif"))
    leaves = {name: x.requires_grad_() for name, x in tree.leaves(model, "parameter").items()}
    here = tree.with_leaves(model, leaves)
    value, _ = here.bound(TORCH.array(X), TORCH.array(Y))
    value.backward()
    expected = tree.leaves(build("vif").bound(X, Y)[1](1.0)[0])
    for name, x in leaves.items():
        assert isinstance(x.grad, torch.Tensor)
        assert_close(TORCH.numpy(x.grad), expected[name], 1e-8, name)


def test_jax_in_single_precision_has_small_integers(available):
    place = available(JAX)
    import jax

    with jax.enable_x64(False) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64(False):
        model = build("nngp", place.array(X, "float32"), place.array(Y, "float32"))
        assert model.sets.dtype == np.int32
        assert_close(np.asarray(model.predict(place.array(X, "float32")).mean), build("nngp").predict(X).mean, 1e-2)
        assert np.isfinite(model.bound(place.array(X, "float32"), place.array(Y, "float32"))[0])
