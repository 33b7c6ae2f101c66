"""`agp describe`: print the contents of a model file and the relevance of each column."""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np

from agp.cli._notes import Notes, notes_of
from agp.cli._predict import read_for_model, read_targets
from agp.cli._relevance import relevance
from agp.cli._terminal import add_command, quote_names, say
from agp.errors import FileError, count_of
from agp.io import load_with_metadata
from agp.models import Model
from agp.summaries import summary
from agp.tables import (
    CATEGORY,
    DURATION,
    NUMBER,
    ORDERED,
    Columns,
    factors_of,
    positions_of,
    rows_with,
    unknown_column_message,
)

HELP = """usage: agp describe MODEL [TABLE] [options]
Print the contents of a model file from agp fit or agp.save: the training table,
its columns, the training and the parameters. Also print how relevant each
column is: its share of the prior variance and its permutation importance.
options:
  TABLE            table of inputs and targets on which relevance is computed
                   (default: the training rows, if the model holds them)
  --backend NAME   array library into which the model is loaded, e.g. numpy
  -q, --quiet, --debug, -h, --help   see agp --help
example: agp describe m.safetensors new.csv
"""
MIN_ROWS = 2
MAX_VALUES = 8
"""Maximum number of values that are printed for a column of text or of ordered categories."""


def add_parser(commands: Any) -> None:
    """Add the parser of the command."""
    parser = add_command(commands, "describe", HELP, _run)
    parser.add_argument("model", type=Path)
    parser.add_argument("table", nargs="?", type=Path)
    parser.add_argument("--backend")


def _run(a: argparse.Namespace) -> int:
    found, facts = load_with_metadata(a.model, backend=a.backend)
    model = vars(found).get("model_", found)
    lines = [] if model is found else [f"{name:<10} {text}" for name, text in found.facts().items()]
    notes = None
    if model is not found:
        try:
            notes = notes_of(a.model, found, facts)
        except FileError:
            if facts or a.table is not None:
                raise
        lines = [*([] if notes is None else _table(notes, found.columns_.columns)), *lines]
    columns = [] if model is found else found.model_columns()
    data = None if a.table is None else _rows(a, found, notes)
    print(*lines, summary(model, columns=columns), sep="\n", flush=True)
    if isinstance(model, Model):
        print("", *relevance(found, notes, a.table, data), sep="\n")
    return 0


def _rows(a: argparse.Namespace, estimator: Any, notes: Notes | None) -> tuple[Any, Any]:
    """Return X and y of the rows with targets. Raise a ValueError if there are too few or a column is missing."""
    if notes is None or not notes.targets:
        remedy = f"leave out {a.table}, or use agp.inspection in Python"
        raise ValueError(f"{a.model} does not contain the name of its target; {remedy}.")
    table, X, words = read_for_model(a.table, notes, estimator)
    needed = [*((name, "target") for name in notes.targets), *([(notes.exposure, "exposure")] * bool(notes.exposure))]
    for name, what in needed:
        if name not in table.frame.columns:
            why = f", which the model needs as its {what}"
            raise ValueError(unknown_column_message(table.path, name, table.frame.columns, why))
    rows = rows_with(table, notes.targets)
    y = read_targets(table, notes, estimator, rows) if rows.any() else []
    if notes.exposure and rows.any():
        exposure = factors_of(table, notes.exposure, rows, what="exposures", positive=True)
        y = y / (exposure if y.ndim == 1 else exposure[:, None])
        words.append(f"scores are computed on rates, {notes.targets[0]!r} divided by {notes.exposure!r}")
    X = X[rows].reset_index(drop=True)
    if notes.task == "classification" and len(y):
        at = positions_of(y, estimator.classes_)
        if (at < 0).any():
            words.append(f"rows with a label unseen in training are left out: {int((at < 0).sum())}")
        X, y = X[at >= 0].reset_index(drop=True), estimator.classes_[at[at >= 0]]
    if len(y) < MIN_ROWS:
        raise ValueError(
            f"{table.path} has {count_of(len(y), 'row')} with {quote_names(notes.targets)}; at least {MIN_ROWS} "
            "rows are needed."
        )
    say(a, *words)
    return X, y


def _table(notes: Notes, columns: Columns) -> list[str]:
    lines = [f"table      {notes.table}: {notes.rows:,} training rows"] if notes.table else []
    what = "target     " if len(notes.targets) == 1 else "targets    "
    lines += [f"{what}{', '.join(notes.targets)} ({notes.task})"] if notes.targets else [f"task       {notes.task}"]
    for i, name in enumerate(columns.kinds):
        lines.append(f"{'columns' if i == 0 else '':10} {name}: {_describe_column(columns, name)}")
    if notes.noise:
        lines.append(f"noise      known standard deviations in {quote_names(notes.noise)}")
    if notes.scores:
        lines.append(f"held out   {', '.join(f'{name} {value:.4g}' for name, value in notes.scores.items())}")
    return lines


def _describe_column(columns: Columns, name: str) -> str:
    """Describe what a column holds."""
    kind = columns.kinds[name]
    if kind == ORDERED:
        return f"ordered ({_first(columns.orders[name], ' < ')})"
    if kind == CATEGORY:
        return f"text ({_first(['missing' if level is None else level for level in columns.levels[name]], ', ')})"
    if name in columns.truths:
        return f"Boolean ({', '.join(columns.truths[name])})"
    if kind == NUMBER:
        style = columns.styles.get(name)
        return kind if style is None else f"{kind} (written as {style.noun})"
    if kind == DURATION:
        return f"duration ({kind})"
    span = " to ".join(str(np.datetime64(math.floor(days), "D")) for days in columns.ranges.get(name, ()))
    return f"date ({span}{'; ' if span else ''}{kind})"


def _first(levels: list[str], between: str) -> str:
    """Join the first levels."""
    return between.join([*levels[:MAX_VALUES], *(["..."] if len(levels) > MAX_VALUES else [])])
