"""What training may not change: limits of parameters, fixed parameters, and single entries of both.

Limits stand among the priors of a model, as they are known before training too. They are no densities: they add nothing
to the log prior.
"""

import math
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, TypeVar

from agp import tree
from agp.backend import Array, Pullback, asarray_like, backend_of
from agp.errors import explain_arguments
from agp.priors._densities import Entries, Prior
from agp.tree import LOWER, ORDERED, POSITIVE

ROUNDING = 1e-6
"""The relative rounding error of a value in float32, which does not count as outside a limit."""

T = TypeVar("T")
L = TypeVar("L", bound="Limit")


class Limit(Prior):
    """Base class of limits, which contribute nothing to the log prior."""

    positive: ClassVar[bool] = False
    is_density: ClassVar[bool] = False

    def _entries(self, x: Array) -> Entries:
        zeros = backend_of(x).xp.zeros_like(x)
        return zeros, lambda: zeros


@explain_arguments
@dataclass(frozen=True)
class Between(Limit):
    """Limits of a parameter, which training respects; they are no density, so a prior can be added to them.

    Parameters
    ----------
    low, high
        The smallest and the largest value, in the units of the parameter. None or infinity means no limit.

    Raises
    ------
    TypeError, ValueError
        If both limits are None, one is no finite number, or `low` is not below `high`.

    Examples
    --------
    Without noise, the noise variance would tend to zero.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 6.0, 30)[:, None]
    >>> y = np.sin(X[:, 0])
    >>> floor = {"likelihood.noise_variance": agp.priors.Between(1e-3)}
    >>> model = agp.fit(agp.GPR.from_data(X, y, priors=floor), X, y).model
    >>> round(float(model.likelihood.noise_variance), 6)
    0.001
    """

    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        for name, none in (("low", -math.inf), ("high", math.inf)):
            if getattr(self, name) == none:
                object.__setattr__(self, name, None)
        if self.low is None and self.high is None:
            raise ValueError("low and high are both None; pass at least one limit.")
        for name in ("low", "high"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, numbers.Real) or isinstance(value, bool) or not math.isfinite(value):
                raise ValueError(f"{name} of Between is {value!r}, but must be a finite number or None.")
            object.__setattr__(self, name, float(value))
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise ValueError(f"low is {self.low:g} and high is {self.high:g}, but low must be less than high.")

    def _holds(self, value: float) -> bool:
        """Whether a value is within the limits, up to rounding."""
        room = ROUNDING * abs(value)
        return (self.low is None or value >= self.low - room) and (self.high is None or value <= self.high + room)

    def _text(self) -> str:
        if self.low is None:
            return f"at most {self.high:g}"
        return f"at least {self.low:g}" if self.high is None else f"between {self.low:g} and {self.high:g}"


@explain_arguments
@dataclass(frozen=True)
class Fixed(Limit):
    """A parameter, or an entry of one, that training does not change. The kernel or likelihood holds its value.

    Examples
    --------
    >>> import numpy as np
    >>> import agp
    >>> X = np.random.default_rng(0).uniform(0.0, 6.0, (30, 2))
    >>> y = np.sin(X[:, 0])
    >>> kernel, fixed = agp.RBF(lengthscale=[1.0, 5.0]), {"kernel.lengthscale[1]": agp.priors.Fixed()}
    >>> model = agp.fit(agp.GPR.from_data(X, y, kernel=kernel, priors=fixed), X, y).model
    >>> float(model.kernel.lengthscale[1])
    5.0
    """


class Limits(NamedTuple):
    """The limits of the entries of a leaf, in its shape; minus infinity and infinity where there is none."""

    low: Array
    high: Array


def fixed_entries(model: Any, frozen: tuple[str, ...] = (), /) -> dict[str, tuple[int, ...]]:
    """Return the places of the fixed entries, in row-major order, for each parameter of a model that has some.

    `frozen` are further patterns of names of leaves or of single entries.
    """
    patterns = (*frozen, *(pattern for pattern, _ in limits_among(model, Fixed)))
    found: dict[str, set[int]] = {}
    for name, x in tree.leaves(model, "parameter").items() if patterns else ():
        for pattern in patterns:
            if entries := tree.entries_matching(name, tuple(x.shape), pattern):
                found.setdefault(name, set()).update(entries)
    constraints = tree.constraints(model) if found else {}
    for name, entries in found.items():
        if constraints[name] in (ORDERED, LOWER) and len(entries) < math.prod(tree.leaves(model)[name].shape):
            raise ValueError(
                f"{name} is {constraints[name].name}, so single entries cannot be fixed; fix all of {name}."
            )
    return {name: tuple(sorted(entries)) for name, entries in found.items()}


def fixed_entry_names(model: Any, frozen: tuple[str, ...] = (), /) -> tuple[str, ...]:
    """Return the names of fixed entries, such as "kernel.lengthscale[0]", of leaves that are not fixed as a whole."""
    leaves, found = tree.leaves(model), []
    for name, places in fixed_entries(model, frozen).items():
        shape = tuple(leaves[name].shape)
        if len(places) < math.prod(shape):
            found += [f"{name}{_index_of(place, shape)}" for place in places]
    return tuple(found)


