"""Scalable Gaussian processes, written once against the Python Array API standard.

The same mathematics runs on NumPy, torch and any other library with a plug-in; gradients come from hand-derived closed
forms everywhere, or from automatic differentiation where the library has it.

Importing the package loads none of its rooms: each is loaded when it, or a name that it exports, is asked for first.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what `__getattr__` finds, for checkers and editors
    from agp import (
        actions,
        bounds,
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
        training,
        tree,
        updates,
    )
    from agp import data as data
    from agp import estimators as estimators
    from agp import inspection as inspection
    from agp import io as io
    from agp import plot as plot
    from agp import testing as testing
    from agp.actions import BlockActions, DenseActions, FixedActions
    from agp.backend import backend_of, get_backend, known_backends, register_backend, to_numpy
    from agp.errors import (
        BackendError,
        CheckpointError,
        ConvergenceWarning,
        FileError,
        Interrupted,
        NonFiniteError,
        NotPositiveDefiniteError,
        RepairWarning,
        UntouchedWarning,
    )
    from agp.gradient import value_and_gradient
    from agp.inducing import Patches, PatchGrid, Points, Together
    from agp.io import load, save
    from agp.kernels import RBF, Constant, Linear, Matern12, Matern32, Matern52, Periodic, RationalQuadratic, White
    from agp.likelihoods import (
        Bernoulli,
        Beta,
        Exponential,
        Gamma,
        Gaussian,
        HeteroscedasticGaussian,
        LatentNoiseGaussian,
        NegativeBinomial,
        Ordinal,
        Poisson,
        RobustMax,
        Softmax,
        StudentT,
    )
    from agp.means import ConstantMean, LinearMean, Projection, ZeroMean
    from agp.models import CGGP, GPR, SGPR, SOLVEGP, SOLVEGPR, SVGP, TSVGP, TVGP, CaGP, Coregionalised, DeepGP, summary
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
    from agp.processes import Deep, EachPatch, Known, Mixed, Sparse, Stack
    from agp.training import fit, fit_growing, fit_lbfgs, recipe, train
    from agp.tree import to_backend

__version__ = "0.2.0"

__all__ = [
    "CGGP",
    "GPR",
    "RBF",
    "SGPR",
    "SOLVEGP",
    "SOLVEGPR",
    "SVGP",
    "TSVGP",
    "TVGP",
    "BackendError",
    "Bernoulli",
    "Beta",
    "BlockActions",
    "CaGP",
    "CheckpointError",
    "Constant",
    "ConstantMean",
    "ConvergenceWarning",
    "Coregionalised",
    "Deep",
    "DeepGP",
    "DenseActions",
    "DiagonalMarginal",
    "DiagonalWhitened",
    "Dual",
    "DualInverseFree",
    "EachPatch",
    "Exponential",
    "FileError",
    "FixedActions",
    "FullSiteLikelihoodForm",
    "FullSiteRelaxed",
    "Gamma",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Interrupted",
    "InverseFree",
    "Known",
    "LatentNoiseGaussian",
    "LikelihoodForm",
    "Linear",
    "LinearMean",
    "Marginal",
    "Matern12",
    "Matern32",
    "Matern52",
    "Mixed",
    "NegativeBinomial",
    "NonFiniteError",
    "NotPositiveDefiniteError",
    "Ordinal",
    "Orthogonal",
    "PatchGrid",
    "Patches",
    "Periodic",
    "Points",
    "Poisson",
    "PriorSpread",
    "Projection",
    "RationalQuadratic",
    "Relaxed",
    "RelaxedOrthogonal",
    "RelaxedUnion",
    "RepairWarning",
    "RobustMax",
    "Softmax",
    "Sparse",
    "Stack",
    "StudentT",
    "Together",
    "UntouchedWarning",
    "White",
    "Whitened",
    "ZeroMean",
    "actions",
    "backend_of",
    "bounds",
    "fit",
    "fit_growing",
    "fit_lbfgs",
    "get_backend",
    "inducing",
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
    "summary",
    "to_backend",
    "to_numpy",
    "train",
    "training",
    "tree",
    "updates",
    "value_and_gradient",
]

_HOMES: dict[str, str] = {
    "actions": "BlockActions DenseActions FixedActions",
    "backend": "backend_of get_backend known_backends register_backend to_numpy",
    "errors": (
        "BackendError CheckpointError ConvergenceWarning FileError Interrupted NonFiniteError NotPositiveDefiniteError "
        "RepairWarning UntouchedWarning"
    ),
    "gradient": "value_and_gradient",
    "inducing": "PatchGrid Patches Points Together",
    "io": "load save",
    "kernels": "RBF Constant Linear Matern12 Matern32 Matern52 Periodic RationalQuadratic White",
    "likelihoods": (
        "Bernoulli Beta Exponential Gamma Gaussian HeteroscedasticGaussian LatentNoiseGaussian NegativeBinomial "
        "Ordinal Poisson RobustMax Softmax StudentT"
    ),
    "means": "ConstantMean LinearMean Projection ZeroMean",
    "models": "CGGP GPR SGPR SOLVEGP SOLVEGPR SVGP TSVGP TVGP CaGP Coregionalised DeepGP summary",
    "posteriors": (
        "DiagonalMarginal DiagonalWhitened Dual DualInverseFree FullSiteLikelihoodForm FullSiteRelaxed InverseFree "
        "LikelihoodForm Marginal Orthogonal PriorSpread Relaxed RelaxedOrthogonal RelaxedUnion Whitened"
    ),
    "processes": "Deep EachPatch Known Mixed Sparse Stack",
    "training": "fit fit_growing fit_lbfgs recipe train",
    "tree": "to_backend",
}
"""The names of the package by the room that they come from."""

_ROOM_OF = {name: room for room, names in _HOMES.items() for name in names.split()}


def _rooms() -> set[str]:
    from pkgutil import iter_modules

    return {module.name for module in iter_modules(__path__)} - {"__main__"}


def __getattr__(name: str) -> Any:
    if name in _ROOM_OF:
        found = vars(importlib.import_module(f"agp.{_ROOM_OF[name]}"))[name]
        globals()[name] = found  # asked for once
        return found
    if name in _rooms():
        return importlib.import_module(f"agp.{name}")
    msg = f"module 'agp' has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    # whoever loads all that is listed needs neither matplotlib nor scikit-learn
    return sorted({*globals(), *__all__, *_rooms()} - {"estimators", "plot"})
