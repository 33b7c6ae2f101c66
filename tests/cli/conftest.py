"""Fixtures: a small problem in a file, and how a comparison of wrong arguments ends.

Comparisons run their rows in the process of the tests, except where a test starts the whole command as a process.
"""

import numpy as np
import pytest
from in_process import run_row

from agp.cli import main


@pytest.fixture(autouse=True)
def rows_in_process(monkeypatch):
    """Run rows of comparisons here."""
    monkeypatch.setattr("agp.cli._compare._run_task", run_row)


@pytest.fixture
def regression(tmp_path):
    """A smooth function of one of two columns, with noise: 48 rows to train on, 12 to test."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    np.savez(tmp_path / "plane.npz", X=X, y=np.sin(X[:, 0]) + 0.1 * rng.normal(size=60), test_mask=np.arange(60) < 12)
    return tmp_path / "plane.npz"


@pytest.fixture
def status_of():
    """Run a command; its exit status."""

    def run(*arguments):
        try:
            return main([str(argument) for argument in arguments])
        except SystemExit as ended:
            return ended.code

    return run


@pytest.fixture
def not_compared(tmp_path, capsys, status_of):
    """The one line with which `agp compare` refuses its arguments; nothing is written."""

    def run(data, *arguments):
        out = tmp_path / "out"
        assert status_of("compare", "--data", data, "--out", out, *arguments) == 2
        said = capsys.readouterr().err
        assert len(said.strip().splitlines()) == 1
        assert not out.exists()
        return said

    return run
