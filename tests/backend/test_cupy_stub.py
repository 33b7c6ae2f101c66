"""The CuPy plug-in over a stand-in for CuPy: NumPy arrays that remember which device was current."""

import importlib
import sys
import threading
from types import ModuleType, SimpleNamespace

import array_api_compat
import array_api_compat.numpy as standard
import numpy as np
import pytest
import scipy.linalg
from helpers import assert_close

from agp import DeepGP, fit, fit_lbfgs, train, tree, value_and_gradient
from agp.backend import like, placed, wide
from agp.models import SVGP
from agp.posteriors import Relaxed, Whitened
from agp.training import begun
from agp.updates import Adam, InverseUpdate


class Current(threading.local):
    """The devices that a thread has made current, the last of which is."""

    def __init__(self):
        self.devices = [0]


CURRENT = Current()
CALLS = []
APART = []
"""Where arrays lay and what device was current instead, when something was computed from them."""


class Device:
    def __init__(self, number=None):
        self.id = CURRENT.devices[-1] if number is None else number

    def __enter__(self):
        CURRENT.devices.append(self.id)

    def __exit__(self, *_):
        CURRENT.devices.pop()

    @property
    def compute_capability(self):
        return ("90", "120")[self.id]

    @property
    def mem_info(self):
        CALLS.append(("mem_info", self.id))
        return 3 * 2**20, (16 + self.id) * 2**30  # free, and all

    def synchronize(self):
        CALLS.append(("synchronize", self.id))


class Stub(np.ndarray):
    """An array on the device that was current when its memory was taken; a view stays where its base is."""

    def __array_finalize__(self, source):
        base = self.base if isinstance(self.base, Stub) else None
        self._device = base._device if base is not None else CURRENT.devices[-1]
        if base is None and isinstance(source, Stub) and source._device != CURRENT.devices[-1]:
            APART.append((source._device, CURRENT.devices[-1]))

    def __array_wrap__(self, array, context=None, return_scalar=False):
        return super().__array_wrap__(array, context, False)  # an array with one number stays an array

    def __getitem__(self, key):
        found = super().__getitem__(key)
        return found if isinstance(found, Stub) else np.asarray(found).view(Stub)

    @property
    def device(self):  # type: ignore[override]
        return Device(self._device)


def _stub(create):
    return lambda *args, **keywords: np.array(create(*args, **keywords)).view(Stub)


def _giving_stubs(f):
    """A function of the namespace, whose numbers and arrays are arrays like the others."""

    def called(*args, **keywords):
        found = f(*args, **keywords)
        return np.asarray(found).view(Stub) if type(found) is np.ndarray or isinstance(found, np.generic) else found

    return called


def _solve_triangular(a, b, trans=0, lower=False, unit_diagonal=False, overwrite_b=False, check_finite=False):
    CALLS.append(("solve_triangular", a.flags.f_contiguous))
    solved = scipy.linalg.solve_triangular(a, b, trans=trans, lower=lower, check_finite=check_finite)
    return solved.view(Stub)


class Errstate:
    """Failures of factorisations are told inside, and are silent outside."""

    told = False

    def __init__(self, linalg):
        assert linalg == "raise"

    def __enter__(self):
        Errstate.told = True

    def __exit__(self, *_):
        Errstate.told = False


def _cholesky(a):
    try:
        return np.linalg.cholesky(np.asarray(a)).view(Stub)
    except np.linalg.LinAlgError:
        if Errstate.told:
            raise
        return np.zeros(a.shape).view(Stub)


class Generator:
    """CuPy's generator over NumPy's; its state lies on one device, and so must what it draws."""

    def __init__(self, bits):
        self._source, self._device = bits, CURRENT.devices[-1]

    def standard_normal(self, size=None, dtype=np.float64, out=None):
        assert (out, CURRENT.devices[-1]) == (None, self._device)
        return self._source.standard_normal(size, dtype).view(Stub)

    def integers(self, low, high=None, size=None, dtype=np.int64, endpoint=False):
        assert (endpoint, CURRENT.devices[-1]) == (False, self._device)
        return self._source.integers(low, high, size, dtype).view(Stub)


def _module(name, **members):
    module = ModuleType(name)
    module.__dict__.update(members)
    return module


NEW = ("arange", "asarray", "empty", "eye", "full", "linspace", "ones", "zeros")


