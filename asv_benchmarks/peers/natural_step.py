"""A step of q(u) alone: agp's site steps and natural gradients (NumPy) beside GPflow's natural gradients, in turn.

``python asv_benchmarks/peers/natural_step.py --peer-python PATH`` prints the medians of both sides and ratios, for
Gaussian noise and a probit, each side with one thread, in float64.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
from exchange import Problem, Worker

OURS = ("datum", "natural", "kernel", "white", "inverse-free", "q-svgp")
PEER = "q-svgp"
AGREEMENT = 1e-4
"""How far the bounds after a few steps may differ, relative; likelihoods are integrated with other nodes."""
BATCHES = 20
"""Minibatches that the steps take in turn."""


def problem(M: int, B: int, D: int, rate: float, *, binary: bool) -> Problem:
    """Seeded minibatches of a smooth function with noise or of its sign, and M inducing inputs drawn like the data."""
    rng = np.random.default_rng(0)
    rows = BATCHES * B
    X, Z = rng.standard_normal((rows, D)), rng.standard_normal((M, D))
    y = np.sin(X[:, 0]) * X[:, 1] + 0.1 * rng.standard_normal(rows)
    y = 1.0 * (y > 0.0) if binary else y
    return Problem(X, y, Z, np.linspace(1.0, 3.0, D), 1.0, 0.1, 1e-6, rows=rows, rate=rate)


def compare(ours: Worker, peer: Worker, rounds: int, steps: int) -> None:
    """Print one line for each kind of step, once the bounds after some steps agree."""
    expected = peer.ask("bound", 1)[0][0]
    for name in OURS[1:]:  # a step on the sites of a minibatch alone is another one
        found = ours.ask(f"bound:{name}", 1)[0][0]
        if abs(found - expected) > AGREEMENT * abs(expected):
            sys.exit(f"the bounds differ after the same steps: {name} {found:.6f}, gpflow {expected:.6f}.")
    print(f"bound after {BATCHES} steps: gpflow {expected:.4f}, agp's within {AGREEMENT:g}")
    seconds: dict[str, list[float]] = {name: [] for name in (*OURS, "gpflow")}
    for worker, name in ((peer, PEER), *((ours, name) for name in OURS)):
        worker.ask(name, 5)
    for _ in range(rounds):  # in turn, so that whatever else the machine does slows all of them
        for name in OURS:
            seconds[name] += ours.ask(name, steps)[1]
        seconds["gpflow"] += peer.ask(PEER, steps)[1]
    medians = {name: 1e3 * statistics.median(times) for name, times in seconds.items()}
    for name, ms in medians.items():
        print(f"{name:14} {ms:7.2f} ms   gpflow/this {medians['gpflow'] / ms:.2f}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", required=True, metavar="PATH", help="interpreter that has gpflow")
    parser.add_argument("--num-inducing", type=int, default=100, metavar="M")
    parser.add_argument("--batch-size", type=int, default=200, metavar="B")
    parser.add_argument("--columns", type=int, default=8, metavar="D")
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20, help="steps of each kind in a round")
    a = parser.parse_args()
    for binary in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "problem.npz"
            problem(a.num_inducing, a.batch_size, a.columns, a.rate, binary=binary).write(path)
            with (
                Worker(sys.executable, "agp_natural.py", path) as ours,
                Worker(a.peer_python, "gpflow_natural.py", path) as peer,
            ):
                versions = " ".join(f"{k} {v}" for k, v in (ours.versions | peer.versions).items())
                print(f"{'Bernoulli, probit' if binary else 'Gaussian'}: {versions}")
                compare(ours, peer, a.rounds, a.steps)


if __name__ == "__main__":
    main()
