"""The evidence of rows given their neighbours: dense covariances, exact limits, adjoints, and rows that were merged."""

import dataclasses

import numpy as np
import pytest
from helpers import JAX, TORCH, assert_close, autograd
from near_cases import (
    AMONG,
    KERNELS,
    KNOWN,
    MEANS,
    NEAR,
    ROWS,
    case,
    dense_evidence,
    gradient_of,
    moved,
    terms,
    unmerged,
    value_of,
    variances_of,
)

from agp import GPR, NNGP, tree
from agp.bounds import Batch, near_densities
from agp.likelihoods import Gaussian
from agp.selection._repeats import merge_repeats

INDUCING = [0, 5]


def exact_model(model):
    """The exact model with the parts of another one."""
    fields = ("kernel", "likelihood", "X", "y", "mean_function", "weights", "offset", "noise")
    return GPR(**{name: getattr(model, name) for name in fields})


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.cover(2)
@pytest.mark.parametrize("inducing", INDUCING)
@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_evidence_is_that_of_a_dense_covariance(kernel, outputs, known, inducing, backend):
    model, batch = case(kernel, outputs=outputs, known=known, inducing=inducing)
    there, rows = moved(backend, model, batch)
    assert_close(backend.numpy(there._objective(rows)[0]), dense_evidence(model), 1e-9)


@pytest.mark.parametrize("known", ["nothing", "weights", "noise"])
@pytest.mark.parametrize("inducing", INDUCING)
def test_with_all_earlier_rows_it_is_that_of_the_exact_model(inducing, known, backend):
    model, batch = case("sum", outputs=2, known=known, inducing=inducing, neighbours=ROWS - 1)
    if inducing:
        model = dataclasses.replace(model, jitter=0.0)
    there, rows = moved(backend, model, batch)
    expected = exact_model(model).bound(model.X, model.y)[0]
    assert_close(backend.numpy(there._objective(rows)[0]), expected, 1e-8)


@pytest.mark.parametrize("known", KNOWN)
def test_other_rows_give_the_densities_of_rows_given_them(known, backend):
    model, batch = case(outputs=2, known=known, among="others")
    _, V, e = terms(model)
    weights, squared = np.ones(ROWS) if model.weights is None else model.weights, np.sum(e * e, axis=1)
    if model.squares is not None:
        own = [terms(model)[0][n, n] for n in range(ROWS)]
        lever = 1.0 + own / np.maximum(weights - 1.0, 1.0)
        squared = squared + model.squares * lever**2 / weights
    densities = -np.log(2.0 * np.pi * V) - 0.5 * squared / V
    there, rows = moved(backend, model, batch)
    assert_close(backend.numpy(there.leave_one_out()), densities, 1e-10)
    assert_close(backend.numpy(there._objective(rows)[0]), np.sum(weights * densities), 1e-10)


@pytest.mark.parametrize("known", ["nothing", "weights", "noise"])
def test_all_other_rows_give_the_exact_leave_one_out(known):
    model, _ = case("sum", outputs=2, known=known, among="others", neighbours=ROWS - 1)
    expected = exact_model(model).leave_one_out()
    assert_close(model.leave_one_out(), expected, 1e-9)
    weights = 1.0 if model.weights is None else model.weights
    assert_close(value_of(model), np.sum(weights * expected), 1e-9)


@pytest.mark.parametrize("among", AMONG)
@pytest.mark.parametrize("inducing", INDUCING)
def test_blocks_of_rows_change_nothing(inducing, among):
    if inducing and among == "others":
        pytest.skip("inducing inputs are for earlier rows")
    options = {} if inducing else {"among": among}
    model, _ = case("sum", outputs=2, known="all", inducing=inducing, **options)
    for memory in (1e-3, 0.02):
        assert_close(value_of(model, memory=memory), value_of(model), 1e-12)
        whole = gradient_of(model)
        for name, bar in gradient_of(model, memory=memory).items():
            assert_close(bar, whole[name], 1e-11, name)


