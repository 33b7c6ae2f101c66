"""What a staged fit is given: rows, samples of them, held-out rows, and the arguments that describe the model."""

import math
import re
import zlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from agp import tree
from agp.backend import Array, backend_of, to_numpy
from agp.checks import check_instance, check_several, check_whole
from agp.errors import count_of
from agp.kernels import (
    RBF,
    ActiveDims,
    Kernel,
    Linear,
    Matern32,
    Matern52,
    Product,
    Projected,
    Seasonal,
    Sum,
    Warped,
    kernel_text,
)
from agp.likelihoods import Bernoulli, Gaussian, Likelihood, Softmax
from agp.means import ConstantMean, Mean
from agp.priors import LogNormal, Priors, Relative, as_priors
from agp.random import generator
from agp.starts import repetitions
from agp.training import strip_addresses

HELD_OUT = 2000
"""The maximum number of held-out rows."""
KERNELS: dict[str, type[RBF | Matern52 | Matern32]] = {"rbf": RBF, "matern52": Matern52, "matern32": Matern32}
"""The kernels that "auto" compares, in addition to the sum of the best of them and a linear kernel."""
ROUGHEST = ("matern32", "matern52", "rbf")
"""These kernels in the order in which they are preferred if their densities are alike."""
ROWS_PER_COLUMN = 5
"""Lengthscales have a prior if there are fewer observations per column than this."""
LENGTHSCALE = Relative(LogNormal(2.66, 3.0**0.5))
"""The prior for lengthscales, in units of the column's spread times the square root of the number of columns.

Its mode is 0.7, and 95 % of its mass lies between 0.5 and 430. In the source, inputs fill an interval of length 1,
whose spread is 0.29.

Source: Hvarfner, Hellsten & Nardi, "Vanilla Bayesian optimization performs great in high dimensions", ICML 2024.
"""


# -- rows --------------------------------------------------------------------------------------------------------------


def average(x: Array, weights: Array | None) -> Array:
    """Return the average of x [N] over the rows, weighted if weights [N] are given."""
    xp = backend_of(x).xp
    return xp.mean(x) if weights is None else xp.sum(weights * x) / xp.sum(weights)


def finite_average(x: Array, weights: Array | None) -> float:
    """Return `average`, or -inf if it is not finite."""
    found = float(average(x, weights))
    return found if math.isfinite(found) else -math.inf


class Data(NamedTuple):
    """Rows with inputs [N, D] and targets [N, P]."""

    X: Any
    """None if only the targets are needed."""
    y: Array
    weights: Array | None = None
    """The number of observations [N] that each row represents; None means one."""
    noise: Array | None = None
    """Known noise variances [N]; None means 0."""

    @property
    def observations(self) -> float:
        """The number of observations."""
        return self.y.shape[0] if self.weights is None else float(backend_of(self.weights).xp.sum(self.weights))

    @property
    def has_few_rows(self) -> bool:
        """Whether there are fewer than five observations per column."""
        return self.observations < ROWS_PER_COLUMN * self.X.shape[1]

    def targets_on_host(self) -> tuple[Any, Any]:
        """Return the targets and the weights on the host, in float64."""
        y, weights = (
            None if x is None else to_numpy(backend_of(x).gather(x)).astype(np.float64) for x in (self.y, self.weights)
        )
        return y, weights

    def moments(self) -> tuple[Any, Any]:
        """Return the means and the variances [P] of the targets, on the host."""
        y, weights = self.targets_on_host()
        mean = np.average(y, axis=0, weights=weights)
        return mean, np.average((y - mean) ** 2, axis=0, weights=weights)

    def repeat_rows(self) -> tuple[Array, Array]:
        """Return X and y with each row repeated according to its weight, for computing starting values."""
        index = None if self.weights is None else repetitions(to_numpy(self.weights))
        return (self.X, self.y) if index is None else tuple(backend_of(x).gather(x, index) for x in (self.X, self.y))

    def on_host(self) -> "Data":
        """Return the rows on the host, in float64."""
        return Data(*(None if x is None else to_numpy(x).astype(np.float64) for x in self))

    def at(self, index: Any = None, /) -> "Data":
        """Return the rows with these indices, or all rows, as arrays in memory."""
        return Data(*(None if x is None else backend_of(x).gather(x, index) for x in self))


