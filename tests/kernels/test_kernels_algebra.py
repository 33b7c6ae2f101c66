"""What operators make of kernels, the starting values that data give them, and what they refuse."""

import copy

import numpy as np
import pytest
from helpers import NUMPY, as_arrays, assert_close, peak, value_and_gradient
from kernel_cases import CASES, inputs, kernel_case

from agp import GPR, SVGP, fit, tree
from agp.kernels import (
    KERNELS,
    RBF,
    ActiveDims,
    Constant,
    Kernel,
    LevelCovariance,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Overlap,
    Periodic,
    Product,
    RationalQuadratic,
    Scaled,
    Seasonal,
    Stationary,
    Sum,
    White,
)
from agp.posteriors import Relaxed

# without Seasonal, which has no initial period, and LevelCovariance, which acts on one column
BLANK = [cls for cls in KERNELS.values() if cls not in (Seasonal, LevelCovariance)]


# -- operators --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cls", "join"), [(Sum, lambda a, b: a + b), (Product, lambda a, b: a * b)])
def test_sums_and_products_are_flat(cls, join):
    kernel = join(RBF(1.0, 1.0), join(Matern32(1.0, 2.0), RBF(0.5, 3.0)))
    assert isinstance(kernel, cls)
    assert [type(part) for part in kernel.parts] == [RBF, Matern32, RBF]
    assert "parts.2.lengthscale" in tree.leaves(kernel)
    assert len(join(kernel, kernel).parts) == 6


def test_sums_and_products_mix():
    kernel = RBF() * (Linear() + Constant()) + White()
    assert [type(part) for part in kernel.parts] == [Product, White]
    assert [type(part) for part in kernel.parts[0].parts] == [RBF, Sum]


@pytest.mark.parametrize("number", [2, 2.0, np.float64(2.0), np.float32(2.0)], ids=["int", "float", "f64", "f32"])
def test_a_multiple_from_either_side(number):
    for kernel in (number * Linear(0.5), Linear(0.5) * number):
        assert isinstance(kernel, Scaled)
        assert kernel.variance == 2.0
        assert list(tree.leaves(kernel)) == ["variance", "kernel.variance"]


def test_values_of_combinations(backend):
    rbf, linear = as_arrays(RBF(0.8, 0.7)), as_arrays(Linear(0.4))
    X, Z = inputs(3)
    a, b = rbf(X, Z)[0], linear(X, Z)[0]
    expected = {
        rbf + linear: a + b,
        rbf * linear: a * b,
        as_arrays(3.0 * linear): 3.0 * b,
        as_arrays(rbf * (linear + 0.5 * rbf)): a * (b + 0.5 * a),
        rbf.on((1,)): rbf(X[:, 1:2], Z[:, 1:2])[0],
        linear.on([2, 0]): linear(X[:, [0, 2]], Z[:, [0, 2]])[0],
        (rbf * linear).on((2, 1)).on((2, 0, 1)): (rbf * linear)(X[:, [1, 0]], Z[:, [1, 0]])[0],
    }
    for kernel, K in expected.items():
        here = backend.move(kernel)(backend.array(X), backend.array(Z))[0]
        np.testing.assert_allclose(backend.numpy(here), K, rtol=1e-12)


@pytest.mark.parametrize("join", [lambda k: k + 1.0, lambda k: k * "2", lambda k: [2.0] * k, lambda k: k * None])
def test_what_is_no_kernel_and_no_number_is_an_error(join):
    with pytest.raises(TypeError):
        join(RBF(1.0, 1.0))


@pytest.mark.parametrize("number", [0.0, -1.0, float("nan"), float("inf")])
def test_a_multiple_must_be_positive(number):
    with pytest.raises(ValueError, match="cannot be multiplied by .*; use a positive finite number"):
        _ = number * RBF()
    with pytest.raises(ValueError, match="use a positive finite number"):
        Scaled(number, RBF()).from_data(np.ones((3, 2)), 1.0)


def test_a_product_with_a_kernel_that_is_zero_has_gradients(backend):
    # the covariances of Linear with the origin vanish; a quotient K / K_i would be NaN
    kernel = backend.move(as_arrays(Linear(0.5) * RBF(1.0, 1.0) * Constant(2.0)))
    X = np.concatenate([np.zeros((1, 2)), inputs(2, rows=3)[0]])
    kernel_bar, X_bar = kernel(backend.array(X))[1](backend.array(np.ones((4, 4))))
    assert all(np.isfinite(backend.numpy(x)).all() for x in (*tree.leaves(kernel_bar).values(), X_bar))
    assert backend.numpy(kernel_bar.parts[0].variance) > 0.0


