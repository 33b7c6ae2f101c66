"""Training by L-BFGS on all rows, or by a loop over minibatches with callbacks and checkpoints."""

from agp.training._batches import Batches
from agp.training._begun import initial_state, recipe
from agp.training._fit import fit
from agp.training._growth import GrowthResult, Round, fit_growing
from agp.training._integrate import Integral, integrate
from agp.training._lbfgs import Gain, fit_lbfgs
from agp.training._loop import train
from agp.training._newton_fit import fit_newton
from agp.training._result import LBFGSResult, Progress, Result
from agp.training._stages import FitResult

__all__ = [
    "Batches",
    "FitResult",
    "Gain",
    "GrowthResult",
    "Integral",
    "LBFGSResult",
    "Progress",
    "Result",
    "Round",
    "fit",
    "fit_growing",
    "fit_lbfgs",
    "fit_newton",
    "initial_state",
    "integrate",
    "recipe",
    "train",
]

# for other subpackages
from agp.training._batches import fingerprint_of, place_draws
from agp.training._begun import FINAL_RATE_FRACTION, RATE, SITE_RATE, kept_leaves, untouched_leaves
from agp.training._certificate import baseline
from agp.training._growth import GROWTH_TOLERANCE
from agp.training._hyper_prior import columns_to_tie
from agp.training._near_sites import (
    LABEL_NEIGHBOURS,
    Turns,
    settle_sites,
    spread_sites,
    take_rows,
    why_not_in_turn,
    with_few_in_sets,
)
from agp.training._newton import Ascent, Coordinates, Evidence, ascend, expand_priors, newton_names, why_not_newton
from agp.training._objective import has_optimal_posterior, laplace
from agp.training._progress import Piece, Score, Shown, Tracker, track
from agp.training._result import Callback, call_all
from agp.training._resume import check_checkpoint, checkpoint_exists, strip_addresses, write_checkpoint
from agp.training._stages import limit_of_seconds, limit_of_steps
