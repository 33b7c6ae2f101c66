"""What a staged fit is given: rows, samples of them, held-out rows, and the arguments that describe the model."""

import math
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from agp import tree
from agp.backend import Array, backend_of, find_backend, to_numpy
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
    input_columns,
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
    def limits_lengthscales(self) -> bool:
        """Whether a limit may be one of lengthscales, which are then those of the columns as they are."""
        names = [f"kernel.{name}" for kernel in self.kernels().values() for name in all_names(kernel)]
        return any(_matching([name for name in names if name.endswith("lengthscale")], at) for at, _ in self.limits)

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
        priors = self.priors
        if isinstance(priors, str):
            some = data.has_few_rows and any(name.endswith("lengthscale") for name in all_names(kernel))
            priors = {"kernel.*lengthscale": LENGTHSCALE} if some else {}
        elif isinstance(self.kernel, str):
            priors = self._of_kernel(as_priors(priors), kernel)
        return {
            "likelihood": self.likelihood,
            "mean_function": self.mean_function,
            "priors": self.add_limits(priors, kernel),
        }

    def add_limits(self, priors: Any, kernel: Kernel) -> Any:
        """Return priors with the limits of parameters; those of parameters that the kernel lacks are left out."""
        return (*as_priors(priors), *self._of_kernel(self.limits, kernel)) if self.limits else priors

    def names_beside(self) -> tuple[str, ...]:
        """Return the names of the parameters of the likelihood and the mean function."""
        parts = [("likelihood", self.likelihood), ("mean_function", self.mean_function or ConstantMean())]
        return tuple(f"{path}.{name}" for path, part in parts for name in all_names(part))

    def _of_kernel(self, pairs: Priors, kernel: Kernel) -> Priors:
        """Return the pairs of patterns and priors for a kernel, without those of parameters that it lacks."""
        beside = self.names_beside()
        if isinstance(self.kernel, str):
            pairs = by_compared_kernel(pairs, kernel, self.columns, beside)
        names = [*(f"kernel.{name}" for name in all_names(kernel)), *beside]
        return tuple(pair for pair in pairs if _matching(names, pair[0]))


def by_compared_kernel(pairs: Priors, kernel: Kernel, columns: Columns, beside: Sequence[str] = ()) -> Priors:
    """Return pairs of patterns and priors for a kernel that was built around one of `KERNELS`.

    ``kernel.lengthscale`` then names the lengthscales of all kernels of `KERNELS` in it, but not those of seasons, and
    ``kernel.lengthscale[d]`` those of column d. Patterns of several names, such as ``kernel.*``, do not match the
    lengthscales of seasons either. Other patterns apply to the first part of a sum. `beside` are the names of the
    parameters of the likelihood and the mean function.
    """
    return tuple((one, prior) for pattern, prior in pairs for one in _own_patterns(pattern, kernel, columns, beside))


def _own_patterns(pattern: str, kernel: Kernel, columns: Columns, beside: Sequence[str]) -> list[str]:
    """Return the patterns for the parameters of a kernel that a pattern names; see `by_compared_kernel`."""
    compared, others = _split_names(kernel)
    whole = tree.whole_pattern(pattern)
    own = [(path, name) for path, name in compared if tree.matches(f"kernel.{name}", whole)]
    if not own:
        base = _path_of_sum(kernel)
        return [pattern if base is None else re.sub(r"^kernel\.(?![*?])", f"kernel.{base}parts.0.", pattern)]
    index = pattern[len(whole) :]
    names = [f"kernel.{tree.join_path(path, name)}" for path, name in own]
    if index:
        found = [_entry(kernel, path, name, pattern, columns) for path, name in own]
        names = [f"{name}{entry}" for name, entry in zip(names, found, strict=True) if entry is not None]
    elif not re.fullmatch(r"[*^]?kernel\.\w+", whole):
        seasonal = [name for name, in_season in others.items() if in_season and name.endswith("lengthscale")]
        if not _matching(seasonal, whole):
            return [pattern]
        names += _matching([name for name in others if name not in seasonal], whole) + _matching(beside, whole)
    known = [f"kernel.{name}" for name in all_names(kernel)]
    return [_anchor(name, known) for name in names]


