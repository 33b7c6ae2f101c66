"""The plug-in of CuPy on a stand-in (`standins.strict_cupy`): devices, factorisations, and what a step asks for."""

import copy
import pickle

import numpy as np
import pytest
import scipy.special
from helpers import CUPY, NUMPY, assert_close
from standins import strict_cupy
from standins.counts import Asking, counted

import agp
from agp import DeepGP, fit, fit_lbfgs, train, tree, value_and_gradient
from agp.backend import Backend, as_widest_float, asarray_like, get_backend, like
from agp.methods import METHODS, build, updates_of
from agp.models import SVGP
from agp.posteriors import Relaxed, Whitened
from agp.training import initial_state
from agp.training._batches import Batches
from agp.training._run import Run
from agp.updates import Adam, InverseUpdate

CURRENT, Device, ndarray = strict_cupy.CURRENT, strict_cupy.Device, strict_cupy.ndarray


@pytest.fixture
def B(cupy_stand_in):
    """The plug-in; the device that is current at first is the first."""
    yield get_backend("cupy")
    assert CURRENT.devices == [0]


@pytest.fixture
def cupy(B):
    """The stand-in for the library itself."""
    return strict_cupy.modules()["cupy"]


# -- the stand-in -----------------------------------------------------------------------------------------------------


def test_nothing_has_a_name_that_the_library_lacks(cupy):
    listed = strict_cupy.NAMES["cupy.ndarray"].keys() | vars(object).keys() | {"__doc__", "_device", "_host"}
    assert vars(ndarray).keys() - listed - {"__reduce__", "__format__"} == set()
    x = cupy.zeros(3)
    for name in ("to_device", "__array_namespace__", "tensordot", "numpy"):
        assert not hasattr(x, name)
        assert not hasattr(cupy, name) or name in strict_cupy.NAMES["cupy"]
    for name in ("vecdot", "concat", "permute_dims"):
        assert hasattr(cupy, name) == (name in strict_cupy.NAMES["cupy"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda cupy, x: cupy.sum(x, correction=0), "unexpected keyword argument 'correction'"),
        (lambda cupy, x: x.reshape((3, 1), shape=2), "unexpected keyword argument"),
        (lambda cupy, x: cupy.zeros(3, device=x.device), "unexpected keyword argument 'device'"),
        (lambda cupy, x: x + np.ones(3), "Unsupported type <class 'numpy.ndarray'>"),
        (lambda cupy, x: np.ones(3) + x, "Unsupported type <class 'numpy.ndarray'>"),
        (lambda cupy, x: cupy.where(x > 0.0, x, np.ones(3)), "Unsupported type <class 'numpy.ndarray'>"),
        (lambda cupy, x: cupy.stack([x, np.ones(3)]), "Unsupported type <class 'numpy.ndarray'>"),
        (lambda cupy, x: cupy.sum([1.0, 2.0]), "Unsupported type"),
        (lambda cupy, x: np.asarray(x), "Implicit conversion to a NumPy array is not allowed"),
        (lambda cupy, x: [1.0, 2.0][x[0]], "list indices must be integers"),
        (lambda cupy, x: cupy.sqrt(x > 0.0) + cupy.bitwise_and(x, x), "Wrong type .* of arguments for 'bitwise_and'"),
        (lambda cupy, x: strict_cupy.modules()["cupyx.scipy.special"].polygamma(1, x), "Unsupported type <class 'int'"),
    ],
)
def test_what_the_library_refuses_is_refused(call, message, cupy):
    with pytest.raises(TypeError, match=message):
        call(cupy, cupy.ones(3))


def test_results_without_axes_are_arrays(cupy):
    x = cupy.arange(6.0).reshape(2, 3)
    for found in (cupy.sum(x), x[1, 2], x[0].max(), cupy.linalg.norm(x), cupy.sqrt(2.0), copy.deepcopy(x).mean()):
        assert type(found) is ndarray
        assert found.shape == ()
    x[1, 2][...] = 7.0  # an entry is a view
    assert pickle.loads(pickle.dumps(x)).tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 7.0]]


