"""Where lengthscales start: of several sizes and shapes, those under which a sample of the data is most probable."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from agp import tree
from agp.backend import Array, placed, to_numpy
from agp.checks import usable
from agp.host import generator, relevance
from agp.inducing import Inducing, Points
from agp.kernels import RBF, Kernel
from agp.likelihoods import Likelihood
from agp.tree import placed as with_arrays

Numbers = npt.NDArray[np.float64]

ROWS, LEAST_ROWS = 256, 8
"""How many rows are compared at the most, and at the least."""
FACTORS = (1.0, 0.3, 3.0)
"""Of the lengthscales of `Kernel.from_data`, at which rows are neither all alike nor all strangers."""
NOISE = (0.01, 0.1, 0.5, 2.0)
"""Noise variances that are compared, in shares of the variance of the function."""
LEAST_RELEVANCE = 1e-3
"""A column whose relevance is less has this one: its lengthscale is some thirty times that of the most relevant."""
GAIN = 1e-6
"""In nats per row: by how much a start must exceed those before it, which rounding shall not decide."""


def starting_kernel(
    kernel: Kernel | None,
    X: Array,
    y: Array,
    likelihood: Likelihood,
    /,
    *,
    inducing: Any = None,
    columns: slice = slice(None),
) -> Any:
    """The kernel (default: `RBF`) with values for lengthscales that are missing; all other leaves stay as they are.

    Compared are the log evidences of an exact GP with Gaussian noise on at most 256 rows, for several multiples of the
    lengthscales of `Kernel.from_data`, equally long in every column or longer in columns that tell little of the
    targets by themselves. Each has its best variance, and its best ratio of noise to it. The comparison runs on the
    host in float64, so that every library starts at the same values. Targets that do not observe the latent functions
    are taken for numbers.

    Parameters
    ----------
    kernel, likelihood
        Of the model.
    X, y
        Inputs [N, D] and targets [N, K] in memory.
    inducing
        As `SVGP.from_data`; kernels of other inducing variables than points do not see the inputs, and stay.
    columns
        The outputs that count; all by default.
    """
    if isinstance(inducing, Inducing) and not isinstance(inducing, Points):
        return kernel
    best, found = -np.inf, RBF() if kernel is None else kernel
    for evidence, start in starting_kernels(found, X, y, likelihood, columns=columns):
        if evidence > best + GAIN:
            best, found = evidence, start
    return found


def starting_kernels(
    kernel: Kernel,
    X: Array,
    y: Array,
    likelihood: Likelihood,
    /,
    *,
    columns: slice = slice(None),
    among: Callable[[], Array] | None = None,
) -> list[tuple[float, Kernel]]:
    """What `starting_kernel` compares: log evidences in nats per row, and the kernels; none if nothing is missing.

    Columns that are constant in the sample are as long as their spread in X asks, or in the rows [., D] that `among`
    returns.
    """
    missing = [name for name in tree.missing(kernel) if name.endswith("lengthscale")]
    if not missing:
        return []
    usable(kernel.from_data(X, 1.0), X).check(X.shape[1])  # what is wrong with it is said before it is tried out
    sample, targets = _sample(X, likelihood.proxies(y), columns)
    if len(targets) < LEAST_ROWS:
        return []
    given = with_arrays(kernel, X)
    tried, inputs = (tree.to_backend(given, "numpy", dtype="float64"), sample) if _is_ours(kernel) else (given, X)
    found = []
    varied = placed(_varied(sample, (lambda: X) if among is None else among), inputs)
    for start, lengthscales in _starts(tried, missing, varied, relevance(sample, targets)):
        values = {name: placed(to_numpy(x), X) for name, x in lengthscales.items()}
        evidence = _log_evidence(to_numpy(start(placed(sample, inputs))[0]), targets)
        found.append((evidence / len(sample), tree.with_leaves(kernel, values)))
    return found


def _is_ours(kernel: Kernel) -> bool:
    """Whether all of it is this library's, which computes in NumPy as in any other; a user's may know one alone."""
    return all(type(node).__module__.startswith("agp.") for node in tree.nodes(kernel, object).values())


def _sample(X: Array, targets: Array, columns: slice) -> tuple[Numbers, Numbers]:
    """Some rows [n, D] and their targets [n, Q], standardised, without those of which a target is missing."""
    values = to_numpy(targets).astype(np.float64)[:, columns]
    rows = np.flatnonzero(np.isfinite(values).all(axis=1))
    rows = rows[generator(0, 15).permutation(len(rows))[:ROWS]]
    sample, values = to_numpy(X)[rows].astype(np.float64), values[rows]
    values = values - values.mean(axis=0) if len(rows) else values
    spread = values.std(axis=0) if len(rows) else values
    some = spread > 1e-12 * np.abs(values).max(axis=0, initial=0.0)
    return sample, (values[:, some] / spread[some] if some.any() else values[:0])


def _varied(sample: Numbers, among: Callable[[], Array]) -> Numbers:
    """The sample [n, D], of which columns that are constant go up and down by their spread in all the rows."""
    constant = sample.max(axis=0) == sample.min(axis=0)
    if not constant.any():
        return sample
    rows = to_numpy(among()).astype(np.float64)
    spread = np.where(constant & (rows.max(axis=0) > rows.min(axis=0)), rows.std(axis=0), 0.0)
    return sample + np.where(np.arange(len(sample)) % 2, 1.0, -1.0)[:, None] * spread


def _starts(kernel: Kernel, missing: list[str], X: Array, shares: Numbers) -> Iterator[tuple[Kernel, dict[str, Array]]]:
    """The kernel at each start, and its lengthscales in units of the inputs; first those of `Kernel.from_data`."""
    base = usable(kernel.from_data(X, 1.0), X)
    names = [name for name in missing if f"{name}_unit" in tree.leaves(base)]
    shapes = [np.ones(len(shares))]
    if len(shares) > 1:
        share = np.maximum(shares, LEAST_RELEVANCE)
        shapes.append(np.sqrt(share.mean() / share))  # rows stay as far from each other, on average
    for shape in shapes:
        leaves = tree.leaves(kernel.from_data(X * placed(shape, X), 1.0))
        for factor in FACTORS if names else ():
            lengthscales = {name: factor * leaves[name] for name in names}
            yield tree.with_leaves(base, lengthscales), lengthscales


def _log_evidence(K: npt.NDArray[Any], targets: Numbers) -> float:
    """log N(y; 0, v (K + g I)), summed over the targets [n, Q], at the best v of each and the best g of all.

    Minus infinity if K is not finite, or zero.
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
