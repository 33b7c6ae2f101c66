"""The log prior of a model, from its field `priors`."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.constraints import POSITIVE
from agp.priors._densities import Prior

Priors: TypeAlias = tuple[tuple[str, Prior], ...]
"""Pairs of a pattern of leaf names and a prior: the field `priors` of a model."""


def as_priors(priors: Mapping[str, Prior] | Iterable[tuple[str, Prior]] | None, /) -> Priors:
    """A mapping from patterns of leaf names to priors, or pairs of them, as the field of a model; None is empty.

    TypeError if a key is not a string or a value not a prior.
    """
    if isinstance(priors, Mapping):
        pairs: tuple = tuple(priors.items())
    else:
        pairs = () if priors is None else tuple(priors)
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            msg = f"priors has {pair!r}, but needs names and priors, such as {{'kernel.variance': Gamma(2.0, 1.0)}}."
            raise TypeError(msg)
        if not isinstance(pair[1], Prior):
            hint = f"; write {pair[1].__name__}(...)" if isinstance(pair[1], type) else ""
            msg = f"the prior of {pair[0]!r} is {pair[1]!r}, but must be an instance of agp.priors.Prior{hint}."
            raise TypeError(msg)
    return pairs


def check_priors(model: Any, /) -> None:
    """Raise unless the `priors` of a model fit its parameters; errors as `log_prior`."""
    assigned(model)


def log_prior(model: Any, /) -> tuple[Array, Pullback]:
    """The log density of a model's parameters under its `priors`, 0-d, and ``bar=1.0 -> model_bar``.

    `model.priors` has pairs of a pattern of leaf names, as in the groups of `agp.updates.Adam`, and a prior; the first
    matching pattern counts. Parameters without a prior contribute zero. Entries are independent; densities are those of
    constrained values, without a Jacobian.

    Raises
    ------
    TypeError
        If `priors` holds something else.
    ValueError
        If a pattern matches no parameter (the parameters are listed) or a part of q(u), or if a prior on the positive
        numbers matches a parameter that may be negative.
    """
    parts = [(leaf, prior.log_density(leaf.value, leaf.unit)) for leaf, prior in assigned(model)]
    if parts:
        total = sum((value for _, (value, _) in parts[1:]), parts[0][1][0])
    else:
        first = next(iter(tree.leaves(model).values()))
        total = backend_of(first).xp.zeros((), **like(first))

    def pullback(bar: Any = 1.0) -> Any:
        bars = {leaf.name: pull(bar) for leaf, (_, pull) in parts}
        return tree.with_leaves(model, {name: bars.get(name) for name in tree.leaves(model)})

    return total, pullback


def assigned(model: Any, /) -> list[tuple[tree.Leaf, Prior]]:
    """The parameters with a prior, each with its prior; errors as for `log_prior`."""
    pairs = as_priors(model.priors)
    parameters = [leaf for leaf in tree.describe(model) if leaf.role == "parameter"]
    for pattern, prior in pairs:
        matching = [leaf for leaf in parameters if tree.matches(leaf.name, pattern)]
        if not matching:
            names = ", ".join(leaf.name for leaf in parameters)
            msg = f"no parameter matches {pattern!r}, which has the prior {prior}; the parameters are {names}."
            raise ValueError(msg)
    found_priors = []
    for leaf in parameters:
        found = next(((pattern, prior) for pattern, prior in pairs if tree.matches(leaf.name, pattern)), None)
        if found is not None:
            _check_fit(leaf, *found)
            found_priors.append((leaf, found[1]))
    return found_priors


def _check_fit(leaf: tree.Leaf, pattern: str, prior: Prior) -> None:
    if "posterior" in leaf.name.split("."):
        msg = (
            f"{pattern!r} matches {leaf.name}, a part of q(u), whose prior is part of the bound; "
            "give priors to parameters of kernel, likelihood or mean function, or to Z."
        )
        raise ValueError(msg)
    if prior.positive and not isinstance(leaf.constraint, type(POSITIVE)):
        msg = (
            f"{prior} is a density of positive numbers, but {leaf.name}, which {pattern!r} matches, is "
            f"{leaf.constraint.name}; use Normal there."
        )
        raise ValueError(msg)
