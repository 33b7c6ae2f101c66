"""Scalable Gaussian processes on the Python Array API standard.

The same code runs on NumPy, torch and every other array library with a plug-in. Gradients are computed
in closed form, or by automatic differentiation if the library supports it.

This package contains models, kernels, likelihoods, mean functions, and functions that train models, predict with them
and save them. Other parts of models are in subpackages, for example `agp.posteriors.Relaxed`. A subpackage is imported
when you first use one of its names.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the names of `__getattr__`, for type checkers and editors
    from agp import (
        actions,
        bounds,
        errors,
        inducing,
        kernels,
        likelihoods,
        linalg,
        means,
        metrics,
        models,
        posteriors,
        priors,
        processes,
        selection,
        training,
        tree,
        updates,
    )
    from agp import backend as backend
    from agp import estimators as estimators
    from agp import gradient as gradient
    from agp import inspection as inspection
    from agp import interop as interop
    from agp import io as io
    from agp import methods as methods
    from agp import plot as plot
    from agp import predictors as predictors
    from agp import random as random
    from agp import repairs as repairs
    from agp import summaries as summaries
    from agp import tables as tables
    from agp import testing as testing
    from agp.backend import backend_of, get_backend, known_backends, register_backend, to_numpy
    from agp.estimators import GPClassifier as GPClassifier
    from agp.estimators import GPRegressor as GPRegressor
    from agp.gradient import flatten, value_and_gradient
    from agp.io import load, save
    from agp.kernels import (
        RBF,
        Constant,
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
        Bernoulli,
        Beta,
        Exponential,
        Gamma,
        Gaussian,
        LatentNoiseGaussian,
        LogNormal,
        NegativeBinomial,
        Ordinal,
        Poisson,
        RobustMax,
        Softmax,
        StudentT,
    )
    from agp.means import ConstantMean, LinearMean, Projection, ZeroMean
    from agp.models import (
        CGGP,
        GPR,
        NNGP,
        SGPR,
        SOLVEGP,
        SOLVEGPR,
        SVGP,
        TSVGP,
        TVGP,
        VIF,
        CaGP,
        Coregionalised,
        DeepGP,
        Ensemble,
        GPRMixture,
    )
    from agp.predictors import Predictor
    from agp.selection import fit_classification, fit_regression
    from agp.summaries import summary
    from agp.training import fit, fit_growing, fit_lbfgs, fit_newton, integrate, recipe, train
    from agp.tree import to_backend

__version__ = "0.2.0"

__all__ = [
    "CGGP",
    "GPR",
    "NNGP",
    "RBF",
    "SGPR",
    "SOLVEGP",
    "SOLVEGPR",
    "SVGP",
    "TSVGP",
    "TVGP",
    "VIF",
    "Bernoulli",
    "Beta",
    "CaGP",
    "Constant",
    "ConstantMean",
    "Coregionalised",
    "DeepGP",
    "Ensemble",
    "Exponential",
    "GPRMixture",
    "Gamma",
    "Gaussian",
    "LatentNoiseGaussian",
    "Linear",
    "LinearMean",
    "LogNormal",
    "Matern12",
    "Matern32",
    "Matern52",
    "NegativeBinomial",
    "Ordinal",
    "Periodic",
    "Poisson",
    "Predictor",
    "Projection",
    "RationalQuadratic",
    "RobustMax",
    "Seasonal",
    "Softmax",
    "StudentT",
    "White",
    "ZeroMean",
    "actions",
    "backend_of",
    "bounds",
    "errors",
    "fit",
    "fit_classification",
    "fit_growing",
    "fit_lbfgs",
    "fit_newton",
    "fit_regression",
    "flatten",
    "get_backend",
    "inducing",
    "integrate",
    "kernels",
    "known_backends",
    "likelihoods",
    "linalg",
    "load",
    "means",
    "metrics",
    "models",
    "posteriors",
    "priors",
    "processes",
    "recipe",
    "register_backend",
    "save",
    "selection",
    "summary",
    "to_backend",
    "to_numpy",
    "train",
    "training",
    "tree",
    "updates",
    "value_and_gradient",
]

_PACKAGES: str = (
    "actions backend bounds errors estimators gradient inducing inspection interop io "
    "kernels likelihoods linalg means methods metrics models plot posteriors predictors priors processes "
    "random repairs selection summaries tables testing training tree updates"
)
"""The public subpackages. All other modules are internal."""

_HOMES: dict[str, str] = {
    "backend": "backend_of get_backend known_backends register_backend to_numpy",
    "estimators": "GPClassifier GPRegressor",
    "gradient": "flatten value_and_gradient",
    "io": "load save",
    "kernels": "RBF Constant Linear Matern12 Matern32 Matern52 Periodic RationalQuadratic Seasonal White",
    "likelihoods": (
        "Bernoulli Beta Exponential Gamma Gaussian LatentNoiseGaussian LogNormal "
        "NegativeBinomial Ordinal Poisson RobustMax Softmax StudentT"
    ),
    "means": "ConstantMean LinearMean Projection ZeroMean",
    "models": (
        "CGGP GPR NNGP SGPR SOLVEGP SOLVEGPR SVGP TSVGP TVGP VIF CaGP Coregionalised DeepGP Ensemble GPRMixture"
    ),
    "predictors": "Predictor",
    "selection": "fit_classification fit_regression",
    "summaries": "summary",
    "training": "fit fit_growing fit_lbfgs fit_newton integrate recipe train",
    "tree": "to_backend",
}
"""The public names of this package, by the subpackage that defines them."""

_NEEDED = {"estimators": ("narwhals", "sklearn"), "plot": ("matplotlib",), "tables": ("narwhals",)}
"""The optional libraries that subpackages require."""


def _by_name(table: dict[str, str]) -> dict[str, str]:
    return {name: package for package, names in table.items() for name in names.split()}


_PACKAGE_OF = _by_name(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _PACKAGE_OF:
        found = vars(importlib.import_module(f"agp.{_PACKAGE_OF[name]}"))[name]
        globals()[name] = found
        return found
    if name in _PACKAGES.split():
        return importlib.import_module(f"agp.{name}")
    msg = f"module 'agp' has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    from importlib.util import find_spec

    # list only names that the installed libraries support
    missing = {package for package, libraries in _NEEDED.items() if not all(map(find_spec, libraries))}
    public = {package: package for package in _PACKAGES.split()} | _PACKAGE_OF
    names = {name for name, package in public.items() if package not in missing}
    return sorted(names | {name for name in globals() if name.startswith("__")})
