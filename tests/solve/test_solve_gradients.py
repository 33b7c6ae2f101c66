"""Every bound with two groups of inducing inputs: closed form, automatic differentiation, slopes, blocks, backends."""

import numpy as np
import pytest
from helpers import EXACT, assert_close, assert_closed_form_is_autograd, assert_closed_form_is_slope, bound_stage, named
from solve_cases import COLLAPSED, KINDS, STOCHASTIC, case, lower

from agp import tree, value_and_gradient
from agp.bounds import Batch, collapsed_bound, elbo, free_collapsed_bound


def _leaves(model, X):
    return named(model, "parameter") | {"X": X}


@pytest.mark.cover(2)
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_closed_form_is_autograd_in_parameters_and_inputs(kind, outputs, block, torch_place):
    model, X, y = case(kind, outputs=outputs)
    assert_closed_form_is_autograd(lower(bound_stage(model, y)), _leaves(model, X))


@pytest.mark.parametrize("kind", STOCHASTIC)
def test_closed_form_is_autograd_with_another_likelihood(kind, torch_place):
    model, X, y = case(kind, "bernoulli", outputs=2)
    assert_closed_form_is_autograd(lower(bound_stage(model, y, 2.5)), _leaves(model, X))


@pytest.mark.parametrize("kind", KINDS)
def test_closed_form_is_autodiff_in_raw_leaves(kind, torch_place):
    model, X, y = case(kind, outputs=2)
    model, X, y = torch_place.move(model), torch_place.array(X), torch_place.array(y)
    (value, closed), (auto_value, auto) = (
        value_and_gradient(model, X, y, gradient=m) for m in ("closed-form", "autodiff")
    )
    assert closed.keys() == auto.keys() == tree.leaves(model, "parameter").keys()
    np.testing.assert_allclose(torch_place.numpy(value), torch_place.numpy(auto_value), rtol=1e-13)
    for name in closed:
        assert_close(torch_place.numpy(closed[name]), torch_place.numpy(auto[name]), EXACT, name)


# the union's factor holds a J that follows Kuu, as a constant for gradients: no slope shows that
@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("relaxed-union")])
def test_closed_form_is_slope(kind):
    model, X, y = case(kind, outputs=2)
    assert_closed_form_is_slope(lower(bound_stage(model, y)), _leaves(model, X))


@pytest.mark.parametrize("kind", KINDS)
def test_closed_form_is_autodiff_of_jax(kind):
    jax = pytest.importorskip("jax", reason="jax is not installed: not executed")
    host, X, y = case(kind, outputs=2)
    model, Xj, yj = (tree.to_backend(x, "jax") for x in (host, X, y))
    both = jax.jit(lambda m: [value_and_gradient(m, Xj, yj, gradient=mode) for mode in ("closed-form", "autodiff")])
    expected_value, expected = value_and_gradient(host, X, y)
    for value, gradient in both(model):
        np.testing.assert_allclose(value, expected_value, rtol=1e-11)
        for name, x in expected.items():
            assert_close(np.asarray(gradient[name]), x, EXACT, name)


@pytest.mark.parametrize("kind", KINDS)
def test_same_numbers_on_every_backend(kind, backend):
    model, X, y = case(kind, outputs=2)
    expected_value, expected = value_and_gradient(model, X, y)
    value, gradient = value_and_gradient(backend.move(model), backend.array(X), backend.array(y))
    np.testing.assert_allclose(backend.numpy(value), expected_value, rtol=1e-9)
    for name, x in expected.items():
        assert_close(backend.numpy(gradient[name]), x, 1e-8, name)


@pytest.mark.parametrize("kind", KINDS)
def test_only_parameters_have_a_gradient(kind):
    model, X, y = case(kind)
    bar, X_bar = model.bound(X, y)[1](1.0)
    assert isinstance(bar, type(model))
    assert named(bar).keys() == named(model, "parameter").keys()
    assert X_bar.shape == X.shape


@pytest.mark.parametrize("kind", STOCHASTIC)
def test_blocked_bound_is_the_bound(kind, torch_place):
    host, X_host, y_host = case(kind, "bernoulli", outputs=2)
    for place in (None, torch_place):
        model, X, y = (x if place is None else place.move(x) for x in (host, X_host, y_host))
        (whole, pull_whole), (blocked, pull_blocked) = elbo(model, Batch(X, y)), elbo(model, Batch(X, y), block_rows=5)
        np.testing.assert_allclose(float(blocked), float(whole), rtol=1e-12)
        ours, theirs = pull_blocked(0.7), pull_whole(0.7)
        assert ours[1] is None
        for name, value in named(theirs[0]).items():
            assert_close(np.asarray(named(ours[0])[name]), np.asarray(value), 1e-11, name)


@pytest.mark.parametrize("kind", STOCHASTIC)
def test_blocked_bound_by_automatic_differentiation(kind, torch_place):
    import torch

    model, X, y = case(kind)
    model, X, y = torch_place.move(model), torch_place.array(X), torch_place.array(y)
    raw = {k: v.requires_grad_() for k, v in tree.unconstrain(model).items()}
    found = torch.autograd.grad(elbo(tree.constrain(model, raw), Batch(X, y), block_rows=5)[0], list(raw.values()))
    expected = value_and_gradient(model, X, y)[1]
    for name, gradient in zip(raw, found, strict=True):
        assert_close(torch_place.numpy(gradient), torch_place.numpy(expected[name]), EXACT, name)


@pytest.mark.parametrize("kind", [kind for kind in COLLAPSED if kind != "tight"])
def test_blocks_change_only_the_rounding_of_collapsed_bounds(kind):
    model, X, y = case(kind, outputs=2)
    bound = collapsed_bound if model.second is None else free_collapsed_bound
    whole, pull_whole = bound(model, Batch(X, y), sizes=model.sizes)
    blocked, pull_blocked = bound(model, Batch(X, y), sizes=model.sizes, block_rows=5)
    np.testing.assert_allclose(blocked, whole, rtol=1e-13)
    ours, theirs = named(pull_blocked(0.7)[0]), named(pull_whole(0.7)[0])
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert_close(ours[name], value, 1e-11, name)


@pytest.mark.parametrize("kind", STOCHASTIC)
def test_minibatches_average_to_the_bound(kind):
    model, X, y = case(kind, "bernoulli", outputs=2)
    parts = [float(model.bound(X[i : i + 3], y[i : i + 3], scale=4.0)[0]) for i in range(0, 12, 3)]
    assert np.mean(parts) == pytest.approx(float(model.bound(X, y)[0]), rel=1e-12)
