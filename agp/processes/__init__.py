"""Processes: from inputs to marginals. One kernel and q(u), several side by side, mixtures of them, and layers."""

from agp.processes._base import Process, SitePull, check_process
from agp.processes._deep import Deep
from agp.processes._each_patch import EachPatch
from agp.processes._known import Known
from agp.processes._mixed import Mixed
from agp.processes._paths import Paths, conditioned_paths
from agp.processes._prior import SparsePrior, started_prior
from agp.processes._sparse import Sparse
from agp.processes._stack import Stack

__all__ = [
    "Deep",
    "EachPatch",
    "Known",
    "Mixed",
    "Paths",
    "Process",
    "SitePull",
    "Sparse",
    "SparsePrior",
    "Stack",
    "check_process",
    "conditioned_paths",
    "started_prior",
]
