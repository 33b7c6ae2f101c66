"""Atomic writes: if a process is killed while it writes a file, the old file is kept."""

import contextlib
import os
import re
import stat
from pathlib import Path

from agp.errors import FileError

_UNFINISHED: set[str] = set()
"""The names of temporary files that this process is writing."""
_SIGNALS_ASK = os.name == "posix"
"""Whether signal 0 asks if a process lives. On Windows, it would end the process."""
DEVICES = ("/dev/", "/proc/")
"""The folders of devices, whose files are never replaced, even if they stand for regular files."""


def check_replaceable(path: str | Path) -> None:
    """Raise a FileError unless the path is that of a regular file or of no file, so that a new file may take its place.

    A symbolic link stands for its target.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:  # nothing is there, or writing will raise the error
        mode = stat.S_IFREG
    if not stat.S_ISREG(mode) or f"{Path(path).absolute()}".startswith(DEVICES):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, a socket or a device"
        msg = f"{path} is {kind}, which no file may replace; name a new file, or a regular file."
        raise FileError(msg)


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write a temporary file, and then rename it to the path. A symbolic link stays, and its target is replaced.

    The new file has the mode and, if permitted, the owner of the file that it replaces. Each writer has its own
    temporary file. If several writers finish, the last writer's file is kept. Raise a FileError if the path is that of
    a folder, a pipe or a device, and an OSError if the file cannot be written. The old file is then unchanged.
    """
    check_replaceable(path)
    target = os.path.realpath(path)
    try:
        old = os.stat(target)
    except FileNotFoundError:
        old = None
    temporary = Path(f"{target}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    _UNFINISHED.add(temporary.name)
    try:
        mode = 0o666 if old is None else 0o600
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if old is not None:
            _take_over(temporary, old)
        os.replace(temporary, target)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
        _UNFINISHED.discard(temporary.name)


def _take_over(file: Path, old: os.stat_result) -> None:
    """Give a file the owner, group and mode of an old file, as far as permitted.

    If the group is another one, it gets no rights.
    """
    mode = stat.S_IMODE(old.st_mode)
    for uid, gid in ((-1, old.st_gid), (old.st_uid, -1)):
        with contextlib.suppress(AttributeError, OSError):  # Windows has no chown
            os.chown(file, uid, gid)
    if os.stat(file).st_gid != old.st_gid:
        mode &= ~0o070
    os.chmod(file, mode)


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
    """Return True if another running process has this process ID, or may have it."""
    if process == os.getpid():
        return False
    if not _SIGNALS_ASK:
        return True
    try:
        os.kill(process, 0)  # signal 0 is never delivered
    except PermissionError:
        return True
    except (OverflowError, ProcessLookupError):
        return False
    return True
