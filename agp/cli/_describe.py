"""`agp describe`: the contents of a model file, and which columns matter."""

import argparse
from pathlib import Path
from typing import Any

from agp.cli._notes import Notes, notes_of
from agp.cli._predict import known_targets, read_for_model
from agp.cli._relevance import relevance
from agp.cli._targets import factors_of, positions_of, quoted, rows_with
from agp.cli._terminal import add_command
from agp.data import unknown_column
from agp.errors import FileError
from agp.io import load_described
from agp.models import Model
from agp.summaries import summary

HELP = """usage: agp describe MODEL [TABLE] [options]
Say what is in a file of agp fit or agp.save: table, columns, training, leaves,
and how much each column matters: to the kernel, and if its cells are shuffled.
options:
  TABLE            rows with targets, for a model that holds none, or new ones
  --backend NAME   read it with another array library, such as numpy
  -q, --quiet, --debug, -h, --help   as agp --help says
example: agp describe m.safetensors new.csv
"""
MIN_ROWS = 2
SHOWN = 8
"""Values of a text column that are shown."""


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = add_command(commands, "describe", HELP, _run)
    parser.add_argument("model", type=Path)
    parser.add_argument("table", nargs="?", type=Path)
    parser.add_argument("--backend")


def _run(a: argparse.Namespace) -> int:
    found, facts = load_described(a.model, backend=a.backend)
    model = vars(found).get("model_", found)
    lines = [] if model is found else [f"{name:<10} {text}" for name, text in found.facts().items()]
    notes = None
    if model is not found:
        try:
            notes = notes_of(a.model, found, facts)
        except FileError:
            if facts or a.table is not None:
                raise
        lines = [*([] if notes is None else _table(notes, found.columns_.times)), *lines]
    columns = [] if model is found else found.model_columns()
    data = None if a.table is None else _rows(a, found, notes)
    print(*lines, summary(model, columns=columns), sep="\n", flush=True)
    if isinstance(model, Model):
        print("", *relevance(found, notes, a.table, data), sep="\n")
    return 0


def _rows(a: argparse.Namespace, estimator: Any, notes: Notes | None) -> tuple[Any, Any]:
    """The rows of a table that have targets, and the targets. ValueError if it lacks a column, or all targets."""
    if notes is None or not notes.targets:
        msg = f"{a.model} does not say what its target is called; use agp.inspection in Python, or leave {a.table} out."
        raise ValueError(msg)
    table, X, words = read_for_model(a.table, notes, estimator)
    needed = [*((name, "target") for name in notes.targets), *([(notes.exposure, "exposure")] * bool(notes.exposure))]
    for name, what in needed:
        if name not in table.frame.columns:
            msg = f"{unknown_column(table.path, name, table.frame.columns)} It is the {what} of the model."
            raise ValueError(msg)
    rows = rows_with(table, notes.targets)
    y = known_targets(table, notes, estimator, rows) if rows.any() else []
    if notes.exposure and rows.any():
        exposure = factors_of(table, notes.exposure, rows, what="exposures", positive=True)
        y = y / (exposure if y.ndim == 1 else exposure[:, None])
        words.append(f"targets are compared as rates, {notes.targets[0]!r} by {notes.exposure!r}")
    X = X[rows].reset_index(drop=True)
    if notes.task == "classification" and len(y):
        at = positions_of(y, estimator.classes_)
        if (at < 0).any():
            words.append(f"rows with a label unseen in training are left out: {int((at < 0).sum())}")
        X, y = X[at >= 0].reset_index(drop=True), estimator.classes_[at[at >= 0]]
    if len(y) < MIN_ROWS:
        msg = f"{table.path} has {len(y)} rows with a known {quoted(notes.targets)}; {MIN_ROWS} or more are needed."
        raise ValueError(msg)
    if not a.quiet:
        print(*words, sep="\n", end="\n" if words else "")
    return X, y


def _table(notes: Notes, units: dict[str, str]) -> list[str]:
    lines = [f"table      {notes.table}: {notes.rows:,} rows for training"] if notes.table else []
    what = "target     " if len(notes.targets) == 1 else "targets    "
    lines += [f"{what}{', '.join(notes.targets)} ({notes.task})"] if notes.targets else [f"task       {notes.task}"]
    for i, (name, kind) in enumerate(notes.columns.items()):
        shown = [*kind.values[:SHOWN], *(["..."] if len(kind.values) > SHOWN else [])]
        values = units.get(name, ", ".join(shown))
        lines.append(f"{'columns' if i == 0 else '':10} {name}: {kind.name}{f' ({values})' if values else ''}")
    if notes.scores:
        lines.append(f"held out   {', '.join(f'{name} {value:.4g}' for name, value in notes.scores.items())}")
    return lines
