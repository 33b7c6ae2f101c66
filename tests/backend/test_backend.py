"""Finding a backend, what each one supplies, and what is said when there is none."""

import importlib.util
import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
import scipy.special
from helpers import NUMPY, Place, assert_close

import agp
from agp import tree
from agp.backend import Backend, as_widest_float, asarray_like, backend_of, get_backend, known_backends, like, to_numpy
from agp.errors import BackendError


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(BackendError, match="unknown backend 'numpie'; did you mean 'numpy'"):
        get_backend("numpie")


def test_a_missing_library_is_one_clear_error(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    agp.backend._discovery._load.cache_clear()
    try:
        with pytest.raises(BackendError, match=r"'torch' needs the package torch, .*pip install \"array-gp\[torch\]\""):
            get_backend("torch")
        status = {s.name: s for s in known_backends()}["torch"]
        assert not status.usable
        assert "not installed" in status.reason
    finally:
        _restore()


def _restore():
    """Instances are found by type: forget those made before the cache was emptied."""
    agp.backend._discovery._load.cache_clear()
    agp.backend._discovery._BY_TYPE.clear()


def test_a_broken_library_is_one_clear_error(monkeypatch):
    class Broken:
        def load(self):
            msg = "libtorch.so: cannot open shared object file"
            raise OSError(msg)

    monkeypatch.setattr("agp.backend._discovery._entry_points", lambda: {"torch": Broken()})
    agp.backend._discovery._load.cache_clear()
    try:
        with pytest.raises(BackendError, match=r"installed but cannot be used: OSError: libtorch\.so"):
            get_backend("torch")
    finally:
        _restore()


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        ([1.0, 2.0], r"x is a list, not .*; pass numpy\.asarray\(x, dtype=float\)"),
        (1.0, r"x is a float, not .*; pass numpy\.asarray\(x, dtype=float\)"),
        (1, "x is an int, not"),
        (None, "x is None, but must be an array; pass an array of one of the libraries"),
        ("x", "x is builtins.str, not an array of a known library"),
        (np.ma.ones(3), r"x is a numpy MaskedArray, not .*; pass x\.data, after dropping"),
        (np.asarray([[1.0]]).view(np.matrix), r"x is a numpy matrix, not .*; pass numpy\.asarray\(x, dtype=float\)"),
        (scipy.sparse.eye_array(3), r"x is a scipy dia_array, not .*; pass x\.toarray\(\)"),
    ],
    ids=["list", "number", "int", "none", "text", "masked", "matrix", "sparse"],
)
def test_what_is_no_array_is_a_type_error_with_a_remedy(thing, message):
    with pytest.raises(TypeError, match=message):
        backend_of(thing)


def test_importing_agp_imports_no_array_library_but_numpy():
    code = "import agp, sys; print(sorted({'torch', 'array_api_strict', 'jax', 'cupy'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_known_backends_are_sorted_and_describe_themselves():
    found = {status.name: status for status in known_backends()}
    assert list(found) == sorted(found)
    assert {"numpy", "torch", "array_api_strict"} <= found.keys()
    assert found["numpy"].usable
    assert found["numpy"].version == np.__version__
    assert found["numpy"].devices == ["cpu"]
    assert found["numpy"].gradients == ("closed-form",)
    assert found["array_api_strict"].conformance
    assert not found["numpy"].conformance


def test_torch_offers_both_modes(torch_place):
    status = {s.name: s for s in known_backends()}["torch"]
    assert status.gradients == ("closed-form", "autodiff")
    assert "cpu" in status.devices


def test_the_type_decides(backend):
    x = backend.array([1.0])
    assert backend_of(x) is get_backend(backend.name)
    assert backend_of(x).name == backend.name


