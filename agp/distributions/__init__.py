"""Distributions of predicted observations on the host: mixtures over the latent functions, quantiles and CRPS."""

from agp.distributions._quantiles import Mixture, ObservationModel, beta_tail, gamma_tail, normal_tail, t_tail

__all__ = [
    "Mixture",
    "ObservationModel",
    "beta_tail",
    "gamma_tail",
    "normal_tail",
    "t_tail",
]

# for other subpackages
from agp.distributions._quantiles import (
    MAX_LOG,
    MIN_PROBABILITY,
    gauss_hermite,
    gauss_legendre,
    gaussian_expectation,
    marginal_mixture,
    mixture_quantiles,
    normal_quantile,
)
from agp.distributions._scores import mixture_cdf, mixture_crps
