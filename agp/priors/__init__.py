"""Priors on parameters: training maximises the bound plus their log density, a MAP estimate.

The density is that of the constrained value, such as the lengthscale, without a Jacobian, so that the mode does not
depend on the constraint.
"""

from agp.priors._densities import Gamma, HalfCauchy, HalfNormal, InverseGamma, LogNormal, Normal, Prior, Relative
from agp.priors._model import log_prior

__all__ = ["Gamma", "HalfCauchy", "HalfNormal", "InverseGamma", "LogNormal", "Normal", "Prior", "Relative", "log_prior"]

# for other subpackages
from agp.priors._model import Priors, as_priors, assign_priors, check_priors
