"""Names of likelihoods, for estimators and the command line."""

from agp.likelihoods._base import Likelihood
from agp.likelihoods._beta import Beta
from agp.likelihoods._counts import NegativeBinomial, Poisson
from agp.likelihoods._gamma import Exponential, Gamma
from agp.likelihoods._gaussian import Gaussian
from agp.likelihoods._latent_noise import LatentNoiseGaussian
from agp.likelihoods._student_t import StudentT

LIKELIHOODS: dict[str, type[Likelihood]] = {
    "gaussian": Gaussian,
    "student-t": StudentT,
    "poisson": Poisson,
    "negative-binomial": NegativeBinomial,
    "gamma": Gamma,
    "exponential": Exponential,
    "beta": Beta,
    "latent-noise": LatentNoiseGaussian,
}
"""The likelihoods for numeric targets."""
