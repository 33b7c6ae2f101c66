"""Tables from files, in memory or as Dask arrays."""

from agp.data._open_rows import OpenRows, open_rows
from agp.data._tables import TableFile, read_table

__all__ = ["OpenRows", "TableFile", "open_rows", "read_table"]

# for other subpackages
from agp.data._levels import identifies_rows, level_of, numbers_rows
from agp.data._open_rows import is_many, several_files
from agp.data._tables import TABLES, bad_number, unknown_column_message
