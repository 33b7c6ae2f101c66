"""Closed-form gradients of bounds that are part of a torch or JAX program.

If the library differentiates with respect to data or leaves of a model, `Backend.with_pullback` registers the
closed-form pullback of the bound with the library. Such data and leaves are torch tensors with `requires_grad` or JAX
tracers.
"""

from collections.abc import Callable
from typing import Any

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.batch import Batch

Objective = Callable[[Any, Batch], tuple[Array, Pullback]]


def carrying_adjoint(objective: Objective, model: Any, batch: Batch, /) -> tuple[Array, Pullback]:
    """Compute `objective(model, batch)`, and provide its closed-form gradient to the array library.

    Parameters
    ----------
    objective
        ``(model, batch) -> (value, pullback)`` with the pullback ``bar=1.0 -> (model_bar, X_bar)``.
    model, batch
        Gradients with respect to leaves and inputs are in closed form. All other arrays are constants. If any array
        needs a gradient, the pullback evaluates the objective again.

    Raises
    ------
    ValueError
        During differentiation, if the targets need a gradient, or the inputs need a gradient that the objective does
        not have.
    """
    leaves = tree.leaves(model)
    arrays = {f"model.{name}": x for name, x in leaves.items()} | {"X": batch.X, "y": batch.y}
    arrays = {name: x for name, x in arrays.items() if not backend_of(x).is_lazy}
    asking = next((B for x in arrays.values() if (B := backend_of(x)).asks_gradient(x)), None)
    if asking is None:
        return objective(model, batch)

    def closed_form(arrays: dict[str, Array]) -> tuple[Array, Callable]:
        here = tree.with_leaves(model, {name: arrays.get(f"model.{name}", x) for name, x in leaves.items()})
        value, pullback = objective(here, batch._replace(X=arrays.get("X", batch.X), y=arrays.get("y", batch.y)))

        def cotangents(bar: Array, names: tuple[str, ...]) -> dict[str, Array]:
            model_bar, X_bar = pullback(bar)
            found = {f"model.{name}": x for name, x in tree.leaves(model_bar).items()} | {"X": X_bar}
            return {name: _cotangent_or_zero(name, arrays[name], found.get(name)) for name in names}

        return value, cotangents

    value = asking.with_pullback(closed_form, arrays)
    return value, lambda bar=1.0: objective(model, batch)[1](bar)


def _cotangent_or_zero(name: str, x: Array, bar: Array | None) -> Array:
    if bar is not None:
        return bar
    if name == "X":
        msg = (
            "X needs a gradient, but this bound does not compute the gradient of X; detach X, or increase memory if "
            "the bound reads X in blocks of rows."
        )
        raise ValueError(msg)
    if name == "y":
        msg = "y needs a gradient, but bounds treat targets as constants; detach y."
        raise ValueError(msg)
    return backend_of(x).xp.zeros_like(x)
