"""The error about a column of a table."""

from typing import Any

from agp.errors import quote


class ColumnError(ValueError):
    """A column, or a cell of it, that cannot be used.

    Parameters
    ----------
    column
        The name of the column.
    problem
        What is wrong, such as "has a missing cell".
    remedy
        What to do about it.
    row
        The number of the row of the cell, counted from 0; None if all cells are concerned.
    why
        Why this is a problem, such as "which is not a number".
    """

    def __init__(self, column: Any, problem: str, remedy: str, row: int | None = None, why: str = "") -> None:
        self.column, self.problem, self.remedy, self.row, self.why = column, problem, remedy, row, why
        where = "" if row is None else f" in row {row} (counted from 0)"
        super().__init__(f"column {quote(column)} {problem}{where}{self._ending}")

    @property
    def _ending(self) -> str:
        return f"{', ' if self.why else ''}{self.why}; {self.remedy}."

    def at(self, place: str) -> str:
        """Return the message with another description of the row, such as "line 3"."""
        return f"{place}, column {quote(self.column)} {self.problem}{self._ending}"
