"""What a model is made of, as a table for people."""

from collections.abc import Sequence
from typing import Any

from agp import tree
from agp.backend import to_numpy
from agp.priors import assigned

__all__ = ["summary"]

SHOWN = 4
"""Entries of a leaf that are shown; of larger ones, the shape and the range."""
HEADINGS = ("leaf", "value", "constraint", "unit", "prior", "trained")


def summary(model: Any, /, *, frozen: str | Sequence[str] = ()) -> str:
    """A table of the leaves of a model, to print: value, constraint, unit, prior, and whether training moves it.

    Units, which are leaves of their own, stand beside the parameters that are measured in them.

    Parameters
    ----------
    model
        An `agp.models.Model`.
    frozen
        Patterns of leaf names that a training leaves as they are, as `agp.updates.Adam` takes them.

    Raises
    ------
    ValueError
        If a pattern matches no parameter (the parameters are listed).
    """
    patterns = (frozen,) if isinstance(frozen, str) else tuple(frozen)
    leaves = tree.describe(model)
    names = [leaf.name for leaf in leaves if leaf.role == "parameter"]
    for pattern in patterns:
        if not any(tree.matches(name, pattern) for name in names):
            msg = f"no parameter matches {pattern!r}; the parameters are {', '.join(names)}."
            raise ValueError(msg)
    priors = {leaf.name: prior for leaf, prior in assigned(model)}
    units = [leaf.unit for leaf in leaves if leaf.unit is not None]  # they have a column of their own
    shown = [leaf for leaf in leaves if leaf.role != "constant" or not any(leaf.value is unit for unit in units)]
    rows = [HEADINGS, *(_row(leaf, priors.get(leaf.name), patterns) for leaf in shown)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([type(model).__name__, *lines])


def _row(leaf: tree.Leaf, prior: Any, frozen: tuple[str, ...]) -> tuple[str, ...]:
    unit = "" if leaf.unit is None else _numbers(leaf.unit)
    if leaf.role != "parameter":
        return leaf.name, _numbers(leaf.value), "", unit, "", leaf.role
    moves = "frozen" if any(tree.matches(leaf.name, pattern) for pattern in frozen) else "yes"
    return leaf.name, _numbers(leaf.value), leaf.constraint.name, unit, "" if prior is None else repr(prior), moves


def _numbers(x: Any) -> str:
    """The entries where they are few; else the shape, and the smallest and largest entry."""
    host = to_numpy(x)
    if host.size <= SHOWN:
        inside = ", ".join(f"{value:.4g}" for value in host.ravel())
        return inside if host.ndim == 0 else f"[{inside}]"
    return f"[{' x '.join(map(str, host.shape))}] in {host.min():.3g} to {host.max():.3g}"
