"""Stage (b): from covariances to marginals and KL divergences, one file for each parameterisation of q(u)."""

from agp.posteriors._base import Posterior
from agp.posteriors._process import factorise, inducing_covariance, kl_divergence, marginals, project
from agp.posteriors._relaxed import Relaxed
from agp.posteriors._whitened import Whitened

__all__ = [
    "Posterior",
    "Relaxed",
    "Whitened",
    "factorise",
    "inducing_covariance",
    "kl_divergence",
    "marginals",
    "project",
]
