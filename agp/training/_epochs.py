"""Many training steps in one compiled loop on the device."""

from collections.abc import Callable
from typing import Any

import numpy as np

from agp.backend import Array, backend_of, placed
from agp.random import Draws
from agp.training._batches import Batches

__all__ = ["LEAST", "Epochs", "check_loops"]

LEAST = 100
"""The least number of steps in a call."""


class Epochs:
    """Up to an epoch of steps at once (or `LEAST`), compiled once.

    A step is ``(model, states, batch) -> (model, states, info)``. The rows of all batches are sent ahead, and their
    noise, unless the device draws it.
    """

    def __init__(self, step: Callable[..., tuple], batches: Batches) -> None:
        self.batches, self.length = batches, max(LEAST, batches.per_epoch)
        B = backend_of(batches.X)

        def steps(model: Any, states: list[Any], data: tuple[Array, Array], ahead: tuple, count: Array) -> tuple:
            def once(carry: tuple, each: tuple) -> tuple:
                number, rows, draws = each
                if batches.draws_on_device:
                    draws = batches.device_draws(data[0], number)
                model, states, info = step(*carry, batches.of(*data, rows, draws))
                return (model, states), info

            return B.repeat(once, (model, states), ahead, count)

        self._run = B.compile(steps)

    def to(self, first: int, last: int) -> int:
        """The last step of a call that starts at `first`: the end of its epoch, or `last`."""
        if self.batches.per_epoch >= LEAST:
            return min(last, first - first % self.batches.per_epoch + self.batches.per_epoch)
        return min(last, first + self.length)

    def __call__(self, model: Any, states: list[Any], first: int, last: int) -> tuple[Any, list[Any], dict[str, Any]]:
        """The model and the states after the steps from `first` to `last`, and the log of each step on the host."""
        data = self.batches.X, self.batches.y
        ahead = self._ahead(range(first, last))
        (model, states), logged = self._run(model, states, data, ahead, placed(np.asarray(last - first), data[0]))
        B = backend_of(data[0])
        return model, states, {name: B.to_numpy(x)[: last - first] for name, x in logged.items()}

    def _ahead(self, steps: range) -> tuple[Array, Array | None, Draws]:
        """Numbers [K], rows [K, B] and draws [K, ...] of steps, padded to the length of a call."""
        X, batches = self.batches.X, self.batches

        def stacked(arrays: list[Any]) -> Array:
            return placed(np.stack(arrays + arrays[-1:] * (self.length - len(arrays))), X)

        rows = None if batches.whole else stacked([batches.indices(step) for step in steps])
        drawn = [batches.host_draws(step) for step in steps]
        parts = ({name: stacked([one[i][name] for one in drawn]) for name in drawn[0][i]} for i in range(2))
        return stacked([np.asarray(step) for step in steps]), rows, Draws(*parts)


def check_loops(X: Array, callbacks: list[Any]) -> None:
    """ValueError unless whole epochs can run on the device of X, without callbacks."""
    B = backend_of(X)
    if not B.loops_on_device:
        msg = (
            f"on_device=True needs an array library that compiles loops, such as JAX, but X is an array of {B.name}; "
            "leave it out, or move the model and the data by agp.to_backend."
        )
        raise ValueError(msg)
    if callbacks:
        msg = "callbacks are called after each step, but on_device=True runs many at once; leave one of them out."
        raise ValueError(msg)
