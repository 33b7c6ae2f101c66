"""Starting values: what the user left open is taken from the data."""

import numbers
from typing import Any, TypeVar

from agp import tree
from agp.backend import Array, backend_of, like
from agp.checks import check_parameters
from agp.kernels import RBF, Kernel
from agp.likelihoods import Gaussian, Likelihood

__all__ = ["constant_data", "detached", "placed", "started"]

T = TypeVar("T", bound=Any)


def started(kernel: Kernel | None, likelihood: Likelihood | None, X: Array, y: Array, /) -> tuple[Kernel, Likelihood]:
    """The kernel and likelihood as arrays like X [N, D], with starting values that suit X and y [N, P].

    Lengthscales start at the spread of their columns, the kernel's variance at the variance of the targets (a constant
    target counts as variance 1), the noise at a tenth of it.
    """
    xp = backend_of(y).xp
    _check_instance("kernel", kernel, Kernel)
    _check_instance("likelihood", likelihood, Likelihood)
    likelihood = Gaussian() if likelihood is None else likelihood
    likelihood.check_targets(y)
    variance = float(xp.mean(xp.var(y, axis=0)))
    rounding = 10.0 * float(xp.finfo(y.dtype).eps) * float(xp.max(xp.abs(y)))
    variance = variance if variance > rounding**2 else 1.0
    likelihood = likelihood.from_data(variance)
    kernel = (RBF() if kernel is None else kernel).from_data(X, likelihood.latent_variance(variance))
    kernel, likelihood = _usable(kernel, X), _usable(likelihood, X)
    kernel.check(X.shape[1])
    likelihood.check_parameters()
    return kernel, likelihood


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


def constant_data(*arrays: Array) -> tuple[Array, ...]:
    """The arrays as constants for automatic differentiation."""
    return tuple(backend_of(x).stop_gradient(x) for x in arrays)


def detached(model: T) -> T:
    """The model whose leaves are constants for automatic differentiation: no graph hangs on them."""
    return tree.with_leaves(model, {name: backend_of(x).stop_gradient(x) for name, x in tree.leaves(model).items()})
