"""`agp predict`: predict the rows of a table, and score the predictions."""

import argparse
import bz2
import functools
import gzip
import io
import lzma
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agp import metrics
from agp.checks import check_levels
from agp.cli._notes import Notes, notes_of
from agp.cli._terminal import FRACTION, add_command, check_outputs, option, quote_names
from agp.errors import quote, require
from agp.io import explain_write_errors, load_with_metadata, write_atomically
from agp.tables import (
    COMPRESSIONS,
    NUMBER,
    TableFile,
    are_texts,
    ending_of,
    errors_of,
    factors_of,
    is_many,
    labels_of,
    level_of,
    numbers_of,
    positions_of,
    read_table,
    rows_with,
    several_files,
    shorten_remarks,
    unknown_column_message,
)

HELP = """usage: agp predict MODEL TABLE [--out FILE] [options]
Predict the rows of a table (.csv, .parquet, .npz) with a model from agp fit.
options:
  --out FILE       .csv, .csv.gz or .parquet (default: CSV on standard output);
                   if TABLE is several tables ("part-*.parquet"), a folder
  --level LEVEL    probability that an interval holds the target (default: 0.95)
  --quantiles Q,Q  add columns of quantiles, for example 0.05,0.5,0.95
  --backend NAME, --device NAME, --dtype NAME   array library, device, precision
  -q, --quiet, --debug, -h, --help   see agp --help
columns of the output, which has one row per row of the table:
  mean, standard_deviation, lower, upper   of the target, with noise
  quantile_0.05, ...                       with --quantiles
  mean_TARGET, ...                         if there are several targets
  label, probability_LABEL, ...            if the targets are labels: the most
                                           probable label; all probabilities
If the table has the targets, agp predict also prints scores.
example: agp predict m.safetensors new.csv --out predictions.csv
"""
PACKED = {".gz": functools.partial(gzip.compress, mtime=0), ".bz2": bz2.compress, ".xz": lzma.compress}
ENDINGS = (".csv", ".parquet", *(f".csv{packed}" for packed in COMPRESSIONS))
MAX_LISTED = 30
"""Maximum number of columns that a remark lists."""
REMEDY = "so remove the column from the table or rename it"
LEVELS = option(
    lambda text: check_levels(tuple(map(float, text.split(",")))), "numbers between 0 and 1 such as 0.05,0.5,0.95"
)


def add_parser(commands: Any) -> None:
    """Add the parser of the command."""
    parser = add_command(commands, "predict", HELP, _run)
    parser.add_argument("model", type=Path)
    parser.add_argument("table")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--level", type=FRACTION, default=0.95)
    parser.add_argument("--quantiles", type=LEVELS, default=())
    for name in ("backend", "device", "dtype"):
        parser.add_argument(f"--{name}")


def _run(a: argparse.Namespace) -> int:
    _check(a)
    tables = _each(a) if is_many(a.table) else {a.table: a.out}
    estimator, found = load_with_metadata(a.model, backend=a.backend, device=a.device, dtype=a.dtype)
    notes = notes_of(a.model, estimator, found)
    if a.quantiles and "classes_" in vars(estimator):
        raise ValueError(f"--quantiles is for numeric targets, but {a.model} predicts labels; leave it out.")
    for table, out in tables.items():
        _predict(table, out, estimator, notes, a)
    return 0


