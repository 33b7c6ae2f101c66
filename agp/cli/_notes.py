"""What `agp fit` knows of its table, for the other commands; it is kept in the file of the model."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agp.cli._columns import DAYS, Kind
from agp.errors import FileError

__all__ = ["Notes", "notes_of"]


@dataclass
class Notes:
    """The table that a model was trained on."""

    table: str
    targets: list[str]
    task: str
    rows: int
    columns: dict[str, Kind]
    scores: dict[str, float] = field(default_factory=dict)
    exposure: str = ""
    """The column of exposures, if there is one."""

    def json(self) -> dict[str, Any]:
        """For a file."""
        kinds = {name: [kind.name, list(kind.values)] for name, kind in self.columns.items()}
        finite = {name: score for name, score in self.scores.items() if abs(score) < float("inf")}
        return asdict(self) | {"columns": kinds, "scores": finite}


def notes_of(path: str | Path, estimator: Any, found: Any) -> Notes:
    """The notes of a file, or what can be told from an estimator that Python has saved.

    Raises
    ------
    agp.errors.FileError
        If the file is not one of a model of a table.
    """
    if not found:
        return _from_estimator(path, estimator)
    try:
        notes = Notes(**found)
        notes.columns = {name: Kind(kind, tuple(values)) for name, (kind, values) in notes.columns.items()}
        texts = [notes.table, notes.task, notes.exposure, *notes.targets, *notes.columns]
        texts += [value for kind in notes.columns.values() for value in (kind.name, *kind.values)]
        numbers = [notes.rows, *notes.scores.values()]
        sound = (
            isinstance(notes.targets, list)
            and all(isinstance(text, str) for text in texts)
            and all(type(x) in (int, float) for x in numbers)
        )
        names = list(vars(estimator).get("feature_names_in_", ()))
    except (AttributeError, TypeError, ValueError):
        sound, names, notes = False, [], None
    if notes is None or not sound or names != list(notes.columns):
        msg = f"{path} has notes about its table that do not fit its model; train it again with agp fit."
        raise FileError(msg)
    times = estimator.columns_.times
    for name, kind in notes.columns.items():
        if kind.name == "date" and name not in times:  # of 0.2.0, where the command line made days of dates
            times[name], notes.columns[name] = DAYS, Kind("date in UTC")
    return notes


def _from_estimator(path: str | Path, estimator: Any) -> Notes:
    here = vars(estimator)
    if "feature_names_in_" not in here:
        msg = f"{path} holds no model of a table with named columns; use it in Python: agp.load."
        raise FileError(msg)
    learned = here["columns_"]
    kinds = {name: Kind("text", tuple(filter(None, values))) for name, values in learned.values.items()}
    kinds |= {name: Kind("duration" if unit == "days" else "date") for name, unit in learned.times.items()}
    columns = {name: kinds.get(name, Kind("number")) for name in here["feature_names_in_"]}
    return Notes("", [], "classification" if "classes_" in here else "regression", 0, columns)
