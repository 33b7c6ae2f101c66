"""Sums, products and multiples of kernels."""

import functools
import math
import numbers
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.kernels._base import Kernel, check_part
from agp.kernels._features import Features, features_of
from agp.kernels._jets import Jets
from agp.kernels._linearisation import (
    Linearisation,
    apply_weights,
    multiply_linearisations,
    sum_linearisations,
    times_symmetric,
)
from agp.kernels._parameters import check_number
from agp.kernels._stacks import add_stacks, multiply_stacks, spread_scalars
from agp.tree import POSITIVE


def _repeated_parts(parts: tuple[Kernel, ...]) -> Iterator[tuple[str, str]]:
    """Yield the paths of the first occurrence of each kernel object, and of each further one."""
    seen: dict[int, str] = {}
    done = "\n"
    for i, part in enumerate(parts):
        for inside, node in tree.nodes(part, Kernel).items():  # parents before children
            path = tree.join_path(f"parts.{i}", inside)
            if path.startswith(f"{done}."):
                continue
            if (first := seen.setdefault(id(node), path)) != path:
                done = path
                yield first, path


def _shift(path: str, count: int) -> str:
    """Return the path of a part after `count` parts have been put before the first one."""
    number, dot, rest = path.removeprefix("parts.").partition(".")
    return f"parts.{int(number) + count}{dot}{rest}"


def _variance_at_origin(kernel: Kernel, beside: Array) -> Array:
    """Return the variance k(x, x) at the origin (0-d), for inputs with a column for each entry of `beside`."""
    return kernel.diag(backend_of(beside).xp.zeros_like(beside)[None, :])[0][0]


def evaluate(kernel: Kernel, X: Array, Z: Array | None) -> tuple[Array, Pullback]:
    """Return the covariances of a kernel for inputs [N, D] or for groups of inputs [G, N, D]."""
    if X.ndim == 3:
        return kernel.grouped_covariance(X, Z)
    return kernel(X, Z)


@tree.model
class _Composite(Kernel):
    # base class for sums and products: each part receives a cotangent, and the inputs receive the total
    parts: tuple[Kernel, ...]
    ties: tuple[tuple[str, str], ...] = tree.ties(default=())
    takes_groups: ClassVar[bool] = True
    _join: ClassVar[Callable[[Any, list[Linearisation]], Linearisation]]

    def __post_init__(self) -> None:
        if not isinstance(self.parts, tuple) or not self.parts:
            name = type(self).__name__
            raise TypeError(f"parts of {name} is {self.parts!r}, but must be a tuple of kernels, such as (RBF(),).")
        for i, part in enumerate(self.parts):
            check_part(f"parts[{i}]", part)
        kinds = {path: type(node) for path, node in tree.nodes(self, Kernel).items()} if self.ties else {}
        kept = [pair for pair in self.ties if pair[0] in kinds and kinds[pair[0]] is kinds.get(pair[1])]
        object.__setattr__(self, "ties", (*dict.fromkeys((*kept, *_repeated_parts(self.parts))),))

    @classmethod
    def of(cls, *kernels: Kernel) -> Self:
        """Join kernels; those of this class are replaced by their parts."""
        parts: list[Kernel] = []
        ties: list[tuple[str, str]] = []
        for kernel in kernels:
            nested = isinstance(kernel, cls)
            if nested:
                ties += [(_shift(first, len(parts)), _shift(other, len(parts))) for first, other in kernel.ties]
            parts += kernel.parts if nested else (kernel,)
        return cls(tuple(parts), ties=tuple(ties))

    def _with_parts(self, parts: Iterable[Kernel]) -> Self:
        """Return the composition of other parts, in which the same parts are equal."""
        return tree.equalise(type(self)(tuple(parts), ties=self.ties))

    def _check_mixed(self) -> None:
        if self.ties:
            raise ValueError(
                "a kernel object that occurs several times cannot be combined with categories; use different objects."
            )

    def _without_columns(self, width: int, columns: tuple[int, ...]) -> Kernel:
        return self._with_parts(part._without_columns(width, columns) for part in self.parts) if columns else self

    def _pull_parts(self, pulls: Iterable[Pullback], part_bars: Iterable[Any]) -> tuple[Any, ...]:
        bars: list[Any] = []
        inputs_bar: Any = None
        for pull, part_bar in zip(pulls, part_bars, strict=True):
            bar, *input_bars = pull(part_bar)
            bars.append(bar)
            inputs_bar = tree.add(inputs_bar, tuple(input_bars))
        return tree.cotangent(self, parts=tuple(bars)), *inputs_bar

    def _jets_of_parts(self, rows: tuple[Array, ...]) -> tuple[list[Jets], Callable[[list[Jets]], tuple[Any, ...]]]:
        """Return the jets of the parts, and the pullback of a cotangent for each part."""
        found, pulls = zip(*(part.jets(*rows) for part in self.parts), strict=True)
        return list(found), lambda bars: self._pull_parts(pulls, bars)

    def linearise(self, X: Array, /) -> Linearisation | None:
        found = [part.linearise(X) for part in self.parts]
        return None if None in found else self._join(self, found)  # type: ignore[arg-type]

    def linearise_groups(self, X: Array, /) -> Linearisation | None:
        found = [part.linearise_groups(X) for part in self.parts]
        return None if None in found else self._join(self, found)  # type: ignore[arg-type]

    @property
    def floats_per_entry(self) -> int:  # type: ignore[override]
        return sum(part.floats_per_entry for part in self.parts)

    def metric_inputs(self, X: Array, /) -> Array:
        """Return the coordinates of the first part that changes the inputs, and the further coordinates of all parts.

        Parts without factors are left out.
        """
        D = X.shape[-1]
        found = [part.metric_inputs(X) for part in self.parts if part.inverse_scales(D) is not None]
        changed = [x for x in found if x is not X]
        if not changed:
            return X
        return backend_of(X).xp.concat([changed[0][..., :D], *(x[..., D:] for x in changed)], axis=-1)

    def _factors_of_parts(self, width: int) -> list[tuple[Kernel, Array]]:
        """Return the parts that have factors, with their factors for the coordinates of all parts."""
        pairs = [(part, part.inverse_scales(width)) for part in self.parts]
        known = [(part, factors) for part, factors in pairs if factors is not None]
        total = sum(factors.shape[0] - width for _, factors in known)
        if not total:
            return known
        at, found = 0, []
        for part, factors in known:
            B, more = backend_of(factors), factors.shape[0] - width
            before, after = (B.xp.zeros((count,), **B.like(factors)) for count in (at, total - at - more))
            found.append((part, B.xp.concat([factors[:width], before, factors[width:], after])))
            at += more
        return found

    def category_levels(self, width: int, /) -> dict[int, int]:
        found: dict[int, int] = {}
        for part in self.parts:
            found |= {d: max(count, found.get(d, 0)) for d, count in part.category_levels(width).items()}
        return found

    def check(self, width: int, /) -> None:
        for part in self.parts:
            part.check(width)


