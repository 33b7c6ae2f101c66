"""Posteriors for prediction. All quantities that do not depend on the test inputs are precomputed."""

from agp.predictors._conditional import Conditional, ProcessConditional
from agp.predictors._functions import FunctionSamples
from agp.predictors._predictor import Predictor

__all__ = ["Conditional", "FunctionSamples", "Predictor", "ProcessConditional"]

# for other subpackages
from agp.predictors._conditional import check_outputs, check_test_inputs, delegate
from agp.predictors._imputed import ImputedConditional, with_imputations
from agp.predictors._of_data import ActionConditional, ExactConditional, IterativeConditional, SiteConditional
from agp.predictors._offset import with_offsets
from agp.predictors._predictor import FREQUENCIES
from agp.predictors._saturating import SaturatingConditional, with_saturation
