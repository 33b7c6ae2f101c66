"""The scripts that measure the papers' tables again: each in small, resumed, and the distances of the page."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PAPERS = Path(__file__).parents[2] / "asv_benchmarks" / "papers"
SCRIPTS = {
    "solve_gp": ["elevators-s*-1024*"],
    "tsvgp": ["mnist-*-0.03x4-0.03x1"],
    "cagp": ["bike-*"],
    "rsvgp": ["kin40k-layers2-r", "kin40k-layers1-w", "elevators-curve-r-1000"],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for name, columns in (("elevators", 4), ("bike", 17), ("kin40k", 3)):
        X = rng.normal(size=(300, columns))
        np.savez(folder / f"{name}.npz", X=X, y=np.sin(X[:, 0]) + 0.1 * rng.normal(size=300))
    images, digits = rng.integers(0, 256, (300, 64)), np.arange(300) % 10
    np.savez(folder / "mnist.npz", X=images, y=digits, train_mask=np.arange(300) < 250)
    return folder


def call(script, *arguments):
    command = [sys.executable, str(PAPERS / f"{script}.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.long
@pytest.mark.parametrize("script", SCRIPTS)
def test_cells_in_small_and_again(script, data, tmp_path):
    common = ["--data", data, "--out", tmp_path, "--small", "--seeds", 1, "--cells", *SCRIPTS[script]]
    said = call(script, *common)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    assert len(files) == len(said.splitlines()) > 0
    assert not list(tmp_path.glob("*.safetensors"))
    for path in files:
        found = json.loads(path.read_text("utf-8"))
        assert found["paper"] == script
        assert found["small"]
        assert all(map(np.isfinite, found["scores"].values()))
    assert call(script, *common) == ""
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")} == files


@pytest.mark.long
def test_an_unknown_cell_is_one_sentence(data, tmp_path):
    command = [sys.executable, str(PAPERS / "tsvgp.py"), "--data", str(data), "--out", str(tmp_path), "--cells", "none"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no cell has a name like none; choose from mnist-q-svgp" in done.stderr
