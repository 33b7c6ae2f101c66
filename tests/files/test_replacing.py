"""Which files are replaced, and what stays of them: mode, owner and links."""

import errno
import os
import socket
import stat
import tempfile

import numpy as np
import pytest

import agp
from agp.errors import FileError
from agp.io import _atomic as atomic
from agp.io import check_replaceable, check_writable, remove_leftovers, write_atomically

ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


def device(path):
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # a copy of /dev/null


def bind(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def refuse(*_, **__):
    raise PermissionError(errno.EPERM, "Operation not permitted")


POSIX = os.name == "posix"
PLACES = {
    "fifo": lambda path: os.mkfifo(path),
    "socket": bind,
    "folder": lambda path: path.mkdir(),
    "link to a fifo": lambda path: (os.mkfifo(f"{path}.fifo"), path.symlink_to(f"{path}.fifo")),
}
if not POSIX:
    PLACES = {"folder": PLACES["folder"]}
if ROOT:
    PLACES |= {"device": device}


@pytest.mark.parametrize("place", PLACES)
def test_only_regular_files_are_replaced(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    path = tmp_path.relative_to(tmp_path) / "x"
    PLACES[place](path)
    before = path.lstat()
    for write in (check_replaceable, lambda path: write_atomically(path, b"new")):
        with pytest.raises(FileError, match="cannot save to x, because it is a .*; name an ordinary file"):
            write(path)
    after = path.lstat()
    assert (before.st_mode, before.st_ino) == (after.st_mode, after.st_ino)
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="there is no /dev/fd")
def test_names_of_devices_and_open_files_are_refused_even_if_they_stand_for_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open("open.txt", "wb") as out:
        (tmp_path / "link").symlink_to(f"/dev/fd/{out.fileno()}")
        (tmp_path / "link to a link").symlink_to("link")
        (tmp_path / "folder").symlink_to("/dev/fd")
        up = os.path.relpath("/dev", os.path.realpath(tmp_path))
        absent = max(map(int, os.listdir("/dev/fd"))) + 100
        names = [out.fileno(), absent, "new"]
        paths = [f"{folder}/{name}" for folder in ("/dev/fd", "//dev/fd", f"{up}/fd", "folder") for name in names]
        for path in ["/dev/stdout", "/dev/new", "link", "link to a link", *paths]:
            with pytest.raises(FileError, match="cannot save to"):
                write_atomically(path, b"new")
    assert (tmp_path / "open.txt").read_bytes() == b""


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="there is no /dev/shm")
def test_ordinary_folders_below_dev_hold_files():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for content in (b"old", b"new"):
            write_atomically(f"{folder}/m", content)
            with open(f"{folder}/m", "rb") as file:
                assert file.read() == content


@pytest.mark.skipif(not POSIX, reason="needs modes, links or limits of POSIX")
def test_places_are_tried_without_a_trace(tmp_path, monkeypatch):
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("absent/x")
    before = sorted(tmp_path.iterdir())
    check_writable(tmp_path / "old")
    check_writable(tmp_path / "new")
    for place, why in (
        ("loop", "Too many levels of symbolic links"),
        ("dangling", "No such file or directory"),
        ("absent/x", "No such file or directory"),
        ("old/x", "Not a directory"),
        ("x" * 256, "File name too long"),
    ):
        with pytest.raises(FileError, match=rf"{place} could not be written \({why}\); make room or name another file"):
            check_writable(tmp_path / place)
    monkeypatch.setattr(atomic.os, "open", refuse)
    with pytest.raises(FileError, match=r"new could not be written \(Operation not permitted\)"):
        check_writable(tmp_path / "new")
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "old").read_bytes() == b"old"


@pytest.mark.parametrize("place", PLACES)
def test_checkpoints_are_refused_before_training(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path.relative_to(tmp_path) / "x"
    PLACES[place](path)
    X = np.linspace(0.0, 1.0, 12)[:, None]
    model = agp.SVGP.from_data(X, X, num_inducing=3)
    monkeypatch.setattr("agp.training._run.Run.advance_to", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(FileError, match="cannot save to x, because it is a .*; name an ordinary file"):
        agp.train(model, X, X, steps=2, checkpoint=path)


@pytest.mark.skipif(not POSIX, reason="needs modes, links or limits of POSIX")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o400, 0o755])
def test_the_mode_of_a_replaced_file_is_kept(mode, tmp_path):
    path = tmp_path / "m"
    path.write_bytes(b"old")
    path.chmod(mode)
    write_atomically(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.read_bytes() == b"new"


@pytest.mark.skipif(not POSIX, reason="needs modes, links or limits of POSIX")
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_new_files_follow_the_umask(umask, tmp_path):
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "m", b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "m").stat().st_mode) == 0o666 & ~umask


