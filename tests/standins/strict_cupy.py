"""A stand-in for CuPy on machines without a CUDA device: its names and signatures, and its strictness, over NumPy.

`cupy_names.json` lists what a wheel of CuPy has (see `list_cupy_names.py`). Functions here take arguments of those
signatures alone, and arrays have no attribute that CuPy's lack. Arrays are opaque: they refuse to become NumPy's by
themselves, NumPy arrays beside them are errors, results without axes stay arrays, and every array lies on a numbered
device, which must be the current one where a kernel reads it. NumPy and SciPy compute behind them.
`array_api_compat.cupy` and the plug-in are the real ones. What the host asks of the device is counted (`counts`).

Not imitated: speed, memory, and the rounding of another library.
"""

import ctypes
import importlib
import inspect
import json
import math
import sys
import threading
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import array_api_compat
import numpy as np
import scipy.linalg
import scipy.special
from standins.counts import tell

NAMES = json.loads(Path(__file__).with_name("cupy_names.json").read_text())
DEVICES = 2
MEMORY = 72 * 2**30, 80 * 2**30
"""Free bytes of a device, and all."""
HOST = {
    "broadcast_shapes", "can_cast", "common_type", "isdtype", "isscalar", "issubdtype", "min_scalar_type", "ndim",
    "promote_types", "result_type", "shape", "size",
}  # fmt: skip
"""Functions of the host, whose results are no arrays."""
NEW = {
    "arange", "empty", "eye", "full", "identity", "indices", "linspace", "logspace", "ones", "tri", "zeros",
}  # fmt: skip
"""Functions whose first argument is no array."""
WAITING = {"argwhere", "bincount", "flatnonzero", "nonzero", "unique", "unique_all", "unique_counts", "unique_inverse",
           "unique_values"}  # fmt: skip
"""Functions whose results have shapes that depend on values: the host reads them."""
LAUNCHES = {"empty": 0, "empty_like": 0, "eye": 2, "tril": 2, "triu": 2}
"""Kernels of a call where it is not one: as the Python sources of CuPy have it."""
FACTORISATIONS = {"cholesky", "eigh", "eigvalsh", "inv", "lstsq", "pinv", "qr", "solve", "svd", "slogdet", "det"}
"""Functions of `linalg` that look at cuSOLVER's word on success, if they are asked to."""


# -- devices ----------------------------------------------------------------------------------------------------------


class _Current(threading.local):
    """The devices that a thread has made current, the last of which is; and what failures of factorisations do."""

    def __init__(self):
        self.devices = [0]
        self.linalg = "ignore"


CURRENT = _Current()


class Device:
    def __init__(self, device=None):
        self.id = CURRENT.devices[-1] if device is None else int(device)

    def __int__(self):
        return self.id

    def __eq__(self, other):
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self):
        return hash(self.id)

    def __repr__(self):
        return f"<CUDA Device {self.id}>"

    def __enter__(self):
        CURRENT.devices.append(self.id)
        return self

    def __exit__(self, *_):
        CURRENT.devices.pop()

    @property
    def compute_capability(self):
        return ("90", "120")[self.id]

    @property
    def mem_info(self):
        return MEMORY

    def synchronize(self):
        tell("reads")


# -- arrays -----------------------------------------------------------------------------------------------------------


def _refused(x):
    msg = f"Unsupported type {type(x)}"
    return TypeError(msg)


class _Arguments:
    """The values of the arguments of a call, and the arrays among them."""

    def __init__(self):
        self.arrays: list[ndarray] = []

    def host(self, x):
        if type(x) is ndarray:
            self.arrays.append(x)
            return x._host
        if isinstance(x, np.ndarray):
            raise _refused(x)
        if type(x) in (tuple, list):
            return type(x)(map(self.host, x))
        return x


def _check_device(arrays):
    current = CURRENT.devices[-1]
    for x in arrays:
        if x._device != current:
            msg = (
                f"Array device must be same as the current device: array device = {x._device} while current = {current}"
            )
            raise ValueError(msg)


