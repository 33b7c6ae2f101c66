"""Stage (b): from covariances to marginals and KL divergences, one file for each parameterisation of q(u)."""

from agp.posteriors._base import FollowsInverse, InverseFactored, Posterior
from agp.posteriors._dual import Dual, Tied
from agp.posteriors._dual_inverse_free import DualInverseFree
from agp.posteriors._inverse_free import InverseFree
from agp.posteriors._likelihood import LikelihoodForm
from agp.posteriors._marginal import Marginal
from agp.posteriors._orthogonal import Orthogonal, PriorSpread
from agp.posteriors._process import (
    factorise,
    inducing_covariance,
    kl_divergence,
    marginals,
    project,
    project_covariance,
    project_mean,
)
from agp.posteriors._projected import Projected, ProjectedCholesky, ProjectedInverse, ProjectedInverseFree
from agp.posteriors._relaxed import Relaxed
from agp.posteriors._relaxed_orthogonal import RelaxedOrthogonal, RelaxedUnion
from agp.posteriors._white_sites import WhiteSites
from agp.posteriors._whitened import Whitened

__all__ = [
    "Dual",
    "DualInverseFree",
    "FollowsInverse",
    "InverseFactored",
    "InverseFree",
    "LikelihoodForm",
    "Marginal",
    "Orthogonal",
    "Posterior",
    "PriorSpread",
    "Projected",
    "ProjectedCholesky",
    "ProjectedInverse",
    "ProjectedInverseFree",
    "Relaxed",
    "RelaxedOrthogonal",
    "RelaxedUnion",
    "Tied",
    "WhiteSites",
    "Whitened",
    "factorise",
    "inducing_covariance",
    "kl_divergence",
    "marginals",
    "project",
    "project_covariance",
    "project_mean",
]
