"""Priors on parameters: training maximises the bound plus their log density, which makes it a MAP estimate.

The density is that of the constrained value, such as the lengthscale itself, without the Jacobian of the map from the
raw leaf: the mode that training finds does not depend on how a parameter is constrained.
"""

from agp.priors._base import Prior
from agp.priors._densities import Gamma, HalfCauchy, HalfNormal, InverseGamma, LogNormal, Normal, Relative
from agp.priors._model import log_prior

__all__ = ["Gamma", "HalfCauchy", "HalfNormal", "InverseGamma", "LogNormal", "Normal", "Prior", "Relative", "log_prior"]

# for other rooms
from agp.priors._model import Priors, as_priors, assigned, check_priors
