"""Priors on parameters. Training maximises the bound plus their log density, which gives a MAP estimate.

The density refers to the constrained value, such as the lengthscale, without a Jacobian. The mode therefore does not
depend on the constraint.
"""

from agp.priors._densities import Gamma, HalfCauchy, HalfNormal, InverseGamma, LogNormal, Normal, Prior, Relative
from agp.priors._model import log_prior

__all__ = ["Gamma", "HalfCauchy", "HalfNormal", "InverseGamma", "LogNormal", "Normal", "Prior", "Relative", "log_prior"]

# for other subpackages
from agp.priors._model import Priors, as_priors, assign_priors, check_priors
