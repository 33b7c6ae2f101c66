"""PyTorch plug-in: closed-form gradients or autograd, on the CPU and on devices of CUDA, XPU (Intel) and MPS (Apple).

`compile` returns its argument, because torch's compiler silently removed the jitter from Cholesky factorisations. On
CUDA devices, the launches of an eager step can be recorded instead (`capture`).
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar

import array_api_compat.torch as compat
import numpy as np
import torch
from torch._C import _functorch as functorch
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

from agp.backend import Array, Backend, ClosedForm, constant, is_row_major
from agp.errors import BackendError
from agp.random import Noise
from agp.repairs import collect_reports
from agp_backends._cuda import whole_block
from agp_backends._graphs import capture
from agp_backends._threads import one_thread

T = TypeVar("T")

SMALL = 2**16
"""Maximum number of entries in arrays that are joined, where a copy takes less time than separate launches."""
APART = 128
"""Alignment of joined arrays, in entries: at least 512 bytes, as for new arrays, because products and sums round
differently with other alignments."""

ALIGNMENT = {"cpu": 64, "cuda": 512}
"""Alignment of new arrays, in bytes, where it affects how products and sums round."""

WIDE = "dtype" in torch.ops.aten.mm.overloads() and torch.version.hip is None
"""Whether torch can return products of bfloat16 matrices in float32, on CUDA devices: from torch 2.8 on."""

HOST = one_thread("blas")  # for computations outside torch, such as the steps of L-BFGS
THREADS = one_thread("openmp")  # torch.set_num_threads would also affect new threads


def _take(x: Array, indices: Array, /, *, axis: int | None = None) -> Array:
    if indices.ndim == 1:  # one call instead of the four of the compatibility wrapper
        return torch.index_select(x, 0 if axis is None else axis, indices)
    return compat.take(x, indices, axis=axis)


def _asarray(x: Any, /, *, copy: bool | None = None, **kind: Any) -> Array:
    if isinstance(x, torch.Tensor) and x.requires_grad:  # torch.asarray would detach x, or from torch 2.13 on warn
        return x.to(copy=bool(copy), **kind)
    return compat.asarray(x, copy=copy, **kind)


xp = SimpleNamespace(
    **vars(compat) | {"asarray": _asarray, "take": _take, "isfinite": lambda x, /: torch.abs(x) < math.inf}
)
"""Array API namespace of torch; `take` and `isfinite` are versions with fewer torch calls."""


def _ndtr(x: Array) -> Array:
    # torch.special.ndtr loses all digits in the left tail; erfc does not
    return 0.5 * torch.special.erfc(-math.sqrt(0.5) * x)


def _log_ndtr(x: Array) -> Array:
    if x.device.type != "mps":
        return torch.special.log_ndtr(x)
    scaled = math.sqrt(0.5) * x  # MPS lacks log_ndtr; erfcx keeps the digits of the left tail, log1p those of the right
    left = torch.log(0.5 * torch.special.erfcx(-scaled.clamp(max=0.0))) - scaled**2
    return torch.where(x < 0.0, left, torch.log1p(-0.5 * torch.special.erfc(scaled.clamp(min=0.0))))


def _polygamma(n: int, x: Array) -> Array:
    # torch's function loses seven digits at n = 1
    if n == 0:
        return torch.special.digamma(x)
    return (-1.0) ** (n + 1) * math.factorial(n) * torch.special.zeta(n + 1.0, x)


class _Later:
    """A function that autograd calls after a value has been computed, on a thread of its own for CUDA devices.

    It sees the context variables of the value, such as guesses about branches. Repairs are not reported again.
    """

    def __init__(self, f: Callable) -> None:
        self.f, self.context = f, copy_context()

    def __call__(self, *args: Any) -> Any:
        return self.context.copy().run(self._silently, *args)

    def _silently(self, *args: Any) -> Any:
        with collect_reports():
            return self.f(*args)


class _Kept:
    """Holder that passes the pullback from the value of a `_ClosedForm` to its gradient."""

    pullback: Callable


class _ClosedForm(torch.autograd.Function):
    """A value with a given pullback; autograd records no operations of the value or of the pullback."""

    @staticmethod
    def forward(f: ClosedForm, names: tuple[str, ...], kept: _Kept, *arrays: Array) -> Array:  # type: ignore[override]
        value, pullback = f({name: x.detach() for name, x in zip(names, arrays, strict=True)})
        kept.pullback = _Later(pullback)
        return value.clone()  # a copy avoids a reference cycle: the pullback may hold the value

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Array) -> None:  # separate for torch.func
        _, ctx.names, kept, *arrays = inputs
        ctx.pullback = kept.pullback
        ctx.save_for_backward(*arrays)

    @staticmethod
    def backward(ctx: Any, bar: Array) -> tuple[Array | None, ...]:  # type: ignore[override]
        asked = tuple(name for name, needed in zip(ctx.names, ctx.needs_input_grad[3:], strict=True) if needed)
        with torch.no_grad(), _in_own_dtype(bar):
            bars = ctx.pullback(bar, asked)
        out = [bars[name] if name in asked else None for name in ctx.names]
        if torch.is_grad_enabled():  # create_graph=True
            out = [x if x is None else _Last.apply(x, bar, *ctx.saved_tensors) for x in out]
        return None, None, None, *out


class _Last(torch.autograd.Function):
    """A gradient whose derivative is not available."""

    @staticmethod
    def forward(x: Array, *arrays: Array) -> Array:  # type: ignore[override]
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Array, ...], output: Array) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, bar: Array) -> Any:  # type: ignore[override]
        raise BackendError(
            "a closed-form gradient of agp has no second derivatives; leave out create_graph=True, or use "
            'model.bound(X, y, gradient="autodiff").'
        )


class _TriangularSolve(torch.autograd.Function):
    """Compute L^-1 R or L^-T R; under `torch.func.vmap`, columns with the same L take only one solve and no copies."""

    @staticmethod
    def forward(L: Array, R: Array, transpose: bool) -> Array:  # type: ignore[override]
        return torch.linalg.solve_triangular(L.mT if transpose else L, R, upper=transpose)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Array) -> None:
        ctx.transpose = inputs[2]
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, bar: Array) -> tuple[Array | None, ...]:  # type: ignore[override]
        L, X = ctx.saved_tensors
        R_bar = _TriangularSolve.apply(L, bar, not ctx.transpose)
        if not ctx.needs_input_grad[0]:
            return None, R_bar, None
        return -(X @ R_bar.mT if ctx.transpose else R_bar @ X.mT).tril(), R_bar, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Array, int]:
        (of_L, of_R, _), (L, R, transpose) = in_dims, args
        if of_L is None:
            columns = R.movedim(of_R, -1)  # [..., N, k, batch]
            found = _TriangularSolve.apply(L, columns.flatten(-2), transpose)
            return found.unflatten(-1, columns.shape[-2:]), columns.ndim - 1
        R = R.expand(info.batch_size, *R.shape) if of_R is None else R.movedim(of_R, 0)
        return _TriangularSolve.apply(L.movedim(of_L, 0), R, transpose), 0


def _has_float64(device: torch.device) -> bool:
    """Whether a device has float64: all but Apple's, and some of Intel's."""
    if device.type == "xpu":
        return bool(torch.xpu.get_device_properties(device).has_fp64)
    return device.type != "mps"


def _is_mapped(x: Array) -> bool:
    """Whether x is batched by `torch.func.vmap`, in which case the host cannot read its values."""
    while functorch.is_gradtrackingtensor(x):
        x = functorch.get_unwrapped(x)
    return functorch.is_batchedtensor(x)


@contextlib.contextmanager
def _on_one_thread(x: Array) -> Iterator[None]:
    with THREADS, HOST, _in_own_dtype(x):
        yield


def _in_own_dtype(x: Array) -> contextlib.AbstractContextManager[Any]:
    """Turn `torch.autocast` off: networks tolerate products in half precision, but factorisations do not."""
    kind = x.device.type
    is_on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if is_on else contextlib.nullcontext()


@contextlib.contextmanager
def _float32_products(quality: str) -> Iterator[None]:
    """Set torch's precision for float32 matrix products on CUDA devices inside the context."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(quality)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class _Noise(Noise):
    """Random numbers with the dtype and device of an array, generated on that device."""

    def __init__(self, beside: Array, seeds: tuple[int, ...]) -> None:
        state = np.random.SeedSequence(seeds).generate_state(1, np.uint64)
        self._source = torch.Generator(beside.device).manual_seed(int(state[0]))
        self._dtype = beside.dtype

    def standard_normal(self, size: Any = ()) -> Array:
        where = {"generator": self._source, "device": self._source.device}
        return torch.randn(size, dtype=self._dtype, **where)

    def integers(self, low: int, high: int, size: Any = ()) -> Array:
        return torch.randint(low, high, size, generator=self._source, device=self._source.device)


