"""A cluster of processes on this machine: same numbers with any number of workers, and after the death of one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("distributed")
SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "rows_elsewhere.py"


@pytest.mark.slow
def test_any_number_of_workers_and_one_that_dies_give_the_same_numbers():
    small = ["--rows", "12000", "--chunk", "2000", "--num-inducing", "16", "--workers", "1", "2", "--kills", "1"]
    done = subprocess.run([sys.executable, str(SCRIPT), *small], capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stderr
    gaps = [float(x) for x in re.findall(r"difference (\S+?),?\s", done.stdout)]
    assert len(gaps) == 4, done.stdout
    assert max(gaps) <= 1e-10
    assert done.stdout.count("killed after") == 2
