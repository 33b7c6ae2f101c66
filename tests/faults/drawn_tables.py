"""What comes of a drawn table: one sentence, or a sane answer, through every door."""

import contextlib
import io
import math
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hostile_judge import describe_error, unsound
from sklearn.exceptions import DataConversionWarning, UndefinedMetricWarning
from table_strategies import FILES, DrawnTable

import agp
from agp.cli import main
from agp.estimators import GPClassifier, GPRegressor
from agp.inspection import kernel_relevance, partial_dependence

__all__ = ["Verdict", "judge_drawn_table", "measure"]

MAX_MEAN, MAX_DEVIATION = 5.0, 10.0
"""The largest distance of a mean from the middle of the targets, and the largest standard deviation, in units of the
range of the targets, for rows of the training table. If a few rows have targets of 1e-2 and 1e3, whose logarithms are
modelled, or of 1e5 among others near 1, the moments of a new row may exceed the range."""
SAME_ROWS = ("rows of the middle", "one row", "twice as many rows")
SAME_CELLS = ("shuffled columns", "further column")
"""Changes after which every row is one of the training table; for those of the second kind, if columns have names."""
COUNTS = ("poisson", "negative-binomial")
"""The likelihoods of counts."""
EXPECTED = (DataConversionWarning, UndefinedMetricWarning)
"""Warnings that scikit-learn's checks of estimators expect."""
MAX_SECONDS = 60.0
MAX_CHARS = 600
"""The largest number of characters in a message."""


