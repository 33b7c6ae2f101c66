"""Nothing is lost in the shell: closed pipes, full disks, interrupts, and systems without POSIX."""

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import agp
from agp.backend import get_backend
from agp.cli import _predict, _terminal

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


@pytest.mark.skipif(os.name != "posix", reason="needs a shell, links or pipes of POSIX")
@pytest.mark.slow
@pytest.mark.parametrize("case", QUICK_CASES)
def test_a_trained_model_is_written_though_nothing_can_be_printed(case, folder):
    check_broken(case)


@pytest.mark.skipif(os.name != "posix", reason="needs a shell, links or pipes of POSIX")
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


@pytest.mark.parametrize(("error", "status"), [(BrokenPipeError(32, "Broken pipe"), 141), (OSError(28, "No space"), 2)])
@pytest.mark.parametrize("command", [["--help"], ["--version"], ["fit", "--help"], ["backends"]])
def test_texts_that_cannot_be_printed_change_the_status(command, error, status, status_of, monkeypatch):
    assert status_of(*command) == 0
    monkeypatch.setattr(sys, "stdout", Broken(error))
    assert status_of(*command) == status


def test_invalid_options_keep_their_status(status_of, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Broken(BrokenPipeError()))
    assert status_of("fit", "--no-such-option") == 2


def test_a_stream_that_a_library_closed_stops_nothing(folder, status_of, monkeypatch, capsys):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    assert fit(status_of) == 2
    assert "the output could not be printed (I/O operation on closed file)" in capsys.readouterr().err
    agp.load("m.st")


