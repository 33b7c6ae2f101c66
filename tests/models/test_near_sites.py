"""Rows given pseudo-observations of near rows: the exact limits, gradients, lower bounds, quadrature, libraries."""

import dataclasses
import itertools

import numpy as np
import pytest
from helpers import JAX, assert_close, autograd
from near_site_cases import (
    LIKELIHOODS,
    OF_NUMBERS,
    ROWS,
    blank,
    case,
    data,
    gradient_of,
    known_of,
    moved,
    stepped,
    value_of,
    with_all_neighbours,
)
from numpy.polynomial.hermite_e import hermegauss

from agp import NNGP, TNNGP, TVGP, Gaussian, tree
from agp.bounds import Batch
from agp.kernels import RBF, Linear, White
from agp.updates import SiteStep

WITH_SLOPES = {
    "bernoulli": ("nothing", "weights", "offset", "both"),
    "poisson": ("nothing", "both"),
    "student-t": ("nothing", "both"),
    "gaussian": ("nothing", "noise", "both"),
    "softmax": ("nothing", "both"),
}
SLOPES = [(name, what) for name, every in WITH_SLOPES.items() for what in every]
NEW = np.random.default_rng(9).uniform(-2.0, 2.0, size=(7, 2))


# -- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [None, 1e-3], ids=["whole", "blocks"])
@pytest.mark.parametrize(("likelihood", "what"), SLOPES)
def test_the_gradient_is_that_of_autograd(likelihood, what, memory, torch_place):
    model, batch = case(likelihood, "sum", "linear", what)
    here, rows = moved(torch_place, model, batch)
    leaves = tree.leaves(here, "parameter")
    expected = autograd(lambda x: (tree.with_leaves(here, x)._objective(rows)[:1], None), leaves, (1.0,))
    for name, bar in gradient_of(model, batch, memory=memory).items():
        assert_close(bar, torch_place.numpy(expected[name]), 1e-8, name)


@pytest.mark.parametrize(("likelihood", "what"), [pair for pair in SLOPES if pair[1] != "weights"])
def test_the_gradient_is_that_of_jax(likelihood, what, available):
    place = available(JAX)
    import jax

    model, batch = case(likelihood, "product", "linear", what)
    here, rows = moved(place, model, batch)
    leaves = tree.leaves(here, "parameter")
    expected = jax.grad(lambda x: tree.with_leaves(here, x)._objective(rows)[0])(leaves)
    for name, bar in gradient_of(model, batch).items():
        assert_close(bar, place.numpy(expected[name]), 1e-8, name)


