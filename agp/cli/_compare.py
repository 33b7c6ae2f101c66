"""`agp compare`: train several methods on a table, and compare their predictions of rows that are held out."""

import argparse
import itertools
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from agp.backend import get_backend
from agp.cli._example import TARGET, write_example
from agp.cli._fit import (
    Examples,
    add_training_options,
    facts_of_rows,
    format_deviations,
    read_examples,
    show_progress,
    train_estimator,
)
from agp.cli._predict import Asked, answers, check_table_output, score_predictions, write_table
from agp.cli._terminal import ERRORS, FRACTION, add_command, in_shell, one_of, print_table, say
from agp.errors import count_of
from agp.kernels import kernel_or_auto
from agp.methods import METHODS, unknown_method_message
from agp.training import Piece, Score, Tracker

HELP = """usage: agp compare [TABLE --target COLUMN] [options]
Train several methods on a table (.csv, .parquet, .npz), and compare the errors
of their predictions for held-out rows, and the time. Without TABLE, the table
is an example: heights of a valley.
options:
  --target COLUMN      column to predict
  --method NAME ...    auto, or names listed by agp methods (default: a few)
  --backend NAME ...   names listed by agp backends (default: numpy)
  --dtype NAME ...     float64 (default), float32
  --test-share SHARE   fraction of the rows to hold out (default: 0.2)
  --out FILE           .csv or .parquet file for the results
  --drop, --keep, --task, --missing, --likelihood, --transform,
  --exposure, --weights, --noise, --noise-by, --kernel, --num-inducing,
  --layers, --device, --tolerance, --max-steps, --max-seconds, --log, --seed
  see agp fit --help
  -q, --quiet, --debug, -h, --help   see agp --help
The exit status is 1 if a method failed.
example: agp compare airfoil.csv --target sound --method gpr sgpr wsvgp
"""
TIMED_ROWS = 1000
"""The number of rows whose predictions are timed."""
COLUMNS = {
    "method": ("method", ""),
    "backend": ("backend", ""),
    "dtype": ("dtype", ""),
    "RMSE": ("RMSE", "#.4g"),
    "error rate": ("error\nrate", ".2%"),
    "NLPD": ("NLPD", ".4f"),
    "inside 95 % interval": ("inside\n95 %", ".1%"),
    "fit_seconds": ("fit\n[s]", ".1f"),
    "predict_milliseconds": ("predict\n[ms]", ".1f"),
    "difference": ("differ-\nence", ".1g"),
}
"""The heading and the format of each column."""


def add_parser(commands: Any) -> None:
    """Add the parser of the command."""
    parser = add_command(commands, "compare", HELP, _run)
    several: Any = {"action": "extend", "nargs": "+"}
    parser.add_argument("table", nargs="?")
    parser.add_argument("--target", action="append", default=[])
    add_training_options(parser)
    parser.add_argument("--method", type=one_of("method", ("auto", *METHODS), unknown_method_message), **several)
    parser.add_argument("--backend", **several)
    parser.add_argument("--dtype", type=one_of("dtype", ("float64", "float32")), **several)
    parser.add_argument("--test-share", type=FRACTION, default=0.2)
    parser.add_argument("--out", type=Path)
    parser.set_defaults(hyperparameters="auto", outputs=None, no_data=False)  # options of agp fit


def _run(a: argparse.Namespace) -> int:
    if a.table is None and a.target:
        raise ValueError(f"--target is {a.target[0]!r}, but no table is named; name the table, too.")
    if a.table is not None and len(a.target) != 1:
        raise ValueError(
            f"agp compare predicts one column of {a.table}, but {len(a.target)} are named; name one with --target."
        )
    kernel_or_auto(a.kernel)
    for name in a.backend or ():
        get_backend(name).enable_float64()  # also imports the library, which is not timed
    if a.out:
        check_table_output(a.out, table=[a.table or ""])
    if a.table:
        return _compare(a)
    with tempfile.TemporaryDirectory() as folder:
        a.table, a.target = write_example(folder), [TARGET]
        return _compare(a)


def _compare(a: argparse.Namespace) -> int:
    """Train, sort and print the rows, those of the method with the lowest NLPD first. Return the exit status."""
    data = read_examples(a)
    if not data.test.any():
        raise ValueError(
            f"--test-share is {a.test_share:g}, which holds out none of the {len(data.y)} rows; use a larger share."
        )
    say(a, *(f"{Path(a.table).name}: {remark}" for remark in data.remarks))
    rows: list[dict[str, Any]] = []
    status = 0
    try:
        with show_progress(a) as tracker:
            _add_rows(a, tracker, data, rows)
    except KeyboardInterrupt:
        if not rows:
            raise
        status = 130
        print("interrupted; the table shows the rows that have finished")
    score: dict[str, float] = {}
    for row in rows:
        score.setdefault(row["method"], row.get("NLPD", np.inf))
    rows.sort(key=lambda row: ("error" in row, score[row["method"]]))
    try:
        if a.out:
            write_table(a.out, rows)
            a.written = (a.out,)
    finally:  # the table is printed even if it cannot be written
        _print_rows(a, data, rows)
    return status or int(any("error" in row for row in rows))


