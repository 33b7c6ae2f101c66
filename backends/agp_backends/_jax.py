"""JAX plug-in: closed-form gradients or `jax.grad`, and whole training steps under `jax.jit`.

The plug-in respects the user's JAX settings. Without ``jax_enable_x64``, float64 arrays raise an error.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache, partial, wraps
from typing import Any

import jax
import jax.numpy as xp
import jax.scipy.linalg
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import jaxpr_as_fun

from agp import tree
from agp.backend import Array, Backend, ClosedForm, Pullback
from agp.errors import BackendError
from agp.random import Noise
from agp.repairs import Kind, Report, collect_reports, pack_reports, propagate_reports, sum_reports
from agp_backends._cuda import whole_block
from agp_backends._threads import one_thread

try:
    from jax.extend.core import get_opaque_trace_state as _trace
except ImportError:  # older JAX
    _trace = partial(jax.core.get_opaque_trace_state, "flax")

FLOATS = "real floating"
OUTERMOST = _trace()
THREADS = one_thread("blas")  # on a CPU, JAX factorises matrices with SciPy's LAPACK

QUICK_OPTIONS = {"xla_cpu_use_fusion_emitters": False}
"""XLA options for a CPU: they disable the fusion emitters, which take a quarter of the compilation time without
speeding up the code."""


class JaxBackend(Backend):
    name = "jax"
    xp = xp
    array_types = (jax.Array, jax.core.Tracer)  # tracers replace arrays while a function is traced
    gradients = ("closed-form", "autodiff")
    loops_on_device = True
    special_module = "jax.scipy.special"
    needs_context = True

    def __init__(self) -> None:
        tree.on_model_class(_register)

    # -- arrays -----------------------------------------------------------------------------------------------------

    def devices(self) -> list[str]:
        return [_name(device) for device in _devices()]

    def device_name(self, x: Array, /) -> str:
        return _name(x.device) if self.is_concrete(x) else ""

    def like(self, x: Array, /) -> dict[str, Any]:
        # a tracer has no device
        return {"dtype": x.dtype, "device": x.device} if self.is_concrete(x) else {"dtype": x.dtype}

    def widest_float(self, x: Array, /) -> Any:
        return np.dtype(np.float64 if jax.config.jax_enable_x64 else np.float32)

    def from_numpy(self, x: Any, /, *, dtype: str | None = None, device: str | None = None) -> Array:
        chosen = next((d for d in _devices() if device in (_name(d), _platform(d))), None) if device else None
        if device and chosen is None:
            msg = f"JAX has no device {device!r} here; use one of {', '.join(self.devices())}."
            raise ValueError(msg)
        host = np.array(x, dtype=dtype)
        if host.dtype == np.float64 and not jax.config.jax_enable_x64:
            msg = (
                "JAX has no float64 arrays by default; "
                'call jax.config.update("jax_enable_x64", True), or use dtype="float32".'
            )
            raise BackendError(msg)
        return jax.device_put(host, chosen)

    def enable_float64(self) -> None:
        jax.config.update("jax_enable_x64", True)

    def to_numpy(self, x: Array, /) -> Any:
        return np.asarray(x)

    def generator(self, x: Array, /, *seeds: Any) -> Noise:
        return _Noise(x, seeds, x.device if self.is_concrete(x) else None)

    def synchronise(self, x: Array, /) -> None:
        x.block_until_ready()

    def reading_waits(self, x: Array, /) -> bool:
        return self.is_concrete(x) and x.device.platform != "cpu"

    def peak_memory(self, x: Array, /) -> float:
        statistics = x.device.memory_stats()  # None on the host
        return statistics["peak_bytes_in_use"] / 2**20 if statistics else super().peak_memory(x)

    def device_memory(self, x: Array, /) -> float | None:
        return _memory(min(x.devices(), key=lambda device: device.id) if self.is_concrete(x) else jax.devices()[0])

    def context(self, x: Array, /) -> contextlib.AbstractContextManager[Any]:
        on_host = self.is_concrete(x) and _on_cpu(x)
        return self._on_one_thread() if on_host else self._full_precision()

    @contextlib.contextmanager
    def _on_one_thread(self) -> Iterator[None]:
        with self._full_precision(), THREADS:
            yield

    def _full_precision(self) -> contextlib.AbstractContextManager[Any]:
        # by default, some devices round the factors of float32 products to TF32 or bfloat16
        asked = jax.config.jax_default_matmul_precision is not None
        return contextlib.nullcontext() if asked else jax.default_matmul_precision("highest")

    def is_concrete(self, x: Array, /) -> bool:
        return not isinstance(x, jax.core.Tracer)

    # -- mathematics beyond the standard ----------------------------------------------------------------------------

    def device_block(self, x: Array, /) -> float:
        device = x.device if self.is_concrete(x) else jax.devices()[0]  # a tracer has no device: use the default one
        if _platform(device) != "cuda":
            return 0.0
        major, _, minor = str(device.compute_capability).partition(".")
        return whole_block(x.dtype == np.float64, (int(major), int(minor)))

    def cholesky(self, A: Array, /) -> Array:
        return _cholesky(A)

    def solve_triangular(self, L: Array, B: Array, /, *, transpose: bool = False) -> Array:
        return jax.scipy.linalg.solve_triangular(L, B, lower=True, trans=1 if transpose else 0)

    def reduced_precision(self, precision: str, x: Array, /) -> tuple[Any, Callable]:
        if precision == "bfloat16":
            return xp.bfloat16, contextlib.nullcontext
        platform = _platform(x.device) if self.is_concrete(x) else jax.default_backend()
        if precision == "tf32" and platform not in ("cuda", "gpu"):
            msg = (
                f"JAX supports tf32 products only on CUDA devices, not on {platform}; use precision='float32' or None."
            )
            raise BackendError(msg)
        return xp.float32, lambda: jax.default_matmul_precision("tensorfloat32" if precision == "tf32" else "float32")

    # -- control flow -----------------------------------------------------------------------------------------------

    def cond(self, predicate: Array, if_true: Callable, if_false: Callable, /, *, likely: bool | None = None) -> Any:
        if self.is_concrete(predicate):
            return super().cond(predicate, if_true, if_false, likely=likely)
        branches = [_trace_once(branch) for branch in (if_true, if_false)]
        kinds = _kinds(*(reports for _, _, reports in branches))

        def padded(run: Callable) -> Callable:
            def branch() -> tuple[Any, list[Array]]:
                value, reports = run()
                return value, _rows(reports, kinds)

            return branch

        value, rows = jax.lax.cond(predicate, *(padded(run) for run, _, _ in branches))
        propagate_reports(_reports(kinds, rows))
        return value

    def while_loop(
        self, condition: Callable[..., Array], body: Callable[..., tuple], carry: tuple, /, **known: Any
    ) -> tuple:
        # an eager device loop would be traced in each call: a Python loop is 30 times faster
        if all(self.is_concrete(x) for x in carry):
            return super().while_loop(condition, body, carry, **known)
        carry = jax.tree.map(lambda x: xp.asarray(x, x.dtype), tuple(carry))
        run, _, reports = _trace_once(lambda *c: tuple(body(*c)), *carry)
        kinds = _kinds(reports)

        def once(state: tuple) -> tuple:
            value, new = run(*state[0])
            return value, _rows([*_reports(kinds, state[1]), *new], kinds)

        value, rows = jax.lax.while_loop(lambda state: condition(*state[0]), once, (carry, _rows([], kinds)))
        propagate_reports(_reports(kinds, rows))
        return value

    def repeat(self, f: Callable, carry: Any, rows: Any, count: Array, /) -> tuple[Any, dict[str, Array]]:
        def row(i: Any) -> Any:
            return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), rows)

        carry = jax.tree.map(lambda x: xp.asarray(x, x.dtype), carry)
        run, (_, logged), reports = _trace_once(f, carry, row(0))
        length, kinds = jax.tree.leaves(rows)[0].shape[0], _kinds(reports)
        empty = {name: xp.zeros((length,), x.dtype) for name, x in logged.items()}

        def once(state: tuple) -> tuple:
            i, carry, told, numbers = state
            (carry, logged), new = run(carry, row(i))
            told = {name: told[name].at[i].set(x) for name, x in logged.items()}
            return i + 1, carry, told, _rows([*_reports(kinds, numbers), *new], kinds)

        start = xp.zeros((), count.dtype), carry, empty, _rows([], kinds)
        _, carry, told, numbers = jax.lax.while_loop(lambda state: state[0] < count, once, start)
        propagate_reports(_reports(kinds, numbers))
        return carry, told

    def fold(
        self, f: Callable, params: Any, rows: Any, block_rows: int, /, *, add: Callable, kept_rows: int = 0
    ) -> tuple[Any, Pullback]:
        # Under jit, a Python loop is unrolled and keeps every block in memory; a scan over stacked blocks keeps one.
        if all(self.is_concrete(x) for x in jax.tree.leaves((params, rows))):
            return super().fold(f, params, rows, block_rows, add=add, kept_rows=kept_rows)

        def total_of(g: Callable) -> Any:
            return _scan_blocks(lambda block: (g(block), None), rows, block_rows, add)[0]

        def pullback(bar: Any) -> Any:
            with collect_reports():  # repairs were reported with the value
                return total_of(lambda block: f(params, block)[1](bar))

        value_of = self.remat(lambda params, block: f(params, block)[0])
        return total_of(lambda block: value_of(params, block)), pullback

    def map_rows(
        self, f: Callable, params: Any, X: Array, block_rows: int, /, *, add: Callable
    ) -> tuple[Array, Callable[[Array], tuple[Any, Array]]]:
        if all(self.is_concrete(x) for x in jax.tree.leaves((params, X))):
            return super().map_rows(f, params, X, block_rows, add=add)

        def pullback(bar: Array) -> tuple[Any, Array]:
            with collect_reports():  # repairs were reported with the value
                return _scan_blocks(lambda block: f(params, block[0])[1](block[1]), (X, bar), block_rows, add)

        value_of = self.remat(lambda params, block: f(params, block)[0])
        return _scan_blocks(lambda block: (None, value_of(params, block)), X, block_rows, add)[1], pullback

    def remat(self, f: Callable, /) -> Callable:
        again = _reporting(jax.checkpoint(_with_reports(f)))

        def evaluated(*args: Any) -> Any:
            # no checkpoint for concrete values, because it would compile f at every call
            values = all(self.is_concrete(x) for x in jax.tree.leaves(args))
            return f(*args) if values else again(*args)

        return evaluated

    def compile(self, f: Callable, /) -> Callable:
        @wraps(f)  # for the name in JAX's logs and profiles
        def recorded(*args: Any) -> tuple[Any, list[Report]]:
            value, reports = _with_reports(f)(*args)
            return value, pack_reports(reports)

        # results of a compiled step are committed to a device; uncommitted arguments would compile it twice
        quick = jax.jit(recorded, compiler_options=QUICK_OPTIONS) if _takes(**QUICK_OPTIONS) else jax.jit(recorded)
        anywhere, on_cpu = _reporting(jax.jit(recorded)), _reporting(quick)

        def compiled(*args: Any) -> Any:
            if _trace() != OUTERMOST or any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(args)):
                return anywhere(*args)  # inside another transformation, its options apply
            bound = jax.tree.map(_bind_device, args)
            return (on_cpu if _on_cpu(bound) else anywhere)(*bound)

        return compiled

    # -- gradients --------------------------------------------------------------------------------------------------

    def asks_gradient(self, x: Array, /) -> bool:
        return not self.is_concrete(x)

    def with_pullback(self, f: ClosedForm, arrays: dict[str, Array], /) -> Array:
        def precise(arrays: dict[str, Array]) -> tuple[Array, Callable]:
            with self._full_precision():  # JAX may trace f after this call
                return f(arrays)

        value_of: Any = jax.custom_vjp(lambda arrays: precise(arrays)[0])

        def forward(primals: dict[str, Any]) -> tuple[Array, Callable]:
            asked = tuple(name for name, x in primals.items() if x.perturbed and xp.isdtype(x.value.dtype, FLOATS))
            value, pullback = precise({name: x.value for name, x in primals.items()})
            with self._full_precision():
                return value, _as_residual(lambda bar: dict(pullback(bar, asked)), value)

        def backward(pullback: Callable, bar: Any) -> tuple[dict[str, Array | None]]:
            bars = {} if isinstance(bar, SymbolicZero) else pullback(bar)
            return ({name: bars.get(name) for name in arrays},)

        value_of.defvjp(forward, backward, symbolic_zeros=True)
        return value_of(arrays)

    def stop_gradient(self, x: Array, /) -> Array:
        return jax.lax.stop_gradient(x)

    def value_and_grad(self, f: Callable, leaves: dict[str, Array], /) -> tuple[Array, dict[str, Array]]:
        (value, reports), grads = jax.value_and_grad(_with_reports(f), has_aux=True)(leaves)
        propagate_reports(reports)
        return value, grads


class _Noise(Noise):
    """Random numbers with the dtype of an array, with a new key for each call; the last seed may be traced."""

    def __init__(self, beside: Array, seeds: tuple[Any, ...], device: Any) -> None:
        self._key, self._last, self._dtype, self._calls = _key(seeds[:-1], device), seeds[-1], beside.dtype, 0

    def _draw(self, draw: Callable, *settings: Any) -> Array:
        self._calls += 1
        return draw(self._key, self._last, self._calls, *settings)

    def standard_normal(self, size: Any = ()) -> Array:
        return self._draw(_normal, size, self._dtype)

    def integers(self, low: int, high: int, size: Any = ()) -> Array:
        return self._draw(_integers, size, low, high)


@lru_cache(maxsize=16)
def _key(seeds: tuple[int, ...], device: Any) -> Array:
    words = np.random.SeedSequence(seeds).generate_state(2) >> 1  # also valid as 32-bit integers
    with jax.ensure_compile_time_eval():  # the result is cached, even while tracing
        key = jax.random.fold_in(jax.random.key(int(words[0])), int(words[1]))
        return key if device is None else jax.device_put(key, device)


def _fold_key(key: Array, last: Array, calls: Array) -> Array:
    return jax.random.fold_in(jax.random.fold_in(key, last), calls)


@partial(jax.jit, static_argnames=("size", "dtype"))
def _normal(key: Array, last: Array, calls: Array, size: Any, dtype: Any) -> Array:
    return jax.random.normal(_fold_key(key, last, calls), size, dtype)


@partial(jax.jit, static_argnames=("size",))
def _integers(key: Array, last: Array, calls: Array, size: Any, low: int, high: int) -> Array:
    return jax.random.randint(_fold_key(key, last, calls), size, low, high)


@jax.custom_jvp
def _cholesky(A: Array) -> Array:
    return xp.linalg.cholesky(A)


@_cholesky.defjvp
def _cholesky_tangent(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # dL = L Phi(L^-1 dA L^-T). A failed factor has a zero tangent: otherwise the branch that a repair does not take
    # would contribute zero times NaN.
    L, dA = _cholesky(primals[0]), tangents[0]
    there = xp.all(xp.isfinite(L), axis=(-2, -1), keepdims=True)
    safe = xp.where(there, L, xp.eye(L.shape[-1], dtype=L.dtype))
    dA = xp.where(there, 0.5 * (dA + dA.mT), 0.0)
    solve = jax.scipy.linalg.solve_triangular
    dS = xp.tril(solve(safe, solve(safe, dA, lower=True).mT, lower=True))
    return L, safe @ (dS - 0.5 * dS * xp.eye(L.shape[-1], dtype=L.dtype))


def _devices() -> list[Any]:
    """List the devices on the CPU and the default platform."""
    return [*jax.devices("cpu"), *(device for device in jax.devices() if device.platform != "cpu")]


def _platform(device: Any) -> str:
    return "cuda" if device.platform == "gpu" else device.platform


def _name(device: Any) -> str:
    return "cpu" if device.platform == "cpu" and device.id == 0 else f"{_platform(device)}:{device.id}"


@cache
def _memory(device: Any) -> float | None:
    """Memory limit of a device's allocator in MiB, or None on the host; the result is cached."""
    statistics = device.memory_stats()
    return statistics["bytes_limit"] / 2**20 if statistics else None


