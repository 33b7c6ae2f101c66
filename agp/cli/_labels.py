"""Cells and labels whatever type a file gave them: the same in every table."""

from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np

__all__ = ["are_texts", "positions_of", "text_of"]

NUMBERS: Any = (Real, Decimal)
TRUTHS = {"true": 1, "false": 0}


def text_of(cell: Any) -> str:
    """A cell as text: whole numbers without a point, for a column of them with a gap holds floats."""
    is_number = isinstance(cell, NUMBERS) and not isinstance(cell, bool)
    return str(int(cell)) if is_number and float(cell).is_integer() else str(cell)


def are_texts(classes: Any) -> bool:
    """Whether the classes [C] of an estimator are texts, not whole numbers or truth values."""
    return classes.dtype.kind not in "iub"


def positions_of(labels: Any, classes: Any) -> Any:
    """Where each of the labels [N] is among the classes [C]: -1 for what is none of them.

    Each label is taken as what the classes are: 1, 1.0, "1" and True are the class 1, and 1, 1.0 and "1" the class "1".
    """
    convert = text_of if are_texts(classes) else _number
    at = {convert(label): k for k, label in enumerate(classes.tolist())}
    different, inverse = np.unique(labels, return_inverse=True)
    return np.asarray([at.get(convert(label), -1) for label in different.tolist()])[inverse]


def _number(label: Any) -> Any:
    """A label as a number that equals the class it means, or as it is."""
    if not isinstance(label, str) or "_" in label:  # Python would read 1_0 as ten
        return label
    for kind in (int, float):  # long whole numbers have more digits than a float
        try:
            return kind(label)
        except ValueError:
            continue
    return TRUTHS.get(label.lower(), label)
