"""Training until it converges; the loop: minibatches, callbacks, progress, checkpoints; L-BFGS on all data."""

from agp.training._batches import Batches
from agp.training._begun import begun
from agp.training._fit import FitResult, fit
from agp.training._growth import GROWTH_TOLERANCE, MOST_INDUCING, GrowthResult, Round, fit_growing
from agp.training._lbfgs import fit_lbfgs
from agp.training._loop import train
from agp.training._recipe import FALL, RATE, SITE_RATE, recipe
from agp.training._result import LBFGSResult, Progress, Result

__all__ = [
    "FALL",
    "GROWTH_TOLERANCE",
    "MOST_INDUCING",
    "RATE",
    "SITE_RATE",
    "Batches",
    "FitResult",
    "GrowthResult",
    "LBFGSResult",
    "Progress",
    "Result",
    "Round",
    "begun",
    "fit",
    "fit_growing",
    "fit_lbfgs",
    "recipe",
    "train",
]