def test_white_noise_is_seen_by_one_argument_only(backend):
    kernel = backend.move(as_arrays(White(0.3)))
    X = backend.array(inputs(2, rows=4)[0])
    np.testing.assert_array_equal(backend.numpy(kernel(X)[0]), 0.3 * np.eye(4))
    np.testing.assert_array_equal(backend.numpy(kernel(X, X)[0]), 0.0)
    np.testing.assert_array_equal(backend.numpy(kernel.diag(X)[0]), 0.3)


# -- columns ----------------------------------------------------------------------------------------------------------


def test_other_columns_change_nothing_and_get_no_gradient(backend):
    kernel = backend.move(kernel_case("on", 4))
    X, Z = inputs(4)
    K, pullback = kernel(backend.array(X), backend.array(Z))
    _, X_bar, Z_bar = pullback(K)
    for bar in (X_bar, Z_bar):
        np.testing.assert_array_equal(backend.numpy(bar)[:, [1, 3]], 0.0)
        assert np.all(backend.numpy(bar)[:, [0, 2]] != 0.0)
    X[:, [1, 3]] = 7.0
    np.testing.assert_array_equal(backend.numpy(kernel(backend.array(X), backend.array(Z))[0]), backend.numpy(K))


@pytest.mark.parametrize(
    ("columns", "problem"),
    [((-1,), "counted from 0"), ((), "one or more columns"), ((0, 1, 0), "may appear only once")],
)
def test_columns_that_cannot_be(columns, problem):
    with pytest.raises(ValueError, match=rf"RBF on columns .*: .*{problem}"):
        RBF().on(columns)
    with pytest.raises(ValueError, match=problem):
        ActiveDims(as_arrays(RBF(1.0, 1.0)), columns).check(3)


def test_columns_are_whole_numbers():
    with pytest.raises(TypeError):
        RBF().on((0.5,))
    assert RBF().on(np.asarray([2, 0])).columns == (2, 0)


@pytest.mark.parametrize("kernel", [RBF().on((0, 3)), RBF() + 2.0 * RBF().on((3,)), RBF().on((0, 1)).on((1, 3))])
def test_columns_that_do_not_exist(kernel):
    message = r"on columns \(.*3.*\): the inputs have 3 columns, numbered from 0 to 2"
    with pytest.raises(ValueError, match=message):
        kernel.from_data(inputs(3)[0], 1.0)
    with pytest.raises(ValueError, match=message):
        GPR.from_data(inputs(3)[0], np.arange(9.0), kernel=kernel)


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_scaled_by_a_factor_keeps_its_structure(name, backend):
    kernel, (X, Z) = backend.move(kernel_case(name, 3)), map(backend.array, inputs(3))
    for factor in (2.5, backend.array(np.asarray(2.5))):
        scaled = kernel.scale_by(factor)
        if not isinstance(kernel, Overlap):  # which has no variance, and becomes a multiple
            assert type(scaled) is type(kernel)
            assert [leaf.name for leaf in tree.describe(scaled)] == [leaf.name for leaf in tree.describe(kernel)]
            assert tree.outline(scaled).count("(") == tree.outline(kernel).count("(")
        for found, expected in (
            (scaled(X, Z)[0], kernel(X, Z)[0]),
            (scaled(X)[0], kernel(X)[0]),
            (scaled.diag(X)[0], kernel.diag(X)[0]),
        ):
            np.testing.assert_allclose(backend.numpy(found), 2.5 * backend.numpy(expected), rtol=0, atol=1e-14)


def test_a_kernel_without_a_variance_becomes_a_multiple():
    @tree.model
    class Plain(Kernel):
        def __call__(self, X, Z=None, /):
            return as_arrays(Linear(1.0))(X, Z)

        def diag(self, X, /):
            return as_arrays(Linear(1.0)).diag(X)

        def from_data(self, X, variance, /):
            return self

        def check(self, width, /):
            pass

    X = inputs(3)[0]
    kinds = (Plain(), as_arrays(Overlap(1.3)), Plain() * as_arrays(RBF(0.5, 1.0)), Plain() + as_arrays(Constant(0.2)))
    for kernel in kinds:
        scaled = kernel.scale_by(np.asarray(3.0))
        np.testing.assert_allclose(scaled(X)[0], 3.0 * kernel(X)[0], rtol=1e-14)
        assert any(isinstance(part, Scaled) for part in tree.nodes(scaled, Kernel).values())