def _computed(f: Callable, arguments: _Arguments, args: tuple, keywords: dict[str, Any], launches: int = 1) -> Any:
    """The result of a function of NumPy as arrays of the device: views where they are views, else new ones."""
    with np.errstate(all="ignore"):
        found = f(*args, **keywords)
    return _wrapped(found, arguments.arrays, launches, keywords.get("out"))


def _wrapped(found, sources, launches, out=None):
    """What NumPy has found, as arrays of the device; one call launches for all of its results."""
    if isinstance(found, (tuple, list)):
        parts = [_wrapped(x, sources, launches if i == 0 else 0) for i, x in enumerate(found)]
        return parts if isinstance(found, list) else tuple(parts)
    if not isinstance(found, (np.ndarray, np.generic)):
        return found
    found = np.asarray(found)
    source = next((x for x in sources if found is x._host or np.may_share_memory(found, x._host)), None)
    if source is not None and out is None:
        return source if found is source._host else _new(found, source._device)
    _check_device(sources)
    tell("launches", launches)
    return source if source is not None else _new(found)


def _new(host, device=None):
    x = object.__new__(ndarray)
    x._host, x._device = host, CURRENT.devices[-1] if device is None else device
    return x


def _uploaded(numbers, dtype=None, order="K"):
    """Host numbers on the current device."""
    host = np.array(numbers, dtype=dtype, order="C" if order == "K" else order)
    if host.dtype.kind not in "bifcu":
        msg = f"Unsupported dtype {host.dtype}"
        raise ValueError(msg)
    tell("uploads")
    return _new(host)


def _read(x):
    """The values on the host, for which it waits."""
    tell("reads")
    return x._host


class _Pointer:
    """An address in the memory of the device."""

    def __init__(self, ptr):
        self.ptr = ptr


class ndarray:  # noqa: N801 - CuPy's name
    """An opaque array. Methods and operators that are not written here come from the list of names (`_complete`)."""

    __slots__ = ("_device", "_host")
    __module__ = "cupy"
    __array_priority__ = 100
    __hash__ = None

    def __init__(self, shape, dtype=float, memptr=None, strides=None, order="C"):
        self._host, self._device = np.empty(shape, dtype, order), CURRENT.devices[-1]

    # what CuPy keeps on the host

    shape = property(lambda self: self._host.shape, lambda self, shape: setattr(self._host, "shape", shape))
    strides = property(lambda self: self._host.strides)
    dtype = property(lambda self: self._host.dtype)
    ndim = property(lambda self: self._host.ndim)
    size = property(lambda self: self._host.size)
    itemsize = property(lambda self: self._host.itemsize)
    nbytes = property(lambda self: self._host.nbytes)
    flags = property(lambda self: self._host.flags)
    device = property(lambda self: Device(self._device))
    data = property(lambda self: _Pointer(self._host.__array_interface__["data"][0]))
    base = property(lambda self: None if self._host.base is None else _new(self._host.base, self._device))
    T = property(lambda self: _new(self._host.T, self._device))
    mT = property(lambda self: _new(self._host.mT, self._device))  # noqa: N815
    real = property(lambda self: self if self.dtype.kind != "c" else _new(self._host.real, self._device))
    imag = property(lambda self: _computed(np.imag, _among(self), (self._host,), {}))

    def __len__(self):
        return len(self._host)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    # what waits

    def __bool__(self):
        return bool(_read(self))

    def __float__(self):
        return float(_read(self))

    def __int__(self):
        return int(_read(self))

    def __complex__(self):
        return complex(_read(self))

    def __repr__(self):
        return repr(_read(self))

    def __format__(self, how):
        return format(_read(self)[()] if self.ndim == 0 else _read(self), how)

    def get(self, stream=None, order="C", out=None, blocking=True):
        return np.array(_read(self), order=order)

    def item(self):
        return _read(self).item()

    def tolist(self):
        return _read(self).tolist()

    def __reduce__(self):
        return _uploaded, (_read(self),)

    # what NumPy does with foreign arrays

    def __array__(self, dtype=None, copy=None):
        msg = "Implicit conversion to a NumPy array is not allowed. Please use `.get()` explicitly."
        raise TypeError(msg)

    def __array_ufunc__(self, function, method, *args, **keywords):
        mine = vars(modules()["cupy"]).get(function.__name__)
        return NotImplemented if method != "__call__" or mine is None else mine(*args, **keywords)

    def __array_function__(self, function, types, args, keywords):
        owner = "cupy" + function.__module__.removeprefix("numpy")
        mine = vars(modules().get(owner, ModuleType(""))).get(function.__name__)
        return NotImplemented if mine is None else mine(*args, **keywords)

    # parts and copies

    def __getitem__(self, key):
        parts = key if type(key) is tuple else (key,)
        if any(type(part) is ndarray and part.dtype == bool for part in parts):
            tell("reads")  # the shape of the result depends on values
        return _indexed(self, parts, lambda host, parts: host[parts])

    def __setitem__(self, key, value):
        parts = key if type(key) is tuple else (key,)
        arguments = _Arguments()
        arguments.arrays.append(self)
        masks = any(type(part) is ndarray and part.dtype == bool for part in parts)
        if masks and type(value) is ndarray and value.ndim:
            tell("reads")  # the entries that the mask keeps are counted
        value = arguments.host(value)
        parts = tuple(_index(part, arguments) for part in parts)
        _check_device(arguments.arrays)
        with np.errstate(all="ignore"):
            self._host[parts] = value
        tell("launches")

    def __copy__(self):
        return self.copy()

    def __deepcopy__(self, memo):
        return self.copy()

    def fill(self, value):
        self[...] = value

    def set(self, arr, stream=None):
        if type(arr) is not np.ndarray:
            msg = "Only numpy.ndarray can be set to cupy.ndarray"
            raise TypeError(msg)
        tell("uploads")
        self._host[...] = arr

    def reshape(self, *shape, order="C", copy=None):
        shape = shape[0] if len(shape) == 1 else shape
        return _computed(np.reshape, _among(self), (self._host, shape), {"order": order, "copy": copy})

    def transpose(self, *axes):
        return _new(self._host.transpose(*axes), self._device)

    def astype(self, dtype, order="K", casting=None, subok=None, copy=True):
        options = {} if casting is None else {"casting": casting}
        return _computed(self._host.astype, _among(self), (dtype, order), {"copy": copy, **options})


