"""Hypothesis strategies for tables as people have them: odd names, texts, types, gaps, few rows, and several doors."""

import datetime as dt
import fractions
import math
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from hostile_tables import COLUMNS as DRAWN
from hostile_tables import SUPPORTS, TARGETS
from hypothesis import strategies as st

__all__ = ["DOORS", "STYLES", "DrawnTable", "tables"]

MAX_ROWS = 40
DOORS = ("pandas", "polars", "pyarrow", "array", "lists", "csv", "parquet", "npz")
"""The ways in which a table reaches agp. The last three are files for the shell."""
FILES = ("csv", "parquet", "npz")


class DrawnTable(NamedTuple):
    """A table, its targets, how they reach agp, and what is predicted."""

    frame: pd.DataFrame
    y: Any
    door: str
    task: str
    settings: dict[str, Any]
    """Parameters of the estimator."""
    changes: list[tuple[str, int]]
    """Changes of the table for predictions, each with the number of a column."""
    kinds: list[str]
    dialect: dict[str, str]
    """The separator and the encoding of a text file."""
    options: list[str]
    """Options of `agp fit`."""

    def __repr__(self) -> str:
        columns = ", ".join(f"{name!r}: {kind}" for name, kind in zip(self.frame.columns, self.kinds, strict=True))
        cells = [self.frame.iloc[:4, k].tolist() for k in range(self.frame.shape[1])]
        return (
            f"DrawnTable({self.door}, {self.task}, {self.settings}, {len(self.frame)} rows; {columns[:600]}; "
            f"changes {self.changes}; {self.dialect} {self.options}\n{cells!r:.1500}\ny = {self.y!r:.400})"
        )


# -- names -------------------------------------------------------------------------------------------------------------

ODD_NAMES = (
    "", " ", "a,b", 'say "x"', "line\nbreak", "Größe (cm)", "東京", "x" * 300, "1", "2.5", "nan", "None", "mean",
    "target", "index", "Unnamed: 0", "X0", "#id", "a ", " a", "A", "a", "%", "{x}", "--out", "[bold]", "'", "=1+1",
    "1e5", "true", "date", "missing", "probability_a", "\ttab", "null\0byte",
)  # fmt: skip
PLAIN_NAMES = ("age", "height", "income", "city", "when", "rate", "colour", "size")
names = st.sampled_from(PLAIN_NAMES) | st.sampled_from(PLAIN_NAMES) | st.sampled_from(ODD_NAMES) | st.text(max_size=8)
OTHER_NAMES: tuple[Callable[[int], Any], ...] = (
    lambda k: k,
    lambda k: 2000 + k,
    lambda k: k + 0.5,
    lambda k: ("level", k),
    lambda k: (k, f"part {k}"),
    lambda k: pd.Timestamp("2020-01-01") + pd.Timedelta(k, "D"),
    lambda k: k if k % 2 else f"c{k}",
    lambda k: [None, math.nan, True, 0, "a", b"b", 1.5][k % 7],
)


# -- cells -------------------------------------------------------------------------------------------------------------


def _grouped(x: float, sign: str, decimals: int = 0, mark: str = ".") -> str:
    return f"{1000 * x:,.{decimals}f}".replace(".", "\0").replace(",", sign).replace("\0", mark)


