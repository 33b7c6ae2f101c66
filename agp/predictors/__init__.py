"""Posteriors for prediction. All quantities that do not depend on the test inputs are precomputed."""

from agp.predictors._components import Components
from agp.predictors._functions import FunctionSamples
from agp.predictors._imputed import Imputations
from agp.predictors._level_noise import LevelNoise
from agp.predictors._predictor import Predictor
from agp.predictors._saturating import Saturation

__all__ = ["Components", "FunctionSamples", "Imputations", "LevelNoise", "Predictor", "Saturation"]

# for other subpackages

from agp.predictors._components import joint_terms
from agp.predictors._predictor import FREQUENCIES, joint_moments
