"""JAX: closed-form gradients or `jax.grad`, whole training steps under `jax.jit`.

Loading this plug-in switches JAX to 64 bits, since float64 arrays do not exist there otherwise.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as xp
import jax.scipy.linalg
import numpy as np

from agp import tree
from agp.backend import Array, Backend, Pullback

jax.config.update("jax_enable_x64", True)


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
        return [_name(device) for device in jax.devices()]

    def device_name(self, x: Array, /) -> str:
        return _name(x.device) if self.is_concrete(x) else ""

    def like(self, x: Array, /) -> dict[str, Any]:
        # a tracer has no device
        return {"dtype": x.dtype, "device": x.device} if self.is_concrete(x) else {"dtype": x.dtype}

    def widest_float(self, x: Array, /) -> Any:
        return np.dtype(np.float64 if jax.config.jax_enable_x64 else np.float32)

    def from_numpy(self, x: Any, /, *, dtype: str | None = None, device: str | None = None) -> Array:
        chosen = next((d for d in jax.devices() if device in (_name(d), d.platform)), None) if device else None
        if device and chosen is None:
            msg = f"JAX has no device {device!r} here; it has {', '.join(self.devices())}."
            raise ValueError(msg)
        return jax.device_put(np.array(x, dtype=dtype), chosen)

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

    def stop_gradient(self, x: Array, /) -> Array:
        return jax.lax.stop_gradient(x)

    def value_and_grad(self, f: Callable, leaves: dict[str, Array], /) -> tuple[Array, dict[str, Array]]:
        return jax.value_and_grad(f)(leaves)


def _name(device: Any) -> str:
    return "cpu" if device.platform == "cpu" and device.id == 0 else f"{device.platform}:{device.id}"


def _bound(x: Any) -> Any:
    """An array, bound to the device on which it lies; anything else as it is."""
    return x if getattr(x, "committed", True) else jax.device_put(x, x.device)


@cache  # registering a class twice is an error
def _register(cls: type) -> None:
    jax.tree_util.register_pytree_node(cls, tree.split, lambda settings, arrays: tree.join(cls, settings, arrays))


def _stacked(rows: Any, block_rows: int) -> tuple[Any, Any]:
    """The blocks of equal size along a new leading axis, and the rows that are left; None if there are none."""
    N = jax.tree.leaves(rows)[0].shape[0]
    count, size = (N // block_rows, block_rows) if block_rows < N else (1, N)
    equal = jax.tree.map(lambda x: xp.reshape(x[: count * size], (count, size, *x.shape[1:])), rows)
    return equal, jax.tree.map(lambda x: x[count * size :], rows) if count * size < N else None
