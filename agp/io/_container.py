"""The file format: a safetensors file with named arrays, a structure in JSON, and a digest of both.

The metadata of the file has two entries. "agp" is the structure, any JSON that describes the arrays. "sha256" is a
digest that covers the structure and every array's name, type, shape and bytes. It is verified before any content is
used. Loading runs no code from the file, and allocates no more memory than the content requires.

The format: https://huggingface.co/docs/safetensors.
"""

import hashlib
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from agp.errors import FileError

STRUCTURE, DIGEST = "agp", "sha256"
RESERVED = "__metadata__"
"""The name that safetensors reserves."""
DTYPES = {
    "BOOL": "bool",
    **{f"{kind[0].upper()}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
}
"""The types of arrays that files can hold: their names in safetensors and in NumPy."""
HEADER_BYTES = 2**25
"""Maximum size of the header in bytes. It has room for the names and kinds of a hundred thousand columns, and fits in
memory when parsed."""


# -- writing ----------------------------------------------------------------------------------------------------------


def pack(arrays: Mapping[str, Any], structure: Any) -> bytes:
    """Return the content of a file with these NumPy arrays and this structure.

    Raise a TypeError for an array of an unsupported type, or a structure that JSON cannot represent. Raise a ValueError
    if the structure is too large or contains a number that is not finite, or if an array has a reserved name.
    """
    if RESERVED in arrays:
        raise ValueError(f"no array can have the name {RESERVED}; choose another name.")
    from safetensors.numpy import save

    text = json.dumps(structure, allow_nan=False)
    ordered = {name: _plain(name, x) for name, x in arrays.items()}
    content = save(ordered, {STRUCTURE: text, DIGEST: _digest(text, ordered)})
    if (size := int.from_bytes(content[:8], "little")) > HEADER_BYTES:
        raise ValueError(
            f"names and structure take {size} bytes, but at most {HEADER_BYTES} fit in a file; shorten the settings."
        )
    return content


def _plain(name: str, x: Any) -> Any:
    """Convert an array to little-endian bytes in C order. safetensors writes the bytes in memory unchanged."""
    if x.dtype.name not in DTYPES.values():
        known = ", ".join(DTYPES.values())
        raise TypeError(f"{name} has dtype {x.dtype}, which files do not support; convert it to one of {known}.")
    return x.astype(x.dtype.newbyteorder("<"), order="C", copy=False)


def _digest(text: str, arrays: Mapping[str, Any]) -> str:
    """Compute the SHA-256 digest of the structure, a table of the arrays, and their bytes, sorted by name."""
    names = sorted(arrays)
    table = [[name, arrays[name].dtype.name, list(arrays[name].shape)] for name in names]
    digest = hashlib.sha256(json.dumps([text, table]).encode())
    for name in names:
        digest.update(arrays[name].reshape(-1).view(np.uint8))
    return digest.hexdigest()


# -- reading ----------------------------------------------------------------------------------------------------------


@contextmanager
def refusing(path: str | Path, kind: str, remedy: str) -> Iterator[None]:
    """Convert any error about the content of a file to a FileError that gives the path, the reason and a remedy."""
    from safetensors import SafetensorError

    try:
        yield
    except FileError:
        raise
    except FileNotFoundError as error:
        raise FileError(f"there is no file {path}; {remedy}") from error
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        MemoryError,
        OSError,
        RecursionError,
        SafetensorError,
        TypeError,
        ValueError,
    ) as error:
        said = (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())
        raise FileError(
            f"{path} is not a {kind} of agp ({said.removesuffix('.') or type(error).__name__}); {remedy}"
        ) from error


def unpack(path: str | Path, most: float = math.inf) -> tuple[dict[str, Any], Any]:
    """Read and verify the arrays and the structure of a file with at most `most` bytes. Call this inside `refusing`."""
    from safetensors import safe_open

    _check_header(path, most)
    with safe_open(path, framework="np") as file:
        metadata = file.metadata() or {}
        if not metadata.keys() >= {STRUCTURE, DIGEST}:
            raise ValueError("it is a safetensors file from another program")
        arrays = {name: _array(file, name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
    if metadata[DIGEST] != _digest(metadata[STRUCTURE], arrays):
        raise ValueError("its content does not match its digest: it is damaged")
    return arrays, json.loads(metadata[STRUCTURE], parse_constant=_no_number)


def _check_header(path: str | Path, most: float) -> None:
    """Check the size of a file and the length of its header, which is stored in the first eight bytes."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):  # opening a FIFO would wait for a writer
        raise ValueError("it is not a regular file")
    if status.st_size > most:  # a sparse file is small on disk, but not in memory
        raise ValueError(f"it has {status.st_size} bytes, but at most {most} are expected")
    with Path(path).open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
    if size > status.st_size - 8:
        raise ValueError("it is truncated, or not a safetensors file")
    if size > HEADER_BYTES:
        raise ValueError(f"its header has {size} bytes, but at most {HEADER_BYTES} are allowed")


def _array(file: Any, name: str) -> Any:
    """Read one array from an open file. safetensors has checked that the shape matches the number of bytes."""
    part = file.get_slice(name)
    dtype = part.get_dtype()
    if dtype not in DTYPES:
        raise ValueError(f"{name} has the unsupported type {dtype}")
    np.empty(part.get_shape(), DTYPES[dtype])  # raises a MemoryError where safetensors would panic
    x = file.get_tensor(name)
    if dtype == "BOOL" and np.any(x.view(np.uint8) > 1):
        raise ValueError(f"{name} has Booleans other than 0 and 1")
    return x


def _no_number(name: str) -> None:
    raise ValueError(f"its structure contains {name}, but numbers must be finite")