def _predict(path: str | Path, out: Path | None, estimator: Any, notes: Notes, a: argparse.Namespace) -> None:
    """Predict one table, write the predictions and print their scores."""
    table, X, words = read_for_model(path, notes, estimator)
    asked = Asked(a.level, a.quantiles)
    every = np.ones(len(X), dtype=bool)
    if notes.exposure in table.frame.columns:
        asked = asked._replace(exposure=factors_of(table, notes.exposure, every, what="exposures", positive=True))
    elif notes.exposure:
        words.append(f"{Path(path).name}: no column {notes.exposure!r}, so predictions are for an exposure of 1")
    if notes.noise:
        asked = asked._replace(noise=errors_of(table, notes.noise, every) ** 2)
    for name, target in zip(notes.noise, notes.targets, strict=False):
        if name not in table.frame.columns:
            remark = f"no column {name!r}, so predictions of {target!r} are without measurement error"
            words.append(f"{Path(path).name}: {remark}")
    rows, y = _known_targets(table, notes, estimator)  # raises an error, if any, before the predictions are written
    with table.places():
        predictions = answers(estimator, X, asked, notes.targets)
    write_table(out, predictions)
    a.written += (out,) if out else ()
    if len(y):
        words += _scores(X, y, rows, notes, estimator, predictions, asked)
    if not a.quiet:
        lines = [*words, f"written: {out}, {len(X):,} rows"] if out else words
        print(*lines, sep="\n", file=sys.stdout if out else sys.stderr, end="\n" if lines else "")


def read_for_model(path: str | Path, notes: Notes, estimator: Any) -> tuple[TableFile, Any, list[str]]:
    """Read a table. Return the table, the model's input columns as a data frame, and remarks on other columns."""
    columns = estimator.columns_.columns
    texts = [name for name, kind in columns.kinds.items() if kind != NUMBER]  # such as "007"
    if "classes_" in vars(estimator) and are_texts(estimator.classes_):
        texts += notes.targets
    table = read_table(path, texts=texts, decimal=notes.decimal)
    there = {*table.frame.columns}
    for name in columns.kinds:
        if name not in there:
            said = unknown_column_message(table.path, name, table.frame.columns, ", which the model needs")
            raise ValueError(said)
    used = {*columns.kinds, *columns.left_out, *notes.targets, *notes.of_rows}
    words, more = [*table.notes], [name for name in table.frame.columns if name not in used]
    if more:
        shown = ", ".join(quote(name)[1:-1] for name in more[:MAX_LISTED])[:200]
        words.append(f"columns that the model does not use: {shown}{', ...' if len(more) > MAX_LISTED else ''}")
    unseen = [f"column {quote(name)} has {_first(levels)}" for name, levels in columns.unseen(table.frame).items()]
    what = "unseen in training; predictions are those for a new value, with wider error bars"
    words += shorten_remarks([f"{remark}, {what}" for remark in unseen])
    names = [name for name in estimator.feature_names_in_ if name in columns.kinds]
    X = table.frame.select(names).to_native()
    return table, X, [f"{Path(path).name}: {word}" for word in words]


def _first(texts: list[str]) -> str:
    """Quote the first three strings, and join them with commas."""
    return quote_names(texts[:3]) + (", ..." if len(texts) > 3 else "")


def read_targets(table: TableFile, notes: Notes, estimator: Any, rows: Any) -> Any:
    """Return the targets [N] or [N, K], or the labels [N], of the given rows."""
    if "classes_" in vars(estimator):
        return labels_of(table, notes.targets[0], rows, least=1, remedy=f"the model predicts labels, {REMEDY}")
    return numbers_of(table, notes.targets, rows, constant=True, remedy=f"the model predicts numbers, {REMEDY}")


def _each(a: argparse.Namespace) -> dict[Path, Path]:
    """Create the output folder. Return the files that match a pattern or lie in a folder, each with its output file."""
    files = several_files(a.table, ENDINGS)
    if a.out.resolve() in {file.resolve().parent for file in files}:
        raise ValueError(f"--out is {a.out}, which is the folder of the tables; name another folder.")
    outs = {file: a.out / file.name for file in files}
    tables: dict[Path, Path] = {}
    for table, out in outs.items():
        if (other := tables.setdefault(out, table)) is not table:
            raise ValueError(
                f"the predictions for {other} and {table} would both be {out}; predict the two in separate folders."
            )
    check_outputs(outs.values(), model=[a.model], table=files)
    a.out.mkdir(exist_ok=True)
    return outs