def _split_names(kernel: Kernel) -> tuple[list[tuple[str, str]], dict[str, bool]]:
    """Return the paths and the parameters of the kernels of `KERNELS`, and whether others are those of seasons."""
    nodes = tree.nodes(kernel, Kernel)
    seasons = tuple(
        f"{path}."
        for path, node in nodes.items()
        if isinstance(node, Product) and any(isinstance(part, Seasonal) for part in node.parts)
    )
    compared = [
        (path, name)
        for path, node in nodes.items()
        if type(node) in KERNELS.values() and not (seasons and path.startswith(seasons))
        for name in all_names(node)
    ]
    own = {tree.join_path(path, name) for path, name in compared}
    others = {name: bool(seasons) and name.startswith(seasons) for name in all_names(kernel) if name not in own}
    return compared, {f"kernel.{name}": in_season for name, in_season in others.items()}


def _path_of_sum(kernel: Kernel) -> str | None:
    """Return the path of a sum, with a dot; it may act on some columns or on warped inputs; None if there is none."""
    path = ""
    while isinstance(kernel, ActiveDims | Warped):
        kernel, path = kernel.kernel, f"{path}kernel."
    return path if isinstance(kernel, Sum) else None


def _entry(kernel: Kernel, path: str, name: str, pattern: str, columns: Columns) -> str | None:
    """Return the index of the entry of a parameter that a pattern with an index names; None if there is none.

    The index of a lengthscale is the number of a column.
    """
    index = pattern[len(tree.whole_pattern(pattern)) :]
    if name != "lengthscale" or "," in index:
        return index
    column = int(index[1:-1])
    if column >= columns.width:
        width = count_of(columns.width, "column")
        raise ValueError(f"{pattern!r} names an entry of kernel.lengthscale, but X has {width}; count columns from 0.")
    if column in columns.categories:
        raise ValueError(f"{pattern!r} names column {column}, which contains levels and has no lengthscale.")
    read, value = input_columns(kernel, path, columns.width), tree.nodes(kernel, Kernel)[path].lengthscale  # type: ignore[attr-defined]
    if column not in read:
        return None
    is_scalar = value is not None and not np.ndim(value)
    return "" if is_scalar and len(read) == 1 else f"[{read.index(column)}]"


def _anchor(name: str, known: Sequence[str]) -> str:
    """Return the pattern that matches this name, or an entry of it, but none of `known` that ends with it."""
    whole = tree.whole_pattern(name)
    return f"^{name}" if any(other.endswith(f".{whole}") for other in known) else name


def _matching(names: Iterable[str], pattern: str) -> list[str]:
    """Return the names that a pattern matches, as a whole or in part."""
    whole = tree.whole_pattern(pattern)
    return [name for name in names if tree.matches(name, whole)]


def nodes_of(*parts: Any) -> list[Any]:
    """Return the parts of models among the arguments, and their parts."""
    return [node for part in parts if tree.is_model(part) for node in tree.nodes(part, object).values()]


def parts_to_compare(*parts: Any, X: Array) -> Any:
    """Return the given parts of a model with their arrays where models of samples are computed.

    That is on the host, but beside X if users define one of the parts, which might not run on NumPy.
    """
    place = partial(tree.place_host_arrays, reference=X) if foreign_names(*parts) else _on_host
    return tuple(place(part) if tree.is_model(part) else part for part in parts)


def _on_host(part: Any) -> Any:
    """Return a part with NumPy arrays instead of arrays of other libraries; lists and numbers are kept."""
    libraries = {name: find_backend(x) for name, x in tree.leaves(part).items()}
    moved = {name for name, B in libraries.items() if B is not None and not B.is_lazy}
    return tree.with_leaves(part, {name: to_numpy(x) for name, x in tree.leaves(part).items() if name in moved})


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
