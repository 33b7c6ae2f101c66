"""`agp fit`: a model of a table, in a file."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from agp.checks import check_positive, check_whole
from agp.cli._answers import answers, scored
from agp.cli._checks import chosen_layers
from agp.cli._columns import inputs_of
from agp.cli._notes import Notes
from agp.cli._parser import add_command
from agp.cli._targets import TASKS, check_target, labels_of, numbers_of, task_of
from agp.data import TABLES, read_table
from agp.io import save_described
from agp.methods import METHODS, kernel_named

__all__ = ["add_parser"]

HELP = """usage: agp fit TABLE --target COLUMN --out MODEL [options]
Train a Gaussian process on a table (.csv, .parquet, .npz), and write it down.
data:
  --target COLUMN      what to predict; all other columns are inputs
  --drop COLUMN ...    leave columns out
  --task NAME          auto: by the target (default), regression, classification
  --missing NAME       missing cells: refuse (default) or impute, by means
  --dates NAME         dates: refuse (default), or numbers: days since 1970
  --test-share SHARE   hold out such a share of the rows, and score them
model:
  --method NAME        auto (default), gpr, wsvgp, rsvgp, deep-rsvgp, ...
  --kernel TEXT        rbf (default), or sums and products: "matern32 + linear"
  --num-inducing M, --layers L   inducing inputs (default: grows with the rows);
                       layers of deep methods (default: 2)
  --backend NAME, --device NAME, --dtype NAME   where to compute, how precisely
training:
  --tolerance T        end when an epoch gains less nats per row (default: 1e-3)
  --max-steps N, --max-seconds S   end at the latest after so many
  --seed N             of split, inducing inputs and minibatches (default: 0)
output:
  --out MODEL          the file; an old one is replaced
  -q, --quiet, --debug, -h, --help   as agp --help says
