"""What a model is made of, as a table for people."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from agp import tree
from agp.backend import backend_of, to_numpy
from agp.priors import assigned
from agp.summaries._names import columns_seen

__all__ = ["HEADINGS", "lines_of", "summary"]

SHOWN = 4
"""Entries of a leaf that are shown; of larger ones, the shape and the range."""
NAMED = 20
"""Those of a leaf with an entry for each column that has a name."""
HEADINGS = ("leaf", "value", "constraint", "unit", "prior", "trained")


class Line(NamedTuple):
    """What is said of a leaf."""

    leaf: tree.Leaf
    prior: str
    trained: str
    names: tuple[str, ...] = ()
    """Of the columns that its kernel sees."""

    def cells(self, shown: int) -> tuple[str | list[str], ...]:
        """The cells under `HEADINGS`, each a text or its lines; of arrays up to so many entries are shown."""
        leaf = self.leaf
        constraint = leaf.constraint.name if leaf.role == "parameter" else ""
        unit = "" if leaf.unit is None else _entries(leaf.unit, shown, self.names)
        return leaf.name, _entries(leaf.value, shown, self.names), constraint, unit, self.prior, self.trained


def summary(model: Any, /, *, frozen: str | Sequence[str] = (), columns: Sequence[str] = ()) -> str:
    """A table of the leaves of a model, to print: value, constraint, unit, prior, and whether training moves it.

    Units, which are leaves of their own, stand beside the parameters that are measured in them. Notebooks show the
    same of a model by itself (`agp.summaries.summary_html`).

    Parameters
    ----------
    model
        An `agp.models.Model`, or a part of one.
    frozen
        Patterns of leaf names that a training leaves as they are, as `agp.updates.Adam` takes them; or the names that
        the result of a training has as `frozen`.
    columns
        The names of the columns of the inputs, which then stand beside the entries of lengthscales.

    Raises
    ------
    ValueError
        If a pattern matches no parameter (the parameters are listed).
    """
    rows: list[tuple[str | list[str], ...]] = [HEADINGS]
    rows += [line.cells(SHOWN) for line in lines_of(model, frozen, columns)]
    table = [row for cells in rows for row in zip_longest(*map(_lines, cells), fillvalue="")]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join([type(model).__name__, *lines])


def lines_of(model: Any, frozen: str | Sequence[str] = (), columns: Sequence[str] = ()) -> list[Line]:
    """A line for each leaf of a model but the units; ValueError if a pattern matches no parameter."""
    patterns = tree.patterns(frozen)
    leaves = tree.describe(model)
    names = [leaf.name for leaf in leaves if leaf.role == "parameter"]
    for pattern in patterns:
        if not any(tree.matches(name, pattern) for name in names):
            msg = f"no parameter matches {pattern!r}; the parameters are {', '.join(names)}."
            raise ValueError(msg)
    pairs = assigned(model) if "priors" in vars(model) else []  # parts of models have none
    priors = {leaf.name: repr(prior) for leaf, prior in pairs}
    units = [leaf.unit for leaf in leaves if leaf.unit is not None]  # they have a column of their own
    shown = [leaf for leaf in leaves if leaf.role != "constant" or not any(leaf.value is unit for unit in units)]
    names_of = columns_seen(model, tuple(map(str, columns))) if columns else {}
    return [
        Line(
            leaf,
            priors.get(leaf.name, ""),
            _trained(leaf, patterns),
            names_of.get(leaf.name.rpartition(".")[0], ()),
        )
        for leaf in shown
    ]


def _trained(leaf: tree.Leaf, frozen: tuple[str, ...]) -> str:
    if leaf.role != "parameter":
        return leaf.role
    return "frozen" if any(tree.matches(leaf.name, pattern) for pattern in frozen) else "yes"


def _lines(cell: str | list[str]) -> list[str]:
    return cell if isinstance(cell, list) else [cell]


def _entries(x: Any, shown: int, names: tuple[str, ...]) -> str | list[str]:
    """A leaf as text or, where it has an entry for each of the names, as a line for each of the first ones."""
    host = _host(x)
    if isinstance(host, str):
        return host
    if names and host.shape == (len(names),):
        rest = host[NAMED:]
        more = [f"{rest.size} more: {_spread(rest)}"] if rest.size else []
        return [f"{name}: {_entry(value)}" for name, value in zip(names[:NAMED], host.tolist(), strict=False)] + more
    if host.size <= shown:
        inside = ", ".join(map(_entry, host.ravel().tolist()))
        return inside if host.ndim == 0 else f"[{inside}]"
    return f"{_shape(host)} in {_spread(host)}"


def _host(x: Any) -> Any:
    """A leaf on the host or, where there are no numbers to look at here, what is to be said of it."""
    try:
        B = backend_of(x)
    except TypeError:  # a leaf of a part that waits for data
        return repr(x)
    return to_numpy(x) if B.is_concrete(x) and not B.is_lazy else _shape(x)


def _spread(host: Any) -> str:
    """From the smallest to the largest entry of an array on the host."""
    return f"{host.min():.3g} to {host.max():.3g}"


def _entry(value: Any) -> str:
    """A number of a leaf as text."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _shape(x: Any) -> str:
    return f"[{' x '.join(map(str, x.shape))}]"