def _among(*arrays):
    arguments = _Arguments()
    arguments.arrays.extend(arrays)
    return arguments


def _index(part, arguments):
    """An index as NumPy takes it; host arrays and lists travel to the device."""
    if isinstance(part, (np.ndarray, list)):
        return _uploaded(part)._host
    return arguments.host(part)


def _indexed(x, parts, take):
    arguments = _among(x)
    parts = tuple(_index(part, arguments) for part in parts)
    found = take(x._host, parts)
    source = [x] if isinstance(found, np.ndarray) and np.may_share_memory(found, x._host) else arguments.arrays
    if not isinstance(found, np.ndarray) and all(isinstance(part, (int, np.integer)) for part in parts):
        entries = x._host[(*(slice(part, part + 1 or None) for part in parts),)]
        return _new(entries.reshape(()), x._device)  # one entry is a view without axes
    return _wrapped(found, source, 1)


# -- functions --------------------------------------------------------------------------------------------------------


class ufunc:  # noqa: N801 - CuPy's name
    """A universal function with the loops that CuPy has; Python's numbers are arguments of the kernel."""

    def __init__(self, name, loops, compute):
        self.__name__, self._compute = name, compute
        self.types = loops.split()
        self._inputs = [np.dtype(c) for loop in self.types for c in loop.partition("->")[0]]
        self.nin = len(self.types[0].partition("->")[0])
        self.nout = len(self.types[0].partition("->")[2])
        self._served: dict[tuple, bool] = {}

    def __call__(self, *args, out=None, dtype=None, casting="same_kind"):
        if not self.nin <= len(args) <= self.nin + self.nout:
            msg = f"Wrong number of arguments for {self.__name__!r}"
            raise TypeError(msg)
        if any(isinstance(x, _Placeholder) for x in args):
            return self._followed(args, (out, dtype, casting) == (None, None, "same_kind"))
        arguments = _Arguments()
        hosts = tuple(map(arguments.host, args))
        for x in hosts:
            if not isinstance(x, (np.ndarray, np.generic, bool, int, float, complex)):
                raise _refused(x)
        self._check_loop(tuple(x.dtype if isinstance(x, (np.ndarray, np.generic)) else None for x in hosts))
        options = {} if dtype is None else {"dtype": dtype}
        if out is not None:
            options["out"] = arguments.host(out)
        return _computed(self._compute, arguments, hosts, options)

    def _followed(self, args, usual):
        """The call inside of a function that becomes one kernel."""
        if not usual or len(args) != self.nin:
            msg = f"{self.__name__!r} inside of a kernel takes its inputs alone"
            raise TypeError(msg)
        for x in args:
            if not isinstance(x, (_Placeholder, np.generic, bool, int, float)):
                msg = f"Unsupported type {type(x)}"
                raise TypeError(msg)
        arrays = [x for x in args if isinstance(x, _Placeholder) and not x.weak]
        if all(x.dtype == bool for x in arrays) and len(arrays) < len(args):
            msg = f"{self.__name__!r} of numbers alone is in half precision inside of a kernel"
            raise TypeError(msg)
        hosts = tuple(x._host if isinstance(x, _Placeholder) else x.item() if isinstance(x, np.generic) else x
                      for x in args)  # fmt: skip
        self._check_loop(tuple(x.dtype if isinstance(x, np.ndarray) else None for x in hosts))
        found = self._compute(*hosts)
        return tuple(map(_Placeholder, found)) if isinstance(found, tuple) else _Placeholder(found)

    def _check_loop(self, dtypes):
        """TypeError unless a loop takes arguments of these dtypes; that of a Python number is free."""
        if dtypes not in self._served:
            loops = [self._inputs[i : i + self.nin] for i in range(0, len(self._inputs), self.nin)]
            self._served[dtypes] = any(
                all(have is None or np.can_cast(have, want) for have, want in zip(dtypes, loop, strict=False))
                for loop in loops
            )
        if not self._served[dtypes]:
            msg = f"Wrong type {dtypes} of arguments for {self.__name__!r}"
            raise TypeError(msg)


