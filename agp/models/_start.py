"""Starting values from the data, for everything that the user has not given."""

import math
from typing import Any, NamedTuple, TypeVar

from agp.backend import Array, backend_of, like, to_numpy
from agp.checks import as_columns, check_data, check_weights, usable
from agp.kernels import Kernel
from agp.likelihoods import Gaussian, Likelihood
from agp.means import ConstantMean, Mean, ZeroMean
from agp.priors import check_priors
from agp.processes import started_prior
from agp.random import generator
from agp.starts import repetitions, starting_kernel
from agp.tree import constant_data, copied, detached

__all__ = [
    "Observed",
    "Start",
    "check_instance",
    "held_data",
    "observed",
    "refuse_is_lazy",
    "repeated_rows",
    "sparse_parts",
    "started",
    "started_model",
    "valid_data",
    "valid_weights",
]

T = TypeVar("T", bound=Any)

MOST_ROWS = 200_000
"""The most rows that starting values are taken from; a sample of more data, drawn with a fixed seed."""


class Start(NamedTuple):
    """Valid data [N, D] and [N, K], and parts with all leaves arrays like them."""

    X: Array
    y: Array
    kernel: Kernel
    likelihood: Likelihood
    mean_function: Mean


class Observed(NamedTuple):
    """The likelihood, and moments of the observations of the latent functions."""

    X: Array
    """Inputs [n, D] for starting values, in memory; each row repeated by its weight."""
    y: Array
    """Their targets [n, K]."""
    likelihood: Likelihood
    """With all leaves arrays like the data."""
    outputs: int
    """The number of latent functions P."""
    level: Array
    """The averages [P] of the observations."""
    variance: float
    """Their variance, averaged over the outputs; 1 if it is zero."""
    variances: Array | None
    """Their variances [P], likewise; None if targets do not observe the latent functions."""
    mean_function: Mean
    """The given one; by default a constant if the targets have a level, else zero."""


def started(
    X: Array,
    y: Array,
    kernel: Kernel | None,
    likelihood: Likelihood | None,
    mean_function: Mean | None,
    /,
    *,
    by_output: bool = True,
    weights: Array | None = None,
) -> Start:
    """The data, and parts with starting values.

    Lengthscales start where a sample of the data is most probable (`starting_kernel`), the mean function (by default a
    constant) at the average of the observations, the kernel's variance at their variance (1 if they are constant), the
    noise at a tenth of it.
    """
    data = observed(X, y, kernel, likelihood, mean_function, by_output=by_output, weights=weights)
    seen, variance = data.X, data.variance
    begun: Kernel = starting_kernel(kernel, seen, data.y, data.likelihood)
    kernel = usable(begun.from_data(seen, variance), seen)
    mean_function = usable(data.mean_function.from_data(seen, data.level, variance**0.5), seen)
    kernel.check(X.shape[1])
    mean_function.check(X.shape[1], data.outputs)
    X, y = constant_data(X, as_columns(y))
    return Start(X, y, kernel, data.likelihood, mean_function)


def observed(
    X: Array,
    y: Array,
    kernel: Any,
    likelihood: Likelihood | None,
    mean_function: Any,
    /,
    *,
    by_output: bool = True,
    weights: Array | None = None,
) -> Observed:
    """The likelihood with starting values, and moments of the data X [N, D] and y [N] or [N, K], which are checked.

    With several outputs the likelihood's values are one for each (`by_output`), or the same for all. Weights [N], by
    default those that the likelihood finds in y, count as repetitions. TypeError or ValueError for invalid data, and
    for kernels or mean functions that are not instances of their classes.
    """
    X, y = valid_data(X, y, missing=isinstance(likelihood, Likelihood) and likelihood.missing)
    check_instance("kernel", kernel, Kernel)
    check_instance("likelihood", likelihood, Likelihood)
    check_instance("mean_function", mean_function, Mean)
    likelihood = Gaussian() if likelihood is None else likelihood
    likelihood.check_targets(y)
    weights = likelihood.row_weights(y) if weights is None else weights
    X, y = looked_at(X, y) if weights is None else repeated_rows(*looked_at(X, y, weights))
    outputs = likelihood.latents(y.shape[1])
    likelihood.check_outputs(outputs)
    values = likelihood.observations(y)
    level, variance, variances = _moments(values, outputs, X, likelihood.missing)
    known = None if values is not None else likelihood.level(y)
    level = level if known is None else known
    usual = ZeroMean() if values is None and known is None else ConstantMean()
    own = by_output and variances is not None and outputs > 1
    likelihood = usable(likelihood.from_outputs(variances) if own else likelihood.from_data(variance), X)
    likelihood.check_parameters()
    mean_function = usual if mean_function is None else mean_function
    return Observed(X, y, likelihood, outputs, level, variance, variances, mean_function)