def test_numpy_scalars_are_arrays():
    assert backend_of(np.float64(1.0)).name == "numpy"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_like_gives_dtype_and_device(dtype, backend):
    x = backend.array([1.0, 2.0], dtype)
    backend.check(backend_of(x).xp.ones((2,), **like(x)), dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_there_and_back(dtype, backend):
    host = np.arange(6.0).reshape(2, 3).astype(dtype)
    B = get_backend(backend.name)
    x = B.from_numpy(host, device=backend.device)
    backend.check(x, dtype)
    np.testing.assert_array_equal(to_numpy(x), host)
    assert to_numpy(x).dtype == dtype
    host[0, 0] = 99.0
    assert to_numpy(x)[0, 0] == 0.0


def test_whole_numbers_stay_whole(backend):
    x = get_backend(backend.name).from_numpy(np.array([3, 1]), device=backend.device)
    assert to_numpy(x).dtype == np.int64


def test_numpy_has_one_device():
    with pytest.raises(ValueError, match="NumPy has no device 'cuda:0'"):
        get_backend("numpy").from_numpy(np.zeros(2), device="cuda:0")


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["log_ndtr", "ndtr", "erf", "gammaln"])
def test_special_functions(name, dtype, backend):
    host = np.array([0.1, 0.5, 1.0, 2.5, 7.0]) * (1.0 if name == "gammaln" else -1.0)
    found = get_backend(backend.name).special(name, backend.array(host, dtype))
    expected = getattr(scipy.special, name)(host)
    # far left tails of the plain cdf have absolute accuracy only: log_ndtr is there for them
    tolerance = {"float64": 1e-12, "float32": 2e-5}[dtype]
    atol = 1e-15 if dtype == "float64" else 1e-6  # gammaln is zero at 1
    np.testing.assert_allclose(backend.numpy(found, dtype), expected, rtol=tolerance, atol=atol)


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_an_unknown_special_function_names_both(name):
    pytest.importorskip(name)
    module = {"numpy": "scipy.special", "torch": "torch.special"}[name]
    with pytest.raises(BackendError, match=f"^{module} has no special function 'zetta'; .*backend '{name}'"):
        get_backend(name).special("zetta", get_backend(name).from_numpy(np.zeros(1)))


def test_what_a_module_holds_besides_functions_is_no_special_function(backend):
    for name in ("SpecialFunctionError", "__name__", "_ufuncs", "torch"):
        with pytest.raises(BackendError, match=f"no special function '{name}'"):
            get_backend(backend.name).special(name, backend.array(1.0))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["digamma", "erfcx", "xlogy", "ndtri", "polygamma"])
def test_special_functions_that_no_table_lists(name, dtype, backend):
    host = np.array([0.1, 0.25, 0.7, 0.95])
    first = {"xlogy": (host,), "polygamma": (1,)}.get(name, ())
    here = [backend.array(x, dtype) if isinstance(x, np.ndarray) else x for x in (*first, host)]
    found = get_backend(backend.name).special(name, *here)
    expected = getattr(scipy.special, name)(*first, host)
    tolerance = {"float64": 1e-11, "float32": 2e-5}[dtype]
    np.testing.assert_allclose(backend.numpy(found, dtype), expected, rtol=tolerance, atol=tolerance)


def test_the_left_tail_of_the_normal_distribution_function(backend):
    found = get_backend(backend.name).special("ndtr", backend.array([-20.0]))
    np.testing.assert_allclose(backend.numpy(found), scipy.special.ndtr([-20.0]), rtol=1e-9)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_host_numbers_are_placed_beside_an_array(dtype, backend):
    x = backend.array([1.0], dtype)
    for host in (np.array([0.5, 2.0]), [0.5, 2.0], (0.5, 2.0), np.array([0.5, 2.0], "float32")):
        found = asarray_like(host, x)
        np.testing.assert_array_equal(backend.numpy(found, dtype), [0.5, 2.0])
    assert to_numpy(asarray_like(np.array([2, 1]), x)).dtype.kind == "i"
    assert to_numpy(asarray_like([True, False], x)).dtype.kind == "b"
    host = np.array([0.5, 2.0], dtype)
    found = asarray_like(host, x)
    host[0] = 9.0
    assert to_numpy(found)[0] == 0.5


def test_naming_a_dtype_or_placing_numbers_reads_no_array(torch_place, monkeypatch):
    import torch

    x = torch.ones(2, device="meta", dtype=torch.float32)
    assert get_backend("torch").dtype_name(x) == "float32"
    assert asarray_like([1.0, 2.0], x).device.type == "meta"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_wide_is_the_widest_float(dtype, backend):
    backend.check(as_widest_float(backend.array([1.0], dtype)), "float64")


def test_wide_where_a_device_has_no_float64():
    x = Place("array_api_strict", "no_float64").array([1.0], "float32")
    assert as_widest_float(x).dtype == x.dtype
    assert as_widest_float(x).device == x.device


