"""Starting values from the data for all model parts that the user did not specify."""

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from agp import tree
from agp.backend import Array, backend_of, like, to_numpy
from agp.checks import as_columns, check_data, check_instance, known_of_rows, usable
from agp.chunking import TaggedRows, are_whole, column_spreads
from agp.errors import count_of
from agp.kernels import Kernel, count_levels, entries_of_levels
from agp.likelihoods import Gaussian, Likelihood
from agp.means import ConstantMean, Mean, ZeroMean
from agp.models._parts import ExactParts
from agp.priors import Priors, as_priors, check_fixed, check_priors, restrict, values_outside
from agp.processes import Sparse, initialise_prior
from agp.random import generator
from agp.repairs import outside
from agp.starts import repetitions, starting_kernel
from agp.tree import constant_data, copy_array, detach

T = TypeVar("T", bound=Any)

NEAR_UNDERFLOW = 1e6
"""A variance below this multiple of the smallest normal number has no room for a smaller noise variance."""
MAX_ROWS = 200_000
"""The maximum number of rows for computing starting values. Larger data are subsampled with a fixed seed."""


class Observed(NamedTuple):
    """The checked arguments of a constructor, with the data and moments from which starting values are computed."""

    X: Array
    """Inputs [n, D] for starting values, in memory. Each row is repeated according to its weight."""
    y: Array
    """The targets [n, K] at these inputs."""
    offset: Array | None
    """The offset [n, 1 or P] at these inputs."""
    likelihood: Likelihood
    """The likelihood, whose leaves have the library, dtype and device of the data."""
    outputs: int
    """The number of latent functions P."""
    level: Array
    """The means [P] of the observations."""
    variance: float
    """The variance of the observations, averaged over the outputs, or 1 if that is zero."""
    variances: Array | None
    """The variances [P] of the observations, or 1 if zero. None if targets are not observations of latent functions."""
    kernel: Kernel | None
    """The given kernel."""
    mean_function: Mean
    """The given mean function. By default, a constant if the targets have a level, otherwise zero."""
    priors: Priors
    """The given priors."""
    given: dict[str, Any]
    """The arguments as they were given."""
    known: dict[str, Array | None]
    """What is known of all N rows: weights [N], an offset [N, 1 or P] and noise variances [N, 1 or P]."""
    options: dict[str, Any]
    """The given arguments that `ExactParts` does not list, such as those of `InducingParts`."""


def prepare_data(
    X: Array, y: Array, parts: Mapping[str, Any], /, *, kernels: Any = None, by_output: bool = True
) -> Observed:
    """Check the data X [N, D] and y [N] or [N, K] and the shared arguments `parts` of a constructor.

    The likelihood of the result has starting values. If `by_output` is True, it has one for each output; otherwise, all
    outputs share one. `kernels` are those of a model that takes several. A row of weight w counts as w rows. Raises
    TypeError or ValueError if the data are invalid, or if the kernel, likelihood or mean function has the wrong type.
    """
    for name, kind in (("kernel", Kernel), ("likelihood", Likelihood), ("mean_function", Mean)):
        check_instance(name, parts.get(name), kind, optional=True)
    priors = as_priors(parts["priors"])
    likelihood: Likelihood = Gaussian() if parts["likelihood"] is None else parts["likelihood"]
    X, y = valid_data(X, y, missing=likelihood.missing)
    likelihood.check_targets(y)
    outputs = likelihood.latents(y.shape[1])
    likelihood.check_outputs(outputs)
    known = _known_of_rows(X, outputs, likelihood, parts)
    kernel: Kernel | None = parts.get("kernel")
    kernel = None if kernel is None else count_levels(kernel, X)
    X, y, offset = _rows_for_start(X, y, known)
    kernel = None if kernel is None else tree.place_host_arrays(kernel, X)
    likelihood = tree.place_host_arrays(likelihood, X)
    _check_codes(kernel if kernels is None else kernels, X)
    is_complete = kernel is not None and not tree.missing(kernel) and not tree.missing(likelihood)
    values, use = observations_of_rows(likelihood, y, offset), {"is_used": not is_complete}
    if tagged := _read_tags(kernel if kernels is None else kernels):
        level, variance, variances = _moments_of_values(values, outputs, X, **use)
        y = _hide_slopes(y, X)
    else:
        level, variance, variances = _moments(values, outputs, X, likelihood.missing, **use)
    own = by_output and variances is not None and outputs > 1
    likelihood = usable(likelihood.from_outputs(variances) if own else likelihood.from_data(variance), X)
    likelihood.check_parameters()
    if known["noise"] is not None and not tagged:
        known["noise"] = likelihood.raise_noise(known["noise"])
    seen = None if values is not None else level_of_rows(likelihood, y, offset)
    level = level if seen is None else seen
    usual = ZeroMean() if values is None and seen is None else ConstantMean()
    mean_function = usual if parts["mean_function"] is None else tree.place_host_arrays(parts["mean_function"], X)
    given = {
        "kernel": kernel,
        "mean_function": mean_function.with_slopes() if tagged else mean_function,
        "priors": priors,
        "given": dict(parts) | ({"kernel": kernels} if isinstance(kernels, Kernel) else {}),
        "known": known,
        "options": {name: x for name, x in parts.items() if name not in ExactParts.__annotations__},
    }
    return Observed(X, y, offset, likelihood, outputs, level, variance, variances, **given)