def sparse_parts(data: Observed, kernel: Kernel | None, **choice: Any) -> dict[str, Any]:
    """The kernel, likelihood, mean function, inducing variables and jitter of a model, with starting values.

    The choice is inducing, Z, num_inducing, seed and jitter, as `SVGP.from_data`.
    """
    kernel = starting_kernel(kernel, data.X, data.y, data.likelihood, inducing=choice["inducing"])
    prior = started_prior(data.X, kernel, data.mean_function, data.level, data.variance, **choice)
    return prior._asdict() | {"likelihood": data.likelihood}


def held_data(X: Array, y: Array) -> dict[str, Array]:
    """Copies of valid inputs [N, D] and targets [N] or [N, K], as models hold them; dask arrays stay dask arrays."""
    X, y = constant_data(X, as_columns(y))
    return {"X": copied(X), "y": copied(y)}


def refuse_is_lazy(model_class: type, *arrays: Array) -> None:
    """ValueError for dask arrays, for models that need all rows in memory."""
    for x in arrays:
        if backend_of(x).is_lazy:
            msg = (
                f"{model_class.__name__} needs all rows in memory at once, but they are in a {backend_of(x).name} "
                "array; compute it first if they fit, or use SGPR, SOLVEGPR, SVGP, or CaGP with support=."
            )
            raise ValueError(msg)


def looked_at(*arrays: Array) -> tuple[Array, ...]:
    """The rows of arrays [N, ...] for starting values, in memory: all, or a sample of very many."""
    N = arrays[0].shape[0]
    if N > MOST_ROWS:
        sample = generator(0, 12).choice(N, MOST_ROWS, replace=False, shuffle=False)
        sample.sort()
        return tuple(backend_of(x).gathered(x, sample) for x in arrays)
    return tuple(backend_of(x).gathered(x) for x in arrays)


def repeated_rows(X: Array, y: Array, weights: Array, /) -> tuple[Array, Array]:
    """Rows X [n, D] and y [n, K], each repeated by its weight [n] (`agp.starts.repetitions`)."""
    index = repetitions(to_numpy(weights))
    return (X, y) if index is None else (backend_of(X).gathered(X, index), backend_of(y).gathered(y, index))


def _moments(values: Array | None, outputs: int, X: Array, missing: bool) -> tuple[Array, float, Array | None]:
    """The averages [P] of observations [N, P], their variance averaged over the outputs, and the variances [P].

    If `missing`, NaN are left out.
    """
    xp = backend_of(X).xp
    if values is None:
        return xp.zeros((outputs,), **like(X)), 1.0, None
    if missing:
        level, variances, largest = _observed_moments(values)
    else:
        level, variances = xp.mean(values, axis=0), xp.var(values, axis=0)
        largest = xp.max(xp.abs(values), axis=0)
    variance = float(xp.mean(variances))
    if not math.isfinite(variance):
        msg = f"the variance of y exceeds the largest number of {values.dtype}; divide y by a constant, or use float64."
        raise ValueError(msg)
    rounding = 10.0 * float(xp.finfo(values.dtype).eps) * largest
    known = variances > rounding * rounding
    some = variance > float(xp.max(rounding)) ** 2
    return level, variance if some else 1.0, xp.where(known, variances, xp.ones_like(variances))


def _observed_moments(values: Array) -> tuple[Array, Array, Array]:
    """The averages [P], variances and largest magnitudes of values [N, P] that are not NaN.

    ValueError if a column has only NaN.
    """
    xp = backend_of(values).xp
    absent, zero = xp.isnan(values), xp.zeros_like(values)
    count = xp.sum(xp.astype(~absent, values.dtype), axis=0)
    if not bool(xp.all(count > 0.0)):
        column = int(xp.argmin(count))
        msg = f"column {column} of y has no target that was observed, all are NaN; leave it out."
        raise ValueError(msg)
    known = xp.where(absent, zero, values)
    level = xp.sum(known, axis=0) / count
    deviation = xp.where(absent, zero, values - level)
    variance = xp.sum(deviation * deviation, axis=0) / count
    return level, variance, xp.max(xp.abs(known), axis=0)


def check_instance(name: str, x: Any, kind: type) -> None:
    """TypeError unless x is None or an instance of the kind."""
    if x is not None and not isinstance(x, kind):
        hint = f"; write {x.__name__}()" if isinstance(x, type) else ""
        msg = f"{name} is {x!r}, but must be an instance of agp's {kind.__name__}{hint}."
        raise TypeError(msg)


def valid_data(X: Array, y: Array, *, missing: bool = False) -> tuple[Array, Array]:
    """X [N, D] and y [N, K] of y [N] or [N, K], checked, as constants for automatic differentiation.

    Targets that are `missing` may be NaN.
    """
    y = check_data(X, y, missing=missing)
    X, y = constant_data(X, y)
    return X, y


def valid_weights(weights: Array | None, X: Array) -> Array | None:
    """A copy of the weights of the rows X [N, D], checked, as a constant for differentiation; None for none."""
    return None if weights is None else copied(*constant_data(check_weights(weights, X)))


def started_model(model: T) -> T:
    """The new model, detached, with its priors checked."""
    check_priors(model)
    return detached(model)
