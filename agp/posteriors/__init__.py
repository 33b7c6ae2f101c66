"""Parameterisations of q(u), the Gaussian approximate posterior of the inducing variables u."""

from agp.posteriors._base import FollowsInverse, GroupPosterior, InverseFactored, InverseOwner, Posterior
from agp.posteriors._diagonal import DiagonalMarginal, DiagonalWhitened
from agp.posteriors._dual import Dual
from agp.posteriors._dual_inverse_free import DualInverseFree
from agp.posteriors._factored import WhiteFactor, WhitePosterior, WhiteState
from agp.posteriors._inverse_free import InverseFree
from agp.posteriors._likelihood import FullSiteLikelihoodForm, LikelihoodForm
from agp.posteriors._marginal import Marginal
from agp.posteriors._natural_steps import RootSteps, WhiteSteps
from agp.posteriors._of_data import DatumSites, Exact
from agp.posteriors._orthogonal import Orthogonal, PriorSpread
from agp.posteriors._relaxed import FullSiteRelaxed, Relaxed
from agp.posteriors._relaxed_orthogonal import RelaxedOrthogonal, RelaxedUnion
from agp.posteriors._sites import NaturalSteps, SiteGradients, SiteHolder
from agp.posteriors._whitened import Whitened

__all__ = [
    "DatumSites",
    "DiagonalMarginal",
    "DiagonalWhitened",
    "Dual",
    "DualInverseFree",
    "Exact",
    "FollowsInverse",
    "FullSiteLikelihoodForm",
    "FullSiteRelaxed",
    "GroupPosterior",
    "InverseFactored",
    "InverseFree",
    "InverseOwner",
    "LikelihoodForm",
    "Marginal",
    "NaturalSteps",
    "Orthogonal",
    "Posterior",
    "PriorSpread",
    "Relaxed",
    "RelaxedOrthogonal",
    "RelaxedUnion",
    "RootSteps",
    "SiteGradients",
    "SiteHolder",
    "WhiteFactor",
    "WhitePosterior",
    "WhiteState",
    "WhiteSteps",
    "Whitened",
]

# for other subpackages
from agp.posteriors._datum_sites import SiteSystem, moments_of_sites
from agp.posteriors._diagonal import DiagonalState
from agp.posteriors._dual import Tied
from agp.posteriors._dual_inverse_free import DualInverses
from agp.posteriors._inverse_free import InverseFreeFactor
from agp.posteriors._likelihood import LikelihoodFactor
from agp.posteriors._natural_state import NaturalState, WhiteSites
from agp.posteriors._natural_steps import sites_of_moments
from agp.posteriors._of_data import DatumSitesFactor, ExactFactor
from agp.posteriors._orthogonal import OrthogonalState
from agp.posteriors._projected_observations import Projected, ProjectedCholesky, ProjectedInverse, ProjectedInverseFree
from agp.posteriors._relaxed import RelaxedFactor
from agp.posteriors._relaxed_orthogonal import RelaxedGroupsFactor
from agp.posteriors._site_form import GrowingSiteForm
from agp.posteriors._sites import GuardedSums, KeepsSums, Sums, limit_sites, safeguarded_step, sums_of
from agp.posteriors._start import find_posterior, start_of