@pytest.mark.skipif(not POSIX, reason="needs modes, links or limits of POSIX")
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
@pytest.mark.parametrize(("old", "new"), [(0o664, 0o644), (0o644, 0o644), (0o640, 0o600), (0o604, 0o604)])
def test_another_group_gets_at_most_the_rights_of_everybody(old, new, tmp_path, monkeypatch):
    path = tmp_path / "m"
    path.write_bytes(b"old")
    os.chown(path, -1, 4321)
    path.chmod(old)
    monkeypatch.setattr(atomic.os, "chown", refuse)
    write_atomically(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == new
    monkeypatch.delattr(atomic.os, "chown")  # as on Windows
    write_atomically(path, b"newer")
    assert path.read_bytes() == b"newer"


@pytest.mark.skipif(not POSIX, reason="needs modes, links or limits of POSIX")
def test_files_stay_private_where_modes_cannot_be_changed(tmp_path, monkeypatch):
    path = tmp_path / "m"
    path.write_bytes(b"old")
    monkeypatch.setattr(atomic.os, "chmod", refuse)
    write_atomically(path, b"new")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o600)


@pytest.mark.skipif(not POSIX, reason="needs modes, links or limits of POSIX")
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


# -- other systems ----------------------------------------------------------------------------------------------------


class Busy:
    """`os.replace` where another program holds the file open at first."""

    def __init__(self, times):
        self.left, self.replace = times, os.replace

    def __call__(self, *names):
        self.left -= 1
        if self.left >= 0:
            raise PermissionError(errno.EACCES, "Access is denied")
        self.replace(*names)


@pytest.mark.parametrize("times", [0, 1, 2, 5])
def test_files_that_others_hold_open_for_a_moment_are_replaced(times, tmp_path, monkeypatch):
    (tmp_path / "m").write_bytes(b"old")
    waits = []
    monkeypatch.setattr(atomic.os, "replace", Busy(times))
    monkeypatch.setattr(atomic.time, "sleep", waits.append)
    write_atomically(tmp_path / "m", b"new")
    assert (tmp_path / "m").read_bytes() == b"new"
    assert waits == [*atomic.WAITS[:times]]


def test_files_that_others_keep_open_are_named(tmp_path, monkeypatch):
    (tmp_path / "m").write_bytes(b"old")
    monkeypatch.setattr(atomic.os, "replace", Busy(99))
    monkeypatch.setattr(atomic.time, "sleep", lambda _: None)
    X = np.linspace(0.0, 1.0, 5)[:, None]
    model = agp.SVGP.from_data(X, X, num_inducing=2)
    with pytest.raises(FileError, match=r"m could not be written \(Access is denied\); close the programs that use it"):
        agp.save(model, tmp_path / "m")
    assert [file.name for file in tmp_path.iterdir()] == ["m"]
    assert (tmp_path / "m").read_bytes() == b"old"


@pytest.mark.skipif(not POSIX, reason="names on Windows have fewer bytes")
@pytest.mark.parametrize("name", ["m" * 230, "m" * 243, "m" * 255, "ü" * 127])
def test_long_names_are_written_and_their_leftovers_removed(name, tmp_path):
    path = tmp_path / name
    for content in (b"old", b"new"):
        check_writable(path)
        write_atomically(path, content)
        assert path.read_bytes() == content
    with atomic._temporary_file(str(path)) as temporary:
        leftover = temporary.with_name(temporary.name.replace(f".{os.getpid()}.", ".99999999."))
    leftover.write_bytes(b"")
    remove_leftovers(path)
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["a\0b", "\0", "m.st\0"])
def test_names_with_a_nul_character_are_refused(name, tmp_path):
    for write in (check_replaceable, check_writable, lambda path: write_atomically(path, b"")):
        with pytest.raises(FileError, match="contains a NUL character; name another file"):
            write(tmp_path / name)


@pytest.mark.parametrize("name", ["NUL", "con", "aux.csv", "LPT1.st", "m.st.", "m ", "what?.st", "a|b"])
def test_names_that_windows_reserves_are_refused_there(name, tmp_path, monkeypatch):
    if POSIX:
        write_atomically(tmp_path / name, b"")
    monkeypatch.setattr(atomic, "_WINDOWS", True)
    with pytest.raises(FileError, match="is a name that Windows reserves, as it does NUL"):
        write_atomically(tmp_path / name, b"")
    write_atomically(tmp_path / "console.csv", b"")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EIO])
def test_a_full_disk_leaves_the_old_file(number, tmp_path, monkeypatch):
    (tmp_path / "m").write_bytes(b"old")

    def fail(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(atomic.os, "fsync", fail)
    X = np.linspace(0.0, 1.0, 5)[:, None]
    model = agp.SVGP.from_data(X, X, num_inducing=2)
    with pytest.raises(FileError, match="m could not be written .*; make room or name another file"):
        agp.save(model, tmp_path / "m")
    assert [file.name for file in tmp_path.iterdir()] == ["m"]
    assert (tmp_path / "m").read_bytes() == b"old"
