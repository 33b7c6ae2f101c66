"""Levels of categories to which the entries of a given kernel belong."""

from collections import defaultdict
from typing import Any

import numpy as np
import numpy.typing as npt

from agp.errors import count_of, quote
from agp.estimators._encoding import Encoder
from agp.estimators._kernel_columns import number_columns
from agp.kernels import EntriesOfLevels, Kernel
from agp.kernels import entries_of_levels as entries_within
from agp.tables import plain_column


def match_levels(kernel: Kernel, encoder: Encoder, frame: Any, inputs: npt.NDArray[Any]) -> None:
    """Give categories the codes of the kernel's entries, in place, in training inputs [N, D] and from now on.

    If the entries of a part belong to the levels of a column, there must be as many. If the type of the column declares
    so many levels, as a categorical type of pandas does, their codes are the positions in the declared order.
    Otherwise, the codes of the levels that occur are kept.

    Raises
    ------
    ValueError
        If the numbers differ. The message names the column, both numbers and the remedy.
    """
    by_column: dict[int, list[EntriesOfLevels]] = defaultdict(list)
    for entry in entries_within(number_columns(kernel, encoder), inputs.shape[1]):
        by_column[entry.column].append(entry)
    sources = encoder.sources()
    for column, entries in by_column.items():
        name = sources[column]
        if column in encoder.categories:
            _match_category(name, entries, encoder, frame, inputs)
            continue
        order = encoder.columns.orders.get(name) if encoder.columns is not None else None
        for entry in entries:
            if order is None:
                _check_numbers(name, entry, inputs[:, column])
            elif not entry.fits(len(order)):
                raise _levels_error(name, f"has {count_of(len(order), 'ordered level')}", entry, len(order))


def _match_category(
    name: str, entries: list[EntriesOfLevels], encoder: Encoder, frame: Any, inputs: npt.NDArray[Any]
) -> None:
    """Choose the levels of a category to which all entries belong: those declared, or those that occur."""
    found, declared = encoder.levels[name], plain_column(frame.get_column(name)).declared_levels
    missing = [None] if None in found else []
    if declared is not None and all(entry.fits(len(declared) + len(missing)) for entry in entries):
        encoder.recode(inputs, name, [*declared, *missing])
    elif wrong := [entry for entry in entries if not entry.fits(len(found))]:
        held = f"has {count_of(len(found) - len(missing), 'level')}"
        held += "" if declared is None or len(declared) == len(found) else f" of {len(declared)} declared ones"
        raise _levels_error(
            name, held + (", and missing cells, which are one more" if missing else ""), wrong[0], len(found)
        )


def _check_numbers(name: str, entry: EntriesOfLevels, numbers: npt.NDArray[Any]) -> None:
    """Raise ValueError if a column of numbers contains a code of no level."""
    largest = float(np.max(numbers, initial=-1.0, where=~np.isnan(numbers)))
    if largest >= entry.levels and not entry.may_exceed:
        raise ValueError(
            f"column {quote(name)} contains the code {largest:.9g}, but {entry.name} has entries for "
            f"{count_of(entry.levels, 'level')}, whose codes are 0 to {entry.levels - 1}; correct the column, or give "
            "the kernel an entry for each level."
        )


def _levels_error(name: str, held: str, entry: EntriesOfLevels, levels: int) -> ValueError:
    remedy = "give the kernel entries for the levels of the column"
    if levels < entry.levels:
        remedy = "declare all levels in the order of the entries, as in pd.Categorical(column, categories=[...])"
        remedy += ", or leave out the entries of the other levels"
    of = f"{entry.name} has entries for {count_of(entry.levels, 'level')}"
    return ValueError(f"column {quote(name)} {held}, but {of}; {remedy}.")