def _function(name: str, signature: str, compute: Callable, factorises: bool = False) -> Callable:
    """A function that takes the arguments of CuPy's signature, computed by NumPy."""
    namespace: dict[str, Any] = {}
    exec(f"def f{signature}: ...", namespace)
    bound_to, launches = inspect.signature(namespace["f"]), LAUNCHES.get(name, 1)
    takes_arrays = name not in NEW | HOST | {"einsum"}

    def called(*args, **keywords):
        bound, arguments = bound_to.bind(*args, **keywords), _Arguments()
        kernels = _copies(bound.args[0]) if name in ("concatenate", "stack") else launches
        positional = tuple(map(arguments.host, bound.args))
        named = {key: arguments.host(x) for key, x in bound.kwargs.items()}
        if name in HOST:
            return compute(*positional, **named)
        if takes_arrays and not _holds_arrays(bound.args[0] if bound.args else None):
            raise _refused(bound.args[0] if bound.args else None)
        if name in WAITING or (factorises and CURRENT.linalg == "raise"):
            tell("reads")
        try:
            with np.errstate(all="ignore"):
                found = compute(*positional, **named)
        except np.linalg.LinAlgError:
            if not factorises or CURRENT.linalg == "raise":
                raise
            found = np.full(positional[0].shape, 0.5, positional[0].dtype)  # whatever lies in memory, and no word of it
        return _wrapped(found, arguments.arrays, kernels, named.get("out"))

    called.__name__, called.__qualname__ = name, name
    return called


def _copies(arrays):
    """Kernels that put arrays one behind the other: a copy of each, or one for more than eight that are not large,
    which reads from a table where they lie.
    """
    if len(arrays) <= 8 or len({x.dtype for x in arrays}) > 1 or sum(x.nbytes for x in arrays) >= 2**21 * len(arrays):
        return len(arrays)
    alike = len({x.shape for x in arrays}) == 1 and all(x.flags.c_contiguous for x in arrays)
    tell("tables", 1 if alike else 3)
    return 1


