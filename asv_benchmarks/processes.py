"""Processes that measure one cell of a benchmark: how they are run, limited and ended, and what they report."""

import math
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
HERE = Path(__file__).parent
POLL = 0.2
"""Seconds between two looks at the event that ends a process."""
WALL_FACTOR = 4
"""The limit of the elapsed time, as a multiple of the limit of the CPU time."""


class CellError(Exception):
    """The error of a cell, in one line."""


class LimitError(CellError):
    """The process of a cell has used the CPU time that it may use."""


class StoppedError(CellError):
    """The run was stopped, and the process of a cell with it."""


def run_process(
    command: list[str],
    folder: Path,
    *,
    checkout: Path | None = None,
    limit: int | None = None,
    stopping: threading.Event | None = None,
) -> None:
    """Run the process of a cell in an empty working directory, with one thread, until it ends.

    Its standard input stays open until this process ends (see `end_with_parent`).

    Parameters
    ----------
    command
        The program and its arguments.
    folder
        The working directory, in which ``said.txt`` receives what the process writes to standard error.
    checkout
        The checkout from which agp is imported; by default the one that is installed.
    limit
        The CPU seconds to which the process limits itself (see `limit_cpu`).
    stopping
        An event that ends the process.

    Raises
    ------
    LimitError
        If the process exceeds the limit.
    StoppedError
        If the event is set before the process ends.
    CellError
        If the process fails in another way.
    """
    paths = [str(HERE), *([str(checkout), str(checkout / "backends")] if checkout else [])]
    environment = os.environ | ONE_THREAD | {"PYTHONPATH": os.pathsep.join(paths)}
    said = folder / "said.txt"
    with said.open("w") as words:
        streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": words}
        # Python imports modules in the working directory first
        # in a session of its own, Ctrl-C does not reach it, and its result is not taken for a failure
        process = subprocess.Popen(command, env=environment, cwd=folder, start_new_session=True, **streams)
        try:
            status = _wait(process, None if limit is None else WALL_FACTOR * limit, stopping or threading.Event())
        finally:
            process.kill()
            process.wait()
            process.stdin.close()  # type: ignore[union-attr]
    if status == -signal.SIGXCPU:
        raise LimitError(f"stopped after {limit} s of CPU time")
    if status:
        raise CellError(reason(status, said.read_text(errors="replace")))


def _wait(process: subprocess.Popen, seconds: int | None, stopping: threading.Event) -> int:
    """Wait for the exit status of a process, for so many seconds at most."""
    end = math.inf if seconds is None else time.monotonic() + seconds
    while True:
        try:
            return process.wait(POLL)
        except subprocess.TimeoutExpired:
            if stopping.is_set():
                raise StoppedError("stopped") from None
            if time.monotonic() > end:
                raise CellError(f"stopped after {seconds} s of elapsed time") from None


def reason(status: int, said: str) -> str:
    """Describe in one line why a process ended."""
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    return next(reversed(said.strip().splitlines()), f"ended with code {status}")


def end_with_parent() -> None:
    """Let this process exit when its parent ends, which closes standard input."""

    def wait() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def limit_cpu(seconds: int) -> None:
    """Let the system end this process when it has used so many seconds of CPU time."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def versions(libraries: Iterable[str]) -> dict[str, str]:
    """Versions of Python and of those libraries that are imported."""
    found = {name: str(sys.modules[name].__version__) for name in libraries if name in sys.modules}
    return {"python": ".".join(map(str, sys.version_info[:3])), **found}


def peak_memory() -> float:
    """Peak resident memory of this process in MiB."""
    status = Path("/proc/self/status")
    if status.exists():  # Linux: `resource` would include the memory of the parent process
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return float(line.split()[1]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def check_agp(checkout: Path) -> None:
    """Raise ImportError unless agp is imported from the checkout."""
    import agp

    if not Path(str(agp.__file__)).is_relative_to(checkout):
        raise ImportError(f"agp is imported from {Path(str(agp.__file__)).parents[1]}, not from {checkout}")
