"""`agp compare`: rows of methods, backends and precisions on a table, and what fails."""

import csv
from pathlib import Path

import numpy as np
import pytest

from agp import estimators
from agp.cli import _compare, _example

pytest.importorskip("rich", reason="the command line needs the extra cli")
pytest.importorskip("tqdm", reason="the command line needs the extra cli")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")]

QUICK = ("--kernel", "rbf", "--max-steps", 8, "--num-inducing", 6)


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """A folder with numbers, labels and counts as functions of two columns."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    X, hours = rng.normal(size=(60, 2)), rng.integers(1, 4, 60)
    y = 3.0 * np.sin(X[:, 0]) + 0.1 * rng.normal(size=60)
    targets = {"height": y, "label": np.where(y > 0.0, "up", "down"), "count": rng.poisson(hours * np.exp(X[:, 0]))}
    for name, target in targets.items():
        lines = [f"{a:.6f},{b:.6f},{h},{z}" for (a, b), h, z in zip(X, hours, target, strict=True)]
        Path(f"{name}.csv").write_text("\n".join([f"a,b,hours,{name}", *lines]) + "\n")


@pytest.fixture
def compare(tables, status_of, capsys):
    """Compare methods on one of the tables; the exit status, what is printed, and the rows of the file."""

    def run(target, *arguments):
        status = status_of("compare", f"{target}.csv", "--target", target, *QUICK, "--out", "out.csv", *arguments)
        with Path("out.csv").open() as file:
            return status, capsys.readouterr(), [*csv.DictReader(file)]

    return run


def test_methods_are_sorted_by_their_densities(compare):
    status, said, rows = compare("height", "--method", "auto", "wsvgp", "gpr", "--layers", 3)
    assert status == 0
    assert {row["method"]: row["chosen"] for row in rows} == {"auto": "gpr", "wsvgp": "wsvgp", "gpr": "gpr"}
    densities = [float(row["NLPD"]) for row in rows]
    assert densities == sorted(densities)
    assert all(0.0 < float(row["RMSE"]) < 3.0 and float(row["fit_seconds"]) > 0.0 for row in rows)
    assert "12 rows held out (standard deviation" in said.out
    assert "auto (gpr)" in said.out
    assert "difference" not in said.out
    table = said.out[said.out.index("12 rows held out") :]
    assert max(map(len, table.splitlines())) <= 80
    assert "[ms]" in table


def test_backends_and_precisions_agree(compare):
    pytest.importorskip("torch", reason="torch is not installed")
    options = ("--method", "gpr", "wsvgp", "--backend", "numpy", "torch", "--dtype", "float64", "float32")
    status, said, rows = compare("height", *options)
    assert status == 0
    assert len(rows) == 8
    for row in rows:
        first = (row["backend"], row["dtype"]) == ("numpy", "float64")
        assert float(row["difference"]) <= (0.0 if first else 1e-8 if row["dtype"] == "float64" else 0.1)
    assert [row["method"] for row in rows] == [rows[0]["method"]] * 4 + [rows[-1]["method"]] * 4
    assert "in standard deviations of the target" in said.out


def test_labels_have_an_error_rate(compare):
    status, said, rows = compare("label", "--dtype", "float64", "float32", "--method", "wsvgp", "rsvgp")
    assert status == 0
    assert all(0.0 <= float(row["error rate"]) <= 1.0 and "RMSE" not in row for row in rows)
    assert "of the predicted\n  probabilities" in said.out
    assert {row["method"] for row in compare("label")[2]} == {"auto", "wsvgp", "rsvgp"}


def test_usual_methods_do_not_train_what_auto_has_chosen(compare):
    rows = compare("count", "--likelihood", "poisson", "--exposure", "hours")[2]
    assert {row["method"]: row["chosen"] for row in rows} == {"auto": "wsvgp", "rsvgp": "rsvgp"}
    assert {row["method"] for row in compare("height")[2]} == {"auto", "sgpr", "wsvgp", "rsvgp"}


def test_one_row_fails_and_the_others_are_trained(compare):
    status, said, rows = compare("count", "--likelihood", "poisson", "--method", "gpr", "wsvgp")
    assert status == 1
    assert [row["method"] for row in rows] == ["wsvgp", "gpr"]
    assert "does not support it" in rows[1]["error"]
    assert "failed: gpr, numpy, float64: likelihood is 'poisson', but the method gpr does not" in said.out
    assert "Traceback" not in said.err
    assert "Traceback" in compare("count", "--likelihood", "poisson", "--method", "gpr", "--debug")[1].err


def test_an_interrupt_keeps_the_finished_rows(compare, status_of, monkeypatch, capsys):
    train = _compare.train_estimator

    def interrupted(a, *args, **more):
        if a.method == "wsvgp":
            raise KeyboardInterrupt
        return train(a, *args, **more)

    monkeypatch.setattr(_compare, "train_estimator", interrupted)
    status, said, rows = compare("height", "--method", "gpr", "wsvgp")
    assert status == 130
    assert [row["method"] for row in rows] == ["gpr"]
    assert "interrupted; the table shows the rows that have finished" in said.out
    assert "12 rows held out" in said.out
    assert status_of("compare", "height.csv", "--target", "height", "--method", "wsvgp", *QUICK) == 130
    assert capsys.readouterr().err == "agp: interrupted; nothing was written.\n"


def test_the_table_is_printed_even_if_it_cannot_be_written(tables, status_of, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space")

    monkeypatch.setattr("agp.cli._predict.write_atomically", full)
    options = ("--target", "height", "--method", "gpr", "--out", "out.csv")
    assert status_of("compare", "height.csv", *options, *QUICK) == 2
    said = capsys.readouterr()
    assert "agp: out.csv could not be written (No space); make room or name another file." in said.err
    assert "12 rows held out" in said.out


def test_the_example_is_a_table(tmp_path):
    pytest.importorskip("matplotlib", reason="the example needs matplotlib")
    header, *lines = Path(_example.write_example(str(tmp_path))).read_text().splitlines()
    assert header == "east,south,height"
    assert len({*lines}) == _example.ROWS


def test_the_same_options_give_the_model_of_fit(compare, status_of, capsys):
    rows = compare("height", "--method", "wsvgp", "--test-share", 0.3, "--seed", 3)[2]
    options = ("--method", "wsvgp", "--test-share", 0.3, "--seed", 3, "--out", "m.st")
    assert status_of("fit", "height.csv", "--target", "height", *QUICK, *options) == 0
    assert f"NLPD {float(rows[0]['NLPD']):.4g}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("height.csv",), "predicts one column of height.csv, but 0 are named; name one with --target"),
        (("height.csv", "--target", "a", "--target", "b"), "but 2 are named"),
        (("--target", "a"), "--target is 'a', but no table is named"),
        (("height.csv", "--target", "tall"), "it has no column 'tall'; its columns are a, b, hours, height"),
        (("no.csv", "--target", "a"), "there is no file no.csv"),
        (("height.csv", "--target", "a", "--test-share", "0.001"), "which holds out none of the 60 rows"),
        (("height.csv", "--target", "a", "--test-share", "0"), "must be a number between 0 and 1"),
        (
            ("height.csv", "--target", "a", "--method", "svgpp"),
            "unknown method 'svgpp'; did you mean",
        ),
        (("height.csv", "--target", "a", "--backend", "numpi"), "unknown backend 'numpi'; did you mean 'numpy'?"),
        (
            ("height.csv", "--target", "a", "--dtype", "float16"),
            "unknown dtype 'float16'; did you mean",
        ),
        (("height.csv", "--target", "a", "--kernel", "rbf+cubic"), "unknown kernel 'cubic' in 'rbf+cubic'"),
        (("height.csv", "--target", "a", "--out", "height.csv"), "--out is height.csv, which is the table itself"),
        (("height.csv", "--target", "a", "--out", "out"), "--out is out, but must end with .csv or .parquet"),
    ],
)
def test_wrong_arguments_are_one_sentence(tables, status_of, capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(estimators.GPRegressor, "fit", lambda *_: pytest.fail("trained"))
    assert status_of("compare", *arguments) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_backends_are_listed(status_of, capsys):
    assert status_of("backends") == 0
    said = capsys.readouterr().out
    assert all(name in said for name in ("numpy", "torch", "array_api_strict", "closed-form"))
