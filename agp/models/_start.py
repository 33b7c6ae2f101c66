"""Starting values: what the user left open is taken from the data."""

from typing import Any, TypeVar

from agp.backend import Array, backend_of
from agp.checks import check_parameters, placed
from agp.kernels import RBF, Kernel
from agp.likelihoods import Gaussian, Likelihood

__all__ = ["started"]

T = TypeVar("T", bound=Any)


def started(kernel: Kernel | None, likelihood: Likelihood | None, X: Array, y: Array, /) -> tuple[Kernel, Likelihood]:
    """The kernel and likelihood as arrays like X [N, D], with starting values that suit X and y [N, P].

    Lengthscales start at the spread of their columns, the kernel's variance at the variance of the targets (a constant
    target counts as variance 1), the noise at a tenth of it.
    """
    xp = backend_of(y).xp
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


def _usable(model: T, X: Array) -> T:
    model = placed(model, X)
    check_parameters(model, "X", X)
    return model
