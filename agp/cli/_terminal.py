"""Help texts, option types, messages about invalid options, and tables on the terminal."""

import argparse
import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from agp.errors import require

LARGEST_SEED = 2**32 - 1
"""The largest seed that scikit-learn accepts."""
WIDTH = 150
"""Width in characters of a table that is written to a file or a pipe."""


class Parser(argparse.ArgumentParser):
    """A parser with a fixed help text."""

    text = ""

    def format_help(self) -> str:
        """Return the help text."""
        return self.text

    def error(self, message: str) -> NoReturn:
        """Print one sentence and exit with status 2."""
        print(f"agp: {message}; see {self.prog} --help.", file=sys.stderr)
        raise SystemExit(2)


def add_command(commands: Any, name: str, text: str, run: Any) -> Parser:
    """Add a parser for a command, with the options that all commands have."""
    parser = commands.add_parser(name)
    parser.text = text
    parser.add_argument("-q", "--quiet", action="store_true")
    parser.add_argument("--debug", action="store_true")
    parser.set_defaults(run=run, written=None)
    return parser


def option(convert: Callable[[str], Any], expected: str, valid: Callable[[Any], bool] = lambda _: True) -> Any:
    """Return an argparse type that converts text with `convert` and raises an error unless the value is valid."""

    def read(text: str) -> Any:
        with contextlib.suppress(ValueError):
            value = convert(text)
            if valid(value):
                return value
        msg = f"must be {expected}, not {text!r}"
        raise argparse.ArgumentTypeError(msg)

    return read


def whole(least: int) -> Any:
    """Return an argparse type for whole numbers of at least `least`."""
    return option(int, f"a whole number of at least {least}", lambda x: x >= least)


POSITIVE = option(float, "a finite number above zero", lambda x: 0.0 < x < math.inf)
FRACTION = option(float, "a number between 0 and 1, such as 0.95", lambda x: 0.0 < x < 1.0)
SEED = option(int, f"a whole number from 0 to {LARGEST_SEED}", lambda x: 0 <= x <= LARGEST_SEED)


class Output:
    """Standard output or standard error. If writing fails, `error` is set, and further text is discarded.

    So a closed pipe or a full disk never stops a training.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        """Write text, and return its length."""
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Write the buffered text."""
        self._try(self._stream.flush)

    def _try(self, action: Callable[[], Any]) -> None:
        if self.error is not None:
            return
        try:
            action()
        except OSError as error:
            self.error = error
            with contextlib.suppress(AttributeError, OSError, ValueError):  # Python writes its buffer at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def forgiving_output() -> Iterator[Output]:
    """Replace standard output and standard error by objects of the class `Output`, and return standard output.

    The descriptors of closed streams are opened, because they would else become those of the next files, into which
    messages would be written.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor
    streams = sys.stdout, sys.stderr
    present = [open(os.devnull, "w") if stream is None else stream for stream in streams]  # noqa: SIM115
    out, err = map(Output, present)
    sys.stdout, sys.stderr = out, err  # type: ignore[assignment]
    try:
        yield out
    finally:
        out.flush()
        err.flush()
        sys.stdout, sys.stderr = streams if None not in streams else present


def is_same_file(one: Any, other: Any) -> bool:
    """Whether two paths are those of one file, also by links."""
    with contextlib.suppress(OSError):
        return os.path.samefile(one, other)
    return os.path.abspath(one) == os.path.abspath(other)


def say(a: argparse.Namespace, *lines: str) -> None:
    """Print lines unless --quiet is given."""
    if lines and not a.quiet:
        print(*lines, sep="\n", flush=True)


def console() -> Any:
    """Return a rich console. If the output is not a terminal, the console is `WIDTH` characters wide."""
    Console = require("rich.console", "the command line needs", "cli").Console
    out = Console(highlight=False)
    return out if out.is_terminal else Console(width=WIDTH, highlight=False)


def print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers_from: int) -> None:
    """Print a table of strings. Columns from index `numbers_from` onwards are right-aligned."""
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
