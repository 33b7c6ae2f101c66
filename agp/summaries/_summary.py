"""Summaries of models as text and as tables in notebooks."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from agp import tree
from agp.backend import backend_of, to_numpy
from agp.errors import explain_call
from agp.priors import assign_priors, describe_limits, fixed_entries
from agp.summaries._tables import table_html, text_table

MAX_ENTRIES, SHOWN_HTML = 4, 12
"""The numbers of entries above which only the shape and range of a leaf are shown, in text and in HTML."""
MAX_NAMED_ENTRIES = 20
"""The maximum number of entries that are shown with column names."""
HEADINGS = ("leaf", "value", "constraint", "unit", "prior", "trained")
INTERVAL = "90 % interval"
INNER_LAYER = re.compile(r"(^|\.)layers\.[1-9]")
"""What the paths of parts of a deep process contain that do not see the columns of the data."""


class _Line(NamedTuple):
    """The table row of a leaf."""

    leaf: tree.Leaf
    prior: str
    trained: str
    names: tuple[str, ...] = ()
    """The names of the kernel's input columns, for leaves of a kernel."""
    interval: tuple[Any, Any] | None = None
    """The ends of an interval that contains the leaf with probability 90 %, if the model knows it."""

    def cells(self, shown: int, *, intervals: bool = False) -> tuple[str | list[str], ...]:
        """Return the cells of the row, each a string or a list of lines; `shown` is the maximum number of entries."""
        leaf = self.leaf
        constraint = leaf.constraint.name if leaf.role == "parameter" else ""
        unit = "" if leaf.unit is None else _entries(leaf.unit, shown, self.names)
        value = _entries(leaf.value, shown, self.names)
        rest = (constraint, unit, self.prior, self.trained)
        return leaf.name, value, *([self._range(shown)] if intervals else []), *rest

    def _range(self, shown: int) -> str | list[str]:
        """Return the interval as text, in the form of the value."""
        if self.interval is None:
            return ""
        low, high = (_entries(end, shown, self.names) for end in self.interval)
        if isinstance(low, str) and isinstance(high, str):
            return f"{low} to {high}"
        ends = ((a.rpartition(": ")[2], b.rpartition(": ")[2]) for a, b in zip(low, high, strict=True))
        return [f"{a} to {b}" for a, b in ends]


@explain_call
def summary(model: Any, /, *, frozen: str | Sequence[str] = (), columns: Sequence[str] = ()) -> str:
    """Return a text table of a model's leaves, with their values, constraints, units, priors and training status.

    Units are also leaves, but they are shown next to their parameters. If some columns are not used by any kernel, as
    with `ActiveDims`, a last line names them. Notebooks show the same table as HTML
    (`agp.summaries.summary_html`).

    Parameters
    ----------
    model
        An `agp.models.Model`, a part of a model, or a fitted `GPRegressor` or `GPClassifier`, which stands for its
        model (`model_`).
    frozen
        Patterns for the names of leaves that are not trained, as in `agp.updates.Adam`, or a training result's
        attribute `frozen`.
    columns
        The names of the input columns, which are shown next to the entries of lengthscales. Those of an estimator are
        known.

    Raises
    ------
    ValueError
        If a pattern matches no parameter. The message lists the parameters.

    Examples
    --------
    Names of columns label the entries of a lengthscale.

    >>> import numpy as np
    >>> import agp
    >>> kernel = agp.RBF(np.asarray(1.0), np.asarray([0.5, 20.0]))
    >>> print(agp.summary(kernel, frozen="variance", columns=("age", "height")))
    RBF
    leaf         value       constraint  unit  prior  trained
    variance     1           positive                 frozen
    lengthscale  age: 0.5    positive                 yes
                 height: 20
    """
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise TypeError(f"columns is {columns!r}, but must be a list of the names of the input columns.")
    model, columns = _model_of(model, columns)
    headings, cells = _table_of(model, frozen, columns, MAX_ENTRIES)
    rows: list[tuple[str | list[str], ...]] = [headings, *cells]
    table = [row for cells in rows for row in zip_longest(*map(_lines, cells), fillvalue="")]
    unused = unused_columns(model, tuple(map(str, columns)))
    more = [f"not used: {', '.join(unused)}"] if unused else []
    return "\n".join([type(model).__name__, *text_table(table), *more])


