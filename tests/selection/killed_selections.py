"""A fit with a checkpoint, killed again and again at random moments: a program for `test_selection_checkpoints.py`.

Arguments: the way, the checkpoint, how many kills, a seed of their moments. Prints as JSON how many pieces the
checkpoint held after each kill, and whether the fit then ended with the bits of one never stopped.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from tables import WAYS, bits, shrink, table

from agp import io
from agp.selection import RegressionResult, fit_regression


def run(way: str, path: Path | None = None) -> RegressionResult:
    """The fit, from where the checkpoint stands."""
    rows, method = WAYS[way]
    return fit_regression(*table(rows), method=method, checkpoint=path)


def killed_after(seconds: float, way: str, path: Path) -> bool:
    """Whether the fit, in a process of its own, was killed before it ended."""
    child = os.fork()
    if child == 0:
        run(way, path)
        os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def main(way: str, path: Path, kills: int, seed: int) -> None:
    shrink(setattr)
    run(way)
    began = time.perf_counter()
    expected = bits(run(way))
    longest = time.perf_counter() - began
    rng, held = np.random.default_rng(seed), []
    for _ in range(kills):
        killed_after(rng.uniform(0.0, 3.0 * longest / kills), way, path)
        held.append(len(io.load_checkpoint(path)[0]) - 1 if path.exists() else 0)
    sys.stdout.write(json.dumps({"pieces": held, "same": bits(run(way, path)) == expected}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
