"""Run `agp` commands in the process of the tests, which saves the start of an interpreter."""

import contextlib
import io
import subprocess
import warnings

from agp.cli import main
from agp.cli._row import Row


def run(*arguments):
    """Run a command and return what `subprocess.run` would."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        status = main([*map(str, arguments)])
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


def run_row(task, report, threads):
    """Run one row of a comparison; replaces `agp.cli._compare._run_task`."""
    reference = None if task.is_reference else report.references.get(task.method)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Row(task, report.settings, report.folder).run(reference)