@pytest.mark.parametrize("among", AMONG)
@pytest.mark.parametrize("known", ["nothing", "all"])
def test_minibatches_are_unbiased(known, among, backend):
    model, batch = case(outputs=2, known=known, among=among)
    there, _ = moved(backend, model, batch)
    order = np.random.default_rng(0).permutation(ROWS).reshape(5, -1)
    parts = []
    for rows in order:
        numbers = backend.array(rows, "int64")
        parts.append(Batch(backend.array(batch.X[rows]), backend.array(batch.y[rows]), 5.0, rows=numbers))
    values, pulls = zip(*(there._objective(part) for part in parts), strict=True)
    assert_close(np.mean([backend.numpy(value) for value in values]), value_of(model), 1e-10)
    bars = [tree.leaves(pull(1.0)[0]) for pull in pulls]
    for name, expected in gradient_of(model).items():
        assert_close(np.mean([backend.numpy(bar[name]) for bar in bars], axis=0), expected, 1e-9, name)


# -- adjoints ---------------------------------------------------------------------------------------------------------

SETTINGS = [*((0, among) for among in AMONG), (5, "earlier")]
"""The number of inducing inputs, and which rows are neighbours."""


def case_with(setting, *args, **options):
    inducing, among = setting
    return case(*args, inducing=inducing, **options, **({} if inducing else {"among": among}))


@pytest.mark.cover(2)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_gradient_is_that_of_autograd(kernel, mean, outputs, known, setting, torch_place):
    model, batch = case_with(setting, kernel, mean=mean, outputs=outputs, known=known)
    here, rows = moved(torch_place, model, batch)
    leaves = tree.leaves(here, "parameter")
    expected = autograd(lambda x: (tree.with_leaves(here, x)._objective(rows)[:1], None), leaves, (1.0,))
    for name, bar in gradient_of(model).items():
        assert_close(bar, torch_place.numpy(expected[name]), 1e-8, name)


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_gradient_is_that_of_jax(setting, available):
    place = available(JAX)
    import jax

    model, batch = case_with(setting, "sum", mean="linear", outputs=2, known="all")
    here, rows = moved(place, model, batch)
    leaves = tree.leaves(here, "parameter")
    expected = jax.grad(lambda x: tree.with_leaves(here, x)._objective(rows)[0])(leaves)
    for name, bar in gradient_of(model).items():
        assert_close(bar, place.numpy(expected[name]), 1e-8, name)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("known", ["nothing", "all"])