def _bind_device(x: Any) -> Any:
    """Commit an array to its device; return other objects unchanged."""
    return x if getattr(x, "committed", True) else jax.device_put(x, x.device)


def _on_cpu(args: Any) -> bool:
    """Whether the arrays are on a CPU; all arrays must be on the same device."""
    first = next((x for x in jax.tree.leaves(args) if isinstance(x, jax.Array)), None)
    return first is not None and all(device.platform == "cpu" for device in first.devices())


@cache
def _takes(**options: Any) -> bool:
    """Whether this version of JAX accepts all these options, and the user has set none of them."""
    if any(name in os.environ.get("XLA_FLAGS", "") for name in options):
        return False
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except (TypeError, RuntimeError):  # no such argument, no such option
        return False
    return True


def _as_residual(pullback: Callable, value: Array) -> Callable:
    """Convert a pullback to a pytree: custom differentiation rules do not accept closures."""
    closed, shapes = jax.make_jaxpr(pullback, return_shape=True)(value)
    structure = jax.tree.structure(shapes)

    def run(*args: Array) -> Any:
        return jax.tree.unflatten(structure, jax.core.eval_jaxpr(closed.jaxpr, args[:-1], args[-1]))

    return jax.tree_util.Partial(run, *closed.consts)


@cache  # JAX raises an error if a class is registered twice
def _register(cls: type) -> None:
    jax.tree_util.register_pytree_node(cls, tree.split, lambda settings, arrays: tree.join(cls, settings, arrays))


