"""What the tests share: places to compute in, stored reference values, small problems and judges of gradients."""

import dataclasses
import functools
import json
import math
import re
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.special
import scipy.stats

import agp
from agp import tree
from agp.backend import backend_of, get_backend, like, to_numpy
from agp.bounds import Batch
from agp.inducing import Points
from agp.kernels import RBF, Linear, Matern12, Matern32, Matern52
from agp.likelihoods import Bernoulli, Exponential, Gamma, Gaussian, Poisson, RobustMax, StudentT
from agp.linalg import add_jitter
from agp.means import ConstantMean, LinearMean, ZeroMean
from agp.models import GPR, SGPR, SOLVEGP, SOLVEGPR, SVGP, TSVGP, TVGP, Variational
from agp.posteriors import (
    DiagonalMarginal,
    DiagonalWhitened,
    FullSiteLikelihoodForm,
    FullSiteRelaxed,
    InverseFree,
    LikelihoodForm,
    Marginal,
    Relaxed,
    Whitened,
)
from agp.processes import LinearMixing, Sparse
from agp.random import Draws

REFERENCE = Path(__file__).parent / "reference"

EXACT = 1e-8
"""Closed form against automatic differentiation in float64: one mathematics, rounding apart."""


# -- places -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """An array library and a device on it."""

    name: str
    device: str | None = None

    def array(self, x: Any, dtype: str = "float64") -> Any:
        """A host array here."""
        return get_backend(self.name).from_numpy(np.asarray(x), dtype=dtype, device=self.device)

    def move(self, model: Any, dtype: str = "float64") -> Any:
        """A model or an array here."""
        return tree.to_backend(model, self.name, dtype=dtype, device=self.device)

    def draws(self, draws: Draws) -> Draws:
        """Draws of the host here."""
        return Draws(*({name: self.array(x) for name, x in part.items()} for part in draws))

    def check(self, x: Any, dtype: str = "float64") -> None:
        """Fail unless x is an array of this library, device and dtype."""
        B = backend_of(x)
        assert B is get_backend(self.name)
        assert x.dtype == getattr(B.xp, dtype)
        if self.device is not None:
            assert B.device_name(x) == self.device

    def numpy(self, x: Any, dtype: str = "float64") -> np.ndarray:
        """The host copy of an array that must be from here."""
        self.check(x, dtype)
        return np.asarray(to_numpy(x))


NUMPY = Place("numpy")
TORCH = Place("torch", "cpu")
STRICT = Place("array_api_strict", "device1")
JAX = Place("jax", "cpu")
CUPY = Place("cupy", "cuda:0")
TORCH_CUDA = Place("torch", "cuda:0")
JAX_CUDA = Place("jax", "cuda:0")


def relative_error(actual: Any, desired: Any) -> float:
    """Largest difference, in units of the largest entry of what is desired (or of 1e-300)."""
    actual, desired = np.asarray(actual), np.asarray(desired)
    assert actual.shape == desired.shape, (actual.shape, desired.shape)
    assert np.isfinite(actual).all()
    return float(np.max(np.abs(actual - desired)) / max(np.max(np.abs(desired)), 1e-300))


def assert_close(actual: Any, desired: Any, tolerance: float, label: str = "") -> None:
    """Fail where the relative error exceeds the tolerance."""
    error = relative_error(actual, desired)
    assert error <= tolerance, f"{label}: relative error {error:.3g} > {tolerance:.3g}"


# -- stored reference values ------------------------------------------------------------------------------------------


