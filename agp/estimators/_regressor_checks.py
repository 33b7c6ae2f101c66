"""The likelihood of `GPRegressor`, and parameters that are invalid for all data, or for a model that is not chosen."""

from typing import Any

from agp.backend import Array
from agp.checks import check_choice, check_instance
from agp.estimators._targets import are_missing
from agp.likelihoods import LIKELIHOODS, TRANSFORMS, Gaussian, Likelihood
from agp.means import Mean
from agp.methods import METHODS, Method
from agp.selection import HYPERPARAMETERS


def check_regressor(regressor: Any) -> None:
    """Raise TypeError or ValueError for parameters that are invalid for all data."""
    likelihood = regressor.likelihood
    if isinstance(likelihood, str):
        check_choice("likelihood", likelihood, tuple(LIKELIHOODS))
    elif not isinstance(likelihood, Likelihood):
        known = ", ".join(map(repr, LIKELIHOODS))
        raise TypeError(f"likelihood is {likelihood!r}, but must be one of {known}, or an agp.likelihoods.Likelihood.")
    check_instance("mean_function", regressor.mean_function, Mean, optional=True)
    check_choice("target_transform", regressor.target_transform, (None, "none", "auto", *TRANSFORMS))
    check_choice("missing_targets", regressor.missing_targets, ("refuse", "ignore"))
    check_choice("hyperparameters", regressor.hyperparameters, HYPERPARAMETERS)
    if not isinstance(regressor.store_data, bool):
        raise TypeError(f"store_data is {regressor.store_data!r}, but must be True or False.")
    if regressor._given_transform is not None and not regressor._is_gaussian:
        transform, name = regressor.target_transform, regressor._likelihood_name
        raise ValueError(f"target_transform={transform!r} is for likelihood='gaussian', not {name}.")


def check_takes_exposure(regressor: Any) -> None:
    """Raise ValueError if the likelihood has no rate that exposures multiply."""
    if not regressor._likelihood_class.log_link:
        known = ", ".join(repr(name) for name, one in LIKELIHOODS.items() if one.log_link)
        raise ValueError(
            f"exposure is given, but likelihood={regressor._likelihood_name} does not use it; use one of {known}, or "
            "set log_link = True in a class of your own whose mean is a multiple of exp(f)."
        )


def check_not_chosen(regressor: Any) -> None:
    """Raise ValueError for parameters that are for models that `fit_regression` chooses."""
    of_one = "for one target with Gaussian noise"
    if not regressor.store_data:
        raise ValueError(
            f"store_data is False, which is {of_one} and the method auto or sgpr without num_inducing; leave it out "
            f"for other models, some of which store the rows."
        )
    if regressor.hyperparameters == "mixture":
        raise ValueError(
            f"hyperparameters is 'mixture', which is {of_one} and the method auto or gpr without num_inducing; use "
            f"'auto' for other models."
        )


def likelihood_of(regressor: Any, y: Array, method: Method) -> Likelihood:
    """Return the likelihood for targets [N, K]. Raise ValueError if the method does not support both."""
    exact = method.gaussian_only
    known = ", ".join(name for name, other in METHODS.items() if not other.gaussian_only)
    if exact and not regressor._is_gaussian:
        raise ValueError(
            f"likelihood is {regressor._likelihood_name}, but the method {method.name} does not support it; use auto, "
            f"or {known}."
        )
    if exact and are_missing(y):
        found = "y has rows with some targets missing"
        raise ValueError(f"{found}, but the method {method.name} needs all targets of a row; use auto, or {known}.")
    if not isinstance(regressor.likelihood, str):
        return regressor.likelihood
    if regressor.likelihood == "gaussian":
        return Gaussian(missing=regressor.missing_targets == "ignore" and y.shape[1] > 1 and not exact)
    return LIKELIHOODS[regressor.likelihood]()
