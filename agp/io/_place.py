"""Where arrays come from and where they go: the libraries and devices of files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agp.backend import Array, Backend, backend_of, get_backend
from agp.errors import BackendError, FileError

__all__ = ["DTYPES", "Place", "destination", "origin", "placed"]

DTYPES = ("float64", "float32")
"""What floating-point leaves can be turned into."""


class Place(NamedTuple):
    """A device of a library."""

    backend: Backend
    device: str | None
    """None is the default device."""


def origin(leaves: Mapping[str, Array]) -> dict[str, str | None]:
    """Library and device of leaves, which are alike, as a file names them."""
    for x in leaves.values():
        B = backend_of(x)
        return {"backend": B.name, "device": B.device_name(x)}
    return {"backend": None, "device": None}


def destination(
    path: str | Path, structure: Mapping[str, Any], backend: str | None, device: str | None
) -> Place | None:
    """Where the arrays of a file go: where it says that they were, unless something else is asked for.

    None for a file without arrays.

    Raises
    ------
    agp.errors.BackendError
        If the backend asked for is not available.
    agp.errors.FileError, ValueError
        If that of the file is not, or the device, or the file does not name any.
    """
    wrote, there = structure.get("backend"), structure.get("device")
    if not isinstance(wrote, str | None) or not isinstance(there, str | None):
        msg = "it does not say what wrote it"
        raise TypeError(msg)
    if wrote is None and backend is None:
        return None
    B = _writer(path, str(wrote)) if backend is None else get_backend(backend)
    names = ", ".join(B.devices())
    if device is not None:
        # "cuda" is short for any of "cuda:0", ...
        if not any(name == device or name.startswith(f"{device}:") for name in B.devices()):
            msg = f"device is {device!r}, but {B.name} has {names} here."
            raise FileError(msg)
        return Place(B, device)
    if wrote == B.name and there and there not in B.devices():
        msg = (
            f"{path} was written on the device {there!r:.80} of {B.name}, which has {names} here; name one by device=."
        )
        raise FileError(msg)
    return Place(B, (there or None) if wrote == B.name else None)


def _writer(path: str | Path, name: str) -> Backend:
    try:
        return get_backend(name)
    except BackendError as error:
        hint = 'name another library, such as backend="numpy"'
        msg = f"{path} was written by {name:.80}, which cannot be used here; {hint}."
        raise FileError(msg) from error


def placed(x: Any, to: Place, dtype: str | None) -> Array:
    """A NumPy array there; the dtype is that of floating-point numbers."""
    with np.errstate(over="ignore", under="ignore"):  # leaves that become infinite, or zero, are found later
        return to.backend.from_numpy(x, dtype=dtype if x.dtype.kind == "f" else None, device=to.device)
