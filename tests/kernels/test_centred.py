"""Kernels of functions that average to zero, and additive kernels of them."""

from functools import partial
from typing import ClassVar

import numpy as np
import pytest
from helpers import NUMPY, as_arrays, assert_close

import agp
from agp import tree
from agp.kernels import (
    RBF,
    Centred,
    Constant,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Overlap,
    RationalQuadratic,
    White,
    additive,
    terms_of,
)

RNG = np.random.default_rng(3)
X = RNG.normal(size=(60, 3))


@pytest.mark.parametrize(
    "kernel", [RBF(), Linear() + RBF(), 2.0 * Matern52(), RBF().on(0) * Linear(), RBF() + White(0.3)]
)
@pytest.mark.parametrize("weights", [None, np.linspace(0.0, 1.0, 7)], ids=["equal", "weights"])
def test_functions_average_to_zero(kernel, weights, backend):
    points = RNG.normal(size=(7, 3))
    one = backend.move(as_arrays(Centred(kernel, points, weights).from_data(X, 2.0)))
    K = backend.numpy(one(backend.array(X), backend.array(points))[0])
    average = K @ (np.full(7, 1.0 / 7.0) if weights is None else weights)
    assert np.max(np.abs(average)) < 1e-13 * np.max(np.abs(K))
    assert np.linalg.eigvalsh(backend.numpy(one(backend.array(X))[0])).min() > -1e-12


def test_the_kernel_is_that_of_a_function_given_its_average():
    """The covariances of f given the observation that its average is zero, without noise."""
    S, w, k = X[:9], np.linspace(0.5, 1.0, 9), as_arrays(RBF(1.3, 0.8))
    a = k(X, S)[0] @ w
    expected = k(X)[0] - np.outer(a, a) / (w @ k(S)[0] @ w)
    assert_close(Centred(k, S, w)(X)[0], expected, 1e-14)
    assert_close(Centred(k, S, 5.0 * w)(X)[0], expected, 1e-13)


def test_points_are_the_rows_of_the_data():
    few = Centred(RBF()).from_data(np.asarray([[2.0], [1.0], [2.0], [5.0]]), 1.0)
    assert few.points[:, 0].tolist() == [1.0, 2.0, 5.0]
    assert few.weights.tolist() == [0.25, 0.5, 0.25]
    column = RNG.normal(size=(1001, 1))
    many = Centred(RBF()).from_data(column, 1.0)
    assert many.points.shape == (200, 1)
    assert many.weights is None
    assert np.all(np.diff(many.points[:, 0]) > 0.0)
    assert abs(np.mean(many.points) - np.mean(column)) < 0.01
    assert Centred(RBF()).from_data(X, 1.0).points.shape == X.shape
    assert Centred(RBF()).from_data(RNG.normal(size=(450, 2)), 1.0).points.shape == (200, 2)


@pytest.mark.parametrize("scale", [1e-3, -40.0, 1e6])
def test_the_starting_kernel_does_not_depend_on_units(scale):
    column = RNG.normal(size=(501, 1))
    kernels = [as_arrays(Centred(RBF()).from_data(x, 1.0)) for x in (column, scale * column)]
    assert_close(kernels[1](scale * column)[0], kernels[0](column)[0], 1e-9)


def test_functions_without_variance_at_the_points():
    """A linear function through the average of the points has the average zero anyway."""
    kernel = as_arrays(Centred(Linear(0.7, np.mean(X, axis=0)), X))
    assert_close(kernel(X)[0], kernel.kernel(X)[0], 1e-12)
    assert_close(kernel.diag(X)[0], kernel.kernel.diag(X)[0], 1e-12)


def test_categories_are_centred():
    codes = np.asarray([0.0, 1.0, 1.0, 2.0] * 5)[:, None]
    kernel = as_arrays(Centred(RBF()).with_categories(1, (0,)).from_data(codes, 1.0))
    assert isinstance(kernel.kernel, Overlap) or tree.nodes(kernel, Overlap)
    assert kernel.weights.tolist() == [0.25, 0.5, 0.25]
    assert np.max(np.abs(np.mean(kernel(codes)[0], axis=0))) < 1e-15


@pytest.mark.parametrize(
    ("points", "weights", "match"),
    [
        (X[:, :2], None, r"points of shape \(60, 2\), but the inputs have 3 columns"),
        (X[:, 0], None, r"points of shape \(60,\)"),
        (X, np.ones(3), r"60 points, but weights of shape \(3,\)"),
        (X[:2], np.asarray([1.0, -1.0]), "negative weight"),
        (None, np.ones(3), "weights, but no points"),
    ],
)
def test_wrong_points_are_refused(points, weights, match):
    with pytest.raises(ValueError, match=match):
        Centred(RBF(), points, weights).from_data(X, 1.0)


