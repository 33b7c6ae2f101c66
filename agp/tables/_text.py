"""Tables as text: compressed or not, in any encoding and dialect, with comments before the header."""

import bz2
import csv
import gzip
import io
import itertools
import lzma
import re
import threading
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agp.errors import quote, require
from agp.tables._cells import Column, nw
from agp.tables._numbers import Style, plain_number, read_numbers

SEPARATORS = ("\t", ";", "|", ",")
"""The separators, most reliable first. The comma is last, because it also occurs in numbers and in text."""
BLANKS = r"\s+"
ENCODINGS = ("utf-8-sig", "cp1252", "latin-1")
SAMPLE = 50
"""The number of lines from which the dialect is inferred."""
NUMBER = re.compile(r"\s*[-+]?(\d+[.,]?\d*|[.,]\d+)([eE][-+]?\d+)?\s*")
DECIMAL_COMMA = re.compile(r"\s*[-+]?(?:\d*|[1-9]\d{0,2}(?:\.\d{3})+),\d+\s*")
DECIMAL_POINT = re.compile(r"\s*[-+]?\d*\.\d+([eE].*)?\s*")
GROUPED = re.compile(r"\s*[-+]?[1-9]\d{0,2}(?:\.\d{3})+\s*")
"""Matches whole numbers whose points may separate thousands, such as "1.234"."""
THOUSANDS = re.compile(r"\s*[-+]?[1-9]\d{0,2}(?:,\d{3})+\s*")
"""Matches whole numbers whose commas may separate thousands, such as "1,234"."""
COMMENT = re.compile(r"\s*#+[ ]*")
MAX_CELL_CHARS = 80
LARGEST_CELL = 2**31 - 1
"""The maximum number of characters of a cell: the largest limit that Python's csv module takes on every platform."""
_CELL_LIMIT = threading.Lock()


class Dialect(NamedTuple):
    """The dialect of a text file."""

    encoding: str
    separator: str
    decimal: str = "."
    trailing: bool = False
    """Whether every row except the header ends with a separator."""
    before: int = 0
    """The number of lines before the header."""
    mark: int = 0
    """The number of characters of the header's line before its first name, as in "# x y"."""
    named: bool = False
    """Whether each row begins with a cell that has no name in the header, such as the name of the row."""


# -- streams of bytes and characters ----------------------------------------------------------------------------------


def _open_zip(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:  # the member keeps the file open
        members = [one for one in archive.infolist() if not one.is_dir() and not one.filename.startswith("__MACOSX/")]
        if len(members) != 1:
            raise ValueError(f"{path} holds {len(members)} files, but must hold one table; unpack it, and name one.")
        return archive.open(members[0])


def _open_zstd(path: Path) -> Any:
    return require("pyarrow", "reading .zst files needs", "cli").input_stream(str(path), compression="zstd")


COMPRESSIONS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zip": _open_zip,
    ".zst": _open_zstd,
}
"""How compressed files are opened, by the last part of their names."""
DAMAGED = (EOFError, NotImplementedError, OSError, RuntimeError, lzma.LZMAError, zipfile.BadZipFile, zlib.error)
"""The errors of damaged or encrypted archives."""


@contextmanager
def open_binary(path: Path) -> Iterator[Any]:
    """Open a file of bytes that may be compressed. Raise ValueError if it is damaged."""
    opener = COMPRESSIONS.get(path.suffix.lower())
    try:
        with path.open("rb") if opener is None else opener(path) as file:
            yield file
    except DAMAGED as error:
        if opener is None:
            raise
        said = (str(error).strip() or "the file ends too early").splitlines()[0].removesuffix(".")[:MAX_CELL_CHARS]
        raise ValueError(f"{path} cannot be unpacked ({said}); it is damaged, encrypted or incomplete.") from error


@contextmanager
def _open_text(path: Path, dialect: Dialect) -> Iterator[io.TextIOWrapper]:
    """Open a text file at the first name of its header."""
    with open_binary(path) as binary, io.TextIOWrapper(binary, encoding=dialect.encoding, newline="") as file:
        for _ in range(dialect.before):
            file.readline()
        file.read(dialect.mark)
        yield file


