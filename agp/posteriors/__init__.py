"""Stage (b): from covariances to marginals and KL divergences, one file for each parameterisation of q(u)."""

from agp.posteriors._base import InverseFactored, Posterior
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
from agp.posteriors._relaxed import Relaxed
from agp.posteriors._whitened import Whitened

__all__ = [
    "InverseFactored",
    "InverseFree",
    "LikelihoodForm",
    "Marginal",
    "Orthogonal",
    "Posterior",
    "PriorSpread",
    "Relaxed",
    "Whitened",
    "factorise",
    "inducing_covariance",
    "kl_divergence",
    "marginals",
    "project",
    "project_covariance",
    "project_mean",
]
