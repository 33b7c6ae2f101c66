"""Hostile and ordinary tables, on which estimators train until they converge, and the judge of their predictions."""

import importlib.util
import math
import time
import warnings
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from hostile_judge import describe_error, unsound

from agp.errors import ConvergenceWarning, NonFiniteError, NotPositiveDefiniteError
from agp.estimators import GPClassifier, GPRegressor

__all__ = [
    "COLUMNS",
    "FAMILIES",
    "LIMIT",
    "TARGETS",
    "Outcome",
    "Table",
    "drawn_table",
    "judge_table",
    "judged_ordinary",
    "judged_table",
    "ordinary_table",
]

LIMIT = 100.0
"""The largest distance of a mean from the middle of the targets, and the largest standard deviation, in units of
`_scale`."""
MAX_SECONDS = 120.0
"""Training that reaches this limit is a defect."""
ALLOWED = (ValueError, TypeError, NonFiniteError, NotPositiveDefiniteError)

Rng = np.random.Generator
Frame = pd.DataFrame


class Table(NamedTuple):
    """An estimator, the table and the targets on which it is trained, and rows to predict."""

    family: str
    """The likelihood of a regressor, "log", or the kind of classes."""
    target: str
    """The kind of targets."""
    kinds: dict[str, str]
    """The kind of each column."""
    estimator: Any
    X: Any
    y: Any
    groups: dict[str, Any]
    """Tables of test rows, by name."""

    def __str__(self) -> str:
        e = self.estimator
        settings = f"{self.family}, {e.method}, {e.kernel}, missing={e.missing}, {type(self.X).__module__}"
        columns = ", ".join(f"{name}: {kind}" for name, kind in self.kinds.items())
        return f"{settings}; {len(self.y)} rows of {self.target} targets; {columns}"


class Outcome(NamedTuple):
    """What came of a table."""

    seed: int
    about: str
    seconds: float
    """CPU time."""
    ratio: float
    """The largest ratio of a mean or standard deviation to the scale of the targets, for rows
    inside the hull of the training inputs; NaN for classes and if nothing was predicted."""
    errors: list[str]
    """Allowed errors."""
    defects: list[str]
    """What must not be; each begins with its kind."""
    warned: list[str]
    """Warnings of agp."""


# -- columns -----------------------------------------------------------------------------------------------------------


def _pick(rng: Rng, rows: int, levels: Any, p: Any = None) -> Any:
    """Draw one of the levels per row."""
    levels = [*levels]
    return [levels[k] for k in rng.choice(len(levels), rows, p=p)]


def _levels(count: int) -> list[str]:
    return [f"level {k}" for k in range(count)]


def _with_gaps(rng: Rng, values: Any) -> list[Any]:
    """Replace some cells by None."""
    gone = rng.uniform(size=len(values)) < rng.choice([0.05, 0.2, 0.6])
    gone[rng.integers(len(gone))] = True
    return [None if g else value for g, value in zip(gone, values, strict=True)]


def _days(rng: Rng, rows: int) -> Any:
    """Draw dates, of which some are equal."""
    start = pd.Timestamp(str(rng.choice(["1969-12-30", "2000-02-28", "2023-03-25"])))
    return start + pd.to_timedelta(rng.integers(0, int(rng.choice([3, 40, 4000])), rows), unit="D")


def _earlier(rng: Rng, frame: dict[str, Any], rows: int) -> Any:
    """Return the values of an earlier column of numbers, or new ones."""
    known = [x for x in frame.values() if isinstance(x, np.ndarray) and x.dtype.kind == "f"]
    return known[rng.integers(len(known))] if known else rng.normal(size=rows)


def _odd_text(rng: Rng, rows: int) -> list[str]:
    levels = ["", " ", "Zürich", "東京 🗼", "nan", "None", "a,b", 'say "x"', "line\nbreak", "x" * 5000, "A", "a", "a "]
    return _pick(rng, rows, rng.permutation(np.asarray(levels, dtype=object))[: rng.integers(2, 8)])


def _names(rng: Rng, rows: int) -> Any:
    return rng.permutation([f"{'AEIOU'[k % 5]}{'nrstl'[k // 5 % 5]}{k // 25}" for k in range(rows)])


def _percent(rng: Rng, rows: int) -> list[str]:
    return [f"{x:.0f}%" for x in rng.uniform(0, 100, rows)]


