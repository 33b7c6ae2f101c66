"""Value and gradient of a model's bound, by closed forms or by the backend's automatic differentiation."""

from typing import Any, Literal

from agp import tree
from agp.backend import Array, backend_of
from agp.batch import Batch
from agp.errors import BackendError

__all__ = ["GradientMode", "check_mode", "gradient_of", "value_and_gradient"]

GradientMode = Literal["closed-form", "autodiff"]


def check_mode(x: Array, mode: str) -> None:
    """Raise unless the backend of x takes gradients in this mode."""
    B = backend_of(x)
    if mode not in ("closed-form", "autodiff"):
        msg = f"unknown gradient mode {mode!r}; known are 'closed-form' and 'autodiff'."
        raise ValueError(msg)
    if mode not in B.gradients:
        msg = f"backend {B.name!r} has no automatic differentiation; use gradient='closed-form'."
        raise BackendError(msg)


def value_and_gradient(
    model: Any, X: Array, y: Array, /, *, scale: float = 1.0, mode: GradientMode = "closed-form"
) -> tuple[Array, dict[str, Array]]:
    """The bound, 0-d, and its gradient with respect to the raw leaves of the parameters, by name.

    Both modes run the same forward code; they differ in who differentiates it.

    Parameters
    ----------
    model
        An `agp.models.Model`.
    X, y, scale
        As `agp.models.Model.bound`.
    mode
        "closed-form": the hand-derived pullbacks, on every backend. "autodiff": torch and JAX.
    """
    check_mode(X, mode)
    return gradient_of(model, model.batch(X, y, scale=scale), mode)


def gradient_of(model: Any, batch: Batch, mode: GradientMode) -> tuple[Array, dict[str, Array]]:
    """`value_and_gradient` of the objective of a batch that is known to fit the model."""
    if mode == "closed-form":
        value, pullback = model.objective(batch)
        return value, tree.pull_raw(model, pullback(1.0)[0])

    def of_raw(raw: dict[str, Array]) -> Array:
        return tree.constrain(model, raw).objective(batch)[0]

    return backend_of(batch.X).value_and_grad(of_raw, tree.unconstrain(model))