def test_kernels_read_arrays_of_the_current_device(cupy):
    with Device(1):
        x = cupy.ones((2, 2))
    assert x.mT.device == Device(1)  # a view needs no kernel
    for compute in (lambda: x + 1.0, lambda: cupy.sum(x), lambda: cupy.linalg.cholesky(x), lambda: x.copy()):
        with pytest.raises(ValueError, match="array device = 1 while current = 0"):
            compute()


@pytest.mark.parametrize(
    ("ask", "kind", "number"),
    [
        (lambda cupy, x: float(x[0, 0]), "reads", 1),
        (lambda cupy, x: bool(cupy.all(x > 0.0)), "reads", 1),
        (lambda cupy, x: x.get(), "reads", 1),
        (lambda cupy, x: cupy.asnumpy(x), "reads", 1),
        (lambda cupy, x: x.tolist(), "reads", 1),
        (lambda cupy, x: f"{cupy.sum(x):.2f}", "reads", 1),
        (lambda cupy, x: x[x > 0.0], "reads", 1),
        (lambda cupy, x: cupy.nonzero(x), "reads", 1),
        (lambda cupy, x: cupy.linalg.cholesky(x), "reads", 0),
        (lambda cupy, x: cupy.sum(x * 2.0 + cupy.exp(x)), "reads", 0),
        (lambda cupy, x: cupy.asarray(1.0), "uploads", 1),
        (lambda cupy, x: cupy.array(np.ones(3)), "uploads", 1),
        (lambda cupy, x: x[[0, 1]], "uploads", 1),
        (lambda cupy, x: cupy.minimum(cupy.where(x > 0.0, x, 0.0), 1.0) ** 2, "uploads", 0),
        (lambda cupy, x: cupy.full((2, 2), 3.0), "uploads", 0),
        (lambda cupy, x: x.T[1:].reshape(-1), "launches", 0),
        (lambda cupy, x: x * x + x, "launches", 2),
        (lambda cupy, x: cupy.tril(x), "launches", 2),
        (lambda cupy, x: x.__setitem__(0, 1.0), "launches", 1),
    ],
)
def test_what_is_asked_for_is_counted(ask, kind, number, cupy):
    x = 2.0 * cupy.eye(2)
    with counted() as counts:
        ask(cupy, x)
    assert getattr(counts, kind).total() == number


def test_a_factorisation_waits_where_errors_are_asked_for(cupy):
    x, errstate = cupy.eye(2), strict_cupy.modules()["cupyx"].errstate
    with counted() as counts, errstate(linalg="raise"):
        cupy.linalg.cholesky(x)
        with pytest.raises(np.linalg.LinAlgError):
            cupy.linalg.cholesky(-x)
    assert counts.reads.total() == 2
    assert cupy.isfinite(cupy.linalg.cholesky(-x)).all()  # rubbish, and no word of it


# -- devices ----------------------------------------------------------------------------------------------------------


def test_new_arrays_go_to_the_device_of_the_data(B):
    x = B.from_numpy(np.ones((3, 2)), device="cuda:1")
    assert (B.device_name(x), CURRENT.devices) == ("cuda:1", [0])
    xp = B.xp
    made = [
        xp.zeros((2,), **like(x)), xp.ones((2,), **like(x)), xp.eye(3, **like(x)), xp.full((2,), 7.0, **like(x)),
        xp.empty((2,), **like(x)), xp.linspace(0.0, 1.0, 3, **like(x)), xp.arange(3, **like(x)),
        xp.asarray([1.0, 2.0], **like(x)), xp.zeros_like(x), xp.ones_like(x), xp.full_like(x, 3.0), xp.empty_like(x),
        asarray_like([1.0, 2.0], x), asarray_like(np.array([1, 0]), x),
    ]  # fmt: skip
    assert [B.device_name(each) for each in made] == ["cuda:1"] * len(made)
    assert B.device_name(xp.zeros((2,))) == "cuda:0"
    with Device(1):
        assert B.device_name(B.from_numpy(np.ones(2))) == "cuda:1"


