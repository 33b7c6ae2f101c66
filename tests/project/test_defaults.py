"""The benchmark of the defaults: cells in small from start to page, resumed; and the page is that of its file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="the tables and sides need the extra sklearn")

sys.path.append(str(Path(__file__).parents[2] / "asv_benchmarks"))

import defaults
from defaults_parts import page
from defaults_parts.job import Job
from defaults_parts.sides import SIDES
from defaults_parts.tables import held_out, tables
from options import checkouts_of, chosen
from processes import reason, versions

ROOT = defaults.ROOT
PLACES = "# A page\n\n<!-- defaults -->\nold\n<!-- /defaults -->\n"


def cell(side="agp", table="airfoil", **figures):
    facts = {"method": "sgpr", "num_inducing": 1024} if side == "agp" else {}
    own = {"table": table, "split": 0, "seed": 0, "side": side, "rows": 1353, "test_rows": 150, "columns": 5}
    machine = {"processor": "abacus", "threads": 2}
    library = {"agp": "0.2.0 (0123456)"} if side.startswith("agp") else {"sklearn": "1.9"}
    common = {"classes": 0, "small": False, "machine": machine, "versions": library, "facts": facts, "seconds": 8.25}
    return own | common | {"mebibytes": 200.4, "nlpd": -0.25, "rmse": 0.18} | figures


def table_of(text, heading):
    """The rows of a table as lists of cells, without its head."""
    lines = text.split(f"### {heading}\n\n")[1].split("\n\n")[0].splitlines()
    return [[x.strip() for x in line.strip("|").split("|")] for line in lines][2:]


@pytest.mark.long
def test_cells_in_small_from_start_to_page(tmp_path, capsys):
    out = tmp_path / "out"
    call = ["run", "--small", "--out", str(out), "--tables", "friedman-200x200", "--sides", "agp", "mean"]
    assert defaults.main(call) == 0
    files = {path.name: path for path in out.iterdir()}
    names = [f"friedman-200x200.0.0.{side}.json" for side in ("agp", "mean")]
    assert sorted(files) == names
    ours, mean = (json.loads(files[name].read_text()) for name in names)
    assert ours["nlpd"] < mean["nlpd"]
    assert ours["facts"]["method"] == "gpr"
    assert ours["seconds"] > 0.0 < ours["mebibytes"]
    assert "[2/2] friedman-200x200, split 0, seed 0, mean: nlpd" in capsys.readouterr().out

    files[names[1]].unlink()
    written = files[names[0]].stat().st_mtime_ns
    assert defaults.main(call) == 0
    assert files[names[0]].stat().st_mtime_ns == written
    assert json.loads(files[names[1]].read_text())["nlpd"] == mean["nlpd"]
    assert "1 of 2 cells have results" in capsys.readouterr().out

    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "defaults.md").write_text(PLACES)
    assert defaults.main(["page", "--out", str(out), "--root", str(tmp_path)]) == 0
    text = (tmp_path / "docs" / "defaults.md").read_text()
    assert page.REHEARSAL in text
    assert "old" not in text
    row = ["friedman-200x200", "60", "5", f"{ours['nlpd']:.3f}", f"{mean['nlpd']:.3f}"]
    assert table_of(text, "Regression: NLPD") == [row]


@pytest.mark.slow
def test_a_cell_that_fails_says_why_and_is_tried_again_if_asked(tmp_path, capsys):
    checkout = tmp_path / "empty"  # has no agp, so that of somewhere else would be measured
    checkout.mkdir()
    call = ["run", "--small", "--out", str(tmp_path / "out"), "--tables", "iris", "--against", str(checkout)]
    call += ["--sides", "agp@empty"]
    for again, there in (([], 0), ([], 1), (["--again"], 0)):
        assert defaults.main([*call, *again]) == 1
        said = capsys.readouterr().out
        assert f"{there} of 1 cells have results" in said
        assert "done; 1 cells failed" in said
        assert ("FAILED" in said) == (there == 0)
    found = json.loads((tmp_path / "out" / "iris.0.0.agp@empty.json").read_text())
    assert found["error"].startswith(
        ("ImportError: agp is imported from", "ModuleNotFoundError: No module named 'agp'")
    )


@pytest.mark.slow
@pytest.mark.parametrize("side", [name for name, side in SIDES.items() if side.is_peer])
def test_a_peer_in_small(tmp_path, side):
    for python in os.environ.get("AGP_PEERS", sys.executable).split(os.pathsep):
        if subprocess.run([python, "-c", "import gpytorch"], capture_output=True, check=False).returncode == 0:
            break
    else:
        pytest.skip("gpytorch is not installed for any of the interpreters in AGP_PEERS")
    call = ["run", "--small", "--out", str(tmp_path), "--tables", "friedman-200x200", "--peer-python", python]
    assert defaults.main([*call, "--sides", side]) == 0
    assert json.loads((tmp_path / f"friedman-200x200.0.0.{side}.json").read_text())["nlpd"] < 2.0


def test_the_page_shows_what_its_file_holds():
    document = json.loads((ROOT / "docs" / "defaults.json").read_text(encoding="utf-8"))
    text = (ROOT / "docs" / "defaults.md").read_text(encoding="utf-8")
    assert text == page.written(text, page.tables(document)), "run python asv_benchmarks/defaults.py page"


def test_tables_are_made_of_cells():
    cells = [cell(), cell(seed=1, nlpd=-0.29), cell("boosting", seconds=0.412), cell("agp@old", error="MemoryError")]
    cells[-1] = {name: x for name, x in cells[-1].items() if name not in ("nlpd", "rmse", "seconds", "facts")}
    document = page.collect_reports(cells)
    text = page.tables(document)
    assert table_of(text, "Regression: NLPD") == [["airfoil", "1,353", "5", "-0.270 (0.020)", "failed", "-0.250"]]
    seconds = ["airfoil", "1,353", "5", "sgpr, M = 1,024", "8.2", "failed", "0.41"]
    assert table_of(text, "Regression: Seconds of CPU") == [seconds]
    assert "- airfoil, split 0, seed 0, agp@old: `MemoryError`" in text
    assert "The machine has 2 hardware threads. The processor type is abacus" in text
    assert "agp 0.2.0 (0123456), agp@old 0.2.0 (0123456), scikit-learn 1.9." in text


def test_an_empty_document_has_no_tables():
    document = page.collect_reports([])
    assert page.tables(document) == page.NOTHING
    assert page.written(PLACES, "") == PLACES.replace("old\n", "")


def test_cells_of_two_machines_are_refused():
    other = cell() | {"machine": {"processor": "soroban", "threads": 2}}
    with pytest.raises(ValueError, match=r"abacus.*soroban"):
        page.collect_reports([cell(), other])


def test_files_of_a_folder_are_tables(tmp_path):
    rng = np.random.default_rng(0)
    masks = np.zeros((30, 10), dtype=bool)
    masks[:4, 1] = True
    np.savez(tmp_path / "bike.npz", X=rng.standard_normal((30, 17)), y=rng.standard_normal(30), test_masks=masks)
    np.savez(tmp_path / "coins.npz", X=rng.standard_normal((30, 2)), y=np.arange(30) % 2)
    np.savez(tmp_path / "mnist.npz", X=rng.standard_normal((30, 2)), y=np.arange(30) % 2)
    found = tables(tmp_path, large=True)
    assert list(found)[:3] == ["bike", "coins", "friedman-1000x10"]
    assert list(found)[-1] == "friedman-1000000x8"
    bike, coins = found["bike"].job(1, small=False), found["coins"].job(1, small=False)
    assert (bike.X.shape, bike.X_test.shape, bike.classes) == ((26, 15), (4, 15), 0)
    assert (coins.X.shape, coins.X_test.shape, coins.classes) == ((27, 2), (3, 2), 2)
    order = np.random.default_rng(1).permutation(30)
    assert set(np.flatnonzero(held_out(30, 3, 1))) == set(order[27:])


def test_scores_are_in_deviations_of_the_training_targets():
    rng = np.random.default_rng(0)
    y, y_test = rng.standard_normal(20), rng.standard_normal(9)
    mean, variance = rng.standard_normal(9), rng.uniform(0.5, 1.0, 9)
    X = np.zeros((20, 1)), np.zeros((9, 1))
    plain = Job(X[0], y, X[1], y_test, 0, False).scores((mean, variance))
    scaled = Job(X[0], 1e3 * y, X[1], 1e3 * y_test, 0, False).scores((1e3 * mean, 1e6 * variance))
    assert scaled == pytest.approx(plain)
    spread = y.std()
    density = -0.5 * np.log(2.0 * np.pi * variance) - 0.5 * (y_test - mean) ** 2 / variance
    assert plain["nlpd"] == pytest.approx(-density.mean() - np.log(spread))
    assert plain["rmse"] == pytest.approx(np.sqrt(np.mean((y_test - mean) ** 2)) / spread)


def test_scores_of_classes():
    job = Job(np.zeros((3, 1)), np.asarray([0, 1, 2]), np.zeros((2, 1)), np.asarray([0, 2]), 3, False)
    found = job.scores(np.asarray([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]]))
    assert found["log_loss"] == pytest.approx(-0.5 * (np.log(0.5) + np.log(1e-15)))
    assert found["error_rate"] == 0.5


def test_what_is_asked_for_is_known(tmp_path):
    assert chosen("--tables", ["wine", "f*"], ["friedman", "iris", "wine"]) == ["wine", "friedman"]
    with pytest.raises(SystemExit, match="--tables has no gauge; use one of iris"):
        chosen("--tables", ["gauge"], ["iris"])
    with pytest.raises(SystemExit, match="no/such/python, but there is no program"):
        defaults.interpreter("no/such/python")
    with pytest.raises(SystemExit, match="nowhere, but there is no folder"):
        defaults.main(["run", "--out", "out", "--data", "nowhere"])
    assert defaults.interpreter(os.path.relpath(sys.executable)) == sys.executable
    with pytest.raises(SystemExit, match="two folders with the same name"):
        checkouts_of([Path("a/agp"), Path("b/agp")])
    (tmp_path / "old").mkdir()
    assert list(checkouts_of([tmp_path / "old"])) == ["agp", "agp@old"]
    with pytest.raises(SystemExit, match="nowhere, but there is no folder"):
        checkouts_of([tmp_path / "nowhere"])
    assert reason(-9, "") == "ended by SIGKILL"
    assert reason(1, "Traceback\nValueError: no\n") == "ValueError: no"
    assert {"python", "numpy"} <= set(versions(["numpy"]))