class Verdict:
    """Runs the stages of one table, and stores what each gives."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.warned: list[str] = []
        self.defects: list[str] = []
        self.ratios: tuple[float, ...] = (math.nan, math.nan)
        self.seconds = 0.0

    def need(self, condition: Any, defect: str) -> None:
        """Store a defect unless a condition holds."""
        if not condition and defect not in self.defects:
            self.defects.append(defect)

    def message(self, stage: str, text: str) -> None:
        """Check that a message is one short sentence."""
        text, _, more = text.partition("\n")
        expected = not more or more.startswith("The feature names should match")  # scikit-learn's checks want it
        self.need(expected, f"{stage}: not one line: {text!r:.300}")
        self.need(20 <= len(text) <= MAX_CHARS, f"{stage}: a message of {len(text)} characters: {text!r:.200}")

    def stage(self, name: str, action: Callable[[], Any]) -> Any:
        """Return the result of the action, or None if it raised an error."""
        found = None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                found = action()
            except (ValueError, TypeError, FloatingPointError, ArithmeticError, RuntimeError) as error:
                if problem := unsound(error):
                    self.need(False, f"{name}: {problem}")
                else:
                    self.message(name, str(error))
                self.errors.append(f"{name}: {error}")
            except Exception as error:
                self.need(False, f"{name}: foreign {describe_error(error)}")
        for one in caught:
            own = one.category in (UserWarning, *EXPECTED) or one.category.__module__ == "agp.errors"
            self.need(
                own, f"{name}: foreign warning {one.category.__name__}: {one.message} ({Path(one.filename).name})"
            )
            if own:
                self.message(name, str(one.message))
                self.warned.append(f"{name}: {one.category.__name__}: {one.message}")
        return found


def _convert(frame: pd.DataFrame, door: str) -> Any:
    """Return the table in the library of a door, or as a data frame if that library refuses it."""
    if not isinstance(frame, pd.DataFrame):
        return frame
    if door == "array":
        return frame.to_numpy()
    if door == "lists":
        return frame.to_numpy().tolist()
    if door in ("polars", "pyarrow"):
        import polars as pl
        import pyarrow as pa

        try:
            return pl.from_pandas(frame) if door == "polars" else pa.Table.from_pandas(frame, preserve_index=False)
        except Exception:  # the library's own refusal
            return frame
    return frame


def _changed(frame: pd.DataFrame, change: str, k: int) -> Any:
    """Return rows to predict: the table after a change of column k."""
    n, column, frame = len(frame), frame.iloc[:, k], frame.copy()
    if change == "rows of the middle":
        return frame.iloc[n // 3 : 2 * n // 3]
    if change == "no row":
        return frame.iloc[:0]
    if change == "one row":
        return frame.iloc[:1]
    if change == "shuffled columns":
        return frame.iloc[:, np.random.default_rng(k).permutation(frame.shape[1])]
    if change == "further column":
        frame.insert(0, "a further column", 1)
        return frame
    if change == "column left out":
        return frame.iloc[:, [i for i in range(frame.shape[1]) if i != k]]
    if change == "renamed column":
        return frame.set_axis([f"{c}s" if i == k else c for i, c in enumerate(frame.columns)], axis=1)
    if change == "array":
        return frame.to_numpy()
    if change == "twice as many rows":
        return pd.concat([frame, frame])
    made: dict[str, Callable[[], Any]] = {
        "level unseen": lambda: pd.Series(["never seen"] * n, dtype=object),
        "cells missing": lambda: pd.Series([None] * n, dtype=object),
        "column as text": lambda: column.astype(str),
        "column as category": lambda: column.astype(str).astype("category"),
        "whole numbers as floats": lambda: column.astype(float),
    }
    if change in made:
        try:
            new = made[change]()
        except (TypeError, ValueError, OverflowError):  # not every column can be converted
            return frame
        frame.isetitem(k, new.to_numpy() if change == "level unseen" else new)
    return frame


def judge_drawn_table(table: DrawnTable) -> Verdict:
    """Train on a table through its door, predict, save and load."""
    verdict, start = Verdict(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        if table.door in FILES:
            _judge_files(verdict, table, Path(folder))
        else:
            _judge_estimator(verdict, table, Path(folder))
    verdict.seconds = time.process_time() - start
    verdict.need(verdict.seconds < MAX_SECONDS, f"{verdict.seconds:.0f} s of CPU time")
    return verdict


# -- estimators --------------------------------------------------------------------------------------------------------


def _judge_estimator(verdict: Verdict, table: DrawnTable, folder: Path) -> None:
    cls = GPClassifier if table.task == "classification" else GPRegressor
    estimator = cls(random_state=0, **table.settings)
    X = _convert(table.frame, table.door)
    if verdict.stage("fit", lambda: estimator.fit(X, table.y)) is None:
        return
    first = _judge_predictions(verdict, table, estimator, X, "training rows", inside=True)
    for change, k in table.changes:
        if change != "none":
            rows = _convert(_changed(table.frame, change, k), table.door)
            named = table.door not in ("array", "lists")
            inside = change in SAME_ROWS or (change in SAME_CELLS and named)
            _judge_predictions(verdict, table, estimator, rows, change, inside=inside)
    verdict.stage("facts", lambda: (estimator.facts(), repr(estimator), estimator._repr_html_()))
    verdict.stage("effect", lambda: partial_dependence(estimator, X, 0, samples=5))
    verdict.stage("relevance", lambda: kernel_relevance(estimator))
    verdict.stage("score", lambda: estimator.score(X, table.y))
    path = folder / "model.safetensors"
    if verdict.stage("save", lambda: agp.save(estimator, path) or True) is None:
        return
    again = verdict.stage("load", lambda: agp.load(path))
    if again is not None and first is not None:
        found = _judge_predictions(verdict, table, again, X, "loaded", inside=True)
        if found is not None:
            a, b = np.asarray(first), np.asarray(found)
            same = np.allclose(a, b, rtol=1e-9, atol=1e-12 * np.max(np.abs(a), initial=0.0))  # rounding of BLAS
            verdict.need(same, f"loaded: predictions differ by {np.max(np.abs(a - b)):.3g}")


def _judge_predictions(verdict: Verdict, table: DrawnTable, estimator: Any, X: Any, name: str, *, inside: bool) -> Any:
    """Judge the predictions of rows, and return the means or probabilities."""
    if table.task == "classification":
        p = verdict.stage(name, lambda: estimator.predict_proba(X))
        if p is not None:
            verdict.need(np.isfinite(p).all() and (p >= 0.0).all(), f"{name}: probabilities {p.min()} to {p.max()}")
            verdict.need(np.allclose(p.sum(axis=1), 1.0, atol=1e-6), f"{name}: probabilities do not sum to 1")
            labels = verdict.stage(name, lambda: estimator.predict(X))
            verdict.need(labels is not None and len(labels) == len(p), f"{name}: no labels")
        return p
    moments = verdict.stage(name, lambda: estimator.predict(X, return_std=True))
    if moments is None:
        return None
    mean, deviation = moments
    verdict.need(np.isfinite(mean).all() and np.isfinite(deviation).all(), f"{name}: not finite")
    verdict.need((deviation >= 0.0).all(), f"{name}: a negative standard deviation")
    ends = verdict.stage(name, lambda: estimator.predict_interval(X, 0.9))
    if ends is not None:
        verdict.need(np.isfinite(ends).all() and (ends[..., 0] <= ends[..., 1]).all(), f"{name}: ends of intervals")
    if inside and len(mean):
        measure(verdict, table.y, mean, deviation, name, counts=table.settings.get("likelihood") in COUNTS)
    return mean


def measure(verdict: Verdict, y: Any, mean: Any, deviation: Any, name: str, *, counts: bool = False) -> None:
    """Compare predictions with the range of the targets, if the targets are numbers.

    The deviation of `counts` is at least the square root of their mean, which may exceed their range.
    """
    try:
        numbers = np.asarray(y, dtype=float)
    except (TypeError, ValueError):
        return
    numbers = numbers[:, None] if numbers.ndim == 1 else numbers
    low, high = np.nanmin(numbers, axis=0), np.nanmax(numbers, axis=0)
    scale = np.where(high > low, high - low, np.where(high != 0.0, np.abs(high), 1.0))
    scale = np.fmax(scale, np.sqrt(np.abs(high))) if counts else scale
    mean, deviation = mean.reshape(len(mean), -1), deviation.reshape(len(mean), -1)
    if mean.shape[1] != len(low):
        return
    with np.errstate(over="ignore"):
        ratios = float(np.max(np.abs(mean - 0.5 * (low + high)) / scale)), float(np.max(deviation / scale))
    verdict.ratios = tuple(np.fmax(verdict.ratios, ratios).tolist())
    for what, ratio, most in zip(("mean", "standard deviation"), ratios, (MAX_MEAN, MAX_DEVIATION), strict=True):
        verdict.need(ratio <= most, f"{name}: insane: a {what} of {ratio:.3g} times the range of the targets")


# -- the shell ---------------------------------------------------------------------------------------------------------


def _write(frame: pd.DataFrame, path: Path, dialect: dict[str, str]) -> bool:
    """Write a table; return whether the format can hold it."""
    try:
        if path.suffix == ".csv":
            frame.to_csv(path, index=False, errors="replace", **dialect)
        elif path.suffix == ".parquet":
            frame.to_parquet(path, index=False)
        else:
            np.savez(path, **{str(c): frame.iloc[:, i].to_numpy() for i, c in enumerate(frame.columns)})
    except Exception:  # pandas' or NumPy's own refusal
        return False
    if path.suffix != ".csv" or not path.exists():
        return path.exists()
    reader = {"sep": dialect["sep"], "encoding": dialect["encoding"], "skip_blank_lines": False}
    try:
        return len(pd.read_csv(path, **reader)) == len(frame)  # pandas does not quote "\r"
    except ValueError:  # no columns, say
        return True


def _run(verdict: Verdict, name: str, *argv: Any) -> int | None:
    """Run a command. Its status must be 0, or 2 with one sentence."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        try:
            status = main([*map(str, argv)])
        except SystemExit as ended:
            status = ended.code
        except Exception as error:
            verdict.need(False, f"{name}: foreign {describe_error(error)}")
            return None
    lines = err.getvalue().splitlines()
    errors = [line for line in lines if not line.startswith("agp: warning: ")]
    verdict.warned += [f"{name}: {line[14:]}" for line in lines if line.startswith("agp: warning: ")]
    if status == 2:
        verdict.errors += [f"{name}: {line}" for line in errors]
        errors = [line for line in errors if not line.endswith("was written before this error.")]
        verdict.need(len(errors) == 1 and errors[0].startswith("agp: "), f"{name}: not one sentence: {errors!r:.500}")
        for line in errors:
            verdict.message(name, line)
            verdict.need(line.endswith((".", "?")), f"{name}: no sentence: {line!r:.300}")
    elif name != "fit" or status:
        verdict.need(status == 0, f"{name}: status {status}")
    verdict.need("Traceback" not in err.getvalue(), f"{name}: a traceback")
    return status


