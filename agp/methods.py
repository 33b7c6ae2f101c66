"""Short names of methods, kernels and likelihoods, for estimators and the command line."""

import re
from collections.abc import Callable
from functools import partial, reduce
from operator import add, mul
from typing import Any

from agp import kernels, likelihoods, posteriors
from agp.actions import ConjugateGradients
from agp.backend import Array
from agp.kernels import Kernel
from agp.likelihoods import Likelihood
from agp.means import Mean
from agp.models import CGGP, GPR, SGPR, SOLVEGP, SOLVEGPR, SVGP, TSVGP, TVGP, CaGP, DeepGP
from agp.training import SITE_RATE, recipe
from agp.updates import ActionsUpdate, NaturalGradient, Update

KERNELS: dict[str, type[Kernel]] = {
    "rbf": kernels.RBF,
    "matern32": kernels.Matern32,
    "matern12": kernels.Matern12,
    "matern52": kernels.Matern52,
    "rq": kernels.RationalQuadratic,
    "periodic": kernels.Periodic,
    "seasonal": kernels.Seasonal,
    "linear": kernels.Linear,
    "constant": kernels.Constant,
    "white": kernels.White,
}
QUOTED = r"'[^']*'|\"[^\"]*\""
PART = re.compile(
    rf"""\s*(?P<kind>[^\s()*+.]+)\s*
    (?:\(\s*(?P<value>\d+\.?\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?)\s*\)\s*)?
    (?:\.\s*on\s*\(\s*(?P<columns>(?:{QUOTED}|[^()'"])*)\)\s*)?
    (?P<operation>[+*]|$)""",
    re.VERBOSE,
)
"""Matches a kernel with its lengthscale or period and its columns, such as "rbf(2.0).on(width, 'unit price') *"."""
COLUMN = re.compile(r"'([^']*)'|\"([^\"]*)\"|([^,'\"]*[^,'\"\s][^,'\"]*)")
"""Matches the name of a column, which is in quotes if it contains commas, quotes or parentheses."""

LIKELIHOODS: dict[str, type[Likelihood]] = {
    "gaussian": likelihoods.Gaussian,
    "student-t": likelihoods.StudentT,
    "poisson": likelihoods.Poisson,
    "negative-binomial": likelihoods.NegativeBinomial,
    "gamma": likelihoods.Gamma,
    "exponential": likelihoods.Exponential,
    "beta": likelihoods.Beta,
    "latent-noise": likelihoods.LatentNoiseGaussian,
}
"""The likelihoods for numeric targets."""


def _with_policy(X: Array, y: Array, *, num_actions: int, **parts: Any) -> CaGP:
    return CaGP.from_data(X, y, policy=ConjugateGradients(num_actions), **parts)


def _dual_posterior(tied: Any) -> Callable[..., Any]:
    return partial(SVGP.from_data, posterior=partial(posteriors.Dual.from_prior, tied=tied))


STORAGES: dict[str, Callable[..., Any]] = {
    "datum": TSVGP.from_data,
    "natural": _dual_posterior("natural"),
    "kernel": _dual_posterior("kernel"),
    "white": _dual_posterior("white"),
    "inverse-free": partial(SVGP.from_data, posterior=posteriors.DualInverseFree),
}
"""The constructors of t-SVGP for each way to store its sites: one site per datum, or sites tied in some coordinates."""


_decoupled = partial(SOLVEGP.from_data, posterior=posteriors.Whitened, second=posteriors.PriorSpread)


def _deep_solve(X: Array, y: Array, *, num_inducing: int, num_orthogonal: int | None, **parts: Any) -> DeepGP:
    """Build a deep GP with two groups of inducing variables per layer. By default, the groups have equal size."""
    M2 = num_inducing if num_orthogonal is None else num_orthogonal
    return DeepGP.from_data(X, y, posterior=posteriors.Whitened, num_inducing=num_inducing, num_orthogonal=M2, **parts)


