"""Plug-in of pytest that writes the outcome of each test to a file as soon as the test has ended.

The file survives if pytest is killed. The environment variable `FILE` names it.
"""

import json
import os
from pathlib import Path
from typing import Any

FILE = "AGP_OUTCOMES"
KEPT = 1500
"""Maximum number of characters of a failure's report that are kept, from its end."""


def pytest_runtest_logreport(report: Any) -> None:
    """Write the outcome of a test, once for each phase that did not pass."""
    if report.when == "call" or report.outcome != "passed":
        _write(report)


def pytest_collectreport(report: Any) -> None:
    """Write the failure of a file that could not be collected."""
    if report.failed:
        _write(report)


def _write(report: Any) -> None:
    path = os.environ.get(FILE)
    if path is None or "PYTEST_XDIST_WORKER" in os.environ:  # workers send their reports to the first process
        return
    outcome = {"name": report.nodeid, "outcome": report.outcome}
    if report.failed:
        crash = report.longrepr.reprcrash if hasattr(report.longrepr, "reprcrash") else None
        text = report.longreprtext
        outcome |= {"message": crash.message if crash else text.strip().rpartition("\n")[2], "text": text[-KEPT:]}
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(outcome) + "\n")
