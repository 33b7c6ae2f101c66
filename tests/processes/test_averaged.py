"""Weighted averages of processes: moments, gradients, joint covariances, functions, and what they refuse."""

import dataclasses

import numpy as np
import pytest
from helpers import (
    EXACT,
    as_arrays,
    assert_close,
    assert_closed_form_is_autograd,
    assert_closed_form_is_slope,
    lower_leaves,
    named,
    with_leaves,
)
from process_cases import COLUMNS, data, points, process_case, sparse

from agp import TVGP, Bernoulli, Constant, Linear, Matern32, Matern52, tree
from agp.backend import backend_of
from agp.bounds import Batch
from agp.errors import RepairWarning
from agp.kernels import RBF
from agp.means import ConstantMean, Projection
from agp.processes import Averaged, Deep, FixedMap, LinearMixing, Sparse, Stack
from agp.updates import SiteStep

WEIGHTS, SPREAD = np.asarray([0.5, 0.2, 0.3]), 1.7
NAMES = ("sparse", "stacks", "sites")
OUTPUTS = {"sparse": 2, "stacks": 2, "sites": 1}


def quadratic(rng):
    """A kernel of low rank, whose random features are exact."""
    lengths = rng.uniform(0.2, 0.5, size=(2, COLUMNS))
    return (Linear(0.1) + Constant(0.7)) * (Linear(tuple(lengths[0])) + Constant(0.5)) + Linear(tuple(lengths[1]))


def part_with_sites(kernel, seed):
    """The posterior process of a t-VGP after a few site steps."""
    rng = np.random.default_rng([9, seed])
    X = np.random.default_rng(9).normal(size=(14, COLUMNS))
    y = 1.0 * (X[:, :1] + 0.3 * rng.normal(size=(14, 1)) > 0.0)
    model = TVGP.from_data(X, y, kernel=kernel, likelihood=Bernoulli(), mean_function=ConstantMean(0.1 * seed))
    step = SiteStep()
    state = step.init(model)
    for _ in range(3):
        model, state, _ = step(model, Batch(X, y), state)
    return model._posterior_process()


def parts_of(name):
    rng = np.random.default_rng([4, NAMES.index(name)])
    kernels = RBF(0.9, tuple(np.linspace(2.0, 3.5, COLUMNS))), Matern52(1.3, 3.0), quadratic(rng)
    if name == "sites":
        return tuple(part_with_sites(kernel, i) for i, kernel in enumerate(kernels))
    kinds = ("whitened", "marginal", "whitened")
    if name == "sparse":
        pairs = zip(kernels, kinds, strict=True)
        return tuple(sparse(kernel, points(5, COLUMNS, rng), kind, 2, rng) for kernel, kind in pairs)
    one = lambda kernel: sparse(kernel, points(4, COLUMNS, rng), "whitened", 1, rng)  # noqa: E731
    return tuple(Stack((one(kernel), one(kernels[0]))) for kernel in kernels)


def average_of(name):
    return Averaged(parts_of(name), WEIGHTS, SPREAD)


def inputs(rows=6):
    return np.random.default_rng(3).normal(size=(rows, COLUMNS))


def factorised(process):
    return process.factorise()[0]


# -- moments ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_moments_are_weighted_averages(name):
    average, X = average_of(name), inputs()
    average.check()
    mean, var = average.project(factorised(average), X)[0]
    moments = [part.project(factorised(part), X)[0] for part in average.parts]
    assert_close(mean, sum(w * m for w, (m, _) in zip(WEIGHTS, moments, strict=True)), 1e-14)
    assert_close(var, SPREAD * sum(w * v for w, (_, v) in zip(WEIGHTS, moments, strict=True)), 1e-14)
    assert average.outputs == mean.shape[1] == OUTPUTS[name]


