"""Gradients of deep models: closed forms against torch, JAX and the strict library, by every leaf and by the inputs.

What a posterior does in a layer depends on the layer alone: it gets inputs, sends samples on (or marginals, as the last
one), and gets cotangents back. So what can go wrong is a posterior at a place in the chain, two that follow each other,
and a shape of the layers. Covered are, on torch, every ordered pair in two layers, and every posterior at each of three
places in each shape; on the strict library every posterior at each place, and every shape; on JAX, which takes long to
compile a model, every posterior once, three to a model, and the shapes that the others are made of.
"""

import numpy as np
import pytest
from helpers import (
    EXACT,
    JAX,
    STRICT,
    as_arrays,
    assert_close,
    assert_closed_form_is_autograd,
    bound_stage,
    lower_leaves,
    named,
)
from process_cases import points, sparse

import agp
from agp.kernels import RBF, Matern32, Matern52
from agp.likelihoods import Gaussian
from agp.means import Projection
from agp.models import SVGP
from agp.processes import Deep, FixedMap, LinearMixing, Stack

WIDTH, ROWS, SAMPLES, SCALE, M = 2, 6, 2, 2.5, 4

KINDS = (
    "whitened",
    "likelihood",
    "relaxed",
    "inverse-free",
    "marginal",
    "orthogonal",
    "relaxed-orthogonal",
    "diagonal-whitened",
)
"""Every parameterisation of inner layers."""
VARIANTS = (
    "diagonal-marginal",
    "likelihood-plain",
    "likelihood-full-site",
    "relaxed-plain",
    "relaxed-full-site",
    "relaxed-root",
)
"""And other forms of them."""
SITES = ("dual-natural", "dual-kernel", "dual-white", "dual-inverse-free", "orthogonal-dual")
"""Those of last layers alone."""
SHAPES = ("plain", "skip", "stack", "lmc-inner", "lmc-last")


def _sparse(kind, rng, width, outputs, kernel=RBF, count=M):
    """A layer of `outputs` functions that share kernel and inducing inputs, which adds to what it gets."""
    own = Projection(np.eye(width, outputs), np.zeros(width))
    prior = kernel(0.8, tuple(np.linspace(1.2, 1.9, width)))
    return sparse(prior, points(count, width, rng), kind, outputs, rng, own)


def _stack(kind, rng, width):
    """Functions with a kernel and inducing inputs of their own, two of them."""
    return Stack((_sparse(kind, rng, width, 1), _sparse(kind, rng, width, 1, Matern52, M + 1)))


def _layers(shape, kinds, rng):
    """The layers; what a shape changes is the second to last, or the last one."""
    width, built = WIDTH, []
    for i, kind in enumerate(kinds):
        last, inner = i + 1 == len(kinds), i + 2 == len(kinds)
        kernel = (Matern32, RBF, Matern52)[i]
        if inner and shape == "skip":
            layer = Stack((_sparse(kind, rng, width, 2, kernel), FixedMap(Projection(np.eye(width), np.zeros(width)))))
        elif inner and shape == "stack":
            layer = _stack(kind, rng, width)
        elif (inner and shape == "lmc-inner") or (last and shape == "lmc-last"):
            layer = LinearMixing(_stack(kind, rng, width), rng.normal(size=(3, 2)))
        else:
            layer = _sparse(kind, rng, width, 2, kernel)
        width = layer.outputs
        built.append(layer)
    return tuple(built)


def model_of(shape, kinds):
    """A deep model on the host, far from any optimum, with its data."""
    rng = np.random.default_rng([SHAPES.index(shape), *(sum(map(ord, kind)) for kind in kinds)])
    process = Deep(_layers(shape, kinds, rng), samples=SAMPLES)
    model = SVGP(process=process, likelihood=as_arrays(Gaussian(0.2)))
    return model, rng.normal(size=(ROWS, WIDTH)), rng.normal(size=(ROWS, process.outputs))


def threes(kinds):
    """Each kind at each of three places, next to others every time."""
    return [tuple(kinds[(i + shift) % len(kinds)] for shift in (0, 1, 3)) for i in range(len(kinds))]


PAIRS = [(a, b) for a in KINDS for b in KINDS]
THREES = threes(KINDS + VARIANTS)


JAX_MODELS = (
    ("skip", ("relaxed", "inverse-free", "orthogonal")),
    ("lmc-inner", ("marginal", "likelihood", "whitened")),
    ("lmc-last", ("relaxed-orthogonal", "diagonal-whitened", "relaxed")),
    ("plain", ("whitened", "dual-natural")),
)


def test_the_covering_covers():
    for place in range(3):
        assert {kinds[place] for kinds in THREES} == {*KINDS, *VARIANTS}
    assert {kind for _, kinds in JAX_MODELS for kind in kinds} >= {*KINDS}
    found = {type(model_of("plain", (kind, kind))[0].process.layers[0].posterior) for kind in KINDS}
    assert len(found) == len(KINDS)


def stage_of(shape, kinds):
    """The bound of a model as a function of every leaf and X, and these; all layers among them."""
    model, X, y = model_of(shape, kinds)
    leaves = named(model, "parameter") | {"X": X}
    assert {name.split(".")[1] for name in leaves if name.startswith("layers.")} == {str(i) for i in range(len(kinds))}
    stage = bound_stage(model, y, SCALE)
    return lambda given: stage(lower_leaves(given)), leaves


# -- torch ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kinds", PAIRS, ids="-then-".join)
def test_every_pair_of_posteriors_in_two_layers(kinds, torch_place):
    assert_closed_form_is_autograd(*stage_of("plain", kinds))


@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kinds", THREES, ids="-then-".join)
def test_every_posterior_at_every_place_of_three_layers(kinds, shape, torch_place):
    assert_closed_form_is_autograd(*stage_of(shape, kinds))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", SITES)
def test_sites_in_the_last_of_three_layers(kind, shape, torch_place):
    i = SITES.index(kind) + SHAPES.index(shape)
    assert_closed_form_is_autograd(*stage_of(shape, (KINDS[i % len(KINDS)], KINDS[(i + 3) % len(KINDS)], kind)))


# -- other libraries --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(THREES)))
def test_the_standard_alone_gives_the_same(number, available):
    place = available(STRICT)
    model, X, y = model_of(SHAPES[number % len(SHAPES)], THREES[number])
    expected, gradient = agp.value_and_gradient(model, X, y, scale=SCALE)
    value, found = agp.value_and_gradient(place.move(model), place.array(X), place.array(y), scale=SCALE)
    assert float(place.numpy(value)) == pytest.approx(float(expected), rel=1e-11)
    assert found.keys() == gradient.keys()
    for name, x in gradient.items():
        assert_close(place.numpy(found[name]), x, EXACT, name)


@pytest.mark.parametrize(("shape", "kinds"), JAX_MODELS)
def test_jax_finds_the_same_gradient(shape, kinds):
    jax = pytest.importorskip("jax", reason="jax is not installed: not executed")
    stage, leaves = stage_of(shape, kinds)
    (value,), pullback = stage(leaves)
    expected = pullback(np.asarray(1.0))
    here = {name: JAX.array(x) for name, x in leaves.items()}
    traced = jax.jit(jax.value_and_grad(lambda given: stage(given)[0][0])).lower(here)
    # code that runs once need not be fast
    found, gradient = traced.compile(compiler_options={"xla_backend_optimization_level": 0})(here)
    assert float(found) == pytest.approx(float(value), rel=1e-11)
    for name in leaves:
        assert_close(JAX.numpy(gradient[name]), expected[name], EXACT, name)
