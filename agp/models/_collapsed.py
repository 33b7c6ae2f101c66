"""The collapsed model whose evidence a model of Gaussian noise bounds, and the exact one."""

from typing import Any

from agp.backend import Array
from agp.checks import as_columns
from agp.likelihoods import Gaussian
from agp.models._gpr import GPR
from agp.models._growth import growing_part
from agp.models._sgpr import SGPR

__all__ = ["collapsed_model", "exact_model"]


def collapsed_model(model: Any, X: Array, y: Array, /) -> SGPR | None:
    """`SGPR` with the prior, the noise and the inducing inputs of an `SVGP`, on data [N, D] and [N] or [N, P].

    None where there is none: for other likelihoods than Gaussian noise of one size, and for mixtures.
    """
    if isinstance(model, SGPR):
        return model
    path, part = growing_part(model)
    likelihood = model.likelihood
    if path != "process" or type(likelihood) is not Gaussian or likelihood.missing or likelihood.noise_variance.ndim:
        return None
    return SGPR(part.kernel, likelihood, part.inducing, X, as_columns(y), part.mean_function, part.jitter)


def exact_model(model: Any, X: Array, y: Array, weights: Array | None = None, /) -> GPR | None:
    """`GPR` with the kernel, the noise and the mean function of the same; None where `collapsed_model` is."""
    found = collapsed_model(model, X, y)
    if found is None:
        return None
    return GPR(found.kernel, found.likelihood, X=X, y=as_columns(y), mean_function=found.mean_function, weights=weights)
