"""What a fit in stages has finished, in a file, so that it goes on from there to the same numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from agp.io import REMEDY, load_checkpoint
from agp.selection._watch import Watch
from agp.training import check_checkpoint, checkpoint_exists, write_checkpoint

__all__ = ["Pieces"]

KIND = "fit_regression"

T = TypeVar("T")


class Pieces:
    """Named pieces of work, each done once: dictionaries of arrays of NumPy."""

    def __init__(self, path: str | Path | None, facts: dict[str, Any], watch: Watch) -> None:
        self.path, self.watch = check_checkpoint(path), watch
        self.facts = {"fit": KIND, **facts}
        self.done: dict[str, dict[str, Any]] = {}
        if self.path is not None:
            self._open(self.path)

    def _open(self, path: Path) -> None:
        if not checkpoint_exists(path):
            self._write(path)  # fails at once if it cannot be written
            return
        arrays, saved = load_checkpoint(path)
        other = saved.get("facts")
        if not isinstance(other, dict) or other.get("fit") != KIND:
            msg = f"{path} is no checkpoint of {KIND}; {REMEDY}"
            raise ValueError(msg)
        if names := [name for name, mine in self.facts.items() if other.get(name) != mine]:
            msg = f"{path} was written by a fit with other values of {', '.join(names)}; {REMEDY}"
            raise ValueError(msg)
        try:
            watch = arrays.pop("watch")
            self.watch.steps, self.watch.bounds = int(watch["steps"]), watch["bounds"].tolist()
            self.watch.before = float(watch["seconds"])
            self.done = {name: dict(piece) for name, piece in arrays.items()}
        except (KeyError, TypeError, ValueError) as error:
            self._refuse(path, error)

    def __call__(self, name: str, work: Callable[[], dict[str, Any]], taken: Callable[[dict[str, Any]], T]) -> T:
        """What is taken of the piece of that name: from the file, or done now. What a deadline cut short is not kept.

        Numbers that cannot be taken are refused by a ValueError.
        """
        if self.path is not None and name in self.done:
            try:
                return taken(self.done[name])
            except ValueError as error:
                self._refuse(self.path, error)
        found = {key: np.asarray(value, order="C") for key, value in work().items()}
        if self.path is not None and not self.watch.stage_over:
            self.done[name] = found
            self._write(self.path)
        return taken(found)

    @staticmethod
    def _refuse(path: Path, error: Exception) -> NoReturn:
        msg = f"{path} cannot be resumed: {error}; {REMEDY}"
        raise ValueError(msg) from error

    def _write(self, path: Path) -> None:
        watch = self.watch
        state = {"steps": watch.steps, "bounds": watch.bounds, "seconds": watch.elapsed()}
        arrays = {**self.done, "watch": {key: np.asarray(value, dtype=np.float64) for key, value in state.items()}}
        write_checkpoint(path, arrays, {"facts": self.facts})