def _check(a: argparse.Namespace) -> None:
    if is_many(a.table):
        if a.out is None or a.out.is_file() or (a.out.suffix and not a.out.is_dir()):
            raise ValueError(
                f"predictions for several tables ({a.table}) are written to a folder; specify it with --out."
            )
        return
    if a.out is not None:
        check_table_output(a.out, model=[a.model], table=[a.table])


def check_table_output(out: Path, **sources: Iterable[Any]) -> None:
    """Raise a ValueError if a table cannot be written to a file, or would replace one of the sources."""
    if ending_of(out) not in ENDINGS:
        raise ValueError(f"--out is {out}, but must end with .csv or .parquet, or be compressed as .csv.gz.")
    if not out.absolute().parent.is_dir():
        raise ValueError(f"--out is {out}, but {out.parent} is not a folder; create it first.")
    check_outputs([out], **sources)


# -- predictions and their scores ------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """The requested predictions."""

    level: float
    """The probability that an interval contains the target."""
    quantiles: tuple[float, ...] = ()
    exposure: Any = None
    """The exposures [N] of the rows; None means 1."""
    noise: Any = None
    """The variances [N] or [N, K] of measurement errors; None means 0."""

    @property
    def of_rows(self) -> dict[str, Any]:
        """What is known of the rows, as arguments of estimators."""
        return {"exposure": self.exposure, "noise": self.noise}


def answers(estimator: Any, X: Any, asked: Asked, targets: list[str]) -> dict[str, Any]:
    """Compute the columns of the output: means with intervals and quantiles, or labels with probabilities.

    With several targets, each column name ends with the name of a target.
    """
    if "classes_" in vars(estimator):
        probabilities = estimator.predict_proba(X)
        label = estimator.classes_[np.argmax(probabilities, axis=1)]
        named = {f"probability_{name}": p for name, p in zip(estimator.classes_, probabilities.T, strict=True)}
        return {"label": label, **named}
    mean, deviation = estimator.predict(X, return_std=True, **asked.of_rows)
    ends = estimator.predict_interval(X, asked.level, **asked.of_rows)
    found = {"mean": mean, "standard_deviation": deviation, "lower": ends[..., 0], "upper": ends[..., 1]}
    if asked.quantiles:
        quantiles = estimator.predict_quantiles(X, asked.quantiles, **asked.of_rows)
        found |= {f"quantile_{q:g}": quantiles[..., i] for i, q in enumerate(asked.quantiles)}
    if mean.ndim == 1:
        return found
    names = targets or [f"y{k}" for k in range(mean.shape[1])]
    return {f"{what}_{name}": x[:, k] for k, name in enumerate(names) for what, x in found.items()}


def score_predictions(
    estimator: Any, X: Any, found: dict[str, Any], y: Any, asked: Asked, targets: list[str]
) -> dict[str, float]:
    """Compute scores of predictions, by name.

    The targets are [N], or [N, K] with NaN for unknown values. For one target, the model computes the log density. For
    several targets, log densities are computed from normal distributions.
    """
    if "classes_" in vars(estimator):
        return _scores_of_labels(estimator, found, y)
    if y.ndim == 1:
        density = estimator.log_density(X, y, **asked.of_rows)
        return _scores_of_numbers(found, y, density, asked.level)
    scores = {}
    for k, target in enumerate(targets):
        if (rows := ~np.isnan(y[:, k])).any():
            own = {what: found[f"{what}_{target}"][rows] for what in ("mean", "standard_deviation", "lower", "upper")}
            residual, deviation = y[rows, k] - own["mean"], own["standard_deviation"]
            density = -0.5 * np.log(2.0 * np.pi * deviation**2) - 0.5 * (residual / deviation) ** 2
            each = _scores_of_numbers(own, y[rows, k], density, asked.level)
            scores |= {f"{what} of {target}": x for what, x in each.items()}
    return scores