def _known_of_rows(X: Array, outputs: int, likelihood: Likelihood, parts: Mapping[str, Any]) -> dict[str, Array | None]:
    """Check what is known of the rows, and return copies that are constants for automatic differentiation."""
    if parts["noise"] is not None:
        likelihood.check_takes_noise()
    found = known_of_rows(X, outputs, *(parts[name] for name in ("weights", "offset", "noise")))
    likelihood.check_offset(found["offset"])
    return {name: None if x is None else copy_array(*constant_data(x)) for name, x in found.items()}


def _rows_for_start(X: Array, y: Array, known: dict[str, Array | None]) -> tuple[Array, Array, Array | None]:
    """Return inputs, targets and offsets in memory: at most `MAX_ROWS` rows, repeated according to their weights."""
    parts = {"X": X, "y": y, "weights": known["weights"], "offset": known["offset"]}
    given = {name: x for name, x in parts.items() if x is not None}
    found = dict(zip(given, subsample(*given.values()), strict=True))
    weights = found.pop("weights", None)
    if weights is not None and (index := repetitions(to_numpy(weights))) is not None:
        found = {name: backend_of(x).gather(x, index) for name, x in found.items()}
    return found["X"], found["y"], found.get("offset")


def exact_parts(data: Observed) -> dict[str, Any]:
    """Return the kernel, likelihood, mean function and priors of a model without inducing variables.

    Lengthscales start at the values that maximise the likelihood of a sample of the data (`starting_kernel`). The mean
    function, by default a constant, starts at the mean of the observations. The variance of the kernel starts at the
    variance of the observations, or at 1 if they are constant. The noise variance starts at a tenth of that variance.
    """
    X, variance = data.X, data.variance
    begun: Kernel = starting_kernel(data.kernel, X, data.y, data.likelihood, offset=data.offset)
    kernel = usable(begun.from_data(X, variance), X)
    mean_function = usable(data.mean_function.from_data(X, data.level, variance**0.5), X)
    kernel.check(X.shape[1])
    mean_function.check(X.shape[1], data.outputs)
    found = {"kernel": kernel, "likelihood": data.likelihood, "mean_function": mean_function}
    return found | {"priors": data.priors}


def sparse_kernel(data: Observed, kernel: Kernel | None, outputs: slice = slice(None)) -> Any:
    """Return the kernel for some outputs of a sparse model, with starting values for its lengthscales."""
    settings = {"offset": data.offset, "inducing": data.options["inducing"], "columns": outputs}
    return starting_kernel(kernel, data.X, data.y, data.likelihood, **settings)


def sparse_parts(data: Observed) -> dict[str, Any]:
    """Return the fields of `exact_parts`, the inducing variables and the jitter of a sparse model."""
    kernel = sparse_kernel(data, data.kernel)
    prior = initialise_prior(data.X, kernel, data.mean_function, data.level, data.variance, **data.options)
    return prior | {"likelihood": data.likelihood, "priors": data.priors}


def sparse_process(data: Observed, **options: Any) -> Sparse:
    """Build a process for the inputs and all outputs. `options` are further arguments of `Sparse.from_data`."""
    targets = {"outputs": data.outputs, "level": data.level, "variance": data.variance}
    return Sparse.from_data(data.X, mean_function=data.mean_function, **targets, **options)


def held_data(X: Array, y: Array, data: Observed) -> dict[str, Any]:
    """Copy valid inputs [N, D] and targets [N] or [N, K] for a model, with what is known of the rows.

    Dask arrays are not copied.
    """
    X, y = constant_data(X, as_columns(y))
    return {"X": copy_array(X), "y": copy_array(y), **data.known}