def _judge_files(verdict: Verdict, table: DrawnTable, folder: Path) -> None:
    """Train, describe and predict with the commands of the shell."""
    frame = table.frame.reset_index(drop=True)
    try:
        y = pd.Series(np.asarray(table.y).ravel() if not isinstance(table.y, pd.Series) else table.y.to_numpy())
    except (TypeError, ValueError):
        return
    if len(y) != len(frame) or "the target" in frame.columns:
        return
    training = pd.concat([frame, y.rename("the target")], axis=1)
    training.columns = [*map(str, frame.columns), "the target"]
    path, model, out = folder / f"table.{table.door}", folder / "m.safetensors", folder / "p.csv"
    if not _write(training, path, table.dialect):
        return
    missing = ("--missing", "impute") if table.settings["missing"] == "impute" else ()
    if _run(verdict, "agp fit", "fit", path, "--target", "the target", "--out", model, *missing, *table.options) != 0:
        return
    verdict.need(model.exists(), "agp fit: no model")
    _run(verdict, "agp describe", "describe", model)
    if _run(verdict, "agp predict", "predict", model, path, "--out", out) == 0:
        found = pd.read_csv(out)
        numbers = found.filter(regex="^(mean|standard_deviation|lower|upper|probability)")  # a label may be "nan"
        verdict.need(len(found) == len(training), "agp predict: another number of rows")
        verdict.need(np.isfinite(numbers.to_numpy(float)).all(), "agp predict: not finite")
        # held-out rows may be far from the others, and the noise of rows may be given
        ordinary = not any(option.startswith(("--test-share", "--noise=")) for option in table.options)
        if ordinary and "standard_deviation" in found and y.dtype.kind in "if":
            counts = any(option in COUNTS for option in table.options)
            moments = (found[column].to_numpy() for column in ("mean", "standard_deviation"))
            measure(verdict, y, *moments, "agp predict", counts=counts)
    change, k = table.changes[0]
    if change in ("none", "array"):
        return
    changed = _changed(frame, change, k)
    changed.columns = [*map(str, changed.columns)]
    if _write(changed, folder / f"new.{table.door}", table.dialect):
        _run(verdict, f"agp predict, {change}", "predict", model, folder / f"new.{table.door}", "--out", out)
