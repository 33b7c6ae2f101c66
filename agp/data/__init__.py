"""Real data: bundled by installed packages, or from a user's own file. Host NumPy is at home here."""

from agp.data._dataset import Dataset, TaskName, load
from agp.data._open_rows import OpenRows, is_many, open_rows, several_files
from agp.data._sources import BUNDLED, Table, bundled, from_npz, from_table
from agp.data._tables import TABLES, TableFile, bad_number, read_table, unknown_column

__all__ = [
    "BUNDLED",
    "TABLES",
    "Dataset",
    "OpenRows",
    "Table",
    "TableFile",
    "TaskName",
    "bad_number",
    "bundled",
    "from_npz",
    "from_table",
    "is_many",
    "load",
    "open_rows",
    "read_table",
    "several_files",
    "unknown_column",
]
