"""Small tables as text or as HTML. The HTML inherits the notebook's colours, and has no style sheets or scripts."""

import html
from collections.abc import Callable, Iterable, Sequence
from typing import Any

ROWS, LETTERS = 60, 300
"""Maximum number of rows in a table, and of characters in a line."""
TABLE = "border-collapse:collapse;color:inherit;background:transparent;margin:0.3em 0 0.8em 0"
CAPTION = "caption-side:top;text-align:left;font-weight:bold;color:inherit;padding:0.2em 0"
CELL = (
    "text-align:left;vertical-align:top;color:inherit;background:transparent;padding:0.15em 1.2em 0.15em 0;"
    "border:0;border-bottom:1px solid rgba(128,128,128,0.3)"
)


def table_html(title: str, rows: Iterable[Sequence[Any]], heads: Sequence[str] = ()) -> str:
    """Return a table as HTML, with all its text escaped.

    Cells hold text, numbers, Booleans, or lists of lines. NaN and None give empty cells. Empty columns are left out,
    and only the first 60 rows are shown. If no column `heads` are given, the first cell of each row is its heading.
    """
    rows = [*rows]
    texts, more = [[_lines(cell) for cell in row] for row in rows[:ROWS]], len(rows) - ROWS
    kept = [i for i, column in enumerate(zip(*texts, strict=True)) if any(map(any, column))]
    body = [_row([row[i] for i in kept], headed=not heads) for row in texts]
    top = [_row([[heads[i].replace("_", " ")] for i in kept], tag="th")] if heads and kept else []
    end = [_row([[f"and {more:,} more"]])] if more > 0 else []
    caption = f'<caption style="{CAPTION}">{_escape(title)}</caption>'
    return f'<table style="{TABLE}">{caption}<tbody>{"".join([*top, *body, *end])}</tbody></table>'


def text_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a text table, with the cells of each column padded to equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def html_with_fallback(made: Callable[[], str], x: Any, /) -> str:
    """Return the HTML of x, or its text if there is an error, so that notebooks can display every object."""
    try:
        return made()
    except Exception:
        return f"<pre>{_escape(_text(x))}</pre>"


def _text(x: Any) -> str:
    try:
        return repr(x)
    except Exception:
        return type(x).__name__


def _row(cells: list[list[str]], *, tag: str = "td", headed: bool = False) -> str:
    tags = ["th" if headed else tag, *[tag] * len(cells)]
    return f"<tr>{''.join(map(_cell, tags, cells))}</tr>"


def _cell(tag: str, lines: list[str]) -> str:
    return f'<{tag} style="{CELL}">{"<br>".join(map(_escape, lines))}</{tag}>'


def _lines(cell: Any) -> list[str]:
    if isinstance(cell, list):
        return [line for one in cell for line in _lines(one)]
    if cell is None or cell != cell:
        return [""]
    if isinstance(cell, bool):
        return ["yes" if cell else "no"]
    return [f"{cell:.5g}" if isinstance(cell, float) else str(cell)]


def _escape(text: str) -> str:
    return html.escape(text if len(text) <= LETTERS else f"{text[:LETTERS]} ...")
