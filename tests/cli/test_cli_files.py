"""Files that the commands read and write: compressed, named in odd ways, and wide."""

import errno
import gzip
import os
import sys
from pathlib import Path

import numpy as np
import pytest

import agp
from agp.errors import ColumnWarning, ConvergenceWarning, NoSignalWarning
from agp.io import _atomic

pd = pytest.importorskip("pandas", reason="the command line needs the extra cli")
pytest.importorskip("sklearn", reason="the command line needs the extra cli")
pytest.importorskip("pyarrow", reason="the command line needs the extra cli")

from agp.cli._predict import ENDINGS  # noqa: E402
from agp.estimators import GPRegressor  # noqa: E402

RNG = np.random.default_rng(0)
TABLE = pd.DataFrame({"a": RNG.normal(size=20), "kind": RNG.choice(["x", "y"], 20)})
TABLE["t"] = np.sin(2.0 * TABLE["a"]) + 0.1 * RNG.normal(size=20)
FIT = ("--target", "t", "--kernel", "rbf", "--max-steps", "3", "--out")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder with a compressed table."""
    monkeypatch.chdir(tmp_path)
    TABLE.to_csv("t.csv.gz", index=False)
    return tmp_path


@pytest.fixture
def told(status_of, capsys):
    """The only line on standard error of a command that is refused."""

    def run(*arguments):
        capsys.readouterr()
        assert status_of(*arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    return run


def test_compressed_tables_go_through_all_commands(folder, status_of, capsys):
    assert status_of("fit", "t.csv.gz", *FIT, "m.st") == 0
    assert capsys.readouterr().out.startswith("t.csv.gz: 20 rows, 2 input columns; regression for 't'")
    assert status_of("predict", "m.st", "t.csv.gz", "--out", "p.csv") == 0
    expected = pd.read_csv("p.csv")
    for ending in ENDINGS:
        assert status_of("predict", "m.st", "t.csv.gz", "--out", f"q{ending.upper()}") == 0
        found = agp.tables.read_table(f"q{ending.upper()}").frame.to_native()
        pd.testing.assert_frame_equal(found, expected, check_exact=not ending.endswith("parquet"))
    assert Path("q.CSV.GZ").read_bytes()[:2] == b"\x1f\x8b"
    assert b"\r" not in Path("p.csv").read_bytes()
    capsys.readouterr()
    assert status_of("describe", "m.st", "t.csv.gz", "-q") == 0


def test_several_compressed_tables_are_predicted_into_a_folder(folder, status_of, told):
    assert status_of("fit", "t.csv.gz", *FIT, "m.st") == 0
    Path("in.d").mkdir()
    for i in range(2):
        TABLE.to_csv(f"in.d/part-{i}.csv.gz", index=False)
    assert status_of("predict", "m.st", "in.d/part-*.csv.gz", "--out", "out") == 0
    assert sorted(os.listdir("out")) == ["part-0.csv.gz", "part-1.csv.gz"]
    with gzip.open("out/part-1.csv.gz", "rt") as file:
        assert file.readline() == "mean,standard_deviation,lower,upper\n"
    assert "no .csv, .parquet or .csv.gz file matches" in told("predict", "m.st", "in.d/*.txt", "--out", "out")


@pytest.mark.parametrize("name", ["t.csv.gz", "T.CSV.XZ", "t.tsv.zip", "t.xlsx", "t.jsonl", "t.feather"])
def test_no_model_gets_the_name_of_a_table(name, folder, told):
    ending = name[1:].lower()
    said = told("fit", "t.csv.gz", *FIT, f"new{ending}")
    assert said.endswith(f"but {ending} files are tables; use a name such as new.safetensors.")


def test_predictions_need_the_ending_of_a_table(folder, status_of, told):
    assert status_of("fit", "t.csv.gz", *FIT, "m.st") == 0
    for name in ("p.gz", "p.xlsx", "p.csv.lz"):
        assert f"--out is {name}, but must end with .csv or .parquet, or be compressed as .csv.gz" in told(
            "predict", "m.st", "t.csv.gz", "--out", name
        )


@pytest.mark.parametrize("name", ["t [1].csv", "data (2).csv", "größe.csv"])
def test_tables_with_odd_names_are_files(name, folder, status_of):
    TABLE.to_csv(name, index=False)
    assert status_of("fit", name, *FIT, "m.st") == 0
    assert status_of("predict", "m.st", name, "--out", "p.csv") == 0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse names that are no text")
@pytest.mark.parametrize("raw", [b"\xff.csv", b"t\xe4.csv", b"\x80\x81.csv"])
def test_names_that_are_no_text_are_read_and_written(raw, folder, status_of, capsys):
    name = os.fsdecode(raw)
    TABLE.to_csv(name, index=False)
    assert status_of("fit", name, *FIT, f"{name}.st") == 0
    assert status_of("predict", f"{name}.st", name, "--out", f"p{name}") == 0
    assert status_of("describe", f"{name}.st", "-q") == 0


@pytest.mark.parametrize("name", ["a\0b.csv", "x" * 300, "\0"])
def test_names_that_no_file_can_have_are_told(name, folder, told):
    assert "there is no file" in told("fit", name, *FIT, "m.st")
    assert told("fit", "t.csv.gz", *FIT, name[:-1] + "\0.st").endswith("contains a NUL character; name another file.")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_predictions_that_cannot_be_written_are_one_sentence(number, folder, status_of, told, monkeypatch):
    assert status_of("fit", "t.csv.gz", *FIT, "m.st") == 0
    Path("p.csv.gz").write_bytes(b"old")

    def fail(_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(_atomic.os, "fsync", fail)
    assert "p.csv.gz could not be written (" in told("predict", "m.st", "t.csv.gz", "--out", "p.csv.gz")
    assert Path("p.csv.gz").read_bytes() == b"old"
    assert sorted(os.listdir()) == ["m.st", "p.csv.gz", "t.csv.gz"]


@pytest.mark.slow
def test_wide_tables_are_trained_and_predicted(folder, status_of, capsys):
    wide = pd.DataFrame(RNG.normal(size=(10, 3000)), columns=[f"x{i}" for i in range(3000)]).round(3)
    texts = {f"k{i}": RNG.choice(["x", "y"], 10) for i in range(30)} | {f"d{i}": ["2020-01-01"] * 10 for i in range(40)}
    texts |= {f"e{i}": [None] * 10 for i in range(50)}
    wide = pd.concat([wide, pd.DataFrame(texts), TABLE[["t"]].head(10)], axis=1)
    wide.to_csv("w.csv", index=False)
    assert status_of("fit", "w.csv", *FIT, "m.st") == 0
    told = capsys.readouterr()
    assert len(told.out.splitlines()) < 40
    assert len(told.err.splitlines()) < 40
    assert "there are 30 more such remarks on other columns." in told.err
    assert status_of("predict", "m.st", "w.csv", "--out", "p.parquet") == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_, **__: None)
        model = agp.load("m.st")
        mean = model.predict(wide.drop(columns="t"))
    np.testing.assert_array_equal(pd.read_parquet("p.parquet")["mean"], mean)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    *(f"ignore::agp.errors.{kind.__name__}" for kind in (ColumnWarning, ConvergenceWarning, NoSignalWarning))
)
def test_the_time_of_wide_tables_is_linear_in_their_columns():
    """No column is removed where that would take the square of their number, and every prediction is finite."""
    wide = pd.DataFrame(RNG.normal(size=(10, 8000)), columns=[f"x{i}" for i in range(8000)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agp.selection._pruning.variance_shares", lambda *_: pytest.fail("takes D^2"))
        model = GPRegressor(random_state=0, max_steps=10).fit(wide, TABLE["t"].head(10))
    assert np.isfinite(model.predict(wide)).all()