METHODS: dict[str, tuple[str, Callable[..., Any]]] = {
    "gpr": ("exact GP", GPR.from_data),
    "sgpr": ("collapsed sparse GP", SGPR.from_data),
    "msvgp": ("M-SVGP, marginal", partial(SVGP.from_data, posterior=posteriors.Marginal)),
    "wsvgp": ("W-SVGP, whitened", partial(SVGP.from_data, posterior=posteriors.Whitened)),
    "lsvgp": ("L-SVGP, likelihood parameterisation", partial(SVGP.from_data, posterior=posteriors.LikelihoodForm)),
    "rsvgp": ("R-SVGP, inverse-free", partial(SVGP.from_data, posterior=posteriors.Relaxed)),
    "asvgp": ("A-SVGP, inverse-free whitened", partial(SVGP.from_data, posterior=posteriors.InverseFree)),
    "qsvgp": ("W-SVGP with natural gradients of q(u)", partial(SVGP.from_data, posterior=posteriors.Whitened)),
    "tsvgp": ("t-SVGP, dual", TSVGP.from_data),
    "tvgp": ("t-VGP, dual without inducing inputs", TVGP.from_data),
    "solve": ("SOLVE-GP, orthogonal groups", partial(SOLVEGP.from_data, posterior=posteriors.Whitened)),
    "odvgp": ("orthogonally decoupled GP", _decoupled),
    "solve-collapsed": ("SOLVE-GP, collapsed", SOLVEGPR.from_data),
    "solve-relaxed": ("SOLVE-GP, inverse-free", partial(SOLVEGP.from_data, posterior=posteriors.RelaxedOrthogonal)),
    "cagp-opt": ("computation-aware GP, learned sparse actions", CaGP.from_data),
    "cagp-cg": ("computation-aware GP, conjugate gradients", _with_policy),
    "cggp": ("exact GP by conjugate gradients", CGGP.from_data),
    "deep-msvgp": ("deep GP, M-SVGP layers", partial(DeepGP.from_data, posterior=posteriors.Marginal)),
    "deep-wsvgp": ("deep GP, W-SVGP layers", partial(DeepGP.from_data, posterior=posteriors.Whitened)),
    "deep-lsvgp": ("deep GP, L-SVGP layers", partial(DeepGP.from_data, posterior=posteriors.LikelihoodForm)),
    "deep-rsvgp": ("deep GP, R-SVGP layers", partial(DeepGP.from_data, posterior=posteriors.Relaxed)),
    "deep-asvgp": ("deep GP, A-SVGP layers", partial(DeepGP.from_data, posterior=posteriors.InverseFree)),
    "deep-solve": ("deep GP, SOLVE-GP layers", _deep_solve),
}
"""The description and the constructor of each method.

Constructors take X, y, kernel, likelihood, num_inducing and seed, except for the arguments listed in `WITHOUT`. In
addition, `GROUP_METHODS` take num_orthogonal, `ACTION_METHODS` take num_actions and support, and `DEEP_METHODS` take
layers. The constructor of t-SVGP depends on how its sites are stored.
"""
WITHOUT: dict[str, tuple[str, ...]] = dict.fromkeys(("gpr", "tvgp", "cggp"), ("num_inducing", "seed"))
WITHOUT |= dict.fromkeys(("cagp-opt", "cagp-cg"), ("num_inducing",))
"""Arguments that constructors do not take, because the methods use no inducing inputs or no random numbers."""

GAUSSIAN_METHODS = ("gpr", "sgpr", "solve-collapsed", "cagp-opt", "cagp-cg", "cggp")
"""Methods that support only the Gaussian likelihood."""
OUTPUT_METHODS = ("msvgp", "wsvgp", "lsvgp", "rsvgp", "asvgp", "qsvgp")
"""Methods that accept the argument `outputs`."""
OUTPUTS = ("shared", "separate", "coregionalised", "intrinsic")
"""The values of `outputs`, which determines the components that several outputs share."""
WEIGHTED_METHODS = tuple(name for name in METHODS if name not in ("solve-collapsed", "cagp-opt", "cagp-cg", "cggp"))
"""Methods that accept weights."""
GROWING_METHODS = ("sgpr", *OUTPUT_METHODS)
"""Methods whose number of inducing inputs `agp.fit_growing` can choose."""
FULL_METHODS = ("gpr", "sgpr", "solve-collapsed", "cggp", "tvgp")
"""Methods that use all rows in every step. Computation-aware methods do so only if their support is all rows."""
DENSE_METHODS: dict[str, tuple[int, int]] = {"gpr": (6, 0), "tvgp": (3, 8)}
"""Methods that store N x N arrays: the number of such arrays, and of further arrays per latent function."""
GROUP_METHODS = ("solve", "odvgp", "solve-collapsed", "solve-relaxed", "deep-solve")
"""Methods with a second group of inducing inputs (in each layer, for deep methods)."""
DEEP_METHODS = tuple(name for name in METHODS if name.startswith("deep-"))
"""Methods with layers."""
LAYERS = 2
"""The default number of layers."""
ACTION_METHODS = ("cagp-opt", "cagp-cg")
"""Methods with actions in place of inducing inputs."""
PART_METHODS = tuple(name for name in METHODS if name not in (*FULL_METHODS, *ACTION_METHODS, "tsvgp"))
"""Methods that `partial_fit` can train, because they store nothing per datum."""


