"""Small models of every class that files can name, their leaves far from round numbers."""

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from kernels.kernel_cases import CASES as KERNEL_CASES
from likelihoods.likelihood_cases import KINDS
from safetensors import safe_open

import agp
from agp import (
    CGGP,
    GPR,
    NNGP,
    SGPR,
    SOLVEGP,
    SOLVEGPR,
    SVGP,
    TNNGP,
    TSVGP,
    TVGP,
    VIF,
    CaGP,
    DeepGP,
    Ensemble,
    GPRMixture,
    to_numpy,
    tree,
)
from agp.actions import ConjugateGradients, DenseActions
from agp.inducing import JointInducing, Patches, Points
from agp.kernels import (
    RBF,
    ActiveDims,
    Constant,
    LevelCovariance,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    WithSlopes,
)
from agp.likelihoods import Bernoulli, Gaussian
from agp.means import ConstantMean, LinearMean
from agp.posteriors import PriorSpread, Relaxed, RelaxedOrthogonal, RelaxedUnion, Whitened, WhiteSites
from agp.predictors import Imputations, LevelNoise, Saturation
from agp.priors import Between, Fixed, Gamma, HalfCauchy, HalfNormal, InverseGamma, LogNormal, Normal, Relative
from agp.processes import Deep, LinearMixing, Sparse, Stack

