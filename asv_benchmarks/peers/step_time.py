"""One W-SVGP training step: agp (NumPy, closed form) beside GPyTorch, in turn, one thread each, float64.

``python asv_benchmarks/peers/step_time.py --peer-python PATH`` prints the medians of both sides and their ratio.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
from exchange import Problem, Worker

WORK = {"gradient": "bound and gradient", "step": "the same and Adam"}
AGREEMENT = 1e-4
"""How far the bounds may differ; the peer adds the jitter to the variances of the data, too."""


def problem(M: int, B: int, D: int, jitter: float) -> Problem:
    """A seeded batch of a smooth function with noise, and M inducing inputs drawn like the data."""
    rng = np.random.default_rng(0)
    X, Z = rng.standard_normal((B, D)), rng.standard_normal((M, D))
    y = np.sin(X[:, 0]) * X[:, 1] + 0.1 * rng.standard_normal(B)
    return Problem(X, y, Z, np.linspace(1.0, 3.0, D), 1.0, 0.1, jitter, rows=100 * B, rate=1e-3)


def measure(ours: Worker, peer: Worker, name: str, rounds: int, steps: int) -> tuple[list[float], list[float]]:
    """Seconds of every step of both sides, which take turns."""
    for worker in (ours, peer):
        worker.ask(name, 5)
    times: tuple[list[float], list[float]] = [], []
    for _ in range(rounds):
        for worker, seconds in zip((ours, peer), times, strict=True):
            seconds += worker.ask(name, steps)[1]
    return times


def compare(ours: Worker, peer: Worker, rounds: int, steps: int) -> None:
    """Print one line for each kind of work."""
    bounds = [worker.ask("gradient", 1)[0][0] for worker in (ours, peer)]
    print(f"{' '.join(f'{k} {v}' for k, v in (ours.versions | peer.versions).items())}")
    print(f"bound: agp {bounds[0]:.6f}, gpytorch {bounds[1]:.6f}")
    if abs(bounds[0] - bounds[1]) > AGREEMENT * abs(bounds[1]):
        sys.exit("the bounds differ: the two sides do not compute the same model.")
    for name, label in WORK.items():
        a, b = (1e3 * statistics.median(seconds) for seconds in measure(ours, peer, name, rounds, steps))
        print(f"{label:18}  agp {a:7.2f} ms   gpytorch {b:7.2f} ms   agp/gpytorch {a / b:.3f}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", required=True, metavar="PATH", help="interpreter that has gpytorch")
    parser.add_argument("--num-inducing", type=int, default=512, metavar="M")
    parser.add_argument("--batch-size", type=int, default=256, metavar="B")
    parser.add_argument("--columns", type=int, default=8, metavar="D")
    parser.add_argument("--jitter", type=float, default=1e-6)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10, help="steps of each side in a round")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.npz"
        problem(a.num_inducing, a.batch_size, a.columns, a.jitter).write(path)
        with (
            Worker(sys.executable, "agp_step.py", path) as ours,
            Worker(a.peer_python, "gpytorch_step.py", path) as peer,
        ):
            compare(ours, peer, a.rounds, a.steps)


if __name__ == "__main__":
    main()
