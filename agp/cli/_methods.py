"""The methods and kernels that the command line knows, by name."""

from collections.abc import Callable
from typing import Any

from agp.backend import Array
from agp.kernels import RBF, Kernel, Matern32
from agp.likelihoods import Bernoulli, Gaussian
from agp.models import GPR, SVGP
from agp.posteriors import Relaxed, Whitened

__all__ = ["KERNELS", "METHODS", "build", "kernel_named"]

KERNELS: dict[str, type[Kernel]] = {"rbf": RBF, "matern32": Matern32}

METHODS: dict[str, tuple[str, Callable[..., Any]]] = {
    "gpr": ("exact GP", lambda X, y, **_: GPR.from_data(X, y, kernel=_["kernel"], likelihood=_["likelihood"])),
    "wsvgp": ("W-SVGP, whitened", lambda X, y, **_: SVGP.from_data(X, y, posterior=Whitened, **_)),
    "rsvgp": ("R-SVGP, inverse-free", lambda X, y, **_: SVGP.from_data(X, y, posterior=Relaxed, **_)),
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
