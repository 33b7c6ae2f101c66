"""JAX plug-in: closed-form gradients or `jax.grad`, and whole training steps under `jax.jit`.

The plug-in respects the user's JAX settings. Without ``jax_enable_x64``, float64 arrays raise an error.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import cache, lru_cache, partial
from typing import Any

import jax
import jax.numpy as xp
import jax.scipy.linalg
import numpy as np
from jax.custom_derivatives import SymbolicZero

from agp import tree
from agp.backend import Array, Backend, ClosedForm, Pullback
from agp.errors import BackendError
from agp.random import Noise
from agp.repairs import collect_reports, propagate_reports
from agp_backends._cuda import whole_block
from agp_backends._jax_devices import is_on_cpu, list_devices, memory_of, name_of, platform_of
from agp_backends._jax_programs import compile_shared
from agp_backends._jax_traces import (
    kinds_of,
    numbers_of,
    pass_reports_on,
    reports_of,
    scan_blocks,
    trace_once,
    with_reports,
)
from agp_backends._threads import one_thread

FLOATS = "real floating"
THREADS = one_thread("blas")  # on a CPU, JAX factorises matrices with SciPy's LAPACK


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
        return [name_of(device) for device in list_devices()]

    def device_name(self, x: Array, /) -> str:
        return name_of(x.device) if self.is_concrete(x) else ""

    def like(self, x: Array, /) -> dict[str, Any]:
        # a tracer has no device
        return {"dtype": x.dtype, "device": x.device} if self.is_concrete(x) else {"dtype": x.dtype}

    def widest_float(self, x: Array, /) -> Any:
        return np.dtype(np.float64 if jax.config.jax_enable_x64 else np.float32)

    def from_numpy(self, x: Any, /, *, dtype: str | None = None, device: str | None = None) -> Array:
        chosen = next((d for d in list_devices() if device in (name_of(d), platform_of(d))), None) if device else None
        if device and chosen is None:
            raise ValueError(f"JAX has no device {device!r} here; use one of {', '.join(self.devices())}.")
        host = np.array(x, dtype=dtype)
        if host.dtype == np.float64 and not jax.config.jax_enable_x64:
            raise BackendError(
                "JAX has no float64 arrays by default; "
                'call jax.config.update("jax_enable_x64", True), or use dtype="float32".'
            )
        return jax.device_put(host, chosen)

    def enable_float64(self) -> None:
        jax.config.update("jax_enable_x64", True)

    @contextlib.contextmanager
    def float64_context(self) -> Iterator[None]:
        before = jax.config.jax_enable_x64
        self.enable_float64()
        try:
            yield
        finally:
            jax.config.update("jax_enable_x64", before)

    def conversion(self, name: str, x: Array, dtype: str, /) -> str:
        return f'{name}.astype("{dtype}")'

    def to_numpy(self, x: Array, /) -> Any:
        return np.asarray(x.astype(np.float32) if x.dtype == xp.bfloat16 else x)  # NumPy has no bfloat16

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
        return memory_of(min(x.devices(), key=lambda device: device.id) if self.is_concrete(x) else jax.devices()[0])

    def context(self, x: Array, /) -> contextlib.AbstractContextManager[Any]:
        on_host = self.is_concrete(x) and is_on_cpu(x)
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
        if platform_of(device) != "cuda":
            return 0.0
        major, _, minor = str(device.compute_capability).partition(".")
        return whole_block(x.dtype == np.float64, (int(major), int(minor)))

    def cholesky(self, A: Array, /) -> Array:
        return _cholesky(A)

    def solve_triangular(self, L: Array, B: Array, /, *, transpose: bool = False) -> Array:
        if B.ndim > 2:
            return jax.lax.linalg.triangular_solve(L, B, left_side=True, lower=True, transpose_a=transpose)
        return jax.scipy.linalg.solve_triangular(L, B, lower=True, trans=1 if transpose else 0)

    def smallest(self, A: Array, count: int, /) -> Array:
        return jax.lax.top_k(-A, count)[1]

    def sum_at(self, x: Array, index: Array, count: int, /) -> Array:
        return jax.ops.segment_sum(x, index, num_segments=count)

    def product(self, X: Array, Y: Array, /) -> Array:
        return xp.matmul(X, Y, preferred_element_type=xp.float32) if X.dtype == xp.bfloat16 else X @ Y

    def reduced_precision(self, precision: str, x: Array, /) -> tuple[Any, Callable]:
        if precision in ("bfloat16", "bfloat16x3"):
            return xp.bfloat16, contextlib.nullcontext
        platform = platform_of(x.device) if self.is_concrete(x) else jax.default_backend()
        if precision != "float32" and platform not in ("cuda", "gpu"):
            raise BackendError(
                f"JAX supports {precision} products only on CUDA devices, not on {platform}; use "
                "precision='bfloat16x3', 'float32' or None."
            )
        kind = "float32" if precision == "float32" else "tensorfloat32"
        return xp.float32, lambda: jax.default_matmul_precision(kind)

    def round_float32(self, x: Array, bits: int, /) -> Array:
        # unlike a cast to bfloat16 and back, XLA never removes this operation
        return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=bits - 1)

    # -- control flow -----------------------------------------------------------------------------------------------

    def cond(self, predicate: Array, if_true: Callable, if_false: Callable, /, *, likely: bool | None = None) -> Any:
        if self.is_concrete(predicate):
            return super().cond(predicate, if_true, if_false, likely=likely)
        branches = [trace_once(branch) for branch in (if_true, if_false)]
        kinds = kinds_of(*(reports for _, _, reports in branches))

        def padded(run: Callable) -> Callable:
            def branch() -> tuple[Any, list[Array]]:
                value, reports = run()
                return value, numbers_of(reports, kinds)

            return branch

        value, rows = jax.lax.cond(predicate, *(padded(run) for run, _, _ in branches))
        propagate_reports(reports_of(kinds, rows))
        return value

    def while_loop(
        self, condition: Callable[..., Array], body: Callable[..., tuple], carry: tuple, /, **known: Any
    ) -> tuple:
        # an eager device loop would be traced in each call: a Python loop is 30 times faster
        if all(self.is_concrete(x) for x in carry):
            return super().while_loop(condition, body, carry, **known)
        carry = jax.tree.map(lambda x: xp.asarray(x, x.dtype), tuple(carry))
        run, _, reports = trace_once(lambda *c: tuple(body(*c)), *carry)
        kinds = kinds_of(reports)

        def once(state: tuple) -> tuple:
            value, new = run(*state[0])
            return value, numbers_of([*reports_of(kinds, state[1]), *new], kinds)

        value, rows = jax.lax.while_loop(lambda state: condition(*state[0]), once, (carry, numbers_of([], kinds)))
        propagate_reports(reports_of(kinds, rows))
        return value

    def repeat(self, f: Callable, carry: Any, rows: Any, count: Array, /) -> tuple[Any, dict[str, Array]]:
        def row(i: Any) -> Any:
            return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), rows)

        carry = jax.tree.map(lambda x: xp.asarray(x, x.dtype), carry)
        run, (_, logged), reports = trace_once(f, carry, row(0))
        length, kinds = jax.tree.leaves(rows)[0].shape[0], kinds_of(reports)
        empty = {name: xp.zeros((length,), x.dtype) for name, x in logged.items()}

        def once(state: tuple) -> tuple:
            i, carry, told, numbers = state
            (carry, logged), new = run(carry, row(i))
            told = {name: told[name].at[i].set(x) for name, x in logged.items()}
            return i + 1, carry, told, numbers_of([*reports_of(kinds, numbers), *new], kinds)

        start = xp.zeros((), count.dtype), carry, empty, numbers_of([], kinds)
        _, carry, told, numbers = jax.lax.while_loop(lambda state: state[0] < count, once, start)
        propagate_reports(reports_of(kinds, numbers))
        return carry, told

    def fold(
        self, f: Callable, params: Any, rows: Any, block_rows: int, /, *, add: Callable, kept_rows: int = 0
    ) -> tuple[Any, Pullback]:
        # Under jit, a Python loop is unrolled and keeps every block in memory; a scan over stacked blocks keeps one.
        if all(self.is_concrete(x) for x in jax.tree.leaves((params, rows))):
            return super().fold(f, params, rows, block_rows, add=add, kept_rows=kept_rows)

        def total_of(g: Callable) -> Any:
            return scan_blocks(lambda block: (g(block), None), rows, block_rows, add)[0]

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
                return scan_blocks(lambda block: f(params, block[0])[1](block[1]), (X, bar), block_rows, add)

        value_of = self.remat(lambda params, block: f(params, block)[0])
        return scan_blocks(lambda block: (None, value_of(params, block)), X, block_rows, add)[1], pullback

    def remat(self, f: Callable, /) -> Callable:
        again = pass_reports_on(jax.checkpoint(with_reports(f)))

        def evaluated(*args: Any) -> Any:
            # no checkpoint for concrete values, because it would compile f at every call
            values = all(self.is_concrete(x) for x in jax.tree.leaves(args))
            return f(*args) if values else again(*args)

        return evaluated

    def compile(self, f: Callable, /) -> Callable:
        return compile_shared(f)

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
        (value, reports), grads = jax.value_and_grad(with_reports(f), has_aux=True)(leaves)
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
