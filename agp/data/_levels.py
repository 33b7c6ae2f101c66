"""The levels of categorical columns, and columns whose values only identify rows."""

import re
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

WHOLE_NUMBER = re.compile(r"([-+]?\d+)\.0*")
"""Matches text such as "10.0" or "10."."""
MIN_COUNTED = 20
"""Minimum number of rows of a column of row numbers. In shorter tables, other columns may look the same by chance."""


def level_of(cell: Any, /) -> str:
    """Return the text that identifies the level in a cell.

    The numbers 10 and 10.0 and the texts "10" and "10.0" are one level, since a column of whole numbers turns into
    floats if one of its cells is missing.
    """
    if isinstance(cell, Integral) and not isinstance(cell, bool):
        return str(int(cell))
    if isinstance(cell, (Real, Decimal)) and float(cell).is_integer() and not isinstance(cell, bool):
        return f"{cell + 0:.0f}"  # without the sign of zero
    text = str(cell)
    found = WHOLE_NUMBER.fullmatch(text)
    return found[1] if found else text


def identifies_rows(levels: Iterable[str | None], /) -> bool:
    """Whether more than half of the cells that are not missing hold a level of their own, as names of rows do.

    The fraction of such cells estimates the probability that a new row has a level unseen in training (Good & Turing),
    in which case the column does not help to predict the row.

    Source: Good, "The population frequencies of species and the estimation of population parameters", Biometrika 1953.
    """
    counts = Counter(level for level in levels if level is not None)
    return 2 * sum(count == 1 for count in counts.values()) > counts.total()


def numbers_rows(values: npt.NDArray[Any], /) -> bool:
    """Whether values [N] are different whole numbers that fill at least half of the range from 0, as row numbers do."""
    N = len(values)
    if N < MIN_COUNTED or not np.isfinite(values).all():
        return False
    whole = (values >= 0.0).all() and (values < 2 * N).all() and (values == np.floor(values)).all()
    return bool(whole) and len(np.unique(values)) == N
