"""What a model is made of, as notebooks show it."""

from collections.abc import Sequence
from typing import Any

from agp import tree
from agp.actions import Actions
from agp.inducing import Inducing
from agp.kernels import Kernel
from agp.likelihoods import Likelihood
from agp.markup import table_html
from agp.means import Mean
from agp.posteriors import Posterior
from agp.summaries._summary import HEADINGS, lines_of

__all__ = ["summary_html"]

SHOWN = 12
"""Entries of a leaf that are shown."""
PARTS = (Kernel, Inducing, Actions, Posterior, Mean, Likelihood)


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
    rows = (line.cells(SHOWN) for line in lines_of(model, frozen, columns))
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
