"""Reading tables from files with pandas: text, Parquet, Arrow, JSON lines, spreadsheets, and NumPy arrays."""

import contextlib
import json
import os
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agp.errors import DISTRIBUTION, explain_call, name_remedy, quote, require
from agp.tables._cells import nw
from agp.tables._column_error import ColumnError
from agp.tables._text import COMPRESSIONS, NUMBER, Dialect, line_of, open_binary, read_text

TEXT, PARQUET, NPZ = (".csv", ".tsv", ".txt", ".dat"), (".parquet", ".pq"), (".npz",)
ARROW, JSON = (".feather", ".arrow"), (".jsonl", ".ndjson")
SHEETS = {".xlsx": "openpyxl", ".xlsm": "openpyxl", ".xls": "xlrd", ".ods": "odfpy"}
"""The package that reads each kind of spreadsheet; python-calamine reads all of them."""
TABLES = (*TEXT, *PARQUET, *NPZ, *ARROW, *JSON, *SHEETS)
TABLES += tuple(kind + packed for kind in (*TEXT, *JSON) for packed in COMPRESSIONS)
"""The file name endings of tables."""
USUAL = ".csv, .tsv, .xlsx, .ods, .parquet, .feather, .jsonl or .npz; text may be compressed, as in .csv.gz"


@dataclass(frozen=True)
class TableFile:
    """A table read from a file."""

    path: str
    frame: Any
    """A narwhals data frame of pandas."""
    notes: tuple[str, ...] = ()
    """Remarks on how the file was read."""
    dialect: Dialect | None = None
    first: int = 0
    """The number of the first row, in spreadsheets as programs show it."""

    def place(self, row: int) -> str:
        """Describe the position of a row: by its line in text files, as in a spreadsheet, or by its number."""
        if self.dialect is None:
            return f"row {row + self.first}"
        return f"line {line_of(self.path, self.dialect, row)}"

    @contextmanager
    def places(self, rows: npt.NDArray[np.intp] | None = None) -> Iterator[None]:
        """Name the file and the line in errors about cells. `rows` contains the numbers of the rows that are used."""
        try:
            yield
        except ColumnError as error:
            row = error.row if error.row is None or rows is None else int(rows[error.row])
            raise ValueError(f"{self.path}: {error if row is None else error.at(self.place(row))}") from error


@explain_call
def read_table(path: str | Path, *, texts: Iterable[str] = (), decimal: str = "") -> TableFile:
    """Read a table from a file of text, Parquet, Arrow, JSON lines or NumPy arrays, or from a spreadsheet.

    Text files have one header line. They may begin with a byte-order mark, blank lines and comments (`#`), and may
    contain quotes and decimal commas. Separators may be commas, semicolons, tabs, bars or blanks. Text files and JSON
    lines may be compressed (`.csv.gz`, `.bz2`, `.xz`, `.zst`, or `.zip` with one file). Of a spreadsheet, the first
    sheet is read. An npz file must contain the arrays X [N, D] and y [N], or one array [N] per column.

    Parameters
    ----------
    path
        The file.
    texts
        Columns to read as text even if all of their cells look like numbers, such as "007". They are ignored unless
        the file is a text file.
    decimal
        The decimal mark of another text file with the same columns, such as the training table, which decides whether
        "1.234" and "1,234" are about one or a thousand if the cells of the file do not.

    Raises
    ------
    ValueError
        If the file does not exist or cannot be read; the message says why.
    ImportError
        If pandas is not installed, or the package that reads this kind of file; the message says how to install it.
    """
    file, kind = Path(path), ending_of(path)
    check_file(file)
    if kind.startswith(TEXT):
        found = TableFile(str(path), *read_text(file, set(texts), decimal))
    elif kind in PARQUET:
        found = TableFile(str(path), nw.from_native(_parquet(file)))
    elif kind in ARROW:
        found = TableFile(str(path), nw.from_native(_arrow(file)))
    elif kind.startswith(JSON):
        found = TableFile(str(path), nw.from_native(_json(file)))
    elif kind in SHEETS:
        found = _sheet(file, SHEETS[kind])
    elif kind in NPZ:
        found = TableFile(str(path), *_columns_of(file))
    else:
        raise ValueError(f"{path} is not a table that can be read; save it as {USUAL}.")
    if not len(found.frame.columns):
        raise ValueError(f"{path} has no columns.")
    if not len(found.frame):
        raise ValueError(f"{path} has a header but no rows.")
    return found