class Case:
    """One stored file: inputs as arrays of a place, outputs as host arrays, and a record of which were looked at."""

    def __init__(self, name: str, place: Place) -> None:
        self.name, self.place = name, place
        with np.load(REFERENCE / f"{name}.npz", allow_pickle=False) as file:
            self._data = {key: file[key] for key in file.files}
        self.meta = json.loads(str(self._data.pop("meta")))
        self.seen: set[str] = set()
        factor = max(1.0, float(self.meta.get("cond_Kuu") or 1.0) / 1e6)
        self.value_tolerance, self.gradient_tolerance = 1e-9 * factor, 1e-7 * factor

    def host(self, name: str) -> np.ndarray:
        """An input, on the host."""
        return self._data[f"in_{name}"]

    def array(self, name: str) -> Any:
        """An input, in the place of this case."""
        return self.place.array(self.host(name))

    def given(self, name: str) -> bool:
        """Whether there is such an input."""
        return f"in_{name}" in self._data

    @property
    def outputs(self) -> set[str]:
        """The names of all outputs."""
        return {key[4:] for key in self._data if key.startswith("out_")}

    def has(self, name: str) -> bool:
        """Whether there is such an output."""
        return f"out_{name}" in self._data

    def out(self, name: str) -> np.ndarray:
        """An output, which counts as looked at."""
        self.seen.add(name)
        return self._data[f"out_{name}"]

    def value(self, name: str, actual: Any, tolerance: float | None = None) -> None:
        """Compare a value, its shape up to axes of length one."""
        self._compare(name, actual, self.value_tolerance if tolerance is None else tolerance)

    def gradient(self, name: str, actual: Any) -> None:
        """Compare a gradient."""
        self._compare(name, actual, self.gradient_tolerance)

    def _compare(self, name: str, actual: Any, tolerance: float) -> None:
        desired = self.out(name)
        actual = self.place.numpy(actual)
        assert np.squeeze(actual).shape == np.squeeze(desired).shape, name
        assert_close(np.squeeze(actual), np.squeeze(desired), tolerance, f"{self.name}:{name}")

    def finished(self, **left_out: str) -> None:
        """Fail unless every output was looked at or is left out, by its name, for a reason."""
        assert self.outputs - self.seen - left_out.keys() == set()
        assert left_out.keys() & self.seen == set()


# -- what a stored file was written for --------------------------------------------------------------------------------


@tree.model
class PeerProbit(Bernoulli):
    """The pure probit with GPyTorch's log Phi: below -1 a rational function that is off by up to 5e-5."""

    def _log_density(self, f, y):
        B = backend_of(f)
        xp = B.xp
        sign = 2.0 * y - 1.0
        x = sign * f
        numerator, denominator = xp.full_like(x, 0.5641895835477550741), xp.ones_like(x)
        for r in (1.2753666447299659, 5.0190497267842675, 6.1602098531096305, 7.4097406059647418, 2.9788656263939929):
            numerator = -x * numerator / 2.0**0.5 + r
        for q in (2.2605285207673270, 9.3960340162350542, 12.048951927855129, 17.081440747466004, 9.6089653271927879):
            denominator = -x * denominator / 2.0**0.5 + q
        denominator = -x * denominator / 2.0**0.5 + 3.3690752069827528
        tail = xp.log(0.5 * xp.abs(numerator / denominator)) - 0.5 * x * x
        value = xp.where(x < -1.0, tail, B.special("log_ndtr", x))

        def pullback(bar):
            return tree.cotangent(self), bar * sign * xp.exp(-0.5 * x * x - 0.5 * math.log(2.0 * math.pi) - value)

        return value, pullback


KERNELS_BY_NAME = {
    "squaredexponential": RBF,
    "rbf": RBF,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
}
"""The stationary kernels that files name, in small letters."""


def mean_of(case: Case) -> Any:
    """The mean function that a stored file was written for."""
    if case.given("mean_A"):
        return LinearMean(case.array("mean_A"), case.array("mean_b"))
    return ConstantMean(case.array("mean_constant")) if case.given("mean_constant") else ZeroMean()


MEAN_GRADIENTS = {
    "grad_mean_A": "mean_function.weights",
    "grad_mean_b": "mean_function.offset",
}