def test_additive_kernels_have_a_constant_and_centred_terms():
    kernel = additive(Matern52(), (0, 2))
    first, *others = terms_of(kernel)
    assert isinstance(first, Constant)
    assert [one.columns for one in others] == [(0,), (2,)]
    with pytest.raises(ValueError, match="no columns"):
        additive(RBF(), ())


ALL_NEAR = partial(agp.NNGP.from_data, neighbours=60)
"""Given all rows; given few, each prediction has other neighbours, and averages are only roughly zero."""


@pytest.mark.parametrize("build", [agp.GPR.from_data, agp.SGPR.from_data, ALL_NEAR], ids=["gpr", "sgpr", "nngp"])
def test_components_of_additive_kernels_average_to_zero(build):
    noise = 0.2 * np.random.default_rng(4).normal(size=(60, 1))
    y = 40.0 + np.sin(2.0 * X[:, :1]) + X[:, 1:2] ** 2 + noise
    model = agp.fit(build(X, y, kernel=additive(RBF(), range(3)), mean_function=agp.ZeroMean()), X, y).model
    found = model.predictor().components(X)
    average = np.mean(found.mean[:, 0, :], axis=0)
    assert np.max(np.abs(average[1:])) < (1e-3 if build is ALL_NEAR else 1e-7) * np.std(y)
    assert abs(average[0] - np.mean(y)) < 0.05 * np.std(y)


def test_a_component_is_the_effect_of_its_column():
    """Within its error bars, and without the constant, for a function that the model can represent."""
    y = 3.0 + np.sin(2.0 * X[:, :1]) + 0.5 * X[:, 1:2] + 0.1 * RNG.normal(size=(60, 1))
    model = agp.fit(agp.GPR.from_data(X, y, kernel=additive(RBF(), range(3))), X, y).model
    found = model.predictor().components(X)
    for column, truth in enumerate((np.sin(2.0 * X[:, 0]), 0.5 * X[:, 1], np.zeros(60))):
        place = found.names.index(f"centred(rbf).on({column})")
        error = found.mean[:, 0, place] - (truth - np.mean(truth))
        deviation = np.sqrt(found.variance[:, 0, place])
        assert np.sqrt(np.mean(error**2)) < 0.15
        assert np.mean(np.abs(error) < 2.5 * deviation + 0.01) > 0.85


def test_centred_kernels_are_kept_in_files(tmp_path):
    y = np.sin(X[:, :1])
    model = agp.GPR.from_data(X, y, kernel=additive(RBF(), range(3)))
    agp.save(model, tmp_path / "model.safetensors")
    found = agp.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(found.kernel(X)[0], model.kernel(X)[0])


# -- digits and work --------------------------------------------------------------------------------------------------

LONG = {
    "rbf": RBF(3e4, 900.0),
    "matern12": Matern12(3e3, 9000.0),
    "matern32": Matern32(3e4, 700.0),
    "matern52": Matern52(3e4, 900.0),
    "rq": RationalQuadratic(3e4, 900.0, 1.7),
}


@pytest.mark.parametrize("name", LONG)
def test_nearly_linear_effects_keep_their_digits_in_float32(name, backend):
    """A large variance and a long lengthscale: the covariances are small differences of nearly equal numbers."""
    x = (50.0 + 5.0 * X[:, :1]).astype(np.float32)
    kernel = as_arrays(Centred(LONG[name]).from_data(x.astype(np.float64), 1.0))
    exact, narrow = kernel(x.astype(np.float64))[0], backend.move(kernel, "float32")
    single = backend.array(x, "float32")
    found = backend.numpy(narrow(single)[0], "float32")
    tolerance = {"rbf": 1e-5, "rq": 1e-5, "matern12": 1e-4}.get(name, 3e-3)
    assert_close(found, exact, tolerance)
    assert_close(backend.numpy(narrow.diag(single)[0], "float32"), np.diagonal(exact), tolerance)
    stack = tree.with_leaves(narrow, {at: v[None, ...] for at, v in tree.leaves(narrow, "parameter").items()})
    assert_close(backend.numpy(stack.stacked_covariance(single)[0], "float32")[0], exact, tolerance)
    assert_close(backend.numpy(stack.stacked_variances(single)[0], "float32")[0], np.diagonal(exact), tolerance)