STYLES: dict[str, Callable[[float], str]] = {
    "plain": lambda x: f"{x:.2f}",
    "whole": lambda x: f"{100 * x:.0f}",
    "exponent": lambda x: f"{x:.3e}",
    "percent": lambda x: f"{x:.1f}%",
    "percent with a gap": lambda x: f"{x:.1f} %",
    "dollars": lambda x: f"${x:.2f}",
    "minus dollars": lambda x: f"-${-x:.2f}" if x < 0 else f"${x:.2f}",
    "euros": lambda x: f"{x:.2f} €".replace(".", ","),
    "thousands": lambda x: _grouped(x, ","),
    "thousands and cents": lambda x: _grouped(x, ",", 2),
    "German": lambda x: _grouped(x, ".", 2, ","),
    "Swiss": lambda x: _grouped(x, "'"),
    "French": lambda x: _grouped(x, "\u202f", 1, ","),
    "decimal comma": lambda x: f"{x:.2f}".replace(".", ","),
    "parentheses": lambda x: f"({-x:.2f})" if x < 0 else f"{x:.2f}",
    "Unicode minus": lambda x: f"{x:.2f}".replace("-", "\u2212"),
    "plus": lambda x: f"{x:+.2f}",
    "kilograms": lambda x: f"{abs(x):.1f} kg",
    "unit without a gap": lambda x: f"{abs(x):.0f}ms",
    "hexadecimal": lambda x: hex(int(1000 * abs(x))),
    "limits": lambda x: f"<{abs(x):.1f}" if x < 0 else f"{x:.1f}",
    "padded": lambda x: f"{int(1000 * abs(x)):06d}",
    "ranges": lambda x: f"{int(abs(x))}-{int(abs(x)) + 1}",
    "fractions": lambda x: f"{int(10 * abs(x))}/10",
    "words": lambda x: ["low", "middle", "high"][int(abs(10 * x)) % 3],
    "versions": lambda x: f"{int(abs(x))}.{int(abs(10 * x)) % 10}.0",
    "clock": lambda x: f"{int(abs(7 * x)) % 24:02d}:{int(abs(100 * x)) % 60:02d}",
    "scores": lambda x: f"{int(abs(x))}:{int(abs(10 * x)) % 10}",
    "booleans": lambda x: str(x > 0),
    "yes and no": lambda x: "Yes" if x > 0 else "No",
}
"""How a number may be written as text."""
WORDS_FOR_GAPS = (
    "",
    " ",
    "NA",
    "n/a",
    "-",
    "?",
    "null",
    "None",
    ".",
    "NaN",
    "#N/A",
    "#DIV/0!",
    "missing",
    "unknown",
    "\u2013",
)
STRAY = (
    "unknown",
    "<5",
    "12 (est.)",
    "1,2,3",
    "inf",
    "-inf",
    "1e400",
    "0x1F",
    "١٢",
    "½",
    "1_000",
    "TBD",
    "5-7",
    "12:30",
    "*",
)

DATE_STYLES = (
    "%Y-%m-%d", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d.%m.%y", "%Y/%m/%d", "%b %d, %Y", "%d %B %Y", "%Y%m%d", "%Y-%m",
    "%Y-W%W", "%H:%M", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S.%f", "%d-%b-%y", "%A", "%m/%d/%y %I:%M %p", "%s",
    "%Y-%m-%dT%H:%M:%S+02:00",
)  # fmt: skip
STRAY_DATES = ("0000-00-00", "2023-02-30", "9999-12-31", "1/1/1", "yesterday", "", "2020", "0001-01-01", "20.13.2020")

ODD_CELLS: tuple[Any, ...] = (
    None, math.nan, pd.NA, pd.NaT, math.inf, -math.inf, 0, -0.0, 1, True, False, "a", "1", "", b"x", 10**30, -(2**63),
    Decimal("1.50"), Decimal("NaN"), fractions.Fraction(1, 3), 1 + 2j, (1, 2), [1], {"k": 1}, {1}, frozenset({1}),
    dt.date(2020, 1, 2), dt.datetime(2020, 1, 2, 3), dt.datetime(2020, 1, 2, tzinfo=dt.UTC), dt.time(3),
    dt.timedelta(1),
    pd.Timestamp("2020"), pd.Period("2020-01", "M"), pd.Interval(0, 1), np.float32(1.5), np.int8(3), np.str_("s"),
    np.datetime64("2020-01-01"), uuid.UUID(int=1), "nan", "None", "x" * 2000, "\U0001f600", "1e308", 5e-324, 1e300,
    np.bool_(True), range(2), int, "2020-01-01",
)  # fmt: skip


def _cells_with(draw: Any, cells: list[Any], extras: Any) -> list[Any]:
    """Replace a few cells by others."""
    for _ in range(draw(st.integers(0, 3))):
        if cells:
            cells[draw(st.integers(0, len(cells) - 1))] = draw(extras)
    return cells


def _styled(draw: Any, rng: np.random.Generator, rows: int) -> tuple[str, Any]:
    style = draw(st.sampled_from([*STYLES]))
    x = 10.0 ** draw(st.integers(-1, 3)) * rng.normal(size=rows)
    x = np.round(x) if draw(st.booleans()) else x
    cells: list[Any] = [STYLES[style](float(v)) for v in x]
    how = draw(st.sampled_from(["clean", "clean", "gaps", "stray"]))
    if how != "clean":
        cells = _cells_with(draw, cells, st.sampled_from(WORDS_FOR_GAPS if how == "gaps" else STRAY) | st.none())
    return f"{style} ({how})", pd.Series(cells, dtype=object if draw(st.booleans()) else "str")


