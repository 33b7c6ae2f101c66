"""Initial values computed from data on the host: lengthscales, periods, directions, mixing weights, repeated rows.

Several candidates for the lengthscales and the periods are compared by their log evidence on a sample of the rows.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from agp import tree
from agp.backend import Array, asarray_like, to_numpy
from agp.checks import usable
from agp.inducing import Inducing, Points
from agp.kernels import RBF, Kernel, place_columns
from agp.likelihoods import Likelihood
from agp.random import generator

Numbers = npt.NDArray[np.float64]

ROWS, LEAST_ROWS = 256, 8
"""Maximum and minimum number of rows in the sample."""
FACTORS = (1.0, 0.3, 3.0)
"""Factors for the lengthscales from `Kernel.from_data`; the results are compared."""
NOISE = (0.01, 0.1, 0.5, 2.0)
"""Noise variances that are compared, relative to the variance of the function."""
MAX_BINS = 6
"""Maximum number of bins of rows from which the relevance of a column is computed."""
MIN_RELEVANCE = 1e-3
"""Minimum relevance of a column. Its lengthscale is then about thirty times that of the most relevant column."""
GAIN = 1e-6
"""Minimum gain in evidence, in nats per row, for a later candidate to be chosen; larger than rounding errors."""
PERIOD_ROWS, CYCLES, OVERSAMPLING = 1024, 4096, 5
"""The maximum number of rows of a periodogram, the maximum number of cycles in the range of a column, and the number of
frequencies for each cycle."""
PEAKS, PERIODS, BEHIND = 3, 2, 10.0
"""The number of peaks of a periodogram whose periods are compared by their evidence, the number of periods that are
kept, and the number of nats by which their evidence may be less than the best. The double of the first period is also
compared, because its overtone may be the largest peak."""
LEAST_VALUES, ENTRIES = 8, 2**21
"""The minimum number of different values of a column, and the maximum number of entries of arrays, in a periodogram."""
MIN_VARIANCE = 1e-2
"""Minimum variance of a principal direction that initialises a latent function. It could not be trained from zero."""
MAX_REPEATED_ROWS = 20_000
"""Maximum number of rows after repetition by weight, unless the data have more rows."""


def starting_kernel(
    kernel: Kernel | None,
    X: Array,
    y: Array,
    likelihood: Likelihood,
    /,
    *,
    offset: Array | None = None,
    inducing: Any = None,
    columns: slice = slice(None),
) -> Any:
    """Return the kernel (`RBF` by default) with values for missing lengthscales and periods.

    X [N, D] and y [N, K] are in memory. Candidates for periods are those of peaks of a periodogram of each column.
    Candidates for lengthscales are multiples of the lengthscales of `Kernel.from_data`: the same multiple for all
    columns, or larger ones for columns that predict little by themselves. The chosen candidate is the one with the
    highest log evidence of an exact GP on at most 256 rows, at the best variance and the best ratio of Gaussian noise
    to variance for each candidate. The comparison runs on the host in float64, so that all libraries start at the same
    values. Labels and counts are replaced by `Likelihood.proxies`, minus the `offset`. `columns` are the outputs to
    use. For `inducing` variables other than points, the kernel is returned unchanged.
    """
    kernel = None if kernel is None else tree.place_host_arrays(kernel, X)
    if isinstance(inducing, Inducing) and not isinstance(inducing, Points):
        return kernel
    best, chosen = -np.inf, RBF() if kernel is None else kernel
    for evidence, start in starting_kernels(chosen, X, y, likelihood, offset=offset, columns=columns):
        if evidence > best + GAIN:
            best, chosen = evidence, start
    return chosen


def starting_kernels(
    kernel: Kernel,
    X: Array,
    y: Array,
    likelihood: Likelihood,
    /,
    *,
    offset: Array | None = None,
    columns: slice = slice(None),
    among: Callable[[], Array] | None = None,
) -> list[tuple[float, Kernel]]:
    """Return pairs of a log evidence, in nats per row, and a kernel, for `starting_kernel` to compare.

    The list is empty if no lengthscale or period is missing. If a column is constant in the sample, its lengthscale is
    computed from its spread in X, or in the rows [., D] that `among` returns.
    """
    missing = _missing(kernel)
    if not missing:
        return []
    usable(kernel.from_data(X, 1.0), X).check(X.shape[1])  # raises any errors before the comparison
    proxies = proxies_of_rows(likelihood, y, offset)
    sample, targets = _sample(X, proxies, columns)
    if len(targets) < LEAST_ROWS:
        return []
    given = tree.place_leaves(kernel, X)
    # parts that users define might not run on NumPy
    ours = all(type(node).__module__.startswith("agp.") for node in tree.nodes(kernel, object).values())
    tried, inputs = (tree.to_backend(given, "numpy", dtype="float64"), sample) if ours else (given, X)
    starts = []
    codes = _fixed_columns(tried, X.shape[1])
    varied = asarray_like(perturb_constants(sample, (lambda: X) if among is None else among, codes), inputs)
    rows = asarray_like(sample, inputs)
    periods = _periods(tried, missing, lambda: _sample(X, proxies, columns, PERIOD_ROWS), rows, targets)
    for start, new in _starts(tried, missing, varied, _shapes(sample, targets, codes), periods):
        values = {name: asarray_like(to_numpy(x), X) for name, x in new.items()}
        evidence = _log_evidence(to_numpy(start(rows)[0]), targets)
        starts.append((evidence / len(sample), tree.with_leaves(kernel, values)))
    return starts


def _missing(kernel: Kernel) -> list[str]:
    """Return the names of missing lengthscales and periods."""
    return [name for name in tree.missing(kernel) if name.endswith(("lengthscale", "period"))]


def _fixed_columns(kernel: Kernel, width: int) -> list[int]:
    """Return the columns that are not scaled for starting values: codes of levels, longitudes and latitudes."""
    return [*kernel.category_levels(width), *place_columns(kernel, width)]


def _sample(X: Array, targets: Array, columns: slice, most: int = ROWS) -> tuple[Numbers, Numbers]:
    """Choose rows [n, D] and their standardised targets [n, Q], without rows with missing targets."""
    values = to_numpy(targets).astype(np.float64)[:, columns]
    rows = np.flatnonzero(np.isfinite(values).all(axis=1))
    rows = rows[generator(0, 15).permutation(len(rows))[:most]]
    sample, values = to_numpy(X)[rows].astype(np.float64), values[rows]
    values = values - values.mean(axis=0) if len(rows) else values
    spread = values.std(axis=0) if len(rows) else values
    some = spread > 1e-12 * np.abs(values).max(axis=0, initial=0.0)
    return sample, (values[:, some] / spread[some] if some.any() else values[:0])


def perturb_constants(sample: Numbers, among: Callable[[], Array], codes: Sequence[int] = ()) -> Numbers:
    """Shift constant columns of a sample [n, D] alternately down and up by their spread over all rows.

    Columns with the numbers `codes`, such as those with codes of levels, are not changed.
    """
    constant = sample.max(axis=0) == sample.min(axis=0)
    constant[[*codes]] = False
    if not constant.any():
        return sample
    rows = to_numpy(among()).astype(np.float64)
    with np.errstate(over="ignore"):  # such values are refused later
        spread = np.where(constant & (rows.max(axis=0) > rows.min(axis=0)), rows.std(axis=0), 0.0)
    return sample + np.where(np.arange(len(sample)) % 2, 1.0, -1.0)[:, None] * spread


def _relevance(X: npt.NDArray[Any], y: npt.NDArray[Any], /) -> npt.NDArray[np.float64]:
    """Return how much of the variance of y [N, Q] each column of X explains [D], divided by the largest such share.

    For each column, the rows are sorted by its values and split into bins of equal counts. The share is the variance
    between the bin averages, corrected for chance, at least zero, and averaged over the targets. If no column explains
    any variance, all entries are one.
    """
    N, bins = len(y), max(2, min(MAX_BINS, len(y) // 4))
    deviation = y - y.mean(axis=0)
    starts = np.linspace(0, N, bins + 1).astype(int)[:-1]
    counts = np.diff([*starts, N])[:, None, None]
    order = np.argsort(X, axis=0, kind="stable")  # [N, D]
    sums = np.add.reduceat(deviation[order], starts, axis=0)  # [bins, D, Q]
    total = np.sum(deviation**2, axis=0)
    share = np.sum(sums**2 / counts, axis=0) / np.where(total > 0.0, total, 1.0)
    told = np.maximum(1.0 - (1.0 - share) * (N - 1) / (N - bins), 0.0).mean(axis=1)
    return told / told.max() if told.max() > 0.0 else np.ones_like(told)


def spread_starts(kernel: Kernel, X: Array, y: Array, /, *, power: float | None = None) -> list[Kernel]:
    """Return the kernel with each of several values for its missing lengthscales and periods.

    If nothing is missing, the only start is the kernel itself. With `power`, all
    starts depend on how much the columns predict: lengthscales are proportional to relevance^(-power / 2).
    """
    missing = _missing(kernel)
    sample, targets = _sample(X, y, slice(None))
    periods = _periods(kernel, missing, lambda: _sample(X, y, slice(None), PERIOD_ROWS), sample, targets)
    codes = _fixed_columns(kernel, X.shape[1])
    host = to_numpy(X), to_numpy(y)
    shapes = _shapes(*host, codes) if power is None else _shapes(*host, codes, power)[1:]
    found = [start for start, _ in _starts(kernel, missing, X, shapes, periods)]
    return found or [usable(kernel.from_data(X, 1.0), X)]


def _shapes(X: Numbers, y: Numbers, codes: Sequence[int], power: float = 1.0) -> list[Numbers]:
    """Return ratios [D] of lengthscales to their usual values: ones, and ratios by the relevance of several columns.

    The ratios of columns with codes of levels, which have no order, are one.
    """
    D = X.shape[1]
    numbers, ratios = np.setdiff1d(np.arange(D), [*codes]), np.ones(D)
    if numbers.size:
        share = np.maximum(_relevance(X[:, numbers], y), MIN_RELEVANCE) ** power
        ratios[numbers] = np.sqrt(share.mean() / share)  # keeps average distances
    return [np.ones(D), ratios][:D]


def _starts(
    kernel: Kernel, missing: list[str], X: Array, shapes: list[Numbers], periods: list[dict[str, Array]]
) -> Iterator[tuple[Kernel, dict[str, Array]]]:
    """Yield kernels with their lengthscales and periods in units of the inputs. The values of `from_data` come first.

    Only lengthscales that have units of the inputs vary.
    """
    base = usable(kernel.from_data(X, 1.0), X)
    names = [name for name in missing if name.endswith("lengthscale") and f"{name}_unit" in tree.leaves(base)]
    for period in periods:
        if not names and period:
            yield tree.with_leaves(base, period), period
        for shape in shapes if names else ():
            leaves = tree.leaves(kernel.from_data(X * asarray_like(shape, X), 1.0))
            for factor in FACTORS:
                new = {name: factor * leaves[name] for name in names} | period
                yield tree.with_leaves(base, new), new


# -- periods ----------------------------------------------------------------------------------------------------------


def _periods(
    kernel: Kernel,
    missing: list[str],
    more: Callable[[], tuple[Numbers, Numbers]],
    sample: Array,
    targets: Numbers,
) -> list[dict[str, Array]]:
    """Return values of the missing periods by name, those with the most evidence first; [{}] if none is missing.

    The first of several periods in a kernel has the period of one peak, the second that of the next peak, and so on.
    The evidence is that of the sample [n, D]; the periodogram is that of `more` rows.
    """
    names = [name for name in missing if name.endswith("period")]
    if not names or len(targets) < LEAST_ROWS:
        return [{}]
    X, y = more()
    by_column = np.stack([_peak_periods(x, y) for x in X.T], axis=1)
    # `from_data` sets a period to twice the spread of its column, so two rows tell which columns a period belongs to
    by_column[:, place_columns(kernel, X.shape[1])] = 1.0
    ends = [asarray_like(0.5 * np.stack([-one, one]), sample) for one in by_column]
    leaves = [tree.leaves(kernel.from_data(x, 1.0)) for x in ends]
    base, count = usable(kernel.from_data(sample, 1.0), sample), len(leaves)
    found = []
    for first in range(count):
        new = {name: leaves[(first + i) % count][name] for i, name in enumerate(names)}
        found.append((_log_evidence(to_numpy(tree.with_leaves(base, new)(sample)[0]), targets), new))
    found.sort(key=lambda one: -one[0])
    return [new for evidence, new in found[:PERIODS] if evidence >= found[0][0] - BEHIND]


def _peak_periods(x: Numbers, y: Numbers) -> Numbers:
    """Return the periods of the largest peaks of a periodogram of y [n, Q] at x [n], and the double of the first.

    If x has few different values, or there are few peaks, other periods are twice the spread of x.
    """
    values, found = np.unique(x), []
    span = float(values[-1] - values[0])
    if len(values) >= LEAST_VALUES:
        most = min(CYCLES, 0.5 * len(values))
        frequencies = np.arange(0.5, most, 1.0 / OVERSAMPLING) / span
        power = periodogram(x, y, frequencies)
        inner = power[1:-1]
        peaks = 1 + np.flatnonzero((inner >= power[:-2]) & (inner > power[2:]))
        found = [1.0 / frequencies[at] for at in peaks[np.argsort(-power[peaks], kind="stable")][:PEAKS]]
        found += [2.0 * found[0]] if found else []
    usual = 2.0 * float(np.std(x)) or 1.0
    return np.asarray(found + [usual] * (PEAKS + 1 - len(found)))


def periodogram(x: Numbers, y: Numbers, frequencies: Numbers) -> Numbers:
    """Return the share of the variance of y [n, Q] around its linear trend in x [n] that each frequency explains [F].

    This is the Lomb-Scargle periodogram with a level that is fitted at each frequency: the least-squares fit of 1,
    cos(2 pi f x) and sin(2 pi f x).

    Source: Zechmeister & Kuerster, "The generalised Lomb-Scargle periodogram", Astronomy & Astrophysics 2009.
    """
    x = x - np.mean(x)
    y = y - np.mean(y, axis=0)
    y = y - np.outer(x, x @ y / (x @ x))
    total = np.maximum(np.sum(y * y, axis=0), np.finfo(np.float64).tiny)
    power, size = np.empty(len(frequencies)), max(1, ENTRIES // len(x))
    for start in range(0, len(frequencies), size):
        angles = 2.0 * np.pi * np.outer(frequencies[start : start + size], x)
        waves = np.stack([np.cos(angles), np.sin(angles)], axis=1)  # [f, 2, n]
        waves -= np.mean(waves, axis=2, keepdims=True)
        gram, products = waves @ waves.mT, waves @ y
        gram += 1e-9 * len(x) * np.eye(2)
        explained = np.sum(products * np.linalg.solve(gram, products), axis=1)
        power[start : start + size] = np.mean(explained / total, axis=1)
    return power


def _log_evidence(K: npt.NDArray[Any], targets: Numbers) -> float:
    """Compute log N(y; 0, v (K + g I)), summed over targets [n, Q], at the best v per target and the best common g.

    Return minus infinity if K is zero or not finite.
    """
    K = K.astype(np.float64)
    size = np.mean(np.diagonal(K))
    if not np.isfinite(K).all() or size <= 0.0:
        return -np.inf
    eigenvalues, vectors = np.linalg.eigh(K / size)
    squares = (vectors.T @ targets) ** 2
    n, Q = targets.shape

    def at(noise: float) -> float:
        total = np.maximum(eigenvalues, 0.0) + noise
        variances = np.mean(squares / total[:, None], axis=0)
        return float(-0.5 * (n * np.sum(np.log(variances)) + Q * np.sum(np.log(total))))

    return max(map(at, NOISE))


# -- directions and weights --------------------------------------------------------------------------------------------


def principal_directions(x: npt.NDArray[Any], count: int) -> npt.NDArray[np.float64]:
    """Return the leading eigenvectors [D, count] of x^T x, for x [N, D]. The largest entry per column is positive."""
    x = np.asarray(x, dtype=np.float64)
    return _fix_signs(np.linalg.eigh(x.T @ x)[1][:, ::-1][:, :count])


def correlation_root(y: npt.NDArray[Any], count: int) -> npt.NDArray[np.float64]:
    """Return R [P, count] with R R^T close to the correlations between columns of y [N, P], which may have NaN entries.

    If count is P, R is the symmetric root, so that uncorrelated columns stay separate. Otherwise the columns of R are
    the leading principal directions, scaled by their standard deviations. Each correlation is computed from the rows in
    which both columns are known.
    """
    y = np.asarray(y, dtype=np.float64)
    observed = ~np.isnan(y)
    y = y - np.nanmean(y, axis=0)
    spread = np.nanstd(y, axis=0)
    z = np.where(observed, y / np.where(spread > 0.0, spread, 1.0), 0.0)
    both = observed.T.astype(np.float64) @ observed
    values, vectors = np.linalg.eigh(z.T @ z / np.maximum(both, 1.0))
    lengths = np.sqrt(np.maximum(values, MIN_VARIANCE))
    if count == y.shape[1]:
        return (vectors * lengths) @ vectors.T
    return _fix_signs((vectors * lengths)[:, ::-1][:, :count])


def _fix_signs(vectors: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Make the largest entry of each eigenvector positive, because an eigenvector's sign depends on rounding."""
    return vectors * np.sign(np.take_along_axis(vectors, np.argmax(np.abs(vectors), axis=0)[None, :], axis=0))


def repetitions(weights: npt.NDArray[Any]) -> npt.NDArray[np.int64] | None:
    """Return row indices, repeated in proportion to the weights [N]; None if all weights are zero.

    If the weights are whole numbers whose sum is between N and `MAX_REPEATED_ROWS`, they are the numbers of
    repetitions. Otherwise, the running sum of the weights is scaled and rounded, so that the result has at least N
    rows.
    """
    ends = np.cumsum(weights.astype(np.float64))
    N, total = len(ends), ends[-1]
    if not total > 0.0:
        return None
    rows = max(N, min(total, MAX_REPEATED_ROWS))
    return np.repeat(np.arange(N), np.diff(np.floor(ends * (rows / total) + 0.5), prepend=0.0).astype(np.int64))


def proxies_of_rows(likelihood: Any, y: Array, offset: Array | None, /) -> Array:
    """Return `Likelihood.proxies`, minus the offset."""
    proxies = likelihood.proxies(y)
    return proxies if offset is None or proxies.shape[1] % offset.shape[1] else proxies - offset
