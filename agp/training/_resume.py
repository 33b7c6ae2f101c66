"""Checkpoints of training runs: path checks, writing, reading, and comparison with the resumed run."""

import math
import os
import re
import sys
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from agp import tree
from agp.errors import CheckpointError
from agp.io import REMEDY, arrays_by_path, check_replaceable, load_checkpoint, save_checkpoint
from agp.repairs import Tally

MAX_EXTRA_BYTES = 2**30
"""The maximum size in bytes of the contents of a file, such as traces, that are neither leaves nor states."""
MAX_FACT_CHARS = 2000
"""The maximum number of characters that a message quotes from a file."""


class Saved(NamedTuple):
    """The contents of a checkpoint, as NumPy arrays."""

    leaves: dict[str, Any]
    """The leaves of the model, by name."""
    states: dict[str, Any]
    """The arrays of the updates' states, by path."""
    trace: dict[str, list[float]]
    step: int
    seconds: float
    repairs: Tally


def strip_addresses(text: str) -> str:
    """Remove the memory addresses of functions from a text."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def not_finite(arrays: Mapping[str, Any], unset: Mapping[str, Any]) -> list[str]:
    """Return the names of arrays with entries that are neither finite nor equal to those in `unset`.

    A state may start with an infinite placeholder, for instance for the best bound so far.
    """

    def unchanged(x: Any, start: Any) -> Any:
        return False if start is None else (x == start) | ((x != x) & (start != start))

    return [name for name, x in arrays.items() if not np.all(np.isfinite(x) | unchanged(x, unset.get(name)))]


def check_checkpoint(checkpoint: Any) -> Path | None:
    """Return the path or None.

    Raise a TypeError for other types, a ValueError if the folder does not exist, and a FileError if the path is that of
    a folder, a pipe or a device.
    """
    if checkpoint is None:
        return None
    if not isinstance(checkpoint, str | os.PathLike):
        raise TypeError(f"checkpoint is {checkpoint!r}, but must be the path of a file.")
    path = Path(checkpoint)
    if not Path(os.path.realpath(path)).parent.is_dir():
        raise ValueError(f"the folder of the checkpoint {path} does not exist; create it first.")
    check_replaceable(path)
    return path


def checkpoint_exists(path: Path) -> bool:
    """Whether there is a file at the path, after following links."""
    return os.path.lexists(os.path.realpath(path))


def write_checkpoint(path: Path, arrays: dict[str, Any], meta: dict[str, Any], result: str = "") -> None:
    """Write a checkpoint; raise CheckpointError if the file cannot be written.

    `result` is a sentence about the error's attribute `result`, which is appended to the message.
    """
    try:
        save_checkpoint(path, arrays, meta)
    except (MemoryError, OSError) as error:
        why = str(error) or type(error).__name__
        raise CheckpointError(
            f"the checkpoint {path} could not be written ({why}); make room or name another file.{result}"
        ) from error


def read(path: Path, facts: dict[str, Any], model: Any, states: dict[str, Any], resized: AbstractSet[str]) -> Saved:
    """Read a run from a file; raise ValueError unless the file matches the given facts, leaves and states.

    Leaves and states must have the given shapes and dtypes, but the shapes of the leaves in `resized` may differ.
    """
    expected = arrays_by_path(tree.leaves(model))
    known_bytes = sum(x.nbytes for x in (*expected.values(), *states.values()))
    arrays, meta = load_checkpoint(path, known_bytes + MAX_EXTRA_BYTES)
    if not meta.keys() >= {"facts", "progress"} or not all(isinstance(part, dict) for part in meta.values()):
        raise ValueError(f"{path} is not a checkpoint of a training run; {REMEDY}")
    _check_facts(path, meta["facts"], facts)
    leaves, found, trace = (_folder(path, arrays, name) for name in ("model", "states", "trace"))
    if found.keys() != states.keys():
        raise ValueError(
            f"{path} was written by a run with other updates or frozen leaves; pass the same updates and frozen leaves."
        )
    _check_arrays(path, "the leaf", leaves, expected, resized)
    _check_leaves(path, leaves, model, resized)
    _check_arrays(path, "the state", found, states)
    if broken := not_finite(found, states):
        _refuse(path, f"the state {broken[0]} has NaN or infinite entries")
    step, seconds, repairs = _progress(path, meta["progress"])
    return Saved(leaves, found, _trace(path, trace, step), step, seconds, repairs)


def load_trace(path: Path) -> dict[str, list[float]]:
    """Return the trace in a file, with one number for each step, or an empty dictionary if there is no file."""
    if not checkpoint_exists(path):
        return {}
    trace = load_checkpoint(path)[0].get("trace")
    return _trace(path, arrays_by_path(trace), sys.maxsize) if isinstance(trace, dict) else {}


def _refuse(path: Path, what: str) -> NoReturn:
    raise ValueError(f"{path} cannot be resumed: {what}; {REMEDY}")


def _check_facts(path: Path, saved: dict[str, Any], mine: dict[str, Any]) -> None:
    for name, value in mine.items():
        if saved.get(name) != value:
            other = f"{saved.get(name)}"[:MAX_FACT_CHARS]
            what = (
                f"other {name}" if name in ("data", "updates") else f"{name}={other}, but this one has {name}={value}"
            )
            raise ValueError(f"{path} was written by a run with {what}; {REMEDY}")


def _folder(path: Path, arrays: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the arrays in the folder `name` of a checkpoint, by path."""
    folder = arrays.get(name)
    if not isinstance(folder, dict):
        _refuse(path, f"it has no {name}")
    return arrays_by_path(folder)