def _dates(draw: Any, rng: np.random.Generator, rows: int) -> tuple[str, Any]:
    style = draw(st.sampled_from(DATE_STYLES))
    start = dt.datetime(draw(st.sampled_from([1969, 1999, 2023])), 12, 30, 22, 15)
    step = draw(st.sampled_from([60, 86_400, 30 * 86_400]))
    days = [start + dt.timedelta(seconds=int(k) * step) for k in rng.integers(0, 3 * rows + 1, rows)]
    cells = [day.strftime(style) for day in days]
    if draw(st.integers(0, 2)) == 0:
        cells = _cells_with(draw, cells, st.sampled_from(STRAY_DATES))
    return f"dates {style}", pd.Series(cells, dtype=object)


def _free_text(draw: Any, rng: np.random.Generator, rows: int) -> tuple[str, Any]:
    alphabet = (
        st.characters(exclude_categories=("Cs",)) if draw(st.booleans()) else st.sampled_from("0123456789.,-+e% $/:")
    )
    levels = draw(st.lists(st.text(alphabet, max_size=12), min_size=1, max_size=8))
    return f"free text {levels!r:.60}", pd.Series(
        [levels[k] for k in rng.integers(len(levels), size=rows)], dtype=object
    )


def _odd_objects(draw: Any, rng: np.random.Generator, rows: int) -> tuple[str, Any]:
    pool = draw(st.lists(st.sampled_from(range(len(ODD_CELLS))), min_size=1, max_size=4))
    if draw(st.booleans()):
        base: list[Any] = rng.normal(size=rows).tolist()
        return f"numbers and cells {pool}", pd.Series(
            _cells_with(draw, base, st.sampled_from([ODD_CELLS[k] for k in pool])), dtype=object
        )
    cells = [ODD_CELLS[pool[k]] for k in rng.integers(len(pool), size=rows)]
    found = pd.Series([None] * rows, dtype=object)
    for i, cell in enumerate(cells):
        found.iat[i] = cell
    return f"cells {pool}", found


def _types(draw: Any, rng: np.random.Generator, rows: int) -> tuple[str, Any]:
    """Columns of less usual types."""
    x, days = rng.normal(size=rows), pd.date_range("2020-01-31", periods=rows, freq="D")
    made: dict[str, Callable[[], Any]] = {
        "period": lambda: days.to_period("M"),
        "interval": lambda: pd.arrays.IntervalArray.from_arrays(np.floor(x), np.floor(x) + 1.0),
        "sparse": lambda: pd.arrays.SparseArray((x > 1.0) * x),
        "complex": lambda: x + 1j,
        "zone": lambda: days.tz_localize("America/New_York"),
        "nanoseconds": lambda: days.as_unit("ns") + pd.Timedelta(1, "ns"),
        "seconds": lambda: days.as_unit("s"),
        "timedelta": lambda: pd.to_timedelta(x, unit="h"),
        "float16": lambda: x.astype(np.float16),
        "longdouble": lambda: x.astype(np.longdouble),
        "int64 ids": lambda: rng.integers(2**60, 2**62, rows),
        "uint64": lambda: rng.integers(2**63, 2**64 - 1, rows, dtype=np.uint64),
        "bytes": lambda: np.asarray([b"a", b"b"])[rng.integers(2, size=rows)].astype(object),
        "category of dates": lambda: pd.Categorical(days),
        "category of bools": lambda: pd.Categorical(x > 0),
        "category of intervals": lambda: pd.cut(x, 3) if rows else x,
        "empty categories": lambda: pd.Categorical([None] * rows, categories=["a"]),
        "infinite": lambda: np.where(x > 1.0, np.inf, x),
        "arrow": lambda: pd.array(x, dtype="double[pyarrow]"),
        "arrow text": lambda: pd.array([f"{v:.0f}" for v in x], dtype="string[pyarrow]"),
        "arrow list": lambda: pd.Series([[1.0]] * rows, dtype=object),
        "all missing": lambda: pd.Series([None] * rows, dtype=object),
        "all NA": lambda: pd.array([pd.NA] * rows, dtype="Int64"),
        "1e300": lambda: 1e300 * x,
        "subnormal": lambda: 5e-324 * np.round(x),
        "two clusters": lambda: np.where(x > 0, 1e9, -1e9) + x,
    }
    kind = draw(st.sampled_from([*made]))
    return kind, made[kind]()


def _drawn(draw: Any, rng: np.random.Generator, rows: int) -> tuple[str, Any]:
    kind = draw(st.sampled_from([*DRAWN]))
    return kind, DRAWN[kind](rng, rows, {}) if rows > 1 else rng.normal(size=rows)


