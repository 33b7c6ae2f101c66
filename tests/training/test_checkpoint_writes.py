"""Whatever happens while a checkpoint is written, the trained model is not lost, and the file is the old or the new."""

import errno
import itertools
import os
import signal
import subprocess
import sys
import threading
from functools import cache

import numpy as np
import pytest

from agp import GPR, io, train
from agp.errors import CheckpointError, Interrupted, NonFiniteError
from agp.io import _atomic
from agp.training import _run
from agp.tree import leaves
from agp.updates import Adam

NO_SPACE = OSError(errno.ENOSPC, "No space left on device")
STEPS = 8


def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 2))
    return X, np.sin(2 * X[:, :1])


X, Y = data()
MODEL = GPR.from_data(X, Y)


def run(path=None, **options):
    return train(MODEL, X, Y, **({"steps": STEPS, "updates": [Adam(0.05)], "checkpoint": path} | options))


@cache
def expected(steps):
    return run(steps=steps)


def assert_same(result, steps=STEPS):
    assert result.steps == steps
    assert result.trace == expected(steps).trace
    for name, value in leaves(expected(steps).model).items():
        np.testing.assert_array_equal(leaves(result.model)[name], value, err_msg=name)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.safetensors"


def names(path):
    return [file.name for file in path.parent.iterdir()]


def fail_from(monkeypatch, name, first, error=NO_SPACE):
    """Let os.fsync or os.replace fail from the first-th call on, counted from zero."""
    calls, true = itertools.count(), getattr(os, name)

    def failing(*args):
        if next(calls) >= first:
            raise error
        return true(*args)

    monkeypatch.setattr(os, name, failing)


def at(step, action):
    """A callback that acts after a step."""

    def callback(progress):
        if progress.step == step:
            action()

    return [callback]


# -- what cannot be written ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_an_unwritable_checkpoint_is_an_error_before_the_first_step(call, path, monkeypatch):
    fail_from(monkeypatch, call, 0)
    seen = []
    message = r"run\.safetensors could not be written \(.*No space left on device\); make room or name another file"
    with pytest.raises(CheckpointError, match=message) as caught:
        run(path, callbacks=[seen.append])
    assert seen == []
    assert caught.value.result.steps == 0
    assert names(path) == []


