"""What estimators accept, as scikit-learn's tags."""

from typing import Any

from agp.likelihoods import LIKELIHOODS, LatentNoiseGaussian, Likelihood

POSITIVE_TRANSFORMS = ("log", "logit")
"""The transforms of targets without a sign."""


def set_tags(estimator: Any, tags: Any) -> Any:
    """Set the tags of what both estimators accept, and return all tags."""
    tags.input_tags.allow_nan = estimator.missing == "impute"
    tags.input_tags.sparse = True
    tags.array_api_support = True
    return tags


def set_target_tags(regressor: Any, tags: Any) -> Any:
    """Set the tags of the targets that a regressor accepts, and return all tags."""
    likelihood, transform = regressor.likelihood, regressor.target_transform
    if isinstance(likelihood, str) and likelihood in LIKELIHOODS:
        likelihood = LIKELIHOODS[likelihood]()
    of_one = regressor.noise_by is not None or transform == "yeo-johnson" or regressor.hyperparameters == "mixture"
    errors = regressor.error_column
    number = None if errors is None else len(errors) if isinstance(errors, (list, tuple)) else 1
    of_one = of_one or number == 1
    tags.target_tags.multi_output = not of_one and regressor.store_data is not False
    own_noise = isinstance(likelihood, LatentNoiseGaussian)
    tags.target_tags.single_output = number in (None, 1) and (own_noise or regressor.outputs == "shared")
    numbers = isinstance(likelihood, Likelihood) and (likelihood.whole_numbers or likelihood.support[0] >= 0.0)
    tags.target_tags.positive_only = transform in POSITIVE_TRANSFORMS or numbers
    return tags
