"""Checkpoints: one npz file, replaced atomically, so that a killed run leaves the old one or the new one."""

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from agp.backend import Backend, to_numpy

__all__ = ["load_checkpoint", "save_checkpoint"]

META = "meta"


def save_checkpoint(path: str | Path, arrays: dict[str, Any], meta: dict[str, Any]) -> None:
    """Write nested dictionaries of arrays (any backend) and JSON-able facts to one file, atomically."""
    flat = {name: to_numpy(x) for name, x in _flatten(arrays).items()}
    temporary = Path(f"{path}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            np.savez(file, **{META: np.asarray(json.dumps(meta))}, **flat)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load_checkpoint(path: str | Path, B: Backend, device: str | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays (on the backend and device) and facts of `save_checkpoint`.

    Raises
    ------
    ValueError
        If the file is not such a checkpoint.
    """
    try:
        with Path(path).open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            meta = json.loads(str(file[META]))
            flat = {name: B.from_numpy(file[name], device=device) for name in file.files if name != META}
            if not isinstance(meta, dict):
                raise TypeError(META)
    except (AttributeError, EOFError, KeyError, OSError, TypeError, ValueError, zipfile.BadZipFile) as error:
        msg = f"{path} is not a checkpoint of agp ({error}); name another file, or remove it to start afresh."
        raise ValueError(msg) from error
    return _nest(flat), meta


def _flatten(arrays: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out = {}
    for name, value in arrays.items():
        out |= _flatten(value, f"{prefix}{name}/") if isinstance(value, dict) else {prefix + name: value}
    return out


def _nest(flat: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for path, value in flat.items():
        *folders, name = path.split("/")
        here = out
        for folder in folders:
            here = here.setdefault(folder, {})
        here[name] = value
    return out