@pytest.mark.parametrize("kernel", [RBF(), RBF(1.0, 1.0) + White(), Linear() * RBF(1.0, 1.0), Constant().on((0,))])
def test_only_variances_that_are_known_are_scaled(kernel):
    with pytest.raises(ValueError, match="has no variance to scale; pass variance="):
        kernel.scale_by(2.0)


# -- centres ----------------------------------------------------------------------------------------------------------


def test_linear_functions_are_zero_at_their_centre(backend):
    X = backend.array(inputs(3, rows=30)[0] + np.asarray([0.0, 5.0, -100.0]))
    kernel = Linear.centred(X).from_data(X, 2.0)
    centre = np.mean(backend.numpy(X), axis=0)
    np.testing.assert_allclose(backend.numpy(kernel.centre), centre, rtol=1e-14)
    np.testing.assert_allclose(np.mean(backend.numpy(kernel.diag(X)[0])), 2.0, rtol=1e-12)
    at = backend.array(centre[None, :])
    np.testing.assert_allclose(backend.numpy(kernel(at, X)[0]), 0.0, atol=1e-12)
    assert "centre" not in tree.leaves(kernel, "parameter")
    shifted, expected = kernel(X)[0], as_arrays(Linear(backend.numpy(kernel.variance)))(backend.numpy(X) - centre)[0]
    np.testing.assert_allclose(backend.numpy(shifted), expected, atol=1e-12)


def test_a_centre_may_be_given_as_numbers(backend):
    X = backend.array(inputs(3)[0])
    y = X[:, :1]
    for centre in (0.5, [0.5, 0.5, 0.5], np.full(3, 0.5, dtype=np.float32)):
        kernel = GPR.from_data(X, y, kernel=Linear(centre=centre) + RBF()).kernel.parts[0]
        backend.check(kernel.centre)
        np.testing.assert_allclose(np.mean(backend.numpy(kernel.diag(X)[0])), np.var(backend.numpy(y)) / 2, rtol=1e-12)


def test_no_centre_is_the_origin():
    X, Z = inputs(3)
    plain, centred = as_arrays(Linear((0.7, 1.1, 0.9))), as_arrays(Linear((0.7, 1.1, 0.9), np.zeros(3)))
    np.testing.assert_array_equal(centred(X, Z)[0], plain(X, Z)[0])
    assert set(tree.leaves(plain)) == {"variance"}
    assert tree.missing(Linear()) == ["variance"]


def test_a_centre_does_not_depend_on_the_origin_of_the_inputs():
    X = inputs(3, rows=12)[0]
    y = X[:, :1] + 0.1 * X[:, 1:2] ** 2
    here, there = (GPR.from_data(x, y, kernel=Linear.centred(x) + RBF()) for x in (X, X + 1000.0))
    np.testing.assert_allclose(
        value_and_gradient(there, X + 1000.0, y)[0], value_and_gradient(here, X, y)[0], rtol=1e-9
    )


def test_models_with_a_centre_train_in_both_modes(backend):
    X = inputs(2, rows=12)[0] + 4.0
    X, y = backend.array(X), backend.array(np.sin(X[:, :1]))
    model = GPR.from_data(X, y, kernel=Linear.centred(X) + Constant() + RBF())
    value, gradient = value_and_gradient(model, X, y)
    assert np.isfinite(float(value))
    assert not any("centre" in name for name in gradient)
    if backend.name in ("torch", "jax"):
        auto = value_and_gradient(model, X, y, gradient="autodiff")[1]
        for name, x in gradient.items():
            assert_close(backend.numpy(x), backend.numpy(auto[name]), 1e-9, name)


# -- starting values --------------------------------------------------------------------------------------------------


def _started(kernel, X, variance):
    return as_arrays(kernel.from_data(X, variance))


@pytest.mark.parametrize("name", ["alone", "sum", "product", "scaled", "on"])
@pytest.mark.parametrize("cls", [cls for cls in BLANK if cls is not Overlap])
def test_starting_variances_are_those_of_the_targets(cls, name):
    X = inputs(3, rows=50)[0] * np.asarray([1.0, 20.0, 0.1]) + 3.0
    make = {
        "alone": lambda k: k,
        "sum": lambda k: k + RBF(),
        "product": lambda k: k * RBF() * k,
        "scaled": lambda k: 4.0 * k,
        "on": lambda k: k.on((2, 0)),
    }
    kernel = _started(make[name](cls()), X, 2.5)
    assert tree.missing(kernel) == []
    kernel.check(3)
    np.testing.assert_allclose(np.mean(_started(cls(), X, 2.5).diag(X)[0]), 2.5, rtol=1e-12)
    if name != "product" or cls is not Linear:  # whose variances vary, and so does their square
        np.testing.assert_allclose(np.mean(kernel.diag(X)[0]), 2.5, rtol=1e-12)


