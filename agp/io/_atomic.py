"""Atomic writes: if a process is killed while it writes a file, the old file is kept."""

import contextlib
import hashlib
import ntpath
import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path, PureWindowsPath

from agp.errors import FileError

_UNFINISHED: set[str] = set()
"""The names of temporary files that this process is writing."""
_WINDOWS = os.name == "nt"
_SIGNALS_ASK = os.name == "posix"
"""Whether signal 0 asks if a process lives. On Windows, it would end the process."""
MAX_PATH_BYTES = 225
"""Temporary files of longer paths have a short name of their own. Names have up to 255 bytes, and paths on Windows up
to 259 characters."""
WAITS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Seconds to wait before further attempts to replace a file. On Windows, this fails while another program reads it."""
MAX_LINKS = 40
"""The largest number of symbolic links that are followed, as in Linux."""


def check_replaceable(path: str | Path) -> None:
    """Raise a FileError unless the path is that of a regular file or of no file, so that a new file may take its place.

    A symbolic link stands for its target.
    """
    if _WINDOWS and _is_reserved(path):
        raise FileError(
            f"{path} is a name that Windows reserves, as it does NUL and names that end with a dot; name another file."
        )
    with explain_write_errors(path):
        old = _stat(path)
    if old is None or stat.S_ISREG(old.st_mode):
        kind = "in a folder of devices or open files" if _is_in_device_folder(path) else ""
    else:
        kind = "a folder" if stat.S_ISDIR(old.st_mode) else "a pipe, a socket or a device"
    if kind:
        raise FileError(f"cannot save to {path}, because it is {kind}; name an ordinary file.")


def check_writable(path: str | Path) -> None:
    """Raise a FileError unless `write_atomically` can write a small file now. Nothing is replaced."""
    check_replaceable(path)
    with explain_write_errors(path), _temporary_file(os.path.realpath(path)) as temporary:
        _create(temporary, b"", 0o600)


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write a temporary file, and then rename it to the path. A symbolic link stays, and its target is replaced.

    The new file has the mode and, if permitted, the owner of the file that it replaces. Each writer has its own
    temporary file. If several writers finish, the last writer's file is kept. Raise a FileError if the path is that of
    a folder, a pipe or a device, and an OSError if the file cannot be written. The old file is then unchanged.
    """
    check_replaceable(path)
    target = os.path.realpath(path)
    old = _stat(target)
    with _temporary_file(target) as temporary:
        _create(temporary, content, 0o666 if old is None else 0o600)
        if old is not None:
            _take_over(temporary, old)
        _replace(temporary, target)


def _replace(temporary: Path, target: str) -> None:
    """Rename a file to the path of another one. If another program holds that file open for a moment, wait for it."""
    for wait in WAITS:
        with contextlib.suppress(PermissionError):
            os.replace(temporary, target)
            return
        time.sleep(wait)
    os.replace(temporary, target)


@contextlib.contextmanager
def explain_write_errors(path: str | Path) -> Iterator[None]:
    """Turn errors of the system, and of memory, into a FileError with the name of the file that was to be written."""
    try:
        yield
    except FileError:
        raise
    except PermissionError as error:
        remedy = "close the programs that use it, or name another file"
        raise FileError(f"{path} could not be written ({error.strerror or 'no permission'}); {remedy}.") from error
    except (MemoryError, OSError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
        raise FileError(f"{path} could not be written ({reason}); make room or name another file.") from error
    except ValueError as error:
        if "\0" not in os.fspath(path):
            raise
        raise FileError(f"the file name {os.fspath(path)!r} contains a NUL character; name another file.") from error


def _stat(path: str | Path) -> os.stat_result | None:
    """Return the facts about a file, or None if there is none."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _is_in_device_folder(path: str | Path) -> bool:
    """Whether the path, or a link to which it leads, lies in a folder of devices or open files, as /dev/stdout does.

    Such names may stand for regular files, such as the file into which the shell redirects the output. Ordinary
    folders below /dev, such as /dev/shm, are no such folders.
    """
    place = os.fspath(path)
    for _ in range(MAX_LINKS):
        folder = os.path.realpath(os.path.dirname(place))
        if folder == "/dev" or f"{folder}/".startswith(("/dev/fd/", "/proc/")):
            return True
        if not os.path.islink(place):
            break
        place = os.path.join(folder, os.readlink(place))
    return False


def _is_reserved(path: str | Path) -> bool:
    """Whether Windows takes the name of a file for a device, refuses it, or drops its last character."""
    name = PureWindowsPath(path).name
    if sys.version_info >= (3, 13):
        return ntpath.isreserved(name)
    return PureWindowsPath(name).is_reserved() or name[-1:] in (".", " ") or any(sign in name for sign in '<>:"|?*')


@contextlib.contextmanager
def _temporary_file(target: str) -> Iterator[Path]:
    """Return the name of a new file beside the target, and remove the file at the end of the context."""
    folder, name = os.path.split(target)
    temporary = Path(folder, f"{_short_name(target, name)}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    _UNFINISHED.add(temporary.name)
    try:
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
        _UNFINISHED.discard(temporary.name)


def _short_name(target: str, name: str) -> str:
    """Return the name with which temporary files of a path begin: that of its file, unless the path is long."""
    if len(os.fsencode(target)) <= MAX_PATH_BYTES:
        return name
    return f"agp-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}"


def _create(path: Path, content: bytes, mode: int) -> None:
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _take_over(file: Path, old: os.stat_result) -> None:
    """Give a file the owner, group and mode of an old file, as far as permitted.

    If the group is another one, it gets the rights that the old file gave to everybody, at most those of its group.
    """
    mode = stat.S_IMODE(old.st_mode)
    for uid, gid in ((-1, old.st_gid), (old.st_uid, -1)):
        with contextlib.suppress(AttributeError, OSError):  # Windows has no chown
            os.chown(file, uid, gid)
    if os.stat(file).st_gid != old.st_gid:
        mode &= ~0o070 | (mode & 0o007) << 3
    with contextlib.suppress(OSError):  # otherwise only the owner may read the file
        os.chmod(file, mode)


def remove_leftovers(path: str | Path) -> None:
    """Remove temporary files for this path that killed processes left behind, but keep those of running processes."""
    target = Path(os.path.realpath(path))
    name = re.escape(_short_name(str(target), target.name))
    pattern = re.compile(name + r"\.(?P<writer>[1-9][0-9]*)(\.[0-9a-f]{8})?\.tmp")
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
