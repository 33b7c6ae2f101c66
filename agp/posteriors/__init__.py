"""Stage (b): from covariances to marginals and KL divergences, one file for each parameterisation of q(u)."""

from agp.posteriors._base import FollowsInverse, GroupPosterior, InverseFactored, InverseOwner, Posterior
from agp.posteriors._datum_sites import moments_of_sites, path_weights_of_sites, solved_sites
from agp.posteriors._diagonal import DiagonalMarginal, DiagonalWhitened
from agp.posteriors._dual import Dual, Tied
from agp.posteriors._dual_inverse_free import DualInverseFree
from agp.posteriors._factored import WhiteFactor, WhitePosterior, WhiteState
from agp.posteriors._inverse_free import InverseFree
from agp.posteriors._likelihood import FullSiteLikelihoodForm, LikelihoodForm
from agp.posteriors._marginal import Marginal
from agp.posteriors._natural_steps import RootSteps
from agp.posteriors._orthogonal import Orthogonal, PriorSpread
from agp.posteriors._projected_observations import Projected, ProjectedCholesky, ProjectedInverse, ProjectedInverseFree
from agp.posteriors._relaxed import FullSiteRelaxed, Relaxed
from agp.posteriors._relaxed_orthogonal import RelaxedOrthogonal, RelaxedUnion
from agp.posteriors._site_form import SiteForm
from agp.posteriors._sites import (
    GuardedSums,
    HoldsSums,
    KeepsSums,
    NaturalSteps,
    SiteGradients,
    SiteHolder,
    Sums,
    guarded_step,
)
from agp.posteriors._start import posterior_named, start_of
from agp.posteriors._white_sites import WhiteSites
from agp.posteriors._whitened import Whitened

__all__ = [
    "DiagonalMarginal",
    "DiagonalWhitened",
    "Dual",
    "DualInverseFree",
    "FollowsInverse",
    "FullSiteLikelihoodForm",
    "FullSiteRelaxed",
    "GroupPosterior",
    "GuardedSums",
    "HoldsSums",
    "InverseFactored",
    "InverseFree",
    "InverseOwner",
    "KeepsSums",
    "LikelihoodForm",
    "Marginal",
    "NaturalSteps",
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
    "RootSteps",
    "SiteForm",
    "SiteGradients",
    "SiteHolder",
    "Sums",
    "Tied",
    "WhiteFactor",
    "WhitePosterior",
    "WhiteSites",
    "WhiteState",
    "Whitened",
    "guarded_step",
    "moments_of_sites",
    "path_weights_of_sites",
    "posterior_named",
    "solved_sites",
    "start_of",
]
