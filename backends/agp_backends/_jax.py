"""JAX: closed-form gradients or `jax.grad`, whole training steps under `jax.jit`.

JAX's settings are the user's: without ``jax_enable_x64`` there are float32 arrays only, and float64 is an error.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as xp
import jax.scipy.linalg
import numpy as np
from jax.custom_derivatives import SymbolicZero

from agp import tree
from agp.backend import Array, Backend, ClosedForm, Pullback
from agp.errors import BackendError

FLOATS = "real floating"


class JaxBackend(Backend):
    name = "jax"
    xp = xp
    array_types = (jax.Array, jax.core.Tracer)  # tracers stand for arrays while a function is traced
    gradients = ("closed-form", "autodiff")
    special_module = "jax.scipy.special"

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
            msg = f"JAX has no device {device!r} here; it has {', '.join(self.devices())}."
            raise ValueError(msg)
        host = np.array(x, dtype=dtype)
        if host.dtype == np.float64 and not jax.config.jax_enable_x64:
            msg = (
                "JAX has no float64 arrays unless it is told to: "
                'jax.config.update("jax_enable_x64", True), or ask for dtype="float32".'
            )
            raise BackendError(msg)
        return jax.device_put(host, chosen)

    def enable_float64(self) -> None:
        jax.config.update("jax_enable_x64", True)

    def to_numpy(self, x: Array, /) -> Any:
        return np.asarray(x)

    def synchronise(self, x: Array, /) -> None:
        x.block_until_ready()

    def is_concrete(self, x: Array, /) -> bool:
        return not isinstance(x, jax.core.Tracer)

    # -- mathematics beyond the standard ----------------------------------------------------------------------------

    def cholesky(self, A: Array, /) -> Array:
        return xp.linalg.cholesky(A)

    def solve_triangular(self, L: Array, B: Array, /, *, transpose: bool = False) -> Array:
        return jax.scipy.linalg.solve_triangular(L, B, lower=True, trans=1 if transpose else 0)

    # -- control flow -----------------------------------------------------------------------------------------------

    def cond(self, predicate: Array, if_true: Callable[[], Any], if_false: Callable[[], Any], /) -> Any:
        if self.is_concrete(predicate):
            return super().cond(predicate, if_true, if_false)
        return jax.lax.cond(predicate, if_true, if_false)

    def while_loop(self, condition: Callable[..., Array], body: Callable[..., tuple], carry: tuple, /) -> tuple:
        # an eager device loop is traced anew at each call: the Python loop is 30 times faster there
        if all(self.is_concrete(x) for x in carry):
            return super().while_loop(condition, body, carry)
        return jax.lax.while_loop(lambda c: condition(*c), lambda c: tuple(body(*c)), tuple(carry))

    def fold(self, f: Callable, params: Any, rows: Any, block_rows: int, /, *, add: Callable) -> tuple[Any, Pullback]:
        # A Python loop under jit is unrolled and keeps every block; a scan over stacked equal blocks keeps one.
        if all(self.is_concrete(x) for x in jax.tree.leaves((params, rows))):
            return super().fold(f, params, rows, block_rows, add=add)
        equal, rest = _stacked(rows, block_rows)

        def summed(g: Callable) -> Any:
            step = lambda total, block: (jax.tree.map(xp.add, total, g(block)), None)  # noqa: E731
            first = jax.eval_shape(lambda blocks: g(jax.tree.map(lambda x: x[0], blocks)), equal)
            zeros = jax.tree.map(lambda x: xp.zeros(x.shape, x.dtype), first)
            total = jax.lax.scan(step, zeros, equal)[0]
            return total if rest is None else add(total, g(rest))

        value_of = self.remat(lambda params, block: f(params, block)[0])
        total = summed(lambda block: value_of(params, block))
        return total, lambda bar: summed(lambda block: f(params, block)[1](bar))

    def remat(self, f: Callable, /) -> Callable:
        return jax.checkpoint(f)

    def compile(self, f: Callable, /) -> Callable:
        # what a compiled step returns is bound to its device; had its arguments not been, the next would compile anew
        compiled = jax.jit(f)
        return lambda *args: compiled(*jax.tree.map(_bound, args))

    # -- gradients --------------------------------------------------------------------------------------------------

    def asks_gradient(self, x: Array, /) -> bool:
        return not self.is_concrete(x)

    def with_pullback(self, f: ClosedForm, arrays: dict[str, Array], /) -> Array:
        value_of: Any = jax.custom_vjp(lambda arrays: f(arrays)[0])

        def forward(primals: dict[str, Any]) -> tuple[Array, Callable]:
            asked = tuple(name for name, x in primals.items() if x.perturbed and xp.isdtype(x.value.dtype, FLOATS))
            value, pullback = f({name: x.value for name, x in primals.items()})
            return value, _as_residual(lambda bar: dict(pullback(bar, asked)), value)

        def backward(pullback: Callable, bar: Any) -> tuple[dict[str, Array | None]]:
            bars = {} if isinstance(bar, SymbolicZero) else pullback(bar)
            return ({name: bars.get(name) for name in arrays},)

        value_of.defvjp(forward, backward, symbolic_zeros=True)
        return value_of(arrays)

    def stop_gradient(self, x: Array, /) -> Array:
        return jax.lax.stop_gradient(x)

    def value_and_grad(self, f: Callable, leaves: dict[str, Array], /) -> tuple[Array, dict[str, Array]]:
        return jax.value_and_grad(f)(leaves)


def _devices() -> list[Any]:
    """The CPU's and those of the default platform."""
    return [*jax.devices("cpu"), *(device for device in jax.devices() if device.platform != "cpu")]


def _platform(device: Any) -> str:
    return "cuda" if device.platform == "gpu" else device.platform


def _name(device: Any) -> str:
    return "cpu" if device.platform == "cpu" and device.id == 0 else f"{_platform(device)}:{device.id}"


def _bound(x: Any) -> Any:
    """An array, bound to the device on which it lies; anything else as it is."""
    return x if getattr(x, "committed", True) else jax.device_put(x, x.device)


def _as_residual(pullback: Callable, value: Array) -> Callable:
    """The pullback as a tree of arrays, as rules of differentiation hand it on: a closure is none."""
    closed, shapes = jax.make_jaxpr(pullback, return_shape=True)(value)
    structure = jax.tree.structure(shapes)

    def run(*args: Array) -> Any:
        return jax.tree.unflatten(structure, jax.core.eval_jaxpr(closed.jaxpr, args[:-1], args[-1]))

    return jax.tree_util.Partial(run, *closed.consts)


@cache  # registering a class twice is an error
def _register(cls: type) -> None:
    jax.tree_util.register_pytree_node(cls, tree.split, lambda settings, arrays: tree.join(cls, settings, arrays))


def _stacked(rows: Any, block_rows: int) -> tuple[Any, Any]:
    """The blocks of equal size along a new leading axis, and the rows that are left; None if there are none."""
    N = jax.tree.leaves(rows)[0].shape[0]
    count, size = (N // block_rows, block_rows) if block_rows < N else (1, N)
    equal = jax.tree.map(lambda x: xp.reshape(x[: count * size], (count, size, *x.shape[1:])), rows)
    return equal, jax.tree.map(lambda x: x[count * size :], rows) if count * size < N else None