@pytest.mark.parametrize("view", [lambda x: x.mT, lambda x: x[:, ::2], lambda x: x[:, 1:2], lambda x: x[1:2, ::2].mT])
def test_row_major_is_the_layout_of_a_new_array(view, backend):
    B = get_backend(backend.name)
    x = backend.array(np.arange(12.0).reshape(3, 4), "float32")
    assert B.row_major(x) is x
    seen = B.row_major(view(x))
    backend.check(seen, "float32")
    np.testing.assert_array_equal(to_numpy(seen), to_numpy(view(x)))
    assert to_numpy(seen).strides == np.empty(seen.shape, dtype="float32").strides


def test_row_major_is_aligned_and_an_array_on_numpy():
    B = get_backend("numpy")
    raw = np.zeros(25, dtype=np.uint8)[1:].view(np.float64)
    assert B.row_major(raw).flags.aligned
    assert isinstance(B.row_major(np.float64(2.0)), np.ndarray)


def test_row_major_begins_where_new_arrays_do_on_torch(torch_place):
    x = torch_place.array(np.arange(200.0), "float32")
    B = get_backend("torch")
    assert x[1:].data_ptr() % 64
    assert B.row_major(x[1:]).data_ptr() % 64 == 0
    # and so does what is worked on together
    several = [(x[:3] + 1.0,), (x[:7] + 1.0,), (x[:150] + 1.0,), (x[0] + 1.0,)]
    found = B.elementwise_each(lambda _, y: (2.0 * y,), several, lower=[False] * 4)
    assert [one.data_ptr() % 64 for (one,) in found] == [0] * 4
    for (one,), (given,) in zip(found, several, strict=True):
        assert_close(to_numpy(one), to_numpy(2.0 * given), 0.0)


def test_control_flow(backend):
    B = get_backend(backend.name)
    one, two = backend.array(1.0), backend.array(2.0)
    assert B.cond(one < two, lambda: "yes", lambda: "no") == "yes"
    assert B.cond(one > two, lambda: "yes", lambda: "no") == "no"
    (last,) = B.while_loop(lambda x: x < 100.0, lambda x: (x * two,), (one,))
    assert backend.numpy(last) == 128.0


@pytest.mark.slow
def test_fold_is_the_sum_and_evaluates_each_block_twice(backend):
    if backend.name == "jax":
        pytest.skip("JAX has its own fold and compiler: tests/backend/test_jax.py")
    B = get_backend(backend.name)
    calls = []

    def f(a, block):
        x, none, draws = block
        assert none is None
        assert draws["eps"].shape == (*x.shape, 2)
        calls.append(x.shape[0])
        total = B.xp.sum(x) + B.xp.sum(draws["eps"])
        return a * a * total, lambda bar: bar * 2.0 * a * total

    def add(x, y):
        return y if x is None else x + y

    rows = backend.array([1.0, 2.0, 3.0, 4.0, 5.0]), None, {"eps": backend.array(np.ones((5, 2)))}
    value, pullback = B.fold(f, backend.array(3.0), rows, 2, add=add)
    assert backend.numpy(value) == 9.0 * 25.0
    assert calls == [2, 2, 1]
    assert backend.numpy(pullback(0.5)) == 75.0
    assert calls == [2, 2, 1] * 2


@pytest.mark.slow
def test_mapped_rows_are_those_of_the_whole_with_a_pullback_to_parameters_and_rows(backend):
    B = get_backend(backend.name)
    sizes = []

    def f(a, block):
        sizes.append(block.shape[0])
        return a * block * block, lambda bar: (B.xp.sum(bar * block * block), 2.0 * a * bar * block)

    def add(x, y):
        return y if x is None else x + y

    rows = np.arange(1.0, 6.0)[:, None] * [1.0, -0.5]
    value, pullback = B.map_rows(f, backend.array(3.0), backend.array(rows), 2, add=add)
    np.testing.assert_array_equal(backend.numpy(value), 3.0 * rows**2)
    bar = np.linspace(-1.0, 1.0, 10).reshape(5, 2)
    a_bar, rows_bar = pullback(backend.array(bar))
    assert backend.numpy(a_bar) == pytest.approx(np.sum(bar * rows**2), rel=1e-14)
    assert_close(backend.numpy(rows_bar), 6.0 * bar * rows, 1e-14)
    if B.name != "jax":  # it remembers what it has traced
        assert sizes == [2, 2, 1] * 2