def ending_of(path: str | Path) -> str:
    """Return the ending of a table's file name in lower case, such as ".csv" or ".csv.gz", or its last suffix."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes[-2:]]
    both = "".join(suffixes)
    return both if both in TABLES else suffixes[-1] if suffixes else ""


def check_file(path: str | Path) -> None:
    """Raise ValueError unless the path is a regular file."""
    if not os.path.exists(path):  # unlike Path.exists, also for names that no file can have
        raise ValueError(f"there is no file {path}.")
    if not Path(path).is_file():
        raise ValueError(f"{path} is a pipe, a device or a folder, not a regular file; write the data to a file first.")


def unknown_column_message(path: str, name: str, columns: Iterable[str], why: str = "") -> str:
    """Return an error message for an unknown column. It lists similar names or, if there are none, all names.

    `why` is a clause that says why the column is needed.
    """
    there = [str(column) for column in columns]
    said = f"{path}: it has no column {quote(name)}{why}; {name_remedy(name, there, 'its columns are')}"
    if said.endswith("?"):
        return said
    if any(NUMBER.fullmatch(column) for column in there):
        return f"{said} Is the header line missing?"
    if len(there) == 1:
        return f"{said} Is the separator something other than a comma, a semicolon, a tab or a bar?"
    return said


def _pandas() -> Any:
    return require("pandas", "reading tables needs", "cli")


# -- other files ------------------------------------------------------------------------------------------------------


def _parquet(path: Path) -> Any:
    parquet = require("pyarrow.parquet", "reading Parquet files needs", "cli")
    try:
        with parquet.ParquetFile(path) as file:  # for wide files, read_parquet of pandas takes far more memory
            frame = file.read().to_pandas()
    except Exception as error:  # pyarrow raises its own exceptions
        raise ValueError(f"{path} cannot be read as a Parquet file ({_first_line(error)}); write it again.") from error
    frame.columns = [f"{name}" for name in frame.columns]
    return frame.reset_index(drop=True)


def _arrow(path: Path) -> Any:
    feather = require("pyarrow.feather", "reading Arrow files needs", "cli")
    try:
        frame = feather.read_feather(path)
    except Exception as error:  # pyarrow raises its own exceptions
        raise ValueError(
            f"{path} cannot be read as a Feather or Arrow file ({_first_line(error)}); write it again."
        ) from error
    frame.columns = [f"{name}" for name in frame.columns]
    return frame.reset_index(drop=True)


def _json(path: Path) -> Any:
    """Read one object of JSON from each line."""
    rows = []
    with open_binary(path) as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line) if line.strip() else {}
            except (RecursionError, ValueError) as error:
                raise ValueError(f"{path}: line {number} is not JSON ({_first_line(error)}); correct it.") from error
            if not isinstance(row, dict):
                raise ValueError(f'{path}: line {number} is not an object of JSON, such as {{"x": 1}}; correct it.')
            rows += [row] if row else []
    return _pandas().DataFrame(rows)


def _first_line(error: Exception) -> str:
    """Return the first line of a library's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].removesuffix(".")[:200]


def _sheet(path: Path, package: str) -> TableFile:
    """Read the first sheet of a spreadsheet. Its header is the first row that is not empty."""
    pd = _pandas()
    try:
        book = _open_book(path, package)
    except ImportError:
        raise
    except Exception as error:  # each package raises its own exceptions
        if "format cannot be determined" in str(error):
            raise ValueError(f"{path} is not a spreadsheet; save it as .xlsx, or as text.") from error
        raise ValueError(f"{path} cannot be read as a spreadsheet ({_first_line(error)}); save it again.") from error
    with book:
        sheets = [f"{name}" for name in book.sheet_names]
        start = pd.read_excel(book, header=None, nrows=1000)
        filled = np.flatnonzero(start.notna().any(axis=1).to_numpy())
        if not len(filled):
            raise ValueError(f"{path} is empty: its first sheet, {quote(sheets[0])}, has no cells.")
        header = int(filled[0])
        frame = pd.read_excel(book, header=header, na_values=["?"])
    names = start.iloc[header].dropna().map(lambda name: f"{name}".strip())
    if (twice := names[names.duplicated()]).size:
        raise ValueError(f"{path} has several columns named {quote(twice.iloc[0])}; give each column a different name.")
    frame.columns = [f"{name}".strip() for name in frame.columns]
    notes = []
    if len(sheets) > 1:
        others = ", ".join(map(quote, sheets[1:4])) + (", ..." if len(sheets) > 4 else "")
        notes.append(f"the first sheet, {quote(sheets[0])}, is read; the others are not: {others}")
    return TableFile(str(path), nw.from_native(frame), tuple(notes), first=header + 2)


def _open_book(path: Path, package: str) -> Any:
    """Open a spreadsheet with the package for its kind, or with python-calamine."""
    pd = _pandas()
    for engine in (None, "odf" if package == "odfpy" else package, "calamine"):
        with contextlib.suppress(ImportError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return pd.ExcelFile(path, engine=engine)
    how = f'"{DISTRIBUTION}[excel]"' if package == "openpyxl" else package
    raise ImportError(
        f"reading {path.suffix} files needs {package}, which is not installed: pip install {how}; "
        "or save the table as .csv."
    )


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
