"""Kernels on named columns of a table."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agp import tree
from agp.errors import name_remedy
from agp.estimators._encoding import Encoder
from agp.kernels import ActiveDims, Kernel, OnSphere


def number_columns(kernel: Kernel, columns: Encoder | None) -> Kernel:
    """Return a kernel on model inputs, given a kernel on columns of a table.

    Parameters
    ----------
    kernel
        A kernel. Its parts `ActiveDims` select columns of the table by name or, if the model inputs are the columns of
        the table in the same order, by number.
    columns
        The columns of the table; None if the training rows are an array.

    Raises
    ------
    ValueError
        If a column has no name or an unknown name, or if model inputs differ from the columns, but a number is given;
        or if a longitude or latitude is not a number.
    """
    table = None if columns is None or columns.columns is None else columns.columns.table
    sources = columns.sources() if columns is not None and table is not None else None
    moved = sources is not None and table is not None and sources[: len(table)] != table
    inputs: dict[str, Sequence[str] | None] = {}
    for path, part in sorted(tree.nodes(kernel, ActiveDims).items(), key=lambda item: len(item[0])):
        outer = next((one for one in reversed(inputs) if path.startswith(f"{one}.") or not one), None)
        available = sources if outer is None else inputs[outer]
        numbers = _numbers_of(part, available, moved=moved)
        inputs[path] = None if available is None else [available[i] for i in numbers if i < len(available)]
        if isinstance(part.kernel, OnSphere) and columns is not None:
            _check_places(inputs[path], columns)
        kernel = _with_columns(kernel, path, numbers)
    return kernel


def _check_places(sources: Sequence[str] | None, columns: Encoder) -> None:
    """Raise ValueError if a longitude or latitude holds categories, or also has an input for missing cells."""
    for name in sources or ():
        count = sum(source == name for source in sources or ())
        if name in columns.levels or count > 1:
            what = "categories" if name in columns.levels else "missing cells"
            remedy = "name a column of numbers" if name in columns.levels else "fill them in, or remove these rows"
            raise ValueError(f"OnSphere acts on column {name!r}, which has {what}, but needs degrees; {remedy}.")


def _with_columns(kernel: Any, path: str, numbers: tuple[int, ...]) -> Any:
    """Replace the columns of the part at a path."""
    new = replace(tree.nodes(kernel, ActiveDims)[path], columns=numbers)
    return tree.replace(kernel, {path: new}) if path else new


def _numbers_of(part: ActiveDims, sources: Sequence[str] | None, *, moved: bool) -> tuple[int, ...]:
    """Return the positions among the sources of the columns that a part selects by name or number."""
    of, numbers = type(part.kernel).__name__, []
    for column in part.columns:
        if isinstance(column, str) and sources is None and column.isdecimal():  # from text such as "rbf.on(0)"
            numbers.append(int(column))
        elif isinstance(column, str):
            numbers += _positions(of, column, sources)
        elif moved and sources is not None:
            names = ", ".join(map(repr, dict.fromkeys(sources)))[:200]
            raise ValueError(
                f"{of} acts on column number {column}, but columns of the table were moved, encoded or left out; use "
                f"names, as in on(({sources[0]!r},)), from {names}."
            )
        else:
            numbers.append(column)
    return tuple(numbers)


def _positions(of: str, column: str, sources: Sequence[str] | None) -> list[int]:
    if sources is None:
        raise ValueError(
            f"{of} acts on column {column!r}, but the rows are an array; use numbers, or pass a data frame."
        )
    found = [i for i, source in enumerate(sources) if source == column]
    found = found or [i for i, source in enumerate(sources) if str(source) == column]  # names that are numbers, in text
    if not found:
        remedy = name_remedy(column, dict.fromkeys(sources), "the columns are")
        raise ValueError(f"{of} acts on column {column!r}, which the table does not have; {remedy}")
    return found