class Rows(NamedTuple):
    """All rows, and the row numbers of the samples and of the held-out rows."""

    data: Data
    held: Any
    """The numbers of the held-out rows."""
    order: Any
    """The numbers of the other rows in random order; each sample consists of the first of them."""

    @property
    def total(self) -> int:
        """The number of rows N."""
        return self.data.X.shape[0]

    def first(self, count: int, /) -> Data:
        """Return the first rows of the sample, in memory. If `count` covers all rows, they keep their order."""
        return self.data.at() if count >= self.total and not len(self.held) else self.data.at(self.order[:count])

    def held_out(self) -> Data:
        return self.data.at(self.held)

    def targets_seen(self, count: int, /) -> Data:
        """Return the targets of the first rows and of the held-out rows."""
        return self.data._replace(X=None).at(np.concatenate([self.order[:count], self.held]))


def logistic_likelihood(likelihood: Any, y: Array) -> Likelihood:
    """Return the likelihood of labels y, by default one for as many classes as there are labels.

    Raise TypeError unless it is logistic.
    """
    if likelihood is None:
        last = int(backend_of(y).xp.max(y))
        return Bernoulli(link="logit") if last < 2 else Softmax(last + 1)
    check_instance("likelihood", likelihood, Likelihood)
    if not likelihood.is_logistic:
        raise TypeError(
            f"likelihood is {likelihood!r}, but must be Softmax, or Bernoulli with link='logit'; use agp.fit."
        )
    return likelihood


