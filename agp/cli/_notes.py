"""Notes on the training table, which are stored in the model file by `agp fit` for the other commands."""

import argparse
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agp.errors import FileError
from agp.io import save_with_metadata


@dataclass
class Notes:
    """Facts about the table that a model was trained on."""

    table: str
    targets: list[str]
    task: str
    rows: int
    scores: dict[str, float] = field(default_factory=dict)
    exposure: str = ""
    """The name of the exposure column; empty if there is none."""
    noise: list[str] = field(default_factory=list)
    """The names of the columns with the standard deviations of measurement errors, one for each target."""

    decimal: str = ""
    """The decimal mark of the table, if it is text."""

    @property
    def of_rows(self) -> list[str]:
        """The names of the columns that are known of the rows, but are neither inputs nor targets."""
        return [*filter(None, [self.exposure]), *self.noise]

    def json(self) -> dict[str, Any]:
        """Convert the notes to values that JSON can represent, without scores that are not finite."""
        scores = {name: score for name, score in self.scores.items() if abs(score) < float("inf")}
        return asdict(self) | {"scores": scores}


def write_model(a: argparse.Namespace, estimator: Any, notes: Notes) -> None:
    """Write a model with its notes to the file `a.out`, and remember that it was written."""
    save_with_metadata(a.out, estimator, notes.json())
    a.written = (a.out,)


def notes_of(path: str | Path, estimator: Any, found: Any) -> Notes:
    """Return a file's notes, or derive them from the estimator if it was saved in Python.

    Raise a FileError if the model has no column names, or the notes are damaged.
    """
    here = vars(estimator)
    if not found and "feature_names_in_" not in here:
        raise FileError(f"{path} holds a model without column names; use it in Python with agp.load.")
    try:
        notes = Notes(**found) if found else Notes("", [], "classification" if "classes_" in here else "regression", 0)
        texts = [notes.table, notes.task, notes.exposure, notes.decimal, *notes.targets, *notes.noise]
        sound = isinstance(notes.targets, list) and isinstance(notes.noise, list)
        sound &= all(isinstance(text, str) for text in texts) and len(notes.noise) in (0, len(notes.targets))
        sound &= all(type(x) in (int, float) for x in (notes.rows, *notes.scores.values()))
        sound &= "feature_names_in_" in here
    except (AttributeError, TypeError, ValueError):
        sound, notes = False, None
    if notes is None or not sound:
        raise FileError(f"the notes in {path} do not match its model; train the model again with agp fit.")
    return notes
