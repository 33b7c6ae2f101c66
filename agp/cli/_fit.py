"""`agp fit`: train a model on a table, and save it."""

import argparse
import os
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agp.cli._fit_elsewhere import fit_elsewhere
from agp.cli._notes import Notes, write_model
from agp.cli._predict import Asked, answers, score_predictions
from agp.cli._terminal import (
    POSITIVE,
    SEED,
    add_command,
    check_outputs,
    file_identity,
    in_shell,
    one_of,
    option,
    quote_names,
    say,
    whole,
)
from agp.errors import ColumnWarning, quote
from agp.io import check_writable
from agp.kernels import kernel_or_auto
from agp.likelihoods import LIKELIHOODS as NUMERIC
from agp.likelihoods import TRANSFORMS
from agp.methods import METHODS, OUTPUTS, unknown_method_message
from agp.selection import HYPERPARAMETERS, REGRESSION_METHODS
from agp.tables import (
    CATEGORY,
    DURATION,
    NUMBER,
    ORDERED,
    TABLES,
    Columns,
    TableFile,
    check_label_order,
    ending_of,
    errors_of,
    factors_of,
    is_many,
    labels_of,
    numbers_of,
    read_table,
    rows_with,
    shorten_remarks,
    task_of,
    unknown_column_message,
    warn_about_texts,
)
from agp.training import Tracker, track

HELP = """usage: agp fit TABLE --target COLUMN --out MODEL [options]
Train a Gaussian process on a table (.csv, .xlsx, ...), and save the model.
options:
  --target COLUMN      column to predict; repeat the option for several columns
  --drop COLUMN ..., --keep COLUMN ...   columns to ignore; row names to use
  --task NAME          auto (default), regression or classification
  --exposure COLUMN, --weights COLUMN   exposures of counts; row weights
  --noise COLUMN, --noise-by COLUMN   standard deviations; groups of equal noise
  --missing NAME       empty input cells: refuse (default), or impute (the mean)
  --test-share SHARE   fraction of the rows to hold out and score (default: 0)
  --scheduler HOST:PORT   Dask cluster that reads TABLE, e.g. "part-*.parquet"
  --method NAME        auto (default), or a name listed by agp methods
  --kernel TEXT        auto (default), or text such as "matern32 + linear"
  --likelihood NAME    gaussian, student-t, poisson, gamma, beta, ordinal, ...
  --transform NAME     of the target: auto, none, log, yeo-johnson, logit (auto)
  --hyperparameters NAME   auto, mode or mixture (default: auto)
  --outputs NAME       shared, separate, coregionalised or intrinsic targets
  --num-inducing M, --layers L   inducing inputs, or auto; layers if deep
  --backend NAME, --device NAME, --dtype NAME   array library, device, precision
  --tolerance T        stop when an epoch gains less, in nats per row (1e-3)
  --max-steps N, --max-seconds S, --seed N   limits (default: none); seed (0)
  --out MODEL, --log FILE, --no-data   file to write; lines on training; no rows
  -q, --quiet, --debug, -h, --help   see agp --help
example: agp fit airfoil.csv --target sound --test-share 0.1 --out m.safetensors
"""
TASKS = ("auto", "regression", "classification")
LIKELIHOODS = dict.fromkeys(NUMERIC, "regression") | {"ordinal": "classification"}
"""The task of each likelihood."""
MAX_SHOWN = 8
"""The maximum number of ordered levels that a remark lists."""
MIN_COUNTS = 4
"""Minimum number of different labels for which `agp fit` suggests a likelihood for counts."""
NEAR_ZERO_COUNT = 0.1
"""Whole numbers may be counts if their minimum is below this fraction of their mean."""
MAX_DIFFERENT_COUNTS, MIN_DIFFERENT, SHARE_OF_COUNTS, MAX_DISPERSION = 200, 20, 0.5, 100.0
"""Whole numbers may be counts if there are at most so many different ones, and at most a share of the rows unless they
are very few, and if their variance is below a multiple of their mean."""
MIN_SKEWNESS = 1.0
"""Minimum skewness for which `agp fit` suggests a log transform."""
SHARE = option(float, "at least 0 and less than 1", lambda x: 0.0 <= x < 1.0)
COUNT = option(
    lambda text: text if text == "auto" else int(text),
    "a whole number of at least 1, or 'auto'",
    lambda x: x == "auto" or x >= 1,
)
OF_ESTIMATORS = ("method", "kernel", "num_inducing", "layers", "missing", "backend", "device", "dtype")
OF_ESTIMATORS += ("tolerance", "max_steps", "max_seconds")
"""Options that are parameters of the estimators."""