def stationary_of(case: Case) -> type:
    """The class of the stationary kernel that a stored file names, the only one of its formula."""
    words = re.findall(r"[a-z]+[0-9]*", case.meta["kernel"].lower())
    (name,) = [word for word in words if word in KERNELS_BY_NAME]
    return KERNELS_BY_NAME[name]


def kernel_of(case: Case) -> Any:
    """The kernel that a stored file was written for."""
    kernel = stationary_of(case)(case.array("variance"), case.array("lengthscales"))
    if "+ Linear(" in case.meta["kernel"]:
        return kernel + Linear(case.array("linear_variance"))
    assert not case.given("linear_variance")
    return kernel


def likelihood_of(case: Case, points: int = 20) -> Any:
    """The likelihood that a stored file was written for."""
    name = case.meta.get("likelihood") or "gaussian"
    if name == "gaussian":
        return Gaussian(case.array("noise_variance"))
    if name == "bernoulli_logit":
        return Bernoulli(link="logit", points=points)
    if name == "poisson":
        return Poisson(float(case.host("binsize")))
    if name == "gamma":
        return Gamma(case.array("shape"))
    if name == "exponential":
        return Exponential()
    if name == "studentt":
        return StudentT(case.array("scale"), float(case.host("df")), points)
    if name == "robustmax":
        return RobustMax(int(case.host("num_classes")), epsilon=float(case.host("epsilon")), points=points)
    assert name in ("bernoulli", "bernoulli_pure")
    if case.meta["peer"] == "GPyTorch":
        return PeerProbit(points=points)
    return Bernoulli(squash=0.0 if name == "bernoulli_pure" else 1e-3, points=points)


def link_by_nodes(
    mean: np.ndarray, var: np.ndarray, points: int = 20, link: Callable[[Any], Any] = scipy.special.ndtr
) -> np.ndarray:
    """E[Phi(f)], or another link, over f ~ N(mean, var) by Gauss-Hermite quadrature, as GPflow forms it for the pure
    probit.
    """
    nodes, weights = np.polynomial.hermite.hermgauss(points)
    f = np.asarray(mean)[..., None] + np.sqrt(2.0 * np.asarray(var))[..., None] * nodes
    return link(f) @ weights / math.sqrt(math.pi)


def log_density_by_nodes(
    log_density: Callable[[np.ndarray], np.ndarray], mean: np.ndarray, var: np.ndarray, points: int = 20
) -> np.ndarray:
    """Log E[exp log_density(f)] over f ~ N(mean, var) by one Gauss-Hermite rule about the mean, as peers form it."""
    nodes, weights = np.polynomial.hermite.hermgauss(points)
    f = np.asarray(mean)[..., None] + np.sqrt(2.0 * np.asarray(var))[..., None] * nodes
    return np.asarray(scipy.special.logsumexp(log_density(f), b=weights / math.sqrt(math.pi), axis=-1))


LOG_DENSITIES = {
    "poisson": lambda case, y, f: scipy.stats.poisson.logpmf(y, case.host("binsize") * np.exp(f)),
    "gamma": lambda case, y, f: scipy.stats.gamma.logpdf(y, case.host("shape"), scale=np.exp(f)),
    "exponential": lambda case, y, f: scipy.stats.expon.logpdf(y, scale=np.exp(f)),
    "studentt": lambda case, y, f: scipy.stats.t.logpdf(y, case.host("df"), f, case.host("scale")),
}
"""Log p(y | f) of likelihoods whose predictive densities are not those of fixed nodes, by SciPy."""


# -- models: how they are put together, and where they hold what ------------------------------------------------------
#
# Tests build models of arrays, look into them and name their leaves through these functions alone. Leaves go by their
# short names, such as "kernel.variance" or "Z": those without the path of the parts that hold them.

HOLDERS = ("process.", "process.", "inducing.")
"""Parts of a model that short names leave out; a mixture holds another process."""


def sparse(kernel: Any, posterior: Any, Z: Any, jitter: float | None = None, mean_function: Any = None) -> Sparse:
    """A sparse process of these parts as they are."""
    mean_function = ZeroMean() if mean_function is None else mean_function
    return Sparse(kernel=kernel, inducing=Points(Z), posterior=posterior, mean_function=mean_function, jitter=jitter)