def test_the_gradient_is_that_of_differences(known, setting):
    model, _ = case_with(setting, "rq", mean="linear", outputs=2, known=known)
    rng, h = np.random.default_rng(3), 1e-4
    for name, bar in gradient_of(model).items():
        x = np.asarray(tree.leaves(model)[name])
        change = rng.normal(size=x.shape) * np.abs(x).max()
        ends = [value_of(tree.with_leaves(model, {name: x + k * h * change})) for k in (-2, -1, 1, 2)]
        slope = (ends[0] - 8.0 * ends[1] + 8.0 * ends[2] - ends[3]) / (12.0 * h)
        np.testing.assert_allclose(np.sum(bar * change), slope, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("among", AMONG)
def test_the_noise_of_rows_that_neighbours_determine_has_its_slope(among):
    # repeated inputs without noise: the variance given the neighbours is zero but for the noise of the row itself
    model, _ = case(among=among)
    X = np.concatenate([model.X[:10]] * 3)
    known = np.where(np.arange(ROWS) < 10, 0.0, 0.1)[:, None]
    model = dataclasses.replace(model, X=X, noise=known, likelihood=Gaussian(np.asarray(1e-17)), sets=None)
    model = model.renew_neighbours()
    assert np.isfinite(value_of(model))
    assert all(np.isfinite(bar).all() for bar in gradient_of(model).values())


# -- merged rows ------------------------------------------------------------------------------------------------------


def merged_and_not(among="earlier", outputs=2, inducing=0, noise=False):
    """A model of repeated rows with all rows as neighbours, and that of the rows that replace them."""
    model, _ = case("sum", outputs=outputs, inducing=inducing, rows=16)
    counts = np.random.default_rng(2).integers(1, 5, size=16)
    X, y = unmerged(model.X, model.y, counts)
    known = np.repeat(np.linspace(0.05, 0.2, 16), counts) if noise else None
    order = np.random.default_rng(4).permutation(len(X))
    known = known if known is None else known[order]
    found = merge_repeats(X[order], y[order], None, known)
    parts = {"neighbours": len(X), "sets": None} | ({} if inducing else {"among": among})
    column = lambda x: None if x is None else x[:, None]  # noqa: E731
    whole = dataclasses.replace(model, X=X[order], y=y[order], noise=column(known), **parts)
    fields = {"weights": found.weights, "noise": column(found.noise), "squares": found.squares}
    return whole, dataclasses.replace(model, X=found.X, y=found.y, **fields, **parts)


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("setting", SETTINGS)
def test_merged_rows_have_the_evidence_and_gradient_of_all(setting, noise):
    inducing, among = setting
    whole, merged = merged_and_not(among, inducing=inducing, noise=noise)
    assert len(merged.X) == 16 < len(whole.X)
    assert_close(value_of(merged), value_of(whole), 1e-10)
    expected = gradient_of(whole)
    for name, bar in gradient_of(merged).items():  # that of the inducing inputs is zero here
        np.testing.assert_allclose(bar, expected[name], rtol=1e-8, atol=1e-8, err_msg=name)


def test_a_merged_row_loses_one_observation():
    whole, merged = merged_and_not("others")
    densities, place = whole.leave_one_out(), [np.flatnonzero(np.all(x == whole.X, axis=1)) for x in merged.X]
    assert_close(merged.leave_one_out(), [np.mean(densities[rows]) for rows in place], 1e-9)
    assert_close(densities, exact_model(whole).leave_one_out(), 1e-9)


def test_the_densities_of_some_rows():
    model, _ = case(known="all", among="others")
    some = np.array([3, 17, 4])
    assert_close(near_densities(model, model._near_data, some, model.sets[some]), model.leave_one_out()[some], 1e-12)


# -- limits -----------------------------------------------------------------------------------------------------------


def test_one_row_and_few_rows():
    for rows in (1, 2):
        for among in AMONG:
            model, _ = case(rows=rows, among=among, neighbours=NEAR)
            _, V, e = terms(model)
            assert_close(value_of(model), np.sum(-0.5 * np.log(2.0 * np.pi * V) - 0.5 * e[:, 0] ** 2 / V), 1e-12)
            assert all(np.isfinite(bar).all() for bar in gradient_of(model).values())


def test_without_signal_rows_are_independent():
    model, _ = case(mean="zero")
    model = tree.with_leaves(model, {"kernel.variance": np.asarray(1e-12)})
    noise = variances_of(model)
    expected = np.sum(-0.5 * np.log(2.0 * np.pi * noise) - 0.5 * model.y[:, 0] ** 2 / noise)
    assert_close(value_of(model), expected, 1e-9)


def test_the_numbers_are_those_of_float64_in_float32():
    model, batch = case("sum", outputs=2, known="all")
    single = tree.to_backend(model, "numpy", dtype="float32")
    found, pull = single._objective(Batch(batch.X.astype(np.float32), batch.y.astype(np.float32)))
    assert found.dtype == np.float32
    assert_close(found, value_of(model), 1e-4)
    assert all(bar.dtype == np.float32 for bar in tree.leaves(pull(1.0)[0]).values() if bar is not None)


def test_neighbours_are_found_when_needed():
    model, batch = case(among="earlier")
    assert_close(value_of(dataclasses.replace(model, sets=None)), value_of(model), 1e-14)
    rows = np.array([2, 9])
    part = Batch(batch.X[rows], batch.y[rows], rows=rows)
    lazy = dataclasses.replace(model, sets=None)
    assert_close(lazy._objective(part)[0], model._objective(part)[0], 1e-14)


def test_a_place_of_torch_keeps_integers():
    pytest.importorskip("torch")
    model, _ = case()
    assert isinstance(model, NNGP)
    there = TORCH.move(model, "float32")
    np.testing.assert_array_equal(TORCH.numpy(there.sets, "int64"), model.sets)
