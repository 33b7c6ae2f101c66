"""Methods and kernels by their short names, for interfaces whose users write text."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from agp.actions import ConjugateGradients
from agp.backend import Array
from agp.kernels import (
    RBF,
    Constant,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    Seasonal,
    White,
)
from agp.likelihoods import (
    Beta,
    Exponential,
    Gamma,
    Gaussian,
    LatentNoiseGaussian,
    Likelihood,
    NegativeBinomial,
    Poisson,
    StudentT,
)
from agp.means import Mean
from agp.models import CGGP, GPR, SGPR, SOLVEGP, SOLVEGPR, SVGP, TSVGP, TVGP, CaGP, DeepGP
from agp.posteriors import (
    Dual,
    DualInverseFree,
    InverseFree,
    LikelihoodForm,
    Marginal,
    Posterior,
    PriorSpread,
    Relaxed,
    RelaxedOrthogonal,
    Whitened,
)
from agp.training import SITE_RATE, recipe
from agp.updates import ActionsUpdate, NaturalGradient, Update

KERNELS: dict[str, type[Kernel]] = {
    "rbf": RBF,
    "matern32": Matern32,
    "matern12": Matern12,
    "matern52": Matern52,
    "rq": RationalQuadratic,
    "periodic": Periodic,
    "seasonal": Seasonal,
    "linear": Linear,
    "constant": Constant,
    "white": White,
}
VALUE = re.compile(r"(\w+)\s*\(\s*([0-9.]+(?:e-?[0-9]+)?)\s*\)")
"""A kernel with its lengthscale or period."""

LIKELIHOODS: dict[str, type[Likelihood]] = {
    "gaussian": Gaussian,
    "student-t": StudentT,
    "poisson": Poisson,
    "negative-binomial": NegativeBinomial,
    "gamma": Gamma,
    "exponential": Exponential,
    "beta": Beta,
    "latent-noise": LatentNoiseGaussian,
}
"""Those of targets that are numbers."""


def _exact(X: Array, y: Array, *, num_inducing: int, seed: int, **parts: Any) -> GPR:  # noqa: ARG001
    """The exact GP, which has no inducing inputs and nothing to draw."""
    return GPR.from_data(X, y, **parts)


def _conjugate(X: Array, y: Array, *, num_inducing: int, seed: int, **parts: Any) -> CGGP:  # noqa: ARG001
    """The exact GP by conjugate gradients, whose probes are drawn in training."""
    return CGGP.from_data(X, y, **parts)


def _computation_aware(X: Array, y: Array, *, num_inducing: int, **parts: Any) -> CaGP:  # noqa: ARG001
    """Learned sparse actions; there are no inducing inputs."""
    return CaGP.from_data(X, y, **parts)


def _by_policy(X: Array, y: Array, *, num_inducing: int, num_actions: int, **parts: Any) -> CaGP:  # noqa: ARG001
    return CaGP.from_data(X, y, policy=ConjugateGradients(num_actions), **parts)


def _full(X: Array, y: Array, *, num_inducing: int, seed: int, **parts: Any) -> TVGP:  # noqa: ARG001
    """The variational GP without inducing inputs."""
    return TVGP.from_data(X, y, **parts)


def _tied(tied: Any) -> Callable[..., Any]:
    return partial(SVGP.from_data, posterior=partial(Dual.from_prior, tied=tied))


STORAGES: dict[str, Callable[..., Any]] = {
    "datum": TSVGP.from_data,
    "natural": _tied("natural"),
    "kernel": _tied("kernel"),
    "white": _tied("white"),
    "inverse-free": partial(SVGP.from_data, posterior=DualInverseFree),
}
"""How t-SVGP keeps its sites: one for each datum, or tied in some coordinates; constructors as those of methods."""


def _dual(X: Array, y: Array, *, storage: str, **parts: Any) -> Any:
    return STORAGES[storage](X, y, **parts)


def _deep(kind: type[Posterior]) -> Callable[..., Any]:
    return partial(DeepGP.from_data, posterior=kind)


def _deep_solve(X: Array, y: Array, *, num_inducing: int, num_orthogonal: int | None, **parts: Any) -> DeepGP:
    """Two groups of inducing variables in each layer, as large as each other unless told otherwise."""
    M2 = num_inducing if num_orthogonal is None else num_orthogonal
    return DeepGP.from_data(X, y, posterior=Whitened, num_inducing=num_inducing, num_orthogonal=M2, **parts)


METHODS: dict[str, tuple[str, Callable[..., Any]]] = {
    "gpr": ("exact GP", _exact),
    "sgpr": ("collapsed sparse GP", SGPR.from_data),
    "msvgp": ("M-SVGP, marginal", partial(SVGP.from_data, posterior=Marginal)),
    "wsvgp": ("W-SVGP, whitened", partial(SVGP.from_data, posterior=Whitened)),
    "lsvgp": ("L-SVGP, likelihood parameterisation", partial(SVGP.from_data, posterior=LikelihoodForm)),
    "rsvgp": ("R-SVGP, inverse-free", partial(SVGP.from_data, posterior=Relaxed)),
    "asvgp": ("A-SVGP, inverse-free whitened", partial(SVGP.from_data, posterior=InverseFree)),
    "qsvgp": ("W-SVGP with natural gradients of q(u)", partial(SVGP.from_data, posterior=Whitened)),
    "tsvgp": ("t-SVGP, dual", _dual),
    "tvgp": ("t-VGP, dual without inducing inputs", _full),
    "solve": ("SOLVE-GP, orthogonal groups", partial(SOLVEGP.from_data, posterior=Whitened)),
    "odvgp": ("orthogonally decoupled GP", partial(SOLVEGP.from_data, posterior=Whitened, second=PriorSpread)),
    "solve-collapsed": ("SOLVE-GP, collapsed", SOLVEGPR.from_data),
    "solve-relaxed": ("SOLVE-GP, inverse-free", partial(SOLVEGP.from_data, posterior=RelaxedOrthogonal)),
    "cagp-opt": ("computation-aware GP, learned sparse actions", _computation_aware),
    "cagp-cg": ("computation-aware GP, conjugate gradients", _by_policy),
    "cggp": ("exact GP by conjugate gradients", _conjugate),
    "deep-msvgp": ("deep GP, M-SVGP layers", _deep(Marginal)),
    "deep-wsvgp": ("deep GP, W-SVGP layers", _deep(Whitened)),
    "deep-lsvgp": ("deep GP, L-SVGP layers", _deep(LikelihoodForm)),
    "deep-rsvgp": ("deep GP, R-SVGP layers", _deep(Relaxed)),
    "deep-asvgp": ("deep GP, A-SVGP layers", _deep(InverseFree)),
    "deep-solve": ("deep GP, SOLVE-GP layers", _deep_solve),
}
"""Description and constructor, which takes X, y, kernel, likelihood, num_inducing and seed.