def svgp(
    kernel: Any, likelihood: Any, posterior: Any, Z: Any, jitter: float | None = None, mean_function: Any = None
) -> SVGP:
    """A sparse variational GP of these parts as they are."""
    return SVGP(process=sparse(kernel, posterior, Z, jitter, mean_function), likelihood=likelihood)


def solvegp(kernel: Any, likelihood: Any, posterior: Any, Z: Any, jitter: float | None = None) -> SOLVEGP:
    """The same with a q(u) of groups; Z is that of all groups."""
    return SOLVEGP(process=sparse(kernel, posterior, Z, jitter), likelihood=likelihood)


def sgpr(
    kernel: Any, likelihood: Any, Z: Any, X: Any, y: Any, jitter: float | None = None, mean_function: Any = None
) -> SGPR:
    """Sparse regression on these data."""
    return SGPR(
        kernel=kernel,
        likelihood=likelihood,
        inducing=Points(Z),
        X=X,
        y=y,
        jitter=jitter,
        mean_function=ZeroMean() if mean_function is None else mean_function,
    )


def solvegpr(kernel: Any, likelihood: Any, Z: Any, X: Any, y: Any, **settings: Any) -> SOLVEGPR:
    """Sparse regression with groups of inducing inputs; settings: `sizes`, `second`, `tight`, `jitter`, ..."""
    return SOLVEGPR(kernel=kernel, likelihood=likelihood, inducing=Points(Z), X=X, y=y, **settings)


def tsvgp(
    kernel: Any, likelihood: Any, Z: Any, X: Any, shift: Any, precision: Any, jitter: float | None = None
) -> TSVGP:
    """A sparse model with these sites of each datum."""
    sites = {"site_shift": shift, "site_precision": precision}
    return TSVGP(kernel=kernel, likelihood=likelihood, inducing=Points(Z), X=X, jitter=jitter, **sites)


def tvgp(kernel: Any, likelihood: Any, X: Any, shift: Any, precision: Any) -> TVGP:
    """A full model with these sites of each datum."""
    return TVGP(kernel=kernel, likelihood=likelihood, X=X, site_shift=shift, site_precision=precision)


def gpr(kernel: Any, likelihood: Any, X: Any, y: Any, mean_function: Any = None) -> GPR:
    """Exact regression on these data."""
    mean_function = ZeroMean() if mean_function is None else mean_function
    return GPR(kernel=kernel, likelihood=likelihood, X=X, y=y, mean_function=mean_function)


def process(model: Any) -> Any:
    """What holds kernel, mean function, jitter and (where there is one) q(u), of a model or of a gradient like it."""
    if not isinstance(model, Variational):
        return model
    return model.process.process if isinstance(model.process, LinearMixing) else model.process


def inducing_inputs(model: Any) -> Any:
    """Z of a sparse model or of a gradient like it."""
    return process(model).inducing.Z


def replaced(model: Any, **parts: Any) -> Any:
    """The model with other parts, wherever it holds them; Z takes all inducing inputs."""
    if "Z" in parts:
        parts["inducing"] = Points(parts.pop("Z"))
    if not isinstance(model, Variational):
        return dataclasses.replace(model, **parts)
    own = {name: parts.pop(name) for name in ("likelihood", "priors") if name in parts}
    return dataclasses.replace(model, process=dataclasses.replace(model.process, **parts), **own)


def prior_covariance(kernel: Any, Z: Any, jitter: float | None = None) -> Any:
    """Kuu, before there is a model."""
    return add_jitter(kernel(Z)[0], jitter)


def inducing_covariance(model: Any) -> Any:
    """Kuu of a sparse model."""
    return process(model)._inducing_covariance()[0]