def test_devices_have_names_and_others_are_refused(B):
    assert B.devices() == ["cuda:0", "cuda:1"]
    for wrong in ("cpu", "cuda:x", "gpu:0"):
        with pytest.raises(ValueError, match=f"CuPy has no device '{wrong}'; available devices: cuda:0, cuda:1"):
            B.from_numpy(np.ones(2), device=wrong)
    x = B.from_numpy(np.ones(2), device="cuda:1")
    with counted() as counts:
        B.synchronise(x)
    assert counts.reads.total() == 1
    assert B.reading_waits(x)


def test_blocks_are_those_of_the_device_and_the_dtype(B):
    double, single = np.ones((2, 2)), np.ones((2, 2), dtype="float32")
    blocks = [B.device_block(B.from_numpy(x, device=f"cuda:{i}")) for i in range(2) for x in (double, single)]
    assert blocks == [1024, 1024, 256, 1024]


# -- mathematics beyond the standard ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("size", [3, 40])
def test_a_failed_factorisation_becomes_nan_and_others_of_a_batch_do_not(size, dtype, B):
    last = np.ones(size)
    last[-1] = -1e-3
    A = np.stack([np.eye(size), np.diag(last), 4.0 * np.eye(size)])
    L = CUPY.numpy(B.cholesky(CUPY.array(A, dtype)), dtype)
    np.testing.assert_array_equal(np.isfinite(L).all(axis=(1, 2)), [True, False, True])
    np.testing.assert_array_equal(L[2], 2.0 * np.eye(size))
    assert not np.isfinite(CUPY.numpy(B.cholesky(CUPY.array(A[1], dtype)), dtype).diagonal()).any()


@pytest.mark.parametrize("shape", [(5,), (2, 5), (2, 3, 5), (40,), (2, 40), (0,), (0, 5)])
def test_factors_are_lower_and_what_was_given_stays(shape, B):
    *batch, M = shape
    root = np.random.default_rng(0).normal(size=(*batch, M, M + 3))
    A = root @ root.swapaxes(-1, -2)
    given = CUPY.array(A.swapaxes(-1, -2)).mT  # in another layout
    L = CUPY.numpy(B.cholesky(given))
    np.testing.assert_allclose(L, np.linalg.cholesky(A), rtol=1e-11, atol=1e-11)
    np.testing.assert_array_equal(CUPY.numpy(given), A)


def test_a_factorisation_reads_nothing(B):
    for shape in ((3, 3), (4, 3, 3), (2, 40, 40)):
        A = CUPY.array(np.broadcast_to(np.eye(shape[-1]), shape))
        with counted() as counts:
            B.cholesky(A)
            B.cholesky(-A)
        assert not counts.reads
        assert not counts.uploads