def _index_of(place: int, shape: tuple[int, ...]) -> list[int]:
    index = []
    for size in reversed(shape):
        place, last = divmod(place, size)
        index.insert(0, last)
    return index


def held_leaves(model: Any, /) -> frozenset[str]:
    """Return the names of the parameters that training cannot change: fixed ones, and those that are zero."""
    fixed = fixed_entries(model)
    whole = {name for name, x in tree.leaves(model).items() if len(fixed.get(name, ())) == math.prod(x.shape)}
    return tree.zero_leaves(model) | (whole & fixed.keys())


def limits_of(model: Any, frozen: tuple[str, ...] = (), /) -> dict[str, Limits]:
    """Return the limits of each parameter of a model that has some; both limits of fixed entries are their values.

    `frozen` are further patterns of fixed entries.
    """
    bounds, fixed = tuple(limits_among(model, Between)), fixed_entries(model, frozen)
    found = {}
    for leaf in tree.describe(model) if bounds or fixed else ():
        if leaf.role != "parameter":
            continue
        name, x, held = leaf.name, leaf.value, fixed.get(leaf.name, ())
        if held and len(held) == math.prod(x.shape):
            found[name] = Limits(x, x)
            continue
        ends = _ends_of_entries(name, tuple(x.shape), bounds, leaf.constraint.range, held)
        if ends is not None:
            xp = backend_of(x).xp
            low, high, is_held = (xp.reshape(asarray_like(end, x), x.shape) for end in ends)
            if held:
                low, high = (xp.where(is_held > 0.0, x, end) for end in (low, high))
            found[name] = Limits(low, high)
    return found


@lru_cache(maxsize=64)
def _ends_of_entries(
    name: str,
    shape: tuple[int, ...],
    bounds: tuple[tuple[str, Between], ...],
    possible: tuple[float, float],
    held: tuple[int, ...],
) -> tuple[tuple[float, ...], ...] | None:
    """Return the lowest and the highest value of each entry, and 1 for those that are held; None without limits."""
    size = math.prod(shape)
    low, high = [-math.inf] * size, [math.inf] * size
    for pattern, between in bounds:
        for i in tree.entries_matching(name, shape, pattern):
            low[i] = max(low[i], -math.inf if between.low is None else between.low)
            high[i] = min(high[i], math.inf if between.high is None else between.high)
    if any(a > b for a, b in zip(low, high, strict=True)):
        raise ValueError(f"the limits of {name} contradict each other; check the patterns that match it.")
    if not held and low == [-math.inf] * size and high == [math.inf] * size:
        return None
    inside, (least, most) = set(held), possible
    low, high = [max(least, end) for end in low], [min(most, end) for end in high]
    return tuple(low), tuple(high), tuple(float(i in inside) for i in range(size))


def restrict(model: T, limits: dict[str, Limits] | None = None, /) -> T:
    """Return the model with parameters moved into limits, by default its own."""
    limits = limits_of(model) if limits is None else limits
    if not limits:
        return model
    values = tree.leaves(model)
    clipped = {name: backend_of(low).xp.clip(values[name], low, high) for name, (low, high) in limits.items()}
    return tree.equalise(tree.with_leaves(model, clipped))


def values_outside(part: Any, path: str, priors: Iterable[tuple[str, Any]], /) -> list[str]:
    """Return, as text, the values of a part of a model, with a path, that are outside their limits among priors.

    The defaults of a class were not given, so they do not count.
    """
    found = []
    bounds = [(pattern, one) for pattern, one in priors if isinstance(one, Between)]
    usual = _defaults(part) if bounds else {}
    for leaf, x in tree.leaves(tree.detach(part), "parameter").items() if bounds else ():
        if leaf in usual and x.shape == () and float(x) == usual[leaf]:
            continue
        name, flat = tree.join_path(path, leaf), backend_of(x).xp.reshape(x, (-1,))
        for pattern, between in bounds:
            at = tree.whole_pattern(pattern) if x.shape == () else pattern  # a number stands for all entries
            values = [float(flat[i]) for i in tree.entries_matching(name, tuple(x.shape), at)]
            if far := [value for value in values if not between._holds(value)]:
                found.append(f"{name} is given as {far[0]:g}, but {pattern!r} limits it to {between._text()}")
    return found


def _defaults(part: Any) -> dict[str, float]:
    """Return the numbers that are defaults of the classes of a part and its parts, by the name of the leaf."""
    nodes: dict[str, Any] = tree.nodes(part, object)
    return {
        tree.join_path(path, field.name): float(field.default)
        for path, node in nodes.items()
        for field in fields(node)
        if isinstance(field.default, numbers.Real) and not isinstance(field.default, bool)
    }


def limits_among(model: Any, kind: type[L], /) -> list[tuple[str, L]]:
    """Return the patterns and limits of one class among the priors of a model; parts of models have none."""
    given = vars(model).get("priors", ())
    pairs = given.items() if isinstance(given, Mapping) else given
    return [(pattern, prior) for pattern, prior in pairs if isinstance(prior, kind)]


