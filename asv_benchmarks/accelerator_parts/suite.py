"""The tests that run on the device."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

from accelerator_parts.part import Figures, Part, Plan, Settings

ROOT = Path(__file__).parents[2]
SMALL = {"triangles": ["linalg/test_linalg_triangular.py"]}
GROUPS = {
    "linalg, backend": ["linalg", "backend"],
    "references": ["reference"],
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
"""Files and folders of tests/, the ones on which others build first."""
CORES = 8
"""With so many cores the tests run in four processes."""


def entries(plan: Plan) -> list[Settings]:
    """Groups of tests."""
    return [{"tests": group} for group in (SMALL if plan.small else GROUPS)]


def chosen(device: str) -> str:
    """Which tests of a group: on an accelerator those whose names say that they run there."""
    return "numpy" if device == "cpu" else "cupy or cuda or gpu"


def measured(*, tests: str, device: str, small: bool, seconds: float) -> Figures:
    """How many tests of a group pass, fail and are skipped, and the names of the first failures."""
    if importlib.util.find_spec("pytest") is None:
        msg = "pytest is not installed: install the extra test."
        raise ValueError(msg)
    many = importlib.util.find_spec("xdist") is not None and (os.cpu_count() or 1) >= CORES
    paths = [str(ROOT / "tests" / name) for name in (SMALL if small else GROUPS)[tests]]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ["-q", "-k", chosen(device), f"--junit-xml={report}", *(["-n", "4"] if many else [])]
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, *paths]
        try:
            # ends before this process is ended, which would leave it running
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=0.95 * seconds)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError from error
        if not report.exists():
            last = (done.stderr or done.stdout).strip().rpartition("\n")[2]
            msg = f"pytest ended with code {done.returncode}: {last}"
            raise ValueError(msg)
        return counts(ET.parse(report).getroot())


def counts(report: ET.Element) -> Figures:
    """What pytest's report says."""
    cases = list(report.iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    figures: Figures = {
        "passed": len(cases) - len(failed) - len(skipped),
        "failed": len(failed),
        "skipped": len(skipped),
    }
    if failed:
        figures["first failures"] = ", ".join(str(case.get("name")) for case in failed[:3])
    return figures


NOTE = "The tests of each group whose names say that they run on the device, in float64 and float32."
PART = Part("Tests on the device", NOTE, entries, measured, seconds=420.0)
