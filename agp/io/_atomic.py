"""Atomic writes: if a process is killed while it writes a file, the old file is kept."""

import contextlib
import os
import re
from pathlib import Path

_UNFINISHED: set[str] = set()
"""The names of temporary files that this process is writing."""


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write a temporary file, and then rename it to the path. A symbolic link stays, and its target is replaced.

    Each writer has its own temporary file. If several writers finish, the last writer's file is kept.
    Raise an OSError if the file cannot be written. The old file is then unchanged.
    """
    target = os.path.realpath(path)
    temporary = Path(f"{target}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    _UNFINISHED.add(temporary.name)
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
        _UNFINISHED.discard(temporary.name)


def remove_leftovers(path: str | Path) -> None:
    """Remove temporary files for this path that killed processes left behind, but keep those of running processes."""
    target = Path(os.path.realpath(path))
    pattern = re.compile(re.escape(target.name) + r"\.(?P<writer>[1-9][0-9]*)(\.[0-9a-f]{8})?\.tmp")
    with contextlib.suppress(OSError):  # cleaning up must not fail
        for file in target.parent.iterdir():
            found = pattern.fullmatch(file.name)
            if found and file.name not in _UNFINISHED and not _other_lives(int(found["writer"])):
                with contextlib.suppress(OSError):
                    file.unlink()


def _other_lives(process: int) -> bool:
    """Return True if another running process has this process ID."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)  # signal 0 is never delivered
    except PermissionError:
        return True
    except (OverflowError, ProcessLookupError):
        return False
    return True
