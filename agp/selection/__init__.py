"""Data-driven choice of the kernel, the hyperparameters and the number of inducing inputs."""

from agp.selection._fits import fit_classification, fit_regression
from agp.selection._kernel import select_kernel
from agp.selection._trial import Candidate, ClassificationResult, RegressionResult, Stage

__all__ = [
    "Candidate",
    "ClassificationResult",
    "RegressionResult",
    "Stage",
    "fit_classification",
    "fit_regression",
    "select_kernel",
]

# for other subpackages
from agp.selection._arguments import check_priors_argument
from agp.selection._equal import NOISE_FRACTION, NOTHING_TO_LEARN
from agp.selection._fits import HYPERPARAMETERS, REGRESSION_METHODS
from agp.selection._level_effects import level_effects
from agp.selection._near_sites import fit_near_rows, is_searched_quickly
from agp.selection._signal import NO_SIGNAL_VARIANCE
from agp.selection._sizes import EXACT_ROWS
from agp.selection._targets import transform_of
