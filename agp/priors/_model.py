"""The log prior of a model, from its `priors` field."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.priors._densities import Prior, Relative
from agp.priors._limits import ByEntry, Limit, check_limit, check_possible, limits_of
from agp.tree import LOWER, ORDERED, REAL

M = TypeVar("M")

Priors: TypeAlias = tuple[tuple[str, Prior], ...]
"""Pairs of a leaf-name pattern and a prior, the type of a model's `priors` field."""


def as_priors(priors: Mapping[str, Prior] | Iterable[tuple[str, Prior]] | None, /) -> Priors:
    """Convert priors to the form of a model's `priors` field. None becomes an empty tuple.

    `priors` maps leaf-name patterns to priors, or is an iterable of such pairs. Raise TypeError if a key is not a
    string, or if a value is not a prior.
    """
    if isinstance(priors, Mapping):
        pairs: tuple = tuple(priors.items())
    else:
        if isinstance(priors, str) or not isinstance(priors, Iterable | None):
            raise TypeError(f"priors is {priors!r}, but must be a dictionary of names and priors, or None.")
        pairs = () if priors is None else tuple(priors)
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            example = "{'kernel.variance': Gamma(2.0, 1.0)}"
            raise TypeError(f"priors contains {pair!r}, but must map names to priors, as in {example}.")
        if not isinstance(pair[1], Prior):
            hint = f"; write {pair[1].__name__}(...)" if isinstance(pair[1], type) else ""
            if isinstance(pair[1], list | tuple):
                hint = f"; give a prior and a limit different patterns, such as {pair[0]!r} and '*{pair[0]}'"
            raise TypeError(
                f"the prior of {pair[0]!r} is {pair[1]!r}, but must be an instance of agp.priors.Prior{hint}."
            )
    return pairs


def with_priors(model: M, priors: Mapping[str, Prior] | Iterable[tuple[str, Prior]], /) -> M:
    """Return the model with these priors instead of its own; the errors are those of `log_prior`."""
    model = dataclasses.replace(model, priors=as_priors(priors))  # type: ignore[type-var]
    check_priors(model)
    return model


def has_densities(model: Any, /) -> bool:
    """Whether a model has priors that are densities, not only limits."""
    return any(prior.is_density for _, prior in model.priors)


def check_priors(model: Any, /) -> None:
    """Raise an error unless a model's `priors` fit its parameters; the errors are those of `log_prior`."""
    assign_priors(model)
    limits_of(model)
    check_possible(model)


def log_prior(model: Any, /) -> tuple[Array, Pullback]:
    """Return the log density (0-d) of a model's parameters under its priors, and its pullback ``bar=1.0 -> model_bar``.

    `model.priors` contains (pattern, prior) pairs. Patterns match leaf names, as in the groups of `agp.updates.Adam`.
    The first density whose pattern matches a parameter determines its prior. A pattern may name a single entry, such
    as ``kernel.lengthscale[0]``. Parameters without a prior contribute 0, and limits do not count. Entries are
    independent. Densities refer to constrained values, without a Jacobian.

    Raises
    ------
    TypeError
        If `priors` does not consist of (pattern, prior) pairs.
    ValueError
        If a pattern matches no parameter, if it matches a part of q(u), or if a prior for positive numbers is assigned
        to a parameter that may be negative. If no parameter matches, the message lists the parameters.
    """
    parts = [(leaf, prior.log_density(leaf.value, leaf.unit)) for leaf, prior in assign_priors(model)]
    if parts:
        total = sum((value for _, (value, _) in parts[1:]), parts[0][1][0])
    else:
        first = next(iter(tree.leaves(model).values()))
        total = backend_of(first).xp.zeros((), **like(first))

    def pullback(bar: Any = 1.0) -> Any:
        bars = {leaf.name: pull(bar) for leaf, (_, pull) in parts}
        return tree.with_leaves(model, {name: bars.get(name) for name in tree.leaves(model)})

    return total, pullback


def assign_priors(model: Any, /) -> list[tuple[tree.Leaf, Prior]]:
    """Return each parameter that has a prior, together with the prior; the errors are those of `log_prior`."""
    pairs = as_priors(model.priors)
    leaves = tree.describe(model)
    parameters = [leaf for leaf in leaves if leaf.role == "parameter"]
    for pattern, _ in pairs:
        matching = [leaf for leaf in parameters if tree.matches(leaf.name, tree.whole_pattern(pattern))]
        if not matching:
            constants = [leaf.name for leaf in leaves if leaf.role == "constant"]
            said = tree.no_match_message(pattern, [leaf.name for leaf in parameters], constants)
            raise ValueError(f"priors has the key {pattern!r}, but {said}")
    found = []
    for leaf in parameters:
        matching = [pair for pair in pairs if tree.matches(leaf.name, tree.whole_pattern(pair[0]))]
        for pattern, prior in matching:
            _check_fit(leaf, pattern, prior)
        densities = [(pattern, prior) for pattern, prior in matching if prior.is_density]
        if densities:
            first, prior = densities[0]
            found.append((leaf, prior if tree.whole_pattern(first) == first else _by_entry(leaf, densities)))
    return found


def entry_log_density(prior: Prior, place: int, x: Array, /, unit: Array | None = None) -> Array | None:
    """Return the log densities [S] of values [S] of the entry of a leaf at a place in row-major order.

    Return None for an entry without a prior.
    """
    if isinstance(prior, ByEntry):
        own = [one for one, places in prior.parts if place in places]
        return entry_log_density(own[0], place, x, unit) if own else None
    if isinstance(prior, Relative):
        return entry_log_density(prior.prior, place, x if unit is None else x / unit)
    return prior._entries(x)[0]


def _by_entry(leaf: tree.Leaf, densities: list[tuple[str, Prior]]) -> ByEntry:
    """Return the prior of a leaf in which the first matching density applies to each entry."""
    free, parts = set(range(math.prod(leaf.value.shape))), []
    for pattern, prior in densities:
        entries = tree.entries_matching(leaf.name, tuple(leaf.value.shape), pattern)
        parts.append((prior, tuple(i for i in entries if i in free)))
        free.difference_update(entries)
    return ByEntry(tuple(part for part in parts if part[1]))


def _check_fit(leaf: tree.Leaf, pattern: str, prior: Prior) -> None:
    if "posterior" in leaf.name.split("."):
        raise ValueError(
            f"{pattern!r} matches {leaf.name}, which is a part of q(u) and cannot have a prior; "
            "set priors on parameters of the kernel, the likelihood or the mean function, or on Z."
        )
    if isinstance(prior, Limit):
        check_limit(leaf, pattern, prior)
    if prior.positive and leaf.constraint in (REAL, ORDERED, LOWER):
        raise ValueError(
            f"{prior} is defined only for positive numbers, but {pattern!r} matches {leaf.name}, which is "
            f"{leaf.constraint.name}; use Normal for {leaf.name}."
        )
    if prior.highest < math.inf and not (leaf.constraint.range[0] >= 0.0 and leaf.constraint.range[1] <= prior.highest):
        raise ValueError(
            f"{prior} is defined only between 0 and {prior.highest:g}, but {pattern!r} matches {leaf.name}, which is "
            f"{leaf.constraint.name}; use another density, or declare the parameter with a constraint whose range lies "
            "there, such as agp.tree.PROPORTION."
        )
