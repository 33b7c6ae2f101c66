"""Data sets: bundled with installed packages, or from files. Arrays are those of NumPy or Dask."""

from agp.data._dataset import Dataset, load
from agp.data._open_rows import OpenRows, open_rows
from agp.data._sources import Table, bundled, from_npz, from_table
from agp.data._tables import TableFile, read_table

__all__ = [
    "Dataset",
    "OpenRows",
    "Table",
    "TableFile",
    "bundled",
    "from_npz",
    "from_table",
    "load",
    "open_rows",
    "read_table",
]

# for other rooms
from agp.data._dataset import TaskName
from agp.data._open_rows import is_many, several_files
from agp.data._tables import TABLES, bad_number, unknown_column
