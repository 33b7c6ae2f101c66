"""Covariances of values and slopes: automatic differentiation of the kernel, limits of differences, and pullbacks."""

import numpy as np
import pytest
from helpers import NUMPY, TORCH

from agp import tree
from agp.kernels import (
    RBF,
    Constant,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    OnSphere,
    Overlap,
    Periodic,
    Projected,
    RandomEffects,
    RationalQuadratic,
    Seasonal,
    Warped,
    White,
    WithSlopes,
    stack_slopes,
    tag_rows,
)
from agp.testing import check_pullback

KERNELS = {
    "rbf": RBF(1.2, 0.8),
    "rbf-ard": RBF(0.8, [0.7, 1.1, 0.9]),
    "matern32": Matern32(1.2, 0.8),
    "matern32-ard": Matern32(0.8, [0.7, 1.1, 0.9]),
    "matern52": Matern52(1.2, 0.8),
    "matern52-ard": Matern52(0.8, [0.7, 1.1, 0.9]),
    "rq": RationalQuadratic(1.2, 0.8, 0.7),
    "rq-ard": RationalQuadratic(0.8, [0.7, 1.1, 0.9], 2.3),
    "periodic": Periodic(1.2, 0.9, 2.2),
    "periodic-ard": Periodic(0.8, [1.4, 0.8, 1.0], [2.1, 3.3, 2.6]),
    "seasonal": Seasonal(0.8, 1.4, [2.1, 3.3, 2.6]),
    "periodic-centred": Periodic(1.2, 0.9, 2.2, centred=True),
    "seasonal-centred": Seasonal(0.8, [1.4, 0.8, 1.0], [2.1, 3.3, 2.6], centred=True),
    "linear": Linear(0.6, [0.4, -1.1, 2.0]),
    "linear-ard": Linear([0.7, 1.1, 0.9]),
    "constant": RBF(1.2, 0.8) + Constant(0.7),
    "scaled": 0.5 * Matern32(1.2, 0.8),
    "sum": RBF(1.2, 0.8) + Linear(0.6) + 2.0 * Matern52(0.8, 1.1),
    "product": RBF(1.2, 0.8) * Linear(0.6) * Periodic(1.2, 0.9, 2.2),
    "columns": Matern52(0.8, [0.7, 1.1]).on((2, 0)) * Linear(0.6).on(1) + RBF(0.5, 0.8).on(1),
    "projected": Projected(RBF(0.8, [0.7, 1.1]), [[0.3, 1.0], [0.5, -0.4], [1.2, 0.2]]),
}
D = 3


def placed(kernel):
    return WithSlopes(tree.place_leaves(kernel, np.zeros(1)))


def rows(count=9, seed=0, width=D):
    """Random inputs, with each tag about equally often."""
    return np.column_stack(
        [np.random.default_rng(seed).standard_normal((count, width)), np.arange(count) % (width + 1)]
    )


@pytest.mark.parametrize("name", KERNELS)
def test_covariances_are_derivatives_of_the_kernel(name):
    torch = pytest.importorskip("torch")
    kernel, X, Z = KERNELS[name], rows(), rows(7, seed=1)
    K = placed(kernel)(X, Z)[0]
    for n, m in np.ndindex(K.shape):
        x, z = (TORCH.array(one[None, :-1]).requires_grad_() for one in (X[n], Z[m]))
        found = kernel(x, z)[0][0, 0]
        for at, tag in ((x, X[n, -1]), (z, Z[m, -1])):
            if tag and found.requires_grad:
                (slope,) = torch.autograd.grad(found, at, create_graph=True, allow_unused=True)
                found = 0.0 * found if slope is None else slope[0, int(tag) - 1]
        assert abs(K[n, m] - float(found.detach())) < 1e-12


@pytest.mark.parametrize("name", KERNELS)
def test_covariances_are_limits_of_differences(name):
    # a difference over a distance h has an error of O(h^2), or O(h) where rows of a Matern 3/2 kernel coincide
    X = rows()
    X[5:, :-1] = X[:4, :-1]
    kernel, errors = placed(KERNELS[name]), []
    for h in (1e-2, 1e-3):
        ends = [X[:, :-1] + h * sign * np.eye(D + 1)[X[:, -1].astype(int)][:, 1:] for sign in (1.0, -1.0)]
        K = np.block([[kernel.kernel(a, b)[0] for b in ends] for a in ends])
        A = np.concatenate([np.diag(np.where(X[:, -1] == 0.0, 0.5, s * 0.5 / h)) for s in (1.0, -1.0)], axis=1)
        errors.append(np.abs(A @ K @ A.T - kernel(X)[0]).max())
    assert errors[0] < 0.2
    assert errors[1] < (0.2 if "matern32" in name or name == "scaled" else 0.02) * errors[0] + 1e-8


