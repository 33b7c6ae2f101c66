"""Nothing is lost in the shell: closed pipes, full disks, interrupts, and systems without POSIX."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import agp

pd = pytest.importorskip("pandas", reason="the command line needs the extra cli")
pytest.importorskip("sklearn", reason="the command line needs the extra cli")

RNG = np.random.default_rng(0)
TABLE = pd.DataFrame({"a": RNG.normal(size=30), "b": RNG.normal(size=30)})
TABLE["t"] = np.sin(2.0 * TABLE["a"]) + 0.1 * RNG.normal(size=30)
FIT = f"{sys.executable} -m agp fit a.csv --target t --kernel rbf --max-steps 4 --test-share 0.2 --out m.st"

BROKEN = {
    "a reader that stops": (f"{FIT} | head -1", {0}),
    "a reader that reads nothing": (f"{FIT} | true", {0}),
    "no output": (f"{FIT} >&-", {0}),
    "no messages": (f"{FIT} 2>&-", {0}),
    "neither": (f"{FIT} >&- 2>&- <&-", {0}),
    "a full disk": (f"{FIT} > /dev/full", {2}),
    "two full disks": (f"{FIT} > /dev/full 2>&1", {2}),
}
QUICK_CASES = ("a reader that reads nothing", "neither")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder with a table."""
    monkeypatch.chdir(tmp_path)
    TABLE.to_csv("a.csv", index=False)
    return tmp_path


def check_broken(case):
    command, statuses = BROKEN[case]
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode in statuses, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    model = agp.load("m.st")
    assert np.isfinite(model.predict(TABLE[["a", "b"]])).all()
    assert sorted(os.listdir()) == ["a.csv", "m.st"]
    pd.testing.assert_frame_equal(pd.read_csv("a.csv"), TABLE)


@pytest.mark.slow
@pytest.mark.parametrize("case", QUICK_CASES)
def test_a_trained_model_is_written_though_nothing_can_be_printed(case, folder):
    check_broken(case)


@pytest.mark.long
@pytest.mark.parametrize("case", [case for case in BROKEN if case not in QUICK_CASES])
def test_a_trained_model_is_written_in_every_case(case, folder):
    check_broken(case)


class Broken:
    """A stream whose reader has gone."""

    encoding = "utf-8"

    def __init__(self, error):
        self.error = error

    def write(self, _text):
        raise self.error

    def flush(self):
        pass

    def isatty(self):
        return False


def fit(status_of, *arguments):
    return status_of("fit", "a.csv", "--target", "t", "--kernel", "rbf", "--max-steps", 4, "--out", "m.st", *arguments)


