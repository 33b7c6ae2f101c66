"""The evidence to second order: its value and gradient, the average information, leave-one-out densities."""

import dataclasses

import numpy as np
import pytest
from expansion_cases import KERNELS, KNOWN, MEANS, case, coordinates_of, expand, gradient_at, moved
from helpers import assert_close, autograd, gpr, with_leaves

from agp import get_backend, tree
from agp.bounds import Batch, expand_evidence
from agp.kernels import Constant, Linear, Matern52, White
from agp.likelihoods import Gaussian
from agp.means import ConstantMean
from agp.priors import Gamma, LogNormal, Normal, Relative, log_prior
from agp.training._newton import Evidence, prior_along_coordinates


@pytest.mark.cover(2)
@pytest.mark.parametrize("rows", [24, 140])
@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_value_and_slopes_are_those_of_the_bound(kernel, mean, outputs, known, rows, backend):
    model, batch = case(kernel, mean, outputs, known, rows)
    coordinates = coordinates_of(model)
    found = expand(*moved(backend, model, batch))
    assert_close(backend.numpy(found.evidence), model._objective(batch)[0], 1e-10)
    expected = gradient_at(model, batch, coordinates, coordinates.vector_of(model))
    assert_close(backend.numpy(found.slopes), expected, 1e-9)


@pytest.mark.cover(2)
@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_slopes_are_autodiff(kernel, mean, outputs, known, torch_place):
    model, batch = case(kernel, mean, outputs, known)
    here, rows = moved(torch_place, model, batch)
    slopes = torch_place.numpy(expand(here, rows).slopes)
    leaves = tree.leaves(here, "parameter")
    gradient = autograd(lambda x: (tree.with_leaves(here, x)._objective(rows)[:1], None), leaves, (1.0,))
    scales = coordinates_of(model).scales_at(model)
    expected = [np.reshape(torch_place.numpy(gradient[name]) * scale, -1) for name, scale in scales.items()]
    assert_close(slopes, np.concatenate(expected), 1e-8)


def dense(model, batch, coordinates):
    """The covariance of the targets, its slopes by differences, and the residual, for one vector of coordinates."""

    def covariance(vector):
        there = coordinates.model_at(vector)
        noise = there.likelihood.noise_variance + (0.0 if batch.noise is None else batch.noise[:, 0])
        noise = noise if batch.weights is None else noise / batch.weights
        return there.kernel(batch.X)[0] + np.diag(np.broadcast_to(noise, batch.X.shape[:1]))

    start = coordinates.vector_of(model)
    h = 1e-3

    def slope(i):
        step = h * np.eye(len(start))[i]
        ends = [covariance(start + k * step) for k in (-2, -1, 1, 2)]
        return (ends[0] - 8.0 * ends[1] + 8.0 * ends[2] - ends[3]) / (12.0 * h)

    y = batch.y if batch.offset is None else batch.y - batch.offset
    residual = y - model.mean_function(batch.X)[0]
    return covariance(start), [slope(i) for i in range(len(start))], residual


def gram_of(whitened):
    """The inner products [n, n] of the columns."""
    return whitened.T @ whitened


@pytest.mark.cover(2)
@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_gram_matrix_is_dense(kernel, mean, outputs, known, backend):
    model, batch = case(kernel, mean, outputs, known)
    coordinates = coordinates_of(model)
    K, slopes, residual = dense(model, batch, coordinates)
    al = np.linalg.solve(K, residual)
    columns = [dK @ al for dK in slopes]
    basis = tree.leaves(model.mean_function.basis(batch.X, outputs))
    own = [i for i, linear in enumerate(coordinates.linear) if not linear]
    whitened = backend.numpy(expand(*moved(backend, model, batch)).whitened)
    by_mean = [
        np.reshape(basis[name.removeprefix("mean_function.")], (*residual.shape, -1))[..., i]
        for name, leaf in coordinates.scales_at(model).items()
        if name.startswith("mean_function.")
        for i in range(np.size(leaf))
    ]
    position = iter(by_mean)
    b = [columns[i] if i in own else next(position) for i in range(len(slopes))]
    expected = [[np.sum(first * np.linalg.solve(K, second)) for second in b] for first in b]
    assert whitened.shape == (residual.size, len(slopes))
    assert_close(gram_of(whitened), np.array(expected), 1e-8)