COLUMNS: dict[str, Callable[[Rng, int, dict[str, Any]], Any]] = {
    # numbers
    "normal": lambda rng, n, _: rng.normal(size=n),
    "uniform": lambda rng, n, _: rng.uniform(0.0, 10.0, n),
    "rounded": lambda rng, n, _: np.round(rng.normal(size=n)),
    "lattice": lambda rng, n, _: rng.integers(0, 4, n),
    "counter": lambda rng, n, _: np.arange(n) + int(rng.choice([0, 1, 1_000_000])),
    "constant": lambda rng, n, _: np.full(n, rng.choice([0.0, 3.7, 1e9])),
    "nearly constant": lambda rng, n, _: 1.0 + 1e-13 * rng.normal(size=n),
    "heavy tails": lambda rng, n, _: rng.standard_cauchy(n),
    "huge": lambda rng, n, _: 10.0 ** rng.uniform(6.0, 12.0) * rng.normal(size=n),
    "tiny": lambda rng, n, _: 10.0 ** -rng.uniform(6.0, 12.0) * rng.normal(size=n),
    "offset": lambda rng, n, _: 1e8 + rng.normal(size=n),
    "wide": lambda rng, n, _: 10.0 ** rng.uniform(-6.0, 6.0, n),
    "outlier": lambda rng, n, _: np.where(np.arange(n) == rng.integers(n), 1e6, rng.normal(size=n)),
    "binary": lambda rng, n, _: rng.integers(0, 2, n),
    "rare flag": lambda rng, n, _: (np.arange(n) == rng.integers(n)) * 1.0,
    "duplicate": lambda rng, n, frame: _earlier(rng, frame, n).copy(),
    "nearly duplicate": lambda rng, n, frame: _earlier(rng, frame, n) * (1.0 + 1e-12 * rng.normal(size=n)),
    "collinear": lambda rng, n, frame: 3.0 - 2.0 * _earlier(rng, frame, n),
    "gaps": lambda rng, n, _: pd.Series(_with_gaps(rng, rng.normal(size=n)), dtype=float),
    "nullable": lambda rng, n, _: pd.Series(_with_gaps(rng, rng.integers(0, 9, n).tolist()), dtype="Int64"),
    "nothing": lambda rng, n, _: np.full(n, np.nan),
    "float32": lambda rng, n, _: rng.normal(size=n).astype(np.float32),
    "decimals": lambda rng, n, _: pd.Series([Decimal(f"{x:.2f}") for x in rng.normal(size=n)], dtype=object),
    # text
    "names": lambda rng, n, _: _names(rng, n),
    "nearly names": lambda rng, n, _: _pick(rng, n, _names(rng, 2 * n)),
    "codes": lambda rng, n, _: [f"AB-{k:05d}" for k in rng.integers(0, 99_999, n)],
    "levels": lambda rng, n, _: _pick(rng, n, _levels(int(rng.integers(2, 13)))),
    "rare levels": lambda rng, n, _: _pick(rng, n, _levels(8), 0.55 ** np.arange(8) / np.sum(0.55 ** np.arange(8))),
    "one level": lambda rng, n, _: ["only"] * n,
    "odd text": lambda rng, n, _: _odd_text(rng, n),
    "numbers as text": lambda rng, n, _: [f"{x:.1f}" for x in rng.normal(size=n)],
    "percent": lambda rng, n, _: _percent(rng, n),
    "text with gaps": lambda rng, n, _: _with_gaps(rng, _pick(rng, n, _levels(4))),
    # dates
    "dates as text": lambda rng, n, _: [f"{day:%Y-%m-%d}" for day in _days(rng, n)],
    "dates": lambda rng, n, _: _days(rng, n),
    "dates with gaps": lambda rng, n, _: pd.Series(pd.to_datetime(pd.Series(_with_gaps(rng, [*_days(rng, n)])))),
    "times with a zone": lambda rng, n, _: _days(rng, n).tz_localize("UTC"),
    "date objects": lambda rng, n, _: pd.Series([day.date() for day in _days(rng, n)], dtype=object),
    "durations": lambda rng, n, _: pd.to_timedelta(rng.exponential(3.0, n), unit="h"),
    # Booleans and categories
    "flags": lambda rng, n, _: rng.uniform(size=n) < rng.choice([0.1, 0.5]),
    "flags with gaps": lambda rng, n, _: pd.Series(_with_gaps(rng, _pick(rng, n, [True, False])), dtype=object),
    "nullable flags": lambda rng, n, _: pd.Series(_with_gaps(rng, _pick(rng, n, [True, False])), dtype="boolean"),
    "categories": lambda rng, n, _: pd.Categorical(_pick(rng, n, _levels(3)), categories=_levels(5)),
    "integer categories": lambda rng, n, _: pd.Categorical(rng.integers(0, 5, n) * 10),
    "float categories": lambda rng, n, _: pd.Categorical(rng.integers(0, 4, n) / 2.0),
    "ordered": lambda rng, n, _: pd.Categorical(_pick(rng, n, _levels(4)), categories=_levels(4), ordered=True),
}
"""Functions that draw a column of so many rows, by kind. The last argument is the columns drawn before."""
WITH_GAPS = ("gaps", "nullable", "nothing", "text with gaps", "dates with gaps", "flags with gaps", "nullable flags")