@pytest.mark.parametrize("size", [3, 51, 200])
def test_stacks_are_factorised_and_solved_by_one_call(size, B):
    few, many = (CUPY.array(np.broadcast_to(2.0 * np.eye(size), (count, size, size))) for count in (2, 9))
    for work in (B.cholesky, lambda A: B.solve_triangular(A, A), lambda A: B.solve_triangular(A, A, transpose=True)):
        with counted() as one:
            work(few)
        with counted() as other:
            work(many)
        assert one.launches.total() == other.launches.total() > 0


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(
    "shapes", [((3, 5), (3, 5)), ((5,), (3, 5)), ((3, 5), (5,)), ((2, 1, 4), (3, 4)), ((0, 4), (4,))]
)
def test_stacks_of_triangular_systems(shapes, transpose, B):
    rng = np.random.default_rng(0)
    (*of_L, M), (*of_C, _) = shapes
    L, C = np.tril(rng.normal(size=(*of_L, M, M))) + 4.0 * np.eye(M), rng.normal(size=(*of_C, M, 2))
    found = CUPY.numpy(B.solve_triangular(CUPY.array(L), CUPY.array(C), transpose=transpose))
    np.testing.assert_allclose(
        found, np.linalg.solve(L.swapaxes(-1, -2) if transpose else L, C), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_polygamma_takes_a_number(n, B):
    x = np.concatenate([np.geomspace(1e-3, 1e3, 25), [1.0, 2.5]])
    for dtype, tolerance in (("float64", 1e-12), ("float32", 1e-4)):
        found = CUPY.numpy(B.special("polygamma", n, CUPY.array(x, dtype)), dtype)
        np.testing.assert_allclose(found, scipy.special.polygamma(n, x.astype(dtype)), rtol=tolerance, atol=tolerance)


def test_limits_are_arguments_of_one_kernel(B):
    numbers = np.array([-np.inf, -3.0, 0.5, np.nan, 3.0, np.inf])
    x = CUPY.array(numbers)
    with counted() as counts:
        for low, high in ((-1.0, 1.0), (None, 1.0), (-1.0, None)):
            np.testing.assert_array_equal(B.xp.clip(x, low, high)._host, np.clip(numbers, low, high))
    assert not counts.reads
    assert not counts.uploads
    assert counts.launches.total() == 3
    assert B.xp.clip(CUPY.array(numbers, "float32"), min=-1.0, max=1.0).dtype == np.float32


@pytest.mark.parametrize("transpose", [False, True])
def test_triangular_systems_are_solved_without_a_copy_of_the_factor(transpose, B):
    rng = np.random.default_rng(0)
    L, C = np.tril(rng.normal(size=(5, 5))) + 5.0 * np.eye(5), rng.normal(size=(5, 2))
    there = CUPY.array(L), CUPY.array(C)
    with counted() as counts:
        found = B.solve_triangular(*there, transpose=transpose)
    np.testing.assert_allclose(CUPY.numpy(found), np.linalg.solve(L.T if transpose else L, C), rtol=1e-12)
    assert counts.launches.total() == 2  # a copy of C, and the solve


def test_eigenvalues_of_large_matrices_come_one_matrix_after_another(B, monkeypatch):
    plugin, asked = strict_cupy.modules()["agp_backends._cupy"], []
    usual = plugin.compat.linalg.eigh
    monkeypatch.setattr(plugin.compat.linalg, "eigh", lambda A: (asked.append(A.shape), usual(A))[1])
    for size, expected in ((3, [(2, 2, 3, 3)]), (40, [(40, 40)] * 4)):
        A = np.random.default_rng(0).normal(size=(2, 2, size, size))
        found = B.xp.linalg.eigh(CUPY.array(A + A.swapaxes(-1, -2)))
        expected_values = np.linalg.eigvalsh(A + A.swapaxes(-1, -2))
        np.testing.assert_allclose(CUPY.numpy(found.eigenvalues), expected_values, atol=1e-12)
        assert found.eigenvectors.shape == A.shape
        assert asked == expected
        asked.clear()


def test_diagonals_are_added_to_without_touching_what_was_given(B):
    A = np.random.default_rng(0).normal(size=(2, 3, 4, 4))
    given = CUPY.array(A).swapaxes(0, 1)
    for d in (np.arange(4.0), np.arange(24.0).reshape(3, 2, 4)):
        found = B.add_diagonal(given, CUPY.array(d))
        np.testing.assert_array_equal(CUPY.numpy(found), A.swapaxes(0, 1) + d[..., None] * np.eye(4))
    np.testing.assert_array_equal(CUPY.numpy(B.add_diagonal(given, 0.5)), A.swapaxes(0, 1) + 0.5 * np.eye(4))
    np.testing.assert_array_equal(CUPY.numpy(given), A.swapaxes(0, 1))


def _decayed(B, x, y, size, share):
    xp = B.xp
    kept = xp.where(x > 0.0, xp.expm1(x), xp.zeros_like(x)) - xp.clip(y, -1.0, 1.0)
    return B.lerp(kept, y, share), B.add_product(x, size, xp.log1p(y * y) / xp.ones_like(x))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_function_of_entries_is_one_kernel(dtype, B):
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape).astype(dtype) for shape in ((4, 3), (4, 1), ())]
    arrays[0][0, 0] = np.nan
    there = [CUPY.array(x, dtype) for x in arrays]
    expected = _decayed(get_backend("numpy"), *arrays, 0.25)
    with counted() as counts:
        found = B.fused(_decayed, *there, 0.25)
    assert counts.launches.total() == 1
    assert not counts.uploads
    for x, y in zip(found, expected, strict=True):
        assert x.shape == (4, 3)
        assert x.dtype == dtype
        np.testing.assert_allclose(x._host, y, rtol=1e-12 if dtype == "float64" else 1e-5)


