"""`agp describe`: what is in the file of a model."""

import argparse
from pathlib import Path
from typing import Any

from agp.cli._notes import Notes, notes_of
from agp.cli._parser import add_command
from agp.errors import FileError
from agp.io import load_described
from agp.summaries import summary

__all__ = ["add_parser"]

HELP = """usage: agp describe MODEL [options]
Say what is in a file of agp fit or agp.save: table, columns, training, leaves.
options:
  --backend NAME   read it with another array library, such as numpy
  -q, --quiet, --debug, -h, --help   as agp --help says
example: agp describe m.safetensors
"""
SHOWN = 8
"""Values of a column of texts that are shown."""


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = add_command(commands, "describe", HELP, _run)
    parser.add_argument("model", type=Path)
    parser.add_argument("--backend")


def _run(a: argparse.Namespace) -> int:
    found, facts = load_described(a.model, backend=a.backend)
    model = vars(found).get("model_", found)
    lines = [] if model is found else [f"{name:<10} {text}" for name, text in found.facts().items()]
    if model is not found:
        try:
            lines = [*_table(notes_of(a.model, found, facts), found.columns_.times), *lines]
        except FileError:
            if facts:
                raise
    columns = [] if model is found else found.model_columns()
    print(*lines, summary(model, columns=columns), sep="\n")
    return 0


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
