"""Kernels of categories, and kernels of numbers that become kernels of mixed columns."""

import numpy as np
import pytest
from helpers import as_arrays
from kernel_cases import CASES, inputs, kernel_case

from agp import GPR, Gaussian, tree
from agp.backend import to_numpy
from agp.kernels import (
    RBF,
    ActiveDims,
    Centred,
    Constant,
    Kernel,
    LevelCovariance,
    Linear,
    Matern32,
    Matern52,
    Overlap,
    Periodic,
    RandomEffects,
    White,
    features_of,
)

OF_LEVELS = {
    "overlap": lambda: Overlap(1.3, levels=5),
    "overlap-ard": lambda: Overlap((1.4, 0.6, 1.0), levels=5),
    "effects": lambda: RandomEffects(0.7, levels=5),
    "effects-ard": lambda: RandomEffects((0.7, 1.1, 0.4), levels=5),
}


def codes(rows=30, columns=3, levels=5, seed=0, least=0):
    return np.random.default_rng(seed).integers(least, levels, (rows, columns)).astype(np.float64)


def mixed_inputs(rows=9, seed=0):
    """Numbers in columns 0 and 2, codes in column 1."""
    X = inputs(3, rows=rows, seed=seed)[0]
    X[:, 1] = np.random.default_rng(seed).integers(0, 4, rows)
    return X


# -- values -----------------------------------------------------------------------------------------------------------


def test_values_by_hand(backend):
    X = backend.array([[0.0, 1.0], [0.0, 2.0], [3.0, 1.0]])
    overlap, effects = backend.move(as_arrays(Overlap((1.0, 2.0)))), backend.move(as_arrays(RandomEffects((2.0, 0.5))))
    first, second = np.exp(-0.5), np.exp(-0.125)
    expected = [[1.0, second, first], [second, 1.0, first * second], [first, first * second, 1.0]]
    np.testing.assert_allclose(backend.numpy(overlap(X)[0]), expected, rtol=1e-14)
    np.testing.assert_array_equal(backend.numpy(effects(X)[0]), [[2.5, 2.0, 0.5], [2.0, 2.5, 0.0], [0.5, 0.0, 2.5]])