def test_a_share_of_all_or_nothing_is_exact(B):
    old, new = CUPY.array([1e20, 3.0]), CUPY.array([0.1, 7.0])
    for share in (1.0, CUPY.array(1.0)):
        np.testing.assert_array_equal(CUPY.numpy(B.lerp(old, new, share)), CUPY.numpy(new))
    np.testing.assert_array_equal(CUPY.numpy(B.lerp(old, new, 0.0)), CUPY.numpy(old))


def _product(_, x, y, factor):
    return (factor * x * y,)


def test_each_of_several_arrays_takes_one_kernel_and_no_copies(B):
    pairs = [tuple(CUPY.array(x) for x in np.random.default_rng(0).normal(size=(2, *shape))) for shape in ((), (3, 2))]
    with counted() as counts:
        found = B.elementwise_each(_product, pairs, numbers=(0.5,), lower=[False, True])
    assert counts.launches.total() == 2
    for (z,), (x, y) in zip(found, pairs, strict=True):
        np.testing.assert_array_equal(CUPY.numpy(z), CUPY.numpy(0.5 * x * y))


def _adding_in_place(_, x, number):
    x += number
    return (x,)


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (lambda B, x, number: ((1.0 - number) * x,), "'subtract' of numbers alone is in half precision"),
        (lambda B, x, number: (B.xp.where(x > 0.0, number, B.xp.zeros_like(x)),), "'where' of numbers alone"),
        (lambda B, x, number: (number,), "a kernel gives arrays"),
        (lambda B, x, number: (0.5**x,), "unsupported operand"),
        (lambda B, x, number: (abs(x),), "bad operand"),
        (lambda B, x, number: (x if x > 0.0 else number * x,), "cast to bool"),
        (lambda B, x, number: (B.xp.clip(x, max=number),), "Unsupported type"),
        (lambda B, x, number: (B.xp.sum(x),), "Unsupported type"),
        (lambda B, x, number: (x @ x,), "unsupported operand"),
        (lambda B, x, number: (x * x.shape[0],), "no attribute 'shape'"),
        (lambda B, x, number: (x[..., None],), "not subscriptable"),
        (_adding_in_place, "in place inside of a kernel"),
    ],
)
def test_a_kernel_is_made_of_nothing_but_what_the_library_follows(f, message, B):
    f.__name__ = "f"
    with pytest.raises((TypeError, AttributeError, NotImplementedError), match=message):
        B.fused(f, CUPY.array([1.0, 2.0]), 0.5)


def test_a_kernel_depends_on_its_arguments_alone(B):
    factor = 2.0

    def scaled(_, x):
        return (factor * x,)

    with pytest.raises(AssertionError):
        B.fused(scaled, CUPY.array([1.0]))


# -- entrances, where the data lie on another device than the current one ---------------------------------------------


def _on_second_device(B, build):
    """A model and its data, on another device than the current one."""
    X = np.random.default_rng(0).normal(size=(12, 2))
    y = np.sin(X[:, :1])
    host = build(X, y)
    leaves = {name: B.from_numpy(x, device="cuda:1") for name, x in tree.leaves(host).items()}
    return tree.with_leaves(host, leaves), B.from_numpy(X, device="cuda:1"), B.from_numpy(y, device="cuda:1")