def _holds_arrays(x):
    return type(x) is ndarray or (isinstance(x, (tuple, list)) and len(x) > 0 and all(map(_holds_arrays, x)))


def _unsupported(name):
    def called(*args, **keywords):
        msg = f"the stand-in does not compute {name}"
        raise NotImplementedError(msg)

    return called


def array(obj, dtype=None, copy=True, order="K", subok=False, ndmin=0, *, blocking=False):
    if _holds_arrays(obj):
        arguments = _Arguments()
        host = arguments.host(obj)
        found = np.array(host, dtype=dtype, copy=copy if type(obj) is ndarray else True, order=order, ndmin=ndmin)
        return _wrapped(found, arguments.arrays, 1)
    if copy is False:
        msg = "Unable to avoid copy while creating an array as requested."
        raise ValueError(msg)
    return _uploaded(obj, dtype, order)


def asarray(a, dtype=None, order=None, *, copy=None, blocking=False):
    return array(a, dtype=dtype, copy=copy, order="K" if order is None else order)


def asnumpy(a, stream=None, order="C", out=None, *, blocking=True):
    return a.get(order=order) if type(a) is ndarray else np.asarray(a, order=order)


def clip(a, a_min, a_max, out=None):
    if isinstance(a, _Placeholder):
        return _CLIP(a, a_min, a_max)
    return a.clip(a_min, a_max, out=out)


def matmul(x1, x2, /, out=None):
    """Products of matrices in memory of their own, row after row, as cuBLAS is called."""
    arguments = _Arguments()
    hosts = (arguments.host(x1), arguments.host(x2))
    if not _holds_arrays([x1, x2]):
        raise _refused(x1)
    return _computed(np.matmul, arguments, hosts, {} if out is None else {"out": arguments.host(out)})


def where(condition, x=None, y=None):
    if x is None or y is None:
        return _NONZERO(condition)
    if any(isinstance(each, _Placeholder) for each in (condition, x, y)):
        return _WHERE(condition, x, y)
    return _WHERE(condition.astype(bool, copy=False), x, y)


def _polygamma(n, x):
    """As the Python source has it: the order must be an array."""
    if not _holds_arrays([n, x]):
        raise _refused(n)
    return _function("polygamma", "(n, x)", scipy.special.polygamma)(n, x)


_WHERE = ufunc("where", "".join(f"?{c}{c}->{c} " for c in "?bBhHiIlLqQefdFD"), np.where)
_CLIP = ufunc("clip", " ".join(f"{c}{c}{c}->{c}" for c in "?bBhHiIlLqQefd"), np.clip)
_NONZERO = _function("nonzero", "(a)", np.nonzero)

# -- functions that become one kernel ---------------------------------------------------------------------------------


class _Placeholder:
    """What CuPy hands to such a function instead of an array, or of a number (`weak`).

    It has no more than this, and the operators of `_complete`.
    """

    def __init__(self, host, weak=False):
        self._host, self.weak = host if weak else np.asarray(host), weak

    dtype = property(lambda self: np.result_type(self._host))
    ndim = property(lambda self: np.ndim(self._host))
    __hash__ = None

    def __bool__(self):
        msg = "Can't cast to bool"
        raise TypeError(msg)

    def __array__(self, dtype=None, copy=None):
        raise _refused(self)

    __array_ufunc__ = None


def fuse(*args, kernel_name=None):
    """A function as one kernel. CuPy follows it once for all values, and so it must depend on its arguments alone."""
    if args:
        return fuse()(*args)

    def made(f):
        inner = getattr(f, "func", f)
        assert inner.__closure__ is None
        assert (kernel_name or inner.__name__).isidentifier()

        def called(*args):
            arrays = [x for x in args if type(x) is ndarray]
            if not arrays:
                return f(*args)
            for x in args:
                if type(x) is not ndarray and not isinstance(x, (np.generic, bool, int, float)):
                    msg = f"Invalid argument type for {kernel_name!r}: {type(x)}"
                    raise TypeError(msg)
            _check_device(arrays)
            with np.errstate(all="ignore"):
                found = f(*(_Placeholder(*(x._host,) if type(x) is ndarray else (x, True)) for x in args))
            shape = np.broadcast_shapes(*(x.shape for x in arrays))
            tell("launches")
            several = found if isinstance(found, tuple) else (found,)
            results = tuple(_new(np.array(np.broadcast_to(_of_kernel(x), shape), order="C")) for x in several)
            return results if isinstance(found, tuple) else results[0]

        return called

    return made