USUAL = ("normal", "uniform", "rounded", "lattice", "levels", "rare levels", "flags", "categories", "ordered", "gaps")


def _usual(draw: Any, rng: np.random.Generator, rows: int) -> tuple[str, Any]:
    kind = draw(st.sampled_from(USUAL))
    return kind, DRAWN[kind](rng, rows, {}) if rows else []


def _normal(_draw: Any, rng: np.random.Generator, rows: int) -> tuple[str, Any]:
    return "normal", rng.normal(size=rows)


MAKERS = (_usual, _usual, _usual, _drawn, _drawn, _styled, _dates, _free_text, _odd_objects, _types)


# -- targets -----------------------------------------------------------------------------------------------------------


def _numbers(draw: Any, rng: np.random.Generator, f: np.ndarray) -> Any:
    family = draw(st.sampled_from(["gaussian", "gaussian", "poisson", "gamma", "beta"]))
    return SUPPORTS[family](rng, draw(st.sampled_from(TARGETS)), f) if len(f) > 1 else f


def _texts(draw: Any, rng: np.random.Generator, f: np.ndarray) -> Any:
    style = STYLES[draw(st.sampled_from([*STYLES]))]
    cells: list[Any] = _cells_with(
        draw, [style(float(x)) for x in f], st.sampled_from((*WORDS_FOR_GAPS, *STRAY)) | st.none()
    )
    return pd.Series(cells, dtype=object) if draw(st.booleans()) else cells


def _odd_targets(draw: Any, rng: np.random.Generator, f: np.ndarray) -> Any:
    return draw(st.sampled_from([_odd_objects, _types, _dates, _free_text]))(draw, rng, len(f))[1]


def _shapes(draw: Any, rng: np.random.Generator, f: np.ndarray) -> Any:
    made: tuple[Callable[[], Any], ...] = (
        lambda: f[:-1],
        lambda: f[:, None],
        lambda: np.stack([f, -f], 1),
        lambda: pd.DataFrame({"u": f}),
        lambda: pd.DataFrame({"u": f, "v": [f"{x:.1f}%" for x in f]}),
        lambda: None,
        lambda: 3.0,
        lambda: "y",
        lambda: f.tolist(),
        lambda: np.where(f > 0, np.nan, f),
        lambda: f[:, None, None],
        lambda: pd.Series(f, index=rng.permutation(len(f)) + 5),
    )
    return made[draw(st.integers(0, len(made) - 1))]()


def _labels(draw: Any, rng: np.random.Generator, f: np.ndarray) -> Any:
    pool = draw(
        st.sampled_from(
            [("no", "yes"), (0, 1), (False, True), ("a", "b", "c"), (1.0, 2.0), ("", "x"), ("1", "2"), (-5, 7, 9)]
        )
        | st.lists(st.text(max_size=5), min_size=1, max_size=4, unique=True).map(tuple)
    )
    ranks = np.argsort(np.argsort(f)) * len(pool) // max(len(f), 1)
    cells = [pool[k] for k in ranks]
    if draw(st.integers(0, 4)) == 0:
        cells = _cells_with(draw, cells, st.sampled_from((None, math.nan, "new", 3)))
    return draw(st.sampled_from([pd.Series, lambda x: np.asarray(x, dtype=object), list, pd.Categorical, np.asarray]))(
        cells
    )


# -- tables ------------------------------------------------------------------------------------------------------------

CHANGES = (
    "none", "rows of the middle", "no row", "one row", "shuffled columns", "further column", "column left out",
    "renamed column", "level unseen", "cells missing", "column as text", "column as category",
    "whole numbers as floats", "array", "twice as many rows",
)  # fmt: skip


