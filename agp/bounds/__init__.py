"""The objectives: lower bounds on the log evidence, and the log evidence itself, to be maximised."""

from agp.bounds._collapsed import Collapsed, collapsed_bound, collapsed_posterior, evidence_upper_bound
from agp.bounds._computation_aware import Loss, computation_aware_bound, projection_of, support_moments
from agp.bounds._elbo import elbo, expectation_block, row_blocks, tiled
from agp.bounds._evidence import log_evidence
from agp.bounds._iterative import CovarianceSystem, estimated_evidence
from agp.bounds._orthogonal import free_collapsed_bound, tight_bound

__all__ = [
    "Collapsed",
    "CovarianceSystem",
    "Loss",
    "collapsed_bound",
    "collapsed_posterior",
    "computation_aware_bound",
    "elbo",
    "estimated_evidence",
    "evidence_upper_bound",
    "expectation_block",
    "free_collapsed_bound",
    "log_evidence",
    "projection_of",
    "row_blocks",
    "support_moments",
    "tiled",
    "tight_bound",
]