@contextmanager
def _without_cell_limit() -> Iterator[None]:
    """Lift the limit of Python's csv module on the characters of a cell for a while."""
    with _CELL_LIMIT:
        usual = csv.field_size_limit(LARGEST_CELL)
        try:
            yield
        finally:
            csv.field_size_limit(usual)


# -- the dialect ------------------------------------------------------------------------------------------------------


def read_text(path: Path, texts: set[str], decimal: str = "") -> tuple[Any, tuple[str, ...], Dialect]:
    """Read a text file. Return a narwhals data frame, remarks on how it was read, and its dialect.

    `decimal` is the decimal mark of another file with the same columns, which decides if the cells do not.
    """
    with _without_cell_limit():
        dialect, lines, comments = _sniff(path, decimal)
        names = [name.strip() for name in _cells(lines[:1], dialect)[0]]
    if all(NUMBER.fullmatch(name) for name in names):
        hint = ", or a separator other than , ; | and tab" if len(names) == 1 else ""
        raise ValueError(
            f"{path} seems to have no header line{hint}: its first line is {quote(lines[0].strip())}; "
            "add a line with the names of the columns."
        )
    frame = _parse(path, dialect, texts)
    notes = []
    if dialect.encoding not in ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"):
        notes.append(f"read as {dialect.encoding} text, because it is not UTF-8")
    if comments:
        notes.append(f"comment lines before the header that are skipped: {comments}")
    if dialect.decimal == ",":
        notes.append("numbers have decimal commas")
    if dialect.mark:
        notes.append(f"the names of the columns are those of the comment in line {dialect.before + 1}")
    if dialect.named:
        frame = frame.reset_index(drop=True)
        notes.append("the first cell of each row has no name in the header and is left out")
    frame.columns = [f"{name}".strip() for name in frame.columns]
    twice, count = max(((name, n) for name, n in Counter(names).items() if name), key=lambda x: x[1], default=("", 1))
    if count > 1:
        raise ValueError(f"{path} has {count} columns named {quote(twice)}; give each column a different name.")
    if dialect.decimal == "," and (grouped := _read_groups(frame, texts)):
        notes.append(f"points in the numbers of column {quote(grouped[0])} are read as separators of thousands")
    return nw.from_native(frame), tuple(notes), dialect


def _length_error(path: Path, line: int, found: int, expected: int) -> ValueError:
    return ValueError(
        f"{path}: line {line} has {found} cells, but should have {expected}; quote cells that hold a separator."
    )


def _sniff(path: Path, usual: str) -> tuple[Dialect, list[str], int]:
    """Infer the dialect of a text file. Return it, the header with the next lines, and the number of comments."""
    with open_binary(path) as file:
        start = file.read(4096)
    if not start.strip():
        raise ValueError(f"{path} is empty.")
    encoding = _encoding(path, start)
    before: list[str] = []
    with _open_text(path, Dialect(encoding, "")) as file:
        lines = []
        for line in file:
            if line.strip(" ,;|\t\r\n") and not line.lstrip().startswith("#"):
                lines.append(line)
                break
            before.append(line)
        lines += itertools.islice((line for line in file if line.strip()), SAMPLE - 1)
    comments = [i for i, line in enumerate(before) if line.lstrip().startswith("#")]
    if not lines and not comments:
        raise ValueError(f"{path} is empty.")
    dialect = Dialect(encoding, *_separator(lines)[:1], before=len(before))
    if comments and (mark := _mark_of_header(before[comments[-1]], lines, dialect)) is not None:
        dialect = dialect._replace(before=comments.pop(), mark=mark)
        lines = [before[dialect.before][mark:], *lines]
    elif not lines:
        raise ValueError(f"{path} has no rows, only comments.")
    separator, fields = _separator(lines)
    dialect = dialect._replace(separator=separator)
    rows = _cells(lines, dialect)
    decimal = _decimal_mark(rows[1:], separator, usual)
    complete = rows[1:-1] if len(lines) == SAMPLE and len(rows) > 2 else rows[1:]  # the last row may go on
    longer = [row for row in complete if len(row) == fields + 1]
    is_longer = 0 < len(longer) == len(complete)
    trailing = is_longer and not any(row[-1].strip() for row in longer)
    if complete and not is_longer and len(complete[0]) > fields:  # pandas would shift the cells of all rows
        line = [*itertools.islice(_lines_of_rows(path, dialect), 2)][-1]
        raise _length_error(path, line, len(complete[0]), fields)
    dialect = dialect._replace(decimal=decimal, trailing=trailing, named=is_longer and not trailing)
    return dialect, lines, len(comments)