Those of `GROUP_METHODS` also take num_orthogonal, those of `ACTION_METHODS` num_actions and support, those of
`DEEP_METHODS` layers, and t-SVGP takes storage.
"""

GAUSSIAN_METHODS = ("gpr", "sgpr", "solve-collapsed", "cagp-opt", "cagp-cg", "cggp")
"""Methods for the Gaussian likelihood alone."""
OUTPUT_METHODS = ("msvgp", "wsvgp", "lsvgp", "rsvgp", "asvgp", "qsvgp")
"""Methods that take a choice of what several outputs share."""
WEIGHTED_METHODS = tuple(name for name in METHODS if name not in ("solve-collapsed", "cagp-opt", "cagp-cg", "cggp"))
"""Methods whose rows may count several times."""
GROWING_METHODS = ("sgpr", *OUTPUT_METHODS)
"""Methods whose number of inducing inputs `agp.fit_growing` finds."""
FULL_METHODS = ("gpr", "sgpr", "solve-collapsed", "cggp", "tvgp")
"""Methods whose every step takes all rows; computation-aware ones do, too, if their support is all rows."""
DENSE_METHODS: dict[str, tuple[int, int]] = {"gpr": (6, 0), "tvgp": (3, 8)}
"""Methods without inducing inputs: arrays of N x N numbers at once, and as many more for each latent function."""
GROUP_METHODS = ("solve", "odvgp", "solve-collapsed", "solve-relaxed", "deep-solve")
"""Methods with a second group of inducing inputs, in each layer of a deep one."""
DEEP_METHODS = tuple(name for name in METHODS if name.startswith("deep-"))
"""Methods with layers."""
LAYERS = 2
"""How many, by default."""
ACTION_METHODS = ("cagp-opt", "cagp-cg")
"""Methods with actions in place of inducing inputs."""
PART_METHODS = tuple(name for name in METHODS if name not in (*FULL_METHODS, *ACTION_METHODS, "tsvgp"))
"""Methods that keep nothing for each datum, so that rows can come in parts."""


def kernel_or_auto(kernel: Any) -> Any:
    """The kernel of that name, if it is one; "auto", which is left to the caller, and kernels as they are."""
    return kernel_named(kernel, "auto") if isinstance(kernel, str) and kernel != "auto" else kernel


def kernel_named(name: str, *others: str) -> Kernel:
    """Kernels joined by ``+`` and ``*``, which binds tighter.

    A number in parentheses is the lengthscale at which training starts, or the period, in units of the inputs:
    ``"matern32(3000) + seasonal(365.25) * rbf"``. ValueError lists the known, and what else may stand in their place.
    """
    total: Any = None
    for term in name.split("+"):
        product: Any = None
        for part in term.split("*"):
            factor = _single_kernel(part.strip(), name, others)
            product = factor if product is None else product * factor
        total = product if total is None else total + product
    return total


def _single_kernel(part: str, name: str, others: tuple[str, ...]) -> Kernel:
    found = VALUE.fullmatch(part)
    part, value = (found[1], float(found[2])) if found else (part, None)
    if part not in KERNELS:
        where = f" in {name!r}" if part != name else ""
        known = ", ".join((*others, *KERNELS))
        msg = f"unknown kernel {part!r}{where}; known are {known}, and sums and products such as rbf*linear+white."
        raise ValueError(msg)
    kind = KERNELS[part]
    if value is None:
        return kind()
    takes = next((name for name in ("period", "lengthscale") if name in vars(kind())), None)
    if takes is None:
        msg = f"the kernel {part!r} in {name!r} takes no number; leave it out."
        raise ValueError(msg)
    return kind(**{takes: value})


def build(
    method: str,
    X: Array,
    y: Array,
    *,
    likelihood: Likelihood,
    kernel: str | Kernel,
    num_inducing: int,
    seed: int,
    mean_function: Mean | None = None,
    num_orthogonal: int | None = None,
    storage: str = "datum",
    num_actions: int | None = None,
    support: int | None = None,
    layers: int = LAYERS,
    outputs: Any = None,
    weights: Array | None = None,
) -> Any:
    """The model of a method, ready to be trained; the kernel by its name, or itself.

    Those of `OUTPUT_METHODS` take `outputs`, as `agp.SVGP.from_data`; "gpr" and "sgpr" take `weights`, others have them
    in the targets of `agp.likelihoods.Weighted`.
    """
    kernel = kernel_named(kernel) if isinstance(kernel, str) else kernel
    parts: dict[str, Any] = {"kernel": kernel, "likelihood": likelihood, "mean_function": mean_function}
    parts |= {"num_inducing": num_inducing, "seed": seed}
    if method in GROUP_METHODS:
        parts["num_orthogonal"] = num_orthogonal
    if method in ACTION_METHODS:
        parts |= {"num_actions": num_actions, "support": support}
    if method in DEEP_METHODS:
        parts["layers"] = layers
    if method in OUTPUT_METHODS:
        parts["outputs"] = outputs
    if method == "tsvgp":
        parts["storage"] = storage
    if weights is not None:
        parts["weights"] = weights
    return METHODS[method][1](X, y, **parts)


def _with_new_actions(model: Any, steps: int, **settings: Any) -> list[Update]:
    """`agp.recipe`, with the actions of conjugate gradients before each step."""
    return [ActionsUpdate(ConjugateGradients(model.actions.count)), *recipe(model, steps, **settings)]


def _with_natural_gradients(model: Any, steps: int, **settings: Any) -> list[Update]:
    """`agp.recipe`, with `NaturalGradient` for q(u) at the rate of site steps."""
    return [NaturalGradient(SITE_RATE), *recipe(model, steps, frozen="posterior.*", **settings)]


OWN_UPDATES: dict[str, Callable[..., list[Update]]] = {
    "qsvgp": _with_natural_gradients,
    "cagp-cg": _with_new_actions,
}
"""Methods whose steps are not those of `agp.recipe` for their model, and what has its place."""


def updates_of(method: str, model: Any, steps: int, **settings: Any) -> list[Update]:
    """The updates of a method; settings as those of `agp.recipe`."""
    return OWN_UPDATES.get(method, recipe)(model, steps, **settings)
