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
"""Files and folders of tests/, the most telling first."""
FIRST = ("references", "linalg, backend")
"""The groups that say most in the least time: stored values of every method, and what all else stands on."""
FOLDERS = [name for names in GROUPS.values() for name in names]
SLOW, COLLECTION = "slow ones", "collection of all"
SMALL = {
    COLLECTION: FOLDERS,
    "triangles": ["linalg/test_linalg_triangular.py"],
}
"""In small every file is collected, and one is run."""
CORES = 8
"""With so many cores the tests run in four processes."""
SHOWN = 5
"""How many failures are told, each in so many characters of its message:"""
LONGEST = 120
RUN, END = 0.75, 0.2
"""The shares of an entry's time in which pytest runs, and in which it ends once it is interrupted."""


def entries(plan: Plan) -> list[Settings]:
    """Library x groups of tests."""
    return [
        {"library": library, "tests": group}
        for library in plan.libraries
        for group in (SMALL if plan.small else [*GROUPS, SLOW])
    ]


def chosen(library: str, device: str) -> str:
    """The tests of a group whose parameters name the library, and the device where it is not the CPU.

    Names of files and functions do not count: those with a stand-in for CuPy say nothing of the card.
    """
    place = f"{library}-cuda" if device != "cpu" and library != "cupy" else library
    return f"[{place} or -{place}"


def measured(*, library: str, tests: str, device: str, small: bool, seconds: float) -> Figures:
    """How many tests of a group pass, fail and are skipped, and the first failures; in time for the report."""
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
        if code is None and not report.exists():  # it was still collecting
            raise TimeoutError
        if not report.exists():
            msg = f"pytest ended with code {code}: {printed.strip().rpartition(chr(10))[2]}"
            raise ValueError(msg)
        figures = counts(ET.parse(report).getroot())
    return figures if code is not None else figures | {"unfinished": f"stopped after {RUN * seconds:.0f} s"}


def _pytest(options: list[str], seconds: float) -> tuple[int | None, str]:
    """The exit code, None where pytest was stopped, and what it printed.

    It is stopped by an interrupt, at which it reports what is done, before this process is ended, which would leave it
    running. -P: the package is the one that is installed, and not the folder in which pytest is started.
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
    """How many tests there are; ValueError with the first file that cannot be imported."""
    code, printed = _pytest(options, seconds)
    if code is None:
        raise TimeoutError
    found = re.search(r"(\d+)(?:/\d+)? tests? collected", printed)
    wrong = [line for line in printed.splitlines() if line.startswith(("ERROR", "E  "))]
    if code or found is None or wrong:
        msg = f"pytest ended with code {code}: {'; '.join(wrong[:SHOWN]) or printed.strip().rpartition(chr(10))[2]}"
        raise ValueError(msg)
    return {"collected": int(found[1])}


def counts(report: ET.Element) -> Figures:
    """What pytest's report says; a case without a name is the one that was interrupted."""
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


NOTE = """The tests of each group that have the library and the device among their parameters, in float64 and float32;
those that are marked as slow are a group of their own. *unfinished*: it took too long, and the counts are of what was
run until then."""
PART = Part("Tests on the device", NOTE, entries, measured, seconds=240.0, guess=60.0, small_guess=15.0, jax=3.0)