def _whitened(X, y):
    return SVGP.from_data(X, y, posterior=Whitened, Z=X[:4])


def _relaxed(X, y):
    return SVGP.from_data(X, y, posterior=Relaxed, Z=X[:4])


def _with_pullback(value, pullback, bar=None):
    return pullback(value if bar is None else bar)


def _predicted_by_estimator(X, y):
    estimators = pytest.importorskip("agp.estimators", exc_type=ImportError)
    return estimators.GPRegressor(method="wsvgp", max_steps=20, num_inducing=3).fit(X, y).predict(X)


ENTRANCES = {
    "bound and pullback": lambda m, X, y: _with_pullback(*m.bound(X, y), 1.0),
    "value and gradient": lambda m, X, y: value_and_gradient(m, X, y),
    "training": lambda m, X, y: train(m, X, y, steps=3, batch_size=6),
    "L-BFGS": lambda m, X, y: fit_lbfgs(m, X, y, max_iterations=3),
    "fit": lambda m, X, y: fit(m, X, y, max_steps=30, batch_size=6),
    "start of a training": lambda m, X, y: initial_state(m),
    "prediction": lambda m, X, y: m.predict(X),
    "prediction of observations": lambda m, X, y: m.predict(X, observed=True),
    "mean": lambda m, X, y: m.predict_mean(X),
    "covariance": lambda m, X, y: m.predict_covariance(X),
    "sample": lambda m, X, y: m.sample(X, 2),
    "functions": lambda m, X, y: m.sample_functions(2),
    "values of functions": lambda m, X, y: _with_pullback(*m.sample_functions(2).with_pullback(X)),
    "density": lambda m, X, y: m.log_density(X, y),
    "from data": lambda m, X, y: type(m).from_data(X, y, num_inducing=3),
    "kernel": lambda m, X, y: _with_pullback(*m.process.kernel(X, X)),
    "diagonal": lambda m, X, y: _with_pullback(*m.process.kernel.diag(X)),
    "mean function": lambda m, X, y: _with_pullback(*m.process.mean_function(X)),
    "estimator": lambda m, X, y: _predicted_by_estimator(X, y),
}


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
@pytest.mark.parametrize("use", ENTRANCES)
def test_entrances_compute_on_the_device_of_the_data(use, B):
    ENTRANCES[use](*_on_second_device(B, _whitened))


@pytest.mark.slow
def test_updates_of_inverse_factors_compute_on_the_device_of_the_data(B):
    model, X, y = _on_second_device(B, _relaxed)
    train(model, X, y, steps=3, updates=[Adam(1e-2), InverseUpdate()])


def test_noise_is_drawn_on_the_device_of_the_data(B):
    for dtype in ("float64", "float32"):
        x = B.from_numpy(np.ones((2, 2)), dtype=dtype, device="cuda:1")
        first, again, other = (B.generator(x, 3, 5, step) for step in (7, 7, 8))
        normal, signs = first.standard_normal((50,)), first.integers(0, 2, (50,))
        assert [B.device_name(each) for each in (normal, signs)] == ["cuda:1", "cuda:1"]
        assert normal.dtype == dtype
        assert set(signs.tolist()) == {0, 1}
        np.testing.assert_array_equal(B.to_numpy(again.standard_normal((50,))), B.to_numpy(normal))
        assert np.all(B.to_numpy(other.standard_normal((50,))) != B.to_numpy(normal))


@pytest.mark.slow
def test_training_with_noise_of_the_device(B):
    model, X, y = _on_second_device(B, lambda X, y: DeepGP.from_data(X, y, num_inducing=3, posterior="whitened"))
    first, again = (train(model, X, y, steps=2, updates=[Adam(1e-2)], draws="device").trace for _ in range(2))
    assert first == again