def summary_html(model: Any, /, *, frozen: str | Sequence[str] = (), columns: Sequence[str] = ()) -> str:
    """Return a model's parts and the table from `agp.summary` as HTML. Notebooks display models in this form.

    Parameters
    ----------
    model
        As in `agp.summary`.
    frozen, columns
        As in `agp.summary`.

    Raises
    ------
    ValueError
        If a pattern matches no parameter. The message lists the parameters.
    """
    model, columns = _model_of(model, columns)
    parts = [(path, _kind(part)) for path, part in _parts(model).items()]
    headings, rows = _table_of(model, frozen, columns, SHOWN_HTML)
    return table_html(type(model).__name__, parts) + table_html("Leaves", rows, headings)


@runtime_checkable
class _Estimator(Protocol):
    """The interface of `agp.estimators` that this subpackage uses."""

    def model_columns(self) -> list[str]:
        """Return the names of the input columns."""
        ...


def _model_of(x: Any, columns: Sequence[str]) -> tuple[Any, Sequence[str]]:
    """Return the model of a fitted estimator, and the names of its columns unless others are given."""
    if tree.is_model(x) or not isinstance(x, _Estimator):
        return x, columns
    names = x.model_columns()  # raises if it is not fitted
    return vars(x)["model_"], columns or names


def _table_of(model: Any, frozen: Any, columns: Sequence[str], shown: int) -> tuple[tuple[str, ...], list[Any]]:
    """Return the headings and the rows of the table; a column for intervals is there if the model knows them."""
    lines = _lines_of(model, frozen, columns)
    intervals = any(line.interval is not None for line in lines)
    headings = (*HEADINGS[:2], INTERVAL, *HEADINGS[2:]) if intervals else HEADINGS
    return headings, [line.cells(shown, intervals=intervals) for line in lines]


def _parts(model: Any) -> dict[str, Any]:
    """Return the kernels, posteriors and other parts of a model by path, without their nested parts."""
    parts: dict[str, Any] = {}
    for path, part in tree.nodes(model, tree.Part).items():
        if path and not path.startswith(tuple(f"{above}." for above in parts)):
            parts[path] = part
    return parts


def _kind(part: Any) -> str:
    text = tree.structure(part)
    try:
        return f"{text}, {part.count}" if part._is_counted else text
    except (AttributeError, IndexError, TypeError):  # some leaves are set by `from_data`
        return text


def columns_by_kernel(model: Any, columns: tuple[str, ...], /) -> dict[str, tuple[str, ...]]:
    """Map the path of each kernel to the names of its input columns. Kernels of inner layers are omitted."""
    names, narrowed = {}, {"": columns}
    for path, part in tree.nodes(model, tree.Part).items():
        if part._is_kernel and not INNER_LAYER.search(path):
            names[path] = narrowed[max((above for above in narrowed if _is_below(path, above)), key=len)]
            narrowed[path] = part._columns_within(names[path])
    return names


def unused_columns(model: Any, columns: tuple[str, ...], /) -> tuple[str, ...]:
    """Return the names of the input columns on which no kernel depends; none if the mean may depend on them."""
    names = columns_by_kernel(model, columns)
    inner = [path for path in names if not any(_is_below(other, path) for other in names if other != path)]
    if not inner or any(part._reads_inputs for part in tree.nodes(model, tree.Part).values()):
        return ()
    used = {name for path in inner for name in names[path]}
    return tuple(name for name in columns if name not in used)


def _is_below(path: str, above: str) -> bool:
    return not above or path == above or path.startswith(f"{above}.")