def _is_number(column: Any) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _is_time(column: Any) -> bool:
    return pd.api.types.is_datetime64_any_dtype(column) or pd.api.types.is_timedelta64_dtype(column)


def _is_text(column: Any) -> bool:
    known = column.dropna()
    return isinstance(column.dtype, pd.CategoricalDtype) or any(isinstance(cell, str) for cell in known)


def _signal(rng: Rng, frame: Frame) -> Any:
    """Return a smooth function [N] of one or two columns: a sine of the ranks of numbers, and effects of levels."""
    f = np.zeros(len(frame))
    for name in rng.permutation(frame.columns)[:2]:
        column = frame[name]
        if _is_number(column) or _is_time(column):
            ranks = column.rank().fillna(0.0).to_numpy(float) / len(frame)
            f += np.sin(rng.uniform(2.0, 6.0) * ranks)
        else:
            codes = pd.factorize(column.astype(str), use_na_sentinel=False)[0]
            f += rng.normal(size=codes.max() + 1)[codes]
    return f


# -- rows to predict ---------------------------------------------------------------------------------------------------


def _between(rng: Rng, frame: Frame, count: int) -> Frame:
    """Draw convex combinations of pairs of rows. Text, flags and cells next to a gap are those of one of the two."""
    i, j = rng.integers(len(frame), size=(2, count))
    share, either = rng.uniform(size=count), np.where(rng.uniform(size=count) < 0.5, i, j)

    def mix(column: Any) -> Any:
        one = column.iloc[either].reset_index(drop=True)
        if not (_is_number(column) or _is_time(column)):
            return one
        values = column if _is_time(column) else pd.Series(column.to_numpy(float, na_value=np.nan))
        a, b = (values.iloc[rows].reset_index(drop=True) for rows in (i, j))
        mixed = a + (b - a) * share
        return mixed if mixed.isna().all() else mixed.where(mixed.notna(), values.iloc[either].reset_index(drop=True))

    return Frame({name: mix(frame[name]) for name in frame.columns})


def _with_new_cells(rng: Rng, frame: Frame, changes: dict[str, Callable[[Any, int], Any]]) -> Frame:
    """Copy a random row for each entry of `changes`, a function that changes one cell of its column."""
    found = frame.iloc[rng.integers(len(frame), size=len(changes))].reset_index(drop=True)
    for row, (name, change) in enumerate(changes.items()):
        found[name] = change(found[name], row)
    return found


def _new_level(column: Any, row: int) -> Any:
    column = column.copy()
    level: Any = "never seen"
    if isinstance(column.dtype, pd.CategoricalDtype):
        level = level if column.cat.categories.dtype.kind not in "if" else 999
        column = column.cat.add_categories([level])
    column.iloc[row] = level
    return column


def _gap(column: Any, row: int) -> Any:
    column = column.astype(object) if column.dtype.kind in "biu" else column.copy()
    column.iloc[row] = None
    return column


def _test_rows(rng: Rng, frame: Frame) -> dict[str, Frame]:
    """Draw rows inside the hull of the training inputs ("rows" and "between"), and others."""
    text = [name for name in frame.columns if _is_text(frame[name])]
    groups = {"rows": frame, "between": _between(rng, frame, 40)}
    groups["unseen"] = _with_new_cells(rng, frame, dict.fromkeys(text, _new_level))
    groups["missing"] = _with_new_cells(rng, frame, dict.fromkeys(frame.columns, _gap))
    return {name: rows for name, rows in groups.items() if len(rows)}


def _convert(frame: Frame, library: str) -> Any:
    """Convert a data frame to a library; return it unchanged without the library, or without types for all columns."""
    if library == "pandas" or not importlib.util.find_spec(library):
        return frame
    import pyarrow as pa  # polars also converts by it

    try:
        found = pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return frame
    if library == "pyarrow":
        return found
    import polars as pl

    return pl.from_arrow(found)