def _scan_blocks(g: Callable, rows: Any, block_rows: int, add: Callable) -> tuple[Any, Any]:
    """Apply `g(block) -> (summed, by_row)` to blocks of rows; sum the first result and concatenate the second.

    A single scan processes the blocks of equal size, and another call of g processes the remaining rows. Reports of the
    same kind from the scan are combined into one.
    """
    g = _with_reports(g)
    equal, rest = _stack_blocks(rows, block_rows)
    first = jax.eval_shape(lambda blocks: g(jax.tree.map(lambda x: x[0], blocks)), equal)
    (zeros, _), reports = jax.tree.map(lambda x: xp.zeros(x.shape, x.dtype), first)
    kinds = _kinds(reports)

    def step(state: tuple, block: Any) -> tuple:
        (value, by_row), new = g(block)
        old = _reports(kinds, state[1])
        return (jax.tree.map(xp.add, state[0], value), _rows([*old, *new], kinds)), by_row

    (total, found), by_row = jax.lax.scan(step, (zeros, _rows([], kinds)), equal)
    propagate_reports(_reports(kinds, found))
    by_row = jax.tree.map(lambda x: xp.reshape(x, (-1, *x.shape[2:])), by_row)
    if rest is not None:
        (value, others), new = g(rest)
        propagate_reports(new)
        total = add(total, value)
        by_row = jax.tree.map(lambda *parts: xp.concat(parts, axis=0), by_row, others)
    return total, by_row


