"""Training until it converges; the loop: minibatches, callbacks, progress, checkpoints; L-BFGS on all data."""

from agp.training._batches import Batches
from agp.training._begun import begun
from agp.training._fit import FitResult, Gain, fit
from agp.training._growth import GrowthResult, Round, fit_growing
from agp.training._lbfgs import fit_lbfgs
from agp.training._loop import train
from agp.training._recipe import recipe
from agp.training._result import LBFGSResult, Progress, Result

__all__ = [
    "Batches",
    "FitResult",
    "Gain",
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

# for other rooms
from agp.training._certificate import baseline
from agp.training._growth import GROWTH_TOLERANCE
from agp.training._laplace import laplace
from agp.training._recipe import FALL, RATE, SITE_RATE
from agp.training._result import Callback, call_all, progress_bar
from agp.training._resume import check_checkpoint, checkpoint_exists, write_checkpoint, written