def held_in_memory(model_class: type, X: Array, y: Array, data: Observed) -> dict[str, Any]:
    """Copy the data as `held_data` does. Raise ValueError if an array is a dask array."""
    refuse_lazy_rows(model_class, X, y)
    return held_data(X, y, data)


def refuse_lazy_rows(model_class: type, *arrays: Array) -> None:
    """Raise ValueError if an array is a dask array, because the model requires all rows in memory."""
    for x in arrays:
        if backend_of(x).is_lazy:
            raise ValueError(
                f"{model_class.__name__} needs all rows in memory at once, but they are in a {backend_of(x).name} "
                "array; compute it, or as many random rows as fit in memory, or use SGPR, SOLVEGPR, SVGP, or CaGP with "
                "support=."
            )


def subsample(*arrays: Array) -> tuple[Array, ...]:
    """Load rows of arrays [N, ...] for starting values: a random sample if N exceeds `MAX_ROWS`, otherwise all rows."""
    N, sample = arrays[0].shape[0], None
    if N > MAX_ROWS:
        sample = generator(0, 12).choice(N, MAX_ROWS, replace=False, shuffle=False)
        sample.sort()
    return tuple(backend_of(x).gather(x, sample) for x in arrays)


def _moments(
    values: Array | None, outputs: int, X: Array, missing: bool, *, is_used: bool
) -> tuple[Array, float, Array | None]:
    """Return the means [P], the average variance, and the variances [P] of observations [N, P].

    If `missing` is True, NaN entries are ignored. `is_used` says whether starting values depend on the variance; a
    variance that underflows then raises ValueError, and is otherwise 1.
    """
    xp = backend_of(X).xp
    if values is None:
        return xp.zeros((outputs,), **like(X)), 1.0, None
    if missing:
        level, variances, largest = _moments_of_observed(values)
    else:
        level, variances = xp.mean(values, axis=0), xp.var(values, axis=0)
        largest = xp.max(xp.abs(values), axis=0)
    variance = float(xp.mean(variances))
    limits = xp.finfo(values.dtype)
    rounding = 10.0 * float(limits.eps) * largest
    if not math.isfinite(variance):
        most, other = float(xp.max(largest)), "" if values.dtype == xp.float64 else ", or use float64"
        raise ValueError(
            f"y has values up to {most:g}, so its variance exceeds the maximum of {values.dtype}; remove wrong "
            f"values, or divide y by a constant{other}."
        )
    if is_used and variance < NEAR_UNDERFLOW * float(limits.smallest_normal):
        low, high = (float(f(xp.where(xp.isnan(values), level, values) - level)) for f in (xp.min, xp.max))
        if high - low > float(xp.max(rounding)):
            raise ValueError(
                f"y varies by only {high - low:.3g}, so its variance is below the smallest number of {values.dtype}; "
                "multiply y by a constant."
            )
    known = variances > rounding * rounding
    some = variance > float(xp.max(rounding)) ** 2
    return level, variance if some else 1.0, xp.where(known, variances, xp.ones_like(variances))


def _each_kernel(kernels: Any) -> list[Kernel]:
    """Return the kernels in a list, or the only one."""
    several = kernels if isinstance(kernels, (list, tuple)) else [kernels]
    return [kernel for kernel in several if isinstance(kernel, Kernel)]


def _read_tags(kernels: Any) -> bool:
    """Whether a kernel, or one of several, reads tags of rows."""
    return any(kernel.reads_tags for kernel in _each_kernel(kernels))


def _check_codes(kernels: Any, X: Array) -> None:
    """Raise ValueError unless the columns that kernels read as codes of levels contain whole numbers.

    If a kernel has entries for a number of levels, there must be no larger codes.
    """
    width, xp = X.shape[1], backend_of(X).xp
    several = [kernel for kernel in _each_kernel(kernels) if not kernel.reads_tags]
    columns = {d for kernel in several for d in kernel.category_levels(width)}
    for column in sorted(d for d in columns if 0 <= d < width):
        cells = X[:, column]
        wrong = ~are_whole(cells)
        if bool(xp.any(wrong)):
            raise ValueError(
                f"column {column} of X contains {float(cells[wrong][0]):.9g}, but the kernel reads its numbers as "
                "codes of levels, which are whole numbers; do not scale this column, or use another kernel for it."
            )
    for entry in (entry for kernel in several for entry in entries_of_levels(kernel, width)):
        largest = float(xp.max(xp.round(X[:, entry.column]))) if X.shape[0] else -1.0
        if largest >= entry.levels and not entry.may_exceed:
            raise ValueError(
                f"column {entry.column} of X contains the code {largest:.9g}, but {entry.name} has entries for "
                f"{count_of(entry.levels, 'level')}, whose codes are 0 to {entry.levels - 1}; correct the column, or "
                "give the kernel an entry for each level."
            )