def _scores_of_labels(estimator: Any, found: dict[str, Any], y: Any) -> dict[str, float]:
    chosen = np.stack([found[f"probability_{name}"] for name in estimator.classes_], axis=1)
    at = positions_of(y, estimator.classes_)
    with np.errstate(divide="ignore"):
        density = np.log(np.where(at < 0, 0.0, chosen[np.arange(len(y)), at]))
    return {"error rate": float(np.mean(np.argmax(chosen, axis=1) != at)), "NLPD": metrics.nlpd(density)}


def _scores_of_numbers(found: dict[str, Any], y: Any, density: Any, level: float) -> dict[str, float]:
    return {
        "RMSE": metrics.rmse(found["mean"], y),
        "NLPD": metrics.nlpd(density),
        f"inside {100 * level:g} % interval": metrics.interval_coverage(found["lower"], found["upper"], y),
    }


def _known_targets(table: TableFile, notes: Notes, estimator: Any) -> tuple[Any, Any]:
    """Return the rows [N] with targets, as Booleans, and their targets, which are empty if the table lacks a target."""
    if not notes.targets or not set(notes.targets) <= set(table.frame.columns):
        return None, ()
    rows = rows_with(table, notes.targets)
    return rows, read_targets(table, notes, estimator, rows) if rows.any() else ()


def _scores(X: Any, y: Any, rows: Any, notes: Notes, estimator: Any, predictions: Any, asked: Asked) -> list[str]:
    """Return lines with the scores of the predictions for the rows with targets."""
    found = {name: np.asarray(x)[rows] for name, x in predictions.items()}
    asked = asked._replace(**{name: None if x is None else x[rows] for name, x in asked.of_rows.items()})
    scores = score_predictions(estimator, X[rows], found, y, asked, notes.targets)
    numbers = ", ".join(f"{name} {value:.4g}" for name, value in scores.items())
    return [*_new_labels(notes, estimator, y), f"{int(rows.sum()):,} rows with {quote_names(notes.targets)}: {numbers}"]


def _new_labels(notes: Notes, estimator: Any, y: Any) -> list[str]:
    """Return a remark about labels that did not occur in training."""
    if "classes_" not in vars(estimator):
        return []
    new = sorted({level_of(label) for label in y[positions_of(y, estimator.classes_) < 0].tolist()})
    what = "unseen in training; such rows count as errors"
    return [f"column {notes.targets[0]!r} has {_first(new)}, {what}"] if new else []


def write_table(out: Path | None, columns: Any) -> None:
    """Write a table to a .csv or .parquet file, or as CSV to standard output."""
    import pandas as pd

    frame = pd.DataFrame(columns)
    if out is None:
        _print_csv(frame.to_csv(index=False, lineterminator="\n"))
        return
    content = frame.to_parquet(index=False) if out.suffix.lower() == ".parquet" else _pack(frame, out)
    with explain_write_errors(out):
        write_atomically(out, content)


def _pack(frame: Any, out: Path) -> bytes:
    """Return a data frame as CSV, compressed as the name of the file says."""
    content = frame.to_csv(index=False, lineterminator="\n").encode()
    kind = out.suffix.lower()
    if kind == ".zst":
        return require("pyarrow", "writing .zst files needs", "cli").compress(content, codec="zstd", asbytes=True)
    if kind == ".zip":
        with io.BytesIO() as buffer:
            with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr(out.stem, content)
            return buffer.getvalue()
    return PACKED[kind](content) if kind in PACKED else content


def _print_csv(text: str) -> None:
    """Print a table. Raise a ValueError if standard output cannot encode it, because messages would be escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding, sys.stdout.errors or "strict")
    except UnicodeEncodeError as error:
        what = ascii(text[error.start])
        raise ValueError(
            f"the labels contain {what}, but standard output is encoded as {encoding}; name a file with --out."
        ) from error
    sys.stdout.write(text)