@pytest.fixture
def B(monkeypatch):
    """A fresh CuPy plug-in over the stand-in."""
    cuda = SimpleNamespace(Device=Device, is_available=lambda: True, runtime=SimpleNamespace(getDeviceCount=lambda: 2))
    cupy = _module(
        "cupy", ndarray=Stub, cuda=cuda, array=_stub(np.array), asnumpy=lambda x: np.array(np.asarray(x)),
        clip=_giving_stubs(np.clip),
        stack=lambda xs: np.stack(xs).view(Stub), linalg=SimpleNamespace(cholesky=_cholesky),
        random=SimpleNamespace(Generator=Generator, Philox4x3210=np.random.default_rng),
    )  # fmt: skip

    def without_device(create):  # as the wrapper does, which takes the device and ignores it
        return lambda *args, device=None, **keywords: _stub(create)(*args, **keywords)

    names = (*NEW, *(f"{name}_like" for name in ("empty", "full", "ones", "zeros")))
    created = {name: without_device(getattr(np, name)) for name in names}
    functions = {
        name: _giving_stubs(f) for name, f in vars(standard).items() if callable(f) and not isinstance(f, type)
    }
    compat = _module("array_api_compat.cupy", **vars(standard) | functions | created)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "array_api_compat.cupy", compat)
    monkeypatch.setattr(array_api_compat, "cupy", compat, raising=False)
    monkeypatch.setitem(sys.modules, "cupyx", _module("cupyx", errstate=Errstate))
    for name in ("cupyx.scipy", "cupyx.scipy.special"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(
        sys.modules, "cupyx.scipy.linalg", _module("cupyx.scipy.linalg", solve_triangular=_solve_triangular)
    )
    monkeypatch.delitem(sys.modules, "agp_backends._cupy", raising=False)
    plugin = importlib.import_module("agp_backends._cupy").CupyBackend()
    monkeypatch.setattr("agp.backend._discovery._BY_TYPE", {Stub: plugin})
    CALLS.clear()
    APART.clear()
    yield plugin
    sys.modules.pop("agp_backends._cupy", None)


def test_new_arrays_go_to_the_device_of_the_data(B):
    x = B.from_numpy(np.ones((3, 2)), device="cuda:1")
    assert (B.device_name(x), CURRENT.devices) == ("cuda:1", [0])
    xp = B.xp
    made = [
        xp.zeros((2,), **like(x)), xp.ones((2,), **like(x)), xp.eye(3, **like(x)), xp.full((2,), 7.0, **like(x)),
        xp.empty((2,), **like(x)), xp.linspace(0.0, 1.0, 3, **like(x)), xp.arange(3, **like(x)),
        xp.asarray([1.0, 2.0], **like(x)), xp.zeros_like(x), xp.ones_like(x), xp.full_like(x, 3.0), xp.empty_like(x),
        placed([1.0, 2.0], x), placed(np.array([1, 0]), x),
    ]  # fmt: skip
    assert [B.device_name(each) for each in made] == ["cuda:1"] * len(made)
    assert B.device_name(xp.zeros((2,))) == "cuda:0"
    with Device(1):
        assert B.device_name(B.from_numpy(np.ones(2))) == "cuda:1"


def test_devices_have_names_and_others_are_refused(B):
    assert B.devices() == ["cuda:0", "cuda:1"]
    for wrong in ("cpu", "cuda:x", "gpu:0"):
        with pytest.raises(ValueError, match=f"CuPy has no device '{wrong}'; it has cuda:0, cuda:1"):
            B.from_numpy(np.ones(2), device=wrong)
    B.synchronise(B.from_numpy(np.ones(2), device="cuda:1"))
    assert CALLS == [("synchronize", 1)]


def test_a_failed_factorisation_is_told_by_the_library_and_becomes_nan(B):
    A = np.stack([np.eye(3), np.diag([1.0, 1.0, -1e-12]), 4.0 * np.eye(3)])
    L = B.to_numpy(B.cholesky(B.from_numpy(A)))
    np.testing.assert_array_equal(np.isfinite(L).all(axis=(1, 2)), [True, False, True])
    np.testing.assert_array_equal(L[2], 2.0 * np.eye(3))
    assert not np.isfinite(B.to_numpy(B.cholesky(B.from_numpy(A[1]))).diagonal()).all()


@pytest.mark.parametrize("transpose", [False, True])
def test_triangular_systems_are_solved_without_a_copy_of_the_factor(transpose, B):
    rng = np.random.default_rng(0)
    L, C = np.tril(rng.normal(size=(5, 5))) + 5.0 * np.eye(5), rng.normal(size=(5, 2))
    found = B.solve_triangular(B.from_numpy(L), B.from_numpy(C), transpose=transpose)
    np.testing.assert_allclose(B.to_numpy(found), np.linalg.solve(L.T if transpose else L, C), rtol=1e-12)
    assert CALLS == [("solve_triangular", True)]


def test_eigenvalues_of_large_matrices_come_one_matrix_after_another(B, monkeypatch):
    plugin, asked = sys.modules["agp_backends._cupy"], []
    usual = plugin.compat.linalg.eigh
    monkeypatch.setattr(plugin.compat.linalg, "eigh", lambda A: (asked.append(A.shape), usual(A))[1])
    for size, expected in ((3, [(2, 2, 3, 3)]), (40, [(40, 40)] * 4)):
        A = np.random.default_rng(0).normal(size=(2, 2, size, size))
        found = B.xp.linalg.eigh(B.from_numpy(A + A.swapaxes(-1, -2)))
        np.testing.assert_allclose(
            np.asarray(found.eigenvalues), np.linalg.eigvalsh(A + A.swapaxes(-1, -2)), atol=1e-12
        )
        assert found.eigenvectors.shape == A.shape
        assert asked == expected
        asked.clear()


def test_blocks_are_those_of_the_device_and_the_dtype(B):
    wide, narrow = np.ones((2, 2)), np.ones((2, 2), dtype="float32")
    blocks = [B.device_block(B.from_numpy(x, device=f"cuda:{i}")) for i in range(2) for x in (wide, narrow)]
    assert blocks == [1024, 1024, 256, 1024]


def test_the_memory_is_that_of_the_device_and_asked_for_once(B):
    arrays = [B.from_numpy(np.ones(2), device=f"cuda:{i}") for i in (0, 1, 0, 1)]
    CALLS.clear()
    assert [B.device_memory(x) / 2**10 for x in arrays] == [16.0, 17.0, 16.0, 17.0]
    assert [call for call in CALLS if call[0] == "mem_info"].count(("mem_info", 0)) <= 1


def test_diagonals_are_added_to_without_touching_what_was_given(B):
    A = np.random.default_rng(0).normal(size=(2, 3, 4, 4))
    given = B.from_numpy(A).swapaxes(0, 1)
    for d in (np.arange(4.0), np.arange(24.0).reshape(3, 2, 4)):
        found = B.add_diagonal(given, B.from_numpy(d))
        np.testing.assert_array_equal(np.asarray(found), A.swapaxes(0, 1) + d[..., None] * np.eye(4))
    np.testing.assert_array_equal(np.asarray(B.add_diagonal(given, 0.5)), A.swapaxes(0, 1) + 0.5 * np.eye(4))
    np.testing.assert_array_equal(np.asarray(given), A.swapaxes(0, 1))


def test_small_arrays_are_worked_on_together(B):
    calls = []

    def f(x, y):
        calls.append(x.shape)
        return (x * y,)

    pairs = [
        tuple(B.from_numpy(x) for x in np.random.default_rng(0).normal(size=(2, *shape))) for shape in ((), (3, 2))
    ]
    found = B.elementwise_each(f, pairs, lower=[False, True])
    assert calls == [(256,)]  # each begins at a multiple of 128, where a new array might
    for (z,), (x, y) in zip(found, pairs, strict=True):
        np.testing.assert_array_equal(np.asarray(z), np.asarray(x * y))


def _on_second_device(B, build):
    """A model and its data, on another device than the current one."""
    X = np.random.default_rng(0).normal(size=(12, 2))
    y = np.sin(X[:, :1])
    host = build(X, y)
    leaves = {name: B.from_numpy(x, device="cuda:1") for name, x in tree.leaves(host).items()}
    model = tree.with_leaves(host, leaves)
    APART.clear()
    return model, B.from_numpy(X, device="cuda:1"), B.from_numpy(y, device="cuda:1")


def _whitened(X, y):
    return SVGP.from_data(X, y, posterior=Whitened, Z=X[:4])


def _relaxed(X, y):
    return SVGP.from_data(X, y, posterior=Relaxed, Z=X[:4])


def _with_pullback(value, pullback, bar=None):
    return pullback(value if bar is None else bar)


def _estimated(X, y):
    for library in ("narwhals", "sklearn"):
        pytest.importorskip(library, reason="the extra sklearn is not installed")
    from agp.estimators import GPRegressor

    return GPRegressor(method="wsvgp", max_steps=20, num_inducing=3).fit(X, y).predict(X)


ENTRANCES = {
    "bound and pullback": lambda m, X, y: _with_pullback(*m.bound(X, y), 1.0),
    "value and gradient": lambda m, X, y: value_and_gradient(m, X, y),
    "training": lambda m, X, y: train(m, X, y, steps=3, batch_size=6),
    "L-BFGS": lambda m, X, y: fit_lbfgs(m, X, y, max_iterations=3),
    "fit": lambda m, X, y: fit(m, X, y, max_steps=30, batch_size=6),
    "start of a training": lambda m, X, y: begun(m),
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
    "estimator": lambda m, X, y: _estimated(X, y),
}


@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
@pytest.mark.parametrize("use", ENTRANCES)
def test_entrances_compute_on_the_device_of_the_data(use, B):
    model, X, y = _on_second_device(B, _whitened)
    ENTRANCES[use](model, X, y)
    assert CURRENT.devices == [0]
    assert APART == []


def test_updates_of_inverse_factors_compute_on_the_device_of_the_data(B):
    model, X, y = _on_second_device(B, _relaxed)
    train(model, X, y, steps=3, updates=[Adam(1e-2), InverseUpdate()])
    assert (CURRENT.devices, APART) == ([0], [])


def test_noise_is_drawn_on_the_device_of_the_data(B):
    for dtype in ("float64", "float32"):
        x = B.from_numpy(np.ones((2, 2)), dtype=dtype, device="cuda:1")
        first, again, other = (B.generator(x, 3, 5, step) for step in (7, 7, 8))
        normal, signs = first.standard_normal((50,)), first.integers(0, 2, (50,))
        assert [B.device_name(each) for each in (normal, signs)] == ["cuda:1", "cuda:1"]
        assert normal.dtype == dtype
        assert set(signs.tolist()) == {0, 1}
        np.testing.assert_array_equal(np.asarray(again.standard_normal((50,))), np.asarray(normal))
        assert np.all(np.asarray(other.standard_normal((50,))) != np.asarray(normal))


def test_training_with_noise_of_the_device(B):
    model, X, y = _on_second_device(B, lambda X, y: DeepGP.from_data(X, y, num_inducing=3, posterior="whitened"))
    first, again = (train(model, X, y, steps=2, updates=[Adam(1e-2)], draws="device").trace for _ in range(2))
    assert first == again
    assert (CURRENT.devices, APART) == ([0], [])


def test_rows_elsewhere_leave_the_choice_to_the_model(B):
    rows = pytest.importorskip("dask.array", reason="dask is not installed: not executed")
    model, *data = _on_second_device(B, _whitened)
    X, y = (rows.from_array(B.to_numpy(x), chunks=(6, -1)) for x in data)
    train(model, X, y, steps=2, batch_size=6)
    model.bound(X, y)[1](1.0)
    assert (CURRENT.devices, APART) == ([0], [])


def test_the_stand_in_tells_what_is_computed_elsewhere(B):
    _, X, _ = _on_second_device(B, _whitened)
    _ = X + X
    assert APART == [(1, 0)]


@pytest.mark.parametrize("current", [0, 1])
def test_what_is_raised_inside_leaves_the_device_as_it_was(current, B):
    model, X, y = _on_second_device(B, _whitened)
    pullback = model.bound(X, y)[1]
    with Device(current):
        with pytest.raises(ValueError, match="X has 1 columns"):
            model.predict(X[:, :1])
        with pytest.raises(ValueError, match="X has 1 columns"):
            train(model, X[:, :1], y, steps=1)
        with pytest.raises(TypeError):
            pullback("1.0")
        assert [0, current] == CURRENT.devices
    assert CURRENT.devices == [0]


def test_a_bound_runs_with_every_array_where_the_data_are(B):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 2))
    host = SVGP.from_data(X, np.sin(X[:, :1]), posterior=Whitened, Z=X[:4])
    expected = host.bound(X, np.sin(X[:, :1]))[0]
    model = tree.with_leaves(host, {k: B.from_numpy(v, device="cuda:1") for k, v in tree.leaves(host).items()})
    value, pullback = model.bound(*(B.from_numpy(x, device="cuda:1") for x in (X, np.sin(X[:, :1]))))
    bar, _ = pullback(1.0)
    assert_close(np.asarray(value), expected, 1e-12)
    assert {B.device_name(x) for x in tree.leaves(bar).values()} == {"cuda:1"}
    assert CURRENT.devices == [0]
    assert B.device_name(wide(model.process.inducing.Z)) == "cuda:1"