def _decimal_mark(rows: list[list[str]], separator: str, usual: str) -> str:
    """Return the decimal mark of a file: a comma if some cells have one that cannot separate thousands.

    In files with semicolons, which programs write where the comma is the decimal mark, it may also separate three
    digits, as in "1,234", unless the column has whole numbers as well. If the cells do not decide, `usual` does.
    """
    columns = [*itertools.zip_longest(*rows, fillvalue="")] if separator != "," else []
    points = [cell for column in columns for cell in column if DECIMAL_POINT.fullmatch(cell)]
    if not columns or not all(map(GROUPED.fullmatch, points)):
        return "."
    likely = usual == ","
    for column in columns:
        commas = [cell for cell in column if DECIMAL_COMMA.fullmatch(cell)]
        if not all(map(THOUSANDS.fullmatch, commas)):
            return ","
        numbers = [cell for cell in column if NUMBER.fullmatch(cell) or cell in commas]
        likely |= separator == ";" and not usual and 0 < len(commas) == len(numbers)
    return "," if likely else "."


def _mark_of_header(comment: str, lines: list[str], dialect: Dialect) -> int | None:
    """Return how many characters of a comment are before the names of the columns, or None if it is no header.

    It is one if it has as many cells as the lines after it, and the first of them seems to be a row: it has numbers
    where the others have them or, in a table without numbers, the cells of the comment are single words.
    """
    opening = COMMENT.match(comment)
    assert opening is not None
    mark = 0 if comment[opening.end() : opening.end() + 1] in (*SEPARATORS, "\t") else opening.end()
    if not lines:
        return mark
    rows = _cells(lines, dialect)
    kinds = [[NUMBER.fullmatch(cell) is not None for cell in row] for row in rows]
    names = _cells([comment[mark:]], dialect)[0] if comment[mark:].strip() else []
    counts = (len(rows[0]), len(rows[0]) - 1) if all(kinds[0]) else (len(rows[0]),)
    is_row = any(kinds[0]) and (len(rows) == 1 or any(kind == kinds[0] for kind in kinds[1:]))
    is_row |= not any(map(any, kinds)) and all(len(name.split()) == 1 for name in names)
    is_named = len(names) in counts and not any(":" in name for name in names)
    return mark if names and is_named and is_row else None


def _encoding(path: Path, start: bytes) -> str:
    """Return the encoding of a text file. Raise ValueError if it is not text."""
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        names: tuple[str, ...] = ("utf-16",)
    else:
        wide = [name for name, x in (("utf-16-le", start[1::2]), ("utf-16-be", start[::2])) if 2 * x.count(0) > len(x)]
        names = (*wide, *ENCODINGS) if b"\0" not in start or wide else ()
    if found := next((name for name in names if _decodes(path, name)), None):
        return found
    raise ValueError(f"{path} is not text; save the table as text, Parquet or npz, with the matching file name ending.")


def _decodes(path: Path, encoding: str) -> bool:
    """Whether the whole file is text of an encoding, without NUL characters."""
    try:
        with _open_text(path, Dialect(encoding, "")) as file:
            while chunk := file.read(2**20):
                if "\0" in chunk:
                    return False
    except UnicodeError:
        return False
    return True


