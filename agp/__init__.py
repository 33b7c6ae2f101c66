"""Scalable Gaussian processes, written once against the Python Array API standard.

The same mathematics runs on NumPy, torch and any other library with a plug-in; gradients come from hand-derived closed
forms everywhere, or from automatic differentiation where the library has it.
"""

from agp import bounds, inducing, kernels, likelihoods, linalg, metrics, models, posteriors, training, tree, updates
from agp.backend import backend_of, get_backend, known_backends, to_numpy
from agp.errors import BackendError, Interrupted, NonFiniteError, NotPositiveDefiniteError, RepairWarning
from agp.gradient import value_and_gradient
from agp.kernels import RBF, Matern32
from agp.likelihoods import Bernoulli, Gaussian
from agp.models import GPR, SVGP
from agp.posteriors import Relaxed, Whitened
from agp.training import recipe, train
from agp.tree import to_backend

__version__ = "0.1.0"

__all__ = [
    "GPR",
    "RBF",
    "SVGP",
    "BackendError",
    "Bernoulli",
    "Gaussian",
    "Interrupted",
    "Matern32",
    "NonFiniteError",
    "NotPositiveDefiniteError",
    "Relaxed",
    "RepairWarning",
    "Whitened",
    "backend_of",
    "bounds",
    "get_backend",
    "inducing",
    "kernels",
    "known_backends",
    "likelihoods",
    "linalg",
    "metrics",
    "models",
    "posteriors",
    "recipe",
    "to_backend",
    "to_numpy",
    "train",
    "training",
    "tree",
    "updates",
    "value_and_gradient",
]