@pytest.mark.parametrize("kernel", [RBF(1e6, 1e5), Linear(1e6) + Constant(1e9), 3.0 * Matern52(1e6, 1e5)])
def test_variances_of_float32_are_not_negative(kernel):
    """At rows at which the function is nearly its average."""
    x = np.linspace(49.0, 51.0, 2001, dtype=np.float32)[:, None]
    one = NUMPY.move(as_arrays(Centred(kernel).from_data(x.astype(np.float64), 1.0)), "float32")
    assert np.min(one.diag(x)[0]) >= 0.0
    stack = tree.with_leaves(one, {at: v[None, ...] for at, v in tree.leaves(one, "parameter").items()})
    assert np.min(stack.stacked_variances(x)[0]) >= 0.0


def test_a_model_in_float32_predicts_as_in_float64():
    rng = np.random.default_rng(5)
    x = rng.uniform(20.0, 70.0, (150, 2))
    y = 100.0 + 0.3 * x[:, :1] + np.sin(x[:, 1:] / 5.0) + 0.3 * rng.standard_normal((150, 1))
    model = agp.fit(agp.GPR.from_data(x, y, kernel=additive(RBF(), (0, 1))), x, y).model
    narrow = tree.to_backend(model, "numpy", dtype="float32").predictor().components(x.astype(np.float32))
    wide = model.predictor().components(x)
    assert_close(narrow.mean[..., 1:], wide.mean[..., 1:], 0.02)
    assert_close(np.sqrt(narrow.variance[..., 1:]), np.sqrt(wide.variance[..., 1:]), 0.1)


@tree.model
class Counted(RBF):
    """A kernel that counts the covariances that it computes."""

    entries: ClassVar[int] = 0

    def profile(self, r2):
        type(self).entries += int(np.prod(r2.shape))
        return super().profile(r2)

    def log_profile(self, r2):
        type(self).entries += int(np.prod(r2.shape))
        return super().log_profile(r2)


def test_the_averages_at_training_rows_are_computed_once():
    """Predictions of single rows take no more than three times the covariances of a kernel that is not centred."""
    x, y = X[:, :1], np.sin(2.0 * X[:, :1]) + 0.3 * np.random.default_rng(6).standard_normal((60, 1))

    def averaged(*data, **parts):
        return agp.integrate(agp.GPR.from_data(*data, **parts), settings=8).model

    for build in (agp.GPR.from_data, averaged):
        counts = []
        for kernel in (Counted(1.0, 1.0), Centred(Counted(1.0, 1.0))):
            predictor = build(x, y, kernel=kernel.on(0) + Linear()).predictor()
            predictor.predict(x[:3])
            Counted.entries = 0
            first = [predictor.predict(x[i : i + 1]) for i in range(20)]
            counts.append(Counted.entries)
        assert counts[1] <= 3.2 * counts[0]
        whole = predictor.predict(x[:20])
        assert_close(np.concatenate([one.mean for one in first]), whole.mean, 1e-8)
        assert_close(np.concatenate([one.variance for one in first]), whole.variance, 1e-7)


def test_rows_that_change_in_place_are_read_again():
    kernel, x = as_arrays(Centred(RBF(1.3, 0.8), X[:7]).from_data(X, 1.0)), np.copy(X[:5])
    kernel(x, X)
    x += 0.5
    assert_close(kernel(x, X)[0], as_arrays(Centred(RBF(1.3, 0.8), X[:7]).from_data(X, 1.0))(X[:5] + 0.5, X)[0], 1e-15)
    bar = RNG.normal(size=(5, 60))
    again, fresh = kernel(x, X)[1](bar), as_arrays(Centred(RBF(1.3, 0.8), X[:7]))(x, X)[1](bar)
    for found, expected in zip(again[1:], fresh[1:], strict=True):
        assert_close(found, expected, 1e-12)
    for name, leaf in tree.leaves(fresh[0]).items():
        assert_close(tree.leaves(again[0])[name], leaf, 1e-12)


def test_rows_and_groups_of_them_have_their_own_shapes():
    kernel = as_arrays(Centred(RBF(1.3, 0.8), X[:7]))
    rows, groups = kernel(X[:6], X[6:8])[0], kernel(X[:6, None, :], np.stack([X[6:8]] * 6))[0]
    assert groups.shape == (6, 1, 2)
    assert_close(groups[:, 0, :], rows, 1e-14)
    assert_close(kernel(X[:6].reshape(2, 3, 3))[0][1], kernel(X[3:6])[0], 1e-14)
