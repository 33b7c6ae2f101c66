"""A training with a checkpoint, killed again and again at random moments: a program for `test_kills.py`.

Arguments: the array library, the checkpoint, how many kills, a seed of their moments. Prints as JSON the steps that the
checkpoint held after each kill, and whether none was lost and every run that came to its end has the bits of one never
stopped.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from agp import SVGP, io, to_backend, to_numpy, train
from agp.training import Result
from agp.tree import leaves

STEPS = 200


def run(library: str, path: Path | None = None) -> Result:
    """The training, from where the checkpoint stands."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = np.sin(2.0 * X[:, :1]) + 0.1 * rng.normal(size=(60, 1))
    X, y = (to_backend(x, library) for x in (X, y))
    model = SVGP.from_data(X, y, num_inducing=6)
    return train(model, X, y, steps=STEPS, batch_size=20, checkpoint=path, checkpoint_every=3)


def bits(result: Result) -> tuple[dict[str, bytes], dict[str, list[float]]]:
    """Of the leaves, and the trace."""
    return {name: to_numpy(x).tobytes() for name, x in leaves(result.model).items()}, result.trace


def killed_after(seconds: float, library: str, path: Path) -> bool:
    """Whether the training, in a process of its own, was killed before it ended."""
    child = os.fork()
    if child == 0:
        run(library, path)
        os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def main(library: str, path: Path, kills: int, seed: int) -> None:
    run(library)
    began = time.perf_counter()
    expected = bits(run(library))
    longest = 4.0 * (time.perf_counter() - began) / kills  # each begins with some work before its first step
    rng, held, same = np.random.default_rng(seed), [0], True
    while len(held) <= kills:
        if killed_after(rng.uniform(0.0, longest), library, path):
            held.append(io.load_checkpoint(path)[1]["progress"]["step"] if path.exists() else 0)
            same = same and held[-1] >= held[-2]
        else:  # it came to its end before: it is compared, and the next one begins
            same = same and bits(run(library, path)) == expected
            path.unlink()
            held[-1] = 0
    same = same and bits(run(library, path)) == expected
    sys.stdout.write(json.dumps({"steps": held[1:], "same": same}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
