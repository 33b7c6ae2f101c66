"""Rows of a comparison in processes of their own."""

import json
import os
import subprocess
import sys
from typing import Any

from agp.cli._plan import Settings, Task
from agp.cli._report import Report

__all__ = ["spawn", "threads_of"]


def threads_of(count: int) -> dict[str, str]:
    """What tells the libraries of linear algebra how many threads they have."""
    return dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(count))


def spawn(task: Task, settings: Settings, report: Report, threads: int) -> str | None:
    """Run a row in its own process; None if all went well, else what it said last."""
    reference = None if task.is_reference else report.reference(task.method)
    if not task.is_reference and reference is None:
        return f"the reference row of {task.method} failed"
    request = {"task": vars(task), "settings": settings.json(), "folder": str(report.folder), "reference": reference}
    command = [sys.executable, "-m", "agp.cli._row"]
    environment = os.environ | threads_of(threads)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdin is not None
        assert child.stderr is not None
        child.stdin.write(json.dumps(request))
        child.stdin.close()
        said = _echo(child.stderr)
        if child.wait() == 130:
            raise KeyboardInterrupt
    return None if child.returncode == 0 else said or f"exit status {child.returncode}"


def _echo(stream: Any) -> str:
    """Show what a row writes (its progress bar) as it comes; the last whole line is returned."""
    line, last = "", ""
    while piece := stream.read(1):
        sys.stderr.write(piece)
        line += piece
        if piece in "\r\n":
            sys.stderr.flush()
            last, line = line.strip() or last, ""
    return last.removeprefix("agp: ")
