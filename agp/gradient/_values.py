"""Value and gradient of training objectives; closed-form gradients of bounds within torch or JAX programs."""

import math
from collections.abc import Callable
from typing import Any, Literal

from agp import tree
from agp.backend import Array, Pullback, asarray_like, backend_of
from agp.bounds import Batch
from agp.checks import check_model, check_results, check_support
from agp.errors import BackendError
from agp.priors import log_prior
from agp.repairs import public, speculate

GradientMode = Literal["closed-form", "autodiff"]


def check_mode(x: Array, mode: str) -> None:
    """Raise an error unless the backend of x supports this gradient mode."""
    B = backend_of(x)
    if mode not in ("closed-form", "autodiff"):
        raise ValueError(f"gradient is {mode!r}, but must be 'closed-form' or 'autodiff'.")
    if mode not in B.gradients:
        raise BackendError(f"backend {B.name!r} has no automatic differentiation; use gradient='closed-form'.")


@public
def value_and_gradient(
    model: Any,
    X: Array,
    y: Array,
    *,
    scale: float = 1.0,
    weights: Array | None = None,
    offset: Array | None = None,
    noise: Array | None = None,
    gradient: GradientMode = "closed-form",
    memory: float | None = None,
) -> tuple[Array, dict[str, Array]]:
    """Compute the training objective (0-d), and a dictionary of its gradients with respect to the raw parameters.

    The objective is the bound. If the model has `priors`, `agp.priors.log_prior` is added to the bound without
    scaling. Both gradient modes run the same forward code.

    Parameters
    ----------
    model
        An `agp.models.Model`.
    X, y, scale, weights, offset, noise, memory
        As in `agp.models.Model.bound`.
    gradient
        "closed-form" uses hand-derived pullbacks, on every backend. "autodiff" is available for torch and JAX.

    Raises
    ------
    ValueError
        If a target is not finite, or outside the support of the likelihood, as in `agp.models.Model.bound`.
    agp.errors.NonFiniteError
        If the objective or its gradient is NaN or infinite. Inside a traced function, the values are not checked.

    Examples
    --------
    The value is the bound. At its optimum, the gradient vanishes.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 6.0, 20)[:, None]
    >>> y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(0).standard_normal(20)
    >>> model = agp.GPR.from_data(X, y)
    >>> value, gradient = agp.value_and_gradient(model, X, y)
    >>> bool(np.isclose(value, model.bound(X, y)[0])), sorted(gradient)[0]
    (True, 'kernel.lengthscale')
    >>> _, gradient = agp.value_and_gradient(agp.fit(model, X, y).model, X, y)
    >>> max(float(np.max(np.abs(slope))) for slope in gradient.values()) < 0.1
    True
    """
    check_model(model)
    batch = model._batch(X, y, scale=scale, weights=weights, offset=offset, noise=noise)
    check_mode(X, gradient)
    valid = validity(model.likelihood, batch.y)
    (bound, slopes), _ = speculate(lambda: gradient_of_batch(model, batch, gradient, memory=memory), X)
    if valid is not None:
        bound, slopes = valid * bound, {name: valid * x for name, x in slopes.items()}
    remedy = "try standardised data, other parameters, more jitter or float64"
    check_results("the", {"bound": bound}, remedy)
    check_results("the gradient with respect to", slopes, remedy)
    return bound, slopes


def gradient_of_batch(
    model: Any, batch: Batch, gradient: GradientMode, *, memory: float | None = None
) -> tuple[Array, dict[str, Array]]:
    """Compute `value_and_gradient` for a batch that has been checked."""
    if gradient == "closed-form":
        value, pullback = model._objective(batch, memory=memory)
        if not model.priors:
            return value, tree.pull_raw(model, pullback(1.0)[0])
        prior, pull_prior = log_prior(model)
        return value + prior, tree.pull_raw(model, tree.add(pullback(1.0)[0], pull_prior(1.0)))

    def of_raw(raw: dict[str, Array]) -> Array:
        here = tree.constrain(model, raw)
        value = here._objective(batch, memory=memory)[0]
        return value + log_prior(here)[0] if model.priors else value

    return backend_of(batch.X).value_and_grad(of_raw, tree.unconstrain(model))


# -- bounds inside programs of torch and JAX ---------------------------------------------------------------------------


def bound_of_batch(
    model: Any, batch: Batch, gradient: GradientMode, *, memory: float | None = None
) -> tuple[Array, Pullback]:
    """Compute `agp.models.Model.bound` for a batch of valid shapes, and check the values of its targets."""
    check_mode(batch.X, gradient)
    valid = validity(model.likelihood, batch.y)
    if gradient == "autodiff":
        value, pullback = model._objective(batch, memory=memory)
    else:
        value, pullback = _with_adjoint(lambda model, x: model._objective(x, memory=memory), model, batch)
    return (value, pullback) if valid is None else (valid * value, lambda bar=1.0: pullback(valid * bar))


def validity(likelihood: Any, y: Array) -> Array | None:
    """Raise ValueError unless targets y [N, K] are finite and in the support.

    For traced targets, return a factor of the bound (0-d): 1, or NaN if a target is not valid. Otherwise return None.
    """
    B = backend_of(y)
    valid = B.xp.all(likelihood.in_support(y))
    if B.is_concrete(valid):  # while JAX traces a function, results for concrete targets are traced, too
        check_support(likelihood, y)
        return None
    return B.xp.where(valid, *(asarray_like(x, y) for x in (1.0, math.nan)))


def _with_adjoint(
    objective: Callable[[Any, Batch], tuple[Array, Pullback]], model: Any, batch: Batch, /
) -> tuple[Array, Pullback]:
    """Compute `objective(model, batch)`, and provide its closed-form gradient to the array library.

    The library may differentiate with respect to leaves and inputs: torch tensors with `requires_grad`, or JAX tracers.
    All other arrays are constants. The pullback of the objective is ``bar=1.0 -> (model_bar, X_bar)``. If any array
    requires a gradient, the returned pullback evaluates the objective again.

    Raises
    ------
    ValueError
        During differentiation, if a gradient is requested for the targets, or for inputs for which the objective
        provides none.
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
            bars = {f"model.{name}": x for name, x in tree.leaves(model_bar).items()} | {"X": X_bar}
            return {name: _cotangent_or_zero(name, arrays[name], bars.get(name)) for name in names}

        return value, cotangents

    value = asking.with_pullback(closed_form, arrays)
    return value, lambda bar=1.0: objective(model, batch)[1](bar)


def _cotangent_or_zero(name: str, x: Array, bar: Array | None) -> Array:
    if bar is not None:
        return bar
    if name == "X":
        raise ValueError(
            "X needs a gradient, but this bound does not compute the gradient of X in closed form; pass "
            "gradient='autodiff', detach X, or increase memory if the bound reads X in blocks of rows."
        )
    if name == "y":
        raise ValueError("y needs a gradient, but bounds treat targets as constants; detach y.")
    return backend_of(x).xp.zeros_like(x)
