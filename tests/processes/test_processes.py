"""Processes and their compositions: gradients in both modes on every backend, blocks, samples, predictions, checks."""

import dataclasses
import functools

import numpy as np
import pytest
from helpers import (
    EXACT,
    JAX,
    NUMPY,
    assert_close,
    assert_closed_form_is_autograd,
    assert_closed_form_is_slope,
    bound_stage,
    named,
)
from process_cases import (
    COVERING,
    DEEP,
    FOLLOWS_ITS_INVERSE,
    POSTERIORS,
    PROCESSES,
    SHALLOW,
    case,
    data,
    process_case,
)

import agp
from agp import tree
from agp.backend import backend_of

SCALE = 2.5


def _lowered(stage):
    """The stage as a function of the lower triangles of the scales."""

    def of_lower(leaves):
        xp = backend_of(leaves["X"]).xp
        return stage({k: xp.tril(x) if k.endswith(".scale") and x.ndim == 3 else x for k, x in leaves.items()})

    return of_lower


def _agree(found, expected, tolerance):
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        assert_close(np.asarray(found[name]), np.asarray(x), tolerance, name)


# -- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", POSTERIORS)
@pytest.mark.parametrize("name", PROCESSES)
def test_closed_form_is_autograd(name, kind, torch_place):
    host, X, y = case(name, kind)
    model, X, y = torch_place.move(host), torch_place.array(X), torch_place.array(y)
    value, closed = agp.value_and_gradient(model, X, y, scale=SCALE)
    by_torch, auto = agp.value_and_gradient(model, X, y, scale=SCALE, mode="autodiff")
    assert float(value) == pytest.approx(float(by_torch), rel=1e-13)
    assert closed.keys() == tree.leaves(host, "parameter").keys()
    _agree(closed, auto, EXACT)


@pytest.mark.parametrize("kind", COVERING)
@pytest.mark.parametrize("name", PROCESSES)
def test_closed_form_is_the_gradient_of_jax(name, kind):
    pytest.importorskip("jax", reason="jax is not installed: not executed")
    host, X, y = case(name, kind)
    expected, closed = agp.value_and_gradient(host, X, y, scale=SCALE)
    model, X, y = JAX.move(host), JAX.array(X), JAX.array(y)
    value, auto = agp.value_and_gradient(model, X, y, scale=SCALE, mode="autodiff")
    assert float(value) == pytest.approx(float(expected), rel=1e-12)
    _agree(auto, closed, EXACT)


@pytest.mark.parametrize("kind", POSTERIORS)
@pytest.mark.parametrize("name", PROCESSES)
def test_inputs_too(name, kind, torch_place):
    model, X, y = case(name, kind)
    stage = _lowered(bound_stage(model, y, SCALE))
    assert_closed_form_is_autograd(stage, named(model, "parameter") | {"X": X})


@pytest.mark.parametrize("kind", [kind for kind in COVERING if kind not in FOLLOWS_ITS_INVERSE])
@pytest.mark.parametrize("name", PROCESSES)
def test_closed_form_is_slope(name, kind):
    model, X, y = case(name, kind)
    assert_closed_form_is_slope(bound_stage(model, y, SCALE), named(model, "parameter") | {"X": X})


@pytest.mark.parametrize("likelihood", ["bernoulli", "poisson"])
@pytest.mark.parametrize("name", PROCESSES)
def test_other_likelihoods(name, likelihood, torch_place):
    model, X, y = case(name, "whitened", likelihood)
    stage = _lowered(bound_stage(model, y, SCALE))
    assert_closed_form_is_autograd(stage, named(model, "parameter") | {"X": X})


@pytest.mark.parametrize("kind", COVERING)
@pytest.mark.parametrize("name", PROCESSES)
def test_every_backend_agrees(name, kind, backend):
    host, X, y = case(name, kind)
    expected, gradient = agp.value_and_gradient(host, X, y, scale=SCALE)
    value, found = agp.value_and_gradient(backend.move(host), backend.array(X), backend.array(y), scale=SCALE)
    assert float(backend.numpy(value)) == pytest.approx(float(expected), rel=1e-11)
    _agree({k: backend.numpy(x) for k, x in found.items()}, {k: x for k, x in gradient.items()}, 1e-9)