@pytest.mark.slow
def test_lazy_rows_leave_the_choice_to_the_model(B):
    rows = pytest.importorskip("dask.array", reason="dask is not installed: not executed")
    model, *data = _on_second_device(B, _whitened)
    X, y = (rows.from_array(B.to_numpy(x), chunks=(6, -1)) for x in data)
    train(model, X, y, steps=2, batch_size=6)
    model.bound(X, y)[1](1.0)


@pytest.mark.parametrize("current", [0, 1])
def test_what_is_raised_inside_leaves_the_device_as_it_was(current, B):
    model, X, y = _on_second_device(B, _whitened)
    pullback = model.bound(X, y)[1]
    with Device(current):
        with pytest.raises(ValueError, match="X has 1 column"):
            model.predict(X[:, :1])
        with pytest.raises(ValueError, match="X has 1 column"):
            train(model, X[:, :1], y, steps=1)
        with pytest.raises(TypeError):
            pullback("1.0")
        assert [0, current] == CURRENT.devices


def test_a_bound_runs_with_every_array_where_the_data_are(B):
    host = _whitened(X := np.random.default_rng(0).normal(size=(12, 2)), y := np.sin(X[:, :1]))
    model, X_there, y_there = _on_second_device(B, _whitened)
    value, pullback = model.bound(X_there, y_there)
    bar, _ = pullback(1.0)
    assert_close(B.to_numpy(value), host.bound(X, y)[0], 1e-12)
    assert {B.device_name(x) for x in tree.leaves(bar).values()} == {"cuda:1"}
    assert B.device_name(as_widest_float(model.process.inducing.Z)) == "cuda:1"


# -- what a step asks for ---------------------------------------------------------------------------------------------

READS = dict.fromkeys(METHODS, 1) | {"cggp": 4, "cagp-cg": 5, "deep-rsvgp": 5, "deep-asvgp": 7}
"""Reads of a step of the recipe: what was taken for granted; loops of solvers, and of deep inverses, ask more often."""
BEFORE = {"asvgp": 13, "deep-asvgp": 5, "solve-relaxed": 30}
"""Steps before, where the first ones need more than one step of an inverse; none is the first of an epoch."""
LAUNCHES = {
    "sgpr": 259, "wsvgp": 293, "rsvgp": 504, "tsvgp": 621, "solve": 392, "cagp-opt": 274, "deep-wsvgp": 519,
    "gpr": 105, "msvgp": 320, "lsvgp": 283, "qsvgp": 360, "tvgp": 239, "odvgp": 312, "solve-collapsed": 298,
}  # fmt: skip
"""Kernels of a step of the recipe, of which cuBLAS and cuSOLVER have theirs."""


