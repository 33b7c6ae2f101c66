"""What training leaves behind, as notebooks show it."""

from collections.abc import Mapping
from typing import Any

from agp import tree
from agp.markup import table_html
from agp.summaries import summary_html

__all__ = ["result_html"]

SHOWN = 12
"""Entries of a list or a dictionary that are shown."""
FIRST = ("message", "converged", "learned", "bound", "kernel")


def result_html(result: Any, /) -> str:
    """The fields of a result as HTML: single ones in a table, lists of named tuples as tables, and the model."""
    fields = dict(vars(result))
    trained, trace, frozen = fields.pop("model", None), fields.pop("trace", {}), fields.pop("frozen", ())
    bounds = {} if "bound" in fields else {"last bound": trace.get("bound", [])[-1:]}
    ordered = {name: fields[name] for name in FIRST if name in fields} | bounds | fields
    tables = {name: value for name, value in ordered.items() if _is_table(value)}
    facts = [(name.replace("_", " "), _cell(value)) for name, value in ordered.items() if name not in tables]
    html = [table_html(type(result).__name__, (fact for fact in facts if fact[1] not in ("", [], None)))]
    html += [table_html(name.capitalize(), rows, rows[0]._fields) for name, rows in tables.items()]
    return "".join([*html, summary_html(trained, frozen=frozen)] if tree.is_model(trained) else html)


def _is_table(value: Any) -> bool:
    """Whether a value is a list of named tuples."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], tuple)


def _cell(value: Any) -> Any:
    """A field as the cell of a table: of long ones, the beginning."""
    if isinstance(value, Mapping):
        value = [f"{name}: {one}" for name, one in value.items()]
    if not isinstance(value, list):
        return value
    return value if len(value) <= SHOWN else [*value[:SHOWN], f"and {len(value) - SHOWN:,} more"]