@pytest.mark.cover(2)
@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("kernel", KERNELS)
def test_leave_one_out_is_that_of_the_model(kernel, outputs, known, backend):
    model, batch = case(kernel, "constant", outputs, known)
    given = {name: getattr(batch, name) for name in ("weights", "offset", "noise")}
    densities = dataclasses.replace(model, **given).leave_one_out()
    found = expand(*moved(backend, model, batch)).leave_one_out
    assert_close(backend.numpy(found), np.average(densities, weights=batch.weights), 1e-10)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("known", KNOWN)
def test_the_information_is_the_average_of_observed_and_expected(known, outputs):
    # exactly so for slopes that do not depend on the parameters: those by variances, which K is linear in
    _, batch = case("rbf-ard", "constant", outputs, known)
    kernel = Linear(np.array([0.3, 0.2, 0.4])) + Constant(np.asarray(0.5)) + White(np.asarray(0.1))
    model = gpr(kernel, Gaussian(np.asarray(0.2)), batch.X, batch.y)
    values = tree.leaves(model, "parameter")
    names = [name for name in values if name != "likelihood.noise_variance" or known in ("nothing", "offset", "noise")]
    gram = gram_of(model._expand(batch, {name: np.ones_like(values[name]) for name in names}).whitened)

    def gradient(shifts):
        there = tree.with_leaves(model, {name: values[name] + x for name, x in shifts.items()})
        bars = tree.leaves(there._objective(batch)[1](1.0)[0])
        return np.concatenate([np.reshape(bars[name], -1) for name in names])

    coordinates = coordinates_of(model, names)
    K, slopes, _ = dense(model, batch, coordinates)
    scales = np.concatenate([np.reshape(values[name], -1) for name in names])
    solved = [np.linalg.solve(K, dK) / scale for dK, scale in zip(slopes, scales, strict=True)]
    expected = 0.5 * outputs * np.array([[np.trace(first @ second) for second in solved] for first in solved])
    h, observed = 1e-4, []
    for name in names:
        for index in np.ndindex(values[name].shape):
            step = np.zeros_like(values[name])
            step[index] = h
            ends = [gradient({name: k * step}) for k in (-2, -1, 1, 2)]
            observed.append(-(ends[0] - 8.0 * ends[1] + 8.0 * ends[2] - ends[3]) / (12.0 * h))
    assert_close(0.5 * gram, 0.5 * (np.array(observed) + expected), 1e-7)


@pytest.mark.parametrize("kernel", KERNELS)
def test_coordinates_have_the_order_of_their_names(kernel):
    # not that of the dictionary, which compiled functions of JAX sort
    model, batch = case(kernel, "linear", 2, "all")
    coordinates = coordinates_of(model)
    scales = coordinates.scales_at(model)
    whole = model._expand(batch, scales)
    names = sorted(scales)
    assert list(scales) == names
    some = names[::-2]
    ends = dict(zip(names, np.cumsum(coordinates.sizes), strict=True))
    places = np.concatenate([np.arange(ends[name] - np.size(scales[name]), ends[name]) for name in sorted(some)])
    found = model._expand(batch, {name: scales[name] for name in some})
    assert_close(found.slopes, whole.slopes[places], 1e-12)
    assert_close(found.whitened, whole.whitened[:, places], 1e-10)


def test_a_compiled_expansion_is_the_same(backend):
    # the names of means and noises come after those of kernels in the model, and before or after in the alphabet
    model, batch = moved(backend, *case("rq-ard", "linear", 2))
    scales = coordinates_of(model).scales_at(model)
    compiled = get_backend(backend.name).compile(lambda model, X, y, scales: model._expand(Batch(X, y), scales))
    backwards = dict(reversed(scales.items()))
    for x, expected in zip(compiled(model, batch.X, batch.y, backwards), expand(model, batch), strict=True):
        assert_close(backend.numpy(x), backend.numpy(expected), 1e-9)


@pytest.mark.parametrize("known", ["nothing", "weights", "noise"])
def test_a_singular_matrix_gives_nan(known, backend):
    model, batch = case("rbf-ard", "constant", 1, known)
    batch.X[1] = batch.X[0]
    if batch.noise is not None:
        batch.noise[:] = 0.0
    model = with_leaves(model, {"likelihood.noise_variance": np.asarray(-0.5)})
    with np.errstate(invalid="ignore"):
        found = expand(*moved(backend, model, batch))
    assert np.isnan(backend.numpy(found.evidence))


