"""Stage (c): expected log densities with their pullbacks, and predictive densities."""

from agp.likelihoods._base import Likelihood, Prediction
from agp.likelihoods._bernoulli import Bernoulli
from agp.likelihoods._gaussian import Gaussian

__all__ = ["Bernoulli", "Gaussian", "Likelihood", "Prediction"]
