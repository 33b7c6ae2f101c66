"""The tests that run on the device."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from accelerator_parts import outcomes as outcomes_file
from accelerator_parts.part import Figures, Part, Plan, Settings

ROOT = Path(__file__).parents[2]
SEARCHED = Path(__file__).parents[1]
"""The folder from which pytest imports `PLUGIN`."""
FOLDERS = [
    "reference",
    "linalg",
    "backend",
    "bounds",
    "posteriors",
    "updates",
    "training",
    "kernels",
    "likelihoods",
    "dual",
    "cagp",
    "solve",
    "processes",
    "models",
    "priors",
    "properties",
    "faults",
]
"""Folders of tests/, the most informative first."""
WHOLE, TRIANGLES = "all", "triangles"
PATHS = {WHOLE: FOLDERS, TRIANGLES: ["linalg/test_linalg_triangular.py"]}
"""The files of each set of tests; in small sizes, only the second set is run."""
PROCESSES = 8
"""Maximum number of processes for the tests of a library; all share the device."""
PATIENT = ["-W", "default::DeprecationWarning", "-W", "default::FutureWarning"]
"""Options with which what other versions of the libraries deprecate does not fail a test."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
SHOWN = 5
"""Maximum number of failures that are listed, and of characters in their messages."""
LONGEST = 120
RESERVE = 3.0
"""Seconds of an entry's time that are left when pytest is killed."""
PLUGIN = "accelerator_parts.outcomes"


def entries(plan: Plan) -> list[Settings]:
    """List an entry for each library."""
    return [{"library": library, "tests": TRIANGLES if plan.small else WHOLE} for library in plan.libraries]


def chosen(library: str, device: str) -> str:
    """Expression for pytest's -k that selects tests by the library and device in their parameters.

    It does not match names of files and functions, because some tests replace CuPy with a stand-in.
    """
    place = f"{library}-cuda" if device != "cpu" and library != "cupy" else library
    return f"[{place} or -{place}"


def measured(*, library: str, tests: str, device: str, small: bool, seconds: float) -> Figures:
    """Run tests within the time limit; count the outcomes, and list the first failures."""
    if importlib.util.find_spec("pytest") is None:
        return {"absent": "pytest is not installed"}
    paths = [str(ROOT / "tests" / name) for name in PATHS[tests]]
    options = ["-q", "-p", "no:cacheprovider", "-p", PLUGIN, "-m", "not long", "-k", chosen(library, device), *PATIENT]
    processes = min(PROCESSES, os.cpu_count() or 1)
    if importlib.util.find_spec("xdist") is not None and processes > 1:
        options += ["-p", "xdist", "-n", str(processes)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outcomes"
        ended = _run_pytest([*options, "--continue-on-collection-errors", *paths], file, seconds - RESERVE)
        if not file.exists():
            if ended is None:
                raise TimeoutError
            raise ValueError(f"pytest ended without an outcome: {ended.strip().rpartition(chr(10))[2]}")
        figures = counts([json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()])
    return figures if ended is not None else figures | {"unfinished": f"stopped after {seconds - RESERVE:.0f} s"}


def _run_pytest(options: list[str], outcomes: Path, seconds: float) -> str | None:
    """Run pytest; return its output, or None if it was killed at the time limit.

    The option -P makes Python import the installed package instead of the current folder.
    """
    command = [sys.executable, "-P", "-m", "pytest", *options]
    search = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(SEARCHED)])
    own = {"PYTHONPATH": search.strip(os.pathsep), outcomes_file.FILE: str(outcomes)}
    own["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # plug-ins of other packages change what the tests see
    how: dict[str, Any] = {"cwd": ROOT, "env": os.environ | ONE_THREAD | own, "text": True, "start_new_session": True}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **how)
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the processes that it started
        process.communicate()
        return None


def counts(outcomes: list[dict[str, str]]) -> Figures:
    """Count the outcomes of tests, and list the failures."""
    failed = {one["name"]: one for one in outcomes if one["outcome"] == "failed"}
    figures: Figures = {
        name: sum(one["outcome"] == name and one["name"] not in failed for one in outcomes)
        for name in ("passed", "skipped")
    }
    figures["failed"] = len(failed)
    if failed:
        figures["first failures"] = "; ".join(_describe(one) for one in list(failed.values())[:SHOWN])
        figures["failures"] = {name: one["text"] for name, one in failed.items()}
    return figures


def _describe(outcome: dict[str, str]) -> str:
    message = outcome["message"].strip().partition("\n")[0].replace("|", "/")
    return f"{outcome['name'].rpartition('::')[2]} ({message[:LONGEST]})"


NOTE = """The tests with the library and the device as parameters, in float64 and float32. *unfinished* marks sets of
tests that exceeded the time limit; their counts include the tests that had run."""
PART = Part(
    "Tests on the device", NOTE, entries, measured, seconds=130.0, guess=90.0, small_guess=15.0, jax=1.0, processes=2
)
