"""Loading of data sets from installed packages or from files, as NumPy or Dask arrays."""

from agp.data._dataset import Dataset, load
from agp.data._open_rows import OpenRows, open_rows
from agp.data._sources import Table, from_npz, from_table, load_bundled
from agp.data._tables import TableFile, read_table

__all__ = [
    "Dataset",
    "OpenRows",
    "Table",
    "TableFile",
    "from_npz",
    "from_table",
    "load",
    "load_bundled",
    "open_rows",
    "read_table",
]

# for other subpackages
from agp.data._dataset import TaskName
from agp.data._levels import identifies_rows, level_of, numbers_rows
from agp.data._open_rows import is_many, several_files
from agp.data._tables import TABLES, bad_number, unknown_column_message
