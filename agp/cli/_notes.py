"""What `agp fit` keeps about its table in the file of the model, for the other commands."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agp.cli._columns import DAYS, Kind, kinds_of
from agp.errors import FileError


@dataclass
class Notes:
    """The table that a model was trained on."""

    table: str
    targets: list[str]
    task: str
    rows: int
    scores: dict[str, float] = field(default_factory=dict)
    exposure: str = ""
    """The column of exposures, if there is one."""
    columns: dict[str, Kind] = field(default_factory=dict)
    """What each input column held; read from the estimator, not from the notes."""

    def json(self) -> dict[str, Any]:
        """For a file."""
        facts = {name: value for name, value in asdict(self).items() if name != "columns"}
        return facts | {"scores": {name: score for name, score in self.scores.items() if abs(score) < float("inf")}}


def notes_of(path: str | Path, estimator: Any, found: Any) -> Notes:
    """The notes of a file, or what an estimator saved from Python tells.

    Raises
    ------
    agp.errors.FileError
        If the file does not hold a model of a table, or its notes are damaged.
    """
    here = vars(estimator)
    if not found and "feature_names_in_" not in here:
        msg = f"{path} holds no model of a table with named columns; use it in Python: agp.load."
        raise FileError(msg)
    in_utc = []
    try:
        notes = Notes(**found) if found else Notes("", [], "classification" if "classes_" in here else "regression", 0)
        texts = [notes.table, notes.task, notes.exposure, *notes.targets]
        sound = isinstance(notes.targets, list) and all(isinstance(text, str) for text in texts)
        sound &= all(type(x) in (int, float) for x in (notes.rows, *notes.scores.values()))
        sound &= "feature_names_in_" in here
        if notes.columns:  # files of older versions have them
            sound &= [*notes.columns] == [*estimator.feature_names_in_]
            in_utc = [name for name, (kind, _) in notes.columns.items() if kind == "date"]
    except (AttributeError, TypeError, ValueError):
        sound, notes = False, None
    if notes is None or not sound:
        msg = f"{path} has notes about its table that do not fit its model; train it again with agp fit."
        raise FileError(msg)
    times = estimator.columns_.times
    in_utc = [name for name in in_utc if name not in times]  # in 0.2.0 the command line made days of dates
    times |= dict.fromkeys(in_utc, DAYS)
    notes.columns = kinds_of(estimator) | dict.fromkeys(in_utc, Kind("date in UTC"))
    return notes