N = 18
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2))
Y = np.sin(2.0 * X[:, :1]) + 0.1 * RNG.normal(size=(N, 1))
LABELS = np.repeat([[0.0], [1.0], [2.0]], N // 3, axis=0)
IMAGES = RNG.normal(size=(N, 12))
NEW = RNG.normal(size=(7, 2))
NEW_IMAGES = RNG.normal(size=(7, 12))

KNOWN = {"weights": 0.1 + Y[:, 0] ** 2, "offset": 0.3 * X[:, 0], "noise": 0.2 + X[:, 1] ** 2}
"""What is known of the rows."""

KERNELS: dict[str, Callable[[], Any]] = {
    **{type(case.build(2)).__name__.lower(): partial(case.build, 2) for case in KERNEL_CASES.values() if case.textbook},
    "sum": lambda: Linear() + Constant(),
    "scaled": lambda: 2.0 * Matern32(),
    "active": lambda: RBF().on((1,)) + Linear().on([0]),
    "levelcovariance": lambda: LevelCovariance(np.asarray([[0.3, -1.1], [0.7, 0.2]]), np.asarray([0.31, 0.57])).on(1),
    "codes": lambda: ActiveDims(RBF(), (1,), codes=True),
}
"""A case of each kernel, and combinations without values."""
LIKELIHOODS: dict[str, tuple[Callable[[], Any], np.ndarray]] = {
    name: (kind.build, kind.targets(RNG, N, 1)) for name, kind in KINDS.items()
}
PRIORS = {
    "kernel.variance": Gamma(2, 1.5),
    "kernel.lengthscale": InverseGamma(2.5, 1.0),
    "noise_variance": HalfCauchy(0.3),
    "mean_function.value": Normal(0.1, 3.0),
    "variance": HalfNormal(0.7),
    "lengthscale": Relative(LogNormal(-0.5, 1.0)),
    "*variance": Between(1e-9, 1e9),
    "kernel.lengthscale[0]": Fixed(),
}
POSTERIORS: dict[str, Any] = {
    **{name: name for name in ("whitened", "marginal", "likelihood-form", "relaxed", "inverse-free")},
    **{name: name for name in ("diagonal-whitened", "diagonal-marginal")},
    **{name: name for name in ("full-site-likelihood-form", "full-site-relaxed")},
    **{name: name for name in ("dual", "dual-inverse-free")},
    "relaxed-plain": partial(Relaxed.from_prior, preconditioned=False),
    "relaxed-root": partial(Relaxed.from_prior, preconditioned="root"),
    "white-sites": WhiteSites,
}


def with_tags(inputs: np.ndarray) -> np.ndarray:
    return np.column_stack([inputs, np.arange(len(inputs)) % 3.0])


def _sparse(**options: Any) -> Sparse:
    return Sparse.from_data(X, **({"num_inducing": 5, "posterior": "whitened"} | options))


def _svgp(**options: Any) -> SVGP:
    coded = "kernel" in options and options["kernel"].category_levels(X.shape[1])
    return SVGP.from_data(np.round(X) if coded else X, Y, **({"num_inducing": 5} | options))


def _of_kernel(name: str) -> SVGP:
    return _svgp(kernel=KERNELS[name]() + RBF())


def _of_likelihood(name: str) -> SVGP:
    likelihood, y = LIKELIHOODS[name]
    return SVGP.from_data(X, y, num_inducing=5, likelihood=likelihood())


def _located() -> SVGP:
    place = Patches((2, 3), (2, 2), weights=1.0, stride=2, padding=1, channels=2, located=True)
    return SVGP.from_data(IMAGES, Y, inducing=place, num_inducing=5)


def _patches() -> SVGP:
    return SVGP.from_data(IMAGES, Y, inducing=Patches((3, 4), (2, 2), weights=np.linspace(0.5, 1.5, 6)), num_inducing=5)


def _together() -> SVGP:
    inducing = JointInducing((Patches((3, 4), (2, 2)), Points()))
    return SVGP.from_data(IMAGES, Y, kernel=RBF() + Matern32(), inducing=inducing, num_inducing=6)


def _deep() -> SVGP:
    first = _sparse(outputs=2, mean_function=LinearMean(np.eye(2), np.zeros(2)))
    second = LinearMixing(Stack((_sparse(posterior="relaxed"), _sparse(kernel=Matern32()))), np.asarray([[1.0, 0.3]]))
    return SVGP(Deep((first, second), samples=3), Gaussian(np.asarray(0.1)))


def _deep_convolutional() -> DeepGP:
    options = {"num_inducing": 5, "located": (True, False), "padding": (1, 0), "stride": (2, 1)}
    options |= {"posterior": ("whitened", "relaxed"), "prediction_samples": 3}
    return DeepGP.convolutional(IMAGES, Y, image=(3, 4), patch=2, channels=(2,), **options)


def _deep_gp() -> DeepGP:
    return DeepGP.from_data(X, Y, num_inducing=5, posterior=("whitened", "relaxed"), skip=True, prediction_samples=3)


def _ensemble() -> Ensemble:
    parts = {"likelihood": Bernoulli(), "mean_function": ConstantMean()}
    models = tuple(TVGP.from_data(X, 1.0 * (Y > 0.0), kernel=kernel, **parts) for kernel in (RBF(), Matern12()))
    return Ensemble(models, np.asarray([0.3, 0.7]), spread=1.2)


def _mixture(**known: Any) -> GPRMixture:
    models = [GPR.from_data(X, Y, kernel=kernel, **known) for kernel in (Matern52() + Linear.centred(X), RBF())]
    return agp.integrate(models, settings=16).model


def _merged(cls: Any, **options: Any) -> Any:
    """A model of rows that stand for several observations."""
    model = cls.from_data(X, Y, neighbours=4, **KNOWN, **options)
    return dataclasses.replace(model, squares=0.1 + X[:, 1] ** 2)


def _dense() -> CaGP:
    return CaGP.from_data(X, Y, actions=DenseActions(np.eye(N)[:, :4]))


MODELS: dict[str, Callable[[], Any]] = {
    "gpr": lambda: GPR.from_data(X, Y, mean_function=ConstantMean(), priors=PRIORS),
    "gpr-slopes": lambda: GPR.from_data(with_tags(X), Y, kernel=WithSlopes(RBF())),
    "sgpr": lambda: SGPR.from_data(X, Y, num_inducing=5, jitter=1e-5),
    **{f"gpr-{name}": partial(lambda name: GPR.from_data(X, Y, **{name: KNOWN[name]}), name) for name in KNOWN},
    "gpr-known-noise-alone": lambda: GPR.from_data(X, Y, likelihood=Gaussian(0.0), noise=KNOWN["noise"]),
    "sgpr-known": lambda: SGPR.from_data(X, Y, num_inducing=5, **KNOWN),
    "tvgp": lambda: TVGP.from_data(X, 1.0 * (Y > 0.0), likelihood=Bernoulli()),
    "ensemble": _ensemble,
    "gpr-mixture": _mixture,
    "gpr-mixture-known": lambda: _mixture(**KNOWN),
    "tsvgp": lambda: TSVGP.from_data(X, Y, num_inducing=5, mean_function=LinearMean()),
    "nngp": lambda: NNGP.from_data(X, Y, neighbours=5, mean_function=ConstantMean(), priors=PRIORS),
    "nngp-others": lambda: NNGP.from_data(X, Y, neighbours=5, among="others", seed=3),
    "nngp-known": lambda: _merged(NNGP, among="others"),
    "nngp-later": lambda: dataclasses.replace(NNGP.from_data(X, Y, kernel=Periodic()), sets=None),
    "tnngp": lambda: TNNGP.from_data(
        X, 1.0 * (Y > 0.0), neighbours=5, likelihood=Bernoulli(), mean_function=ConstantMean()
    ),
    "tnngp-later": lambda: dataclasses.replace(TNNGP.from_data(X, Y, kernel=Periodic()), sets=None),
    "vif": lambda: VIF.from_data(X, Y, neighbours=5, num_inducing=4, posterior_rows=9),
    "vif-known": lambda: _merged(VIF, num_inducing=4),
    "cggp": lambda: CGGP.from_data(X, Y, tolerance=1e-8, prediction_tolerance=1e-10, rank=4),
    "cggp-known": lambda: CGGP.from_data(X, Y, prediction_tolerance=1e-10, rank=4, **KNOWN),
    "cagp-known": lambda: CaGP.from_data(X, Y, num_actions=5, **KNOWN),
    "cagp": lambda: CaGP.from_data(X, Y, num_actions=5),
    "cagp-capped": lambda: CaGP.from_data(X, Y, num_actions=3, support=9, inverse_free=True),
    "cagp-policy": lambda: CaGP.from_data(X, Y, policy=ConjugateGradients(4), loss="projected"),
    "cagp-dense": _dense,
    **{f"svgp-{name}": partial(_svgp, posterior=q) for name, q in POSTERIORS.items()},
    "svgp-probed": lambda: _svgp(posterior=partial(Relaxed.from_prior, probes=3)),
    "solvegp": lambda: SOLVEGP.from_data(X, Y, num_inducing=4, num_orthogonal=3),
    "solvegp-spread": lambda: SOLVEGP.from_data(X, Y, second=PriorSpread, num_inducing=4, num_orthogonal=3),
    "solvegp-relaxed": lambda: SOLVEGP.from_data(X, Y, posterior=RelaxedOrthogonal, num_inducing=4, num_orthogonal=3),
    "solvegp-union": lambda: SOLVEGP.from_data(X, Y, posterior=RelaxedUnion, num_inducing=4, num_orthogonal=3),
    "solvegpr": lambda: SOLVEGPR.from_data(X, Y, num_inducing=4, num_orthogonal=3),
    "solvegpr-known": lambda: SOLVEGPR.from_data(X, Y, num_inducing=4, num_orthogonal=3, **KNOWN),
    "solvegpr-free": lambda: SOLVEGPR.from_data(X, Y, second=Whitened, num_inducing=4, num_orthogonal=3),
    "solvegpr-tight": lambda: SOLVEGPR.from_data(X, Y, tight=True, num_inducing=4, num_orthogonal=3),
    "stack": lambda: SVGP(Stack((_sparse(), _sparse(posterior="marginal"))), Gaussian(np.asarray(0.2))),
    "deep": _deep,
    "deep-gp": _deep_gp,
    "deep-convolutional": _deep_convolutional,
    "patches": _patches,
    "patches-located": _located,
    "together": _together,
    **{
        f"kernel-{name}": partial(lambda build: _svgp(kernel=build() + RBF()), build) for name, build in KERNELS.items()
    },
    **{f"likelihood-{name}": partial(_of_likelihood, name) for name in LIKELIHOODS},
}
PREDICTORS: dict[str, Callable[[], Any]] = {
    name: partial(lambda name: model_of(name).predictor(), name) for name in MODELS if not name.startswith("kernel-")
}
PREDICTORS["cggp-iterative"] = lambda: model_of("cggp").predictor(memory=0.001)
PREDICTORS["unknown-cells"] = lambda: dataclasses.replace(
    model_of("gpr").predictor(), imputations=Imputations(0.1 + NEW[:3], np.full(NEW.shape[1], 1.5))
)
PREDICTORS["saturating"] = lambda: dataclasses.replace(
    model_of("likelihood-poisson").predictor(), saturation=Saturation(np.asarray([1.1]), np.asarray([1.3]))
)
PREDICTORS["level-noise"] = lambda: dataclasses.replace(
    model_of("gpr").predictor(), level_noise=LevelNoise(NEW[:2, 0], np.asarray([0.1, 0.7]), np.asarray([0.5]), 0)
)
"""What predicts for these models; kernels are in both."""
COVERING = ("gpr", "sgpr", "vif", "tsvgp", "cagp-capped", "svgp-relaxed", "svgp-dual", "solvegp", "deep", "patches")
"""A few of each kind, for what is slow."""


def model_of(name: str) -> Any:
    """The model of that name, on NumPy, each leaf a little off so that no bit of it is round."""
    rng, model = np.random.default_rng(7), MODELS[name]()
    real = {key: x for key, x in tree.leaves(model).items() if np.asarray(x).dtype.kind == "f"}
    new = {key: x * (1.0 + 1e-3 * rng.uniform(size=np.shape(x))) for key, x in real.items()}
    if isinstance(model, Ensemble):  # the sum of its weights is one
        new["weights"] = new["weights"] / np.sum(new["weights"])
    if isinstance(model, GPRMixture):
        new["shares"] = new["shares"] / np.sum(new["shares"])
    if name == "gpr-slopes":
        new["X"][:, -1] = real["X"][:, -1]  # tags are whole numbers
    return tree.with_leaves(model, new)


def new_inputs(name: str) -> np.ndarray:
    if name == "gpr-slopes":
        return with_tags(NEW)
    return NEW_IMAGES if name.startswith(("patches", "together", "deep-conv")) else NEW


def settings_of(x: Any) -> Any:
    """Classes and settings of a model, as nested tuples: all of it but its arrays."""
    if isinstance(x, tuple):
        return tuple(settings_of(part) for part in x)
    if not dataclasses.is_dataclass(x):
        return x
    leaves = tree.leaf_fields(type(x)) if tree.is_model_class(type(x)) else frozenset()
    fields = ((f.name, getattr(x, f.name)) for f in dataclasses.fields(x))
    return type(x), tuple((name, value is None if name in leaves else settings_of(value)) for name, value in fields)


def bits(model: Any) -> dict[str, Any]:
    """The leaves on the host: types, shapes and bytes."""
    host = {name: np.asarray(to_numpy(x)) for name, x in tree.leaves(model).items()}
    return {name: (x.dtype, x.shape, x.tobytes()) for name, x in host.items()}


def assert_same(found: Any, expected: Any) -> None:
    """Fail unless two models, of any libraries, have the same classes, settings and bits."""
    assert settings_of(found) == settings_of(expected)
    assert bits(found) == bits(expected)


def check_place(place: Any, model: Any) -> None:
    """Fail unless all leaves are arrays of a place, in float64 or, for numbers of rows, integers."""
    for name, x in tree.leaves(model).items():
        place.check(x, "int64" if name.rpartition(".")[2] == "sets" else "float64")


def structure_of(path: Path) -> Any:
    """What a file says of its arrays."""
    with safe_open(path, framework="np") as file:
        return json.loads(file.metadata()["agp"])
