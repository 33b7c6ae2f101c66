"""Processes, from inputs to marginals: one kernel and q(u), several side by side, mixtures, and layers."""

from agp.processes._base import Process
from agp.processes._deep import Deep
from agp.processes._each_patch import Patchwise
from agp.processes._known import Known
from agp.processes._mixed import Mixed
from agp.processes._outputs import MultiOutput
from agp.processes._paths import Paths
from agp.processes._prior import SparsePrior
from agp.processes._sparse import Sparse
from agp.processes._stack import Stack

__all__ = ["Deep", "Known", "Mixed", "MultiOutput", "Patchwise", "Paths", "Process", "Sparse", "SparsePrior", "Stack"]

# for other rooms
from agp.processes._base import check_process
from agp.processes._paths import conditioned_paths
from agp.processes._prior import started_prior