def _hide_slopes(y: Array, X: Array) -> Array:
    """Return the targets [N, K] of rows with tags, with NaN for slopes."""
    xp = backend_of(y).xp
    return xp.where(TaggedRows.of(X).is_value[:, None] == 1.0, y, xp.full_like(y, math.nan))


def _moments_of_values(
    values: Array | None, outputs: int, X: Array, *, is_used: bool
) -> tuple[Array, float, Array | None]:
    """Return the moments of observations [N, P] of rows with tags, from the values among them.

    If there are fewer than two values, the variance is that of the changes over the spread of the columns, which follow
    from the slopes.
    """
    if values is None:
        return _moments(values, outputs, X, False, is_used=is_used)
    xp, rows, known = backend_of(X).xp, TaggedRows.of(X), _hide_slopes(values, X)
    if int(xp.sum(rows.is_value)) > 1:
        return _moments(known, outputs, X, True, is_used=is_used)
    at_value = rows.is_value[:, None] == 1.0
    changes = values * (rows.V @ column_spreads(rows.X))[:, None]
    seen = xp.where(at_value, xp.full_like(values, math.nan), changes)
    _, variance, variances = _moments(xp.concat([seen, -seen]), outputs, X, True, is_used=is_used)
    return xp.sum(xp.where(at_value, values, xp.zeros_like(values)), axis=0), variance, variances


def _moments_of_observed(values: Array) -> tuple[Array, Array, Array]:
    """Return the means [P], variances and largest magnitudes of the values [N, P] that are not NaN.

    Raises ValueError if all values of a column are NaN.
    """
    xp = backend_of(values).xp
    absent, zero = xp.isnan(values), xp.zeros_like(values)
    count = xp.sum(xp.astype(~absent, values.dtype), axis=0)
    if not bool(xp.all(count > 0.0)):
        column = int(xp.argmin(count))
        raise ValueError(f"all targets in y[:, {column}] are NaN; remove this column.")
    known = xp.where(absent, zero, values)
    level = xp.sum(known, axis=0) / count
    deviation = xp.where(absent, zero, values - level)
    variance = xp.sum(deviation * deviation, axis=0) / count
    return level, variance, xp.max(xp.abs(known), axis=0)


def valid_data(X: Array, y: Array, *, missing: bool = False) -> tuple[Array, Array]:
    """Check the data X [N, D] and y [N] or [N, K]; return X and y [N, K] as constants for automatic differentiation.

    If `missing` is True, targets may be NaN.
    """
    X, y = constant_data(X, check_data(X, y, missing=missing))
    return X, y


def warn_of_moved(parts: Mapping[str, Any], priors: Priors, X: Array, /) -> None:
    """Warn of values of a given kernel, likelihood or mean function that are outside their limits, and thus move."""
    for path in ("kernel", "likelihood", "mean_function") if priors else ():
        part = parts.get(path)
        for said in [] if part is None else values_outside(tree.place_leaves(part, X), path, priors):
            warnings.warn(f"{said}, so it is moved; change the value or the limit.", stacklevel=outside())


@contextmanager
def ignore_moved(part: str = "") -> Iterator[None]:
    """Do not warn of values that are moved, for a part with computed values, or for all."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=rf"{part}\S* is given as .* limits it to", category=UserWarning)
        yield


def initialise_model(model: T, data: Observed, /) -> T:
    """Check the priors of a new model, and return it within their limits, with leaves that autodiff does not trace.

    Values that were given, and move, are named in a warning.
    """
    check_priors(model)
    check_fixed(model)
    warn_of_moved(data.given, data.priors, data.X)
    return restrict(tree.equalise(detach(model)))


def observations_of_rows(likelihood: Any, y: Array, offset: Array | None, /) -> Array | None:
    """Return `Likelihood.observations`, minus the offset."""
    values = likelihood.observations(y)
    return values if values is None or offset is None else values - offset


def level_of_rows(likelihood: Any, y: Array, offset: Array | None, /) -> Array | None:
    """Return `Likelihood.level`, minus the average offset; rates are averaged if the link is logarithmic."""
    level = likelihood.level(y)
    if level is None or offset is None:
        return level
    xp = backend_of(offset).xp
    if not likelihood.log_link:
        return level - xp.mean(offset, axis=0)
    largest = xp.max(offset, axis=0)
    return level - largest - xp.log(xp.mean(xp.exp(offset - largest), axis=0))
