"""Many training steps in one compiled loop on the device."""

from collections.abc import Callable
from typing import Any

import numpy as np

from agp.backend import Array, asarray_like, backend_of
from agp.random import Draws
from agp.training._batches import Batches

MIN_STEPS_PER_CALL = 100
"""The minimum number of steps in one call of the compiled loop."""


class Epochs:
    """Run an epoch, or `MIN_STEPS_PER_CALL` steps if that is more, in one call of a loop that is compiled once.

    A step is ``(model, states, batch) -> (model, states, info)``. The row numbers of all batches are transferred before
    the call, and so is their noise, unless it is drawn on the device.
    """

    def __init__(self, step: Callable[..., tuple], batches: Batches) -> None:
        self.batches, self.length = batches, max(MIN_STEPS_PER_CALL, batches.per_epoch)
        B = backend_of(batches.X)

        def steps(model: Any, states: list[Any], data: tuple[Array | None, ...], ahead: tuple, count: Array) -> tuple:
            def once(carry: tuple, each: tuple) -> tuple:
                number, rows, draws = each
                if batches.draws_on_device:
                    draws = batches.device_draws(data[0], number)
                model, states, info = step(*carry, batches.of(data, rows, draws))
                return (model, states), info

            return B.repeat(once, (model, states), ahead, count)

        self._run = B.compile(steps)

    def to(self, first: int, last: int) -> int:
        """Return the last step of a call that starts at step `first`: the end of the epoch, but at most `last`."""
        if self.batches.per_epoch >= MIN_STEPS_PER_CALL:
            return min(last, first - first % self.batches.per_epoch + self.batches.per_epoch)
        return min(last, first + self.length)

    def __call__(self, model: Any, states: list[Any], first: int, last: int) -> tuple[Any, list[Any], dict[str, Any]]:
        """Run the steps from `first` to `last`; return the model, the states, and all logs on the host."""
        data: Any = self.batches.data
        ahead = self._ahead(range(first, last))
        (model, states), logged = self._run(model, states, data, ahead, asarray_like(np.asarray(last - first), data[0]))
        B = backend_of(data[0])
        return model, states, {name: B.to_numpy(x)[: last - first] for name, x in logged.items()}

    def _ahead(self, steps: range) -> tuple[Array, Array | None, Draws]:
        """Return the step numbers [K], rows [K, B] and draws [K, ...] of the steps, padded to the length of a call."""
        X, batches = self.batches.X, self.batches

        def stacked(arrays: list[Any]) -> Array:
            return asarray_like(np.stack(arrays + arrays[-1:] * (self.length - len(arrays))), X)

        rows = None if batches.whole else stacked([batches.indices(step) for step in steps])
        drawn = [batches.host_draws(step) for step in steps]
        parts = ({name: stacked([one[i][name] for one in drawn]) for name in drawn[0][i]} for i in range(2))
        return stacked([np.asarray(step) for step in steps]), rows, Draws(*parts)


def check_loops(X: Array, callbacks: list[Any]) -> None:
    """Raise ValueError if the library of X cannot run a loop on the device, or if there are callbacks."""
    B = backend_of(X)
    if not B.loops_on_device:
        msg = (
            f"on_device=True needs an array library that compiles loops, such as JAX, but X is an array of {B.name}; "
            "omit on_device, or convert the model and the data with agp.to_backend."
        )
        raise ValueError(msg)
    if callbacks:
        msg = "callbacks run after each step, but on_device=True runs many steps in one call; omit one of them."
        raise ValueError(msg)