def test_no_autodiff_is_an_error_that_names_the_other_mode():
    with pytest.raises(BackendError, match="'numpy' has no automatic differentiation; use gradient='closed-form'"):
        get_backend("numpy").value_and_grad(lambda leaves: leaves["a"], {"a": NUMPY.array(1.0)})


def test_torch_value_and_grad(torch_place):
    B = get_backend("torch")
    leaves = {"a": torch_place.array([1.0, 2.0]), "unused": torch_place.array(3.0)}
    value, grads = B.value_and_grad(lambda x: (x["a"] ** 2).sum(), leaves)
    assert torch_place.numpy(value) == 5.0
    np.testing.assert_array_equal(torch_place.numpy(grads["a"]), [2.0, 4.0])
    np.testing.assert_array_equal(torch_place.numpy(grads["unused"]), 0.0)
    assert not value.requires_grad
    assert not leaves["a"].requires_grad


@pytest.mark.slow
def test_torch_stop_gradient_and_remat(torch_place):
    import torch

    B = get_backend("torch")
    x = torch_place.array(3.0).requires_grad_()
    assert not B.stop_gradient(x).requires_grad
    (slope,) = torch.autograd.grad(B.remat(lambda a: a * a)(x), [x])
    assert torch_place.numpy(slope) == 6.0


def test_defaults_leave_things_as_they_are(backend):
    if backend.name == "jax":
        pytest.skip("JAX has its own fold and compiler: tests/backend/test_jax.py")
    B = get_backend(backend.name)
    x = backend.array(1.0)

    def f(a):
        return a

    assert B.compile(f) is f
    B.synchronise(x)
    assert B.is_concrete(x)
    assert B.peak_memory(x) > (1.0 if B.device_memory(x) is None else 0.0)  # of the process, or of arrays
    assert agp.backend_of is backend_of


def test_a_plug_in_that_lacks_a_method_is_one_clear_error(monkeypatch):
    class Incomplete(Backend):
        name = "numpy"

    point = SimpleNamespace(load=lambda: Incomplete)
    monkeypatch.setattr("agp.backend._discovery._entry_points", lambda: {"numpy": point})
    agp.backend._discovery._load.cache_clear()
    lacking = r"cannot be used: .*Incomplete.*cholesky.*from_numpy.*solve_triangular.*to_numpy"
    try:
        with pytest.raises(BackendError, match=lacking):
            get_backend("numpy")
    finally:
        _restore()


def _of_entries(_, x, y, factor):
    return x * x + factor * y, 2.0 * x


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_functions_of_entries_broadcast_and_keep_the_dtype(dtype, backend):
    x, y = np.ones((2, 3), dtype), np.arange(3.0, dtype=dtype)
    found = get_backend(backend.name).fused(_of_entries, backend.array(x, dtype), backend.array(y, dtype), 0.5)
    for z, expected in zip(found, _of_entries(None, x, y, 0.5), strict=True):
        backend.check(z, dtype)
        np.testing.assert_array_equal(backend.numpy(z, dtype), expected)


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4), (40_000,), (300, 300), (2, 401, 401), (17_000, 2)])
def test_elementwise_work_in_pieces_is_that_on_the_whole(shape, lower, backend):
    if lower and (len(shape) < 2 or shape[-1] != shape[-2]):
        pytest.skip("no matrix")
    rng = np.random.default_rng(0)
    host = [np.tril(x) if lower else x for x in rng.normal(size=(2, *shape))]

    expected = _of_entries(None, *host, 0.5)
    B = get_backend(backend.name)
    pieces = B.elementwise(_of_entries, *map(backend.array, host), numbers=(0.5,), lower=lower)
    for found, x in zip(pieces, expected, strict=True):
        # compiled kernels add and multiply with one rounding
        np.testing.assert_allclose(backend.numpy(found), x, rtol=0.0 if backend.device is None else 1e-14, atol=1e-14)
        assert tuple(found.shape) == shape


@pytest.mark.parametrize("shape", [(3, 3), (2, 130, 130), (300, 300)])
def test_lower_triangles(shape, backend):
    A = np.random.default_rng(0).normal(size=shape)
    np.testing.assert_array_equal(backend.numpy(get_backend(backend.name).tril(backend.array(A))), np.tril(A))


FAULTS = """
import resource
import numpy as np
from agp.backend import backend_of

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

B = backend_of(np.ones(1))
def work():
    return [np.ones((300, 300)) + i for i in range(12)]
work()
before = faults()
for _ in range(20):
    work()
print(faults() - before)
"""