# -- targets -----------------------------------------------------------------------------------------------------------


def _real(rng: Rng, kind: str, f: Any) -> Any:
    n = len(f)
    y = f + 0.2 * rng.normal(size=n)
    few = (np.arange(n) < min(3, n - 1)) * 1.0
    return {
        "constant": np.full(n, rng.choice([-2.0, 0.0, 7.0, 1e-9, 1e9])),
        "rare": rng.permutation(few) if rng.uniform() < 0.5 else few,
        "outlier": np.where(np.arange(n) == rng.integers(n), 10.0 ** rng.uniform(2.0, 6.0), y),
        "scaled": 10.0 ** rng.uniform(-6.0, 6.0) * y,
        "offset": 1e6 + y,
        "rounded": np.round(2.0 * y),
        "clusters": np.where(f > np.median(f), 100.0, -100.0) + y,
        "heavy tails": rng.standard_cauchy(n),
        "step": np.where(f > np.median(f), 1.0, 0.0),
        "noise": rng.normal(size=n),
        "exact": f,
    }.get(kind, y)


def _counts(rng: Rng, kind: str, f: Any) -> Any:
    n = len(f)
    rare = (np.arange(n) < min(3, n - 1)) * 1.0
    usual = rng.poisson(3.0 * np.exp(f))
    found = {
        "constant": np.full(n, rng.choice([0.0, 1.0, 7.0, 400.0])),
        "rare": rng.permutation(rare) if rng.uniform() < 0.5 else rare,
        "outlier": np.where(np.arange(n) == rng.integers(n), 10.0 ** rng.uniform(2.0, 6.0), usual),
        "scaled": 10.0 ** rng.integers(1, 7) * usual,
        "offset": 1e6 + usual,
        "rounded": np.round(usual, -1),
        "clusters": np.where(f > np.median(f), 1000.0, 0.0),
        "heavy tails": np.abs(rng.standard_cauchy(n)).clip(max=1e9),
        "step": np.where(f > np.median(f), 1.0, 0.0),
        "noise": rng.poisson(2.0, n),
        "exact": np.exp(1.0 + f),
    }.get(kind, usual)
    return np.floor(found).astype(float)


def _positive(rng: Rng, kind: str, f: Any) -> Any:
    n = len(f)
    y = np.exp(f) * rng.gamma(3.0, size=n)
    some = np.arange(n) < min(3, n - 1)
    return {
        "constant": np.full(n, rng.choice([1e-9, 1.0, 7.0, 1e9])),
        "rare": np.where(some, 1.0, rng.choice([0.0, 1e-6, 1e-3])),
        "outlier": np.where(np.arange(n) == rng.integers(n), 10.0 ** rng.choice([-9.0, 3.0, 6.0]), y),
        "scaled": 10.0 ** rng.uniform(-6.0, 6.0) * y,
        "offset": 1e6 + y,
        "rounded": np.round(y),
        "clusters": np.where(f > np.median(f), 100.0, 0.01) * y,
        "heavy tails": np.exp(rng.standard_cauchy(n).clip(-20.0, 20.0)),
        "step": np.where(f > np.median(f), 1.0, rng.choice([0.0, 0.1])),
        "noise": rng.exponential(size=n),
        "exact": np.exp(f),
    }.get(kind, y)


def _proportions(rng: Rng, kind: str, f: Any) -> Any:
    n = len(f)
    y = rng.beta(8.0 / (1.0 + np.exp(-f)), 8.0 / (1.0 + np.exp(f))).clip(1e-9, 1.0 - 1e-9)
    return {
        "constant": np.full(n, rng.choice([0.5, 0.9, 1e-6])),
        "rare": np.where(np.arange(n) < min(3, n - 1), 0.99, rng.choice([0.0, 1e-6, 0.01])),
        "outlier": np.where(np.arange(n) == rng.integers(n), rng.choice([1e-9, 1.0 - 1e-9]), y),
        "scaled": 10.0 ** rng.uniform(-6.0, 0.0) * y,
        "offset": 0.999 + 1e-4 * y,
        "rounded": np.round(y, 1),
        "clusters": np.where(f > np.median(f), 0.99, 0.01),
        "heavy tails": (1.0 / (1.0 + np.exp(-rng.standard_cauchy(n).clip(-20.0, 20.0)))),
        "step": np.where(f > np.median(f), 0.75, 0.25),
        "noise": rng.uniform(size=n).clip(1e-9),
        "exact": 1.0 / (1.0 + np.exp(-f)),
    }.get(kind, y)


