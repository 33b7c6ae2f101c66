"""A cluster of processes on this machine: same numbers with any number of workers, and after the death of one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("distributed")
SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "lazy_rows.py"


@pytest.mark.long
def test_any_number_of_workers_and_one_that_dies_give_the_same_numbers():
    small = ["--rows", "12000", "--chunk", "2000", "--num-inducing", "16", "--workers", "1", "2", "--kills", "1"]
    done = subprocess.run([sys.executable, str(SCRIPT), *small], capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stderr
    gaps = [float(x) for x in re.findall(r"difference (\S+?),?\s", done.stdout)]
    assert len(gaps) == 4, done.stdout
    assert max(gaps) <= 1e-10
    assert done.stdout.count("killed after") == 2


@pytest.mark.long
def test_a_lost_scheduler_is_said_and_the_checkpoint_goes_on(tmp_path):
    script = Path(__file__).with_name("lost_scheduler.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "run.safetensors")], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "lost: the connection to the scheduler was lost" in done.stdout, done.stdout
    (gap,) = re.findall(r"20 steps, difference (\S+)", done.stdout)
    assert float(gap) <= 1e-10
