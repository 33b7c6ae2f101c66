# pyright: reportMissingImports=false
"""Values of parameters that users read from `agp.interop.torch.GPModule` or give to it, and the text of limits."""

from collections.abc import Mapping
from typing import Any

import torch

from agp import tree
from agp.priors import Limits

Tensor = torch.Tensor


def values_of(model: Any) -> dict[str, Tensor]:
    """Return copies of the parameters of a model, by name."""
    return {leaf.name: leaf.value.detach().clone() for leaf in tree.describe(model) if leaf.role == "parameter"}


def new_values(
    model: Any, given: Mapping[str, Any], kept: Mapping[str, str], limits: Mapping[str, Limits]
) -> dict[str, Tensor]:
    """Return the leaves of a model that change if these values are given, by pattern of names or entries.

    `kept` contains the names of the leaves that can change, and `limits` the limits of some.
    """
    leaves = {leaf.name: leaf for leaf in tree.describe(model) if leaf.role == "parameter"}
    new: dict[str, Tensor] = {}
    for pattern, value in given.items():
        places = {name: tree.entries_matching(name, tuple(x.value.shape), pattern) for name, x in leaves.items()}
        if not any(places.values()):
            raise ValueError(tree.no_match_message(pattern, leaves, tree.leaves(model, "constant")))
        for name, entries in places.items():
            if entries and name in kept:
                new[name] = _with_entries(name, new[name] if name in new else leaves[name].value, entries, value)
    for name, x in new.items():
        _check_value(leaves[name], x, limits.get(name))
    return new


def _with_entries(name: str, x: Tensor, entries: tuple[int, ...], value: Any) -> Tensor:
    """Return a copy of a leaf with new entries, at places in row-major order."""
    try:
        found = torch.as_tensor(value, dtype=x.dtype, device=x.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"the value of {name} is {value!r}, but must be a number or an array of numbers.") from error
    shape = tuple(x.shape) if len(entries) == x.numel() else ()
    if found.ndim and tuple(found.shape) != shape:
        raise ValueError(f"{name} has the shape {shape}, but its value has the shape {tuple(found.shape)}.")
    flat = x.detach().clone().reshape(-1)
    flat[list(entries)] = found.expand(shape).reshape(-1)
    return flat.reshape(x.shape)


def _check_value(leaf: tree.Leaf, x: Tensor, limits: Limits | None) -> None:
    """Raise ValueError if a value is outside the constraint or the limits of a leaf."""
    if bool(leaf.constraint.is_violated(x)):
        raise ValueError(f"{leaf.name} must be {leaf.constraint.name} and finite, but its value is {x.tolist()}.")
    if limits is not None and not bool(((x >= limits.low) & (x <= limits.high)).all()):
        raise ValueError(f"{leaf.name} must be {text_of_limits(limits)}, but its value is {x.tolist()}.")


def text_of_limits(limits: Limits) -> str:
    """Return the limits of a leaf as text, without the values of fixed entries, which are part of the state."""
    pairs = list(zip(*(end.reshape(-1).tolist() for end in limits), strict=True))
    texts = ["fixed" if low == high else f"between {low:g} and {high:g}" for low, high in pairs]
    return texts[0] if len(set(texts)) == 1 else str(texts)