@pytest.mark.parametrize("columns", [1, 6, 7, 20])
@pytest.mark.parametrize("name", ["overlap-ard", "effects-ard"])
def test_many_columns_are_the_textbook_formula(name, columns):
    kernel, (X, Z) = kernel_case(name, columns), (codes(9, columns, 3, least=-1), codes(5, columns, 3, seed=1))
    expected = CASES[name].textbook(kernel, X[:, None, :], Z)
    np.testing.assert_allclose(kernel(X, Z)[0], expected, rtol=1e-13, atol=1e-13)
    groups = kernel.grouped_covariance(np.stack([X, X]), np.stack([Z, Z]))[0]
    np.testing.assert_allclose(groups, [expected, expected], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", OF_LEVELS)
def test_matrices_are_positive_definite(name):
    kernel, X = as_arrays(OF_LEVELS[name]()), codes(60, least=-1)
    least = np.linalg.eigvalsh(kernel(X)[0]).min()
    assert least > -1e-12
    if name.startswith("overlap"):
        assert np.linalg.eigvalsh(kernel(np.unique(X, axis=0))[0]).min() > 1e-3


@pytest.mark.parametrize("name", OF_LEVELS)
def test_an_unknown_level_differs_from_all_and_labels_mean_nothing(name):
    kernel, X = as_arrays(OF_LEVELS[name]()), codes()
    unknown, far = np.full((1, 3), -1.0), np.full((1, 3), 77.0)
    np.testing.assert_array_equal(kernel(X, unknown)[0], kernel(X, far)[0])
    np.testing.assert_array_equal(kernel(unknown)[0], kernel(X[:1])[0])
    order = np.random.default_rng(1).permutation(5)
    np.testing.assert_array_equal(kernel(order[X.astype(int)].astype(float))[0], kernel(X)[0])


@pytest.mark.parametrize("unit", [0.3, 7.0, 1e5, 1e-7])
@pytest.mark.parametrize("name", OF_LEVELS)
def test_codes_survive_single_precision_and_other_units(name, unit):
    kernel, X = as_arrays(OF_LEVELS[name]()), codes(60, levels=20_000)
    narrow = (X.astype(np.float32) / np.float32(unit) * np.float32(unit)).astype(np.float32)
    same = X[:, None, :] == X
    values = tree.to_backend(kernel, "numpy", dtype="float32")(narrow)[0]
    np.testing.assert_allclose(values, kernel(X)[0], rtol=1e-6)
    np.testing.assert_array_equal(np.isclose(values, kernel(X[:1])[0][0, 0]), same.all(axis=-1))


@pytest.mark.parametrize("name", OF_LEVELS)
def test_inputs_have_no_slope(name):
    kernel, X = as_arrays(OF_LEVELS[name]()), codes()
    K, pull = kernel(X, X[:4])
    for bar in pull(np.ones_like(K))[1:]:
        assert not bar.any()


# -- features ---------------------------------------------------------------------------------------------------------


def test_features_of_effects_are_exact_and_those_of_overlap_on_average():
    X, Z = codes(12, least=-1), codes(9, seed=1, least=-1)
    for name, make in OF_LEVELS.items():
        kernel = as_arrays(make())
        phi = kernel.random_features(np.random.default_rng(0), 20_000, 3)
        found, K = phi(X)[0] @ phi(Z)[0].T, kernel(X, Z)[0]
        if name.startswith("effects"):
            np.testing.assert_allclose(found, K, rtol=1e-13, atol=1e-13)
        else:
            np.testing.assert_allclose(found, K, atol=6.0 / 20_000**0.5)
            np.testing.assert_allclose(np.sum(phi(X)[0] ** 2, axis=1), 1.0, rtol=1e-12)


def test_functions_are_drawn_from_models_with_categories():
    X = np.column_stack([codes(60, 1), np.random.default_rng(1).normal(size=60)])
    y = X[:, :1] + np.sin(X[:, 1:])
    kernel = Matern52().on(1) * Overlap().on(0) + RandomEffects().on(0)
    predictor = GPR.from_data(X, y, kernel=kernel, likelihood=Gaussian(0.01)).predictor()
    new = np.asarray([[0.0, 0.5], [3.0, -1.0], [-1.0, 0.0]])
    draws = to_numpy(predictor.sample_functions(1000, seed=0)(new))
    mean, variance = (to_numpy(x) for x in predictor.predict(new))
    draws = draws.reshape(1000, 3) if draws.shape[0] == 1000 else np.moveaxis(draws, -1, 0).reshape(1000, 3)
    np.testing.assert_allclose(draws.mean(axis=0), mean[:, 0], atol=5.0 * np.sqrt(variance[:, 0] / 1000).max())
    np.testing.assert_allclose(draws.std(axis=0), np.sqrt(variance[:, 0]), rtol=0.2)


def test_features_need_the_number_of_levels():
    for kernel in (Overlap(1.0), RandomEffects(1.0)):
        with pytest.raises(TypeError, match="has no number of levels; pass levels="):
            features_of(as_arrays(kernel).random_features(np.random.default_rng(0), 3, 2))
    assert Overlap().from_data(codes(), 1.0).levels == (5, 5, 5)
    assert RandomEffects(levels=9).from_data(codes(), 1.0).levels == (9, 9, 9)
    assert Overlap().from_data(np.full((3, 2), -1.0), 1.0).levels == (1, 1)


# -- starting values --------------------------------------------------------------------------------------------------


def test_starts_are_those_of_indicators():
    X = codes(400, 2, 4)
    overlap, effects = Overlap().from_data(X, 3.0), RandomEffects().from_data(X, 3.0)
    shares = np.stack([np.bincount(x.astype(int), minlength=4) for x in X.T]) / 400
    differ = 1.0 - np.sum(shares**2, axis=1)
    np.testing.assert_allclose(overlap.lengthscale, np.sqrt(0.5 * differ) * 2.0**0.5, rtol=1e-12)
    # the mean squared scaled distance of two rows is 2, as for other stationary kernels
    scaled = np.sum((X[:, None, :] != X) / overlap.lengthscale**2, axis=-1)
    np.testing.assert_allclose(scaled.mean(), 2.0, rtol=1e-12)
    np.testing.assert_allclose(effects.variance, [1.5, 1.5], rtol=1e-14)
    constant = Overlap().from_data(np.zeros((5, 1)), 1.0)
    np.testing.assert_array_equal(constant.lengthscale, [1.0])


@pytest.mark.parametrize("kernel", [Overlap((1.0, 2.0)), RandomEffects((1.0, 2.0))])
def test_one_parameter_for_each_column(kernel):
    with pytest.raises(
        ValueError, match=f"{type(kernel).__name__} has .* of shape .2,., but the inputs have 3 columns"
    ):
        GPR.from_data(codes(), np.arange(30.0), kernel=kernel)


# -- mixed columns ----------------------------------------------------------------------------------------------------

CATEGORY = (1,)


def leaves_of(kernel):
    return {name: np.asarray(x).tolist() for name, x in tree.leaves(kernel).items()}


def same(one, other):
    return tree.outline(one) == tree.outline(other) and leaves_of(one) == leaves_of(other)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("columns", [(1,), (0, 2), (0, 1, 2), ()])
def test_every_kernel_becomes_one_of_mixed_columns(name, columns):
    kernel = kernel_case(name, 3)
    mixed = kernel.with_categories(3, columns)
    assert same(mixed.with_categories(3, columns), mixed)
    if not columns:
        assert mixed is kernel or same(mixed, kernel)
    found = {*mixed.category_levels(3)}
    assert found == ({*columns} & acted_on(kernel)) | {*kernel.category_levels(3)}
    X = inputs(3, rows=12)[0]
    X[:, columns] = codes(12, len(columns), 4)
    ready = as_arrays(mixed.from_data(X, 1.0))
    ready.check(3)
    K = ready(X)[0]
    assert np.linalg.eigvalsh(K).min() > -1e-10
    relabelled = X.copy()
    relabelled[:, columns] = np.asarray([2.0, 0.0, 3.0, 1.0])[X[:, columns].astype(int)]
    labels_matter = tree.nodes(ready, Centred) or tree.nodes(ready, LevelCovariance)  # points and weights of levels
    if found <= {*columns} and not labels_matter:
        np.testing.assert_array_equal(ready(relabelled)[0], K)


def acted_on(kernel, columns=(0, 1, 2)):
    """The columns on which parts act that depend on inputs."""
    if isinstance(kernel, ActiveDims):
        return acted_on(kernel.kernel, tuple(columns[d] for d in kernel.columns))
    if isinstance(kernel, Constant | White):
        return set()
    parts = getattr(kernel, "parts", None) or ([kernel.kernel] if "kernel" in vars(kernel) else None)
    return {*columns} if parts is None else set().union(*(acted_on(part, columns) for part in parts))


SPLIT = {
    "rbf": (
        RBF(0.8, (0.5, 1.4, 2.0)),
        RBF(0.8, (0.5, 2.0)).on((0, 2)) * Overlap([1.4]).on(1),
    ),
    "periodic": (
        Periodic(0.8, (0.5, 1.4, 2.0), (3.0, 4.0, 5.0)),
        Periodic(0.8, (0.5, 2.0), (3.0, 5.0)).on((0, 2)) * Overlap([1.4]).on(1),
    ),
    "linear": (
        Linear((0.5, 1.4, 2.0), (3.0, 4.0, 5.0)),
        Linear((0.5, 2.0), (3.0, 5.0)).on((0, 2)) + RandomEffects([1.4]).on(1),
    ),
    "sum": (
        2.0 * (RBF(0.8, (0.5, 1.4, 2.0)) + Linear((0.5, 1.4, 2.0))) + White(0.1),
        2.0
        * (
            RBF(0.8, (0.5, 2.0)).on((0, 2)) * Overlap([1.4]).on(1)
            + (Linear((0.5, 2.0)).on((0, 2)) + RandomEffects([1.4]).on(1))
        )
        + White(0.1),
    ),
    "product": (
        RBF(0.8, (0.5, 1.4, 2.0)) * Linear((0.5, 1.4, 2.0)),
        RBF(0.8, (0.5, 2.0)).on((0, 2))
        * Overlap([1.4]).on(1)
        * (Linear((0.5, 2.0)).on((0, 2)) + RandomEffects([1.4]).on(1)),
    ),
    "on": (
        RBF(0.8, (0.5, 1.4)).on((2, 1)) + Matern32(0.7, 0.9).on(0),
        RBF(0.8, [0.5]).on(2) * Overlap([1.4]).on(1) + Matern32(0.7, 0.9).on(0),
    ),
}


@pytest.mark.parametrize("name", SPLIT)
def test_parameters_of_columns_are_split(name):
    given, expected = map(as_arrays, SPLIT[name])
    X, Z = mixed_inputs(), mixed_inputs(5, seed=1)
    found = given.with_categories(3, CATEGORY)(X, Z)[0]
    np.testing.assert_allclose(found, expected(X, Z)[0], rtol=1e-13, atol=1e-13)


def test_all_columns_may_be_categories():
    X, Z = codes(), codes(9, seed=1)
    given = as_arrays(Matern52(0.8, (0.5, 1.4, 2.0))).with_categories(3, (0, 1, 2))
    right = 0.8 * as_arrays(Overlap((0.5, 1.4, 2.0)))(X, Z)[0]
    np.testing.assert_allclose(given(X, Z)[0], right, rtol=1e-13)
    effects = as_arrays(Linear((0.5, 1.4, 2.0))).with_categories(3, (0, 1, 2))
    np.testing.assert_array_equal(effects(X, Z)[0], as_arrays(RandomEffects((0.5, 1.4, 2.0)))(X, Z)[0])


def test_shared_parameters_are_chosen_from_the_data():
    mixed = RBF(0.8, 0.6).with_categories(3, CATEGORY)
    assert tree.missing(mixed) == ["parts.1.kernel.lengthscale"]
    assert tree.missing(mixed.from_data(mixed_inputs(), 1.0)) == []


def test_levels_are_counted_by_column():
    X = np.column_stack([codes(40, 1, 3), codes(40, 1, 7), np.arange(40.0)])
    kernel: Kernel = (RBF() + Linear()).with_categories(3, (0, 1))
    assert kernel.category_levels(3) == {0: 0, 1: 0}
    counts = kernel.from_data(X, 1.0).category_levels(3)
    assert counts.keys() == {0, 1}
    assert counts[0] >= 3
    assert counts[1] == 7


@pytest.mark.parametrize("kind", [Overlap, RandomEffects])
@pytest.mark.parametrize("columns", [1, 8, 9, 13])
def test_covariances_do_not_depend_on_the_known_numbers_of_levels(kind, columns):
    rng = np.random.default_rng(columns)
    X, parameter = rng.integers(-1, 6, (20, columns)).astype(float), rng.uniform(0.5, 2.0, columns)
    X[0, :], X[1, 0] = 40_000.0, 70_000.0  # the codes of no level
    found = [kind(parameter, levels=levels)(X)[0] for levels in (0, 100_000, 6, (6,) * (columns - 1) + (2**15,))]
    differs = X[:, None, :] != X[None, :, :]
    expected = np.exp(-np.sum(differs * 0.5 / parameter**2, axis=-1)) if kind is Overlap else (~differs) @ parameter
    known = np.ones((20, 20), dtype=bool)
    known[0, 1] = known[1, 0] = False  # large codes of no level may be equal
    for K in found:
        np.testing.assert_allclose(K[known], expected[known], rtol=1e-13)
    np.testing.assert_allclose(found[1], expected, rtol=1e-13)