def _of_kernel(x):
    if isinstance(x, _Placeholder) and not x.weak:
        return x._host
    msg = f"a kernel gives arrays, and no {type(x)}"
    raise TypeError(msg)


# -- random numbers ---------------------------------------------------------------------------------------------------


class Philox4x3210:
    """A state of random numbers on the current device."""

    def __init__(self, seed=None, *, size=-1):
        bits = np.random.Philox(seed)  # not the generator of the host
        self._source, self._device = np.random.Generator(bits), CURRENT.devices[-1]


class Generator:
    """CuPy's generator over NumPy's; its state lies on one device, and so must what it draws."""

    def __init__(self, bit_generator):
        self._bits = bit_generator

    def _drawn(self, draw, *args):
        _check_device([self._bits])
        tell("launches")
        return _new(np.asarray(draw(*args)))

    def standard_normal(self, size=None, dtype=np.float64, out=None):
        return self._drawn(self._bits._source.standard_normal, size, dtype)

    def integers(self, low, high=None, size=None, dtype=np.int64, endpoint=False):
        return self._drawn(self._bits._source.integers, low, high, size, dtype, endpoint)


# -- cuSOLVER ---------------------------------------------------------------------------------------------------------

LOWER = NAMES["cupy.cuda.cublas"]["CUBLAS_FILL_MODE_LOWER"]


def get_cusolver_handle():
    return 1000 + CURRENT.devices[-1]


def _memory(address, dtype, *shape):
    """The numbers at an address."""
    kind = {"float32": ctypes.c_float, "float64": ctypes.c_double, "int32": ctypes.c_int32, "uint64": ctypes.c_uint64}
    block = (kind[np.dtype(dtype).name] * math.prod(shape)).from_address(address)
    return np.frombuffer(block, dtype=dtype).reshape(shape)


def _factorised(dtype, uplo, n, address, lda, info):
    """LAPACK's potrf in place, columns first; `info` is where the first minor is not positive, and 0 for success."""
    A = _memory(address, dtype, n, lda)[:, :n]
    potrf = scipy.linalg.lapack.dpotrf if dtype == "float64" else scipy.linalg.lapack.spotrf
    found, _memory(info, "int32", 1)[0] = potrf(A.T, lower=uplo == LOWER, clean=False)
    A[...] = found.T


def _cusolver(letter, dtype):
    """The routines of one dtype, with the signatures of `cupy.cuda.cusolver`."""

    def buffer_size(handle, uplo, n, A, lda):
        return n

    def potrf(handle, uplo, n, A, lda, work, lwork, dev_info):
        assert (handle, lwork) == (get_cusolver_handle(), n)
        _memory(work, dtype, lwork)[...] = 0.0
        tell("launches")
        _factorised(dtype, uplo, n, A, lda, dev_info)

    def potrf_batched(handle, uplo, n, Aarray, lda, info, batch_size):
        assert handle == get_cusolver_handle()
        tell("launches")
        for i, address in enumerate(_memory(Aarray, "uint64", batch_size).tolist()):
            _factorised(dtype, uplo, n, address, lda, info + 4 * i)

    return {f"{letter}potrf_bufferSize": buffer_size, f"{letter}potrf": potrf, f"{letter}potrfBatched": potrf_batched}


# -- what cupyx has ---------------------------------------------------------------------------------------------------