def kernel_or_auto(kernel: Any) -> Any:
    """Return the kernel with this name; return "auto" and kernels unchanged."""
    return parse_kernel(kernel, "auto") if isinstance(kernel, str) and kernel != "auto" else kernel


def parse_kernel(name: str, *others: str) -> Kernel:
    """Return the kernel described by names joined by ``+`` and ``*``.

    A number in parentheses is the initial lengthscale, or the period, in the units of the inputs:
    ``"matern32(3000) + seasonal(365.25) * rbf"``. A part may act on some columns of a table:
    ``"rbf.on(width, height) + linear.on('unit price')"``. An unknown name raises a ValueError that lists the known
    names.
    """
    terms: list[list[Kernel]] = [[]]
    at, operation = 0, "*"
    while operation:
        part = PART.match(name, at)
        if part is None:
            rest = repr(name[at:].strip()) if name[at:].strip() else "nothing"
            msg = f"the kernel {name!r} has {rest} where a kernel should be; write it as in 'rbf*linear + white'."
            raise ValueError(msg)
        if operation == "+":
            terms.append([])
        terms[-1].append(_single_kernel(part, name, others))
        at, operation = part.end(), part["operation"]
    return reduce(add, [reduce(mul, term) for term in terms])


def _single_kernel(part: re.Match[str], name: str, others: tuple[str, ...]) -> Kernel:
    """Return the kernel of a part, such as ``rbf(2.0).on(width)``."""
    kind, value = part["kind"], part["value"]
    if kind not in KERNELS:
        where = f" in {name!r}" if kind != name else ""
        known = ", ".join((*others, *KERNELS))
        msg = f"unknown kernel {kind!r}{where}; choose from {known}, or sums and products such as rbf*linear+white."
        raise ValueError(msg)
    kernel = KERNELS[kind]()
    if value is not None:
        takes = next((field for field in ("period", "lengthscale") if field in vars(kernel)), None)
        if takes is None:
            msg = f"the kernel {kind!r} in {name!r} takes no number; leave the number out."
            raise ValueError(msg)
        kernel = KERNELS[kind](**{takes: float(value)})
    if part["columns"] is None:
        return kernel
    columns = [x for found in COLUMN.finditer(part["columns"]) for x in found.groups() if x is not None]
    return kernel.on(tuple(map(str.strip, columns)))


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
    """Build the untrained model of a method. The kernel is a name or an object.

    The methods in `OUTPUT_METHODS` accept `outputs`, as `agp.SVGP.from_data` does. "gpr" and "sgpr" accept `weights`.
    Other methods read the weights from the targets of `agp.likelihoods.Weighted`.
    """
    kernel = parse_kernel(kernel) if isinstance(kernel, str) else kernel
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
    if weights is not None:
        parts["weights"] = weights
    constructor = STORAGES[storage] if method == "tsvgp" else METHODS[method][1]
    return constructor(X, y, **{name: x for name, x in parts.items() if name not in WITHOUT.get(method, ())})


def _with_new_actions(model: Any, steps: int, **settings: Any) -> list[Update]:
    """Return the updates of `agp.recipe`, preceded in each step by an update of the conjugate-gradient actions."""
    return [ActionsUpdate(ConjugateGradients(model.actions.count)), *recipe(model, steps, **settings)]


def _with_natural_gradients(model: Any, steps: int, **settings: Any) -> list[Update]:
    """Return the updates of `agp.recipe`, and `NaturalGradient` for q(u) with the step size of site updates."""
    return [NaturalGradient(SITE_RATE), *recipe(model, steps, frozen="posterior.*", **settings)]


OWN_UPDATES: dict[str, Callable[..., list[Update]]] = {
    "qsvgp": _with_natural_gradients,
    "cagp-cg": _with_new_actions,
}
"""The updates of methods that `agp.recipe` does not train."""


def updates_of(method: str, model: Any, steps: int, **settings: Any) -> list[Update]:
    """Return the updates that train a method; settings are as in `agp.recipe`."""
    return OWN_UPDATES.get(method, recipe)(model, steps, **settings)
