"""Reading tables from files with pandas: text in common dialects, Parquet, and NumPy arrays."""

import csv
import difflib
import itertools
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from agp.errors import missing_package_message, require
from agp.tables._cells import ColumnError, nw

TEXT, PARQUET, NPZ = (".csv", ".tsv", ".txt", ".dat"), (".parquet", ".pq"), (".npz",)
TABLES = (*TEXT, *PARQUET, *NPZ)
"""The file name endings of tables."""
SEPARATORS = ("\t", ";", "|", ",")
"""The separators, most reliable first. The comma is last, because it also occurs in numbers and in text."""
BLANKS = r"\s+"
ENCODINGS = ("utf-8-sig", "cp1252", "latin-1")
SAMPLE = 50
"""The number of lines from which the dialect is inferred."""
NUMBER = re.compile(r"\s*[-+]?(\d+[.,]?\d*|[.,]\d+)([eE][-+]?\d+)?\s*")
DECIMAL_COMMA, DECIMAL_POINT = re.compile(r"\s*[-+]?\d*,\d+\s*"), re.compile(r"\s*[-+]?\d*\.\d+([eE].*)?\s*")
MAX_CELL_CHARS = 80


class Dialect(NamedTuple):
    """The dialect of a text file."""

    encoding: str
    separator: str
    decimal: str = "."
    trailing: bool = False
    """Whether every row except the header ends with a separator."""


@dataclass(frozen=True)
class TableFile:
    """A table read from a file."""

    path: str
    frame: Any
    """A narwhals data frame of pandas."""
    notes: tuple[str, ...] = ()
    """Remarks on how the file was read."""
    dialect: Dialect | None = None

    def place(self, row: int) -> str:
        """Describe the position of a row: by its line in text files, counted from 1, and by its number otherwise."""
        return f"row {row}" if self.dialect is None else f"line {_line(self.path, self.dialect, row)}"

    @contextmanager
    def places(self, rows: npt.NDArray[np.intp] | None = None) -> Iterator[None]:
        """Name the file and the line in errors about cells. `rows` contains the numbers of the rows that are used."""
        try:
            yield
        except ColumnError as error:
            row = error.row if error.row is None or rows is None else int(rows[error.row])
            raise ValueError(f"{self.path}: {error if row is None else error.at(self.place(row))}") from error


def read_table(path: str | Path, *, texts: Iterable[str] = ()) -> TableFile:
    """Read a table from a text file with one header line, a Parquet file, or an npz file.

    Text files may begin with a byte-order mark and may contain quotes and decimal commas. Separators may be commas,
    semicolons, tabs, bars or blanks. An npz file must contain the arrays X [N, D] and y [N], or one array [N] per
    column.

    Parameters
    ----------
    path
        The file.
    texts
        Columns to read as text even if all of their cells look like numbers, such as "007". They are ignored unless
        the file is a text file.

    Raises
    ------
    ValueError
        If the file does not exist or cannot be read; the message says why.
    ImportError
        If pandas is not installed, or pyarrow for a Parquet file; the message names the extra that installs it.
    """
    file, kind = Path(path), Path(path).suffix.lower()
    check_file(file)
    if kind in TEXT:
        found = _text(file, set(texts))
    elif kind in PARQUET:
        found = TableFile(str(path), nw.from_native(_parquet(file)))
    elif kind in NPZ:
        found = TableFile(str(path), *_columns_of(file))
    else:
        raise ValueError(f"{path} is not a table that can be read; save it as one of {', '.join(TABLES)}.")
    if not len(found.frame.columns):
        raise ValueError(f"{path} has no columns.")
    if not len(found.frame):
        raise ValueError(f"{path} has a header but no rows.")
    return found


def check_file(path: str | Path) -> None:
    """Raise ValueError unless the path is a regular file."""
    if not Path(path).exists():
        raise ValueError(f"there is no file {path}.")
    if not Path(path).is_file():
        raise ValueError(f"{path} is a pipe, a device or a folder, not a regular file; write the data to a file first.")