def _classes(rng: Rng, kind: str, f: Any, count: int) -> Any:
    """Draw classes 0 to count - 1, or one class."""
    n = len(f)
    ranks = np.argsort(np.argsort(f)) / n
    usual = np.floor(count * (ranks + 0.1 * rng.normal(size=n)).clip(0.0, 0.999))
    found = {
        "constant": np.zeros(n),
        "rare": np.where(np.arange(n) < min(3, n - 1), np.arange(n) % count, count - 1),
        "outlier": np.where(np.arange(n) == rng.integers(n), count - 1, 0),
        "clusters": np.where(f > np.median(f), count - 1, 0),
        "step": np.floor(count * ranks),
        "noise": rng.integers(0, count, n),
        "exact": np.floor(count * ranks),
    }.get(kind, usual)
    return found.astype(int)


TARGETS = (
    "usual",
    "constant",
    "rare",
    "outlier",
    "scaled",
    "offset",
    "rounded",
    "clusters",
    "heavy tails",
    "step",
    "noise",
    "exact",
)
SUPPORTS: dict[str, Callable[[Rng, str, Any], Any]] = {
    "gaussian": _real,
    "student-t": _real,
    "latent-noise": _real,
    "poisson": _counts,
    "negative-binomial": _counts,
    "gamma": _positive,
    "exponential": _positive,
    "log": _positive,
    "beta": _proportions,
}
"""The functions that draw the targets of each family of regressors."""
CLASSES = {"two classes": 2, "several classes": 0, "ordered classes": 0, "named rows": 0}
FAMILIES = (*SUPPORTS, *CLASSES)
METHODS = ("auto",) * 12 + ("wsvgp", "rsvgp", "tvgp", "msvgp")
GAUSSIAN_METHODS = ("auto",) * 12 + ("gpr", "sgpr", "wsvgp", "rsvgp")
KERNELS = ("auto",) * 7 + ("rbf", "rbf", "matern32 + linear")


def _labels(rng: Rng, family: str, kind: str, f: Any) -> Any:
    """Draw labels: Booleans, numbers or text; for ordered classes, numbers or an ordered series."""
    n, count = len(f), CLASSES[family] or int(rng.integers(3, 6))
    if family == "named rows":
        return np.asarray([f"row {k // 2}" for k in range(n)])
    codes = _classes(rng, kind, f, count)
    if family == "ordered classes":
        if rng.uniform() < 0.5:
            return codes
        return pd.Series(pd.Categorical.from_codes(codes, _levels(count), ordered=True))
    names: list[Any] = [[False, True], [0, 1], ["", "Ü"], [-1, 1], [1.0, 2.0]] if count == 2 else [_levels(count)]
    return np.asarray(names[rng.integers(len(names))])[codes]


def _estimator(rng: Rng, family: str, settings: dict[str, Any]) -> Any:
    settings |= {"kernel": str(rng.choice(KERNELS)), "random_state": 0, "max_seconds": MAX_SECONDS}
    methods = GAUSSIAN_METHODS if family in ("gaussian", "log") else METHODS
    settings["method"] = str(rng.choice(methods))
    if family in CLASSES:
        if family != "two classes" and settings["method"] == "tvgp":
            settings["method"] = "auto"
        return GPClassifier(likelihood="ordinal" if family == "ordered classes" else "auto", **settings)
    if family == "log":
        return GPRegressor(target_transform="log", **settings)
    return GPRegressor(likelihood=family, **settings)


def _family(rng: Rng) -> str:
    usual = rng.uniform()
    if usual < 0.2:
        return "gaussian"
    if usual < 0.35:
        return str(rng.choice([*CLASSES], p=[0.5, 0.2, 0.2, 0.1]))
    return str(rng.choice([*SUPPORTS]))


