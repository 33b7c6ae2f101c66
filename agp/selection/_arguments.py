"""Checks of the arguments of `fit_regression` and `fit_classification`."""

import numbers
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from agp import tree
from agp.backend import Array, asarray_like, backend_of, to_numpy
from agp.checks import check_instance, check_weights, known_of_rows
from agp.kernels import Kernel
from agp.likelihoods import NEGLIGIBLE_NOISE, Gaussian, Likelihood
from agp.models import valid_data
from agp.priors import Fixed, Priors, as_priors, check_zeros
from agp.selection._equal import spread_of_equal
from agp.selection._given import Data, Plan, all_names, by_compared_kernel


def valid_rows(X: Array, y: Array, weights: Array | None, noise: Array | None = None) -> Data:
    """Return the rows. Raise TypeError or ValueError unless they are valid."""
    X, y = valid_data(X, y)
    known = known_of_rows(X, 1, weights, None, noise)
    if weights is not None:
        check_weights(weights, X)
    return Data(X, y, known["weights"], None if noise is None else known["noise"][:, 0])


def check_kernel_and_priors(kernel: Any, priors: Any) -> None:
    """Raise TypeError unless the kernel is "auto" or a kernel, and the priors are "auto", None or a dictionary."""
    if not (isinstance(kernel, str) and kernel == "auto"):
        check_instance("kernel", kernel, Kernel, other="'auto' or ")
    check_priors_argument(priors)


def check_priors_argument(priors: Any) -> None:
    """Raise TypeError unless `priors` is "auto", None or a dictionary."""
    if priors is not None and not isinstance(priors, Mapping) and not (isinstance(priors, str) and priors == "auto"):
        raise TypeError(f"priors is {priors!r}, but must be 'auto', None or a dictionary of priors.")


def check_gaussian(likelihood: Any) -> None:
    """Raise TypeError if the likelihood of `fit_regression` is not Gaussian."""
    if isinstance(likelihood, Likelihood) and not isinstance(likelihood, Gaussian):
        raise TypeError(
            f"fit_regression needs Gaussian noise, not {type(likelihood).__name__}; use "
            "agp.GPRegressor(likelihood=...), or build an SVGP and train it with agp.fit."
        )


def split_priors(priors: Any, frozen: str | Iterable[str] = (), /) -> tuple[Any, Priors]:
    """Split priors into densities and limits, and add the limits of frozen parameters.

    Densities are "auto" if they are so, or if there are only limits.
    """
    fixed = tuple((pattern, Fixed()) for pattern in tree.patterns(frozen))
    if priors is None or isinstance(priors, str):
        return priors, fixed
    pairs = as_priors(priors)
    densities = {pattern: prior for pattern, prior in pairs if prior.is_density}
    limits = tuple(pair for pair in pairs if not pair[1].is_density)
    return (densities if densities or not limits else "auto"), (*limits, *fixed)


def with_limits(plan: Plan, limits: Priors, /) -> Plan:
    """Return the plan with limits.

    Raise ValueError unless each pattern, also that of a density for kernels that are chosen, matches a parameter.
    """
    chosen = isinstance(plan.kernel, str)
    densities = as_priors(plan.priors) if chosen and isinstance(plan.priors, Mapping) else ()
    if not limits and not densities:
        return plan
    kernels = plan.kernels().values()
    names = dict.fromkeys([*(f"kernel.{name}" for one in kernels for name in all_names(one)), *plan.names_beside()])
    constants = ["kernel.period"] if chosen and plan.times else []
    constants += [f"kernel.{name}" for one in kernels for name in tree.leaves(one, "constant")]
    for pattern, _ in (*limits, *densities):
        whole = tree.whole_pattern(pattern)
        if not any(tree.matches(name, whole) for name in names if name not in constants):
            raise ValueError(tree.no_match_message(pattern, names, constants))
    if _is_without_noise(plan.likelihood):
        check_zeros(("likelihood.noise_variance",), limits)
    if chosen:  # checks the entries
        by_compared_kernel((*limits, *densities), next(iter(kernels)), plan.columns)
    return plan._replace(limits=limits)


def with_least_noise(data: Data, likelihood: Any, kernel: Any) -> Data:
    """Return the data with at least a negligible known noise variance if the user says that there is no other noise.

    It is a fraction of the variance of the targets or, for rows with tags, of the mean square of the slopes along each
    column, whose units differ.
    """
    if not _is_without_noise(likelihood) or backend_of(data.X).is_lazy:
        return data
    xp, spread, (y, weights) = backend_of(data.X).xp, spread_of_equal(data), data.targets_on_host()
    tags = to_numpy(data.X)[:, -1] if isinstance(kernel, Kernel) and kernel.reads_tags else np.zeros(y.shape[0])
    least = np.full(y.shape[0], 0.0 if spread is None else NEGLIGIBLE_NOISE * spread**2)
    for tag in np.unique(tags) if spread is None else ():
        rows = tags == tag
        some, w = y[rows], None if weights is None else weights[rows]
        centre = np.average(some, axis=0, weights=w) if tag == 0.0 else 0.0
        least[rows] = NEGLIGIBLE_NOISE * np.mean(np.average((some - centre) ** 2, axis=0, weights=w))
    if not least.any():
        return data
    found = asarray_like(least, data.X)
    return data._replace(noise=found if data.noise is None else xp.maximum(data.noise, found))


def _is_without_noise(likelihood: Any) -> bool:
    """Whether the user says that there is no other noise than the known noise of rows."""
    is_number = isinstance(likelihood, Gaussian) and isinstance(likelihood.noise_variance, numbers.Real)
    return is_number and not likelihood.noise_variance


def method_to_use(method: str, store_data: Any, hyperparameters: str) -> Any:
    """Return the method, which must not store data if `store_data` is false."""
    if hyperparameters == "mixture" and method not in ("auto", "gpr"):
        raise ValueError(f"hyperparameters is 'mixture', but the method {method!r} uses one setting; use method='gpr'.")
    if not isinstance(store_data, bool):
        raise TypeError(f"store_data is {store_data!r}, but must be True or False.")
    if store_data or method == "sgpr":
        return method
    if method != "auto":
        raise ValueError(
            f"store_data is False, but models of the method {method!r} store the training rows; use 'auto' or 'sgpr'."
        )
    return "sgpr"


def check_labels(likelihood: Likelihood, y: Array) -> None:
    """Raise ValueError unless the targets are one column of labels that the likelihood supports."""
    likelihood.latents(y.shape[1])
    if y.shape[1] != 1:
        raise ValueError(f"y has shape {tuple(y.shape)}, but must have one column of labels.")
    likelihood.check_targets(y)