@pytest.mark.parametrize(("likelihood", "what"), SLOPES)
def test_the_gradient_is_that_of_differences(likelihood, what):
    model, batch = case(likelihood, "sum", "linear", what)
    rng, h = np.random.default_rng(3), 1e-4
    for name, bar in gradient_of(model, batch).items():
        x = np.asarray(tree.leaves(model)[name])
        change = rng.normal(size=x.shape) * max(np.abs(x).max(), 0.1)
        ends = [value_of(tree.with_leaves(model, {name: x + k * h * change}), batch) for k in (-2, -1, 1, 2)]
        slope = (ends[0] - 8.0 * ends[1] + 8.0 * ends[2] - ends[3]) / (12.0 * h)
        np.testing.assert_allclose(np.sum(bar * change), slope, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("likelihood", ["bernoulli", "softmax"])
def test_blocks_of_rows_change_nothing(likelihood):
    model, batch = case(likelihood, "sum", what="both")
    for memory in (1e-3, 0.02):
        assert_close(value_of(model, batch, memory=memory), value_of(model, batch), 1e-12)
        found = model.leave_one_out(batch.y, weights=batch.weights, offset=batch.offset, memory=memory)
        whole = model.leave_one_out(batch.y, weights=batch.weights, offset=batch.offset)
        assert_close(found, whole, 1e-11)


# -- the same on every library ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", ["bernoulli", "poisson", "student-t", "gaussian", "softmax"])
def test_every_library_has_the_same_numbers(likelihood, backend):
    known = known_of("offset", likelihood)
    X, y = data(likelihood)
    begun = blank(likelihood, X)
    host = stepped(begun, X, y, **known)
    here = {name: backend.array(x) for name, x in known.items()}
    x, targets = backend.array(X), backend.array(y)
    there = stepped(backend.move(begun), x, targets, **here)
    for name in ("site_shift", "site_precision"):
        assert_close(backend.numpy(getattr(there, name)), getattr(host, name), 1e-9, name)
    assert_close(backend.numpy(there.bound(x, targets, **here)[0]), host.bound(X, y, **known)[0], 1e-9)
    assert_close(backend.numpy(there.leave_one_out(targets, **here)), host.leave_one_out(y, **known), 1e-9)
    for found, expected in zip(there.predict(backend.array(NEW)), host.predict(NEW), strict=True):
        assert_close(backend.numpy(found), expected, 1e-9)


@pytest.mark.parametrize("likelihood", ["poisson", "student-t"])
def test_float32_has_the_numbers_of_float64(likelihood):
    model, batch = case(likelihood)
    single, rows = moved_to_single(model, batch)
    found, pull = single._objective(rows)
    assert found.dtype == np.float32
    assert_close(found, value_of(model, batch), 1e-4)
    assert all(bar.dtype == np.float32 for bar in tree.leaves(pull(1.0)[0]).values() if bar is not None)
    assert_close(stepped(single, rows.X, rows.y).site_shift, stepped(model, batch.X, batch.y).site_shift, 2e-3)


def moved_to_single(model, batch):
    return tree.to_backend(model, "numpy", dtype="float32"), batch.take(lambda x: x.astype(np.float32))


# -- all other rows as neighbours -------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["nothing", "offset", "weights"])
@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli", "logit", "poisson", "ordinal"])
def test_with_all_other_rows_sites_and_predictions_are_those_of_tvgp(likelihood, what):
    X, y = data(likelihood)
    known = known_of(what, likelihood)
    near = stepped(blank(likelihood, X, neighbours=ROWS - 1), X, y, 150, 0.8, **known)
    exact = stepped(blank(likelihood, X, exact=True), X, y, 150, 0.8, **known)
    assert_close(near.site_shift, exact.site_shift, 1e-10)
    assert_close(near.site_precision, exact.site_precision, 1e-10)
    for found, expected in zip(with_all_neighbours(near).predict(NEW), exact.predict(NEW), strict=True):
        assert_close(found, expected, 1e-9)
    if what != "weights":  # of weighted rows, TVGP leaves out one observation
        assert_close(near.leave_one_out(y, **known), exact.leave_one_out(y, **known), 1e-8)


def test_classes_with_all_other_rows_are_those_of_tvgp():
    X, y = data("softmax")
    near = stepped(blank("softmax", X, neighbours=ROWS - 1), X, y, 150, 0.8)
    exact = stepped(blank("softmax", X, exact=True), X, y, 150, 0.8)
    assert_close(near.site_shift, exact.site_shift, 1e-9)
    assert_close(near.site_precision, exact.site_precision, 1e-9)
    for found, expected in zip(with_all_neighbours(near).predict(NEW), exact.predict(NEW), strict=True):
        assert_close(found, expected, 1e-8)


# -- Gaussian noise ---------------------------------------------------------------------------------------------------


def gaussian_pair(what, **options):
    """A model with the sites of Gaussian noise, the nearest-neighbour model of the same rows, and the batch."""
    X, y = data("gaussian")
    known = known_of(what, "gaussian")
    model = blank("gaussian", X, "sum", **options).with_gaussian_sites(y, **known)
    fields = {name: getattr(model, name) for name in ("kernel", "likelihood", "mean_function", "neighbours", "sets")}
    return model, NNGP(X=X, y=y, among="others", **fields, **known), model._batch(X, y, **known)


@pytest.mark.parametrize("what", ["nothing", "noise", "offset"])
def test_for_gaussian_noise_it_is_the_nearest_neighbour_model(what):
    model, near, batch = gaussian_pair(what)
    assert_close(value_of(model, batch), near._objective(Batch(batch.X, batch.y))[0], 1e-9)
    known = {name: x for name, x in zip(("weights", "offset", "noise"), batch.known, strict=True) if x is not None}
    assert_close(model.leave_one_out(batch.y, **known), near.leave_one_out(), 1e-9)
    for found, expected in zip(model.predict(NEW), near.predict(NEW), strict=True):
        assert_close(found, expected, 1e-9)
    stepped_once = stepped(model, batch.X, batch.y, 1, 1.0, **known)  # these sites are a fixed point
    assert_close(stepped_once.site_shift, model.site_shift, 1e-9)


@pytest.mark.parametrize("likelihood", ["bernoulli", "poisson", "student-t", "softmax"])
def test_as_regression_has_the_same_predictions_of_functions(likelihood):
    model, _ = case(likelihood, "sum", "linear")
    for found, expected in zip(model.as_regression().predict(NEW), model.predict(NEW), strict=True):
        assert_close(found, expected, 1e-9)
    found, expected = (each.predict_covariance(NEW) for each in (model.as_regression(), model))
    assert_close(found, expected, 1e-9)


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli", "poisson", "exponential"])
def test_at_the_fixed_point_the_gradient_is_that_of_regression(likelihood):
    model, batch = case(likelihood, "sum", times=200)
    held = model.as_regression()
    expected = tree.leaves(held._objective(Batch(held.X, held.y))[1](1.0)[0])
    scale = max(np.abs(bar).max() for name, bar in gradient_of(model, batch).items() if name.startswith("kernel."))
    for name, bar in gradient_of(model, batch).items():
        if name.startswith("kernel."):
            np.testing.assert_allclose(bar, expected[name], rtol=1e-6, atol=1e-6 * scale, err_msg=name)


# -- lower bounds and quadrature --------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 40])
@pytest.mark.parametrize("likelihood", OF_NUMBERS)
def test_the_bound_is_below_the_densities_of_rows_given_their_neighbours(likelihood, times):
    model, batch = case(likelihood, times=times)
    value, density = value_of(model, batch), np.sum(model.leave_one_out(batch.y))
    if likelihood == "gaussian" and times > 1:
        assert_close(value, density, 1e-9)
    assert value <= density + 1e-6 * abs(density)


NODES = 40


def exact_posterior(model, y):
    """Function values [S, N] at nodes of the prior, their prior probabilities, and densities [S, N] of targets."""
    z, w = hermegauss(NODES)
    N = len(model.X)
    K, h = model.kernel(model.X)[0], model.mean_function(model.X)[0][:, 0]
    grid = np.array(list(itertools.product(z, repeat=N)))
    prior = np.prod(np.array(list(itertools.product(w / w.sum(), repeat=N))), axis=1)
    f = h + grid @ np.linalg.cholesky(K + 1e-12 * np.eye(N)).T
    known = 0.0 * f[:, :1]
    logs = [model.likelihood.predictive_log_density(f[:, [n]], known, known + y[n, 0]) for n in range(N)]
    return f, prior, np.exp(np.stack(logs, axis=1))


@pytest.mark.parametrize(
    ("likelihood", "rows"),
    [("bernoulli", 2), ("bernoulli", 3), ("poisson", 2), pytest.param("poisson", 3, marks=pytest.mark.long)],
)
def test_small_problems_agree_with_quadrature(likelihood, rows):
    X, y = data(likelihood, rows, seed=1)
    model = stepped(blank(likelihood, X), X, y, 100)
    f, prior, density = exact_posterior(model, y)
    weights = prior * np.prod(density, axis=1)
    near = np.concatenate([X + 0.1, X - 0.5])
    K, R, h = model.kernel(X)[0], model.kernel(near, X)[0], model.mean_function
    B = np.linalg.solve(K, R.T)
    spread = model.kernel.diag(near)[0] - np.sum(R.T * B, axis=0)
    means = h(near)[0][:, 0] + (f - h(X)[0][:, 0]) @ B
    expected = []
    for mean, variance in zip(means.T, spread, strict=True):
        each = model.likelihood.predict(mean[:, None], np.full((len(mean), 1), variance))
        expected.append(np.sum(weights * each[0][:, 0]) / np.sum(weights))
    found = model.predict_mean(near, observed=True)[:, 0]
    if likelihood == "bernoulli":
        assert np.max(np.abs(found - expected)) < 0.02
    else:
        np.testing.assert_allclose(found, expected, rtol=0.03)
    left_out = model.leave_one_out(y)
    for n in range(rows):
        others = prior * np.prod(np.delete(density, n, axis=1), axis=1)
        exact = np.log(np.sum(others * density[:, n]) / np.sum(others))
        assert abs(left_out[n] - exact) < 0.03


# -- site steps -------------------------------------------------------------------------------------------------------


def test_sites_of_outliers_settle_and_the_bound_rises():
    X, y = data("student-t", 60)
    y = y + 30.0 * (np.arange(60) % 11 == 3)[:, None]
    model = blank("student-t", X)
    batch, values = model._batch(X, y), []
    for _ in range(60):
        values.append(float(value_of(model, batch)))
        before, model = model, stepped(model, X, y, 1, 1.0)
    assert np.all(model.site_precision >= 0.0)
    assert values[-1] > values[0] + 60.0
    assert_close(model.site_precision, before.site_precision, 1e-3)
    assert np.all(np.isfinite(model.predict(NEW).mean))
    # an outlier says little about its function value
    far = np.arange(60) % 11 == 3
    assert np.median(model.site_precision[far]) < 0.5 * np.median(model.site_precision[~far])


@pytest.mark.parametrize("likelihood", ["poisson", "exponential", "gamma", "student-t"])
def test_the_bound_of_a_row_never_falls_in_a_step(likelihood):
    X, y = data(likelihood, 20)
    y = y.copy()
    y[3] = 400.0
    model = blank(likelihood, X)
    for _ in range(10):
        bounds = model._site_moments(model._batch(X, y), None)[2]
        after = stepped(model, X, y, 1, 1.0)
        new = bounds(after.site_shift, after.site_precision)
        old = bounds(model.site_shift, model.site_precision)
        assert np.all(new >= old - 1e-9 * (1.0 + np.abs(old)))
        model = after
    assert np.all(model.site_precision >= 0.0)


def test_rates_are_guarded_where_curvatures_are_not_bounded():
    X, y = data("poisson", 20)
    y = y + 1e4 * (np.arange(20) == 3)[:, None]
    model = blank("poisson", X)
    rate = np.ones((20, 1))
    found = model._site_gradients(model._batch(X, y))[""]
    alpha, beta, mu = found.sums
    rates, halvings = model._rates(
        found.factor, (model.site_shift, model.site_precision), (alpha + beta * mu, beta), rate
    )
    assert halvings > 0.0
    assert rates[3] < 1.0


def test_steps_on_a_batch_move_its_rows_alone():
    X, y = data("bernoulli")
    model, rows = blank("bernoulli", X), np.array([3, 17, 4])
    batch = Batch(X[rows], y[rows], 8.0, rows=rows)
    update = SiteStep(0.7)
    moved_some = update(model, batch, update.init(model))[0]
    whole = stepped(model, X, y, 1)
    assert_close(moved_some.site_shift[rows], whole.site_shift[rows], 1e-12)
    rest = np.setdiff1d(np.arange(ROWS), rows)
    assert np.all(moved_some.site_shift[rest] == 0.0)


# -- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", ["bernoulli", "poisson", "student-t", "gaussian"])
@pytest.mark.parametrize("rows", [1, 2])
def test_one_row_and_two_rows(likelihood, rows):
    model, batch = case(likelihood, rows=rows, times=60)
    assert np.isfinite(value_of(model, batch))
    assert all(np.isfinite(bar).all() for bar in gradient_of(model, batch).values())
    exact = stepped(blank(likelihood, batch.X, exact=True), batch.X, batch.y, 60)
    for found, expected in zip(with_all_neighbours(model).predict(NEW), exact.predict(NEW), strict=True):
        assert_close(found, expected, 1e-6)


@pytest.mark.parametrize("likelihood", ["bernoulli", "poisson", "student-t"])
def test_repeated_inputs(likelihood):
    X, y = data(likelihood, 12)
    X, y = np.concatenate([X, X, X]), np.concatenate([y, y, y])
    model = stepped(blank(likelihood, X), X, y, 20)
    batch = model._batch(X, y)
    assert np.isfinite(value_of(model, batch))
    assert all(np.isfinite(bar).all() for bar in gradient_of(model, batch).values())
    assert np.all(np.isfinite(model.leave_one_out(y)))


@pytest.mark.parametrize("kernel", ["linear", "sum", "product"])
def test_rows_without_any_prior_variance(kernel):
    kernel = {
        "linear": Linear(1.0, [0.0, 0.0]),
        "sum": Linear(1.0, [0.0, 0.0]) + Linear(0.5, [0.0, 0.0]),
        "product": RBF(0.8, 1.3) * Linear(1.0, [0.0, 0.0]),
    }[kernel]
    X = np.concatenate([data("bernoulli")[0], np.zeros((2, 2))])
    y = 1.0 * (X[:, :1] > 0.0)
    models = []
    for kind, options in ((TNNGP, {"neighbours": len(X) - 1}), (TVGP, {})):
        model = kind.from_data(X, y, kernel=kernel, likelihood=LIKELIHOODS["bernoulli"][0](), **options)
        models.append(stepped(model, X, y, 150, 0.8))
    near, exact = models
    assert_close(near.site_shift, exact.site_shift, 1e-6)
    for found, expected in zip(with_all_neighbours(near).predict(NEW), exact.predict(NEW), strict=True):
        assert_close(found, expected, 1e-6)
    batch = near._batch(X, y)
    assert all(np.isfinite(bar).all() for bar in gradient_of(near, batch).values())
    assert_close(near.leave_one_out(y), exact.leave_one_out(y), 1e-6)


def test_two_equal_rows_are_one_row_of_weight_two():
    X, y = data("poisson", 10)
    both = np.repeat(X, 2, axis=0), np.repeat(y, 2, axis=0)
    twice = stepped(blank("poisson", both[0], neighbours=19), *both, 150)
    once = stepped(blank("poisson", X, neighbours=9), X, y, 150, weights=np.full(10, 2.0))
    assert_close(once.site_precision, 2.0 * twice.site_precision[::2], 1e-8)
    for found, expected in zip(
        with_all_neighbours(twice).predict(NEW), with_all_neighbours(once).predict(NEW), strict=True
    ):
        assert_close(found, expected, 1e-6)


def test_more_neighbours_than_rows_are_all_of_them():
    X, y = data("bernoulli")
    few, many = (stepped(blank("bernoulli", X, neighbours=k), X, y) for k in (ROWS - 1, 500))
    assert few.sets.shape == many.sets.shape == (ROWS, ROWS - 1)
    assert_close(many.site_shift, few.site_shift, 1e-12)
    assert_close(many.leave_one_out(y), few.leave_one_out(y), 1e-12)


def test_neighbours_are_found_when_needed():
    model, batch = case()
    later = dataclasses.replace(model, sets=None)
    assert_close(value_of(later, batch), value_of(model, batch), 1e-14)
    assert_close(later.leave_one_out(batch.y), model.leave_one_out(batch.y), 1e-14)


def test_what_cannot_be_built_or_asked_is_named():
    X, y = data("bernoulli")
    with pytest.raises(ValueError, match="White"):
        TNNGP.from_data(X, y, kernel=RBF() + White(), likelihood=LIKELIHOODS["bernoulli"][0]())
    with pytest.raises(ValueError, match="neighbours is 0"):
        TNNGP.from_data(X, y, neighbours=0)
    model, batch = case()
    with pytest.raises(ValueError, match=r"the bound of TNNGP is for all 24 rows .* but X has 3; pass all rows, or"):
        model.bound(batch.X[:3], batch.y[:3])
    with pytest.raises(TypeError, match="Bernoulli, but with_gaussian_sites needs Gaussian"):
        model.with_gaussian_sites(batch.y)
    with pytest.raises(TypeError, match="noise is given, but the likelihood is Bernoulli"):
        model.bound(batch.X, batch.y, noise=np.ones(ROWS))


@pytest.mark.parametrize("likelihood", ["bernoulli", "poisson", "student-t"])
def test_further_data_of_other_noise_are_refused(likelihood):
    model, batch = case(likelihood)
    with pytest.raises(TypeError, match="nearest rows, with a likelihood that is not Gaussian, cannot be conditioned"):
        model.predictor().condition_on(NEW, batch.y[: len(NEW)])


def test_further_data_of_gaussian_noise_are_rows_of_the_model():
    X, y = data("gaussian")
    old = blank("gaussian", X[:18], neighbours=50).with_gaussian_sites(y[:18])
    whole = blank("gaussian", X, neighbours=50).with_gaussian_sites(y)
    found = old.predictor().condition_on(X[18:], y[18:])
    for value, expected in zip(found.predict(NEW), whole.predict(NEW), strict=True):
        assert_close(value, expected, 1e-8)


def test_further_rows_have_one_noise_for_all_outputs():
    X, y = data("gaussian")
    two = np.concatenate([y, y * y], axis=1)
    model = TNNGP.from_data(X, two, neighbours=5).with_gaussian_sites(two)
    own = "whose outputs have noise variances of their own, cannot be conditioned on further data"
    with pytest.raises(TypeError, match=own):  # the default is one for each output
        model.predictor().condition_on(NEW, two[: len(NEW)])
    near = NNGP.from_data(X, two, neighbours=5)
    with pytest.raises(TypeError, match=own):
        near.predictor().condition_on(NEW, two[: len(NEW)], noise=np.full((len(NEW), 2), 0.1))
    assert near.predictor().condition_on(NEW, two[: len(NEW)], noise=np.full(len(NEW), 0.1)).predict(X[:2]).mean.shape
    missing = TNNGP.from_data(X, y, likelihood=Gaussian(0.1, missing=True)).with_gaussian_sites(y)
    with pytest.raises(TypeError, match="with targets that may be missing, cannot be conditioned"):
        missing.predictor().condition_on(NEW, y[: len(NEW)])


def test_joint_samples_and_covariances_are_those_of_tvgp():
    model, batch = case("bernoulli", times=60, neighbours=ROWS - 1)
    exact = stepped(blank("bernoulli", batch.X, exact=True), batch.X, batch.y, 60)
    near = with_all_neighbours(model)
    assert_close(near.predict_covariance(NEW), exact.predict_covariance(NEW), 1e-7)
    samples = near.sample_functions(2000, seed=1)(NEW)
    mean, variance = exact.predict(NEW)
    assert np.all(np.abs(samples.mean(axis=0) - mean) < 6.0 * np.sqrt(variance / 2000.0) + 0.02)
    assert np.all(np.abs(samples.var(axis=0) / variance - 1.0) < 0.3)


def test_unknown_cells_are_refused_or_averaged():
    X, y = data("bernoulli")
    broken = np.where(np.arange(ROWS)[:, None] == 3, np.nan, X)
    with pytest.raises(ValueError, match="X"):
        TNNGP.from_data(broken, y, likelihood=LIKELIHOODS["bernoulli"][0]())
    model, _ = case()
    with pytest.raises(ValueError, match="NaN"):
        model.predict(np.where(np.arange(7)[:, None] == 2, np.nan, NEW))


def test_priors_of_the_kernel_go_along_to_regression():
    from agp.priors import LogNormal

    X, y = data("student-t")
    priors = {"kernel.lengthscale": LogNormal(0.0, 1.0), "likelihood.scale": LogNormal(0.0, 1.0)}
    model = TNNGP.from_data(X, y, likelihood=LIKELIHOODS["student-t"][0](), priors=priors, neighbours=5)
    assert [name for name, _ in model.as_regression().priors] == ["kernel.lengthscale"]


def test_gaussian_sites_of_two_outputs():
    X, y = data("gaussian")
    y = np.concatenate([y, y * y], axis=1)
    model = TNNGP.from_data(X, y, likelihood=Gaussian(np.asarray(0.2)), neighbours=5).with_gaussian_sites(y)
    assert model.site_precision.shape == (ROWS, 1)
    near = model.as_regression()
    assert near.predict(NEW).mean.shape == (7, 2)
    for found, expected in zip(model.predict(NEW), near.predict(NEW), strict=True):
        assert_close(found, expected, 1e-9)