def describe_limits(model: Any, /) -> dict[str, str]:
    """Return the limits of parameters as text, by the name of the leaf."""
    found: dict[str, list[str]] = {}
    for pattern, between in limits_among(model, Between):
        low = -math.inf if between.low is None else between.low
        high = math.inf if between.high is None else between.high
        whole = tree.whole_pattern(pattern)
        for name in tree.leaves(model, "parameter"):
            if tree.matches(name, whole):
                found.setdefault(name, []).append(f"{pattern[len(whole) :]} between {low:g} and {high:g}".strip())
    return {name: ", ".join(texts) for name, texts in found.items()}


def check_fixed(model: Any, /) -> None:
    """Raise ValueError if a fixed entry, or a parameter that is zero and stays zero, is outside its limits."""
    fixed, bounds = fixed_entries(model), limits_among(model, Between)
    check_zeros(tree.zero_leaves(model) if bounds else (), bounds)
    for name in fixed if bounds else ():
        x = tree.leaves(model)[name]
        flat = backend_of(x).xp.reshape(x, (-1,))
        for pattern, between in bounds:
            for i in set(tree.entries_matching(name, tuple(x.shape), pattern)) & set(fixed[name]):
                value = float(flat[i])
                low, high = between.low, between.high
                if not (low is None or value >= low) or not (high is None or value <= high):
                    raise ValueError(
                        f"an entry of {name} is fixed at {value:g}, but {pattern!r} limits it; give the kernel another "
                        "value, or change the limits."
                    )


def check_zeros(names: Iterable[str], limits: Iterable[tuple[str, Any]], /) -> None:
    """Raise ValueError if limits exclude zero from parameters that are zero and stay zero."""
    for name in names:
        for pattern, one in limits:
            excludes = isinstance(one, Between) and one.low is not None and one.low > 0.0
            if excludes and tree.matches(name, tree.whole_pattern(pattern)):
                raise ValueError(
                    f"{name} is 0 and stays 0 in training, but {pattern!r} limits it to at least {one.low:g}; give "
                    "another value or none, or leave out the limit."
                )


def check_limit(leaf: tree.Leaf, pattern: str, limit: Limit, /) -> None:
    """Raise ValueError if a limit does not fit a parameter."""
    if not isinstance(limit, Between):
        return
    if leaf.constraint in (ORDERED, LOWER):
        raise ValueError(f"{pattern!r} sets limits of {leaf.name}, which is {leaf.constraint.name}; only fix it.")
    if isinstance(leaf.constraint, type(POSITIVE)) and limit.high is not None and limit.high <= 0.0:
        raise ValueError(f"{leaf.name} is positive, but {pattern!r} limits it to at most {limit.high:g}.")


def check_possible(model: Any, /) -> None:
    """Raise ValueError if limits exclude all values that the constraint of a parameter allows."""
    bounds = limits_among(model, Between)
    for leaf in tree.describe(model) if bounds else ():
        x, constraint = leaf.value, leaf.constraint
        matching = [pair for pair in bounds if tree.matches(leaf.name, tree.whole_pattern(pair[0]))]
        if leaf.role != "parameter" or not matching or not backend_of(x).is_concrete(x) or constraint.is_violated(x):
            continue
        for pattern, between in matching:
            clipped = backend_of(x).xp.clip(x, between.low, between.high)
            if bool(constraint.is_violated(clipped)):
                raise ValueError(
                    f"{leaf.name} is {constraint.name}, but {pattern!r} limits it with {between}; choose limits that "
                    "allow such numbers."
                )


class ByEntry(Prior):
    """Priors of some entries of a leaf, each a density with the places of its entries in row-major order."""

    positive: ClassVar[bool] = False

    def __init__(self, parts: tuple[tuple[Prior, tuple[int, ...]], ...]) -> None:
        self.parts = parts

    def log_density(self, x: Array, /, unit: Array | None = None) -> tuple[Array, Pullback]:
        xp = backend_of(x).xp
        flat = xp.reshape(x, (-1,))
        units = None if unit is None else xp.reshape(xp.broadcast_to(unit, x.shape), (-1,))
        total, pulls = xp.sum(flat[:0]), []
        for prior, places in self.parts:
            index = asarray_like(places, x)
            of_these = None if units is None else xp.take(units, index)
            value, pull = prior.log_density(xp.take(flat, index), of_these)
            total = total + value
            pulls.append((places, pull))

        def pullback(bar: Any) -> Array:
            slopes = [flat[:1] * 0.0] * flat.shape[0]
            for places, pull in pulls:
                slope = pull(bar)
                for k, place in enumerate(places):
                    slopes[place] = slope[k : k + 1]
            return xp.reshape(xp.concat(slopes), tuple(x.shape))

        return total, pullback

    def _entries(self, _: Array) -> Entries:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise TypeError("the prior of single entries has no density of each entry.")
