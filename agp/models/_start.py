"""Starting values: what the user left open is taken from the data."""

import numbers
from typing import Any, NamedTuple, TypeVar

from agp import tree
from agp.backend import Array, backend_of, like
from agp.checks import check_data, check_inputs, check_like, check_parameters, check_whole
from agp.inducing import How, choose
from agp.kernels import RBF, Kernel
from agp.likelihoods import Gaussian, Likelihood
from agp.means import Mean, ZeroMean
from agp.priors import check_priors

__all__ = [
    "Start",
    "checked_jitter",
    "chosen_inducing",
    "constant_data",
    "copied",
    "detached",
    "placed",
    "started",
    "started_model",
    "valid_data",
]

NUM_INDUCING = 128
"""Inducing inputs where the user does not say how many."""

T = TypeVar("T", bound=Any)


class Start(NamedTuple):
    """What every model starts from: valid data [N, D] and [N, K], and parts whose leaves are all arrays like them."""

    X: Array
    y: Array
    kernel: Kernel
    likelihood: Likelihood
    mean_function: Mean


def started(
    X: Array, y: Array, kernel: Kernel | None, likelihood: Likelihood | None, mean_function: Mean | None, /
) -> Start:
    """The data X [N, D] and y [N] or [N, K], checked, and the parts of a model with starting values that suit them.

    Lengthscales start at the spread of their columns, the mean function at the average of the observations, the
    kernel's variance at their variance (constant ones count as variance 1), the noise at a tenth of it.
    """
    X, y = valid_data(X, y)
    _check_instance("kernel", kernel, Kernel)
    _check_instance("likelihood", likelihood, Likelihood)
    _check_instance("mean_function", mean_function, Mean)
    likelihood = Gaussian() if likelihood is None else likelihood
    likelihood.check_targets(y)
    outputs = likelihood.latents(y.shape[1])
    level, variance = _moments(likelihood.observations(y), outputs, X)
    likelihood = _usable(likelihood.from_data(variance), X)
    kernel = _usable((RBF() if kernel is None else kernel).from_data(X, variance), X)
    mean_function = _usable(
        (ZeroMean() if mean_function is None else mean_function).from_data(X, level, variance**0.5), X
    )
    kernel.check(X.shape[1])
    likelihood.check_parameters()
    mean_function.check(X.shape[1], outputs)
    return Start(X, y, kernel, likelihood, mean_function)


def _moments(values: Array | None, outputs: int, X: Array) -> tuple[Array, float]:
    """The averages [P] of observations [N, P] and their variance, averaged over the outputs."""
    xp = backend_of(X).xp
    if values is None:
        return xp.zeros((outputs,), **like(X)), 1.0
    variance = float(xp.mean(xp.var(values, axis=0)))
    rounding = 10.0 * float(xp.finfo(values.dtype).eps) * float(xp.max(xp.abs(values)))
    return xp.mean(values, axis=0), variance if variance > rounding**2 else 1.0


def _check_instance(name: str, x: Any, kind: type) -> None:
    if x is not None and not isinstance(x, kind):
        hint = f"; write {x.__name__}()" if isinstance(x, type) else ""
        msg = f"{name} is {x!r}, but must be an instance of agp's {kind.__name__}{hint}."
        raise TypeError(msg)


def _usable(model: T, X: Array) -> T:
    model = placed(model, X)
    check_parameters(model, "X", X)
    return detached(model)


def placed(model: T, reference: Array) -> T:
    """The model whose leaves given as numbers or lists have become arrays like the reference."""
    xp = backend_of(reference).xp

    def given(x: Any) -> Any:
        return float(x) if isinstance(x, numbers.Real) else x

    found = {name: given(x) for name, x in tree.leaves(model).items()}
    new = {name: x for name, x in found.items() if isinstance(x, (float, list, tuple))}
    return tree.with_leaves(model, {name: xp.asarray(x, **like(reference)) for name, x in new.items()})


def copied(x: Array) -> Array:
    """The array as a model holds it: what the user does to theirs later does not reach it."""
    return backend_of(x).xp.asarray(x, copy=True)


def constant_data(*arrays: Array) -> tuple[Array, ...]:
    """The arrays as constants for automatic differentiation."""
    return tuple(backend_of(x).stop_gradient(x) for x in arrays)


def valid_data(X: Array, y: Array) -> tuple[Array, Array]:
    """X [N, D] and y [N, K] of y [N] or [N, K], checked, as constants for automatic differentiation."""
    X, y = constant_data(X, y)
    return X, check_data(X, y)


def detached(model: T) -> T:
    """The model whose leaves are constants for automatic differentiation: no graph hangs on them."""
    return tree.with_leaves(model, {name: backend_of(x).stop_gradient(x) for name, x in tree.leaves(model).items()})


def started_model(model: T) -> T:
    """A model fresh from its data: detached, and its priors checked."""
    check_priors(model)
    return detached(model)


def chosen_inducing(
    X: Array, Z: Array | None, kernel: Kernel, num_inducing: int | None, *, how: How = "kmeans", seed: int = 0
) -> Array:
    """The given inducing inputs, checked and copied, or as many as wanted, chosen among X [N, D]."""
    if Z is None:
        M = min(NUM_INDUCING, X.shape[0]) if num_inducing is None else check_whole("num_inducing", num_inducing)
        Z = choose(X, kernel, M, seed=seed, how=how)
        _check_variance(kernel, Z)
        return Z
    check_inputs("Z", Z)
    check_like("Z", Z, "X", X)
    if Z.shape[0] > X.shape[0]:
        msg = f"Z has {Z.shape[0]} rows, X has {X.shape[0]}; use at most as many inducing inputs as data."
        raise ValueError(msg)
    if Z.shape[1] != X.shape[1]:
        msg = f"X has {X.shape[1]} columns, Z has {Z.shape[1]}; they must live in one space."
        raise ValueError(msg)
    _check_variance(kernel, Z)
    return copied(*constant_data(Z))


def _check_variance(kernel: Kernel, Z: Array) -> None:
    """ValueError if Kuu would be zero: then the inducing variables say nothing, and nothing can be factorised."""
    xp = backend_of(Z).xp
    if not bool(xp.any(kernel.diag(Z)[0] != 0.0)):
        zeros = "" if bool(xp.any(Z != 0.0)) else ": they are all zero"
        msg = (
            f"the kernel {type(kernel).__name__} has the variance 0 at every inducing input{zeros}; add "
            "agp.kernels.Constant() to it, or give other inputs."
        )
        raise ValueError(msg)


def checked_jitter(jitter: float | None) -> float | None:
    """ValueError unless the jitter is None or a finite number from zero on."""
    if jitter is not None and not 0 <= jitter < float("inf"):
        msg = f"jitter is {jitter!r}, but must be None, or a finite number from zero on."
        raise ValueError(msg)
    return jitter
