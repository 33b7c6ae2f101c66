"""The methods and kernels that the command line knows, by name."""

from collections.abc import Callable
from functools import partial
from typing import Any

from agp.backend import Array
from agp.kernels import RBF, Constant, Kernel, Linear, Matern12, Matern32, Matern52, Periodic, RationalQuadratic, White
from agp.likelihoods import Bernoulli, Gaussian, Likelihood
from agp.models import GPR, SVGP
from agp.posteriors import InverseFree, LikelihoodForm, Marginal, Relaxed, Whitened

__all__ = ["KERNELS", "METHODS", "build", "kernel_named"]

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
    "msvgp": ("M-SVGP, marginal", partial(SVGP.from_data, posterior=Marginal)),
    "wsvgp": ("W-SVGP, whitened", partial(SVGP.from_data, posterior=Whitened)),
    "lsvgp": ("L-SVGP, likelihood parameterisation", partial(SVGP.from_data, posterior=LikelihoodForm)),
    "rsvgp": ("R-SVGP, inverse-free", partial(SVGP.from_data, posterior=Relaxed)),
    "asvgp": ("A-SVGP, inverse-free whitened", partial(SVGP.from_data, posterior=InverseFree)),
}
"""Description and constructor, which takes X, y, kernel, likelihood, num_inducing and seed."""


def kernel_named(name: str) -> Kernel:
    """A kernel, or a sum of kernels joined by +, without starting values. ValueError lists the known ones."""
    kernel: Any = None
    for part in name.split("+"):
        if part not in KERNELS:
            msg = f"unknown kernel {part!r}; known are {', '.join(KERNELS)}, and sums such as rbf+matern32."
            raise ValueError(msg)
        kernel = KERNELS[part]() if kernel is None else kernel + KERNELS[part]()
    return kernel


def build(method: str, X: Array, y: Array, *, binary: bool, kernel: str, num_inducing: int, seed: int) -> Any:
    """The model of a method, ready to be trained."""
    likelihood = Bernoulli() if binary else Gaussian()
    construct = METHODS[method][1]
    return construct(X, y, kernel=kernel_named(kernel), likelihood=likelihood, num_inducing=num_inducing, seed=seed)
