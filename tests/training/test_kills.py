"""Nothing is lost: a training killed at random moments again and again ends with the bits of one never stopped."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="needs fork and SIGKILL")]

PROGRAM = Path(__file__).with_name("killed_runs.py")


def killed(library, kills, folder):
    """What the program says, for kills at other moments each time that the test runs."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed: not executed")
    seed = int.from_bytes(os.urandom(4), "little")
    arguments = [library, folder / "run.safetensors", kills, seed]
    done = subprocess.run([sys.executable, PROGRAM, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    leftovers = [file.name for file in folder.iterdir()]
    return json.loads(done.stdout) | {"seed": seed, "files": leftovers}


def assert_nothing_was_lost(found, kills):
    assert found["same"], found
    assert found["files"] == ["run.safetensors"], found
    assert len(found["steps"]) == kills, found
    assert max(found["steps"]) > 0, found


def test_a_training_killed_five_times_ends_with_the_same_bits(tmp_path):
    assert_nothing_was_lost(killed("numpy", 5, tmp_path), 5)


@pytest.mark.long
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_training_killed_twenty_times_ends_with_the_same_bits(library, tmp_path):
    assert_nothing_was_lost(killed(library, 20, tmp_path), 20)
