"""scikit-learn's refusals of rows and targets, completed by what is wrong and what to do about it."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_consistent_length

from agp.errors import count_of, quote, similar_names

EXPLANATIONS = (
    (
        r"Expected 2D array, got (?P<found>\w+) array",
        "{name} is a {found} array, but must be a 2D array [N, D]; Reshape your data by numpy.reshape({name}, (-1, "
        "1)) if it is one column, or by numpy.reshape({name}, (1, -1)) if it is one row.",
    ),
    (
        r"(?P<phrase>\d+ (?:sample|feature)\(s\) \(shape=.*?\) while a minimum of \d+ is required)",
        "{name} has {phrase}; pass at least one row with at least one column.",
    ),
    (
        r"(?P<phrase>X has \d+ features?, but \w+ is expecting \d+ features as input)",
        "{phrase}; pass the columns that fit was given.",
    ),
    (
        r"Complex data not supported",
        "{name} holds complex numbers (Complex data not supported); pass real and imaginary parts as two columns.",
    ),
    (
        r"(?P<phrase>Unknown label type: continuous[-\w]*)",
        "{name} holds numbers that are no labels ({phrase}); use GPRegressor, or round them to whole numbers.",
    ),
    (
        r"(?P<phrase>Unknown label type: [-\w]+)",
        "{name} holds labels of several types, or no labels ({phrase}); convert all of them to text.",
    ),
    (
        r"float\(\) (?P<phrase>argument must be .*?), not '(?P<found>\w+)'",
        "{name} has a cell of type {found}, but each {phrase}; convert it to a number{or_frame}.",
    ),
    (
        r"at least 1 dimension|Singleton array|is not iterable|0-d array|Expected sequence or array-like",
        "{name} is a single value; pass one entry for each row, as a list, an array or a column of a table.",
    ),
    (
        r"not supported between instances of '(?P<one>\w+)' and '(?P<other>\w+)'",
        "{name} holds labels of several types, {one} and {other}; convert all of them to text.",
    ),
    (
        r"(?P<phrase>y should be a 1d array, got an array of shape \(.*?\) instead)",
        "{phrase}; pass one label for each row.",
    ),
    (
        r"[Mm]ix of|Mix type|of the same type",
        "{name} holds labels of another type than those of training; convert them to the type of model.classes_.",
    ),
    (
        r"contains (?P<found>NaN|infinity)",
        "{name} contains {found}; correct these entries, or remove their rows.",
    ),
    (
        r"could not convert string to float: (?P<found>.*)",
        "{name} holds the text {found}; pass numbers{or_frame}.",
    ),
    (
        r"inhomogeneous shape|setting an array element with a sequence",
        "{name} has rows of unequal length, or cells that are lists; pass one number for each row and column.",
    ),
)
"""Patterns in scikit-learn's and NumPy's messages, and the messages that replace them. The groups are inserted, and
phrases that scikit-learn's checks of estimators expect are kept."""
ENDING = "pass a data frame, or an array of numbers"


@runtime_checkable
class _Convertible(Protocol):
    """An object that NumPy converts to an array."""

    def __array__(self) -> npt.NDArray[Any]: ...


def _is_collection(x: Any) -> bool:
    """Whether an object may contain rows."""
    return isinstance(x, (Iterable, _Convertible)) and not isinstance(x, (str, bytes, Mapping))


def check_rows(X: Any) -> None:
    """Raise TypeError if X is no collection of rows, and ValueError if it has only one dimension."""
    if not _is_collection(X):
        raise TypeError(f"X is {quote(X)}, but must be a data frame or an array with rows and columns.")
    if isinstance(X, np.ndarray) and X.ndim != 2:
        remedy = "X.reshape(-1, 1) is one column, X.reshape(1, -1) is one row"
        raise ValueError(f"X has shape {X.shape}, but must have rows and columns. Reshape your data: {remedy}.")


def check_each_row(name: str, x: Any) -> None:
    """Raise TypeError unless x is a collection, with one entry for each row."""
    if not _is_collection(x):
        raise TypeError(f"{name} is {quote(x)}, but must be an array or a list with one entry for each row of X.")


def check_lengths(name: str, x: Any, X: Any) -> None:
    """Raise ValueError unless x has one entry for each row of X."""
    try:
        check_consistent_length(X, x)
    except ValueError:
        rows = count_of(X.shape[0], "row")
        raise ValueError(f"X has {rows}, but {name} has {len(x)}; pass one entry for each row.") from None


@contextmanager
def explain_refusals(name: str) -> Iterator[None]:
    """Turn errors of scikit-learn and NumPy about the argument `name` into one sentence with a remedy."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise type(error)(_explain(name, str(error))) from error


def _explain(name: str, text: str) -> str:
    line = " ".join(text.split())
    or_frame = ", or pass a data frame" if name == "X" else ""
    for pattern, message in EXPLANATIONS:
        if found := re.search(pattern, line):
            return message.format(name=name, or_frame=or_frame, **found.groupdict())
    first = " ".join(text.partition("\n")[0].split())
    return f"{first.rstrip('.')}; {ENDING}."


def check_names(given: list[Any], needed: list[Any]) -> None:
    """Raise ValueError if a table lacks a column that the model needs."""
    there = {*given}
    if any(name not in there for name in needed):
        raise ValueError(_describe_names(given, needed))


@contextmanager
def explain_names(given: list[Any], expected: list[Any]) -> Iterator[None]:
    """Begin scikit-learn's errors about the names of columns with a sentence that says which ones are wrong.

    scikit-learn's checks of estimators expect the lines that follow.
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{_describe_names(given, expected)}\n{error}") from error


def _describe_names(given: list[Any], expected: list[Any]) -> str:
    """Describe columns that a table lacks, or has besides the expected ones, or in another order."""
    lacking, more = ([x for x in these if x not in those] for these, those in ((expected, given), (given, expected)))
    if lacking:
        similar = similar_names(lacking[0], more)
        remedy = f"rename {quote(similar[0])} to {quote(lacking[0])}" if similar else "add it"
        return f"X has no column {quote(lacking[0])}, with which the model was trained; {remedy}."
    if more:
        return f"X has the column {quote(more[0])}, without which the model was trained; leave it out."
    return "X has the training columns in another order; pass X[list(model.feature_names_in_)]."