def test_the_first_kernel_with_a_variance_starts_at_that_of_the_targets():
    X = np.round(inputs(3, rows=50)[0])
    for kernel in (
        Overlap() * RBF(),
        Overlap().on(0) * (Overlap().on(1) * RBF().on(2)) * Matern52(),
        RBF() * Overlap(),
    ):
        np.testing.assert_allclose(_started(kernel, X, 2.5).diag(X)[0], 2.5, rtol=1e-12)
    np.testing.assert_array_equal(_started(Overlap(), X, 2.5).diag(X)[0], 1.0)  # a correlation


def test_what_is_given_stays():
    X = inputs(3)[0]
    kernel = (RationalQuadratic(alpha=0.3) * Periodic(period=1.5)).from_data(X, 2.0)
    first, second = kernel.parts
    assert (first.variance, first.alpha) == (2.0, 0.3)
    assert (second.variance, second.period) == (1.0, 1.5)
    assert (3.0 * RBF(variance=0.7)).from_data(X, 2.0).kernel.variance == 0.7


def test_scales_start_at_the_spread_of_their_columns(backend):
    # lengthscales times the root of the number of columns
    X = backend.array(inputs(3, rows=40)[0] * np.asarray([1.0, 20.0, 0.0]) + 3.0)
    spread = np.std(backend.numpy(X), axis=0)
    spread[2] = 3.0  # a constant column has its size
    np.testing.assert_allclose(backend.numpy(Matern52().from_data(X, 1.0).lengthscale), np.sqrt(3.0) * spread)
    np.testing.assert_allclose(backend.numpy(Periodic().from_data(X, 1.0).period), 2.0 * spread)
    on = RBF().on((1,)).from_data(X, 1.0)
    np.testing.assert_allclose(backend.numpy(on.kernel.lengthscale), spread[1:2])
    zeros = backend.array(np.zeros((4, 2)))
    np.testing.assert_allclose(backend.numpy(Linear().from_data(zeros, 1.0).variance), 0.5)


@pytest.mark.parametrize("kernel", [cls() for cls in BLANK], ids=lambda k: type(k).__name__)
def test_every_kernel_makes_a_model(kernel):
    X, Z = inputs(2, rows=12, others=4)
    y = np.sin(X[:, :1])
    if kernel.category_levels(2):
        X, Z = np.round(X), np.round(Z)  # codes of levels are whole numbers
    blank = kernel + 2.0 * (RBF() * copy.copy(kernel).on((1,)))
    for model in (
        GPR.from_data(X, y, kernel=blank),
        SVGP.from_data(X, y, kernel=blank, posterior=Relaxed, Z=Z),
    ):
        value, gradient = value_and_gradient(model, X, y)
        assert np.isfinite(value)
        assert {"kernel.parts.1.variance", "kernel.parts.1.kernel.parts.0.lengthscale"} <= set(gradient)
        assert all(np.isfinite(x).all() for x in gradient.values())


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (
            Matern52(1.0, [1.0, 2.0]),
            r"Matern52 has lengthscales of shape \(2,\), but the inputs have 3 columns; pass",
        ),
        (Matern12([1.0, 2.0], 1.0), r"Matern12 has variance of shape \(2,\); pass one number"),
        (RationalQuadratic(1.0, 1.0, [1.0]), r"RationalQuadratic has alpha of shape \(1,\); pass one number"),
        (Periodic(1.0, 1.0, [1.0] * 2), r"Periodic has periods of shape \(2,\), but the inputs have 3 columns"),
        (Periodic(1.0, [1.0] * 4, 1.0), r"Periodic has lengthscales of shape \(4,\), but the inputs have 3 columns"),
        (Linear([1.0] * 2), r"Linear has variances of shape \(2,\), .* pass one variance, or one for each column"),
        (Linear(1.0, [1.0] * 2), r"Linear has centres of shape \(2,\), but the inputs have 3 columns"),
        (Constant([1.0]), r"Constant has variance of shape \(1,\)"),
        (White([1.0]), r"White has variance of shape \(1,\)"),
        (Scaled([1.0, 2.0], RBF(1.0, 1.0)), r"Scaled has variance of shape \(2,\)"),
        (RBF(1.0, [1.0] * 3).on((0, 1)), r"RBF has lengthscales of shape \(3,\), but the inputs have 2 columns"),
        (RBF(1.0, 1.0) * (Linear(1.0) + 2.0 * Linear([1.0] * 2)), r"Linear has variances of shape \(2,\)"),
    ],
)
def test_wrong_shapes(kernel, message):
    with pytest.raises(ValueError, match=message):
        as_arrays(kernel).check(3)
    with pytest.raises(ValueError, match=message):
        GPR.from_data(inputs(3)[0], np.arange(9.0), kernel=kernel)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan")])
