"""Scalable Gaussian processes on the Python Array API standard.

The same code runs on NumPy, torch and every other array library with a plug-in. Gradients are computed
in closed form, or by automatic differentiation if the library supports it.

This package contains models, kernels, likelihoods, mean functions, and functions that train models, predict with them
and save them. Other parts of models are in subpackages, for example `agp.posteriors.Relaxed`. A subpackage is imported
when you first use one of its names.
"""

import importlib
from typing import Any

__version__ = "0.2.0"

_PARTS = (
    "actions bounds errors inducing kernels likelihoods linalg means metrics models posteriors priors processes "
    "selection training tree updates"
)
_TOOLS = (
    "backend distributions estimators gradient inspection interop io methods plot predictors random repairs summaries "
    "tables testing"
)
_PACKAGES = f"{_PARTS} {_TOOLS}"
"""The public subpackages. All other modules are internal. `from agp import *` imports those with parts of models."""

_HOMES: dict[str, str] = {
    "backend": "backend_of get_backend known_backends register_backend to_numpy",
    "estimators": "GPClassifier GPRegressor",
    "gradient": "flatten value_and_gradient",
    "io": "load save",
    "kernels": (
        "RBF Constant Linear Matern12 Matern32 Matern52 OnSphere Overlap Periodic Projected RandomEffects "
        "RationalQuadratic Seasonal Warped White"
    ),
    "likelihoods": (
        "Bernoulli Beta Exponential Gamma Gaussian LatentNoiseGaussian LogNormal "
        "NegativeBinomial Ordinal Poisson RobustMax Softmax StudentT"
    ),
    "means": "ConstantMean LinearMean Projection ZeroMean",
    "models": (
        "CGGP GPR NNGP SGPR SOLVEGP SOLVEGPR SVGP TNNGP TSVGP TVGP VIF CaGP Coregionalised DeepGP Ensemble GPRMixture"
    ),
    "predictors": "Predictor",
    "selection": "fit_classification fit_regression",
    "summaries": "summary",
    "training": "fit fit_growing fit_lbfgs fit_newton integrate recipe train",
    "tree": "to_backend",
}
"""The public names of this package, by the subpackage that defines them; `__init__.pyi` has them for type checkers."""

_NEEDED = {"estimators": ("narwhals", "sklearn"), "plot": ("matplotlib",), "tables": ("narwhals",)}
"""The optional libraries that subpackages require."""


_PACKAGE_OF = {name: package for package, names in _HOMES.items() for name in names.split()}

__all__ = sorted(  # pyright: ignore[reportUnsupportedDunderAll] - it reads the names in `__init__.pyi`
    {*_PARTS.split(), *(name for name, package in _PACKAGE_OF.items() if package not in _NEEDED)}
)


def __getattr__(name: str) -> Any:
    if name in _PACKAGE_OF:
        found = vars(importlib.import_module(f"agp.{_PACKAGE_OF[name]}"))[name]
        globals()[name] = found
        return found
    if name in _PACKAGES.split():
        return importlib.import_module(f"agp.{name}")
    said = f"module 'agp' has no attribute {name!r}"
    if name.startswith("__"):  # Python and its tools ask for these
        raise AttributeError(said)
    from agp.errors import name_remedy, similar_names

    known = [*_PACKAGE_OF, *_PACKAGES.split()]
    raise AttributeError(f"{said}; {name_remedy(name, known)}" if similar_names(name, known) else f"{said}.")


def __dir__() -> list[str]:
    from importlib.util import find_spec

    # list only names that the installed libraries support
    missing = {package for package, libraries in _NEEDED.items() if not all(map(find_spec, libraries))}
    public = {package: package for package in _PACKAGES.split()} | _PACKAGE_OF
    names = {name for name, package in public.items() if package not in missing}
    return sorted(names | {name for name in globals() if name.startswith("__")})