def add_parser(commands: Any) -> None:
    """Add the parser of the command."""
    parser = add_command(commands, "fit", HELP, _run)
    parser.add_argument("table")
    parser.add_argument("--target", action="append", required=True)
    parser.add_argument("--out", type=Path, required=True)
    add_training_options(parser)
    parser.add_argument("--test-share", type=SHARE, default=0.0)
    parser.add_argument("--method", type=one_of("method", ("auto", *METHODS), unknown_method_message), default="auto")
    parser.add_argument("--hyperparameters", type=one_of("hyperparameters", HYPERPARAMETERS), default="auto")
    parser.add_argument("--outputs", type=one_of("outputs", OUTPUTS))
    parser.add_argument("--scheduler")
    parser.add_argument("--backend")
    parser.add_argument("--dtype")
    parser.add_argument("--no-data", action="store_true")


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of reading a table and of training that `agp fit` and `agp compare` share."""
    parser.add_argument("--drop", action="extend", nargs="+", default=[])
    parser.add_argument("--keep", action="extend", nargs="+", default=[])
    parser.add_argument("--task", type=one_of("task", TASKS), default="auto")
    parser.add_argument("--missing", type=one_of("missing", ("refuse", "impute")), default="refuse")
    parser.add_argument("--kernel", default="auto")
    parser.add_argument("--likelihood", type=one_of("likelihood", LIKELIHOODS))
    parser.add_argument("--transform", type=one_of("transform", ("auto", "none", *TRANSFORMS)))
    parser.add_argument("--exposure")
    parser.add_argument("--weights")
    parser.add_argument("--noise", action="append", default=[])
    parser.add_argument("--noise-by")
    parser.add_argument("--num-inducing", type=COUNT)
    parser.add_argument("--layers", type=whole(1))
    parser.add_argument("--device")
    parser.add_argument("--tolerance", type=POSITIVE, default=1e-3)
    parser.add_argument("--max-steps", type=whole(1))
    parser.add_argument("--max-seconds", type=POSITIVE)
    parser.add_argument("--seed", type=SEED, default=0)
    parser.add_argument("--log", type=Path)


def _run(a: argparse.Namespace) -> int:
    _check(a)
    if a.scheduler is not None or is_many(a.table):
        return fit_elsewhere(a, train_estimator, show_progress)
    data = read_examples(a)
    say(a, *(f"{Path(a.table).name}: {remark}" for remark in data.remarks))
    known, test = facts_of_rows(a, data), data.test
    own = {name: x[~test] for name, x in known.items()}
    with data.table.places(data.rows[~test]), show_progress(a) as tracker:
        estimator, lines = train_estimator(a, tracker, data.task, data.X[~test], data.y[~test], **own)
    decimal = "" if data.table.dialect is None else data.table.dialect.decimal
    of_rows = {"exposure": a.exposure or "", "noise": a.noise}
    about = Notes(Path(a.table).name, a.target, data.task, int((~test).sum()), decimal=decimal, **of_rows)
    write_model(a, estimator, about)  # nothing that follows can lose the model
    say(a, *lines)
    if test.any():
        _score_held_out(a, estimator, data, known, about)
    say(a, f"written: {a.out}")
    return 0


class Examples(NamedTuple):
    """The rows of a table that have a target."""

    table: TableFile
    rows: Any
    """The numbers [N] of the rows of the table that have a target."""
    task: str
    X: Any
    """The input columns, as a data frame."""
    y: Any
    """The labels, or the numeric targets."""
    test: Any
    """True for the rows [N] that are held out."""
    remarks: list[str]


def read_examples(a: argparse.Namespace) -> Examples:
    """Read the table. Raise a ValueError if an option does not fit its columns, or if there are too few rows."""
    table = read_table(a.table)
    of_rows = _columns_of_rows(a)
    _check_names(a, table, of_rows)
    rows = rows_with(table, a.target)
    if rows.sum() < 2:
        count = "1 row" if rows.any() else "0 rows"
        raise ValueError(f"{table.path} has {count} with a target; at least two are needed for training.")
    task = _infer_task(a, table, rows)
    y = labels_of(table, a.target[0], rows) if task == "classification" else numbers_of(table, a.target, rows)
    if a.likelihood == "ordinal":
        check_label_order(table, a.target[0], y)
    test = _split_rows(len(y), a.test_share, a.seed)
    X, columns = _inputs(a, table, rows, ~test, without=[*a.target, *a.drop, *of_rows])
    count = len(columns.kinds)
    counts = f"{len(y) - test.sum():,} rows, {count} input column{'s' * (count != 1)}"
    remarks = [f"{counts}; {_task(a, task, y)}", *table.notes, *_remarks_on(columns)]
    if task == "regression":
        warn_about_texts(table, a.target)
    remarks += [*_gaps(table, a.target, rows), *_suggest_likelihood(a, task, y)]
    return Examples(table, np.flatnonzero(rows), task, X, y, test, remarks)


def _inputs(
    a: argparse.Namespace, table: TableFile, rows: Any, training: Any, *, without: list[str]
) -> tuple[Any, Columns]:
    """Return the input columns of the given rows as a data frame, and what the training rows among them hold.

    Raise ValueError if a column cannot be an input. The message names the first unsuitable cell and a remedy.
    """
    unused = {*without}
    names = [name for name in table.frame.columns if name not in unused]
    if not names:
        raise ValueError(f"{table.path} has no input columns left; add one, or drop fewer columns.")
    X, columns = table.frame.select(names).filter(rows.tolist()), Columns(a.missing, a.keep)
    with table.places(np.flatnonzero(rows)[training]):
        columns.learn(X.filter(training.tolist()))
    return X.to_native().reset_index(drop=True), columns


def _remarks_on(columns: Columns) -> list[str]:
    """Return remarks on columns that are converted."""
    remarks = []
    for name, kind in columns.kinds.items():
        if kind == ORDERED:
            shown = " < ".join(quote(level)[1:-1] for level in columns.orders[name][:MAX_SHOWN])
            more = " < ..." if len(columns.orders[name]) > MAX_SHOWN else ""
            remarks.append(f"column {quote(name)} holds ordered categories, which become 0, 1, ...: {shown}{more}")
        elif kind not in (CATEGORY, NUMBER):
            what = "durations" if kind == DURATION else "dates"
            remarks.append(f"column {quote(name)} holds {what}, which become {kind}")
    return shorten_remarks(remarks)


def _check_names(a: argparse.Namespace, table: TableFile, of_rows: list[str]) -> None:
    """Raise a ValueError if an option names a column that is not in the table, or that another option uses."""
    if twice := sorted({name for name in a.target if a.target.count(name) > 1}):
        raise ValueError(f"--target names {twice[0]!r} twice; name each column once.")
    by, there = [] if a.noise_by is None else [a.noise_by], {*table.frame.columns}
    for name in (*a.target, *a.drop, *a.keep, *of_rows, *by):
        if name not in there:
            raise ValueError(unknown_column_message(table.path, name, table.frame.columns))
    if len(table.frame.columns) <= len(a.target):
        what = "the target column" if len(a.target) == 1 else "target columns"
        raise ValueError(
            f"{table.path} has only {what}, but at least one input column is needed; check the column separator."
        )
    if unused := [name for name in a.keep if name in (*a.target, *a.drop, *of_rows)]:
        raise ValueError(f"--keep is {unused[0]!r}, which is not an input; name an input, or leave --keep out.")
    if a.noise_by in (*a.target, *a.drop, *of_rows):
        raise ValueError(
            f"--noise-by is {a.noise_by!r}, which is not an input; name an input, or leave --noise-by out."
        )


def _score_held_out(a: argparse.Namespace, estimator: Any, data: Examples, known: dict[str, Any], about: Notes) -> None:
    """Score the predictions at the rows that are held out, and add the scores to the file."""
    test = data.test
    X, y = data.X[test], data.y[test]
    asked = Asked(0.95, **{name: known[name][test] for name in ("exposure", "noise") if name in known})
    with data.table.places(data.rows[test]):
        found = answers(estimator, X, asked, a.target)
        about.scores |= score_predictions(estimator, X, found, y, asked, a.target)
    spread = f" (their standard deviation: {format_deviations(y)})" if data.task == "regression" else ""
    shown = ", ".join(f"{name} {value:.4g}" for name, value in about.scores.items())
    about.scores["rows held out"] = float(test.sum())
    write_model(a, estimator, about)
    say(a, f"{test.sum():,} rows held out{spread}: {shown}")
    if vars(estimator).get("transform_") is not None:
        name = estimator.transform_.short_name
        say(a, f"these scores, and the NLPD, are those of {a.target[0]!r} itself, not of its transform ({name})")


def _columns_of_rows(a: argparse.Namespace) -> list[str]:
    """Return the columns of exposures, weights and noise. Raise a ValueError if one of them is a target."""
    flags = {"--exposure": [a.exposure], "--weights": [a.weights], "--noise": a.noise}
    found = [(flag, name) for flag, names in flags.items() for name in names if name is not None]
    for flag, name in found:
        if name in a.target:
            raise ValueError(f"{flag} is {name!r}, which is the target; name another column.")
    return [name for _, name in found]


def facts_of_rows(a: argparse.Namespace, data: Examples) -> dict[str, Any]:
    """Return the exposures, weights and noise variances of the rows, as arguments of `fit`."""
    found, table, rows = {}, data.table, np.isin(np.arange(len(data.table.frame)), data.rows)
    if a.exposure is not None:
        found["exposure"] = factors_of(table, a.exposure, rows, what="exposures", positive=True)
    if a.weights is not None:
        found["sample_weight"] = factors_of(table, a.weights, rows, what="weights", positive=False)
    if a.noise:
        found["noise"] = errors_of(table, a.noise, rows) ** 2
    return found


def _check(a: argparse.Namespace) -> None:
    """Raise a ValueError if the kernel is unknown or the output file cannot be written."""
    kernel_or_auto(a.kernel)
    if (ending := ending_of(a.out)) in TABLES:
        stem = a.out.name[: -len(ending)]
        raise ValueError(f"--out is {a.out}, but {ending} files are tables; use a name such as {stem}.safetensors.")
    is_folder = os.path.isdir(a.out)
    folder = a.out if is_folder else a.out.absolute().parent
    if is_folder or not folder.is_dir():
        raise ValueError(f"--out is {a.out}, but {folder} is {'a' if is_folder else 'not a'} folder; name a file.")
    check_outputs([a.out], table=[a.table])
    check_writable(a.out)


def _task(a: argparse.Namespace, task: str, y: Any) -> str:
    labels = f" of {len(np.unique(y))} labels" if task == "classification" else ""
    inferred = a.task == "auto" and a.likelihood is None and len(a.target) == 1
    chosen = " (inferred from the target; --task overrides it)" if inferred else ""
    return f"{task}{labels} for {quote_names(a.target)}{chosen}"


def _gaps(table: TableFile, targets: list[str], rows: Any) -> list[str]:
    """Return remarks on missing targets."""
    words = [] if rows.all() else [f"rows without a target are left out: {int((~rows).sum())}"]
    missing = {name: int((rows & ~rows_with(table, [name])).sum()) for name in targets}
    return words + [f"missing values of the target {quote(name)}: {count}" for name, count in missing.items() if count]


def format_deviations(y: Any) -> str:
    """Format the standard deviation of each target's observed values."""
    known = (column[~np.isnan(column)] for column in np.atleast_2d(y.T))
    return ", ".join(f"{column.std():.4g}" if len(column) else "none observed" for column in known)