def _pack(arrays: Sequence[Array]) -> Array:
    """Concatenate arrays to one vector; for alignment, pad each with ones, at which every function is defined."""
    ones = constant((1.0,) * APART, arrays[0])
    return torch.cat([piece for x in arrays for piece in (x.reshape(-1), ones[: -x.numel() % APART])])


class TorchBackend(Backend):
    name = "torch"
    xp = xp
    array_types = (torch.Tensor,)
    gradients = ("closed-form", "autodiff")
    special_module = "torch.special"
    needs_context = True
    special_functions: ClassVar = {"ndtr": _ndtr, "log_ndtr": _log_ndtr, "polygamma": _polygamma}

    def devices(self) -> list[str]:
        counts = {"cuda": torch.cuda.device_count(), "xpu": torch.xpu.device_count(), "mps": torch.mps.device_count()}
        return ["cpu", *(f"{kind}:{i}" for kind, count in counts.items() for i in range(count))]

    def widest_float(self, x: Array, /) -> Any:
        return torch.float64 if _has_float64(x.device) else torch.float32

    def from_numpy(self, x: Any, /, *, dtype: str | None = None, device: str | None = None) -> Array:
        if device is not None:
            self._check_device(device)
        if str(dtype or np.asarray(x).dtype) == "float64" and not _has_float64(torch.device(device or "cpu")):
            raise ValueError(
                f"torch's device {device!r} has no float64; pass dtype='float32', or use the device 'cpu'."
            )
        with torch.inference_mode(False):  # autograd may later use arrays that are cached here
            return torch.tensor(x, dtype=getattr(torch, dtype) if dtype else None, device=device)

    def row_major(self, x: Array, /) -> Array:
        # products and sums round differently if arrays are not aligned like new ones
        if is_row_major(x.shape, x.stride()) and x.data_ptr() % ALIGNMENT.get(x.device.type, 1) == 0:
            return x
        with torch.inference_mode(False):  # autograd may later use the copy
            return x.clone(memory_format=torch.contiguous_format)

    def _check_device(self, name: str) -> None:
        try:
            torch.empty(0, device=name)
        except (AssertionError, NotImplementedError, RuntimeError) as error:  # a build without CUDA asserts
            raise ValueError(f"torch has no device {name!r} here; use one of {', '.join(self.devices())}.") from error

    def conversion(self, name: str, x: Array, dtype: str, /) -> str:
        return f"{name}.to(torch.{dtype})"

    def to_numpy(self, x: Array, /) -> Any:
        host = x.detach().cpu()
        return (host.float() if host.dtype is torch.bfloat16 else host).numpy()  # NumPy has no bfloat16

    def generator(self, x: Array, /, *seeds: Any) -> Noise:
        return _Noise(x, seeds)

    def context(self, x: Array, /) -> contextlib.AbstractContextManager[Any]:
        return _on_one_thread(x) if x.device.type == "cpu" else _in_own_dtype(x)

    def synchronise(self, x: Array, /) -> None:
        if x.device.type == "cuda":
            torch.cuda.synchronize(x.device)
        elif x.device.type == "xpu":
            torch.xpu.synchronize(x.device)
        elif x.device.type == "mps":
            torch.mps.synchronize()

    def reading_waits(self, x: Array, /) -> bool:
        return x.device.type != "cpu"

    # -- graphs of launches -----------------------------------------------------------------------------------------

    def captures(self, x: Array, /) -> bool:
        return x.device.type == "cuda"

    def capture(self, f: Callable[[], T], x: Array, /) -> tuple[Callable[[], None], T]:
        return capture(f, x.device) if self.captures(x) else super().capture(f, x)

    def overwrite(self, several: Sequence[Array], by: Sequence[Array], /, where: Array) -> None:
        moved = [(x, y) for x, y in zip(several, by, strict=True) if y is not x]
        memory = {x.untyped_storage().data_ptr() for x in several}
        # an overwritten array may be the source for another array
        new = [y.clone() if y.untyped_storage().data_ptr() in memory else y for _, y in moved]
        for (x, _), y in zip(moved, new, strict=True):
            torch.where(where, y, x, out=x)

    def copies(self, several: Sequence[Array], /) -> list[Array]:
        found = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in several]
        if found:
            torch._foreach_copy_(found, list(several))  # type: ignore[attr-defined] - few launches
        return found

    def fetch(self, x: Array, /) -> Callable[[], Any]:
        if x.device.type != "cuda":
            return super().fetch(x)
        host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
        host.copy_(x, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(x.device))

        def fetched() -> Any:
            arrived.synchronize()
            return host.numpy()

        return fetched

    # -- mathematics beyond the standard ----------------------------------------------------------------------------

    def peak_memory(self, x: Array, /) -> float:
        if x.device.type == "cuda":
            return torch.cuda.max_memory_allocated(x.device) / 2**20
        if x.device.type == "xpu":
            return torch.xpu.max_memory_allocated(x.device) / 2**20
        return super().peak_memory(x)

    def device_memory(self, x: Array, /) -> float | None:
        if x.device.type == "cuda":
            return torch.cuda.get_device_properties(x.device).total_memory / 2**20
        if x.device.type == "xpu":
            return torch.xpu.get_device_properties(x.device).total_memory / 2**20
        return torch.mps.recommended_max_memory() / 2**20 if x.device.type == "mps" else None

    def device_block(self, x: Array, /) -> float:
        if x.device.type != "cuda":
            return 0.0
        return whole_block(x.dtype == torch.float64, torch.cuda.get_device_capability(x.device))

    def elementwise_each(
        self, f: Callable, several: Sequence[tuple], /, *, numbers: Sequence = (), lower: Sequence[bool]
    ) -> list[tuple]:
        # each call is a launch, so small arrays are concatenated, and f is evaluated once for all of them
        sizes = [math.prod(arrays[0].shape) for arrays in several]
        small = [arrays for arrays, size in zip(several, sizes, strict=True) if size <= SMALL]
        differentiated = torch.is_grad_enabled() and any(x.requires_grad for arrays in several for x in arrays)
        if len(small) < 2 or differentiated:  # the derivative of each slice would take another launch
            return super().elementwise_each(f, several, numbers=numbers, lower=lower)
        joined = f(self, *map(_pack, zip(*small, strict=True)), *numbers)
        found, start = [], 0
        for arrays, size in zip(several, sizes, strict=True):
            if size > SMALL:
                found.append(f(self, *arrays, *numbers))
                continue
            found.append(tuple(x[start : start + size].reshape(arrays[0].shape) for x in joined))
            start += size + -size % APART
        return found

    def inner(self, x: Array, y: Array, /) -> Array:
        if x.device.type != "cuda":  # XPU computes dot on the CPU
            return super().inner(x, y)
        return torch.dot(x.reshape(-1), y.reshape(-1))  # a single launch, without an array of products

    def norm(self, x: Array, /) -> Array:
        return torch.linalg.vector_norm(x)

    def add_product(self, x: Array, a: Array, b: Array, /) -> Array:
        return torch.addcmul(x, a, b)

    def lerp(self, old: Array, new: Array, share: Array | float, /) -> Array:
        return torch.lerp(old, new, share)

    def squared_distances(self, X: Array, Z: Array, X_squares: Array, Z_squares: Array, /) -> Array:
        if X.device.type == "cpu" or X.ndim != 2 or Z.ndim != 2:
            return super().squared_distances(X, Z, X_squares, Z_squares)
        return torch.addmm(X_squares[:, None] + Z_squares, X, Z.mT, alpha=-2.0).clamp(min=0.0)

    def add_diagonal(self, A: Array, d: Array | float, /) -> Array:
        if isinstance(d, torch.Tensor) and _is_mapped(d):  # an in-place change is impossible if A is not mapped
            return super().add_diagonal(A, d)
        out = A.clone()
        out.diagonal(dim1=-2, dim2=-1).add_(d)
        return out

    def cholesky(self, A: Array, /) -> Array:
        with self._threads_for(A, A.numel() * A.shape[-1] / 3):
            L, info = torch.linalg.cholesky_ex(A)
        return torch.where((info == 0)[..., None, None], L, constant((math.nan,), A))

    def solve_triangular(self, L: Array, B: Array, /, *, transpose: bool = False) -> Array:
        if _is_mapped(B) and L.ndim == B.ndim == 2:
            return _TriangularSolve.apply(L, B, transpose)
        with self._threads_for(L, L.shape[-1] * B.numel()):
            return torch.linalg.solve_triangular(L.mT if transpose else L, B, upper=transpose)

    def smallest(self, A: Array, count: int, /) -> Array:
        return torch.topk(A, count, dim=1, largest=False, sorted=False).indices

    def sum_at(self, x: Array, index: Array, count: int, /) -> Array:
        return torch.zeros((count, x.shape[1]), dtype=x.dtype, device=x.device).index_add(0, index, x)

    def times_own_transpose(self, A: Array, /) -> Array:
        with self._threads_for(A, 2 * A.numel() * A.shape[-2]):
            return A @ A.mT

    def _threads_for(self, x: Array, operations: float) -> contextlib.AbstractContextManager[Any]:
        return THREADS.threads_for(operations) if x.device.type == "cpu" else contextlib.nullcontext()

    def product(self, X: Array, Y: Array, /) -> Array:
        if X.dtype != torch.bfloat16:
            return X @ Y
        if X.device.type == "cuda" and X.ndim == Y.ndim == 2:  # X @ Y would be rounded to bfloat16
            return torch.mm(X, Y, out_dtype=torch.float32) if WIDE else (X @ Y).to(torch.float32)
        return X.to(torch.float32) @ Y.to(torch.float32)  # the same: float32 holds products of two bfloat16 numbers

    def reduced_precision(self, precision: str, x: Array, /) -> tuple[Any, Callable]:
        on_cuda = x.device.type == "cuda"
        if precision == "bfloat16x3" and on_cuda and not WIDE:
            raise BackendError(
                "bfloat16x3 products on GPUs require torch 2.8 or later with CUDA; use precision='tf32x3' or None."
            )
        if precision in ("bfloat16", "bfloat16x3"):
            return torch.bfloat16, contextlib.nullcontext
        if on_cuda:
            return torch.float32, lambda: _float32_products("highest" if precision == "float32" else "high")
        if precision in ("tf32", "tf32x3"):
            raise BackendError(
                f"torch supports {precision} products only on CUDA devices, not on {x.device}; use "
                "precision='bfloat16x3', 'float32' or None."
            )
        return super().reduced_precision(precision, x)

    def remat(self, f: Callable, /) -> Callable:
        def recomputed(*args):
            again, first = _Later(f), [f]

            def each(*args):
                return (first.pop() if first else again)(*args)

            return checkpoint(each, *args, use_reentrant=False, preserve_rng_state=False)  # f uses no random numbers

        return lambda *args: recomputed(*args) if torch.is_grad_enabled() else f(*args)

    def is_concrete(self, x: Array, /) -> bool:
        return not _is_mapped(x)

    def asks_gradient(self, x: Array, /) -> bool:
        return x.requires_grad and torch.is_grad_enabled()

    def cond(self, predicate: Array, if_true: Callable, if_false: Callable, /, *, likely: bool | None = None) -> Any:
        if not _is_mapped(predicate):
            return super().cond(predicate, if_true, if_false, likely=likely)
        with collect_reports():  # mapped tensors take different branches: the reports of both branches would be wrong
            return tree_map(lambda a, b: torch.where(predicate, a, b), if_true(), if_false())

    def with_pullback(self, f: ClosedForm, arrays: dict[str, Array], /) -> Array:
        if any(map(_is_mapped, arrays.values())):  # vmap cannot map a pullback: torch differentiates the operations
            return f(arrays)[0]
        return _ClosedForm.apply(f, tuple(arrays), _Kept(), *arrays.values())

    def stop_gradient(self, x: Array, /) -> Array:
        return x.detach()

    def value_and_grad(self, f: Callable, leaves: dict[str, Array], /) -> tuple[Array, dict[str, Array]]:
        with torch.inference_mode(False), torch.enable_grad():
            inputs = {name: x.detach().clone().requires_grad_() for name, x in leaves.items()}
            value = f(inputs)
            with collect_reports():  # repairs were reported with the value
                grads = torch.autograd.grad(value, list(inputs.values()), materialize_grads=True)
        return value.detach(), dict(zip(inputs, grads, strict=True))