def _separator(lines: list[str]) -> tuple[str, int]:
    """Return a separator with which every line has as many cells as the header, and that number of cells."""
    best = (",", len(next(csv.reader(lines[:1]), [""])))
    for separator in SEPARATORS:
        counts = [len(row) for row in csv.reader(lines, delimiter=separator) if row]
        if counts and counts[0] > 1 and all(n in (counts[0], counts[0] + 1) for n in counts):
            return separator, counts[0]
        if counts and counts[0] > best[1]:
            best = separator, counts[0]
    if best[1] > 1 or not lines:
        return best
    counts = [len(line.split()) for line in lines]
    even = len(set(counts[1:])) < 2 and all(n in (counts[0], counts[0] + 1) for n in counts[1:])
    return (BLANKS, counts[0]) if counts[0] > 1 and even else best


def _cells(lines: Iterable[str], dialect: Dialect) -> list[list[str]]:
    if dialect.separator == BLANKS:
        return [line.split() for line in lines]
    return [row for row in csv.reader(lines, delimiter=dialect.separator) if row]


# -- the cells --------------------------------------------------------------------------------------------------------


def _parse(path: Path, dialect: Dialect, texts: set[str]) -> Any:
    pd = require("pandas", "reading tables needs", "cli")
    options: dict[str, Any] = {"sep": dialect.separator, "decimal": dialect.decimal, "na_values": ["?"]}
    options |= {"skipinitialspace": True, "low_memory": False, "float_precision": "round_trip"}
    options |= {"index_col": False} if dialect.trailing else {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if texts:
                with _open_text(path, dialect) as file:
                    written = pd.read_csv(file, nrows=0, **options).columns  # names including surrounding blanks
                options["dtype"] = {name: str for name in written if f"{name}".strip() in texts}
            with _open_text(path, dialect) as file:
                return pd.read_csv(file, **options)
    except pd.errors.EmptyDataError as error:
        raise ValueError(f"{path} is empty.") from error
    except (pd.errors.ParserError, ValueError) as error:
        if found := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error)):
            expected, line, saw = map(int, found.groups())
            raise _length_error(path, line + dialect.before, saw, expected) from error
        if "EOF inside string" in str(error):
            with _without_cell_limit():
                *_, line = _lines_of_rows(path, dialect)
            msg = f"{path}: line {line} has a quote that is not closed; add the closing quote, or remove it."
        else:
            said = str(error).strip().removesuffix(".")
            msg = f"{path} cannot be read as a table ({said[: 2 * MAX_CELL_CHARS]})."
        raise ValueError(msg) from error


def _read_groups(frame: Any, texts: set[str]) -> list[str]:
    """Convert columns such as "1.234" and "12" of a file with decimal commas to numbers, and return their names."""
    style, found = Style(",", ""), []
    for i, name in enumerate(frame.columns):
        if frame.dtypes.iloc[i].kind not in "OSU" or name in texts:
            continue
        column = Column(nw.from_native(frame.iloc[:, i], series_only=True))
        if column.is_text and any(map(GROUPED.fullmatch, column.distinct)):
            numbers = read_numbers(column.distinct, style).numbers
            if None not in numbers and [*map(plain_number, column.distinct)] != numbers:
                frame.isetitem(i, column.spread(numbers, np.nan))
                found.append(name)
    return found


def line_of(path: str, dialect: Dialect, row: int) -> int:
    """Return the number of the line on which a row begins. Lines are counted from 1, and rows from 0."""
    with _without_cell_limit():
        lines = [*itertools.islice(_lines_of_rows(Path(path), dialect), row + 2)]
    return lines[-1]


def _lines_of_rows(path: Path, dialect: Dialect) -> Iterator[int]:
    """Return the number of the line on which each row begins; the first one is the header."""
    with _open_text(path, dialect) as file:
        before = 0
        reader: Any = file if dialect.separator == BLANKS else csv.reader(file, delimiter=dialect.separator)
        for cells in reader:
            line = before + 1
            before = before + 1 if dialect.separator == BLANKS else reader.line_num
            if cells.strip() if isinstance(cells, str) else cells:  # pandas skips empty lines
                yield line + dialect.before
