"""Tables on the terminal, by rich."""

from collections.abc import Iterable, Sequence
from typing import Any

from agp.errors import not_installed

__all__ = ["console", "print_table"]

WIDTH = 150
"""Columns of a table that goes to a file or pipe."""


def console() -> Any:
    """The console, wide enough for a table where the output is no terminal."""
    try:
        from rich.console import Console
    except ImportError as error:
        msg = f"the command line needs {not_installed('rich', 'cli')}."
        raise ImportError(msg) from error
    out = Console(highlight=False)
    return out if out.is_terminal else Console(width=WIDTH, highlight=False)


def print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers_from: int) -> None:
    """Print rows of text; columns from `numbers_from` on are aligned to the right."""
    out = console()
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for i, name in enumerate(header):
        last = i == len(header) - 1
        table.add_column(name, justify="right" if i >= numbers_from else "left", no_wrap=not last, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    out.print(table)
