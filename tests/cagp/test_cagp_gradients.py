"""The bound of computation-aware GPs: closed form, automatic differentiation, slopes, backends."""

import numpy as np
import pytest
from cagp_cases import KINDS, Problem, bound_stage
from helpers import EXACT, STRICT, assert_close, assert_closed_form_is_autograd, assert_closed_form_is_slope

from agp import tree, value_and_gradient

LOSSES = ("elbo", "projected")
FORMS = ("cholesky", "inverse-free")
SCALE = {"capped": 2.5, "capped-dense": 2.5}


def case(kind, loss="elbo", form="cholesky", **settings):
    p = Problem(**settings)
    return p, p.model(kind, loss, form == "inverse-free"), SCALE.get(kind, 1.0) if loss == "elbo" else 1.0


@pytest.mark.cover(2)
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_closed_form_is_autograd(kind, loss, form, outputs, torch_place):
    p, model, scale = case(kind, loss, form, outputs=outputs)
    assert_closed_form_is_autograd(bound_stage(p, model, scale), tree.leaves(model, "parameter"))


@pytest.mark.parametrize("mean", ["constant", "linear"])
@pytest.mark.parametrize("kind", KINDS)
def test_mean_functions_too(kind, mean, torch_place):
    p, model, scale = case(kind, outputs=3, mean=mean)
    leaves = tree.leaves(model, "parameter")
    assert any(name.startswith("mean_function.") for name in leaves)
    assert_closed_form_is_autograd(bound_stage(p, model, scale), leaves)
    assert_closed_form_is_slope(bound_stage(p, model, scale), leaves)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_closed_form_is_slope(kind, loss, form):
    # an inexact factor is a constant for the bound and for its slope alike
    p, model, scale = case(kind, loss, form, outputs=2)
    assert_closed_form_is_slope(bound_stage(p, model, scale), tree.leaves(model, "parameter"))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_closed_form_is_autodiff_in_raw_leaves(kind, loss, form, torch_place):
    p, model, scale = case(kind, loss, form, outputs=2)
    model, X, y = torch_place.move(model), torch_place.array(p.X), torch_place.array(p.y)
    (value, closed), (auto_value, auto) = (
        value_and_gradient(model, X, y, scale=scale, gradient=mode) for mode in ("closed-form", "autodiff")
    )
    assert closed.keys() == auto.keys() == tree.leaves(model, "parameter").keys()
    np.testing.assert_allclose(torch_place.numpy(value), torch_place.numpy(auto_value), rtol=1e-13)
    for name in closed:
        assert_close(torch_place.numpy(closed[name]), torch_place.numpy(auto[name]), EXACT, name)


@pytest.mark.parametrize(
    ("kind", "loss", "form"),
    [
        ("full", "elbo", "inverse-free"),
        ("capped", "elbo", "cholesky"),
        ("dense", "projected", "cholesky"),
    ],
)
def test_closed_form_is_autodiff_of_jax(kind, loss, form):
    jax = pytest.importorskip("jax", reason="jax is not installed: not executed")
    p, host, scale = case(kind, loss, form, outputs=2)
    model, X, y = (tree.to_backend(x, "jax") for x in (host, p.X, p.y))
    both = jax.jit(
        lambda m: [value_and_gradient(m, X, y, scale=scale, gradient=mode) for mode in ("closed-form", "autodiff")]
    )
    expected_value, expected = value_and_gradient(host, p.X, p.y, scale=scale)
    for value, gradient in both(model):
        np.testing.assert_allclose(value, expected_value, rtol=1e-11)
        for name, x in expected.items():
            assert_close(np.asarray(gradient[name]), x, EXACT, name)


@pytest.mark.usefixtures("stale_factors")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_same_numbers_on_every_backend(kind, loss, form, backend):
    p, host, scale = case(kind, loss, form, outputs=2, mean="linear")
    expected_value, expected = value_and_gradient(host, p.X, p.y, scale=scale)
    model, X = backend.move(host), backend.array(p.X)
    value, gradient = value_and_gradient(model, X, backend.array(p.y), scale=scale)
    np.testing.assert_allclose(backend.numpy(value), expected_value, rtol=1e-9)
    assert gradient.keys() == expected.keys()
    for name, x in expected.items():
        assert_close(backend.numpy(gradient[name]), x, 1e-9, name)
    here, there = model.predict(X[:4, :]), host.predict(p.X[:4, :])
    for ours, theirs in zip(here, there, strict=True):
        assert_close(backend.numpy(ours), theirs, 1e-9)
    assert_close(backend.numpy(model.predict_covariance(X[:4, :])), host.predict_covariance(p.X[:4, :]), 1e-9)


@pytest.mark.usefixtures("stale_factors")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_shape_depends_on_data(kind, form):
    array_api_strict = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
    p, host, scale = case(kind, "elbo", form)
    model, X, y = STRICT.move(host), STRICT.array(p.X), STRICT.array(p.y)
    with array_api_strict.ArrayAPIStrictFlags(boolean_indexing=False, data_dependent_shapes=False):
        value, gradient = value_and_gradient(model, X, y, scale=scale)
        prediction = model.predict(X)
    for x in (value, *gradient.values(), *prediction):
        STRICT.check(x)


@pytest.mark.parametrize("kind", KINDS)
def test_only_parameters_have_a_gradient(kind, backend):
    p, host, _ = case(kind, form="inverse-free")
    model = backend.move(host)
    bar, X_bar = model.bound(backend.array(p.X), backend.array(p.y))[1](1.0)
    assert isinstance(bar, type(model))
    assert X_bar is None
    assert tree.leaves(bar).keys() == tree.leaves(model, "parameter").keys()
    assert ("actions.values" in tree.leaves(bar)) == (kind != "fixed")


@pytest.mark.parametrize("kind", ["full", "dense"])
def test_at_the_exact_inverse_both_forms_have_one_gradient(kind):
    p = Problem(outputs=2)
    actions = p.actions(kind)
    exact, relaxed = (p.model(actions=actions, inverse_free=free, distance=0.0) for free in (False, True))
    (value, gradient), (other, theirs) = (value_and_gradient(m, p.X, p.y) for m in (exact, relaxed))
    np.testing.assert_allclose(other, value, rtol=1e-12)
    for name in gradient:
        assert_close(theirs[name], gradient[name], 1e-9, name)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_autodiff_stays_float32(kind, torch_place):
    p, host, scale = case(kind, outputs=2)
    single = torch_place.move(host, "float32")
    X, y = torch_place.array(p.X, "float32"), torch_place.array(p.y, "float32")
    closed, auto = (
        value_and_gradient(single, X, y, scale=scale, gradient=mode)[1] for mode in ("closed-form", "autodiff")
    )
    for name in closed:
        assert_close(torch_place.numpy(closed[name], "float32"), torch_place.numpy(auto[name], "float32"), 1e-4, name)
