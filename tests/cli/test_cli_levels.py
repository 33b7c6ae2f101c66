"""Names of rows, categories and kernels on columns in the shell: the same model as in Python."""

import re
from pathlib import Path

import numpy as np
import pytest

import agp
from agp import tree

pd = pytest.importorskip("pandas", reason="the command line needs the extra cli")
pytest.importorskip("sklearn", reason="the command line needs the extra cli")

from agp.errors import ColumnWarning  # noqa: E402
from agp.estimators import GPRegressor  # noqa: E402
from agp.kernels import RandomEffects  # noqa: E402

RNG = np.random.default_rng(0)
N = 60
TABLE = pd.DataFrame({"size": RNG.uniform(-2.0, 2.0, N), "kind": RNG.choice(["round", "square"], N)})
TABLE["sound"] = np.sin(2.0 * TABLE["size"]) + (TABLE["kind"] == "round") + 0.1 * RNG.normal(size=N)


@pytest.fixture
def shell(tmp_path, monkeypatch, capsys, status_of):
    """Run a command in an empty folder; return its output and its errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        status = status_of(*arguments)
        said = capsys.readouterr()
        assert status == 0, said.err
        return said.out, said.err

    return run


@pytest.fixture
def fit(shell):
    """`agp fit` of a data frame; return its output, its errors, and the model."""

    def run(frame, *arguments):
        frame.to_csv("t.csv", index=False)
        out, err = shell("fit", "t.csv", "--target", "sound", "--out", "m.st", "--kernel", "rbf", *arguments)
        return out, err, agp.load("m.st")

    return run


NAMES = {
    "names": [f"Mr. {i}" for i in range(N)],
    "tickets": [f"A/{i if i < 40 else 40}" for i in range(N)],
    "names with gaps": [None if i % 4 == 0 else f"C{i}" for i in range(N)],
}


@pytest.mark.parametrize("names", NAMES)
def test_names_of_rows_are_left_out_and_said_in_one_line(names, fit, shell):
    said, err, model = fit(TABLE.assign(name=NAMES[names]))
    assert err.count("\n") == 1
    assert err.startswith(
        "agp: warning: column 'name' is left out, because most rows have a value that no other row has"
    )
    assert model.left_out_ == ["name"]
    shell("predict", "m.st", "t.csv", "--out", "with.csv")
    TABLE.to_csv("new.csv", index=False)
    out, _ = shell("predict", "m.st", "new.csv", "--out", "without.csv")  # the column is not needed
    assert "60 rows with 'sound'" in out
    out, err, plain = fit(TABLE)
    assert not err
    assert re.sub(r"[0-9.]+ s;", "", out) == re.sub(r"[0-9.]+ s;", "", said)  # but for the seconds
    assert plain.bound_ == model.bound_
    shell("predict", "m.st", "new.csv", "--out", "plain.csv")
    assert Path("with.csv").read_bytes() == Path("without.csv").read_bytes() == Path("plain.csv").read_bytes()
    python = GPRegressor(kernel="rbf", random_state=0)
    with pytest.warns(ColumnWarning, match="'name'"):
        python.fit(TABLE.assign(name=NAMES[names]).drop(columns="sound"), TABLE["sound"])
    assert python.bound_ == model.bound_


def test_names_are_kept_on_request(fit):
    _, err, model = fit(TABLE.assign(name=NAMES["names"]), "--keep", "name")
    assert not err
    assert model.left_out_ == []
    assert model.model_columns() == ["size", "kind", "name"]
    assert len(model.columns_.levels["name"]) == N


def test_row_numbers_are_mentioned_and_used(fit):
    frame = TABLE.copy()
    frame.insert(0, "id", range(1, N + 1))
    _, err, model = fit(frame)
    assert err == (
        "agp: warning: column 'id' holds row numbers from 1 to 60; leave it out if they mean nothing, or name it in "
        "--keep.\n"
    )
    assert "id" in model.model_columns()


def test_many_levels_are_taken(fit):
    places = [f"place {i}" for i in range(120)]
    frame = pd.DataFrame({"place": places * 2, "sound": np.repeat([[1.0, 1.1]], 120, axis=0).T.ravel()})
    frame["sound"] += np.tile(np.linspace(-2.0, 2.0, 120), 2)
    out, err, model = fit(frame)
    assert not err
    assert "different values" not in out
    assert model.model_columns() == ["place"]
    assert model.score(frame[["place"]], frame["sound"]) > 0.95


def test_levels_are_the_same_beside_missing_cells_and_new_ones_are_wide(fit, shell):
    codes = RNG.choice(["10", "20", "low", "mid"], N)  # too few numbers for a column of numbers
    effects = {"10": 10.0, "20": 20.0, "low": 0.0, "mid": 15.0}
    frame = pd.DataFrame({"code": codes, "sound": [effects[code] for code in codes] + 0.1 * RNG.normal(size=N)})
    _, _, model = fit(frame, "--missing", "impute")
    Path("new.csv").write_text("code\n10.0\n20\n\n77\n")
    _, err = shell("predict", "m.st", "new.csv", "--out", "p.csv")
    assert not err
    found = pd.read_csv("p.csv")
    np.testing.assert_allclose(found["mean"][:2], [10.0, 20.0], atol=0.5)
    assert (found["standard_deviation"][2:] > 5.0).all()
    assert (found["standard_deviation"][:2] < 0.5).all()
    assert model.columns_.levels == {"code": ["10", "20", "low", "mid"]}


def test_kernels_act_on_named_columns(fit, shell, status_of, capsys):
    _, _, model = fit(TABLE, "--kernel", "rbf.on(size) + linear.on('kind')")
    assert [part.columns for part in model.model_.kernel.parts] == [(0,), (1,)]
    assert len(tree.nodes(model.model_.kernel.parts[1], RandomEffects)) == 1
    assert status_of("fit", "t.csv", "--target", "sound", "--out", "n.st", "--kernel", "rbf.on(width)") == 2
    assert (
        "RBF acts on column 'width', which the table does not have; the columns are size, kind."
        in capsys.readouterr().err
    )
    assert status_of("fit", "t.csv", "--target", "sound", "--out", "n.st", "--kernel", "rbf.in(size)") == 2
    assert (
        "the kernel 'rbf.in(size)' has '.in(size)' after 'rbf'; columns are written as in 'rbf.on("
        in capsys.readouterr().err
    )
    assert not Path("n.st").exists()
