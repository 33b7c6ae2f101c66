"""The objectives: lower bounds on the log evidence, and the log evidence itself, to be maximised."""

from agp.bounds._collapsed import Collapsed, collapsed_bound, collapsed_posterior, evidence_upper_bound, totals_of
from agp.bounds._computation_aware import Loss, computation_aware_bound, projection_of, support_moments
from agp.bounds._elbo import elbo, expectation_block, tiled
from agp.bounds._evidence import log_evidence
from agp.bounds._iterative import CovarianceSystem, estimated_evidence
from agp.bounds._orthogonal import free_collapsed_bound, optimal_first_group, tight_bound
from agp.bounds._site_sums import site_sums
from agp.bounds._white_sites import white_site_sums

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
    "optimal_first_group",
    "projection_of",
    "site_sums",
    "support_moments",
    "tight_bound",
    "tiled",
    "totals_of",
    "white_site_sums",
]