class errstate:  # noqa: N801 - CuPy's name
    """Failures of factorisations are errors inside, and each factorisation waits for its outcome."""

    def __init__(self, *, divide=None, over=None, under=None, invalid=None, linalg=None):
        if (divide, over, under, invalid) != (None,) * 4 or linalg not in (None, "ignore", "raise"):
            raise NotImplementedError
        self._linalg = linalg

    def __enter__(self):
        self._before = CURRENT.linalg
        CURRENT.linalg = self._linalg or self._before

    def __exit__(self, *_):
        CURRENT.linalg = self._before


def solve_triangular(a, b, trans=0, lower=False, unit_diagonal=False, overwrite_b=False, check_finite=False):
    if not _holds_arrays([a, b]):
        msg = "cupy.linalg only supports cupy.ndarray"
        raise np.linalg.LinAlgError(msg)
    if check_finite:
        tell("reads", 2)
    _check_device([a, b])
    tell("launches", 2 + (not a.flags.f_contiguous))  # cuBLAS takes columns first: b is copied, and a row-major a
    with np.errstate(all="ignore"):
        found = _solved(a._host, b._host, trans, lower, unit_diagonal)
    return _new(np.asfortranarray(found) if found.ndim == 2 else found)


def _solved(a, b, trans, lower, unit):
    """SciPy's answer, for which a zero on the diagonal is an error; of cuBLAS, which divides by it, nothing finite."""
    if a.shape[-1] == 0 or not np.all(unit or np.diagonal(a, axis1=-2, axis2=-1)):
        return np.full(b.shape, np.nan, b.dtype)
    if a.ndim > 2:
        return np.stack([_solved(one, other, trans, lower, unit) for one, other in zip(a, b, strict=True)])
    options = {"trans": trans, "lower": lower, "unit_diagonal": unit, "check_finite": False}
    return scipy.linalg.solve_triangular(a, b, **options)


# -- modules ----------------------------------------------------------------------------------------------------------

OWN = {
    "cupy": {
        "array": array, "asarray": asarray, "asnumpy": asnumpy, "clip": clip, "fuse": fuse, "matmul": matmul,
        "ndarray": ndarray, "ufunc": ufunc, "where": where,
        "get_default_memory_pool": lambda: SimpleNamespace(total_bytes=lambda: 2**24),
    },
    "cupy.linalg": {"matmul": matmul},
    "cupy.cuda": {"Device": Device, "is_available": lambda: True},
    "cupy.cuda.device": {"Device": Device, "get_cusolver_handle": get_cusolver_handle},
    "cupy.cuda.runtime": {"getDeviceCount": lambda: DEVICES},
    "cupy.cuda.cublas": NAMES["cupy.cuda.cublas"],
    "cupy.cuda.cusolver": _cusolver("s", "float32") | _cusolver("d", "float64"),
    "cupy.random": {"Generator": Generator, "Philox4x3210": Philox4x3210},
    "cupyx": {"errstate": errstate},
    "cupyx.scipy.linalg": {"solve_triangular": solve_triangular},
    "cupyx.scipy.special": {"polygamma": _polygamma},
}  # fmt: skip
"""What is written here."""
COMPUTED_BY = {
    "cupy": np, "cupy.linalg": np.linalg, "cupy.fft": np.fft, "cupyx.scipy.special": scipy.special,
}  # fmt: skip
"""Whose functions compute the rest, under the same names."""
PACKAGES = ("cupyx.scipy",)


def _members(module: str) -> dict[str, Any]:
    """What a module of CuPy has, and nothing else."""
    own, source, found = OWN.get(module, {}), COMPUTED_BY.get(module), {}
    for name, what in NAMES[module].items():
        theirs = getattr(source, name, None)
        if name in own:
            found[name] = own[name]
        elif what in ("type", "value"):
            found[name] = theirs
        elif theirs is None:
            found[name] = _unsupported(f"{module}.{name}")
        elif "->" in what:
            found[name] = ufunc(name, what, theirs)
        else:
            found[name] = _function(name, what, theirs, module == "cupy.linalg" and name in FACTORISATIONS)
    return found