@pytest.mark.long
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators keep memory by rules of their own")
def test_memory_that_one_step_frees_serves_the_next():
    # 12 arrays of 0.7 MB are 2,109 pages; without the plug-in each repetition asks the system for most of them anew
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    found = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True, env=own)
    assert int(found.stdout) < 500
    without = FAULTS.replace("B = backend_of", "pass # backend_of")
    found = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, check=True, env=own)
    assert int(found.stdout) > 5_000


def test_folds_evaluate_once_what_they_may_keep(backend):
    X = backend.array(np.arange(10.0)[:, None])
    B, seen = backend_of(X), []

    def f(scale, block):
        seen.append(block.shape[0])
        total = B.xp.sum(block)
        return scale * total, lambda bar: bar * total

    for kept, evaluations in ((0, 8), (3, 7), (5, 7), (6, 6), (9, 5), (10, 4)):
        seen.clear()
        value, pullback = B.fold(f, backend.array(2.0), X, 3, add=tree.add, kept_rows=kept)
        assert float(value) == 90.0
        assert float(pullback(1.0)) == 45.0
        if B.name != "jax":
            assert len(seen) == evaluations


# -- torch.func.vmap --------------------------------------------------------------------------------------------------

SHARED = {"L": (None, 0), "columns": (0, None), "neither": (0, 0)}


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("shared", SHARED)
def test_torch_maps_triangular_solves(shared, transpose):
    torch, B = pytest.importorskip("torch"), get_backend("torch")
    rng = np.random.default_rng(0)
    in_dims = SHARED[shared]
    L = torch.as_tensor(np.tril(rng.normal(size=(3, 4, 4))) + 3.0 * np.eye(4)).requires_grad_()
    R = torch.as_tensor(rng.normal(size=(3, 2, 4, 2))).requires_grad_()  # two levels of mapping

    def mapped(L, R):
        arrays = [x if axis == 0 else x[0] for x, axis in zip((L, R), in_dims, strict=True)]
        inner = torch.func.vmap(lambda L, R: B.solve_triangular(L, R, transpose=transpose), in_dims=(None, 0))
        return torch.func.vmap(inner, in_dims=in_dims)(*arrays)

    def looped(L, R):
        L, R = (x if axis == 0 else x[:1].expand(3, *x.shape[1:]) for x, axis in zip((L, R), in_dims, strict=True))
        each = [[B.solve_triangular(L[i], R[i, j], transpose=transpose) for j in range(2)] for i in range(3)]
        return torch.stack([torch.stack(row) for row in each])

    assert_close(mapped(L, R).detach().numpy(), looped(L, R).detach().numpy(), 1e-12)
    bar = torch.as_tensor(rng.normal(size=(3, 2, 4, 2)))
    found, expected = (torch.autograd.grad(f(L, R), (L, R), bar) for f in (mapped, looped))
    for value, desired in zip(found, expected, strict=True):
        assert_close(value.tril().numpy() if value.ndim == 3 else value.numpy(), desired.numpy(), 1e-11)


def test_torch_copies_no_factor_that_mapped_columns_share():
    torch, B = pytest.importorskip("torch"), get_backend("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, f, types, args=(), kwargs=None):
            out = f(*args, **(kwargs or {}))
            sizes.append(out.untyped_storage().nbytes() // 8 if isinstance(out, torch.Tensor) else 0)
            return out

    L, R = torch.eye(50, dtype=torch.float64), torch.ones(200, 50, 1, dtype=torch.float64)
    with Sizes():
        torch.func.vmap(lambda x: B.solve_triangular(L, x))(R)
    assert sizes
    assert max(sizes) <= 200 * 50


def test_torch_repairs_each_mapped_matrix_by_itself():
    torch = pytest.importorskip("torch")
    from agp.linalg import cholesky

    A = torch.stack([2.0 * torch.eye(3, dtype=torch.float64), torch.ones(3, 3, dtype=torch.float64)])
    A[1] -= 1e-9 * torch.eye(3, dtype=torch.float64)
    found = torch.func.vmap(cholesky)(A)
    with pytest.warns(agp.errors.RepairWarning):
        expected = torch.stack([cholesky(one) for one in A])
    assert_close(found.numpy(), expected.numpy(), 1e-14)
