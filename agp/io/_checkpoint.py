"""Checkpoints: nested dictionaries of arrays and JSON-able facts in one file."""

import math
from pathlib import Path
from typing import Any

from agp.io._atomic import write_atomically
from agp.io._container import packed, refusing, unpacked
from agp.io._nested import layout, named_arrays, nested

__all__ = ["REMEDY", "load_checkpoint", "save_checkpoint"]

KIND = "checkpoint"
REMEDY = "name another file, or remove it to start afresh."


def save_checkpoint(path: str | Path, arrays: dict[str, Any], facts: dict[str, Any]) -> None:
    """Write nested dictionaries of arrays (any library) and JSON-able facts to one file, atomically.

    Parameters
    ----------
    path
        The file; of a symbolic link the target is replaced.
    arrays
        Dictionaries of arrays and of further dictionaries.
    facts
        What else to know: text, numbers, lists and dictionaries.

    Raises
    ------
    OSError
        If the file cannot be written; an old one is then untouched.
    TypeError, ValueError
        For arrays or facts that no file can hold.
    """
    structure = {"kind": KIND, "version": 1, "arrays": layout(arrays), "facts": facts}
    write_atomically(path, packed(named_arrays(arrays), structure))


def load_checkpoint(path: str | Path, most: float = math.inf) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays of `save_checkpoint`, as NumPy, and its facts.

    Parameters
    ----------
    path
        The file.
    most
        The bytes that it can have; a larger one is refused unread.

    Raises
    ------
    agp.errors.FileError
        If the file is not such a checkpoint, is damaged or cannot be read.
    """
    with refusing(path, KIND, REMEDY):
        arrays, structure = unpacked(path, most)
        if not isinstance(structure, dict) or structure.get("kind") != KIND or structure.get("version") != 1:
            msg = f"it holds something else than a {KIND} of version 1"
            raise ValueError(msg)
        if not isinstance(structure.get("facts"), dict):
            msg = "it holds no facts"
            raise ValueError(msg)
        return nested(structure.get("arrays"), arrays), structure["facts"]
