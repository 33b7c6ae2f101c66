"""What was learned of columns, as facts that files hold: text, numbers and lists."""

from typing import Any

import numpy as np

from agp.estimators._columns import Columns, check_missing, new_encoder, new_imputer
from agp.estimators._times import KINDS

__all__ = ["columns_of", "state_of", "widths"]


def widths(columns: Any) -> tuple[int, int]:
    """How many columns a fitted `Columns` or imputer takes, and how many it makes."""
    if isinstance(columns, Columns):
        return len(columns.numbers) + len(columns.categories), columns.width
    given = len(columns.statistics_)
    return given, given + len(columns.indicator_.features_)


def state_of(columns: Any) -> dict[str, Any]:
    """The state of `Columns`, or of the imputer of arrays without names. TypeError if a column's name is no text."""
    if not isinstance(columns, Columns):
        return {"of": "array", **_imputer_state(columns)}
    if other := [name for name in (*columns.numbers, *columns.categories) if not isinstance(name, str)]:
        msg = f"the table has a column named {other[0]!r}, which is no text; name the columns by text, and fit again."
        raise TypeError(msg)
    names = {"missing": columns.missing, "numbers": columns.numbers, "categories": columns.categories}
    return {
        "of": "frame",
        **names,
        "times": columns.times,
        "values": [*columns.values.values()],
        **_imputer_state(columns.imputer),
    }


def columns_of(state: dict[str, Any]) -> Any:
    """The columns, or the imputer, of a `state_of`. LookupError, TypeError or ValueError if it is none."""
    imputer = _imputer_of(state)
    if state["of"] == "array":
        return imputer
    check_missing(state["missing"])
    found = Columns(state["missing"])
    found.numbers, found.categories = _texts_of(state["numbers"]), _texts_of(state["categories"])
    found.times = _times_of(state.get("times", {}), found.numbers)  # files of 0.2.0 have none
    values = [_texts_of(column, gaps=True) for column in state["values"]]
    if len(imputer.statistics_) != max(1, len(found.numbers)) or len(values) != len(found.categories):
        msg = "its columns do not fit what was learned of them"
        raise ValueError(msg)
    found.imputer, found.encoder = imputer, _encoder_of(values)
    return found


def _imputer_state(imputer: Any) -> dict[str, Any]:
    """The means of all columns, and which columns had missing cells."""
    return {"means": imputer.statistics_.tolist(), "holes": imputer.indicator_.features_.tolist()}


def _imputer_of(state: dict[str, Any]) -> Any:
    """The imputer of an `_imputer_state`: it learns again, from the means, and the means with the missing cells."""
    means, holes = state["means"], state["holes"]
    width = len(means)
    fit = all(type(mean) is float for mean in means) and all(type(i) is int and 0 <= i < width for i in holes)
    if not fit or not width or holes != sorted(set(holes)):
        msg = f"it has {str(state)[:80]} where means and missing cells belong"
        raise ValueError(msg)
    row = np.asarray(means)
    return new_imputer().fit(np.stack([row, np.where(np.isin(np.arange(width), holes), np.nan, row)]))


def _encoder_of(values: list[list[Any]]) -> Any:
    """The encoder of the values of each category: it learns again, from rows that have every one in each column."""
    encoder = new_encoder()
    if not values:
        return encoder
    rows = [[column[i % len(column)] for column in values] for i in range(max(map(len, values)))]
    encoder.fit(np.asarray(rows, dtype=object))
    if [column.tolist() for column in encoder.categories_] != values:
        msg = "its categories are not in order, or are there twice"
        raise ValueError(msg)
    return encoder


def _times_of(found: Any, numbers: list[str]) -> dict[str, str]:
    if not isinstance(found, dict) or not found.keys() <= {*numbers} or not {*found.values()} <= KINDS.keys():
        msg = f"it has {str(found)[:80]} where the units of dates belong"
        raise ValueError(msg)
    return found


def _texts_of(found: Any, *, gaps: bool = False) -> list[Any]:
    fit = isinstance(found, list) and all(isinstance(text, str) or (gaps and text is None) for text in found)
    if not fit or (gaps and not found):
        msg = f"it has {str(found)[:80]} where texts belong"
        raise TypeError(msg)
    return found