def test_parts_without_derivatives_give_none():
    model, batch = case()

    @tree.model
    class Plain(Matern52):
        def linearise(self, X, /):
            return None

    @tree.model
    class Level(ConstantMean):
        def basis(self, X, outputs, /):
            return None

    kernel, mean = Plain(np.asarray(0.9), np.asarray(1.1)), Level(np.zeros(1))
    for other in (dataclasses.replace(model, kernel=kernel), dataclasses.replace(model, mean_function=mean)):
        assert expand_evidence(other, batch, {}) is None


# -- priors -----------------------------------------------------------------------------------------------------------


def curvature(coordinates, vector):
    """The log prior, its gradient and minus its second derivatives in coordinates, by differences."""

    def at(vector):
        return float(log_prior(coordinates.model_at(vector))[0])

    h, found = 1e-3, []
    for step in h * np.eye(len(vector)):
        low, middle, high = at(vector - step), at(vector), at(vector + step)
        found.append(((high - low) / (2.0 * h), (2.0 * middle - low - high) / h**2))
    return at(vector), *np.array(found).T


PRIORS = (
    ("kernel.lengthscale", LogNormal(0.3, 0.7)),
    ("likelihood.noise_variance", Gamma(2.0, 3.0)),
    ("mean_function.value", Normal(0.2, 0.5)),
)


@pytest.mark.parametrize("frozen", [False, True])
def test_priors_are_added(frozen):
    model, batch = case("rbf-ard", "constant", 2, "all")
    names = [name for name in tree.leaves(model, "parameter") if not (frozen and name.startswith("kernel"))]
    coordinates = coordinates_of(model, names)
    vector = coordinates.vector_of(model)
    alone = Evidence(model, batch, names)(vector)
    both = Evidence(dataclasses.replace(model, priors=PRIORS), batch, names)(vector)
    value, slope, second = curvature(coordinates_of(dataclasses.replace(model, priors=PRIORS), names), vector)
    assert both.value == pytest.approx(alone.value + value, rel=1e-12)
    # without the mean, which is profiled, the prior adds to gradient and information
    expansion = expand(model, batch, names)
    linear = coordinates.linear
    gram = gram_of(expansion.whitened) + np.diag(np.where(linear, 1.0, 2.0) * np.maximum(second, 0.0))
    G, C = gram[np.ix_(linear, linear)], gram[np.ix_(linear, ~linear)]
    step = np.linalg.solve(G, (expansion.slopes + slope)[linear])
    assert_close(both.slope, (expansion.slopes + slope)[~linear] - C.T @ step, 1e-5)
    assert_close(both.information.dense(), 0.5 * (gram[np.ix_(~linear, ~linear)] - C.T @ np.linalg.solve(G, C)), 1e-5)


def test_the_curvature_of_a_log_normal_prior_is_its_precision():
    model, _ = case("rbf-ard")
    leaf = next(leaf for leaf in tree.describe(model) if leaf.name == "kernel.lengthscale")
    for prior in (LogNormal(0.3, 0.7), Relative(LogNormal(0.3, 0.7))):
        value, slope, second = prior_along_coordinates(leaf._replace(unit=np.asarray(2.0)), prior)
        x = leaf.value / (2.0 if isinstance(prior, Relative) else 1.0)
        np.testing.assert_allclose(slope, -(np.log(x) - 0.3) / 0.49 - 1.0, rtol=1e-12)
        np.testing.assert_allclose(second, 1.0 / 0.49, rtol=1e-6)
        expected = -0.5 * ((np.log(x) - 0.3) / 0.7) ** 2 - np.log(x) - np.log(0.7) - 0.5 * np.log(2.0 * np.pi)
        assert value == pytest.approx(np.sum(expected), rel=1e-12)


def test_the_curvature_of_a_normal_prior_is_in_units():
    model, _ = case("rbf-ard", "constant")
    leaf = next(leaf for leaf in tree.describe(model) if leaf.name == "mean_function.value")
    _, slope, second = prior_along_coordinates(leaf._replace(unit=np.asarray(4.0)), Normal(0.2, 0.5))
    np.testing.assert_allclose(slope, -(leaf.value - 0.2) / 0.25 * 4.0, rtol=1e-12)
    np.testing.assert_allclose(second, 16.0 / 0.25, rtol=1e-6)
