"""JAX: a whole training step under jit, device loops, the fold as a scan, failure inside a compiled function."""

import importlib
import logging
import re

import numpy as np
import pytest
from helpers import POSTERIORS, problem, toy_data

from agp import tree, value_and_gradient
from agp.backend import get_backend
from agp.bounds import Batch, elbo
from agp.kernels import RBF, Matern12, Matern32, Matern52, RationalQuadratic
from agp.likelihoods import Gaussian
from agp.linalg import cholesky, inverse_factor
from agp.methods import build
from agp.models import SVGP
from agp.posteriors import InverseFree, Relaxed
from agp.training import recipe, train

jax = pytest.importorskip("jax", reason="jax is not installed: not executed")


@pytest.fixture
def B():
    return get_backend("jax")


def _here(model, *arrays):
    return tree.to_backend(model, "jax"), *(tree.to_backend(x, "jax") for x in arrays)


def _agree(found, expected, tolerance):
    for name, value in expected.items():
        scale = np.abs(value).max()
        assert np.abs(np.asarray(found[name]) - value).max() <= tolerance * scale, name


@pytest.mark.slow
@pytest.mark.sample(6)
@pytest.mark.parametrize("mode", ["closed-form", "autodiff"])
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_value_and_gradient_compile(posterior, mode):
    host, X, y = problem("sum-ard", posterior, outputs=2)
    model, Xj, yj = _here(host, X, y)
    bound, gradient = jax.jit(lambda m, X, y: value_and_gradient(m, X, y, gradient=mode))(model, Xj, yj)
    expected, expected_gradient = value_and_gradient(host, X, y)
    assert float(bound) == pytest.approx(float(expected), rel=1e-12)
    _agree(gradient, expected_gradient, 1e-8)


def test_a_step_is_compiled_once():
    # plain arrays are bound to no device, a compiled step's results are: the second step must not compile anew
    jnp = jax.numpy
    X, y = jnp.linspace(0.0, 1.0, 12)[:, None], jnp.ones((12, 1))
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("jax").addHandler(handler)
    with jax.log_compiles():
        train(SVGP.from_data(X, y, num_inducing=3), X, y, steps=3)
    logging.getLogger("jax").removeHandler(handler)
    steps = [text for text in messages if "XLA compilation" in text and "apply_updates" in text]
    assert len(steps) == 1


def test_a_compiled_function_may_stand_inside_other_transformations(B):
    # options of the compiler are for the outermost function only
    x = jax.numpy.arange(3.0)
    f = B.compile(lambda x: 2.0 * x**2)
    np.testing.assert_array_equal(f(x), [0.0, 2.0, 8.0])
    np.testing.assert_array_equal(jax.jit(lambda y: f(x) + y)(x), [0.0, 3.0, 10.0])
    np.testing.assert_array_equal(jax.vmap(f)(x), [0.0, 2.0, 8.0])
    assert jax.grad(f)(1.5) == 6.0


def test_options_of_the_compiler_are_left_out_where_they_are_unknown_or_the_users_own(monkeypatch):
    takes = importlib.import_module("agp_backends._jax_programs").takes.__wrapped__
    assert takes()
    assert not takes(xla_cpu_of_another_age=True)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=true")
    assert not takes(xla_cpu_use_fusion_emitters=False)


@pytest.mark.parametrize("kernel", [RBF, Matern12, Matern32, Matern52, RationalQuadratic])
def test_no_covariance_is_selected_by_the_sign_of_a_rounding_error(kernel):
    # XLA may evaluate a squared distance twice with different rounding: sqrt(where(r2 > 0, r2, 1)) was 1 at r2 = 0
    r2 = jax.numpy.zeros(3)
    model = tree.place_leaves(kernel().from_data(np.arange(3.0)[:, None], 1.0), r2)
    program = str(jax.make_jaxpr(lambda r2: model.profile(r2)[0])(r2))
    assert "exp" in program
    assert not re.search(r"\b(select_n|gt|ge|lt|le|eq|ne|sign|cond)\b", program)


@pytest.mark.parametrize(("kind", "kernel"), [(Relaxed, Matern32), (InverseFree, RBF)])
def test_whole_steps_run_on_the_device_and_agree_with_numpy(kind, kernel):
    # Adam and the inversion, whose loop must be a device loop inside the compiled step
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = np.sin(X[:, :1])
    host = SVGP.from_data(X, y, posterior=kind, kernel=kernel(), num_inducing=8)
    model, Xj, yj = _here(host, X, y)
    options = {"steps": 12, "batch_size": 20}
    expected = train(host, X, y, updates=recipe(host, 12), **options)
    found = train(model, Xj, yj, updates=recipe(model, 12), **options)
    np.testing.assert_allclose(found.trace["bound"], expected.trace["bound"], rtol=1e-10)
    assert found.trace["inverse_steps"] == expected.trace["inverse_steps"]
    _agree({k: np.asarray(v) for k, v in tree.leaves(found.model).items()}, tree.leaves(expected.model), 1e-9)