def test_a_folder_that_cannot_be_written_is_an_error_before_the_first_step(path, monkeypatch):
    def refused(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(_atomic.os, "open", refused)
    seen = []
    with pytest.raises(CheckpointError, match=r"run\.safetensors could not be written \(.*Permission denied\)"):
        run(path, callbacks=[seen.append])
    assert seen == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full: not executed")
def test_a_full_disk_is_an_error_before_the_first_step(path, monkeypatch):
    full = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(_atomic.os, "open", lambda *_: full)  # closed by the writer
    with pytest.raises(CheckpointError, match="No space left on device"):
        run(path)


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize(("writes", "steps"), [(1, 3), (2, 6), (3, 8)])
def test_a_write_that_fails_later_loses_nothing(call, writes, steps, path, monkeypatch):
    with monkeypatch.context() as patch:
        fail_from(patch, call, writes)
        with pytest.raises(CheckpointError, match=f"holds the model after {steps} steps") as caught:
            run(path, checkpoint_every=3)
    assert_same(caught.value.result, steps)
    assert names(path) == [path.name]
    assert io.load_checkpoint(path)[1]["progress"]["step"] == [0, 3, 6][writes - 1]
    assert_same(run(path, checkpoint_every=3))


def test_too_little_memory_to_write_loses_nothing(path, monkeypatch):
    fail_from(monkeypatch, "fsync", 1, MemoryError())
    with pytest.raises(CheckpointError, match=r"could not be written \(MemoryError\)") as caught:
        run(path)
    assert_same(caught.value.result)


def test_a_folder_in_the_place_of_the_file_loses_nothing(path):
    def replace():
        path.unlink()
        path.mkdir()

    with pytest.raises(CheckpointError) as caught:
        run(path, callbacks=at(5, replace))
    assert_same(caught.value.result)
    assert names(path) == [path.name]


def test_a_finished_run_is_read_where_nothing_can_be_written(path, monkeypatch):
    run(path)
    fail_from(monkeypatch, "fsync", 0)
    assert_same(run(path))


def test_an_interrupt_whose_checkpoint_fails_has_the_result_and_says_so(path, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    fail_from(monkeypatch, "fsync", 1)
    with pytest.raises(Interrupted) as caught:
        run(path, callbacks=at(5, interrupt))
    assert_same(caught.value.result, 5)
    (note,) = caught.value.__notes__
    assert "could not be written" in note


def test_an_error_whose_checkpoint_fails_has_the_result_in_its_consequence(path, monkeypatch):
    fail_from(monkeypatch, "fsync", 1)
    with pytest.raises(CheckpointError) as caught:
        run(path, callbacks=at(5, lambda: 1 / 0))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert_same(caught.value.result, 5)


def test_an_interrupt_while_writing_after_an_interrupt_loses_nothing(path, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    fail_from(monkeypatch, "fsync", 1, KeyboardInterrupt())
    with pytest.raises(Interrupted) as caught:
        run(path, callbacks=at(5, interrupt))
    assert_same(caught.value.result, 5)
    assert names(path) == [path.name]


@pytest.mark.parametrize("writes", [1, 2])
def test_an_interrupt_while_writing_loses_nothing(writes, path, monkeypatch):
    fail_from(monkeypatch, "fsync", writes, KeyboardInterrupt())
    with pytest.raises(Interrupted) as caught:
        run(path, checkpoint_every=5)
    assert_same(caught.value.result, [5, 8][writes - 1])


class Overflows:
    """An update whose state becomes infinite."""

    def init(self, model):
        return {"sum": np.asarray(1.0)}

    def __call__(self, model, batch, state):
        return model, {"sum": np.asarray(np.inf)}, {}


def test_a_state_that_is_not_finite_is_not_saved(path):
    with pytest.raises(NonFiniteError, match="the state 1/sum of an update became NaN or infinite in step 8") as caught:
        run(path, updates=[Adam(0.05), Overflows()])
    assert_same(caught.value.result)
    assert io.load_checkpoint(path)[1]["progress"]["step"] == 0


class Unsaveable:
    def init(self, model):
        return {"count": 1.0}

    def __call__(self, model, batch, state):
        return model, state, {}


def test_a_state_that_no_file_can_hold_is_named_before_the_first_step(path):
    seen = []
    with pytest.raises(TypeError, match="0/count cannot be saved: x is a float, not an array"):
        run(path, updates=[Unsaveable()], callbacks=[seen.append])
    assert seen == []


# -- interrupts at any line ------------------------------------------------------------------------------------------


def interrupted_at(line, **options):
    """Run until so many lines of the loop, the run and the files were executed, then press Ctrl-C."""
    modules = ["agp.training._loop", "agp.training._run", "agp.io._atomic", "agp.io._checkpoint"]
    files = {sys.modules[name].__file__ for name in modules}
    lines = itertools.count()

    def local(frame, event, argument):
        if event == "line" and inside and next(lines) == line:
            raise KeyboardInterrupt
        return local

    inside = []

    def calls(frame, event, argument):
        if frame.f_code.co_filename not in files:
            return None
        if frame.f_code.co_name == "advance_to":
            inside.append(True)
        return local

    before = sys.gettrace()
    sys.settrace(calls)
    try:
        return run(**options)
    finally:
        sys.settrace(before)


# an interrupt between the opening of a file and the line below leaves the closing to the garbage collector
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*FileIO:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("every", [pytest.param(3, marks=pytest.mark.long), 13])
def test_an_interrupt_at_any_line_loses_nothing(every, tmp_path, monkeypatch):
    monkeypatch.setattr(_run, "CHECK_EVERY", 2)
    stops = []
    for line in itertools.count(step=every):  # with 3, each line is in a loop and is hit in one of its rounds
        path = tmp_path / f"{line}.safetensors"
        try:
            interrupted_at(line, path=path, checkpoint_every=3, steps=5)
        except Interrupted as stopped:
            stops.append((path, stopped.result))
        else:
            break  # it was over before
    for path, result in stops:
        assert_same(result, result.steps)
        assert io.load_checkpoint(path)[1]["progress"]["step"] == result.steps
    for path, _ in stops[::10]:
        assert_same(run(path))
    assert {result.steps for _, result in stops} == set(range(6))


# -- files -----------------------------------------------------------------------------------------------------------


def dead_process():
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def test_leftovers_of_killed_runs_are_removed_and_nothing_else(path):
    dead = dead_process()
    gone = [f"{path.name}.{dead}.0123abcd.tmp", f"{path.name}.{dead}.tmp", f"{path.name}.{os.getpid()}.0123abcd.tmp"]
    stay = [
        f"{path.name}.{os.getppid()}.0123abcd.tmp",
        f"{path.name}.{dead}.0123abcd.tmp.txt",
        f"{path.name}.{dead}.mine.tmp",
        f"{path.name}.tmp",
        f"other.{path.name}.{dead}.0123abcd.tmp",
        f"runXsafetensors.{dead}.0123abcd.tmp",
        f"other.{dead}.tmp",
    ]
    for name in gone + stay:
        path.with_name(name).write_text("half")
    path.with_name(f"{path.name}.{dead}.89abcdef.tmp").mkdir()
    run(path)
    assert sorted(names(path)) == sorted([path.name, f"{path.name}.{dead}.89abcdef.tmp", *stay])


PROGRAM = """
import os, signal, sys
import numpy as np
sys.path.insert(0, {tests!r})
from test_checkpoint_writes import run
calls, true = [], os.fsync
def killed(file):
    calls.append(file)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    true(file)
os.fsync = killed
run({path!r}, checkpoint_every=3)
"""


@pytest.mark.skipif(os.name != "posix", reason="Windows has no SIGKILL")
@pytest.mark.slow
def test_a_run_killed_while_writing_resumes_to_the_same_bits(path):
    program = PROGRAM.format(tests=os.path.dirname(__file__), path=str(path))
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(names(path)) == 2
    assert io.load_checkpoint(path)[1]["progress"]["step"] == 3
    assert_same(run(path, checkpoint_every=3))
    assert names(path) == [path.name]


@pytest.mark.skipif(os.name != "posix", reason="links need rights on Windows")
@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("exists", [True, False])
def test_of_a_link_the_target_is_written(exists, relative, tmp_path):
    (tmp_path / "disk").mkdir()
    target, link = tmp_path / "disk" / "target", tmp_path / "run.safetensors"
    if exists:
        run(target, callbacks=[lambda progress: progress.step == 3])
    link.symlink_to("disk/target" if relative else target)
    assert_same(run(link))
    assert link.is_symlink()
    assert sorted(names(link)) == ["disk", "run.safetensors"]
    assert names(target) == ["target"]
    assert io.load_checkpoint(target)[1]["progress"]["step"] == STEPS


@pytest.mark.skipif(os.name != "posix", reason="links need rights on Windows")
def test_a_link_to_itself_is_refused(path):
    path.symlink_to(path)
    with pytest.raises(
        ValueError, match=r"run\.safetensors could not be written \(Too many levels of symbolic links\)"
    ):
        run(path)


@pytest.mark.skipif(os.name != "posix", reason="links need rights on Windows")
def test_a_link_into_a_folder_that_does_not_exist_is_refused(path):
    path.symlink_to("absent/target")
    with pytest.raises(ValueError, match=r"the folder of the checkpoint .*run\.safetensors does not exist"):
        run(path)


@pytest.mark.slow
def test_two_runs_to_one_file_corrupt_nothing(path):
    results, broken, done = [], [], threading.Event()

    def write():
        results.append(run(path, steps=40, checkpoint_every=1))

    def look():
        while not done.is_set():
            if path.exists():
                try:
                    io.load_checkpoint(path)
                except ValueError as error:
                    broken.append(error)

    writers, reader = [threading.Thread(target=write) for _ in range(3)], threading.Thread(target=look)
    for thread in (*writers, reader):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert broken == []
    assert [result.steps for result in results] == [40, 40, 40]
    assert run(path, steps=40).trace == run(steps=40).trace
    assert names(path) == [path.name]