def subsample_rows(data: Data, most: int, seed: int, *, hold_out: bool, times: Any = None) -> Rows:
    """Draw a sample of at most `most` rows. If `hold_out` is true, also draw a tenth of all rows, but at most 2,000.

    If times [N] are given, the held-out rows are the last ones.
    """
    N = data.X.shape[0]
    if hold_out and N == 1:
        raise ValueError("X has one row, but two are needed, because one row is held out; pass method='gpr'.")
    held = min(HELD_OUT, max(1, N // 10)) if hold_out else 0
    if times is not None and held:
        order = np.argsort(times, kind="stable")
        rest = order[: N - held]
        return Rows(
            data, np.sort(order[N - held :]), generator(seed, 16).choice(rest, min(len(rest), most), replace=False)
        )
    index = generator(seed, 16).choice(N, min(N, held + most), replace=False)
    return Rows(data, np.sort(index[:held]), index[held:])


# -- arguments ---------------------------------------------------------------------------------------------------------


class Columns(NamedTuple):
    """The columns of the inputs."""

    width: int
    categories: tuple[int, ...] = ()
    """Those that contain codes of levels."""

    @property
    def numbers(self) -> list[int]:
        """The other columns."""
        return [d for d in range(self.width) if d not in self.categories]

    def mix(self, kernel: Kernel) -> Kernel:
        """Return a kernel of numbers as a kernel of all columns."""
        return kernel.with_categories(self.width, self.categories)

    def linear(self, X: Array) -> Kernel:
        """Return a linear kernel of the numbers, plus random effects of the categories."""
        return self.mix(Linear.centred(X))


def check_times(times: Iterable[int], X: Array) -> tuple[int, ...]:
    """Return the numbers of the columns of times. Raise TypeError or ValueError unless they are columns of X."""
    found = tuple(check_whole("times", column, least=0) for column in check_several("times", times, "[0]"))
    if found and max(found) >= X.shape[1]:
        width = count_of(X.shape[1], "column")
        raise ValueError(f"times contains {max(found)}, but X has {width}; count columns from 0.")
    return found


def check_categories(categories: Iterable[int], X: Array) -> tuple[int, ...]:
    """Return the columns in ascending order. Raise ValueError unless they are columns of X that contain codes."""
    given = check_several("categories", categories, "[0]")
    columns = sorted(check_whole("categories", column, least=0) for column in given)
    if not columns:
        return ()
    if columns[-1] >= X.shape[1] or len(set(columns)) < len(columns):
        raise ValueError(f"categories is {columns}, but must name different columns from 0 to {X.shape[1] - 1}.")
    B = backend_of(X)
    if B.is_lazy:
        raise ValueError("categories need rows in memory; encode them as columns of 0 and 1, or pass an array.")
    codes = to_numpy(B.gather(X))[:, columns]
    if (wrong := (codes != np.round(codes)) | (codes < -1)).any():
        row, place = np.argwhere(wrong)[0]
        raise ValueError(
            f"column {columns[place]} has {codes[row, place]:g} in row {row}, but codes of levels are whole numbers; "
            "number the levels from 0, and use -1 for an unknown level."
        )
    return tuple(columns)


class Plan(NamedTuple):
    """The arguments of `fit_regression` that describe the model."""

    kernel: Any
    likelihood: Gaussian
    mean_function: Any
    priors: Any
    memory: float | None
    tolerance: float
    columns: Columns
    transforms: tuple[str, ...] = ()
    """The names of the transforms of targets to compare."""
    times: tuple[int, ...] = ()
    """The columns that hold times in days."""
    limits: Priors = ()
    """Limits of parameters, and fixed parameters."""

    @property
    def is_plain(self) -> bool:
        """Whether a shift of the data changes nothing: with the usual kernels and means, and without priors by name."""
        plain = self.mean_function is None or isinstance(self.mean_function, ConstantMean)
        return plain and isinstance(self.kernel, str) and isinstance(self.priors, str)

    @property
    def nodes(self) -> list[Any]:
        """The kernel, the mean function and their parts, if they are given."""
        return nodes_of(self.kernel, self.mean_function)

    @property
    def foreign(self) -> list[str]:
        """The names of the classes among `nodes` that do not belong to agp."""
        return foreign_names(self.kernel, self.mean_function)

    def facts(self) -> dict[str, Any]:
        """Return the arguments as strings, by name. A fit resumes only if the checkpoint stores the same strings."""
        return {name: describe_part(part) for name, part in self._asdict().items()}

    def kernels(self) -> dict[str, Kernel]:
        """Return the kernels to compare, by name."""
        if isinstance(self.kernel, str):
            return {name: self.columns.mix(kind()) for name, kind in KERNELS.items()}
        return {kernel_text(self.kernel): self.kernel}

    def parts(self, kernel: Kernel, data: Data) -> dict[str, Any]:
        """Return the arguments of `GPR.from_data` other than the data and the kernel."""
        priors, names = self.priors, all_names(kernel)
        if isinstance(priors, str):
            some = data.has_few_rows and any(name.endswith("lengthscale") for name in names)
            priors = {"kernel.*lengthscale": LENGTHSCALE} if some else {}
        if isinstance(self.kernel, str):
            priors = dict(by_compared_kernel(as_priors(priors), kernel))
        return {
            "likelihood": self.likelihood,
            "mean_function": self.mean_function,
            "priors": self.add_limits(priors, kernel),
        }

    def add_limits(self, priors: Any, kernel: Kernel) -> Any:
        """Return priors with the limits of parameters; those of parameters that the kernel lacks are left out."""
        if not self.limits:
            return priors
        names = all_names(kernel)
        pairs = by_compared_kernel(self.limits, kernel) if isinstance(self.kernel, str) else self.limits
        whole = [(tree.whole_pattern(name), name, limit) for name, limit in pairs]
        kept = [
            (name, limit)
            for pattern, name, limit in whole
            if any(tree.matches(f"kernel.{one}", pattern) for one in names) or not pattern.startswith("kernel.")
        ]
        return (*as_priors(priors), *kept)


def by_compared_kernel(pairs: Priors, kernel: Kernel, /) -> Priors:
    """Return pairs of patterns and priors for a kernel that was built around one of `KERNELS`.

    ``kernel.lengthscale`` then names the lengthscales of all kernels of `KERNELS` in it, but not those of seasons.
    Other patterns of names in the compared kernel apply to the first part of a sum.
    """
    found = []
    for pattern, prior in pairs:
        name = re.fullmatch(r"kernel\.(\w+(?:\[.*\])?)", pattern)
        paths = _paths_of_compared(kernel, tree.whole_pattern(name[1])) if name else []
        patterns = [tree.join_path("kernel", path, name[1]) for path in paths] if name else []
        if not patterns:
            patterns = [
                re.sub(r"^kernel\.(?![*?])", "kernel.parts.0.", pattern) if isinstance(kernel, Sum) else pattern
            ]
        found += [(one, prior) for one in patterns]
    return tuple(found)


def _paths_of_compared(kernel: Kernel, name: str) -> list[str]:
    """Return the paths of the kernels of `KERNELS` that have a parameter, without those that are parts of seasons."""
    nodes = tree.nodes(kernel, Kernel)
    seasons = [
        path
        for path, node in nodes.items()
        if isinstance(node, Product) and any(isinstance(part, Seasonal) for part in node.parts)
    ]
    return [
        path
        for path, node in nodes.items()
        if type(node) in KERNELS.values()
        and name in all_names(node)
        and not any(path.startswith(f"{season}.") for season in seasons)
    ]


def nodes_of(*parts: Any) -> list[Any]:
    """Return the parts of models among the arguments, and their parts."""
    return [node for part in parts if tree.is_model(part) for node in tree.nodes(part, object).values()]


def foreign_names(*parts: Any) -> list[str]:
    """Return the names of the classes among `nodes_of` that do not belong to agp."""
    return [type(node).__name__ for node in nodes_of(*parts) if not type(node).__module__.startswith("agp.")]


def all_names(part: Any, /) -> tuple[str, ...]:
    """Return the names of the leaves of a part, including those that have no value."""
    return (*tree.missing(part), *tree.leaves(part))


def split_name(name: str) -> tuple[str, str]:
    """Split the name of a candidate, such as "matern52 + linear", into that of its base kernel and the rest."""
    base = re.match(r"\w*", name)
    assert base is not None  # the pattern also matches no letters
    return base[0], name[base.end() :]


def with_base(kernel: Any, kind: type[Kernel]) -> Any:
    """Return a kernel with another base kernel of the same parameters, the first such part of sums and products."""
    if isinstance(kernel, Sum | Product):
        parts = [*kernel.parts]
        for i, part in enumerate(kernel.parts):
            parts[i] = with_base(part, kind)
            if parts[i] is not part:
                break
        return type(kernel)(tuple(parts))
    if isinstance(kernel, ActiveDims):
        return replace(kernel, kernel=with_base(kernel.kernel, kind))
    if isinstance(kernel, Warped):
        return Warped(with_base(kernel.kernel, kind), kernel.centre, kernel.scale)
    if isinstance(kernel, Projected):
        return Projected(with_base(kernel.kernel, kind), kernel.weights)
    return kind(**tree.leaves(kernel)) if type(kernel) in KERNELS.values() else kernel


def base_name(kernel: Kernel) -> str:
    """Return the name of the base kernel, which `with_base` replaces, or of the whole kernel if there is none."""
    names: dict[type[Kernel], str] = {kind: name for name, kind in KERNELS.items()}
    found = [names[type(part)] for part in tree.nodes(kernel, Kernel).values() if type(part) in names]
    return found[0] if found else type(kernel).__name__.lower()


def describe_part(part: Any) -> str:
    """Return an argument as text that depends on every bit of its leaves."""
    text = strip_addresses(f"{part!r}")
    text = f"{text[:2000]} {zlib.crc32(text.encode()):08x}" if len(text) > 2000 else text
    return f"{text} {checksum_of(part)}" if isinstance(part, Kernel | Likelihood | Mean) else text


def checksum_of(part: Any) -> str:
    """Return a checksum of all leaves."""
    found = 0
    for x in tree.leaves(part).values():
        found = zlib.crc32(np.asarray(x if isinstance(x, int | float) else to_numpy(x)).tobytes(), found)
    return f"{found:08x}"