def marginals(model: Any, X: Any) -> tuple[tuple, Callable[..., tuple]]:
    """(mu, var, KL) of a model or a process at X, and the pullback of their cotangents to (process, X)."""
    held = process(model)
    factor, pull_factor = held.factorise()
    (mu, var), pull_project = held.project(factor, X)
    kl, pull_kl = held.kl_divergence(factor)

    def pullback(mu_bar: Any, var_bar: Any, kl_bar: Any) -> tuple[Any, Any]:
        bar, factor_bar, X_bar = pull_project(mu_bar, var_bar)
        kl_own, kl_factor = pull_kl(kl_bar)
        return tree.add(tree.add(bar, kl_own), pull_factor(tree.add(factor_bar, kl_factor))), X_bar

    return (mu, var, kl), pullback


def short_name(name: str) -> str:
    """The name of a leaf without the path of what holds it."""
    for holder in HOLDERS:
        name = name.removeprefix(holder)
    return name


def short_names(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves by their short names."""
    return {short_name(name): x for name, x in leaves.items()}


def named(model: Any, role: Any = None) -> dict[str, Any]:
    """The leaves of a model, a part or a gradient by their short names."""
    return short_names(tree.leaves(model) if role is None else tree.leaves(model, role))


def value_and_gradient(model: Any, X: Any, y: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
    """`agp.value_and_gradient` with the short names of leaves."""
    value, gradient = agp.value_and_gradient(model, X, y, **options)
    return value, short_names(gradient)


def with_leaves(model: Any, leaves: Mapping[str, Any]) -> Any:
    """The model with other leaves, by their full or short names."""
    full = {short_name(name): name for name in tree.leaves(model)}
    return tree.with_leaves(model, {full.get(name, name): x for name, x in leaves.items()})


# -- small problems ---------------------------------------------------------------------------------------------------


KERNELS = {
    "rbf": lambda: RBF(0.8, 0.7),
    "rbf-ard": lambda: RBF(0.8, (0.7, 1.1, 0.9)),
    "matern32": lambda: Matern32(1.2, 0.8),
    "matern32-ard": lambda: Matern32(1.2, (0.8, 1.3, 0.6)),
    "sum": lambda: RBF(0.8, 0.7) + Matern32(0.5, 1.4),
    "sum-ard": lambda: RBF(0.8, (0.7, 1.1, 0.9)) + Matern32(0.5, (1.4, 0.8, 1.0)),
}
POSTERIORS = (
    "whitened",
    "marginal",
    "diagonal-whitened",
    "diagonal-marginal",
    "likelihood",
    "likelihood-plain",
    "likelihood-full-site",
    "relaxed",
    "relaxed-plain",
    "relaxed-root",
    "relaxed-full-site",
    "inverse-free",
)
LIKELIHOODS = {
    "gaussian": lambda: Gaussian(0.2),
    "bernoulli": lambda: Bernoulli(),
    "bernoulli-squash": lambda: Bernoulli(squash=1e-3),
}


def as_arrays(model: Any) -> Any:
    """The model whose leaves given as numbers have become host arrays."""
    return tree.with_leaves(model, {k: np.asarray(v, dtype=np.float64) for k, v in tree.leaves(model).items()})


WITH_SLOPES = tuple(kind for kind in POSTERIORS if kind != "inverse-free")
"""Those whose gradient is the slope of the forward: A-SVGP's follows the factor, which NumPy's forward holds."""


def posterior_of(kind: str, Kuu: np.ndarray, outputs: int, rng: np.random.Generator) -> Any:
    """A random q(u) on the host; inverse factors are about 10 % off in every entry."""
    M = Kuu.shape[0]
    mean = rng.normal(size=(M, outputs))
    if kind in ("whitened", "marginal", "inverse-free"):
        scale = np.tril(0.3 * rng.normal(size=(outputs, M, M)))
        diagonal = np.arange(M)
        scale[:, diagonal, diagonal] = 0.5 + rng.uniform(size=(outputs, M))
        if kind == "inverse-free":
            factor = np.linalg.cholesky(np.linalg.inv(Kuu)) * (1.0 + 0.1 * rng.normal(size=(M, M)))
            return InverseFree(mean, scale, np.tril(factor))
        return {"whitened": Whitened, "marginal": Marginal}[kind](mean, scale)
    if kind.startswith("diagonal"):
        cls = DiagonalWhitened if kind == "diagonal-whitened" else DiagonalMarginal
        return cls(mean, 0.5 + rng.uniform(size=(M, outputs)))
    site, full = 0.1 + rng.uniform(size=M), kind.endswith("full-site")
    root = np.diag(np.sqrt(site))
    if full:
        root = root + np.tril(0.2 * rng.normal(size=(M, M)), -1)
    if kind == "likelihood-full-site":
        return FullSiteLikelihoodForm(mean, root)
    if kind.startswith("likelihood"):
        return LikelihoodForm(mean, site, preconditioned=kind == "likelihood")
    inverse_factor = np.linalg.cholesky(np.linalg.inv(Kuu + root @ root.T))
    inverse_factor = np.tril(inverse_factor * (1.0 + 0.1 * rng.normal(size=(M, M))))
    if full:
        return FullSiteRelaxed(mean, root, inverse_factor)
    choice = {"relaxed": True, "relaxed-plain": False, "relaxed-root": "root"}[kind]
    return Relaxed(mean, site, inverse_factor, preconditioned=choice)


def problem(
    kernel: str = "rbf-ard",
    posterior: str = "relaxed",
    likelihood: str = "gaussian",
    *,
    outputs: int = 1,
    inducing: int = 7,
    rows: int = 12,
    seed: int = 0,
) -> tuple[Any, np.ndarray, np.ndarray]:
    """A random model on the host, far from any optimum, with its data (X [N, 3], y [N, P])."""
    rng = np.random.default_rng([seed, outputs, inducing])
    X, Z = rng.normal(size=(rows, 3)), rng.normal(size=(inducing, 3))
    y = rng.normal(size=(rows, outputs)) if likelihood == "gaussian" else rng.integers(0, 2, size=(rows, outputs)) * 1.0
    prior = as_arrays(KERNELS[kernel]())
    q = posterior_of(posterior, prior_covariance(prior, Z, 1e-3), outputs, rng)
    return svgp(prior, as_arrays(LIKELIHOODS[likelihood]()), q, Z, jitter=1e-3), X, y


def toy_data(rows: int = 30, outputs: int = 1, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """A smooth function of two inputs with a little noise, on the host: X [N, 2], y [N, P]."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, size=(rows, 2))
    phase = np.arange(outputs)
    y = np.sin(1.5 * X[:, :1] + phase) + 0.5 * X[:, 1:] + 0.1 * rng.normal(size=(rows, outputs))
    return X, y


# -- memory -----------------------------------------------------------------------------------------------------------


def peak(f: Callable[[], Any]) -> float:
    """The largest number of MiB of host arrays that a call holds at once, its result included."""
    tracemalloc.start()
    try:
        f()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


# -- judges of gradients ----------------------------------------------------------------------------------------------

Leaves = Mapping[str, Any]
Stage = Callable[[Leaves], tuple[tuple, Callable[..., dict]]]
"""From named arrays to outputs and the pullback from their cotangents to those of the named arrays."""


def cotangents_for(stage: Stage, leaves: Leaves, seed: int = 11) -> tuple:
    """Random cotangents, like the outputs of a stage."""
    rng = np.random.default_rng(seed)
    outputs = stage(leaves)[0]
    return tuple(backend_of(x).xp.asarray(rng.normal(size=tuple(x.shape)), **like(x)) for x in outputs)


def closed_form(stage: Stage, leaves: Leaves, bars: tuple) -> dict[str, Any]:
    """The pullback's answer, zeros for None."""
    found = stage(leaves)[1](*bars)
    return {k: backend_of(x).xp.zeros_like(x) if found.get(k) is None else found[k] for k, x in leaves.items()}


def autograd(stage: Stage, leaves: Leaves, bars: tuple) -> dict[str, Any]:
    """Torch's answer through the same forward."""
    import torch

    inputs = {k: x.detach().clone().requires_grad_() for k, x in leaves.items()}
    total = functools.reduce(torch.add, [torch.sum(x * bar) for x, bar in zip(stage(inputs)[0], bars, strict=True)])
    grads = torch.autograd.grad(total, list(inputs.values()), materialize_grads=True, allow_unused=True)
    return dict(zip(inputs, grads, strict=True))


def slope_by_differences(stage: Stage, leaves: Leaves, bars: tuple, name: str, direction: np.ndarray) -> float:
    """The derivative of sum(bars * outputs) along a direction of one leaf, by central differences of order four."""

    def at(step: float) -> float:
        outputs = stage({**leaves, name: leaves[name] + step * direction})[0]
        return float(sum(np.sum(x * bar) for x, bar in zip(outputs, bars, strict=True)))

    h = 1e-3
    return (8.0 * (at(h) - at(-h)) - (at(2.0 * h) - at(-2.0 * h))) / (12.0 * h)


def assert_closed_form_is_autograd(stage: Stage, leaves: Leaves, tolerance: float = EXACT) -> None:
    """Closed form against torch for host leaves, every one of them."""
    here = {k: TORCH.array(x) for k, x in leaves.items()}
    bars = cotangents_for(stage, here)
    ours, theirs = closed_form(stage, here, bars), autograd(stage, here, bars)
    for name in leaves:
        assert_close(TORCH.numpy(ours[name]), TORCH.numpy(theirs[name]), tolerance, name)


def assert_closed_form_is_slope(stage: Stage, leaves: Leaves, tolerance: float = 1e-7) -> None:
    """Closed form against differences for host leaves; truncation is O(1e-12), rounding O(1e-13) of the total."""
    rng = np.random.default_rng(5)
    bars = cotangents_for(stage, leaves)
    ours = closed_form(stage, leaves, bars)
    for name, x in leaves.items():
        direction = np.asarray(rng.normal(size=np.shape(x)))
        direction = lower_leaves({name: direction})[name]
        # that of a single number may be close to zero, and a small leaf bends within smaller steps
        direction = direction / np.max(np.abs(direction)) * np.clip(np.max(np.abs(x)), 0.1, 1.0)
        slope = slope_by_differences(stage, leaves, bars, name, direction)
        scale = np.linalg.norm(ours[name]) * np.linalg.norm(direction)
        assert abs(np.sum(ours[name] * direction) - slope) <= tolerance * max(scale, 1e-6), name


def lower_leaves(leaves: Leaves) -> dict[str, Any]:
    """The leaves, of which those that hold triangular factors of q(u) keep their lower triangles."""
    held = {k: x.ndim == {"scale": 3, "site_scale": 2}.get(k.rpartition(".")[2]) for k, x in leaves.items()}
    return {k: backend_of(x).xp.tril(x) if held[k] else x for k, x in leaves.items()}


def bound_stage(model: Any, y: np.ndarray, scale: float = 1.0) -> Stage:
    """The bound as a function of the model's constrained parameters and of X."""

    def stage(leaves: Leaves) -> tuple[tuple, Callable[..., dict]]:
        B = backend_of(leaves["X"])
        others = {k: v for k, v in named(model).items() if k not in leaves}
        place = {k: B.from_numpy(v, device=B.device_name(leaves["X"])) for k, v in others.items()}
        here = with_leaves(model, place | {k: v for k, v in leaves.items() if k != "X"})
        targets = B.from_numpy(y, device=B.device_name(leaves["X"]))
        value, pull = here._objective(Batch(leaves["X"], targets, scale))

        def pullback(bar):
            model_bar, X_bar = pull(bar)
            return named(model_bar) | {"X": X_bar}

        return (value,), pullback

    return stage