@pytest.mark.parametrize(
    ("leaf", "make"),
    [
        ("variance", lambda x: Linear(x)),
        ("variance", lambda x: White(x)),
        ("alpha", lambda x: RationalQuadratic(alpha=x)),
        ("period", lambda x: Periodic(period=x)),
        ("parts.1.kernel.lengthscale", lambda x: RBF() * Matern52(lengthscale=x).on((0,))),
    ],
)
def test_parameters_must_be_positive(leaf, make, bad):
    with pytest.raises(ValueError, match=rf"{leaf} is .*, but must be positive and finite"):
        GPR.from_data(inputs(3)[0], np.arange(9.0), kernel=make(bad))


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("columns", [3, 6])
@pytest.mark.parametrize("call", ["cross", "symmetric"])
@pytest.mark.parametrize("name", CASES)
def test_memory_is_what_the_kernel_says(name, call, columns):
    kernel = kernel_case(name, columns)
    X, Z = inputs(columns, rows=300, others=280)
    arguments = (X, Z) if call == "cross" else (X,)
    entry = 8.0 * 300 * len(arguments[-1]) / 2**20
    kernel(X[:2], X[:2])  # what is imported and remembered at the first call is not the kernel's
    made = []
    value = peak(lambda: made.extend(kernel(*arguments)))
    K, pullback = made
    assert value / entry <= kernel.floats_per_entry + 0.4  # scaled inputs, narrow here, are kept for the pullback
    # the budget of a model counts the cotangent and temporaries beside what the kernel holds
    assert (peak(lambda: pullback(K)) + value) / entry <= 2 * kernel.floats_per_entry + 4
    assert isinstance(kernel, Kernel)


@pytest.mark.parametrize("cls", [cls for cls in BLANK if issubclass(cls, Stationary) and cls is not RationalQuadratic])
def test_stationary_kernels_hold_as_many_arrays_as_they_say(cls):
    kernel, (X, Z) = as_arrays(cls(1.3, 0.8)), inputs(3, rows=300, others=280)
    kernel(X[:2], X[:2])  # what is imported and remembered at the first call is not the kernel's
    entry = 8.0 * 300 * 280 / 2**20
    assert peak(lambda: kernel(X, Z)) / entry == pytest.approx(kernel.floats_per_entry, abs=0.4)


def test_gradients_keep_the_columns():
    kernel = kernel_case("on-linear", 3)
    kernel_bar = kernel(inputs(3)[0])[1](np.ones((9, 9)))[0]
    assert [part.columns for part in kernel_bar.parts] == [(2, 1), (0,)]
    assert_close(
        NUMPY.numpy(tree.add(kernel_bar, kernel_bar).parts[0].kernel.variance),
        2.0 * kernel_bar.parts[0].kernel.variance,
        0.0,
    )


@pytest.mark.parametrize(
    ("period", "words"),
    [(None, "Seasonal has no period; pass period="), (-1.0, r"period of Seasonal is -1.0, but must be positive")],
)
def test_a_season_needs_its_period(period, words):
    with pytest.raises(ValueError, match=words):
        Seasonal(period=period).from_data(np.ones((3, 1)), 1.0)


@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e5])
def test_multiple_without_a_number_starts_at_the_variance_of_the_targets(scale):
    """A kernel without a variance of its own has the same model in any units of the targets."""
    rng = np.random.default_rng(2)
    X = np.stack([rng.uniform(-2.0, 2.0, 80), rng.integers(0, 3, 80)], axis=1)
    y = np.sin(X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(80)
    kernel = RBF().on((0,)) + Scaled(None, Overlap().on((1,)))
    found = fit(GPR.from_data(X, scale * y, kernel=kernel), X, scale * y).model
    base = fit(GPR.from_data(X, y, kernel=kernel), X, y).model
    shift = len(y) * np.log(scale)
    assert float(found.bound(X, scale * y)[0]) + shift == pytest.approx(float(base.bound(X, y)[0]), abs=1e-3)
    both = Scaled(None, RBF()).from_data(X, 4.0)  # the kernel's own variance is that of the targets
    assert (float(both.variance), float(both.kernel.variance)) == (1.0, 4.0)
