"""Posteriors for prediction. All quantities that do not depend on the test inputs are precomputed."""

from agp.predictors._functions import FunctionSamples
from agp.predictors._imputed import Imputations
from agp.predictors._predictor import Predictor
from agp.predictors._saturating import Saturation

__all__ = ["FunctionSamples", "Imputations", "Predictor", "Saturation"]

# for other subpackages
from agp.predictors._checks import check_outputs, check_test_inputs
from agp.predictors._predictor import FREQUENCIES