def _infer_task(a: argparse.Namespace, table: TableFile, rows: Any) -> str:
    """Infer the task from the options or the targets. Raise a ValueError if options contradict each other."""
    if a.likelihood is not None:
        task = LIKELIHOODS[a.likelihood]
        if a.task not in ("auto", task):
            raise ValueError(
                f"--likelihood {a.likelihood} is for {task}, but --task is {a.task}; leave one of them out."
            )
    elif a.task != "auto":
        task = a.task
    else:
        task = "regression" if len(a.target) > 1 else task_of(table, a.target[0], rows)
    if task == "classification" and len(a.target) > 1:
        raise ValueError(
            f"classification supports only one --target, but there are {len(a.target)}; train one model per target."
        )
    numeric = {"--transform": a.transform, "--exposure": a.exposure, "--noise": a.noise, "--noise-by": a.noise_by}
    if task == "classification" and (given := [option for option, value in numeric.items() if value]):
        raise ValueError(f"{given[0]} is for numeric targets, but the task is classification; use --task regression.")
    _check_noise(a)
    if a.outputs is not None and (task == "classification" or (len(a.target) == 1 and a.likelihood != "latent-noise")):
        raise ValueError(
            f"--outputs is {a.outputs}, but this option is only for several numeric targets; leave it out."
        )
    return task


