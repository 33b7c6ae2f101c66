"""Tables from files and data frames: what their columns hold, and how cells become numbers, levels and targets."""

from agp.tables._cells import level_of
from agp.tables._column_error import ColumnError
from agp.tables._columns import UNSEEN, Cells, Columns, identifies_rows, numbers_rows
from agp.tables._files import TableFile, read_table
from agp.tables._open_rows import OpenRows, open_rows

__all__ = [
    "UNSEEN",
    "Cells",
    "ColumnError",
    "Columns",
    "OpenRows",
    "TableFile",
    "identifies_rows",
    "level_of",
    "numbers_rows",
    "open_rows",
    "read_table",
]

# for other subpackages
from agp.tables._cells import (
    CATEGORY,
    DAYS,
    DAYS_UTC,
    DURATION,
    KINDS,
    NUMBER,
    ORDERED,
    days_in,
    kind_of,
    numbers_in,
    plain_column,
)
from agp.tables._columns import FILL_IN, MISSING, as_frame, collect_frame, shorten_remarks
from agp.tables._files import TABLES, ending_of, unknown_column_message
from agp.tables._numbers import Style
from agp.tables._open_rows import is_many, several_files
from agp.tables._targets import (
    are_texts,
    category_order,
    check_label_order,
    errors_of,
    factors_of,
    labels_of,
    missing_rows,
    numbers_in_targets,
    numbers_of,
    positions_of,
    rows_with,
    task_of,
    warn_about_texts,
)
from agp.tables._text import COMPRESSIONS
