"""The parts and leaves of a model, as text and as tables in notebooks."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from agp import tree
from agp.actions import Actions
from agp.backend import backend_of, to_numpy
from agp.inducing import Inducing
from agp.kernels import ActiveDims, Kernel
from agp.likelihoods import Likelihood
from agp.markup import table_html
from agp.means import Mean
from agp.posteriors import Posterior
from agp.priors import assigned
from agp.processes import Deep

__all__ = ["columns_seen", "summary", "summary_html"]

SHOWN, SHOWN_HTML = 4, 12
"""Entries of a leaf that text and notebooks show; of larger leaves, they show the shape and the range."""
NAMED = 20
"""Those of a leaf with an entry for each column that has a name."""
HEADINGS = ("leaf", "value", "constraint", "unit", "prior", "trained")
PARTS = (Kernel, Inducing, Actions, Posterior, Mean, Likelihood)


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

    Units, which are leaves too, stand beside the parameters that are measured in them. Notebooks show the same table
    (`agp.summaries.summary_html`).

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
    rows += [line.cells(SHOWN) for line in _lines_of(model, frozen, columns)]
    table = [row for cells in rows for row in zip_longest(*map(_lines, cells), fillvalue="")]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join([type(model).__name__, *lines])


def summary_html(model: Any, /, *, frozen: str | Sequence[str] = (), columns: Sequence[str] = ()) -> str:
    """The kinds of the parts of a model, and the table of `agp.summary`, as HTML: what notebooks show of a model.

    Parameters
    ----------
    model
        An `agp.models.Model`, or any other class made by `agp.tree.model`.
    frozen, columns
        As `agp.summary`.

    Raises
    ------
    ValueError
        If a pattern matches no parameter (the parameters are listed).
    """
    parts = [(path, _kind(part)) for path, part in _parts(model).items()]
    rows = (line.cells(SHOWN_HTML) for line in _lines_of(model, frozen, columns))
    return table_html(type(model).__name__, parts) + table_html("Leaves", rows, HEADINGS)


def _parts(model: Any) -> dict[str, Any]:
    """The kernels, posteriors and so on within a model, by their paths; what they are made of is not listed again."""
    found: dict[str, Any] = {}
    for path, node in tree.nodes(model, object).items():
        if path and isinstance(node, PARTS) and not path.startswith(tuple(f"{above}." for above in found)):
            found[path] = node
    return found


def _kind(part: Any) -> str:
    text = tree.structure(part)
    try:
        return f"{text}, {part.count}" if isinstance(part, (Inducing, Actions)) else text
    except (AttributeError, IndexError, TypeError):  # its leaves wait for data
        return text


def columns_seen(model: Any, columns: tuple[str, ...], /) -> dict[str, tuple[str, ...]]:
    """The columns that each kernel sees, by its path; those of inner layers see none."""
    inner = [
        f"{tree.joined(path, 'layers', str(i))}."
        for path, deep in tree.nodes(model, Deep).items()
        for i in range(1, len(deep.layers))
    ]
    found, narrowed = {}, {"": columns}
    for path, kernel in tree.nodes(model, Kernel).items():
        if path.startswith(tuple(inner)):
            continue
        found[path] = narrowed[max((above for above in narrowed if _is_below(path, above)), key=len)]
        if isinstance(kernel, ActiveDims):
            named = dict(enumerate(found[path]))
            narrowed[tree.joined(path, "kernel")] = tuple(named[i] for i in kernel.columns if i in named)
    return found


def _is_below(path: str, above: str) -> bool:
    return not above or path == above or path.startswith(f"{above}.")


def _lines_of(model: Any, frozen: str | Sequence[str] = (), columns: Sequence[str] = ()) -> list[Line]:
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
    return to_numpy(x) if B.is_concrete(x) and not B.rows_elsewhere else _shape(x)


def _spread(host: Any) -> str:
    """From the smallest to the largest entry of an array on the host."""
    return f"{host.min():.3g} to {host.max():.3g}"


def _entry(value: Any) -> str:
    """A number of a leaf as text."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _shape(x: Any) -> str:
    return f"[{' x '.join(map(str, x.shape))}]"