def _lines_of(model: Any, frozen: str | Sequence[str], columns: Sequence[str]) -> list[_Line]:
    """Return a table row for each leaf of a model except units. Raise ValueError if a pattern matches no parameter."""
    patterns = tree.patterns(frozen)
    leaves = tree.describe(model)
    names = [leaf.name for leaf in leaves if leaf.role == "parameter"]
    for pattern in patterns:
        if not any(tree.matches(name, tree.whole_pattern(pattern)) for name in names):
            raise ValueError(tree.no_match_message(pattern, names, tree.leaves(model, "constant")))
    priors = _describe_priors(model)
    fixed = fixed_entries(model, patterns)
    units = [leaf.unit for leaf in leaves if leaf.unit is not None]  # shown in their own column
    shown = [leaf for leaf in leaves if leaf.role != "constant" or not any(leaf.value is unit for unit in units)]
    names_of = columns_by_kernel(model, tuple(map(str, columns))) if columns else {}
    intervals = model._leaf_intervals() if "settings" in vars(model) else {}
    shown = [leaf for leaf in shown if not (intervals and leaf.name.startswith("settings."))]  # the intervals show them
    return [
        _Line(
            leaf,
            priors.get(leaf.name, ""),
            _training_role(leaf, fixed.get(leaf.name, ()), tree.followers(model)),
            names_of.get(leaf.name.rpartition(".")[0], ()),
            intervals.get(leaf.name),
        )
        for leaf in shown
    ]


def _describe_priors(model: Any) -> dict[str, str]:
    """Return the priors and limits of a model and of the models in it, as text, by the name of the leaf."""
    found: dict[str, str] = {}
    for path, part in tree.nodes(model, object).items():
        if "priors" not in vars(part):  # parts of models have no priors
            continue
        priors = {leaf.name: repr(prior) for leaf, prior in assign_priors(part)}
        for name, text in describe_limits(part).items():
            priors[name] = ", ".join(filter(None, (priors.get(name, ""), text)))
        found |= {f"{path}.{name}" if path else name: text for name, text in priors.items()}
    return found


def _training_role(leaf: tree.Leaf, fixed: tuple[int, ...], followers: Mapping[str, str]) -> str:
    if leaf.name in followers:
        return f"as {followers[leaf.name]}"
    if leaf.role != "parameter":
        return leaf.role
    if len(fixed) == math.prod(np.shape(_host(leaf.value))) and fixed:
        return "frozen"
    if fixed:
        return f"frozen: {list(fixed)}"
    return "zero" if leaf.constraint is tree.NONNEGATIVE and _is_zero(leaf.value) else "yes"


def _is_zero(x: Any) -> bool:
    host = _host(x)
    return not isinstance(host, str) and not np.any(host)


def _lines(cell: str | list[str]) -> list[str]:
    return cell if isinstance(cell, list) else [cell]


def _entries(x: Any, shown: int, names: tuple[str, ...]) -> str | list[str]:
    """Convert a leaf to text, or to a list with a line for each entry if the entries have names."""
    host = _host(x)
    if isinstance(host, str):
        return host
    if names and host.shape == (len(names),):
        rest = host[MAX_NAMED_ENTRIES:]
        more = [f"{rest.size} more: {_spread(rest)}"] if rest.size else []
        return [
            f"{name}: {_entry(value)}" for name, value in zip(names[:MAX_NAMED_ENTRIES], host.tolist(), strict=False)
        ] + more
    if host.size <= shown:
        inside = ", ".join(map(_entry, host.ravel().tolist()))
        return inside if host.ndim == 0 else f"[{inside}]"
    return f"{_shape(host)} in {_spread(host)}"


def _host(x: Any) -> Any:
    """Convert a leaf to a NumPy array, or to text if its numbers are not available."""
    if isinstance(x, (float, int, list, tuple)):  # the leaf is not yet an array
        return np.asarray(x, dtype=np.float64)
    try:
        B = backend_of(x)
    except TypeError:  # the leaf has no value yet
        return repr(x)
    return to_numpy(x) if B.is_concrete(x) and not B.is_lazy else _shape(x)


def _spread(host: Any) -> str:
    """Return the range of a host array's entries, as text."""
    return f"{host.min():.3g} to {host.max():.3g}"


def _entry(value: Any) -> str:
    """Return an entry of a leaf as text."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _shape(x: Any) -> str:
    return f"[{' x '.join(map(str, x.shape))}]"