def _stack_blocks(rows: Any, block_rows: int) -> tuple[Any, Any]:
    """Stack the blocks of equal size along a new leading axis; also return the remaining rows, or None."""
    N = jax.tree.leaves(rows)[0].shape[0]
    count, size = (N // block_rows, block_rows) if block_rows < N else (1, N)
    equal = jax.tree.map(lambda x: xp.reshape(x[: count * size], (count, size, *x.shape[1:])), rows)
    return equal, jax.tree.map(lambda x: x[count * size :], rows) if count * size < N else None


# -- reports out of traces --------------------------------------------------------------------------------------------


def _with_reports(f: Callable) -> Callable:
    """Wrap f so that it returns its value together with the reports that are made inside f."""

    def recorded(*args: Any) -> tuple[Any, list[Report]]:
        with collect_reports(_Here()) as reports:
            value = f(*args)
        return value, list(reports)

    return recorded


class _Here(list):
    """A list that accepts reports only from the trace that created the list; reports of other traces would leak."""

    def __init__(self) -> None:
        super().__init__()
        self.trace = _trace()

    def extend(self, reports: Iterable[Report], /) -> None:
        if _trace() == self.trace:
            super().extend(reports)


def _reporting(f: Callable) -> Callable:
    """Undo `_with_reports` after f has been transformed: return only the value, and pass the reports on."""

    def reporting(*args: Any) -> Any:
        value, reports = f(*args)
        propagate_reports(reports)
        return value

    return reporting


def _trace_once(f: Callable, *args: Any) -> tuple[Callable, Any, list[Report]]:
    """Trace `_with_reports(f)` once; return the traced function, the shapes of its value, and its reports."""
    closed, shapes = jax.make_jaxpr(_with_reports(f), return_shape=True)(*args)
    structure = jax.tree.structure(shapes)

    def run(*args: Any) -> tuple[Any, list[Report]]:
        return jax.tree.unflatten(structure, jaxpr_as_fun(closed)(*jax.tree.leaves(args)))

    return run, *shapes


def _kinds(*reports: list[Report]) -> dict[Kind, Any]:
    """The kinds of reports in the order of their first occurrence, with the dtype of their numbers."""
    return {kind: x.numbers.dtype for several in reports for x in several for kind in x.kinds}


def _rows(reports: list[Report], kinds: dict[Kind, Any]) -> list[Array]:
    """The numbers of each kind of report; zeros for kinds that were not reported."""
    known = sum_reports(reports)
    return [known[kind] if kind in known else xp.zeros(1 + kind.size, dtype) for kind, dtype in kinds.items()]


def _reports(kinds: dict[Kind, Any], rows: list[Array]) -> list[Report]:
    return [Report((kind,), row) for kind, row in zip(kinds, rows, strict=True)]
