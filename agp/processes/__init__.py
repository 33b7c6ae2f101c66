"""Sparse GPs, and stacks, mixtures and layers of processes. Every process maps inputs to marginals."""

from agp.processes._averaged import Averaged
from agp.processes._base import Process
from agp.processes._deep import Deep
from agp.processes._each_patch import Patchwise
from agp.processes._exact_mixture import ExactMixture
from agp.processes._known import FixedMap
from agp.processes._mixed import LinearMixing
from agp.processes._near import NearestNeighbours
from agp.processes._of_data import ComputationAware, Iterative
from agp.processes._outputs import MultiOutput
from agp.processes._paths import Paths
from agp.processes._sparse import Sparse, SparsePrior
from agp.processes._stack import Stack

__all__ = [
    "Averaged",
    "ComputationAware",
    "Deep",
    "ExactMixture",
    "FixedMap",
    "Iterative",
    "LinearMixing",
    "MultiOutput",
    "NearestNeighbours",
    "Patchwise",
    "Paths",
    "Process",
    "Sparse",
    "SparsePrior",
    "Stack",
]

# for other subpackages
from agp.processes._averaged import check_average, check_shares
from agp.processes._base import MixedPrecision, SitePull, check_process
from agp.processes._exact_mixture import Settings, SettingsFactor  # predictors in files hold its factors
from agp.processes._near import NearFactor, near_search, ordered_rows  # likewise
from agp.processes._of_data import IterativeFactor, ProjectedFactor
from agp.processes._sparse import initialise_prior