def _check_noise(a: argparse.Namespace) -> None:
    """Raise a ValueError if --noise contradicts other options, or names more or fewer columns than --target."""
    transform = a.transform if a.transform in TRANSFORMS else None
    if a.noise and (transform or a.likelihood not in (None, "gaussian")):
        option = f"--transform {transform}" if transform else f"--likelihood {a.likelihood}"
        raise ValueError(
            f"--noise is for the gaussian likelihood, and cannot be used with {option}; leave one of them out."
        )
    if a.noise and len(a.noise) != len(a.target):
        counts = [f"{len(x)} column{'s' * (len(x) > 1)}" for x in (a.noise, a.target)]
        raise ValueError(
            f"--noise names {counts[0]}, but --target names {counts[1]}; repeat --noise for each target, in order."
        )


def _split_rows(count: int, share: float, seed: int) -> Any:
    test = np.zeros(count, dtype=bool)
    test[np.random.default_rng(seed).permutation(count)[: round(share * count)]] = True
    if count - test.sum() < 2:
        left = f"{count - test.sum()} of {count} rows"
        raise ValueError(f"--test-share is {share:g}, which leaves {left} for training; at least two are needed.")
    return test


def _suggest_likelihood(a: argparse.Namespace, task: str, y: Any) -> list[str]:
    """Return a remark if another likelihood may suit the targets better."""
    if a.likelihood is not None or a.transform in TRANSFORMS or a.noise or a.noise_by:
        return []
    what = f"{quote_names(a.target)} has"
    if task == "classification":
        if y.dtype.kind not in "iu" or len(np.unique(y)) < MIN_COUNTS or a.task != "auto":
            return []
        return [f"{what} whole numbers; if they are counts rather than labels, use --likelihood negative-binomial"]
    numbers = y[~np.isnan(y)]
    whole = (numbers >= 0.0).all() and (numbers == np.floor(numbers)).all()
    if whole and _may_be_counts(numbers):
        return [f"{what} non-negative whole numbers; if they are counts, use --likelihood negative-binomial or poisson"]
    if (numbers > 0.0).all() and (numbers < 1.0).all():
        return [f"{what} numbers between 0 and 1; if they are proportions, use --likelihood beta"]
    from scipy.stats import skew

    columns = [one[~np.isnan(one)] for one in np.atleast_2d(y.T)]
    compared = a.transform in (None, "auto") and len(columns) == 1 and a.method in REGRESSION_METHODS
    if not compared and (numbers > 0.0).all() and max(map(skew, columns)) > MIN_SKEWNESS:
        return [f"{what} positive numbers with a long tail; --transform log or --likelihood gamma may fit better"]
    return []