@tree.model
class Sum(_Composite):
    """The sum of kernels, k(x, z) = sum_i k_i(x, z), also written ``k1 + k2``."""

    _join = staticmethod(sum_linearisations)

    def __call__(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        return self._sum(evaluate(part, X, Z) for part in self.parts)

    def diag(self, X: Array, /) -> tuple[Array, Pullback]:
        return self._sum(part.diag(X) for part in self.parts)

    def jets(self, X: Array, V: Array, Z: Array, W: Array, /) -> tuple[Jets, Pullback]:
        found, pull = self._jets_of_parts((X, V, Z, W))
        return functools.reduce(Jets.plus, found), lambda bars: pull([bars] * len(found))

    def stacked_covariance(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        return add_stacks([part.stacked_covariance(X, Z) for part in self.parts])

    def stacked_variances(self, X: Array, /) -> tuple[Array, Pullback]:
        return add_stacks([part.stacked_variances(X) for part in self.parts])

    def _sum(self, terms: Iterable[tuple[Array, Pullback]]) -> tuple[Array, Pullback]:
        # every part receives the same cotangent
        value, pulls = None, []
        for K, pull in terms:
            value = tree.add(value, K)
            pulls.append(pull)

        def pullback(bar):
            return self._pull_parts(pulls, [bar] * len(pulls))

        return value, pullback

    def with_categories(self, width: int, columns: tuple[int, ...], /) -> Kernel:
        if not columns:
            return self
        self._check_mixed()
        return functools.reduce(operator.add, (part.with_categories(width, columns) for part in self.parts))

    def from_data(self, X: Array, variance: float, /) -> Self:
        share = variance / len(self.parts)
        return self._with_parts(part.from_data(X, share) for part in self.parts)

    def scale_by(self, factor: Array | float, /) -> Kernel:
        if self.ties:  # a part of another may be equal to a part that is scaled as a whole
            return Scaled(factor, self)  # type: ignore[arg-type]
        return type(self)(tuple(part.scale_by(factor) for part in self.parts))

    def inverse_scales(self, width: int, /) -> Array | None:
        """Return the factors of the part with the largest variance among those that have factors."""
        pairs = self._factors_of_parts(width)
        if len(pairs) < 2:
            return pairs[0][1] if pairs else None
        found = [(_variance_at_origin(part, factors[:width]), factors) for part, factors in pairs]
        variances, factors = zip(*found, strict=True)
        xp = backend_of(factors[0]).xp
        largest = xp.argmax(xp.stack(variances), keepdims=True)
        return xp.take(xp.stack(factors), largest, axis=0)[0, :]

    def random_features(self, rng: Any, count: int, width: int, /) -> Features:
        return Features.sum(part.random_features(rng, count, width) for part in self.parts)


@tree.model
class Product(_Composite):
    """The product of kernels, k(x, z) = prod_i k_i(x, z), also written ``k1 * k2``.

    A missing variance starts at the variance of the targets in the first kernel that has one, and at 1 in the others.
    If this kernel is a factor several times, it starts at the root.
    """

    _join = staticmethod(multiply_linearisations)

    def __call__(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        return self._product([evaluate(part, X, Z) for part in self.parts])

    def diag(self, X: Array, /) -> tuple[Array, Pullback]:
        return self._product([part.diag(X) for part in self.parts])

    def jets(self, X: Array, V: Array, Z: Array, W: Array, /) -> tuple[Jets, Pullback]:
        found, pull = self._jets_of_parts((X, V, Z, W))

        def pullback(bars: Jets) -> tuple[Any, ...]:
            others = (found[:i] + found[i + 1 :] for i in range(len(found)))
            return pull([functools.reduce(Jets.pull_times, rest, bars) for rest in others])

        return functools.reduce(Jets.times, found), pullback

    def stacked_covariance(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        return multiply_stacks([part.stacked_covariance(X, Z) for part in self.parts])

    def stacked_variances(self, X: Array, /) -> tuple[Array, Pullback]:
        return multiply_stacks([part.stacked_variances(X) for part in self.parts])

    def _product(self, terms: list[tuple[Array, Pullback]]) -> tuple[Array, Pullback]:
        # each part receives the cotangent times the other parts; division by a part would fail where it is zero
        values, pulls = [K for K, _ in terms], [pull for _, pull in terms]

        def pullback(bar):
            others = (values[:i] + values[i + 1 :] for i in range(len(values)))
            return self._pull_parts(pulls, (functools.reduce(operator.mul, rest, bar) for rest in others))

        return functools.reduce(operator.mul, values), pullback

    def with_categories(self, width: int, columns: tuple[int, ...], /) -> Kernel:
        if not columns:
            return self
        self._check_mixed()
        alone = [part._without_columns(width, columns).with_categories(width, columns) for part in self.parts]
        taken = [{*part.category_levels(width)} for part in alone]
        mixed = []
        for i, part in enumerate(self.parts):
            others = set().union(*taken[:i], *taken[i + 1 :])
            rest = part._without_columns(width, tuple(d for d in columns if d in others))
            mixed.append(rest.with_categories(width, columns))
        return functools.reduce(operator.mul, mixed)

    def from_data(self, X: Array, variance: float, /) -> Self:
        first = next((i for i, part in enumerate(self.parts) if _has_variance(part)), 0)
        times = 1 + sum(one == f"parts.{first}" and other.count(".") == 1 for one, other in self.ties)
        shares = (variance ** (1.0 / times) if i == first else 1.0 for i in range(len(self.parts)))
        return self._with_parts(part.from_data(X, share) for part, share in zip(self.parts, shares, strict=True))

    def scale_by(self, factor: Array | float, /) -> Kernel:
        first, *others = self.parts
        return Scaled(factor, self) if self.ties else type(self)((first.scale_by(factor), *others))  # type: ignore[arg-type]

    def inverse_scales(self, width: int, /) -> Array | None:
        """Return the factors for which squared distances are the sums of those of all parts that have factors."""
        found = [factors for _, factors in self._factors_of_parts(width)]
        return sum(factors * factors for factors in found) ** 0.5 if found else None

    def random_features(self, rng: Any, count: int, width: int, /) -> Features:
        return Features.product(part.random_features(rng, count, width) for part in self.parts)


def _has_variance(kernel: Kernel) -> bool:
    names = (*tree.missing(kernel), *tree.leaves(kernel))
    return any(name.rpartition(".")[2] == "variance" for name in names)


# -- multiples --------------------------------------------------------------------------------------------------------


def multiplier_of(number: Any) -> float:
    value = float(number)
    if not (math.isfinite(value) and value > 0.0):
        raise ValueError(f"a kernel cannot be multiplied by {number!r}; use a positive finite number.")
    return value


class OfSameInputs(Kernel):
    """Base class for kernels that depend on the inputs only through another kernel, `kernel`."""

    kernel: Kernel
    takes_groups: ClassVar[bool] = True

    def inverse_scales(self, width: int, /) -> Array | None:
        return self.kernel.inverse_scales(width)

    def metric_inputs(self, X: Array, /) -> Array:
        return self.kernel.metric_inputs(X)

    def category_levels(self, width: int, /) -> dict[int, int]:
        return self.kernel.category_levels(width)


@tree.model
class Scaled(OfSameInputs):
    """A multiple of a kernel, variance * k(x, z), also written ``2.0 * k``.

    The multiplier is trained together with the kernel's own variance. Freeze the multiplier to keep its value. If
    the kernel's variance is None, it starts at the variance of the targets divided by the multiplier.

    Parameters
    ----------
    variance
        The multiplier, a dimensionless scalar (0-d). If None, it starts at 1. If the kernel has no variance, such as
        `Overlap`, the multiplier is the variance, in squared units of the targets, and starts at their variance if it
        is None. Prefer None to a number such as 1.0, which is a poor start for targets in small or large units.
    kernel
        Any kernel.
    """

    variance: Array = tree.param(POSITIVE, unit="variance_unit")
    kernel: Kernel
    variance_unit: Array | None = tree.unit(default=None)

    def __post_init__(self) -> None:
        check_part("kernel", self.kernel)

    def __call__(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        return self._scale_parts(*evaluate(self.kernel, X, Z))

    def linearise(self, X: Array, /) -> Linearisation | None:
        return self._linearise(self.kernel.linearise(X))

    def linearise_groups(self, X: Array, /) -> Linearisation | None:
        return self._linearise(self.kernel.linearise_groups(X))

    def _linearise(self, found: Linearisation | None) -> Linearisation | None:
        if found is None:
            return None
        K, pull, times = found

        def pull_both(K_bar: Array) -> Any:
            variance_bar = backend_of(K).symmetric_inner(K_bar, K)
            return tree.cotangent(self, variance=variance_bar, kernel=pull(self.variance * K_bar))

        def times_both(a: Array, W: Array | None = None) -> Any:
            by_variance = times_symmetric(apply_weights(W, K), a)
            return tree.cotangent(self, variance=by_variance, kernel=times(self.variance * a, W))

        return Linearisation(self.variance * K, pull_both, times_both)

    def with_categories(self, width: int, columns: tuple[int, ...], /) -> Kernel:
        return type(self)(self.variance, self.kernel.with_categories(width, columns), variance_unit=self.variance_unit)

    def _without_columns(self, width: int, columns: tuple[int, ...]) -> Kernel:
        return type(self)(self.variance, self.kernel._without_columns(width, columns))

    def diag(self, X: Array, /) -> tuple[Array, Pullback]:
        return self._scale_parts(*self.kernel.diag(X))

    def stacked_covariance(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        K, pull = self.kernel.stacked_covariance(X, Z)
        factor = spread_scalars(self.variance)
        return factor * K, lambda bar: pull(factor * bar)

    def stacked_variances(self, X: Array, /) -> tuple[Array, Pullback]:
        variances, pull = self.kernel.stacked_variances(X)
        factor = self.variance[:, None]
        return factor * variances, lambda bar: pull(factor * bar)

    def jets(self, X: Array, V: Array, Z: Array, W: Array, /) -> tuple[Jets, Pullback]:
        found, pull = self.kernel.jets(X, V, Z, W)

        def pullback(bars: Jets) -> tuple[Any, ...]:
            kernel_bar, *row_bars = pull(bars.scale(self.variance))
            return tree.cotangent(self, variance=bars.inner(found), kernel=kernel_bar), *row_bars

        return found.scale(self.variance), pullback

    def _scale_parts(self, K: Array, pull: Pullback) -> tuple[Array, Pullback]:
        def pullback(bar):
            kernel_bar, *input_bars = pull(self.variance * bar)
            variance_bar = backend_of(K).xp.sum(bar * K)
            return tree.cotangent(self, variance=variance_bar, kernel=kernel_bar), *input_bars

        return self.variance * K, pullback

    @property
    def floats_per_entry(self) -> int:  # type: ignore[override]
        return self.kernel.floats_per_entry + 1

    def from_data(self, X: Array, variance: float, /) -> Self:
        # without a variance of the kernel, the multiplier is the variance
        unit = None if _has_variance(self.kernel) else variance
        multiplier = (unit or 1.0) if self.variance is None else self.variance
        if isinstance(multiplier, numbers.Real):
            multiplier = multiplier_of(multiplier)
        else:
            check_number(self, "variance")
        kernel = self.kernel.from_data(X, variance / multiplier)
        return type(self)(multiplier, kernel, variance_unit=unit if self.variance_unit is None else self.variance_unit)

    def random_features(self, rng: Any, count: int, width: int, /) -> Features:
        return self.kernel.random_features(rng, count, width).times(features_of(self.variance))

    def check(self, width: int, /) -> None:
        check_number(self, "variance")
        self.kernel.check(width)