@pytest.mark.parametrize(
    ("encoding", "table", "target", "shown"),
    [
        ("ascii", "a.csv", "größe", r"'gr\xf6\xdfe'"),
        ("latin-1", "表.csv", "größe", r"\u8868.csv: "),
        ("utf-8", "a\udcff.csv", "t", r"a\udcff.csv: "),  # a name of bytes that are not UTF-8
    ],
)
def test_characters_that_cannot_be_printed_are_escaped(encoding, table, target, shown, folder, status_of, monkeypatch):
    TABLE.rename(columns={"t": target}).to_csv("b.csv", index=False)
    try:
        os.rename("b.csv", table)
    except OSError:
        pytest.skip("the file system has no such names")
    monkeypatch.setattr(sys, "stdout", out := io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    assert status_of("fit", table, "--target", target, "--kernel", "rbf", "--max-steps", 2, "--out", "m.st") == 0
    assert status_of("describe", "m.st") == 0
    said = out.buffer.getvalue().decode(encoding)
    assert shown in said
    assert "written: m.st" in said
    assert "table      " in said


def test_labels_that_cannot_be_printed_are_not_changed(folder, status_of, monkeypatch, capsys):
    table = TABLE.assign(t=np.where(TABLE["t"] > 0.0, "grün", "rot"))
    table.to_csv("a.csv", index=False)
    assert fit(status_of) == 0
    capsys.readouterr()
    for encoding, status in (("ascii", 2), ("utf-8", 0)):
        monkeypatch.setattr(sys, "stdout", out := io.TextIOWrapper(io.BytesIO(), encoding=encoding))
        assert status_of("predict", "m.st", "a.csv") == status
        said, err = out.buffer.getvalue().decode(encoding), capsys.readouterr().err
        assert ("probability_grün" in said) == (status == 0)
        assert (r"the labels contain '\xfc', but standard output is encoded as ascii" in err) == (status == 2)
    assert "\r" not in said


def test_an_error_or_interrupt_in_the_scores_leaves_the_predictions(folder, status_of, monkeypatch, capsys):
    assert fit(status_of) == 0
    for error, status, told in (
        (RuntimeError("no scores"), 2, "agp: no scores\nagp: p.csv was written before this error.\n"),
        (KeyboardInterrupt(), 130, "agp: interrupted; p.csv was written.\n"),
    ):

        def broken(*_, error=error, **__):
            raise error

        monkeypatch.setattr("agp.cli._predict.score_predictions", broken)
        assert status_of("predict", "m.st", "a.csv", "--out", "p.csv") == status
        assert capsys.readouterr().err.endswith(told)
        assert len(pd.read_csv("p.csv")) == len(TABLE)
        Path("p.csv").unlink()


def test_an_interrupt_names_the_last_of_several_files(folder, status_of, monkeypatch, capsys):
    assert fit(status_of) == 0
    Path("in").mkdir()
    for name in "abc":
        TABLE.to_csv(f"in/{name}.csv", index=False)
    read = _predict.read_for_model

    def interrupt(path, *rest):
        if Path(path).name == "c.csv":
            raise KeyboardInterrupt
        return read(path, *rest)

    monkeypatch.setattr(_predict, "read_for_model", interrupt)
    assert status_of("predict", "m.st", "in", "--out", "out") == 130
    assert capsys.readouterr().err.endswith("agp: interrupted; 2 files up to out/b.csv were written.\n")
    assert sorted(os.listdir("out")) == ["a.csv", "b.csv"]


def test_a_full_disk_in_predict_is_named(folder, status_of, monkeypatch, capsys):
    assert fit(status_of) == 0
    capsys.readouterr()

    def full(_file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("agp.io._atomic.os.fsync", full)
    assert status_of("predict", "m.st", "a.csv", "--out", "p.csv") == 2
    said = "agp: p.csv could not be written (No space left on device); make room or name another file.\n"
    assert capsys.readouterr().err == said


@pytest.mark.skipif(os.name != "posix", reason="needs a shell, links or pipes of POSIX")
@pytest.mark.slow
def test_processes_that_a_command_starts_have_all_descriptors(folder):
    child = "import os; [os.fstat(descriptor) for descriptor in range(3)]"
    code = f"""
import os, subprocess, sys
os.closerange(0, 3)
from agp.cli._terminal import forgiving_output
with forgiving_output():
    sys.exit(subprocess.call([sys.executable, "-c", {child!r}]))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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


@pytest.mark.skipif(os.name != "posix", reason="needs a shell, links or pipes of POSIX")
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


@pytest.mark.skipif(os.name != "posix", reason="needs a shell, links or pipes of POSIX")
@pytest.mark.parametrize("alias", ["link.st", "hard.st"])
@pytest.mark.parametrize("table", ["in", "in/*.parquet"])
def test_models_do_not_replace_a_part_of_their_table(table, alias, refused, monkeypatch):
    pytest.importorskip("dask.dataframe", reason="tables in several files need the extra dask")
    Path("in").mkdir()
    for name in "ab":
        TABLE.to_parquet(f"in/{name}.parquet")
    Path("link.st").symlink_to("in/b.parquet")
    os.link("in/a.parquet", "hard.st")
    monkeypatch.setattr("agp.cli._fit.train_estimator", lambda *_, **__: pytest.fail("trained"))
    assert f"--out is {alias}, which is the table itself" in refused("fit", table, "--target", "t", "--out", alias)
    assert all(len(pd.read_parquet(f"in/{name}.parquet")) == len(TABLE) for name in "ab")


def test_tables_of_the_same_name_are_not_predicted_into_one_file(refused, status_of):
    assert fit(status_of) == 0
    for place in ("p1", "p2"):
        Path(place).mkdir()
        TABLE.to_csv(f"{place}/t.csv", index=False)
    said = refused("predict", "m.st", "p*/t.csv", "--out", "out")
    assert "p1/t.csv and p2/t.csv would both be out/t.csv; predict the two in separate folders" in said
    assert not Path("out").exists()


def test_several_tables_do_not_replace_the_model(refused, status_of):
    assert status_of("fit", "a.csv", "--target", "t", "--kernel", "rbf", "--max-steps", 2, "--out", "m.st") == 0
    Path("out").mkdir()
    Path("in").mkdir()
    TABLE.to_csv("in/m.csv", index=False)
    os.rename("m.st", "out/m.csv")
    said = refused("predict", "out/m.csv", "in/*.csv", "--out", "out")
    assert "--out is out/m.csv, which is the model itself" in said
    agp.load("out/m.csv")


@pytest.mark.skipif(os.name != "posix", reason="needs a shell, links or pipes of POSIX")
@pytest.mark.parametrize(
    ("out", "told"),
    [
        ("pipe.st", "cannot save to pipe.st, because it is a pipe, a socket or a device; name an ordinary file"),
        ("/dev/null", "cannot save to /dev/null, because it is a pipe, a socket or a device; name an ordinary file"),
        ("/dev/stdout", "cannot save to /dev/stdout, because it is"),
        ("link.st", "cannot save to link.st, because it is in a folder of devices or open files"),
        ("dangling.st", "dangling.st could not be written (No such file or directory); make room or name another file"),
        ("loop.st", "loop.st could not be written (Too many levels of symbolic links)"),
        (f"{'x' * 253}.st", "could not be written (File name too long)"),
    ],
)
def test_places_that_cannot_be_written_are_refused_before_training(out, told, refused, monkeypatch):
    os.mkfifo("pipe.st")
    for name, target in (("loop.st", "loop.st"), ("dangling.st", "absent/m.st"), ("link.st", "/dev/fd/123")):
        Path(name).symlink_to(target)
    monkeypatch.setattr("agp.cli._fit.train_estimator", lambda *_, **__: pytest.fail("trained"))
    assert told in refused("fit", "a.csv", "--target", "t", "--out", out)


@pytest.mark.skipif(os.name != "posix", reason="needs a shell, links or pipes of POSIX")
@pytest.mark.parametrize("out", ["pipe.csv", "link.csv"])
def test_predictions_do_not_replace_pipes(out, refused, status_of):
    assert fit(status_of) == 0
    os.mkfifo("pipe.csv")
    Path("link.csv").symlink_to("pipe.csv")
    assert f"cannot save to {out}, because it is a pipe, a socket or a device" in refused(
        "predict", "m.st", "a.csv", "--out", out
    )
    Path("in").mkdir()
    TABLE.to_csv("in/pipe.csv", index=False)
    Path("out").mkdir()
    Path("out/pipe.csv").symlink_to(f"../{out}")
    assert "cannot save to out/pipe.csv, because it is a pipe, a socket or a device" in refused(
        "predict", "m.st", "in", "--out", "out"
    )


# -- other systems -----------------------------------------------------------------------------------------------------

WITHOUT_POSIX = """
import sys, os
for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty"):
    sys.modules[name] = None
lacking = "fork geteuid getuid fchmod chown fchown mkfifo mknod getpgid setsid sysconf register_at_fork getloadavg"
lacking += " sched_getaffinity statvfs killpg lchown"
for name in lacking.split():
    if hasattr(os, name):
        delattr(os, name)
from agp.cli import main
def run(*arguments):
    try:
        return main([*arguments])
    except SystemExit as ended:
        return ended.code
fit = ("fit", "a.csv", "--target", "t", "--kernel", "rbf", "--max-steps", "3", "--out", "m.st", "-q")
compare = ("compare", "a.csv", "--target", "t", "--method", "wsvgp", "gpr", "--max-steps", "2", "--num-inducing", "5")
commands = [("--help",), ("backends",), fit, fit, ("predict", "m.st", "a.csv", "--out", "p.csv"), ("describe", "m.st")]
packed = ("predict", "m.st", "a.csv", "--out", "p.csv.gz")
for command in [*commands, packed, ("compare", "--help"), compare]:
    print("STATUS", command[0], run(*command))
"""


def test_peak_memory_is_unknown_on_windows(monkeypatch):
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.setattr("agp.backend._library.Path", lambda _: Path("absent"))
    assert np.isnan(get_backend("numpy").peak_memory(np.zeros(1)))


@pytest.mark.slow
def test_every_command_runs_without_posix(folder):
    done = subprocess.run([sys.executable, "-c", WITHOUT_POSIX], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    statuses = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("STATUS")]
    assert [status for _, status in statuses] == ["0"] * 9, done.stdout[-3000:] + done.stderr[-2000:]


@pytest.mark.parametrize(("width", "count"), [(20, 4), (60, 2), (100, 1)])
def test_tables_are_split_in_narrow_terminals_and_never_cut_off(width, count, monkeypatch, capsys):
    rich = pytest.importorskip("rich.console", reason="the command line needs the extra cli")
    monkeypatch.setattr(_terminal, "console", lambda: rich.Console(width=width, highlight=False))
    header = ["method", "backend", "test NLPD", "95 % cov.", "diff bound", "diff grad"]
    rows = [["wsvgp", "numpy cuda:0", f"-{i}1,234.5", "100.0 %", f"4.8e-1{i}", f"1.3e-1{i}"] for i in range(3)]
    _terminal.print_table("one [title]", header, rows, numbers_from=2)
    printed = capsys.readouterr().out
    tables = printed.count("method")
    assert all(printed.count(x) == 1 for row in rows for x in row[2:] if not x.startswith("100"))
    assert printed.count("100.0 %") == 3
    assert printed.count("numpy cuda:0") == 3 * tables
    assert tables == count
    if width > 20:
        assert max(map(len, printed.splitlines())) <= width
    reason = "one two three four five six"
    _terminal.print_table("reasons", ["name", "reason"], [["cupy", reason]], numbers_from=9)
    assert capsys.readouterr().out.split()[-7:] == ["cupy", *reason.split()]