SETTINGS: dict[str, list[dict[str, Any]]] = {
    "regression": [
        {"likelihood": "student-t"},
        {"likelihood": "latent-noise"},
        {"likelihood": "poisson"},
        {"likelihood": "negative-binomial"},
        {"likelihood": "gamma"},
        {"likelihood": "beta"},
        {"likelihood": "exponential"},
        {"target_transform": "log"},
        {"target_transform": "none"},
        {"target_transform": "yeo-johnson"},
        {"kernel": "matern52"},
        {"kernel": "rbf + linear"},
        {"kernel": "periodic"},
        {"method": "sgpr"},
        {"method": "wsvgp", "max_steps": 30},
        {"method": "cagp-cg", "max_steps": 30},
        {"hyperparameters": "mode"},
        {"missing_targets": "ignore"},
        {"num_inducing": 5, "method": "sgpr"},
        {"dtype": "float32"},
        {"store_data": False},
    ],
    "classification": [
        {"likelihood": "ordinal"},
        {"class_weight": "balanced"},
        {"kernel": "rbf"},
        {"method": "wsvgp", "max_steps": 30},
        {"method": "tsvgp"},
    ],
}
"""Parameters of estimators that a few tables have."""
OPTIONS = (
    ["--test-share", "0.3"], ["--task", "regression"], ["--task", "classification"], ["--transform", "log"],
    ["--likelihood", "poisson"], ["--likelihood", "ordinal"], ["--kernel", "matern32"], ["--method", "sgpr"],
    ["--no-data"], ["--max-steps", "5"], ["--seed", "3"], ["--likelihood", "latent-noise"],
)  # fmt: skip
INDICES: tuple[Callable[[int], Any], ...] = (
    lambda rows: np.zeros(rows, dtype=int),
    lambda rows: np.arange(rows)[::-1],
    lambda rows: pd.date_range("2020-01-01", periods=rows),
    lambda rows: [f"row {k}" for k in range(rows)],
    lambda rows: pd.MultiIndex.from_arrays([np.arange(rows), np.arange(rows)]),
)
"""Functions that make an index for so many rows."""


@st.composite
def tables(draw: Any) -> DrawnTable:
    """Draw a table. It shrinks towards few rows and few plain columns."""
    rows = draw(st.sampled_from([0, 1, 2, 3, 5, *range(6, MAX_ROWS)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    door = draw(st.sampled_from(DOORS))
    count = draw(st.integers(1, 5))
    makers = (_normal,) if door in ("array", "lists") and draw(st.booleans()) else MAKERS
    makers = (_usual, _drawn) if draw(st.booleans()) else makers
    columns, kinds = [], []
    for _ in range(count):
        kind, column = draw(st.sampled_from(makers))(draw, rng, rows)
        kinds.append(kind)
        columns.append(pd.Series(column).reset_index(drop=True))
    if draw(st.integers(0, 5)):
        titles: list[Any] = draw(st.lists(names, min_size=count, max_size=count, unique=draw(st.integers(0, 19)) > 0))
    else:
        name = OTHER_NAMES[draw(st.integers(0, len(OTHER_NAMES) - 1))]
        titles = [name(k) for k in range(count)]
    frame = pd.concat(columns, axis=1)
    frame.columns = pd.Index(titles, tupleize_cols=draw(st.booleans()))
    f = np.sin(np.linspace(0.0, 6.0, rows)) + 0.3 * rng.normal(size=rows)
    first = pd.to_numeric(columns[0], errors="coerce") if columns[0].dtype.kind in "iuf" else pd.Series(f)
    f = f + np.sin(6.0 * first.rank(pct=True).fillna(0.0).to_numpy(float))
    task = draw(st.sampled_from(["regression", "regression", "classification"]))
    usual, others = (
        (_numbers, (_texts, _odd_targets, _shapes, _labels))
        if task == "regression"
        else (_labels, (_numbers, _texts, _odd_targets, _shapes))
    )
    y = (usual if draw(st.integers(0, 4)) else draw(st.sampled_from(others)))(draw, rng, f)
    settings = {"missing": draw(st.sampled_from(["impute", "impute", "refuse"]))}
    if draw(st.integers(0, 4)) == 0:
        settings |= draw(st.sampled_from(SETTINGS[task]))
    if draw(st.integers(0, 9)) == 0:
        name = "noise_by" if task == "regression" and draw(st.booleans()) else "keep"
        settings[name] = frame.columns[draw(st.integers(0, count - 1))]
    if draw(st.integers(0, 9)) == 0 and rows:
        frame.index = draw(st.sampled_from(INDICES))(rows)
    changes = [(draw(st.sampled_from(CHANGES)), draw(st.integers(0, count - 1))) for _ in range(2)]
    dialect = {
        "sep": draw(st.sampled_from([",", ",", ";", "\t", "|"])),
        "encoding": draw(st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "utf-16", "cp1252"])),
        "lineterminator": draw(st.sampled_from(["\n", "\n", "\r\n"])),
    }
    options = draw(st.sampled_from(OPTIONS)) if draw(st.booleans()) else []
    if draw(st.integers(0, 4)) == 0:
        option = draw(st.sampled_from(["--keep", "--drop", "--weights", "--exposure", "--noise", "--noise-by"]))
        options = [*options, f"{option}={frame.columns[draw(st.integers(0, count - 1))]}"]
    return DrawnTable(frame, y, door, task, settings, changes, kinds, dialect, options)
