"""Compare the CPU time of agp's W-SVGP step (NumPy, closed-form gradients) with that of other libraries.

``python asv_benchmarks/compare/peers/step_time.py --peer gpytorch=PYTHON gpflow=PYTHON gpjax=PYTHON`` prints the median
times of all libraries and their ratios. The steps alternate, and each library has one thread.
"""

import argparse
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from contract import Problem
from exchange import Worker

WORK = {"gradient": "bound and gradient", "step": "step with Adam"}
AGREEMENT = {"float64": 1e-4, "float32": 1e-3}
"""Maximum difference of the bounds; GPyTorch and GPJax also add jitter to the variances of the data."""


def problem(M: int, B: int, D: int, jitter: float, dtype: str) -> Problem:
    """Create a batch of a noisy smooth function, and M inducing inputs with the data's distribution."""
    rng = np.random.default_rng(0)
    X, Z = rng.standard_normal((B, D)), rng.standard_normal((M, D))
    y = np.sin(X[:, 0]) * X[:, 1] + 0.1 * rng.standard_normal(B)
    X, y, Z, lengthscale = (x.astype(dtype) for x in (X, y, Z, np.linspace(1.0, 3.0, D)))
    return Problem(
        X=X, y=y, Z=Z, lengthscale=lengthscale, variance=1.0, noise=0.1, jitter=jitter, rows=100 * B, rate=1e-3
    )  # fmt: skip


def measure(sides: dict[str, Worker], name: str, rounds: int, steps: int) -> dict[str, float]:
    """Median milliseconds per step for each side; the sides alternate, so that other load slows all of them."""
    for worker in sides.values():
        worker.ask(name, 5)
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, worker in sides.items():
            seconds[side] += worker.ask(name, steps)[1]
    return {side: 1e3 * statistics.median(found) for side, found in seconds.items()}


def compare(sides: dict[str, Worker], dtype: str, rounds: int, steps: int) -> None:
    """Check that the bounds agree, and print one line for each kind of work and library."""
    bounds = {side: worker.ask("gradient", 1)[0][0] for side, worker in sides.items()}
    print("bound: " + ", ".join(f"{side} {bound:.6f}" for side, bound in bounds.items()))
    for side, bound in bounds.items():
        if abs(bounds["agp"] - bound) > AGREEMENT[dtype] * abs(bound):
            sys.exit(f"the bounds differ; {side} must compute the same model.")
    for name, label in WORK.items():
        times = measure(sides, name, rounds, steps)
        ours = times.pop("agp")
        for side, ms in times.items():
            print(f"{label:18}  agp {ours:7.2f} ms   {side} {ms:7.2f} ms   agp/{side} {ours / ms:.3f}", flush=True)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--peer", required=True, nargs="+", metavar="LIBRARY=PYTHON", help="libraries and their interpreters"
    )
    parser.add_argument("--num-inducing", type=int, nargs="+", default=[512], metavar="M")
    parser.add_argument("--batch-size", type=int, default=256, metavar="B")
    parser.add_argument("--columns", type=int, default=8, metavar="D")
    parser.add_argument("--dtype", choices=tuple(AGREEMENT), default="float64")
    parser.add_argument("--jitter", type=float, default=1e-6)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10, help="number of steps of each library per round")
    a = parser.parse_args()
    for M in a.num_inducing:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as open_workers:
            path = Path(folder) / "problem.npz"
            problem(M, a.batch_size, a.columns, a.jitter, a.dtype).write(path)
            pythons = {"agp": sys.executable} | dict(given.split("=", 1) for given in a.peer)
            sides = {
                library: open_workers.enter_context(Worker(python, "step.py", path, library))
                for library, python in pythons.items()
            }
            versions = dict(item for worker in sides.values() for item in worker.versions.items())
            print(f"M {M}, B {a.batch_size}, D {a.columns}, {a.dtype}: " + ", ".join(map(" ".join, versions.items())))
            compare(sides, a.dtype, a.rounds, a.steps)


if __name__ == "__main__":
    main()