def test_a_model_is_a_pytree_and_comes_back():
    model, _, _ = problem("sum", "relaxed")
    (model,) = _here(model)
    leaves, structure = jax.tree.flatten(model)
    assert len(leaves) == len(tree.leaves(model))
    back = jax.tree.unflatten(structure, leaves)
    assert repr(back) == repr(model)
    assert all(a is b for a, b in zip(tree.leaves(model).values(), tree.leaves(back).values(), strict=True))


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("rows", [5, 4, 12, 1])
@pytest.mark.parametrize("mode", ["closed-form", "autodiff"])
def test_the_fold_scans_and_equals_the_whole(rows, mode, B):
    host, X, y = problem("rbf", "whitened", rows=12)
    expected = value_and_gradient(host, X, y)[1]
    model, X, y = _here(host, X, y)

    def closed(model):
        value, pullback = elbo(model, Batch(X, y), block_rows=rows)
        return tree.pull_raw(model, pullback(1.0)[0])

    def by_autodiff(model):
        raw = tree.unconstrain(model)
        return B.value_and_grad(lambda raw: elbo(tree.constrain(model, raw), Batch(X, y), block_rows=rows)[0], raw)[1]

    found = jax.jit(closed if mode == "closed-form" else by_autodiff)(model)
    _agree(found, expected, 1e-9)


def test_the_compiled_fold_needs_the_memory_of_one_block():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 2))
    model, X, y = _here(SVGP.from_data(X, X[:, :1], Z=X[:32]), X, X[:, :1])

    def temporary(rows):
        def gradient(model, X, y):
            value, pullback = elbo(model, Batch(X, y), block_rows=rows)
            return value, tree.pull_raw(model, pullback(1.0)[0])

        compiled = jax.jit(gradient).lower(model, X, y).compile()
        return compiled.memory_analysis().temp_size_in_bytes / 2**20

    whole = 20_000 * 32 * 8 / 2**20
    assert temporary(500) < 0.75 * whole
    assert temporary(20_000) > 2 * whole


@pytest.mark.parametrize("rows", [5, 2, 1])
def test_mapped_rows_scan_and_equal_the_whole(rows, B):
    jnp = jax.numpy
    X, bar = jnp.arange(10.0).reshape(5, 2), jnp.linspace(-1.0, 1.0, 5)

    def f(a, block):
        total = jnp.sum(block * block, axis=1)
        return a * total, lambda bar: (jnp.sum(bar * total), 2.0 * a * bar[:, None] * block)

    def mapped(a, X, bar):
        value, pullback = B.map_rows(f, a, X, rows, add=tree.add)
        return value, pullback(bar)

    for a, b in zip(jax.tree.leaves(jax.jit(mapped)(3.0, X, bar)), jax.tree.leaves(mapped(3.0, X, bar)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)
    slope = jax.grad(lambda a: jnp.vdot(bar, B.map_rows(f, a, X, rows, add=tree.add)[0]))(3.0)
    np.testing.assert_allclose(slope, mapped(3.0, X, bar)[1][0], rtol=1e-14)


def test_a_failed_factorisation_gives_nan_inside_a_compiled_function_and_repairs_are_made(B):
    bad = B.from_numpy(np.diag([1.0, -5.0, 1.0]))
    assert not np.isfinite(np.asarray(jax.jit(cholesky)(bad))).all()
    nearly = np.ones((3, 3)) + 1e-14 * np.eye(3)
    L = np.asarray(jax.jit(cholesky)(B.from_numpy(nearly - 1e-9 * np.eye(3))))
    np.testing.assert_allclose(L @ L.T, nearly, atol=2e-5)


def test_the_inversion_takes_the_same_steps_in_a_device_loop(B):
    rng = np.random.default_rng(0)
    root = rng.normal(size=(12, 12))
    A = root @ root.T + 0.1 * np.eye(12)
    expected = inverse_factor(A, tolerance=1e-8)
    found = jax.jit(lambda A: inverse_factor(A, tolerance=1e-8))(B.from_numpy(A))
    assert float(found.steps) == float(expected.steps)
    np.testing.assert_allclose(np.asarray(found.factor), expected.factor, rtol=1e-8, atol=1e-10)


def test_devices_and_errors(B):
    assert B.devices()[0].startswith(("cpu", "cuda", "gpu"))
    with pytest.raises(ValueError, match=r"JAX has no device 'tpu:9' here; use one of"):
        B.from_numpy(np.zeros(2), device="tpu:9")
    assert B.from_numpy(np.zeros(2)).dtype == np.float64


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("method", ["tsvgp", "cggp"])
def test_evaluation_of_values_compiles_once(method):
    # folds over blocks say that nothing need be kept: of values nothing is, and nothing is compiled for it
    X, y = toy_data()
    X = np.concatenate([X, X**2, X**3], axis=-1)  # so wide that distances have branches, which JAX compiles
    X, y = (tree.to_backend(x, "jax") for x in (X, y))
    parts = {"likelihood": Gaussian(0.1), "kernel": "rbf", "num_inducing": 4, "num_actions": 3, "seed": 0}
    model = build(method, X, y, **parts)

    def evaluated():
        value_and_gradient(model, X, y, gradient="closed-form")
        model.predict(X)

    evaluated()
    events = []
    jax.monitoring.register_event_duration_secs_listener(lambda event, _, **known: events.append(event))
    try:
        evaluated()
    finally:
        jax.monitoring.clear_event_listeners()
    assert not [event for event in events if event.endswith("backend_compile_duration")]