def unknown_column_message(path: str, name: str, columns: Iterable[str]) -> str:
    """Return an error message for an unknown column. It lists similar names or, if there are none, all names."""
    there = [str(column) for column in columns]
    close = difflib.get_close_matches(name, there, n=3, cutoff=0.6)
    close += [column for column in there if column.lower() == name.lower() and column not in close]
    if close:
        return f"{path}: it has no column {name!r}; did you mean {' or '.join(map(repr, close))}?"
    listed = f"{', '.join(there[:30])}{', ...' if len(there) > 30 else ''}"
    hint = "."
    if any(NUMBER.fullmatch(column) for column in there):
        hint = ". Is the header line missing?"
    elif len(there) == 1:
        hint = ". Is the separator something other than a comma, a semicolon, a tab or a bar?"
    return f"{path}: it has no column {name!r}; its columns are {listed}{hint}"


def _pandas() -> Any:
    return require("pandas", "reading tables needs", "cli")


# -- text -------------------------------------------------------------------------------------------------------------


def _text(path: Path, texts: set[str]) -> TableFile:
    dialect, lines = _sniff(path)
    header = _cells(lines[:1], dialect)[0]
    names = [name.strip() for name in header]
    if all(NUMBER.fullmatch(name) for name in names):
        hint = ", or a separator other than , ; | and tab" if len(names) == 1 else ""
        raise ValueError(
            f"{path} seems to have no header line{hint}: its first line is {lines[0].strip()[:MAX_CELL_CHARS]!r}; "
            "add a line with the names of the columns."
        )
    frame = _parse(path, dialect, texts)
    notes = []
    if dialect.encoding not in ("utf-8-sig", "utf-16"):
        notes.append(f"read as {dialect.encoding} text, because it is not UTF-8")
    if dialect.decimal == ",":
        notes.append("numbers have decimal commas")
    if not isinstance(frame.index, _pandas().RangeIndex):  # each row has one cell more than the header
        frame = frame.reset_index(drop=True)
        notes.append("the first cell of each row has no name in the header and is left out")
    frame.columns = [f"{name}".strip() for name in frame.columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice and twice != [""]:
        raise ValueError(
            f"{path} has {names.count(twice[-1])} columns named {twice[-1]!r}; give each column a different name."
        )
    return TableFile(str(path), nw.from_native(frame), tuple(notes), dialect)


def _sniff(path: Path) -> tuple[Dialect, list[str]]:
    """Infer the dialect of a text file. Return the dialect and the first lines of the file."""
    with path.open("rb") as file:
        start = file.read(4096)
    if not start.strip():
        raise ValueError(f"{path} is empty.")
    wide = start.startswith((b"\xff\xfe", b"\xfe\xff"))
    if b"\0" in start and not wide:
        raise ValueError(
            f"{path} is not text; save the table as text, Parquet or npz, with the matching file name ending."
        )
    encoding = "utf-16" if wide else next(name for name in ENCODINGS if _decodes(path, name))
    with path.open(encoding=encoding, newline="") as file:
        lines = list(itertools.islice((line for line in file if line.strip()), SAMPLE))
    separator, fields = _separator(lines)
    dialect = Dialect(encoding, separator)
    rows = _cells(lines, dialect)
    cells = [cell for row in rows[1:] for cell in row]
    comma = separator != "," and any(map(DECIMAL_COMMA.fullmatch, cells))
    decimal = "," if comma and not any(map(DECIMAL_POINT.fullmatch, cells)) else "."
    longer = [row for row in rows[1:] if len(row) == fields + 1]
    trailing = len(rows) > 1 and len(longer) == len(rows) - 1 and not any(row[-1].strip() for row in longer)
    return Dialect(encoding, separator, decimal, trailing), lines


def _decodes(path: Path, encoding: str) -> bool:
    try:
        with path.open(encoding=encoding) as file:
            while file.read(2**20):
                pass
    except UnicodeDecodeError:
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
    counts = [len(line.split()) for line in lines]
    if best[1] == 1 and counts[0] > 1 and len(set(counts[1:])) < 2:
        return BLANKS, counts[0]
    return best


def _cells(lines: list[str], dialect: Dialect) -> list[list[str]]:
    if dialect.separator == BLANKS:
        return [line.split() for line in lines]
    return [row for row in csv.reader(lines, delimiter=dialect.separator) if row]


def _parse(path: Path, dialect: Dialect, texts: set[str]) -> Any:
    pd = _pandas()
    options: dict[str, Any] = {"encoding": dialect.encoding, "sep": dialect.separator, "decimal": dialect.decimal}
    options |= {"skipinitialspace": True, "na_values": ["?"], "low_memory": False, "float_precision": "round_trip"}
    options |= {"index_col": False} if dialect.trailing else {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if texts:
                written = pd.read_csv(path, nrows=0, **options).columns  # names including surrounding blanks
                options["dtype"] = {name: str for name in written if f"{name}".strip() in texts}
            return pd.read_csv(path, **options)
    except pd.errors.EmptyDataError as error:
        raise ValueError(f"{path} is empty.") from error
    except (pd.errors.ParserError, ValueError) as error:
        if found := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error)):
            expected, line, saw = found.groups()
            msg = f"{path}: line {line} has {saw} cells, but should have {expected}; quote cells that hold a separator."
        else:
            msg = f"{path} cannot be read as a table ({str(error).strip().removesuffix('.')})."
        raise ValueError(msg) from error