@pytest.mark.parametrize(("error", "status"), [(BrokenPipeError(32, "Broken pipe"), 141), (OSError(28, "No space"), 2)])
def test_the_status_says_why_nothing_was_printed(error, status, folder, status_of, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", Broken(error))
    assert fit(status_of) == status
    assert ("the output could not be printed (No space)" in capsys.readouterr().err) == (status == 2)
    agp.load("m.st")
    assert isinstance(sys.stdout, Broken)


def test_nothing_is_printed_before_the_model_is_written(folder, status_of, monkeypatch, capsys):
    there = []
    write = sys.stdout.write
    monkeypatch.setattr(sys.stdout, "write", lambda text: (there.append((text, Path("m.st").exists())), write(text))[1])
    assert fit(status_of) == 0
    said = {text.split(" ")[0]: exists for text, exists in there if text.strip()}
    assert said.pop("a.csv:") is False  # before training
    assert all(said.values())
    assert len(said) >= 2


def test_an_error_or_interrupt_in_the_scores_leaves_the_model(folder, status_of, monkeypatch, capsys):
    for error, status, told in (
        (RuntimeError("no scores"), 2, "agp: no scores\nagp: m.st was written before this error.\n"),
        (KeyboardInterrupt(), 130, "agp: interrupted; m.st was written.\n"),
    ):

        def broken(*_, error=error, **__):
            raise error

        monkeypatch.setattr("agp.cli._fit.score_predictions", broken)
        assert fit(status_of, "--test-share", "0.2") == status
        assert capsys.readouterr().err.endswith(told)
        agp.load("m.st")
        Path("m.st").unlink()


# -- files that are not replaced ---------------------------------------------------------------------------------------


@pytest.fixture
def refused(folder, status_of, capsys):
    """Run a command that is refused, and return its message."""

    def run(*arguments):
        capsys.readouterr()
        assert status_of(*arguments) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        return err

    return run


@pytest.mark.parametrize("alias", ["m.csv", "./m.csv", "link.csv", "hard.csv"])
def test_predictions_replace_neither_the_model_nor_the_table(alias, refused, status_of):
    assert status_of("fit", "a.csv", "--target", "t", "--kernel", "rbf", "--max-steps", 2, "--out", "m.st") == 0
    for name in ("m", "a"):
        Path("m.csv").unlink(missing_ok=True)
        os.rename("m.st", "m.csv") if name == "m" else Path("m.csv").symlink_to("a.csv")
        Path("link.csv").symlink_to("m.csv")
        os.link("m.csv" if name == "m" else "a.csv", "hard.csv")
        before = Path("m.csv").read_bytes()
        model = "m.csv" if name == "m" else "m.st"
        what = "model" if name == "m" else "table"
        assert f"--out is {alias.removeprefix('./')}, which is the {what} itself" in refused(
            "predict", model, "a.csv", "--out", alias
        )
        assert Path("m.csv").read_bytes() == before
        Path("link.csv").unlink()
        Path("hard.csv").unlink()
        if name == "m":
            os.rename("m.csv", "m.st")


def test_models_do_not_replace_their_table(refused):
    os.link("a.csv", "a.st")
    said = refused("fit", "a.csv", "--target", "t", "--out", "a.st")
    assert "--out is a.st, which is the table itself; name another file" in said
    assert Path("a.csv").read_text().startswith("a,b,t")


def test_several_tables_do_not_replace_the_model(refused, status_of):
    assert status_of("fit", "a.csv", "--target", "t", "--kernel", "rbf", "--max-steps", 2, "--out", "m.st") == 0
    Path("out").mkdir()
    Path("in").mkdir()
    TABLE.to_csv("in/m.csv", index=False)
    os.rename("m.st", "out/m.csv")
    said = refused("predict", "out/m.csv", "in/*.csv", "--out", "out")
    assert "--out is out/m.csv, which is the model itself" in said
    agp.load("out/m.csv")


@pytest.mark.parametrize("place", ["pipe.csv", "/dev/null"])
def test_pipes_and_devices_are_refused_before_training(place, refused, monkeypatch, status_of, capsys):
    os.mkfifo("pipe.csv")
    os.mkfifo("pipe.st")
    monkeypatch.setattr("agp.cli._fit._train", lambda *_, **__: pytest.fail("trained"))
    out = place.replace(".csv", ".st")
    assert f"{out} is a pipe, a socket or a device, which no file may replace" in refused(
        "fit", "a.csv", "--target", "t", "--out", out
    )


# -- other systems -----------------------------------------------------------------------------------------------------

WITHOUT_POSIX = """
import sys, os
for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty"):
    sys.modules[name] = None
for name in ("fork", "geteuid", "getuid", "fchmod", "chown", "fchown", "mkfifo", "mknod", "getpgid", "setsid"):
    if hasattr(os, name):
        delattr(os, name)
from agp.cli import main
def run(*arguments):
    try:
        return main([*arguments])
    except SystemExit as ended:
        return ended.code
fit = ("fit", "a.csv", "--target", "t", "--kernel", "rbf", "--max-steps", "3", "--out", "m.st", "-q")
compare = ("compare", "--method", "wsvgp", "--backend", "numpy", "--iterations", "2", "--num-inducing", "5")
compare += ("--data", "a.csv", "--target", "t")
commands = [("--help",), ("backends",), fit, fit, ("predict", "m.st", "a.csv", "--out", "p.csv"), ("describe", "m.st")]
for command in [*commands, ("compare", "--help"), (*compare, "--gradient", "closed-form")]:
    print("STATUS", command[0], run(*command))
from agp.cli._peers.train import peak_memory
print(peak_memory())
"""


@pytest.mark.slow
def test_every_command_runs_without_posix(folder):
    peers = Path(agp.__file__).parent / "cli" / "_peers"
    code = f"import sys; sys.path.insert(0, {str(peers)!r})\n{WITHOUT_POSIX}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    statuses = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("STATUS")]
    assert [status for _, status in statuses] == ["0"] * 8, done.stdout[-3000:] + done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "nan"
