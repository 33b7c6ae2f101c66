"""The tests that run on the device."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

from accelerator_parts.part import Figures, Part, Plan, Settings

ROOT = Path(__file__).parents[2]
GROUPS = {
    "references": ["reference"],
    "linalg, backend": ["linalg", "backend"],
    "kernels, likelihoods": ["kernels", "likelihoods"],
    "posteriors, bounds": ["posteriors", "bounds"],
    "updates, training": ["updates", "training"],
    "dual": ["dual"],
    "CaGP": ["cagp"],
    "SOLVE-GP": ["solve"],
    "processes, models": ["processes", "models", "priors"],
    "properties": ["properties"],
    "faults": ["faults"],
}
"""Files and folders of tests/, the most informative first."""
FIRST = ("references", "linalg, backend")
"""The groups that run first: stored values of every method, and the operations that all methods use."""
FOLDERS = [name for names in GROUPS.values() for name in names]
SLOW, COLLECTION = "slow ones", "collection of all"
SMALL = {
    COLLECTION: FOLDERS,
    "triangles": ["linalg/test_linalg_triangular.py"],
}
"""In small sizes, all files are collected, and only this file is run."""
CORES = 8
"""Number of cores from which the tests run in four processes."""
SHOWN = 5
"""Maximum number of failures that are listed, and of characters in their messages."""
LONGEST = 120
RUN, END = 0.75, 0.2
"""Fractions of an entry's time for running pytest, and for its report after an interrupt."""


def entries(plan: Plan) -> list[Settings]:
    """List entries for each library and group of tests."""
    return [
        {"library": library, "tests": group}
        for library in plan.libraries
        for group in (SMALL if plan.small else [*GROUPS, SLOW])
    ]


def chosen(library: str, device: str) -> str:
    """Expression for pytest's -k that selects tests by the library and device in their parameters.

    It does not match names of files and functions, because some tests replace CuPy with a stand-in.
    """
    place = f"{library}-cuda" if device != "cpu" and library != "cupy" else library
    return f"[{place} or -{place}"


def measured(*, library: str, tests: str, device: str, small: bool, seconds: float) -> Figures:
    """Run a group of tests within the time limit; count the outcomes, and list the first failures."""
    if importlib.util.find_spec("pytest") is None:
        return {"absent": "pytest is not installed"}
    paths = [str(ROOT / "tests" / name) for name in (SMALL if small else GROUPS | {SLOW: FOLDERS})[tests]]
    mark = "slow" if tests == SLOW else "not slow"
    options = ["-q", "-p", "no:cacheprovider", "-m", mark, "-k", chosen(library, device)]
    if tests == COLLECTION:
        return _collected([*options, "--collect-only", *paths], seconds)
    if importlib.util.find_spec("xdist") is not None and (os.cpu_count() or 1) >= CORES:
        options += ["-n", "4"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        code, printed = _pytest([*options, "--continue-on-collection-errors", f"--junit-xml={report}", *paths], seconds)
        if code is None and not report.exists():  # it was still collecting tests
            raise TimeoutError
        if not report.exists():
            raise ValueError(f"pytest ended with code {code}: {printed.strip().rpartition(chr(10))[2]}")
        figures = counts(ET.parse(report).getroot())
    return figures if code is not None else figures | {"unfinished": f"stopped after {RUN * seconds:.0f} s"}


def _pytest(options: list[str], seconds: float) -> tuple[int | None, str]:
    """Run pytest; return its exit code, or None if it was stopped, and its output.

    Before this process reaches its time limit, it interrupts pytest, which then reports the tests that have run.
    Otherwise, pytest would keep running after the end of this process. The option -P makes Python import the installed
    package instead of the current folder.
    """
    command = [sys.executable, "-P", "-m", "pytest", *options]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        printed = process.communicate(timeout=RUN * seconds)[0]
        return process.returncode, printed
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        return None, process.communicate(timeout=END * seconds)[0]
    except subprocess.TimeoutExpired as error:
        process.kill()
        process.communicate()
        raise TimeoutError from error


def _collected(options: list[str], seconds: float) -> Figures:
    """Count the tests; raise a ValueError that names the first files that cannot be imported."""
    code, printed = _pytest(options, seconds)
    if code is None:
        raise TimeoutError
    found = re.search(r"(\d+)(?:/\d+)? tests? collected", printed)
    wrong = [line for line in printed.splitlines() if line.startswith(("ERROR", "E  "))]
    if code or found is None or wrong:
        raise ValueError(
            f"pytest ended with code {code}: {'; '.join(wrong[:SHOWN]) or printed.strip().rpartition(chr(10))[2]}"
        )
    return {"collected": int(found[1])}


def counts(report: ET.Element) -> Figures:
    """Count the results in pytest's report; a case without a name was interrupted."""
    cases = [case for case in report.iter("testcase") if case.get("name")]
    troubles = [case.find("failure") if case.find("failure") is not None else case.find("error") for case in cases]
    failed = [(case, trouble) for case, trouble in zip(cases, troubles, strict=True) if trouble is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    figures: Figures = {
        "passed": len(cases) - len(failed) - len(skipped),
        "failed": len(failed),
        "skipped": len(skipped),
    }
    if failed:
        figures["first failures"] = "; ".join(_said(case, trouble) for case, trouble in failed[:SHOWN])
    return figures


def _said(case: ET.Element, trouble: ET.Element) -> str:
    first = str(trouble.get("message") or "").strip().partition("\n")[0].replace("|", "/")
    return f"{case.get('name')} ({first[:LONGEST]})" if first else str(case.get("name"))


NOTE = """The tests of each group with the library and the device as parameters, in float64 and float32. Tests that are
marked as slow form a separate group. *unfinished* marks groups that exceeded the time limit; their counts include the
tests that had run."""
PART = Part("Tests on the device", NOTE, entries, measured, seconds=240.0, guess=60.0, small_guess=15.0, jax=3.0)