def _line(path: str, dialect: Dialect, row: int) -> int:
    """Return the number of the line on which a row begins. Lines are counted from 1, and rows from 0."""
    with Path(path).open(encoding=dialect.encoding, newline="") as file:
        before = 0
        reader: Any = file if dialect.separator == BLANKS else csv.reader(file, delimiter=dialect.separator)
        found = -1  # the header
        for cells in reader:
            line = before + 1
            before = before + 1 if dialect.separator == BLANKS else reader.line_num
            if not (cells.strip() if isinstance(cells, str) else cells):  # pandas skips empty lines
                continue
            if found == row:
                return line
            found += 1
    return before


# -- other files ------------------------------------------------------------------------------------------------------


def _parquet(path: Path) -> Any:
    pd = _pandas()
    try:
        frame = pd.read_parquet(path)
    except ImportError as error:
        raise ImportError(f"reading Parquet files needs {missing_package_message('pyarrow', 'cli')}.") from error
    except Exception as error:  # pyarrow raises its own exceptions
        said = str(error).strip().splitlines()[0].removesuffix(".")[:200]
        raise ValueError(f"{path} cannot be read as a Parquet file ({said}).") from error
    frame.columns = [f"{name}" for name in frame.columns]
    return frame.reset_index(drop=True)


def _columns_of(path: Path) -> tuple[Any, tuple[str, ...]]:
    """Read the columns of X [N, D] and y [N] from an npz file. If X or y is missing, every array [N] is a column."""
    arrays = npz_arrays(path)
    if {"X", "y"} <= arrays.keys() and arrays["X"].ndim == 2:
        used = {"y"}
        columns = {f"X{i}": column for i, column in enumerate(arrays["X"].T)} | {"y": arrays["y"]}
    else:
        used = {name for name, x in arrays.items() if x.ndim == 1}
        columns = {name: arrays[name] for name in arrays if name in used}
    lengths = {x.shape for x in columns.values()}
    if len(lengths) != 1 or len(next(iter(lengths))) != 1:
        shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in arrays.items()) or "none"
        raise ValueError(
            f"{path} has arrays {shapes}, but must have X [N, D] and y [N], or columns [N] of equal length."
        )
    left = [name for name in arrays if name not in {*used, "X"}]
    return nw.from_native(_pandas().DataFrame(columns)), (f"the arrays {', '.join(left)} are left out",) if left else ()


def npz_arrays(path: str | Path) -> dict[str, npt.NDArray]:
    """Read the arrays of an npz file. Raise ValueError if the file is not an npz file, or contains objects."""
    try:
        with zipfile.ZipFile(path):  # np.load also reads other kinds of files
            pass
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (EOFError, NotImplementedError, OSError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is not an npz file of plain arrays ({error or 'the file ends too early'})."
        ) from error