def _check_arrays(
    path: Path,
    what: str,
    saved: dict[str, Any],
    expected: dict[str, Any],
    resized: AbstractSet[str] = frozenset(),
) -> None:
    """Raise ValueError unless the names, dtypes and shapes agree. The shapes of resized leaves may differ."""
    for name in sorted(expected.keys() ^ saved.keys()):
        _refuse(path, f"{what} {name} is {'missing' if name in expected else 'unknown'}")
    for name, x in expected.items():
        if saved[name].shape != x.shape and (name not in resized or saved[name].ndim != x.ndim):
            _refuse(path, f"{what} {name} has shape {list(saved[name].shape)}, but {list(x.shape)} in the run")
        if saved[name].dtype != x.dtype:
            _refuse(path, f"{what} {name} has dtype {saved[name].dtype}, but {x.dtype} in the run")


def _check_leaves(path: Path, saved: dict[str, Any], model: Any, resized: AbstractSet[str]) -> None:
    if broken := not_finite(saved, {}):
        _refuse(path, f"the leaf {broken[0]} has NaN or infinite entries")
    found = tree.with_leaves(model, saved)
    for leaf in tree.describe(found):
        if bool(leaf.constraint.is_violated(leaf.value)):
            _refuse(path, f"the leaf {leaf.name} is not {leaf.constraint.name}")
    try:
        if resized:
            found._on_first_datum()
    except (TypeError, ValueError) as error:  # resized leaves do not fit the others
        _refuse(path, str(error).removesuffix("."))


def _progress(path: Path, progress: dict[str, Any]) -> tuple[int, float, Tally]:
    step, seconds, repairs = (progress.get(name) for name in ("step", "seconds", "repairs"))
    if type(step) is not int or step < 0:
        _refuse(path, f"its step is {step!r:.80}")
    if type(seconds) is not float or not 0.0 <= seconds < math.inf:
        _refuse(path, f"its seconds are {seconds!r:.80}")
    if not isinstance(repairs, list) or not all(map(_is_count, repairs)):
        _refuse(path, "its repairs are not a list of messages and counts")
    return step, seconds, Tally.from_rows(repairs)


def _is_count(row: Any) -> bool:
    """Whether `row` is a row of `Tally.rows`: a kind, its first message and a count."""
    if not isinstance(row, list) or len(row) != 3:
        return False
    kind, first, times = row
    return isinstance(kind, str) and isinstance(first, str) and type(times) is int and times > 0


def _trace(path: Path, saved: dict[str, Any], step: int) -> dict[str, list[float]]:
    for name, x in saved.items():
        if x.dtype != np.float64 or x.ndim != 1 or x.shape[0] > step or not np.all(np.isfinite(x)):
            _refuse(path, f"the trace of {name} is not a list of at most {step} finite numbers")
    return {name: x.tolist() for name, x in saved.items()}
