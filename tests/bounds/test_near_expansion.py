"""The evidence of rows given their neighbours to second order: values, slopes, and the information by its formula."""

import dataclasses

import numpy as np
import pytest
from expansion_cases import coordinates_of, expand, gradient_at
from helpers import assert_close
from near_cases import AMONG, KERNELS, KNOWN, MEANS, ROWS, case, moved, terms, value_of

from agp import get_backend, tree
from agp.bounds import Batch
from agp.kernels import Linear, Matern52
from agp.means import ConstantMean


@pytest.mark.cover(2)
@pytest.mark.parametrize("among", AMONG)
@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_value_and_slopes_are_those_of_the_bound(kernel, mean, outputs, known, among, backend):
    model, batch = case(kernel, mean=mean, outputs=outputs, known=known, among=among)
    coordinates = coordinates_of(model)
    found = expand(*moved(backend, model, batch))
    assert_close(backend.numpy(found.evidence), value_of(model), 1e-10)
    expected = gradient_at(model, batch, coordinates, coordinates.vector_of(model))
    assert_close(backend.numpy(found.slopes), expected, 1e-9)


def moments_by_coordinate(model, coordinates):
    """The slopes [n, N] and [n, N, P] of V and e by each coordinate, by differences."""
    start, h, found = coordinates.vector_of(model), 1e-3, []
    for step in h * np.eye(len(start)):
        ends = [terms(coordinates.model_at(start + k * step))[1:] for k in (-2, -1, 1, 2)]
        found.append([(a - 8.0 * b + 8.0 * c - d) / (12.0 * h) for a, b, c, d in zip(*ends, strict=True)])
    return [np.array(x) for x in zip(*found, strict=True)]


@pytest.mark.cover(2)
@pytest.mark.parametrize("among", AMONG)
@pytest.mark.parametrize("known", ["nothing", "weights", "noise"])
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_information_is_the_sum_over_rows(kernel, mean, outputs, known, among, backend):
    model, batch = case(kernel, mean=mean, outputs=outputs, known=known, among=among)
    coordinates = coordinates_of(model)
    dV, de = moments_by_coordinate(model, coordinates)
    V = terms(model)[1]
    share = model.weights if among == "others" and model.weights is not None else np.ones(ROWS)
    of_V = 0.5 * outputs * np.einsum("in,jn,n->ij", dV, dV, share / V**2)
    of_e = np.einsum("inp,jnp,n->ij", de, de, share / V)
    # half the Gram matrix is the information of the kernel; that of the mean is the whole
    factor = np.where(coordinates.linear, 1.0, 0.5)
    halves = np.where(coordinates.linear[:, None] == coordinates.linear, factor, 1.0)
    whitened = backend.numpy(expand(*moved(backend, model, batch)).whitened)
    assert_close(halves * (whitened.T @ whitened), of_V + of_e, 1e-7)


@pytest.mark.parametrize("known", ["nothing", "all"])
def test_the_density_is_that_of_a_row(known):
    model, batch = case(outputs=2, known=known, among="others")
    densities = model.leave_one_out()
    assert_close(expand(model, batch).leave_one_out, np.average(densities, weights=model.weights), 1e-10)


def test_minibatches_expand_to_parts():
    model, batch = case("sum", mean="linear", known="all")
    each = np.arange(ROWS).reshape(3, -1)
    parts = [expand(model, Batch(batch.X[rows], batch.y[rows], rows=rows)) for rows in each]
    whole = expand(model, batch)
    assert_close(sum(part.evidence for part in parts), whole.evidence, 1e-12)
    assert_close(sum(part.slopes for part in parts), whole.slopes, 1e-10)
    assert_close(np.concatenate([part.whitened for part in parts]), whole.whitened, 1e-12)


def test_a_compiled_expansion_is_the_same(backend):
    model, batch = moved(backend, *case("sum", mean="linear", outputs=2, known="all"))
    scales = coordinates_of(model).scales_at(model)
    compiled = get_backend(backend.name).compile(lambda model, X, y, scales: model._expand(Batch(X, y), scales))
    for x, expected in zip(compiled(model, batch.X, batch.y, scales), expand(model, batch), strict=True):
        assert_close(backend.numpy(x), backend.numpy(expected), 1e-9)


def test_parts_without_derivatives_give_none():
    model, batch = case()

    @tree.model
    class Plain(Matern52):
        def linearise_groups(self, X, /):
            return None

    @tree.model
    class Level(ConstantMean):
        def basis(self, X, outputs, /):
            return None

    for part in (Plain(np.asarray(0.9), np.asarray(1.1)), Plain(np.asarray(0.9), np.asarray(1.1)) + Linear(0.3)):
        assert dataclasses.replace(model, kernel=part)._expand(batch, {}) is None
    assert dataclasses.replace(model, mean_function=Level(np.zeros(1)))._expand(batch, {}) is None


def test_inducing_inputs_are_not_expanded():
    model, batch = case(inducing=5)
    assert model._expand(batch, {}) is None