def _may_be_counts(numbers: Any) -> bool:
    """Whether whole numbers may be counts: small, near zero, and with a variance not far above the mean."""
    mean, different = numbers.mean(), len(np.unique(numbers))
    near_zero = numbers.min() < NEAR_ZERO_COUNT * mean
    few = different <= MAX_DIFFERENT_COUNTS and different <= max(MIN_DIFFERENT, SHARE_OF_COUNTS * len(numbers))
    return bool(near_zero and few and numbers.var() < MAX_DISPERSION * max(mean, 1.0))


def show_progress(a: argparse.Namespace) -> Any:
    """Return a context that shows a bar or, if standard error is not a terminal, lines, and writes the file of --log.

    Raise a ValueError if the log file is another file of the command.
    """
    others = {a.table and file_identity(a.table): "table", a.out and file_identity(a.out): "output"}
    if a.log is not None and (what := others.get(file_identity(a.log))):
        raise ValueError(f"--log is {a.log}, which is the {what} itself; name another file.")
    return track(not a.quiet, a.log)


def train_estimator(
    a: argparse.Namespace, tracker: Tracker, task: str, X: Any, y: Any, **beside: Any
) -> tuple[Any, list[str]]:
    """Train an estimator. Return it, and lines that describe the training."""
    if a.no_data and task == "classification":
        raise ValueError("--no-data is for regression, because classifiers store the training rows; leave it out.")
    from agp import estimators

    cls = estimators.GPClassifier if task == "classification" else estimators.GPRegressor
    own: dict[str, Any] = {}
    if a.likelihood is not None:
        own["likelihood"] = a.likelihood
    if task == "regression":
        own |= {"target_transform": a.transform or "auto", "outputs": a.outputs or OUTPUTS[0]}
        own |= {"hyperparameters": a.hyperparameters, "store_data": not a.no_data, "noise_by": a.noise_by}
        own |= {"missing_targets": "ignore" if y.ndim == 2 else "refuse"}
    own |= {name: vars(a)[name] for name in OF_ESTIMATORS} | {"keep": a.keep or None}
    estimator = cls(**own, random_state=a.seed, verbose=tracker)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ColumnWarning)  # issued when the table was read
        estimator.fit(X, y, **beside).set_params(verbose=False)
    steps = f"{estimator.n_iter_:,} step{'s' * (estimator.n_iter_ != 1)}"
    ending = f"{'' if estimator.converged_ else 'not '}converged after {steps}"
    seconds = time.perf_counter() - began
    lines = [f"{estimator.method_}: {ending}, {seconds:.1f} s; bound {estimator.bound_:.6g}"]
    if not estimator.converged_ and (reason := vars(estimator).get("ending_")):
        lines.append(in_shell(reason))
    if not estimator.learned_:
        lines.append("the model predicts no better than the mean of the target or the frequencies of its classes")
    holds = "contains the training rows" if estimator.model_._holds_data else "does not contain the training rows"
    lines.append(f"the model {holds}")
    transform = vars(estimator).get("transform_")
    if transform is not None:
        lines.append(f"transform of the target: {transform.short_name}")
    if "noise_by_" in vars(estimator):
        lines.append(f"noise {estimator.facts()['noise']}")
    if "candidates_" in vars(estimator):
        compared = ", ".join(dict.fromkeys(estimator.candidates_["kernel"]))
        lines.append(f"kernel: {estimator.kernel_} (compared: {compared})")
    if "growth_" in vars(estimator):
        numbers = ", ".join(f"{M:.0f}" for M in estimator.growth_["num_inducing"])
        lines.append(f"inducing inputs: {numbers} ({estimator.growth_reason_})")
    return estimator, lines