def _begun(method, where, place="device", extra=()):
    """A training by the recipe, of arrays that `where` puts somewhere."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    y = np.sin(X[:, :1]) + 0.1 * rng.normal(size=(40, 1))
    sizes = {"num_inducing": 10, "num_actions": 8, "seed": 0}
    model = build(method, X, y, likelihood=agp.Gaussian(), kernel="rbf", **sizes)
    updates = [*updates_of(method, model, 1000), *extra]
    batch = 10 if METHODS[method].takes_parts else 40
    model, X, y = where.move(model), where.array(X), where.array(y)
    return Run(model, updates, Batches(X, y, batch, 0, model._draws, place), None, {})


def _later_step(method, place="device", extra=()):
    """What a step of the recipe asks for, after the first ones."""
    run = _begun(method, CUPY, place, extra)
    for _ in range(BEFORE.get(method, 2)):
        run._advance()
    with counted() as counts:
        run._advance()
    return counts


@pytest.mark.slow
@pytest.mark.sample(14)
@pytest.mark.parametrize("method", METHODS)
def test_training_of_every_method_is_that_of_numpy(method, B):
    there, here = (_begun(method, where, "host") for where in (CUPY, NUMPY))
    for run in (there, here):
        for _ in range(3):
            run._advance()
        run._look()
    assert_close(there.looks[0]["bound"], here.looks[0]["bound"], 1e-7, method)
    for name, x in tree.leaves(here.model).items():
        assert_close(CUPY.numpy(tree.leaves(there.model)[name], x.dtype.name), x, 1e-6, name)


@pytest.mark.slow
@pytest.mark.sample(8)
@pytest.mark.parametrize("method", READS)
def test_a_step_reads_what_it_must_and_uploads_nothing(method, B):
    counts = _later_step(method)
    assert not counts.uploads
    assert counts.reads.total() == READS[method], counts.reads
    assert not [line for line in counts.reads if line.startswith("agp_backends/")]


@pytest.mark.long
def test_numbers_that_are_drawn_on_the_host_are_sent_once_in_ten_steps(B):
    run = _begun("deep-wsvgp", CUPY, "host")
    with counted() as counts:
        for _ in range(20):
            run._advance()
    per_epoch, joined = sorted(counts.uploads.values())[::-1]
    assert {line.partition(":")[0] for line in counts.uploads} == {"agp/training/_batches.py"}
    assert (per_epoch, joined) == (5, 2)  # the order of the rows of five epochs; the noise of twice ten steps


@pytest.mark.slow
@pytest.mark.parametrize("method", LAUNCHES)
def test_a_step_launches_no_more(method, B):
    counts = _later_step(method)
    assert counts.launches.total() <= LAUNCHES[method], counts.launches


def _launches_of(counts, *files):
    return sum(number for line, number in counts.launches.items() if line.startswith(files))


def test_adam_and_constraints_launch_one_kernel_for_each_leaf(B):
    counts = _later_step("wsvgp")
    # five leaves; the count, what corrects the moments, and the sizes of steps of two groups
    assert _launches_of(counts, "agp/updates/_adam.py") == 5 + 4
    # three positive leaves, to the raw ones and back, and the pullback; the triangle of q(u), and units
    assert _launches_of(counts, "agp/tree/_constraints.py", "agp/tree/_raw.py") == 3 * 3 + 4 + 18


LIKELIHOODS = [agp.Gaussian(), agp.StudentT(), agp.Bernoulli(), agp.Bernoulli(squash=1e-3, link="logit")]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["rbf", "matern32", "matern52"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_kernels_of_entries_give_the_numbers_of_their_operations(likelihood, kernel, B, monkeypatch):
    def trained():
        rng = np.random.default_rng(0)
        X, y = rng.normal(size=(20, 5)), (rng.normal(size=(20, 1)) > 0.0).astype(float)
        model = build("wsvgp", X, y, likelihood=likelihood, kernel=kernel, num_inducing=5, seed=0)
        updates = updates_of("wsvgp", model, 4)
        there = train(CUPY.move(model), CUPY.array(X), CUPY.array(y), steps=4, batch_size=10, updates=updates).model
        return {name: CUPY.numpy(x) for name, x in tree.leaves(there).items()}

    found = trained()
    monkeypatch.setattr(type(B), "fused", Backend.fused)
    for name in ("lerp", "add_product"):
        monkeypatch.setattr(type(B), name, getattr(Backend, name))
    for name, x in trained().items():
        assert_close(found[name], x, 1e-12, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ask", "kind"),
    [
        (lambda X: float(X[0, 0]), "reads"),
        (lambda X: X[X > 0.0], "reads"),
        (lambda X: agp.to_numpy(X), "reads"),
        (lambda X: asarray_like(1.0, X), "uploads"),
        (lambda X: get_backend("cupy").xp.asarray(1.0), "uploads"),
        (lambda X: X + 1.0, "launches"),
    ],
)
def test_a_read_an_upload_or_a_launch_more_is_seen(ask, kind, B):
    usual, found = _later_step("wsvgp"), _later_step("wsvgp", extra=[Asking(ask)])
    assert getattr(found, kind).total() == getattr(usual, kind).total() + 1