@pytest.mark.parametrize("name", NAMES)
def test_joint_covariances_are_weighted_averages_with_the_variances_on_the_diagonal(name):
    average, X = average_of(name), inputs()
    covariance = average.project_covariance(factorised(average), X)
    joint = [part.project_covariance(factorised(part), X) for part in average.parts]
    assert_close(covariance, SPREAD * sum(w * C for w, C in zip(WEIGHTS, joint, strict=True)), 1e-14)
    var = average.project(factorised(average), X)[0][1]
    assert_close(np.diagonal(covariance, axis1=1, axis2=2).T, var, 1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_means_alone_are_the_means(name):
    average, X = average_of(name), inputs()
    factor = factorised(average)
    expected = average.project(factor, X)[0][0]
    for one in (factor, average.prepare_means(factor)):
        assert_close(average.project_mean(one, X), expected, 1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_an_average_of_one_part_is_the_part(name):
    part, X = parts_of(name)[0], inputs()
    average = Averaged((part,), np.ones(1))
    found, expected = (one.project(factorised(one), X)[0] for one in (average, part))
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_array_equal(x, y)
    drawn, expected = (
        one.paths(factorised(one), np.random.default_rng(0), 4, 3).evaluate(X)[0] for one in (average, part)
    )
    np.testing.assert_array_equal(drawn, expected)


@pytest.mark.parametrize("name", NAMES)
def test_every_backend_agrees(name, backend):
    average, X = average_of(name), inputs()
    moved, there = backend.move(average), backend.array(X)
    for x, y in zip(
        moved.project(factorised(moved), there)[0], average.project(factorised(average), X)[0], strict=True
    ):
        assert_close(backend.numpy(x), y, 1e-9)
    joint = moved.project_covariance(factorised(moved), there)
    assert_close(backend.numpy(joint), average.project_covariance(factorised(average), X), 1e-9)


def test_float32_stays():
    average = tree.to_backend(average_of("sites"), "numpy", dtype="float32")
    average.check()
    for moment in average.project(factorised(average), np.float32(inputs()))[0]:
        assert moment.dtype == np.float32


# -- gradients --------------------------------------------------------------------------------------------------------


def moments_stage(average, output):
    """Moments or samples as a function of the parameters and of X."""
    noise = np.random.default_rng(8).normal(size=(3, len(inputs()), average.outputs))

    def stage(leaves):
        X = leaves["X"]
        B = backend_of(X)
        moved = tree.to_backend(average, B.name)
        here = with_leaves(moved, lower_leaves({name: x for name, x in leaves.items() if name != "X"}))
        factor, pull_factor = here.factorise()
        if output == "moments":
            values, pull = here.project(factor, X)
        else:
            samples, pull = here.sample_marginals(factor, X, B.from_numpy(noise))
            values = (samples,)

        def pullback(*bars):
            own, factor_bar, X_bar = pull(*bars)
            held = {} if leaves.keys() == {"X"} else named(tree.add(own, pull_factor(factor_bar)))
            return held | {"X": X_bar}

        return values, pullback

    return stage


def leaves_of(average, name):
    """X, and the parameters unless the parts hold data, which has no pullback to hyperparameters."""
    return {"X": inputs()} | ({} if name == "sites" else named(average, "parameter"))


@pytest.mark.parametrize("output", ["moments", "samples"])
@pytest.mark.parametrize("name", NAMES)
def test_closed_form_is_autograd(name, output, torch_place):
    average = average_of(name)
    leaves = leaves_of(average, name)
    assert "weights" not in leaves
    assert_closed_form_is_autograd(moments_stage(average, output), leaves, EXACT)


@pytest.mark.parametrize("output", ["moments", "samples"])
@pytest.mark.parametrize("name", NAMES)
def test_closed_form_is_slope(name, output):
    average = average_of(name)
    leaves = leaves_of(average, name)
    some = {leaf: leaves[leaf] for leaf in ("X", *(leaf for leaf in leaves if leaf.endswith(("variance", "mean"))))}
    assert_closed_form_is_slope(moments_stage(average, output), some, 1e-6)


def test_samples_at_each_row_have_the_moments():
    average, X = average_of("sparse"), inputs(3)
    mean, var = average.project(factorised(average), X)[0]
    noise = np.random.default_rng(1).normal(size=(2, 3, 2))
    samples = average.sample_marginals(factorised(average), X, noise)[0]
    assert_close(samples.reshape(2, 3, 2), mean + np.sqrt(var) * noise, 1e-14)


def test_where_nothing_is_uncertain_samples_are_the_mean():
    X = inputs(3)
    noise = np.ones((2, 3, 2))
    certain = FixedMap(Projection(np.random.default_rng(2).normal(size=(COLUMNS, 2)), np.zeros(COLUMNS)))
    average = Averaged((certain,), np.ones(1))
    samples, pull = average.sample_marginals(factorised(average), X, noise)
    np.testing.assert_array_equal(samples.reshape(2, 3, 2), np.stack([certain.mean_function(X)[0]] * 2))
    assert np.isfinite(pull(np.ones_like(samples))[-1]).all()


# -- functions --------------------------------------------------------------------------------------------------------


def exact_average():
    """An average of processes with exact features."""
    rng = np.random.default_rng(6)
    kinds = ("whitened", "marginal", "likelihood")
    parts = (sparse(quadratic(rng), points(6, COLUMNS, rng), kind, 2, rng) for kind in kinds)
    return Averaged(tuple(parts), WEIGHTS, SPREAD)


def test_many_functions_have_the_moments_of_the_average():
    average, X, S = exact_average(), inputs(4), 20_000
    factor = factorised(average)
    values = average.paths(factor, np.random.default_rng(0), S, 1).evaluate(X)[0]
    mean, covariance = average.project_mean(factor, X), average.project_covariance(factor, X)
    deviation = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    assert np.all(np.abs(values.mean(axis=0) - mean) < 4.5 * deviation.T / np.sqrt(S))
    for p in range(2):
        error = np.abs(np.cov(values[:, :, p].T) - covariance[p]) / np.outer(deviation[p], deviation[p])
        assert np.max(error) < 5.0 * np.sqrt(2.0 / S)


@pytest.mark.parametrize("name", NAMES)
def test_all_evaluations_see_the_same_functions(name):
    average, X = average_of(name), inputs()
    paths = average.paths(factorised(average), np.random.default_rng(0), 3, 5)
    whole = paths.evaluate(X)[0]
    assert whole.shape == (paths.count, len(X), paths.outputs) == (3, len(X), OUTPUTS[name])
    assert paths.width == COLUMNS
    own = np.stack([X, X[::-1], X + 1.0])
    expected = np.stack([paths.evaluate(one)[0][s] for s, one in enumerate(own)])
    np.testing.assert_allclose(paths.evaluate(own)[0], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("separate", [False, True], ids=["", "separate"])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_functions_are_slopes(name, separate):
    average, X = average_of(name), inputs()
    paths = average.paths(factorised(average), np.random.default_rng(0), 3, 5)

    def stage(leaves):
        values, pull = paths.evaluate(leaves["X"])
        return (values,), lambda bar: {"X": pull(bar)}

    assert_closed_form_is_slope(stage, {"X": np.stack([X, X[::-1], X + 0.1]) if separate else X}, 1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_functions_are_those_of_torch(name, torch_place):
    average = average_of(name)
    paths = average.paths(factorised(average), np.random.default_rng(0), 3, 5)

    def stage(leaves):
        values, pull = tree.to_backend(paths, "torch").evaluate(leaves["X"])
        return (values,), lambda bar: {"X": pull(bar)}

    assert_closed_form_is_autograd(stage, {"X": inputs()}, EXACT)


# -- refusals ---------------------------------------------------------------------------------------------------------


def refused(message, parts=None, weights=WEIGHTS, spread=SPREAD):
    parts = parts_of("sparse") if parts is None else parts
    with pytest.raises(ValueError, match=message):
        Averaged(parts, weights, spread).check()


def test_weights_that_are_no_average_are_refused():
    refused(
        r"weights has shape \(2,\), but must have shape \(3,\); pass one weight for each part\.", weights=WEIGHTS[:2]
    )
    refused(
        r"weights must be positive with the sum 1, but the smallest is 0\.4 and the sum is 2", weights=2.0 * WEIGHTS
    )
    refused(r"the smallest is 0 and the sum is 1", weights=np.asarray([0.5, 0.0, 0.5]))
    refused(r"the sum is nan", weights=np.asarray([0.5, np.nan, 0.5]))
    refused(r"spread is 0, but must be a finite number above zero", spread=0.0)
    with pytest.raises(TypeError, match=r"weights has dtype float32, .* has float64"):
        Averaged(parts_of("sparse"), np.float32(WEIGHTS), SPREAD).check()


def test_parts_that_do_not_fit_are_refused():
    rng = np.random.default_rng(0)
    first = parts_of("sparse")[0]
    single = sparse(RBF(0.9, 2.0), points(4, COLUMNS, rng), "whitened", 1, rng)
    narrow = sparse(RBF(0.9, 2.0), points(4, 3, rng), "whitened", 2, rng)
    half = np.full(2, 0.5)
    refused(r"different numbers of outputs \(2, 1\)", (first, single), half)
    refused(r"different numbers of input columns \(12, 3\)", (first, narrow), half)
    mixed = LinearMixing(first, np.eye(2))
    refused(
        r"the outputs of LinearMixing are mixtures of functions, which Averaged cannot average", (mixed, first), half
    )
    last = sparse(Matern32(0.7, 2.0), points(4, 2, rng), "whitened", 2, rng)
    refused(r"Deep is not Gaussian", (first, Deep((first, last))), half)
    broken = dataclasses.replace(first, inducing=points(3, COLUMNS, rng))
    refused(r"q\(u\) has 5 inducing variables, but the process has 3", (first, broken), half)
    with pytest.raises(TypeError, match=r"the parts of an Averaged are a list, but must be a tuple"):
        Averaged([first], np.ones(1))


def test_an_average_has_no_bound_of_its_own():
    average, X = average_of("sparse"), inputs()
    factor = factorised(average)
    with pytest.raises(TypeError, match=r"Averaged has no KL divergence; train the models whose processes it averages"):
        average.kl_divergence(factor)
    with pytest.raises(TypeError, match="Averaged has no sites"):
        average.project_to_sites(factor, X)
    assert average.site_paths == ()
    assert average.site_factors(factor) == {}


def test_an_average_is_not_conditioned_on_further_data():
    average, X = average_of("sites"), inputs(2)
    batch = Batch(X, np.ones((2, 1)))
    with pytest.raises(TypeError, match="a posterior of Averaged cannot be conditioned on further data"):
        average.condition_on(factorised(average), batch, as_arrays(Bernoulli()))


def test_factors_of_parts_are_recomputed_where_they_are_inexact():
    exact = average_of("sparse")
    assert exact.recompute_factors() is exact
    inexact = Averaged((process_case("points", "relaxed"),), np.ones(1), SPREAD)
    with pytest.warns(RepairWarning, match="the inverse factor was inaccurate"):
        found = inexact.recompute_factors()
    assert isinstance(found, Averaged)
    assert found.spread == SPREAD
    X, part = data(2)[0], found.parts[0]
    mean, var = found.project(factorised(found), X)[0]
    own_mean, own_var = part.project(factorised(part), X)[0]
    np.testing.assert_array_equal(mean, own_mean)
    assert_close(var, SPREAD * own_var, 1e-14)


def test_memory_counts_all_parts():
    average = average_of("sparse")
    assert average.floats_per_row > sum(part.floats_per_row for part in average.parts)
    assert average.floats_per_mean < average.floats_per_row
    assert not average.rows_share_work
    assert not average.correlated
    assert isinstance(average.parts[0], Sparse)
