"""Help texts, option types, messages about invalid options, and tables on the terminal."""

import argparse
import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from agp.errors import name_remedy, quote, require, unknown_name_message
from agp.io import check_replaceable

ERRORS = (ArithmeticError, ImportError, MemoryError, OSError, RuntimeError, TypeError, ValueError)
"""The errors that commands report in one sentence. Others are bugs, and keep their traceback."""
LARGEST_SEED = 2**32 - 1
"""The largest seed that scikit-learn accepts."""
WIDTH = 150
"""Width in characters of a table that is written to a file or a pipe."""
MAX_WIDTH = 10_000
"""No table is wider than this number of characters."""


class Parser(argparse.ArgumentParser):
    """A parser with a fixed help text."""

    text = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.options: list[str] = []
        super().__init__(*args, **kwargs)

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:  # type: ignore[override]
        """Add an argument, and note its options, for suggestions."""
        self.options += [name for name in names if name.startswith("--")]
        return super().add_argument(*names, **settings)

    def check_options(self, argv: Sequence[str]) -> None:
        """Exit with a suggestion if an option is unknown. argparse would first report what is missing."""
        for given in argv[: argv.index("--")] if "--" in argv else argv:
            name = given.partition("=")[0]
            if given.startswith("--") and " " not in name and not any(one.startswith(name) for one in self.options):
                self.error(f"unknown option {name}; {name_remedy(name, self.options).removesuffix('.')}")

    def format_help(self) -> str:
        """Return the help text."""
        return self.text

    def error(self, message: str) -> NoReturn:
        """Print one sentence and exit with status 2."""
        end = "" if message.endswith("?") else f"; see {self.prog} --help."
        print(f"agp: {message}{end}", file=sys.stderr)
        raise SystemExit(2)


def add_command(commands: Any, name: str, text: str, run: Any) -> Parser:
    """Add a parser for a command, with the options that all commands have."""
    parser = commands.add_parser(name)
    parser.text = text
    parser.add_argument("-q", "--quiet", action="store_true")
    parser.add_argument("--debug", action="store_true")
    parser.set_defaults(run=run, written=())
    return parser


def option(convert: Callable[[str], Any], expected: str, valid: Callable[[Any], bool] = lambda _: True) -> Any:
    """Return an argparse type that converts text with `convert` and raises an error unless the value is valid."""

    def read(text: str) -> Any:
        with contextlib.suppress(ValueError):
            value = convert(text)
            if valid(value):
                return value
        raise argparse.ArgumentTypeError(f"must be {expected}, not {text!r}")

    return read


def one_of(what: str, names: Iterable[str], explain: Callable[[str, list[str]], str] | None = None) -> Any:
    """Return an argparse type for one of several names. `explain` returns the message about another name."""
    known, explain = [*names], explain or partial(unknown_name_message, what)

    def read(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(explain(text, known).removesuffix("."))
        return text

    return read


def whole(least: int) -> Any:
    """Return an argparse type for whole numbers of at least `least`."""
    return option(int, f"a whole number of at least {least}", lambda x: x >= least)


POSITIVE = option(float, "a finite number above zero", lambda x: 0.0 < x < math.inf)
FRACTION = option(float, "a number between 0 and 1, such as 0.95", lambda x: 0.0 < x < 1.0)
SEED = option(int, f"a whole number from 0 to {LARGEST_SEED}", lambda x: 0 <= x <= LARGEST_SEED)


SPELLINGS = {"set missing='impute' before fit": "fit with --missing impute", "missing='impute'": "--missing impute"}
SPELLINGS |= {"name it in keep": "name it in --keep", "[sklearn]": "[cli]"}
SPELLINGS |= {"(max_steps)": "(--max-steps)", "(max_seconds)": "(--max-seconds)"}
SPELLINGS |= {"raise tolerance": "raise --tolerance"}
"""How messages of the estimators are spelled in the shell."""


def in_shell(text: Any) -> str:
    """Return a message of the library on one line, with the names of options in place of arguments."""
    line = " ".join(str(text).split())
    for argument, its_option in SPELLINGS.items():
        line = line.replace(argument, its_option)
    return line


def quote_names(names: Iterable[str]) -> str:
    """Quote names, and join them with commas."""
    return ", ".join(map(quote, names))


class Output:
    """Standard output or standard error. If writing fails, `error` is set, and further text is discarded.

    So a closed pipe or a full disk never stops a training. Characters that the stream cannot encode are escaped.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.error: OSError | ValueError | None = None

    def write(self, text: str) -> int:
        """Write text, and return its length."""
        self._try(lambda: self._write(text))
        return len(text)

    def flush(self) -> None:
        """Write the buffered text."""
        self._try(self._stream.flush)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
        except UnicodeEncodeError:
            encoding = self._stream.encoding
            self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))

    def _try(self, action: Callable[[], Any]) -> None:
        if self.error is not None:
            return
        try:
            action()
        except (OSError, ValueError) as error:  # ValueError: a library has closed the stream
            self.error = error
            with contextlib.suppress(AttributeError, OSError, ValueError):  # Python writes its buffer at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def forgiving_output() -> Iterator[Output]:
    """Replace standard output and standard error by objects of the class `Output`, and return standard output.

    The descriptors of closed streams are opened, also for processes that the command starts, because they would else
    become those of the next files, into which messages would be written.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free descriptor
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


def file_identity(path: Any) -> Any:
    """Return a value that all paths of one file share, also links: its device and number, or else its absolute path."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # ValueError: the name contains a NUL character
        return os.path.abspath(path)
    return found.st_dev, found.st_ino


def check_outputs(outs: Iterable[Path], **sources: Iterable[Any]) -> None:
    """Raise a ValueError if an output would replace a file that the command reads, or anything but a regular file.

    `sources` are the paths that the command reads, by what they are.
    """
    names = {file_identity(path): what for what, paths in sources.items() for path in paths}
    for out in outs:
        if what := names.get(file_identity(out)):
            raise ValueError(f"--out is {out}, which is the {what} itself; name another file.")
        check_replaceable(out)


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
    """Print a table of strings. Columns from index `numbers_from` onwards are right-aligned.

    If the terminal is too narrow for these columns, they are distributed over several tables, each of which begins with
    the other columns. No text is cut off.
    """
    out, rows = console(), [*rows]
    from rich import box
    from rich.cells import cell_len
    from rich.markup import escape
    from rich.measure import Measurement
    from rich.table import Table

    def table(columns: Sequence[int], title: str | None = None) -> Any:
        made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        for i in columns:
            lines = [line for row in [header, *rows] for line in row[i].splitlines()]
            number, whole = i >= numbers_from, max(map(cell_len, lines), default=0)
            least = whole if number or i < columns[-1] else None  # text in the last column may be folded
            made.add_column(escape(header[i]), justify="right" if number else "left", min_width=least, overflow="fold")
        for row in rows:
            made.add_row(*(escape(row[i]) for i in columns))
        return made

    def least_width(columns: Sequence[int]) -> int:
        return Measurement.get(out, out.options.update(max_width=MAX_WIDTH), table(columns)).minimum

    names = [*range(min(numbers_from, len(header)))]
    parts = [names]
    for i in range(len(names), len(header)):
        fits = parts[-1] == names or least_width([*parts[-1], i]) <= out.width
        parts = [*parts[:-1], [*parts[-1], i]] if fits else [*parts, [*names, i]]
    out.width = max(out.width, *map(least_width, parts))  # otherwise the terminal breaks lines
    for part in parts:
        out.print(table(part, title if part is parts[0] else None))
