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
from agp.markup import table_html, text_table
from agp.means import Mean
from agp.posteriors import Posterior
from agp.priors import assigned
from agp.processes import Deep

SHOWN, SHOWN_HTML = 4, 12
"""Entries of a leaf that text and notebooks show; of larger leaves, they show the shape and the range."""
NAMED = 20
"""The entries shown of a leaf with an entry for each named column."""
HEADINGS = ("leaf", "value", "constraint", "unit", "prior", "trained")
PARTS = (Kernel, Inducing, Actions, Posterior, Mean, Likelihood)


class Line(NamedTuple):
    """The table row of a leaf."""

    leaf: tree.Leaf
    prior: str
    trained: str
    names: tuple[str, ...] = ()
    """The names of the columns that its kernel sees."""

    def cells(self, shown: int) -> tuple[str | list[str], ...]:
        """The cells under `HEADINGS`, each a text or a list of lines; arrays show up to `shown` entries."""
        leaf = self.leaf
        constraint = leaf.constraint.name if leaf.role == "parameter" else ""
        unit = "" if leaf.unit is None else _entries(leaf.unit, shown, self.names)
        return leaf.name, _entries(leaf.value, shown, self.names), constraint, unit, self.prior, self.trained


def summary(model: Any, /, *, frozen: str | Sequence[str] = (), columns: Sequence[str] = ()) -> str:
    """A table of the leaves of a model as text: value, constraint, unit, prior, and whether it is trained.

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
    return "\n".join([type(model).__name__, *text_table(table)])


def summary_html(model: Any, /, *, frozen: str | Sequence[str] = (), columns: Sequence[str] = ()) -> str:
    """The parts of a model and the table of `agp.summary` as HTML, which notebooks show for a model.

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
    """The kernels, posteriors and so on of a model, by path; their own parts are not listed."""
    found: dict[str, Any] = {}
    for path, node in tree.nodes(model, object).items():
        if path and isinstance(node, PARTS) and not path.startswith(tuple(f"{above}." for above in found)):
            found[path] = node
    return found


def _kind(part: Any) -> str:
    text = tree.structure(part)
    try:
        return f"{text}, {part.count}" if isinstance(part, (Inducing, Actions)) else text
    except (AttributeError, IndexError, TypeError):  # some leaves are set by `from_data`
        return text


def columns_seen(model: Any, columns: tuple[str, ...], /) -> dict[str, tuple[str, ...]]:
    """The columns that each kernel sees, by its path; kernels of inner layers are left out."""
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
    """A line for each leaf of a model except units. ValueError if a pattern matches no parameter."""
    patterns = tree.patterns(frozen)
    leaves = tree.describe(model)
    names = [leaf.name for leaf in leaves if leaf.role == "parameter"]
    for pattern in patterns:
        if not any(tree.matches(name, pattern) for name in names):
            msg = f"no parameter matches {pattern!r}; the parameters are {', '.join(names)}."
            raise ValueError(msg)
    pairs = assigned(model) if "priors" in vars(model) else []  # parts of models have none
    priors = {leaf.name: repr(prior) for leaf, prior in pairs}
    units = [leaf.unit for leaf in leaves if leaf.unit is not None]  # shown in their own column
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
    """A leaf as text or, if it has an entry for each name, as a line for each of the first entries."""
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
    """A leaf as a NumPy array, or a text if its numbers are not available."""
    try:
        B = backend_of(x)
    except TypeError:  # set by `from_data`
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