def _complete() -> None:
    """Give arrays the methods and operators of the list that are not written above."""
    for name, what in NAMES["cupy.ndarray"].items():
        if what.startswith("(") and name not in vars(ndarray) and hasattr(np.ndarray, name):
            compute = getattr(np.ndarray, name)
            setattr(ndarray, name, _function(name, what.replace("(", "(self, ", 1), compute))
    cupy = modules()["cupy"]
    for name, function in OPERATORS.items():
        compute = getattr(cupy, function)
        setattr(ndarray, f"__{name}__", lambda self, other, f=compute: _operated(f, self, other))
        if name != "matmul":
            _give_operator(name, compute)
        if name not in COMPARISONS:
            setattr(ndarray, f"__r{name}__", lambda self, other, f=compute: _operated(f, other, self))
            setattr(ndarray, f"__i{name}__", lambda self, other, f=compute: f(self, other, out=self))
    for name, function in {"neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}.items():
        compute = getattr(cupy, function)
        setattr(ndarray, f"__{name}__", lambda self, f=compute: f(self))
        if name in ("neg", "invert"):
            setattr(_Placeholder, f"__{name}__", lambda self, f=compute: f(self))
    del ndarray.__imatmul__


def _give_operator(name: str, compute: Callable) -> None:
    """An operator of placeholders. They have no number to an array's power, and those in place would change arrays."""
    setattr(_Placeholder, f"__{name}__", lambda self, other: compute(self, other))
    if name not in COMPARISONS:
        setattr(_Placeholder, f"__i{name}__", _unsupported(f"{name} in place inside of a kernel"))
        if name != "pow":
            setattr(_Placeholder, f"__r{name}__", lambda self, other: compute(other, self))


OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power", "matmul": "matmul", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "lshift": "left_shift", "rshift": "right_shift",
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal",
}  # fmt: skip
COMPARISONS = {"lt", "le", "gt", "ge", "eq", "ne"}


def _operated(f, x, y):
    for each in (x, y):
        if not isinstance(each, (ndarray, np.ndarray, np.generic, bool, int, float, complex)):
            return NotImplemented
    return f(x, y)


_modules: dict[str, ModuleType] = {}


def modules() -> dict[str, ModuleType]:
    """CuPy's modules by name, and those of `array_api_compat` and of the plug-in over them, made once."""
    if not _modules:
        names = [*(name for name in NAMES if name in OWN or name in COMPUTED_BY), *PACKAGES]
        for name in names:
            _modules[name] = module = ModuleType(name)
            module.__spec__ = ModuleSpec(name, None, is_package=True)
            module.__dict__.update({} if name in PACKAGES else _members(name))
        for name in names:
            owner, _, own = name.rpartition(".")
            if owner:
                setattr(_modules[owner], own, _modules[name])
        _complete()
        _modules.update(_over_them())
    return _modules


def _over_them() -> dict[str, ModuleType]:
    """`array_api_compat.cupy` and the plug-in, imported where CuPy is this."""
    ours = ("array_api_compat.cupy", "agp_backends._cupy")
    before = {name: sys.modules.pop(name) for name in [*sys.modules] if name.startswith((*_modules, *ours))}
    sys.modules.update(_modules)
    try:
        for name in ours:
            importlib.import_module(name)
        return {name: module for name, module in sys.modules.items() if name.startswith(ours)}
    finally:
        for name in [*sys.modules]:
            if name.startswith(ours) or name in _modules:
                del sys.modules[name]
        sys.modules.update(before)
        vars(array_api_compat).pop("cupy", None)


def install(monkeypatch: Any) -> Any:
    """Make the stand-in CuPy, and give back the plug-in over it; undone by `monkeypatch`."""
    for name, module in modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(array_api_compat, "cupy", _modules["array_api_compat.cupy"], raising=False)
    plugin = _plugin()
    monkeypatch.setitem(importlib.import_module("agp.backend._discovery")._REGISTERED, "cupy", plugin)
    monkeypatch.setitem(importlib.import_module("agp.backend._discovery")._BY_TYPE, ndarray, plugin)
    return plugin


_plugins: list[Any] = []


def _plugin() -> Any:
    if not _plugins:
        _plugins.append(_modules["agp_backends._cupy"].CupyBackend())
    return _plugins[0]
