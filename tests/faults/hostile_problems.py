"""Hostile problems drawn from a seed: data, a model and a training that nobody would choose, all of them allowed."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from agp.actions import ConjugateGradients, DenseActions, KernelEigenvectors, RandomDirections
from agp.backend import asarray_like, backend_of, get_backend, to_numpy
from agp.checks import usable
from agp.inducing import JointInducing, Patches, Points
from agp.kernels import RBF, Constant, Linear, Matern12, Matern32, Matern52, Periodic, RationalQuadratic, White
from agp.likelihoods import (
    Bernoulli,
    Beta,
    Exponential,
    Gamma,
    Gaussian,
    LatentNoiseGaussian,
    NegativeBinomial,
    Ordinal,
    Poisson,
    RobustMax,
    Softmax,
    StudentT,
)
from agp.means import ConstantMean, LinearMean, ZeroMean
from agp.models import CGGP, GPR, NNGP, SGPR, SOLVEGP, SOLVEGPR, SVGP, TNNGP, TSVGP, TVGP, VIF, CaGP
from agp.posteriors import (
    DiagonalMarginal,
    DiagonalWhitened,
    Dual,
    DualInverseFree,
    FullSiteLikelihoodForm,
    FullSiteRelaxed,
    InverseFree,
    LikelihoodForm,
    Marginal,
    Orthogonal,
    PriorSpread,
    Relaxed,
    RelaxedOrthogonal,
    RelaxedUnion,
    Whitened,
)
from agp.processes import Deep, LinearMixing, Sparse, Stack
from agp.training import recipe
from agp.updates import Adam

__all__ = ["MODELS", "NEAR", "Problem", "Sizes", "drawn"]

POSTERIORS: dict[str, Any] = {
    "whitened": Whitened,
    "marginal": Marginal,
    "likelihood": LikelihoodForm,
    "likelihood-plain": partial(LikelihoodForm.from_prior, preconditioned=False),
    "relaxed": Relaxed,
    "relaxed-plain": partial(Relaxed.from_prior, preconditioned=False),
    "relaxed-probes": partial(Relaxed.from_prior, probes=4),
    "inverse-free": InverseFree,
    "diagonal-whitened": DiagonalWhitened,
    "diagonal-marginal": DiagonalMarginal,
    "likelihood-full-site": FullSiteLikelihoodForm,
    "relaxed-full-site": FullSiteRelaxed,
    "dual-natural": Dual,
    "dual-kernel": partial(Dual.from_prior, tied="kernel"),
    "dual-white": partial(Dual.from_prior, tied="white"),
    "dual-inverse-free": DualInverseFree,
    "orthogonal": Orthogonal,
}
INNER = ("whitened", "marginal", "likelihood", "relaxed", "inverse-free")
"""Those that can stand in inner layers."""


class Sizes(NamedTuple):
    """N, D, P and M of a problem."""

    rows: int
    columns: int
    outputs: int
    inducing: int


class Problem(NamedTuple):
    """A problem on the host, and what makes a model of it in any library."""

    seed: int
    model: str
    about: dict[str, Any]
    """What was drawn, by name."""
    X: np.ndarray
    """Inputs [N, D]."""
    y: np.ndarray
    """Targets [N, K]."""
    known: dict[str, np.ndarray]
    """Weights, offset and noise of the rows, where there are any."""
    elsewhere: np.ndarray
    """Test inputs [n, D]: rows of the data, twins of some, and far away."""
    build: Callable[..., Any]
    """The model of arrays X and y, and of what is known of the rows."""
    steps: int
    updates: Callable[[Any], Any]
    """What a step does, of the model."""
    batch_size: int | None
    deterministic: bool
    """Whether L-BFGS is tried as well."""
    observed_zero: bool
    """Whether observations may be predicted with variance zero: known noise, and none besides."""
    observed_infinite: bool
    """Whether they may be predicted without a finite variance, as the likelihood documents."""
    deep: bool
    """Whether there are no joint covariances."""


# -- inputs -----------------------------------------------------------------------------------------------------------


def power_of_ten(rng: Any, low: float, high: float) -> float:
    return float(10.0 ** rng.uniform(low, high))


def choice(rng: Any, options: Any) -> Any:
    options = list(options)
    return options[int(rng.integers(len(options)))]


def inputs(rng: Any, N: int, D: int) -> tuple[np.ndarray, list[str]]:
    """X [N, D] around one, and what is unusual about it."""
    X, unusual = rng.normal(size=(N, D)), []
    for name, odds in {"repeated": 0.25, "twins": 0.2, "constant": 0.2, "zero": 0.15, "collinear": 0.2}.items():
        if rng.uniform() > odds:
            continue
        unusual.append(name)
        rows, column = rng.integers(N, size=N), int(rng.integers(D))
        if name == "repeated":
            X = X[rows % max(1, N // 4), :]
        elif name == "twins":
            X = X[rows, :] + 1e-9 * rng.normal(size=(N, D))
        elif name == "constant":
            X[:, column] = rng.normal()
        elif name == "zero":
            X[:, column] = 0.0
        else:
            X[:, column] = 2.0 * X[:, 0]
    return X, unusual


def scales(rng: Any) -> tuple[float, float]:
    """A unit, and an offset in this unit."""
    unit = choice(rng, [1.0, 1.0, power_of_ten(rng, -12, 12), power_of_ten(rng, -3, 3)])
    return unit, choice(rng, [0.0, 0.0, 1.0, -power_of_ten(rng, 0, 6), power_of_ten(rng, 0, 6)])


# -- kernels ----------------------------------------------------------------------------------------------------------


def base_kernel(rng: Any, spread: float, variance: float, *, white: bool) -> Any:
    """A kernel for inputs of this spread and functions of this variance, or far from either; or left to the data."""
    makers = [RBF, RBF, Matern12, Matern32, Matern52, RationalQuadratic, Periodic, Linear, Constant]
    cls = choice(rng, [*makers, White] if white else makers)
    fields: dict[str, float] = {}
    if rng.uniform() < 0.4:
        fields["variance"] = variance * power_of_ten(rng, -10, 10)
    if cls in (Linear, Constant, White):
        return cls(**fields)
    if rng.uniform() < 0.5:
        fields["lengthscale"] = (1.0 if cls is Periodic else spread) * power_of_ten(rng, -6, 6)
    if cls is Periodic and rng.uniform() < 0.5:
        fields["period"] = spread * power_of_ten(rng, -4, 4)
    if cls is RationalQuadratic and rng.uniform() < 0.5:
        fields["alpha"] = power_of_ten(rng, -3, 3)
    return cls(**fields)


def kernel(rng: Any, D: int, spread: float, variance: float, *, white: bool = True) -> Any:
    """None, a base kernel, or one made of several."""
    one = partial(base_kernel, rng, spread, variance, white=white)
    kind = choice(rng, ["none", "base", "base", "base", "sum", "product", "scaled", "columns"])
    if kind == "none":
        return None
    if kind == "sum":
        return one() + one()
    if kind == "product":
        return one() * one()
    if kind == "scaled":
        return power_of_ten(rng, -6, 6) * one()
    if kind == "columns":
        return one().on(sorted(rng.choice(D, size=int(rng.integers(1, D + 1)), replace=False).tolist()))
    return one()


# -- likelihoods and targets ------------------------------------------------------------------------------------------


def smooth(rng: Any, X: np.ndarray, P: int) -> np.ndarray:
    """A smooth function of X with noise [N, P]."""
    weights = rng.normal(size=(X.shape[1], P))
    return np.sin(X @ weights) + power_of_ten(rng, -6, 0) * rng.normal(size=(len(X), P))


def real_targets(rng: Any, X: np.ndarray, P: int, unit: float, offset: float) -> tuple[np.ndarray, str]:
    """y [N, P], and what is unusual about it."""
    y, kind = smooth(rng, X, P), choice(rng, ["smooth", "smooth", "smooth", "equal", "outliers", "zero"])
    if kind == "equal":
        y = np.full_like(y, rng.normal())
    elif kind == "zero":
        return np.zeros_like(y), kind
    elif kind == "outliers":
        y[int(rng.integers(len(y))), :] = choice(rng, [-1.0, 1.0]) * 1e8
    return unit * (y + offset), kind


def gaussian(rng: Any, X: np.ndarray, P: int) -> tuple[Any, np.ndarray, dict[str, Any]]:
    unit, offset = scales(rng)
    y, kind = real_targets(rng, X, P, unit, offset)
    noise = choice(rng, [None, None, unit**2 * power_of_ten(rng, -12, 8)])
    return Gaussian(noise), y, {"targets": kind, "unit": unit, "offset": offset, "noise": noise}


def student_t(rng: Any, X: np.ndarray, P: int) -> tuple[Any, np.ndarray, dict[str, Any]]:
    unit, offset = scales(rng)
    y, kind = real_targets(rng, X, P, unit, offset)
    scale = choice(rng, [None, None, unit * power_of_ten(rng, -8, 4)])
    degrees = choice(rng, [0.5, 1.0, 2.0, 2.1, 3.0, 30.0])
    about = {"targets": kind, "unit": unit, "offset": offset, "scale": scale, "degrees": degrees}
    return StudentT(scale, degrees_of_freedom=degrees), y, about


def known_noise(rng: Any, X: np.ndarray, P: int) -> tuple[Any, np.ndarray, dict[str, Any]]:
    unit, offset = scales(rng)
    y, kind = real_targets(rng, X, P, unit, offset)
    noise = choice(rng, [0.0, None, unit**2 * power_of_ten(rng, -10, 4)])
    return Gaussian(noise), y, {"targets": kind, "unit": unit, "offset": offset, "noise": noise}


def latent_noise(rng: Any, X: np.ndarray, P: int) -> tuple[Any, np.ndarray, dict[str, Any]]:
    unit, offset = scales(rng)
    y, kind = real_targets(rng, X, P, unit, offset)
    size = choice(rng, [None, None, unit * power_of_ten(rng, -3, 3)])
    return LatentNoiseGaussian(unit=size), y, {"targets": kind, "unit": unit, "offset": offset, "size": size}


def bernoulli(rng: Any, X: np.ndarray, P: int) -> tuple[Any, np.ndarray, dict[str, Any]]:
    labels = choice(rng, [1.0 * (smooth(rng, X, P) > 0.0), np.zeros((len(X), P)), np.ones((len(X), P))])
    squash, link = choice(rng, [0.0, 1e-3, 1e-12]), choice(rng, ["probit", "logit"])
    return Bernoulli(squash=squash, link=link), labels, {"squash": squash, "link": link, "ones": float(labels.mean())}


def poisson(rng: Any, X: np.ndarray, P: int) -> tuple[Any, np.ndarray, dict[str, Any]]:
    rate, exposure = power_of_ten(rng, -3, 12), choice(rng, [1.0, 1.0, power_of_ten(rng, -6, 6)])
    counts = np.floor(choice(rng, [rate, 0.0, 1.0]) * np.exp(smooth(rng, X, P)))
    return Poisson(exposure=exposure), counts, {"rate": rate, "exposure": exposure, "largest": float(counts.max())}


def classes(cls: Any, rng: Any, X: np.ndarray, P: int) -> tuple[Any, np.ndarray, dict[str, Any]]:
    C = P + 1
    labels = choice(rng, [rng.integers(C, size=(len(X), 1)), np.full((len(X), 1), C - 1)])
    return cls(C), 1.0 * labels, {"classes": C}


def negative_binomial(rng: Any, X: np.ndarray, P: int) -> tuple[Any, np.ndarray, dict[str, Any]]:
    other, counts, about = poisson(rng, X, P)
    dispersion = power_of_ten(rng, -6, 2)
    return NegativeBinomial(dispersion, exposure=other.exposure), counts, about | {"dispersion": dispersion}


def positive(cls: Any, rng: Any, X: np.ndarray, P: int) -> tuple[Any, np.ndarray, dict[str, Any]]:
    unit = power_of_ten(rng, -8, 8)
    y = unit * np.exp(choice(rng, [1.0, 10.0]) * smooth(rng, X, P))
    if cls is Exponential:
        return Exponential(), choice(rng, [y, y, 0.0 * y, y * (y > unit)]), {"unit": unit}
    shape = choice(rng, [0.1, 1.0, 100.0])
    return Gamma(shape), y, {"unit": unit, "shape": shape}


def beta(rng: Any, X: np.ndarray, P: int) -> tuple[Any, np.ndarray, dict[str, Any]]:
    precision, steep = power_of_ten(rng, -1, 4), choice(rng, [1.0, 10.0])
    share = np.clip(1.0 / (1.0 + np.exp(-steep * smooth(rng, X, P))), 1e-7, 1.0 - 1e-7)
    link = choice(rng, ["probit", "logit"])
    return Beta(precision, link=link), share, {"precision": precision, "steep": steep, "link": link}


def ordinal(rng: Any, X: np.ndarray, P: int) -> tuple[Any, np.ndarray, dict[str, Any]]:
    K = choice(rng, [2, 3, 9])
    labels = np.clip(np.floor(0.5 * K * (1.0 + smooth(rng, X, P))), 0, K - 1)
    return Ordinal(K), choice(rng, [labels, 0.0 * labels, 0.0 * labels + K - 1.0]), {"classes": K}


LIKELIHOODS: dict[str, Callable[..., Any]] = {
    "gaussian": gaussian,
    "student-t": student_t,
    "known-noise": known_noise,
    "latent-noise": latent_noise,
    "bernoulli": bernoulli,
    "poisson": poisson,
    "negative-binomial": negative_binomial,
    "gamma": partial(positive, Gamma),
    "exponential": partial(positive, Exponential),
    "beta": beta,
    "ordinal": ordinal,
    "softmax": partial(classes, Softmax),
    "robust-max": partial(classes, RobustMax),
}
COUPLING = ("latent-noise", "softmax", "robust-max")
"""Those that couple the outputs."""


def known_of_rows(rng: Any, model: str, liked: str, y: np.ndarray, unit: float, outputs: int) -> dict[str, np.ndarray]:
    """Weights [N], an offset [N] or [N, P], and noise [N] or [N, P], or some of these."""
    found, held = {}, model in GAUSSIAN_ONLY | NEAR
    rows, each = (len(y),), (len(y), outputs)
    if rng.uniform() < 0.2:
        found["weights"] = 10.0 ** rng.uniform(-6.0, 6.0, size=rows)
        if not held:
            found["weights"] *= rng.uniform(size=rows) < 0.7
    if rng.uniform() < 0.2:
        size = unit if liked in ("gaussian", "known-noise", "student-t", "latent-noise") else 1.0
        found["offset"] = size * power_of_ten(rng, -3, 2) * rng.normal(size=choice(rng, [rows, each]))
    if liked == "known-noise" or (liked == "gaussian" and rng.uniform() < 0.2):
        found["noise"] = unit**2 * 10.0 ** rng.uniform(-8.0, 4.0, size=rows if held else choice(rng, [rows, each]))
    return found


# -- models -----------------------------------------------------------------------------------------------------------


def mean_function(rng: Any, level: float) -> Any:
    made = [ZeroMean(), ConstantMean(), ConstantMean(level * power_of_ten(rng, -3, 3)), LinearMean()]
    return choice(rng, [None, *made])


class Draw(NamedTuple):
    """What the builders of models draw from."""

    rng: Any
    sizes: Sizes
    parts: dict[str, Any]
    """Kernel, likelihood and mean function."""
    another_kernel: Callable[[], Any]


def inducing_choice(draw: Draw) -> dict[str, Any]:
    """How many inducing inputs, and how chosen; or rows of the data, twice the same."""
    how = choice(draw.rng, ["kmeans", "kmeans", "random", "greedy-variance"])
    out = {"num_inducing": draw.sizes.inducing, "inducing": how, "seed": int(draw.rng.integers(100))}
    return out | choice(draw.rng, [{}, {}, {}, {"jitter": power_of_ten(draw.rng, -12, 0)}])


def given_rows(draw: Draw) -> np.ndarray | None:
    """Rows of the data to induce at, duplicates among them; None to leave the choice to the library."""
    if draw.rng.uniform() < 0.75:
        return None
    return draw.rng.integers(draw.sizes.rows, size=draw.sizes.inducing)


def sparse_model(cls: Any, draw: Draw, **options: Any) -> Callable[..., Any]:
    chosen, rows = inducing_choice(draw), given_rows(draw)

    def build(X: Any, y: Any, **known: Any) -> Any:
        where = chosen if rows is None else {**without(chosen, "num_inducing", "inducing"), "Z": taken(X, rows)}
        return cls.from_data(X, y, **draw.parts, **where, **options, **known)

    return build


def without(options: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: x for name, x in options.items() if name not in names}


def taken(X: Any, rows: Any) -> Any:
    """Rows of an array of any library."""
    xp = backend_of(X).xp
    return xp.stack([X[int(i), :] for i in rows])


def dense_model(cls: Any, draw: Draw, **options: Any) -> Callable[..., Any]:
    return lambda X, y, **known: cls.from_data(X, y, **draw.parts, **options, **known)


def svgp(name: str, draw: Draw) -> Callable[..., Any]:
    return sparse_model(SVGP, draw, posterior=POSTERIORS[name])


def cggp(draw: Draw) -> Callable[..., Any]:
    rank = choice(draw.rng, [None, 0, int(draw.rng.integers(0, draw.sizes.rows + 1))])
    return dense_model(CGGP, draw, rank=rank, probes=int(draw.rng.integers(1, 6)), lanczos_steps=20, max_iterations=64)


def cagp(draw: Draw) -> Callable[..., Any]:
    rng, N = draw.rng, draw.sizes.rows
    count = min(draw.sizes.inducing, N)
    kind = choice(rng, ["opt", "opt", "opt", "support", "policy", "policy", "dense"])
    loss = choice(rng, ["elbo", "elbo", "projected"])
    options: dict[str, Any] = {"inverse_free": bool(rng.integers(2)), "loss": loss if kind == "policy" else "elbo"}
    if kind in ("opt", "support"):
        layout, start = choice(rng, ["tree", "random"]), choice(rng, ["constant", "normal", "residual"])
        options |= {"num_actions": count, "layout": layout, "init": start}
        if kind == "support":
            options["support"] = int(rng.integers(count, N + 1))
    elif kind == "policy":
        policy = choice(rng, [ConjugateGradients, RandomDirections, KernelEigenvectors])
        options["policy"] = policy(count)
    else:
        dense = rng.normal(size=(N, count))
        return lambda X, y, **known: CaGP.from_data(
            X, y, **draw.parts, **options, **known, actions=DenseActions(array_like(dense, X))
        )
    return dense_model(CaGP, draw, **options)


def array_like(x: Any, reference: Any) -> Any:
    return asarray_like(np.asarray(x, dtype="float64"), reference)


def solve_sizes(draw: Draw) -> dict[str, int]:
    M = max(1, draw.sizes.inducing // 2)
    return {"num_inducing": M, "num_orthogonal": min(draw.sizes.inducing - M, draw.sizes.rows - M)}


def solvegp(draw: Draw) -> Callable[..., Any]:
    posterior, second = choice(
        draw.rng,
        [
            (Whitened, None),
            (Marginal, None),
            (Whitened, PriorSpread),
            (Whitened, Dual),
            (RelaxedOrthogonal, None),
            (RelaxedUnion, None),
        ],
    )
    return dense_model(SOLVEGP, draw, posterior=posterior, second=second, **solve_sizes(draw))


def solvegpr(draw: Draw) -> Callable[..., Any]:
    second = choice(draw.rng, [None, None, "whitened", "dual"])
    tight = second is None and bool(draw.rng.integers(2))
    return dense_model(SOLVEGPR, draw, second=second, tight=tight, **solve_sizes(draw))


def nngp(draw: Draw) -> Callable[..., Any]:
    return dense_model(NNGP, draw, among=choice(draw.rng, ["earlier", "others"]), **neighbours(draw))


def tnngp(draw: Draw) -> Callable[..., Any]:
    return dense_model(TNNGP, draw, **neighbours(draw))


def vif(draw: Draw) -> Callable[..., Any]:
    rows = choice(draw.rng, [None, None, int(draw.rng.integers(1, draw.sizes.rows + 1))])
    return sparse_model(VIF, draw, posterior_rows=rows, **neighbours(draw))


def neighbours(draw: Draw) -> dict[str, int]:
    """Few neighbours, or more than there are rows."""
    return {"neighbours": choice(draw.rng, [1, int(draw.rng.integers(1, 61)), int(draw.rng.integers(1, 10))])}


# -- models of several processes --------------------------------------------------------------------------------------


def composed(process: Callable[[Draw, Any, int, float], Any], draw: Draw) -> Callable[..., Any]:
    """An SVGP of some process, built by hand."""

    def build(X: Any, y: Any, **_: Any) -> Any:
        likelihood = draw.parts["likelihood"]
        likelihood.check_targets(y)
        observations = likelihood.observations(y)
        variance = 1.0 if observations is None else float(np.var(to_numpy(observations).astype("float64")))
        variance = variance if np.isfinite(variance) and variance > 0.0 else 1.0
        outputs = likelihood.latents(y.shape[1])
        started = usable(likelihood.from_data(variance), X)
        return SVGP(process=process(draw, X, outputs, variance), likelihood=started)

    return build


def one_sparse(draw: Draw, X: Any, name: str, outputs: int, variance: float, **options: Any) -> Sparse:
    where = {"num_inducing": draw.sizes.inducing, "seed": 1, "kernel": draw.another_kernel()} | options
    return Sparse.from_data(X, outputs=outputs, posterior=POSTERIORS[name], variance=variance, **where)


def stack(name: str, draw: Draw, X: Any, outputs: int, variance: float) -> Stack:
    return Stack(tuple(one_sparse(draw, X, name, 1, variance) for _ in range(outputs)))


def mixed(name: str, draw: Draw, X: Any, outputs: int, variance: float) -> LinearMixing:
    weights = draw.rng.normal(size=(outputs, 2)) * power_of_ten(draw.rng, -3, 3)
    return LinearMixing(stack(name, draw, X, 2, variance), array_like(weights, X))


def deep(name: str, draw: Draw, X: Any, outputs: int, variance: float) -> Deep:
    inner = name if name in INNER else "whitened"
    first = one_sparse(draw, X, inner, draw.sizes.columns, choice(draw.rng, [1.0, power_of_ten(draw.rng, -6, 6)]))
    return Deep((first, one_sparse(draw, X, name, outputs, variance)), samples=2)


def patches(name: str, draw: Draw, X: Any, outputs: int, variance: float) -> Sparse:
    width = draw.sizes.columns
    place = Patches((1, width), (1, max(1, width // 2)))
    return one_sparse(draw, X, name, outputs, variance, inducing=place, kernel=draw.rng.permutation([RBF(), None])[0])


def together(name: str, draw: Draw, X: Any, outputs: int, variance: float) -> Sparse:
    width = draw.sizes.columns
    place = JointInducing((Patches((1, width), (1, max(1, width // 2))), Points()))
    both = RBF() + choice(draw.rng, [Matern52(), RBF(), Matern12()])
    return one_sparse(draw, X, name, outputs, variance, inducing=place, kernel=both, num_inducing=None)


PROCESSES = {"stack": stack, "mixed": mixed, "deep": deep, "patches": patches, "together": together}

GAUSSIAN_ONLY: dict[str, Callable[[Draw], Any]] = {
    "gpr": partial(dense_model, GPR),
    "sgpr": partial(sparse_model, SGPR),
    "solvegpr": solvegpr,
    "cggp": cggp,
    "cagp": cagp,
}
ANY_LIKELIHOOD: dict[str, Callable[[Draw], Any]] = {
    "tsvgp": partial(sparse_model, TSVGP),
    "tvgp": partial(dense_model, TVGP),
    "solvegp": solvegp,
    **{f"svgp-{name}": partial(svgp, name) for name in POSTERIORS},
}
NEAR: dict[str, Callable[[Draw], Any]] = {"nngp": nngp, "vif": vif, "tnngp": tnngp}
"""Models with neighbours, which are drawn if asked for, so that seeds give other models as before."""
MODELS = (*GAUSSIAN_ONLY, *GAUSSIAN_ONLY, *ANY_LIKELIHOOD, *PROCESSES, *PROCESSES)
"""The names of models; those that stand twice are drawn twice as often."""
DETERMINISTIC = ("gpr", "sgpr", "solvegpr", "svgp-whitened", "svgp-marginal", "svgp-likelihood")


# -- all of it --------------------------------------------------------------------------------------------------------


def sizes(rng: Any, *, tiny: bool) -> Sizes:
    """Any; or few of them, so that a library that compiles each shape compiles few."""
    if tiny:
        N, D, P = choice(rng, [(6, 2, 2), (6, 2, 2), (6, 2, 2), (1, 2, 1)])
        return Sizes(N, D, P, min(N, 4))
    N = choice(rng, [1, 2, int(rng.integers(1, 41)), int(rng.integers(1, 41)), int(rng.integers(10, 41))])
    P = int(rng.integers(1, 4)) if rng.uniform() < 0.5 else 1
    return Sizes(N, int(rng.integers(1, 7)), P, int(rng.integers(1, N + 1)))


def drawn(seed: int, *, tiny: bool = False, model: str | None = None) -> Problem:
    """The problem of this seed, perhaps with another model."""
    rng = np.random.default_rng([seed, 11])
    name = choice(rng, MODELS)
    name = name if model is None else model
    size = sizes(rng, tiny=tiny)
    N, D, P, _ = size
    plain, unusual = inputs(rng, N, D)
    if name in NEAR and np.random.default_rng([seed, 17]).uniform() < 0.3:
        plain, unusual = np.round(plain), [*unusual, "whole numbers, so that distances are equal"]
    unit, offset = scales(rng)
    X = unit * (plain + offset)
    liked = choice(rng, likelihoods_of(name))
    likelihood, y, about = LIKELIHOODS[liked](rng, plain, P)
    dtype = choice(rng, ["float64", "float64", "float32"])
    level, variance = about.get("unit", 1.0) * (about.get("offset", 0.0) or 1.0), about.get("unit", 1.0) ** 2
    another = partial(kernel, rng, D, unit, variance, white=name not in ("cggp", "cagp", *NEAR))
    parts = {"kernel": another(), "likelihood": likelihood, "mean_function": mean_function(rng, level)}
    draw = Draw(rng, size, parts, another)
    q = choice(rng, POSTERIORS)
    if name in PROCESSES:
        q = "whitened" if q == "orthogonal" else q
        build = composed(partial(PROCESSES[name], q), draw)
    else:
        build = (GAUSSIAN_ONLY | NEAR | ANY_LIKELIHOOD)[name](draw)
    unit_of_y = about.get("unit", 1.0)
    known = known_of_rows(np.random.default_rng([seed, 13]), name, liked, y, unit_of_y, likelihood.latents(y.shape[1]))
    far = X[:1, :] + 1e6 * unit * np.sign(rng.normal(size=(1, D)))
    steps, rate = int(rng.integers(3, 11)), choice(rng, [None, None, None, 0.1, 1.0])
    adam = rate is not None and bool(rng.integers(2))

    def updates(model: Any) -> Any:
        if rate is None:
            return None
        return [Adam(rate)] if adam else recipe(model, steps, rate=rate)

    return Problem(
        seed=seed,
        model=name,
        about={
            "sizes": size._asdict(),
            "dtype": dtype,
            "inputs": {"unit": unit, "offset": offset, "unusual": unusual},
            "likelihood": {"name": liked, **about},
            "known": sorted(known),
            "kernel": str(parts["kernel"]),
            "mean": str(parts["mean_function"]),
            "posterior": q if name in PROCESSES else None,
            "training": {"steps": steps, "rate": rate, "adam": adam},
        },
        X=X.astype(dtype),
        y=y.astype(dtype),
        known={name: x.astype(dtype) for name, x in known.items()},
        elsewhere=np.concatenate([X, X[:1, :], far, far]).astype(dtype),
        build=build,
        steps=steps,
        updates=updates,
        batch_size=choice(rng, [None, None, max(1, N // 3)]) if stochastic(name) else None,
        deterministic=name in DETERMINISTIC and liked != "softmax",
        observed_zero=liked == "known-noise" and about["noise"] == 0.0,
        observed_infinite=liked == "student-t" and about["degrees"] <= 2.0,
        deep=name == "deep",
    )


def likelihoods_of(model: str) -> list[str]:
    """Those that the model takes; `LinearMixing` refuses those that couple its outputs."""
    if model in GAUSSIAN_ONLY or model in ("nngp", "vif"):
        return ["gaussian", "gaussian", "known-noise"]
    return ["gaussian", *(name for name in LIKELIHOODS if model != "mixed" or name not in COUPLING)]


def stochastic(name: str) -> bool:
    """Whether the model can be trained on minibatches."""
    return name in PROCESSES or name in ("solvegp", "nngp", "tnngp") or name.startswith("svgp")


def arrays(problem: Problem, library: str, device: str | None = None) -> tuple[Any, Any, Any, dict[str, Any]]:
    """X, y, the test inputs, and what is known of the rows, in a library."""
    B, dtype = get_backend(library), problem.about["dtype"]
    here = partial(B.from_numpy, dtype=dtype, device=device)
    known = {name: here(x) for name, x in problem.known.items()}
    return here(problem.X), here(problem.y), here(problem.elsewhere), known