def drawn_table(seed: int) -> Table:
    """The hostile table of a seed."""
    rng = np.random.default_rng([seed, 1])
    rows = int(rng.integers(81, 151)) if rng.uniform() < 0.04 else int(rng.integers(2, 81))
    kinds = {f"x{k}": str(rng.choice([*COLUMNS])) for k in range(int(rng.integers(1, 7)))}
    columns: dict[str, Any] = {}
    for name, kind in kinds.items():
        columns[name] = COLUMNS[kind](rng, rows, columns)
    frame = Frame(columns)
    if rng.uniform() < 0.15:  # repeated rows
        frame = frame.iloc[rng.integers(max(1, rows // 3), size=rows)].reset_index(drop=True)
    family, target = _family(rng), str(rng.choice(TARGETS, p=[0.2, *[0.8 / (len(TARGETS) - 1)] * (len(TARGETS) - 1)]))
    f = _signal(rng, frame)
    y = _labels(rng, family, target, f) if family in CLASSES else SUPPORTS[family](rng, target, f)
    gaps = any(kind in WITH_GAPS for kind in kinds.values())
    settings = {"missing": "impute" if rng.uniform() < (0.95 if gaps else 0.3) else "refuse"}
    estimator = _estimator(rng, family, settings)
    library = str(rng.choice(["pandas", "pyarrow", "polars"], p=[0.8, 0.1, 0.1]))
    groups = {name: _convert(rows, library) for name, rows in _test_rows(rng, frame).items()}
    return Table(family, target, kinds, estimator, _convert(frame, library), y, groups)


# -- the judge ---------------------------------------------------------------------------------------------------------


class _Judge:
    """Runs the stages of one table, and stores what each gives."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.defects: list[str] = []
        self.warned: list[str] = []
        self.ratios = {"rows": math.nan, "between": math.nan}
        """The largest ratio in each group of rows."""

    def stage(self, name: str, action: Callable[[], Any]) -> Any:
        """Return the result of the action, or None if it raised an error."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                found = action()
            except ALLOWED as error:
                found = None
                if message := unsound(error):
                    self.need(name, False, f"foreign error: {message}")
                else:
                    self.errors.append(f"{name}: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
            except Exception as error:
                found = None
                self.need(name, False, f"foreign error: {describe_error(error)}")
        for one in caught:
            self._hear(name, one)
        return found

    def _hear(self, name: str, warning: Any) -> None:
        place = f"{Path(warning.filename).name}:{warning.lineno}"
        text = f"{warning.category.__name__}: {warning.message}"
        own = warning.category is UserWarning or warning.category.__module__ == "agp.errors"
        if not own or Path(warning.filename) != Path(__file__):  # warnings of agp point to the line that called it
            self.need(name, False, f"foreign warning: {text} ({place})")
            return
        self.warned.append(text)
        self.need(name, "were replaced by the nearest" not in text, f"unbounded: {text}")
        limit = warning.category is ConvergenceWarning and f"limit of {MAX_SECONDS:g} s" in text
        self.need(name, not limit, f"time limit: {text}")

    def need(self, name: str, condition: Any, message: str) -> None:
        kind, _, text = message.partition(": ")
        defect = f"{kind}: {name}: {text}"
        if not condition and defect not in self.defects:
            self.defects.append(defect)

    def measure(self, group: str, what: str, distances: Any, scale: float) -> None:
        """Compare distances from the middle of the targets, or standard deviations, with the scale of the targets."""
        if not np.isfinite(distances).all():
            self.need(group, False, f"not finite: the {what}")
            return
        ratio = float(np.max(distances)) / scale
        self.ratios[group] = float(np.fmax(self.ratios.get(group, math.nan), ratio))
        self.need(group, ratio <= LIMIT, f"unbounded: {what} of {ratio:.3g} times the range")


def _scale(family: str, y: Any) -> float:
    """Return the range of the targets, the unit of what is judged.

    If all targets are equal, the unit is their size, or 1 if they are zero. The noise of counts and of exponential
    variables follows from their mean, so the unit is at least the standard deviation of that noise.
    """
    size, found = float(np.max(np.abs(y))), float(np.ptp(y))
    if family in ("poisson", "negative-binomial"):
        return max(found, math.sqrt(size), 1.0)
    if family == "exponential":
        found = max(found, size)
    return found or size or 1.0


def _judge_numbers(judge: _Judge, table: Table, group: str, X: Any) -> None:
    """Judge means, standard deviations and intervals of 90 % at the rows of X."""
    e, y, scale = table.estimator, table.y, _scale(table.family, table.y)
    middle = 0.5 * (float(np.min(y)) + float(np.max(y)))
    moments = judge.stage(group, lambda: e.predict(X, return_std=True))
    if moments is None:
        return
    mean, deviation = moments
    judge.measure(group, "a mean", np.abs(mean - middle), scale)
    judge.measure(group, "a standard deviation", deviation, scale)
    judge.need(group, not (deviation < 0.0).any(), "negative: a standard deviation")
    ends = judge.stage(group, lambda: e.predict_interval(X, 0.9))
    if ends is not None:
        judge.need(group, np.isfinite(ends).all(), "not finite: the ends of an interval")
        judge.need(group, not (ends[:, 0] > ends[:, 1]).any(), "out of order: the ends of an interval")


def _judge_classes(judge: _Judge, table: Table, group: str, X: Any) -> None:
    """Judge probabilities and labels at the rows of X."""
    found = judge.stage(group, lambda: table.estimator.predict_proba(X))
    if found is None:
        return
    judge.need(group, np.isfinite(found).all(), "not finite: a probability")
    judge.need(group, not ((found < 0.0) | (found > 1.0)).any(), "not a probability: outside [0, 1]")
    total = np.abs(found.sum(axis=1) - 1.0).max()
    judge.need(group, total <= 1e-6, f"not a probability: the sum is off by {total:.2g}")
    labels = judge.stage(group, lambda: table.estimator.predict(X))
    judge.need(group, labels is None or np.isin(labels, table.estimator.classes_).all(), "foreign label: a prediction")


def judge_table(table: Table) -> tuple[_Judge, float]:
    """Train, predict the groups of rows, and measure the CPU time in seconds."""
    judge, start = _Judge(), time.process_time()
    if judge.stage("fit", lambda: table.estimator.fit(table.X, table.y)) is not None:
        one = _judge_classes if table.family in CLASSES else _judge_numbers
        for group, X in table.groups.items():
            one(judge, table, group, X)
    seconds = time.process_time() - start
    judge.need("all", seconds <= 2.0 * MAX_SECONDS, f"time limit: {seconds:.0f} s of CPU time")
    return judge, seconds


def judged_table(seed: int) -> Outcome:
    """Train on the hostile table of a seed, and judge the predictions."""
    table = drawn_table(seed)
    judge, seconds = judge_table(table)
    ratio = float(np.fmax(judge.ratios["rows"], judge.ratios["between"]))
    return Outcome(seed, str(table), seconds, ratio, judge.errors, judge.defects, judge.warned)


# -- ordinary tables ---------------------------------------------------------------------------------------------------


def _balanced(rng: Rng, rows: int, levels: list[Any]) -> Any:
    return rng.permutation(np.resize(np.asarray(levels), rows))


ORDINARY: dict[str, Callable[[Rng, int], Any]] = {
    "age": lambda rng, n: rng.integers(18, 81, n),
    "height_cm": lambda rng, n: rng.normal(170.0, 9.0, n).round(),
    "income": lambda rng, n: np.round(30_000.0 * np.exp(0.5 * rng.normal(size=n)), -2),
    "temperature": lambda rng, n: rng.normal(15.0, 8.0, n).round(1),
    "distance_km": lambda rng, n: rng.uniform(1.0, 60.0, n),
    "share": lambda rng, n: rng.uniform(size=n),
    "score": lambda rng, n: rng.normal(size=n),
    "pressure_hpa": lambda rng, n: rng.normal(1013.0, 9.0, n).round(1),
    "rooms": lambda rng, n: rng.integers(1, 8, n),
    "region": lambda rng, n: _balanced(rng, n, _levels(int(rng.integers(2, max(3, min(9, n // 10)))))),
    "colour": lambda rng, n: _balanced(rng, n, ["blue", "green", "red"]),
    "grade": lambda rng, n: pd.Categorical(_balanced(rng, n, ["A", "B", "C"]), ordered=True),
    "member": lambda rng, n: rng.uniform(size=n) < 0.5,
    "smoker": lambda rng, n: _balanced(rng, n, ["no", "yes"]),
    "day": lambda rng, n: rng.permutation(pd.date_range("2023-01-01", periods=n)),
    "since": lambda rng, n: pd.to_timedelta(rng.integers(1, 400, n), unit="D"),
}
"""Functions that draw an ordinary column, by name."""
SMOOTH = ("age", "height_cm", "income", "temperature", "distance_km", "share", "score", "pressure_hpa")
"""The columns of numbers with many values, of which one at least carries the signal, and others have missing cells."""


def _ordinary_signal(rng: Rng, frame: Frame) -> Any:
    """Return the standardised sum [N] of the effects of two or three columns, and the column with the largest."""
    first = str(rng.choice([name for name in frame.columns if name in SMOOTH]))
    others = [str(name) for name in rng.permutation([x for x in frame.columns if x != first])][: rng.integers(1, 3)]
    f = np.zeros(len(frame))
    for name in (first, *others):
        column = frame[name]
        if _is_number(column) or _is_time(column):
            z = column.to_numpy().astype(float)
            z = (z - z.mean()) / z.std()
            effect = z + rng.choice([0.0, 0.3]) * (z * z - 1.0) if rng.uniform() < 0.6 else 1.4 * np.sin(1.5 * z)
        else:
            codes = pd.factorize(column)[0]
            effect = rng.permutation(np.linspace(-1.5, 1.5, codes.max() + 1))[codes]
        f += effect if name == first else rng.uniform(0.3, 1.0) * effect
    return (f - f.mean()) / f.std()


def _ordinary_targets(rng: Rng, family: str, f: Any) -> Any:
    """Draw targets of a family, most of whose variance the signal [N] explains."""
    n, noise = len(f), rng.normal(size=len(f))
    if family in CLASSES:
        count = 2 if family == "two classes" else 3
        edges = np.linspace(-1.0, 1.0, count + 1)[1:-1] if count > 2 else [0.0]
        codes = np.searchsorted(edges, f + 0.2 * noise)
        names = np.arange(count) if family == "ordered classes" else np.asarray(["no", "maybe", "yes"])[:count]
        return names[codes]
    p = 1.0 / (1.0 + np.exp(-f))
    return {
        "gaussian": lambda: 10.0 ** rng.uniform(-1.0, 4.0) * (f + rng.uniform(0.1, 0.5) * noise + rng.uniform(0, 5)),
        "student-t": lambda: 20.0 + 5.0 * (f + 0.15 * rng.standard_t(3.0, n)),
        "latent-noise": lambda: f + np.exp(-1.7 + 0.6 * f) * noise,
        "poisson": lambda: rng.poisson(np.exp(1.5 + 0.7 * f)),
        "negative-binomial": lambda: rng.poisson(np.exp(2.0 + 0.8 * f) * rng.gamma(5.0, 0.2, n)),
        "gamma": lambda: np.exp(1.0 + 0.8 * f) * rng.gamma(6.0, 1.0 / 6.0, n),
        "exponential": lambda: np.exp(1.0 + 1.5 * f) * rng.exponential(size=n),
        "log": lambda: np.exp(3.0 + 0.7 * f + 0.2 * noise),
        "beta": lambda: rng.beta(20.0 * p, 20.0 * (1.0 - p)).clip(1e-6, 1.0 - 1e-6),
    }[family]()


def ordinary_table(seed: int) -> Table:
    """The ordinary table of a seed, with a clear signal and a default estimator; a quarter of the rows is held out."""
    rng = np.random.default_rng([seed, 2])
    rows = int(np.exp(rng.uniform(math.log(30.0), math.log(300.0))))
    first = str(rng.choice(SMOOTH))
    others = rng.permutation([name for name in ORDINARY if name != first])
    names = [first, *map(str, others[: rng.integers(1, 1 + max(2, min(7, rows // 15)))])]
    frame = Frame({name: ORDINARY[name](rng, rows) for name in rng.permutation(names)})
    f = _ordinary_signal(rng, frame)
    families = ("gaussian",) * 8 + ("two classes",) * 4 + tuple(x for x in FAMILIES if x != "named rows")
    family = str(rng.choice(families))
    y = _ordinary_targets(rng, family, f)
    settings: dict[str, Any] = {"random_state": 0, "max_seconds": MAX_SECONDS}
    if rng.uniform() < 0.25:
        settings["missing"] = "impute"
        frame[first] = frame[first].astype(float)
        frame.loc[rng.permutation(rows)[: max(6, rows // 20)], first] = np.nan
    if family in CLASSES:
        estimator = GPClassifier(likelihood="ordinal" if family == "ordered classes" else "auto", **settings)
    else:
        transform = {"target_transform": "log"} if family == "log" else {"likelihood": family}
        estimator = GPRegressor(**transform, **settings)
    order = rng.permutation(rows)
    held_out, train = np.sort(order[: rows // 4]), np.sort(order[rows // 4 :])
    X, test = (frame.iloc[part].reset_index(drop=True) for part in (train, held_out))
    return Table(family, "ordinary", dict.fromkeys(frame, "ordinary"), estimator, X, y[train], {"held out": test})


def judged_ordinary(seed: int) -> Outcome:
    """Train on the ordinary table of a seed, and judge predictions of held-out rows. Every error is a defect."""
    table = ordinary_table(seed)
    judge, seconds = judge_table(table)
    defects = [*judge.defects, *(f"error: {text}" for text in judge.errors)]
    ratio = judge.ratios.get("held out", math.nan)
    return Outcome(seed, str(table), seconds, ratio, [], defects, judge.warned)