@pytest.mark.parametrize("coincide", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_pullbacks(name, coincide):
    X = rows()
    if coincide:
        X[5:, :-1] = X[:4, :-1]
    # at equal rows, slopes of functions of Matern32 have no second derivative
    check_pullback(placed(KERNELS[name]), X=X, differences=not coincide)


@pytest.mark.parametrize(
    "kernel", [Matern32(1.0, 0.8), Matern52(1.0, 0.8), RBF(1.0, 0.8), RationalQuadratic(1.0, 0.8, 0.7)]
)
def test_many_columns_and_one_other_row(kernel):
    X = rows(14, width=6)
    check_pullback(placed(kernel), X=X)
    found, alone = placed(kernel)(X, X)[0], [placed(kernel)(X, X[i : i + 1])[0] for i in range(len(X))]
    np.testing.assert_allclose(np.concatenate(alone, axis=1), found, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", KERNELS)
def test_symmetric_covariances(name):
    X, kernel = rows(), placed(KERNELS[name])
    K = kernel(X)[0]
    assert (K == K.T).all()
    np.testing.assert_allclose(K, kernel(X, X)[0], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(kernel.diag(X)[0], np.diagonal(K), rtol=1e-12, atol=1e-13)
    assert np.linalg.eigvalsh(K).min() > -1e-9
    groups = np.stack([X, X[::-1] + 0.0])
    found, pull = kernel.grouped_covariance(groups)
    np.testing.assert_allclose(found[0], K, rtol=1e-12, atol=1e-13)
    bar = np.random.default_rng(0).standard_normal(found.shape)
    expected = [kernel(one)[1](b) for one, b in zip(groups, bar, strict=True)]
    kernel_bar, X_bar = pull(bar)
    np.testing.assert_allclose(X_bar, np.stack([one[1] for one in expected]), rtol=1e-9, atol=1e-11)
    for leaf, x in tree.leaves(kernel_bar).items():
        np.testing.assert_allclose(x, sum(tree.leaves(one[0])[leaf] for one in expected), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", KERNELS)
def test_all_libraries_give_the_same(name, backend):
    kernel, X, Z = placed(KERNELS[name]), rows(), rows(7, seed=1)
    X[:3, :-1] = Z[:3, :-1]
    K, pull = kernel(X, Z)
    there = backend.move(kernel)
    found, pull_there = there(*(backend.array(x) for x in (X, Z)))
    np.testing.assert_allclose(backend.numpy(found), K, rtol=1e-9, atol=1e-11)
    bars, bars_there = pull(K), pull_there(found)
    for one, other in zip(bars[1:], bars_there[1:], strict=True):
        np.testing.assert_allclose(backend.numpy(other), one, rtol=1e-9, atol=1e-9)
    for leaf, x in tree.leaves(bars[0]).items():
        np.testing.assert_allclose(backend.numpy(tree.leaves(bars_there[0])[leaf]), x, rtol=1e-9, atol=1e-9)


def test_tags_are_constants_and_may_have_rounding_errors():
    X, kernel = rows(), placed(RBF(1.0, 0.8))
    K, pull = kernel(X)
    assert not pull(K)[1][:, -1].any()
    assert not kernel(X, X)[1](K)[2][:, -1].any()
    X[:, -1] *= 1.0 + 1e-5
    assert (kernel(X)[0] == K).all()


def test_levels_have_values_alone():
    X = np.column_stack([rows(8)[:, :1], np.arange(8) % 3.0, np.arange(8) % 2.0])
    kernel = WithSlopes(RBF().on(0) * Overlap().on(1) + RandomEffects().on(1)).from_data(X, 1.0)
    assert kernel.category_levels(3) == {1: 3, 2: 3}
    check_pullback(kernel, X=X, differences=False, backends=[])
    apart = kernel(X)[0] - kernel.kernel.parts[1](X[:, :-1])[0] * np.outer(X[:, -1] == 0.0, X[:, -1] == 0.0)
    same = WithSlopes(kernel.kernel.parts[0].parts[0])(X)[0] * kernel.kernel.parts[0].parts[1](X[:, :-1])[0]
    np.testing.assert_allclose(apart, same, rtol=1e-12, atol=1e-13)
    X[0, -1] = 2.0
    with pytest.raises(ValueError, match="column 1 contains codes of levels"):
        WithSlopes(RBF().on(0) * Overlap().on(1)).from_data(X, 1.0)


@tree.model
class Mine(Kernel):
    def __call__(self, X, Z=None, /):
        return None

    diag = from_data = check = __call__


@pytest.mark.parametrize(
    "kernel",
    [Matern12(), White(), RBF() + White(), 2.0 * Matern12(), RBF() * Matern12().on(0), OnSphere(RBF()), Mine(),
     Warped(RBF(), [0.0], [1.0])],
    ids=lambda kernel: type(kernel).__name__,
)  # fmt: skip
def test_kernels_without_slopes_are_refused(kernel):
    with pytest.raises(TypeError, match=r"slopes of functions of \w+ do not exist or are not known; use a smooth"):
        WithSlopes(kernel)


@pytest.mark.parametrize(
    "build",
    [lambda k: k + RBF(), lambda k: RBF() * k, lambda k: 2.0 * k, lambda k: k.on(0), lambda k: WithSlopes(k)],
    ids=["sum", "product", "multiple", "columns", "twice"],
)
def test_it_is_no_part_of_other_kernels(build):
    with pytest.raises(TypeError, match="is WithSlopes, which must not be a part of a kernel"):
        build(WithSlopes(RBF()))
    with pytest.raises(TypeError, match=r"must be an instance of agp's Kernel; write RBF\(\)"):
        WithSlopes("rbf")


@pytest.mark.parametrize("tag", [-1.0, 4.0, 17.0, float("nan"), 0.4, 0.6, 1.5, 2.999, 0.001])
def test_wrong_tags_are_refused(tag):
    X = rows()
    X[2, -1] = tag
    said = f"contains {tag:.9g}, but must contain tags, which are the whole numbers 0 for values and from 1 to 3 for"
    for call in (placed(RBF(1.0, 1.0)), placed(RBF(1.0, 1.0)).diag, lambda X: placed(RBF()).from_data(X, 1.0)):
        with pytest.raises(ValueError, match=said):
            call(X)


def test_tags_have_rounding_errors_in_other_units():
    X = rows()
    K = placed(RBF(1.0, 1.0))(X)[0]
    X[:, -1] = np.float32(X[:, -1] / 3.7) * np.float32(3.7)
    np.testing.assert_array_equal(placed(RBF(1.0, 1.0))(X)[0], K)


def test_narrow_inputs_are_refused():
    with pytest.raises(ValueError, match="inputs with slopes have 1 column"):
        WithSlopes(RBF()).from_data(rows()[:, :1], 1.0)
    with pytest.raises(ValueError, match="inputs with slopes have 1 column"):
        placed(RBF(1.0, 1.0)).check(1)
    with pytest.raises(ValueError, match="2 columns"):
        placed(RBF(1.0, [1.0, 2.0, 3.0])).check(3)


def test_rows_with_tags(backend):
    nan = np.nan
    X, y, slopes = np.asarray([[1.0, 5.0], [2.0, 6.0]]), np.asarray([7.0, nan]), np.asarray([[8.0, nan], [9.0, 3.0]])
    found, targets = (backend.numpy(x) for x in stack_slopes(*(backend.array(x) for x in (X, y, slopes))))
    assert found.tolist() == [[1.0, 5.0, 0.0], [1.0, 5.0, 1.0], [2.0, 6.0, 1.0], [2.0, 6.0, 2.0]]
    assert targets.tolist() == [7.0, 8.0, 9.0, 3.0]


def test_rows_that_do_not_fit_are_refused():
    X = NUMPY.array(np.ones((3, 2)))
    for column in (2, -1, True, "x", 0.0):
        with pytest.raises(ValueError, match="must be None for values, or a whole number from 0 to 1"):
            tag_rows(X, column)
    with pytest.raises(ValueError, match=r"slopes has shape \(3,\)"):
        stack_slopes(X, X[:, 0], X[:, 0])
    with pytest.raises(ValueError, match=r"values has shape \(3, 2\)"):
        stack_slopes(X, X, X)


# -- noise of rows ----------------------------------------------------------------------------------------------------


def test_noise_is_stacked_with_the_mask_of_the_targets(backend):
    nan = np.nan
    X, y, slopes = np.asarray([[1.0, 5.0], [2.0, 6.0]]), np.asarray([7.0, nan]), np.asarray([[8.0, nan], [9.0, 3.0]])
    noise = np.asarray([0.1, nan]), np.asarray([[0.2, 0.3], [0.4, 0.5]])
    X, y, slopes, *noise = (backend.array(x) for x in (X, y, slopes, *noise))
    rows, targets, found = stack_slopes(X, y, slopes, noise=tuple(noise))
    for one, other in zip((rows, targets), stack_slopes(X, y, slopes), strict=True):
        assert backend.numpy(one).tolist() == backend.numpy(other).tolist()
    np.testing.assert_allclose(backend.numpy(found), [0.1, 0.2, 0.4, 0.5])
    alike = stack_slopes(X, y, slopes, noise=(0.25, noise[1]))[2]
    np.testing.assert_allclose(backend.numpy(alike), [0.25, 0.2, 0.4, 0.5])


@pytest.mark.parametrize(
    ("noise", "error", "message"),
    [
        ((-1.0, 0.0), ValueError, "noise has the variance -1 of a known entry, but it must be zero or more"),
        ((0.0, np.asarray([[0.1], [np.nan]])), ValueError, "noise has the variance nan of a known entry"),
        ((0.0, np.inf), ValueError, "noise has the variance inf of a known entry"),
        ((np.ones(3), 0.0), ValueError, r"noise of values has shape \(3,\), but X has shape \(2, 1\); pass \(2,\)"),
        ((0.0, np.ones(2)), ValueError, r"noise of slopes has shape \(2,\), but X has shape \(2, 1\); pass \(2, 1\)"),
        (0.1, TypeError, "noise must be a pair: the noise variances of the values, and those of the slopes"),
        (np.ones(2), TypeError, "noise must be a pair"),
    ],
)
def test_wrong_noise_of_rows_with_tags_is_refused(noise, error, message):
    X = np.asarray([[0.0], [1.0]])
    with pytest.raises(error, match=message):
        stack_slopes(X, np.zeros(2), np.ones((2, 1)), noise=noise)
