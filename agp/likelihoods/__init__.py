"""Likelihoods p(y | f): expected log densities with their derivatives, and distributions of predicted observations."""

from agp.likelihoods._base import Likelihood, Prediction
from agp.likelihoods._bernoulli import Bernoulli
from agp.likelihoods._beta import Beta
from agp.likelihoods._counts import NegativeBinomial, Poisson
from agp.likelihoods._gamma import Exponential, Gamma
from agp.likelihoods._gaussian import Gaussian
from agp.likelihoods._latent_noise import LatentNoiseGaussian
from agp.likelihoods._log_normal import LogNormal
from agp.likelihoods._ordinal import Ordinal
from agp.likelihoods._panels import ByPanels, Datum
from agp.likelihoods._quadrature import expectation, log_expectation, nodes_and_weights
from agp.likelihoods._robustmax import RobustMax
from agp.likelihoods._softmax import Softmax
from agp.likelihoods._student_t import StudentT
from agp.likelihoods._transformed import Transformed, TransformedGaussian
from agp.likelihoods._transforms import Log, Logit, Transform, YeoJohnson

__all__ = [
    "Bernoulli",
    "Beta",
    "ByPanels",
    "Datum",
    "Exponential",
    "Gamma",
    "Gaussian",
    "LatentNoiseGaussian",
    "Likelihood",
    "Log",
    "LogNormal",
    "Logit",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "Prediction",
    "RobustMax",
    "Softmax",
    "StudentT",
    "Transform",
    "Transformed",
    "TransformedGaussian",
    "YeoJohnson",
    "expectation",
    "log_expectation",
    "nodes_and_weights",
]

# for other subpackages
from agp.likelihoods._base import average_samples
from agp.likelihoods._by_name import LIKELIHOODS
from agp.likelihoods._gaussian import NEGLIGIBLE_NOISE
from agp.likelihoods._log_link import saturating_moments
from agp.likelihoods._log_normal import with_transform
from agp.likelihoods._transforms import TRANSFORMS