example: agp fit airfoil.csv --target sound --test-share 0.1 --out m.safetensors
"""


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = add_command(commands, "fit", HELP, _run)
    parser.add_argument("table")
    parser.add_argument("--target", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--drop", action="extend", nargs="+", default=[])
    parser.add_argument("--task", choices=TASKS, default="auto")
    parser.add_argument("--missing", choices=("refuse", "impute"), default="refuse")
    parser.add_argument("--dates", choices=("refuse", "numbers"), default="refuse")
    parser.add_argument("--test-share", type=float, default=0.0)
    parser.add_argument("--method", default="auto")
    parser.add_argument("--kernel", default="rbf")
    parser.add_argument("--num-inducing", type=int)
    parser.add_argument("--layers", type=int)
    for name in ("backend", "device", "dtype"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--tolerance", type=float, default=1e-3)
    parser.add_argument("--max-steps", type=int)
    parser.add_argument("--max-seconds", type=float)
    parser.add_argument("--seed", type=int, default=0)


def _run(a: argparse.Namespace) -> int:
    estimators = _estimators()
    _check(a)
    table = read_table(a.table)
    check_target(table, a.target)
    for name in a.drop:
        if name != a.target:
            check_target(table, name)
    rows = table.frame[a.target].notna().to_numpy()
    if rows.sum() < 2:
        msg = f"{table.path} has {int(rows.sum())} row with a target; training needs two or more."
        raise ValueError(msg)
    task = task_of(table, a.target, rows) if a.task == "auto" else a.task
    y = (labels_of if task == "classification" else numbers_of)(table, a.target, rows)
    X, kinds, notes = inputs_of(table, without=[a.target, *a.drop], dates=a.dates, missing=a.missing)
    X = X[rows].reset_index(drop=True)
    test = _held_out(len(y), a.test_share, a.seed)
    words = [f"{len(y) - test.sum():,} rows, {len(kinds)} input column{'s' * (len(kinds) != 1)}; {_task(a, task, y)}"]
    words += [*table.notes, *notes]
    if not rows.all():
        words.append(f"rows without a target are left out: {int((~rows).sum())}")
    _say(a, *(f"{Path(a.table).name}: {word}" for word in words))
    estimator = _trained(a, estimators, task, X[~test], y[~test])
    about = Notes(Path(a.table).name, a.target, task, int(len(y) - test.sum()), kinds)
    if test.any():
        found = answers(estimator, X[test], 0.95)
        about.scores |= scored(estimator, found, y[test], 0.95) | {"rows held out": float(test.sum())}
        spread = f" (their standard deviation: {y[test].std():.4g})" if task == "regression" else ""
        shown = ", ".join(f"{name} {value:.4g}" for name, value in about.scores.items() if name != "rows held out")
        _say(a, f"{test.sum():,} rows held out{spread}: {shown}")
    save_described(a.out, estimator, about.json())
    _say(a, f"written: {a.out}")
    return 0


def _estimators() -> Any:
    try:
        from agp import estimators
    except ImportError as error:
        msg = f"{str(error).replace('[sklearn]', '[cli]')}"
        raise ImportError(msg) from error
    return estimators


def _check(a: argparse.Namespace) -> None:
    """ValueError for options that no training could take."""
    kernel_named(a.kernel)
    if not 0.0 <= a.test_share < 1.0:
        msg = f"--test-share is {a.test_share:g}, but must be at least 0 and less than 1."
        raise ValueError(msg)
    if a.method not in ("auto", *METHODS):
        msg = f"unknown method {a.method!r}; known are auto, {', '.join(METHODS)}."
        raise ValueError(msg)
    chosen_layers(a.layers, [a.method])
    for name in ("num_inducing", "max_steps", "seed"):
        value = vars(a)[name]
        if value is not None:
            check_whole(f"--{name.replace('_', '-')}", value, least=0 if name == "seed" else 1)
    for name in ("tolerance", "max_seconds"):
        value = vars(a)[name]
        if value is not None:
            check_positive(f"--{name.replace('_', '-')}", value)
    if a.out.suffix.lower() in TABLES:
        msg = f"--out is {a.out}, which is the name of a table; name a file such as {a.out.stem}.safetensors."
        raise ValueError(msg)
    folder = a.out if a.out.is_dir() else a.out.absolute().parent
    if a.out.is_dir() or not folder.is_dir():
        msg = f"--out is {a.out}, but {folder} is {'a' if a.out.is_dir() else 'no'} folder; name a file."
        raise ValueError(msg)


def _task(a: argparse.Namespace, task: str, y: Any) -> str:
    labels = f" of {len(np.unique(y))} labels" if task == "classification" else ""
    chosen = " (judged by the target; --task overrides)" if a.task == "auto" else ""
    return f"{task}{labels} for {a.target!r}{chosen}"


def _held_out(count: int, share: float, seed: int) -> Any:
    test = np.zeros(count, dtype=bool)
    test[np.random.default_rng(seed).permutation(count)[: round(share * count)]] = True
    if count - test.sum() < 2:
        left = f"{count - test.sum()} of {count} rows"
        msg = f"--test-share is {share:g}, which leaves {left} to train on; two or more are needed."
        raise ValueError(msg)
    return test


def _trained(a: argparse.Namespace, estimators: Any, task: str, X: Any, y: Any) -> Any:
    cls = estimators.GPClassifier if task == "classification" else estimators.GPRegressor
    estimator = cls(
        method=a.method,
        kernel=a.kernel,
        num_inducing=a.num_inducing,
        layers=a.layers,
        missing=a.missing,
        backend=a.backend,
        device=a.device,
        dtype=a.dtype,
        tolerance=a.tolerance,
        max_steps=a.max_steps,
        max_seconds=a.max_seconds,
        random_state=a.seed,
        verbose=not a.quiet and sys.stderr.isatty(),
    )
    began = time.perf_counter()
    estimator.fit(X, y).set_params(verbose=False)
    ending = f"{'' if estimator.converged_ else 'not '}converged after {estimator.n_iter_:,} steps"
    seconds = time.perf_counter() - began
    _say(a, f"{estimator.method_}: {ending}, {seconds:.1f} s; bound {estimator.bound_:.6g}")
    return estimator


def _say(a: argparse.Namespace, *lines: str) -> None:
    if not a.quiet:
        print(*lines, sep="\n", flush=True)
