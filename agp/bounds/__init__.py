"""Training objectives: the log evidence of a Gaussian process and lower bounds on it."""

from agp.bounds._batch import Batch
from agp.bounds._collapsed import collapsed_bound, evidence_upper_bound
from agp.bounds._computation_aware import computation_aware_bound
from agp.bounds._elbo import elbo
from agp.bounds._evidence import leave_one_out, log_evidence
from agp.bounds._expansion import Expansion, expand_evidence
from agp.bounds._iterative import estimated_evidence
from agp.bounds._laplace import LaplaceEvidence, laplace_evidence
from agp.bounds._orthogonal import free_collapsed_bound, tight_bound

__all__ = [
    "Batch",
    "Expansion",
    "LaplaceEvidence",
    "collapsed_bound",
    "computation_aware_bound",
    "elbo",
    "estimated_evidence",
    "evidence_upper_bound",
    "expand_evidence",
    "free_collapsed_bound",
    "laplace_evidence",
    "leave_one_out",
    "log_evidence",
    "tight_bound",
]

# for other subpackages
from agp.bounds._batch import expected_row_density, row_site_gradients, with_row_noise
from agp.bounds._collapsed import (
    Statistics,
    bound_from_totals,
    collapsed_posterior,
    collapsed_statistics,
    posterior_of,
    profile_of,
    statistics_of,
    totals_of,
)
from agp.bounds._computation_aware import Loss, projection_of, support_moments
from agp.bounds._elbo import site_sums
from agp.bounds._evidence import evidence_and_left_out, targets_of
from agp.bounds._iterative import CovarianceSystem, preconditioning_root
from agp.bounds._near_conditional import NearConditional, condition_on_neighbours, near_moments
from agp.bounds._near_evidence import NearRows, NearSums, expand_near, near_densities, near_evidence, near_sums
from agp.bounds._near_sites import Cavity, near_cavities, near_site_bound, site_noise
from agp.bounds._orthogonal import optimal_first_group
from agp.bounds._row_noise import RowNoise, SplitNoise, raise_noise, split_logarithms, split_weights
from agp.bounds._stacked import stacked_evidence, stacked_leave_one_out
