"""The methods and kernels that the command line knows, by name."""

from collections.abc import Callable
from functools import partial
from typing import Any

from agp.backend import Array
from agp.kernels import RBF, Constant, Kernel, Linear, Matern12, Matern32, Matern52, Periodic, RationalQuadratic, White
from agp.likelihoods import Likelihood
from agp.models import GPR, SGPR, SVGP
from agp.posteriors import InverseFree, LikelihoodForm, Marginal, Relaxed, Whitened

__all__ = ["GAUSSIAN_METHODS", "KERNELS", "METHODS", "build", "kernel_named"]

KERNELS: dict[str, type[Kernel]] = {
    "rbf": RBF,
    "matern32": Matern32,
    "matern12": Matern12,
    "matern52": Matern52,
    "rq": RationalQuadratic,
    "periodic": Periodic,
    "linear": Linear,
    "constant": Constant,
    "white": White,
}


def _exact(X: Array, y: Array, *, kernel: Kernel, likelihood: Likelihood, num_inducing: int, seed: int) -> GPR:  # noqa: ARG001
    """The exact GP, which has no inducing inputs and nothing to draw."""
    return GPR.from_data(X, y, kernel=kernel, likelihood=likelihood)


METHODS: dict[str, tuple[str, Callable[..., Any]]] = {
    "gpr": ("exact GP", _exact),
    "sgpr": ("collapsed sparse GP", SGPR.from_data),
    "msvgp": ("M-SVGP, marginal", partial(SVGP.from_data, posterior=Marginal)),
    "wsvgp": ("W-SVGP, whitened", partial(SVGP.from_data, posterior=Whitened)),
    "lsvgp": ("L-SVGP, likelihood parameterisation", partial(SVGP.from_data, posterior=LikelihoodForm)),
    "rsvgp": ("R-SVGP, inverse-free", partial(SVGP.from_data, posterior=Relaxed)),
    "asvgp": ("A-SVGP, inverse-free whitened", partial(SVGP.from_data, posterior=InverseFree)),
}
"""Description and constructor, which takes X, y, kernel, likelihood, num_inducing and seed."""

GAUSSIAN_METHODS = ("gpr", "sgpr")
"""Methods for the Gaussian likelihood alone, whose every step takes all rows."""


def kernel_named(name: str) -> Kernel:
    """Kernels joined by + and *, which binds tighter, without starting values. ValueError lists the known ones."""
    total: Any = None
    for term in name.split("+"):
        product: Any = None
        for part in term.split("*"):
            factor = _single_kernel(part.strip(), name)
            product = factor if product is None else product * factor
        total = product if total is None else total + product
    return total


def _single_kernel(part: str, name: str) -> Kernel:
    if part not in KERNELS:
        where = f" in {name!r}" if part != name else ""
        known = ", ".join(KERNELS)
        msg = f"unknown kernel {part!r}{where}; known are {known}, and sums and products such as rbf*linear+white."
        raise ValueError(msg)
    return KERNELS[part]()


def build(method: str, X: Array, y: Array, *, likelihood: Likelihood, kernel: str, num_inducing: int, seed: int) -> Any:
    """The model of a method, ready to be trained."""
    construct = METHODS[method][1]
    return construct(X, y, kernel=kernel_named(kernel), likelihood=likelihood, num_inducing=num_inducing, seed=seed)