def _add_rows(a: argparse.Namespace, tracker: Tracker, data: Examples, rows: list[dict[str, Any]]) -> None:
    """Train and score each combination of a method, a backend and a precision, and append its row."""
    gaussian = data.task == "regression" and a.likelihood in (None, "gaussian")
    methods = a.method or ["auto", *(["sgpr"] if gaussian else []), "wsvgp", "rsvgp"]
    tasks = [*dict.fromkeys(itertools.product(methods, a.backend or ["numpy"], a.dtype or ["float64"]))]
    with tracker.inside([Piece(" ".join(task), 1.0) for task in tasks], in_seconds=False):
        _add_tasks(a, tracker, data, rows, tasks)
        failed = sum("error" in row for row in rows)
        kind = "label" if data.task == "classification" else "error" if gaussian else "fit"
        best = min((row["NLPD"] for row in rows if "NLPD" in row), default=np.inf)
        tracker.score = lambda: Score(kind).describe(-best)  # of held-out rows, not of the last training
        which = f", of which {failed} failed" if failed else ""
        tracker.conclude(f"{count_of(len(rows), 'training')} compared{which}")


def _add_tasks(
    a: argparse.Namespace, tracker: Tracker, data: Examples, rows: list[dict[str, Any]], tasks: list[Any]
) -> None:
    """Train and score methods on array libraries in precisions, and append their rows."""
    known, first = facts_of_rows(a, data), {}
    for i, (method, backend, dtype) in enumerate(tasks):
        row: dict[str, Any] = {"method": method, "chosen": method, "backend": backend, "dtype": dtype}
        if not a.method and any({**row, "method": "auto"}.items() <= other.items() for other in rows):
            continue  # auto has trained this method
        tracker.begin(f"{method} {backend} {dtype}", f"{i + 1} of {len(tasks)}, {method}")
        tracker.forget_scores()
        try:
            means, line = _add_results(row, a, tracker, data, known)
            if len(tasks) > len({task[0] for task in tasks}):
                row["difference"] = float(np.max(np.abs(means - first.setdefault(method, means))))
        except ERRORS as error:
            if a.debug:
                traceback.print_exc()
            row["error"], line = in_shell(error) or type(error).__name__, "failed"
        rows.append(row)
        say(a, f"[{i + 1}/{len(tasks)}] {_label(row)}, {backend}, {dtype}: {line}")


def _add_results(
    row: dict[str, Any], a: argparse.Namespace, tracker: Tracker, data: Examples, known: dict[str, Any]
) -> tuple[Any, str]:
    """Train a row's method, and add its scores and times. Return its predictions, and a line on the training.

    The predictions are probabilities, or means in standard deviations of the target.
    """
    test, labels = data.test, data.task == "classification"
    takes = METHODS[row["method"]].takes if row["method"] in METHODS else ("num_inducing",)
    own = {name: vars(a)[name] if name in takes else None for name in ("num_inducing", "layers")}
    began = time.perf_counter()
    estimator, lines = train_estimator(
        argparse.Namespace(**vars(a) | own | row), tracker,
        data.task, data.X[~test], data.y[~test], **{name: x[~test] for name, x in known.items()},
    )  # fmt: skip
    row |= {"chosen": estimator.method_, "fit_seconds": time.perf_counter() - began}
    X, y = data.X[test], data.y[test]
    asked = Asked(0.95, **{name: x[test] for name, x in known.items() if name != "sample_weight"})
    found = answers(estimator, X, asked, a.target)
    row |= score_predictions(estimator, X, found, y, asked, a.target)
    some, seconds = X.iloc[np.resize(np.arange(len(X)), TIMED_ROWS)], []
    for _ in range(2):  # libraries compile code in the first call
        began = time.perf_counter()
        _ = estimator.predict_proba(some) if labels else estimator.predict(some, return_std=True)
        seconds.append(time.perf_counter() - began)
    row["predict_milliseconds"] = 1e3 * min(seconds)
    probabilities = [x for name, x in found.items() if name != "label"]
    return np.stack(probabilities) if labels else found["mean"] / np.std(data.y), lines[0].partition(": ")[2]


def _print_rows(a: argparse.Namespace, data: Examples, rows: list[dict[str, Any]]) -> None:
    """Print a table of the rows, and their errors."""
    varied = [name for name in ("backend", "dtype") if len({row[name] for row in rows}) > 1]
    shown = [name for name in COLUMNS if any(name in row for row in rows)]
    shown = [name for name in shown if name in varied or name not in ("backend", "dtype")]
    numbers = data.task == "regression"
    spread = f" (standard deviation {format_deviations(data.y[data.test])})" if numbers else ""
    print(f"{data.test.sum():,} rows held out{spread}; lowest NLPD first")
    cells = [[_cell(row, name) for name in shown] for row in rows]
    print_table("", [COLUMNS[name][0] for name in shown], cells, numbers_from=1 + len(varied))
    say(a, f"predict: time for {TIMED_ROWS:,} rows")
    if "difference" in shown:
        what = "means, in standard deviations of the target" if numbers else "probabilities"
        say(a, f"difference: from the method's first row, the largest of the predicted\n  {what}")
    for name in a.written:
        say(a, f"written: {name}")
    for row in rows:
        if "error" in row:
            print(f"failed: {_label(row)}, {row['backend']}, {row['dtype']}: {row['error']}")


def _label(row: dict[str, Any]) -> str:
    return row["method"] if row["method"] == row["chosen"] else f"{row['method']} ({row['chosen']})"


def _cell(row: dict[str, Any], name: str) -> str:
    if name == "method":
        return _label(row)
    return format(row[name], COLUMNS[name][1]) if name in row else "failed" if name == "NLPD" else ""
