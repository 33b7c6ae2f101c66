"""Which files are replaced, and what stays of them: mode, owner and links."""

import os
import socket
import stat
import subprocess
import sys

import pytest

from agp.errors import FileError
from agp.io import _atomic as atomic
from agp.io import check_replaceable, remove_leftovers, write_atomically

ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


def device(path):
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # a copy of /dev/null


def bind(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


PLACES = {
    "fifo": lambda path: os.mkfifo(path),
    "socket": bind,
    "folder": lambda path: path.mkdir(),
    "link to a fifo": lambda path: (os.mkfifo(f"{path}.fifo"), path.symlink_to(f"{path}.fifo")),
}
if ROOT:
    PLACES |= {"device": device}


@pytest.mark.parametrize("place", PLACES)
def test_only_regular_files_are_replaced(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    path = tmp_path.relative_to(tmp_path) / "x"
    PLACES[place](path)
    before = path.lstat()
    for write in (check_replaceable, lambda path: write_atomically(path, b"new")):
        with pytest.raises(FileError, match="x is a .*, which no file may replace; name a new file, or a regular file"):
            write(path)
    after = path.lstat()
    assert (before.st_mode, before.st_ino) == (after.st_mode, after.st_ino)
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("path", ["/dev/null", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_devices_of_the_system_are_refused_even_if_they_stand_for_files(path, tmp_path):
    code = f"from agp.io import check_replaceable; check_replaceable({path!r})"
    with (tmp_path / "out.txt").open("w") as out:  # standard output is a regular file
        done = subprocess.run([sys.executable, "-c", code], stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    assert "which no file may replace" in done.stderr
    assert (tmp_path / "out.txt").exists()


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o400, 0o755])
def test_the_mode_of_a_replaced_file_is_kept(mode, tmp_path):
    path = tmp_path / "m"
    path.write_bytes(b"old")
    path.chmod(mode)
    write_atomically(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_new_files_follow_the_umask(umask, tmp_path):
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "m", b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "m").stat().st_mode) == 0o666 & ~umask


def test_the_temporary_file_is_private_until_the_end(tmp_path, monkeypatch):
    path = tmp_path / "m"
    path.write_bytes(b"old")
    path.chmod(0o644)
    modes, sync = [], os.fsync

    def seen(descriptor):
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        sync(descriptor)

    monkeypatch.setattr(atomic.os, "fsync", seen)
    write_atomically(path, b"new")
    assert modes == [0o600]


@pytest.mark.skipif(not ROOT, reason="only root may give files away")
def test_the_owner_of_a_replaced_file_is_kept(tmp_path):
    path = tmp_path / "m"
    path.write_bytes(b"old")
    os.chown(path, 1234, 4321)
    path.chmod(0o640)
    write_atomically(path, b"new")
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1234, 4321, 0o640)


@pytest.mark.skipif(not ROOT, reason="only root may give files away")
def test_another_group_gets_no_rights(tmp_path, monkeypatch):
    path = tmp_path / "m"
    path.write_bytes(b"old")
    os.chown(path, -1, 4321)
    path.chmod(0o664)

    def refused(*_):
        raise PermissionError

    monkeypatch.setattr(atomic.os, "chown", refused)
    write_atomically(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o604
    monkeypatch.delattr(atomic.os, "chown")  # as on Windows
    write_atomically(path, b"newer")
    assert path.read_bytes() == b"newer"


def test_links_stay_and_their_targets_are_replaced_or_made(tmp_path):
    for name, old in (("there", b"old"), ("dangling", None)):
        target, link = tmp_path / f"{name}.target", tmp_path / name
        if old is not None:
            target.write_bytes(old)
        link.symlink_to(target)
        write_atomically(link, b"new")
        assert link.is_symlink()
        assert target.read_bytes() == b"new"


def test_no_signal_is_sent_where_it_would_end_a_process(tmp_path, monkeypatch):
    leftover = tmp_path / "m.1.tmp"
    leftover.write_bytes(b"")
    monkeypatch.setattr(atomic, "_SIGNALS_ASK", False)  # as on Windows
    monkeypatch.setattr(atomic.os, "kill", lambda *_: pytest.fail("a signal was sent"))
    remove_leftovers(tmp_path / "m")
    assert leftover.exists()
