"""Inputs of models from the cells of tables: categories become codes of levels, and missing numbers are imputed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from agp.estimators._arrays import MAX_CELLS
from agp.inspection import column_names
from agp.random import generator
from agp.tables import UNSEEN, Cells, Columns

IMPUTATIONS = 60
"""The number of values that replace a cell about which nothing is known, to average predictions over them."""


class Encoder:
    """A transformer that is fitted to training rows and converts tables, or arrays with missing cells, to model inputs.

    The inputs are the numbers and times of the table, a column of 0 and 1 for each number that had missing cells in
    training, a column of the effects of the levels for some categories (`insert_effects`), and a column for each
    category, which contains the codes of its levels: 0, 1, ..., or -1 for a level unseen in training. If `missing` is
    "impute", missing numbers are replaced by the mean in columns that mark them, and missing cells in a category are a
    level if they occurred.

    Nothing is known about a missing number in a column without missing cells in training. Such cells become NaN, and
    predictors average over the `imputations`.

    Parameters
    ----------
    missing, keep
        As in `agp.tables.Columns`.
    one_hot
        Whether categories become a column of 0 and 1 for each level instead, for models without kernels of codes. All
        columns of an unseen level are NaN.

    Attributes
    ----------
    columns
        The `agp.tables.Columns` of a table; None for arrays.
    names_of_numbers
        The names of the numeric inputs.
    means, marked
        The means of the numeric inputs [D] and whether they had missing cells.
    quantiles
        `IMPUTATIONS` quantiles of each numeric input [S, D], in random order.
    effects
        The effects [L] of the levels of some categories, by name.
    """

    def __init__(self, missing: str, keep: Sequence[str] = (), *, one_hot: bool = False) -> None:
        self.missing, self.one_hot = missing, one_hot
        self.effects: dict[str, npt.NDArray[np.float64]] = {}
        self.columns: Columns | None = Columns(missing, keep)

    def fit(self, frame: Any) -> "Encoder":
        """Learn the columns of a narwhals data frame, as `Columns.learn`, which describes the errors."""
        self.fit_transform(frame)
        return self

    def fit_transform(self, frame: Any) -> npt.NDArray[np.float64]:
        """Learn the columns of a narwhals data frame, and convert it to inputs [N, D], without reading it twice."""
        assert self.columns is not None
        cells = self.columns.learn(frame)
        self._check_size(len(frame))
        self._fit_numbers(cells.numbers, self.columns.numbers)
        return self._encode(cells)

    def fit_array(self, X: npt.NDArray[Any]) -> "Encoder":
        """Learn the means and quantiles of an array [N, D], whose columns have no names."""
        self.columns = None
        return self._fit_numbers(X, [*column_names(X.shape[1])])

    def _fit_numbers(self, numbers: npt.NDArray[Any], names: list[str]) -> "Encoder":
        missing = np.isnan(numbers)
        self.names_of_numbers = names
        self.marked: npt.NDArray[np.bool_] = np.any(missing, axis=0) & (self.missing == "impute")
        counts = np.maximum((~missing).sum(axis=0), 1)
        self.means = (np.where(missing, 0.0, numbers).astype(np.float64) / counts).sum(axis=0)
        self.quantiles = _quantiles_of(numbers)
        return self

    def transform(self, frame: Any) -> npt.NDArray[np.float64]:
        """Convert a data frame with the same columns to numbers [N, D], with NaN in cells that need `imputations`."""
        assert self.columns is not None
        return self._encode(self.columns.read(frame))

    def _encode(self, cells: Cells) -> npt.NDArray[np.float64]:
        parts = [self._impute(cells.numbers)]
        if not self.one_hot:
            codes = cells.codes.astype(np.float64)
            return np.concatenate([*parts, self._effects_of(codes), codes], axis=1)
        for codes, levels in zip(cells.codes.T, self.levels.values(), strict=True):
            parts.append(np.where((codes == UNSEEN)[:, None], np.nan, np.eye(len(levels))[codes]))
        return np.concatenate(parts, axis=1)

    def recode(self, inputs: npt.NDArray[Any], name: str, levels: Sequence[Any]) -> None:
        """Give the levels of a category other codes, in place, in the inputs [N, D] and from now on.

        `levels` are all levels in the order of the new codes; further ones did not occur in training.
        """
        place = {level: code for code, level in enumerate(levels)}
        new = np.asarray([place[level] for level in self.levels[name]], dtype=inputs.dtype)
        d = self.categories[[*self.levels].index(name)]
        inputs[:, d] = new[inputs[:, d].astype(np.int64)]
        self.levels[name] = [*levels]

    def insert_effects(self, inputs: npt.NDArray[Any], effects: Mapping[int, npt.NDArray[np.float64]]) -> Any:
        """Learn the effects [L] of the levels of some categories, by column of the inputs [N, D].

        Return the inputs with a further column for each of these categories, before the codes. The effect of a level
        unseen in training is NaN.
        """
        first = len(inputs.T) - len(self.levels)
        self.effects = {name: effects[d] for d, name in enumerate(self.levels, start=first) if d in effects}
        codes = inputs[:, first:]
        return np.concatenate([inputs[:, :first], self._effects_of(codes).astype(inputs.dtype), codes], axis=1)

    def _effects_of(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return the effects of the codes [N, C] of all categories, for those that have effects."""
        found = np.full((len(codes), len(self.effects)), np.nan)
        for i, (name, effects) in enumerate(self.effects.items()):
            column = codes[:, [*self.levels].index(name)].astype(np.int64)
            found[:, i] = np.where(column == UNSEEN, np.nan, effects[column])
        return found

    def transform_array(self, X: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Convert an array whose columns are in the order of the training columns.

        Raise ValueError if a training column was not a number.
        """
        if self.columns is not None and (texts := [*self.columns.categories, *self.columns.left_out]):
            raise ValueError(
                f"X is an array, but column {texts[0]!r} of the training table is no numeric input; pass a table with "
                "the same columns."
            )
        return self._impute(X)

    def imputations(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the values [S, D] that replace NaN in the inputs, and factors [D].

        The values of a number are its quantiles in training, and those of a category are its levels, or their effects.
        Their orders are random, so that different columns are combined at random. If L levels are a sample from a
        normal distribution of effects, the variance of the effect of another level is (L + 1) / (L - 1) times the
        variance of these L effects about their mean. The factor of numbers is 1. Codes are never NaN.
        """
        marks = np.zeros((IMPUTATIONS, int(self.marked.sum())))
        values, factors = [self.quantiles, marks], [np.ones(self.quantiles.shape[1] + marks.shape[1])]
        tables = {name: np.eye(len(levels)) for name, levels in self.levels.items()}
        if not self.one_hot:
            tables = {name: effects[:, None] for name, effects in self.effects.items()}
        for i, table in enumerate(tables.values()):
            count = len(table)
            order = generator(0, 31, i).permutation(max(count, IMPUTATIONS))[:IMPUTATIONS]
            values.append(table[order % count])
            factors.append(np.full(table.shape[1], (count + 1.0) / max(count - 1.0, 1.0)))
        if not self.one_hot:
            values.append(np.zeros((IMPUTATIONS, len(self.levels))))
            factors.append(np.ones(len(self.levels)))
        return np.concatenate(values, axis=1), np.concatenate(factors)

    def names(self) -> list[str]:
        """Return the names of the inputs; names of dates and durations end with the unit."""
        times = {} if self.columns is None else self.columns.times
        numbers = [f"{name} [{times[name]}]" if name in times else name for name in self.names_of_numbers]
        names = [*numbers, *(f"{name} is missing" for name in self._names_of_marks)]
        if not self.one_hot:
            return [*names, *(f"{name} (effect)" for name in self.effects), *self.levels]
        return names + [f"{name} = {level}" for name, levels in self.levels.items() for level in levels]

    def sources(self) -> list[str]:
        """Return, for each input, the column of the table from which it is computed."""
        of_levels = [name for name, levels in self.levels.items() for _ in levels]
        return [*self.names_of_numbers, *self._names_of_marks, *(of_levels if self.one_hot else self._names_of_codes)]

    @property
    def categories(self) -> tuple[int, ...]:
        """The places of the inputs that contain codes of levels."""
        first = len(self.names_of_numbers) + int(self.marked.sum()) + len(self.effects)
        return () if self.one_hot else tuple(range(first, first + len(self.levels)))

    @property
    def dates(self) -> tuple[int, ...]:
        """The numbers of the inputs that are dates, in days."""
        return () if self.columns is None else self.columns.dates

    @property
    def left_out(self) -> list[str]:
        """The names of the columns of the table that are not used."""
        return [] if self.columns is None else self.columns.left_out

    @property
    def levels(self) -> dict[str, list[Any]]:
        """The levels of each category, in the order of their codes; None stands for a missing cell."""
        return {} if self.columns is None else self.columns.levels

    @property
    def _names_of_codes(self) -> list[str]:
        """The categories of the inputs after the marks: of effects, and of codes."""
        return [*self.effects, *self.levels]

    @property
    def _names_of_marks(self) -> list[str]:
        """The numbers that have an additional input to mark their missing cells."""
        return [self.names_of_numbers[i] for i in np.flatnonzero(self.marked)]

    def _impute(self, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Replace missing numbers by means in the columns that mark them; leave NaN in the other columns."""
        if not self.marked.any():
            return numbers
        missing = np.isnan(numbers) & self.marked
        imputed = np.where(missing, self.means.astype(numbers.dtype), numbers)
        return np.concatenate([imputed, missing[:, self.marked].astype(numbers.dtype)], axis=1)

    def _check_size(self, rows: int) -> None:
        """Raise ValueError if the inputs would not fit into memory."""
        counts = {name: len(levels) for name, levels in self.levels.items()} if self.one_hot else {}
        width = len(self.columns.numbers if self.columns else ()) + sum(counts.values())
        if counts and rows * width > MAX_CELLS:
            name = max(counts, key=lambda name: counts[name])
            raise ValueError(
                f"column {name!r} has {counts[name]:,} different values, each of which becomes an input of "
                f"{rows:,} rows: {8e-9 * rows * width:.1f} GB in all; merge rare values, or leave the column out."
            )


def _quantiles_of(numbers: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return `IMPUTATIONS` quantiles of each column [N, D] in random order; 0 for columns without any number."""
    shares, quantiles = (np.arange(IMPUTATIONS) + 0.5) / IMPUTATIONS, np.zeros((IMPUTATIONS, numbers.shape[1]))
    full: npt.NDArray[np.bool_] = ~np.any(np.isnan(numbers), axis=0)
    if full.any():  # values of the columns, not between them
        quantiles[:, full] = np.quantile(numbers[:, full], shares, axis=0, method="inverted_cdf")
    for i, column in enumerate(numbers.T):
        if not full[i] and (known := column[~np.isnan(column)]).size:
            quantiles[:, i] = np.quantile(known, shares, method="inverted_cdf")
        quantiles[:, i] = generator(0, 30, i).permutation(quantiles[:, i])
    return quantiles
