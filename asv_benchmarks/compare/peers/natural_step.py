"""Compare steps of q(u): agp's site steps and natural gradients, with NumPy, and GPflow's natural gradients.

``python asv_benchmarks/compare/peers/natural_step.py --peer-python PATH`` prints the median times of both sides and
their ratios, for Gaussian and probit likelihoods. The steps alternate. Each side has one thread and uses float64.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
from contract import Problem
from exchange import Worker

OURS = ("datum", "natural", "kernel", "white", "inverse-free", "q-svgp")
PEER = "q-svgp"
AGREEMENT = 1e-4
"""Maximum relative difference of the bounds after some steps; the libraries use different quadrature nodes."""
BATCHES = 20
"""Number of minibatches, which the steps use in rotation."""


def problem(M: int, B: int, D: int, rate: float, *, binary: bool) -> Problem:
    """Create minibatches of a noisy smooth function or of its sign, and M inducing inputs distributed like the data."""
    rng = np.random.default_rng(0)
    rows = BATCHES * B
    X, Z = rng.standard_normal((rows, D)), rng.standard_normal((M, D))
    y = np.sin(X[:, 0]) * X[:, 1] + 0.1 * rng.standard_normal(rows)
    y = 1.0 * (y > 0.0) if binary else y
    likelihood = "bernoulli" if binary else "gaussian"
    return Problem(
        X=X, y=y, Z=Z, lengthscale=np.linspace(1.0, 3.0, D), variance=1.0, noise=0.1, likelihood=likelihood, rows=rows,
        rate=rate,
    )  # fmt: skip


def compare(ours: Worker, peer: Worker, rounds: int, steps: int) -> None:
    """Check that the bounds agree after some steps, and print one line for each kind of step."""
    expected = peer.ask("bound", 1)[0][0]
    for name in OURS[1:]:  # the first kind changes only the sites of the minibatch, so its bound differs
        found = ours.ask(f"bound:{name}", 1)[0][0]
        if abs(found - expected) > AGREEMENT * abs(expected):
            sys.exit(f"the bounds differ after the same steps: {name} has {found:.6f}, gpflow has {expected:.6f}.")
    print(f"bound after {BATCHES} steps: gpflow {expected:.4f}, agp's within {AGREEMENT:g}")
    seconds: dict[str, list[float]] = {name: [] for name in (*OURS, "gpflow")}
    for worker, name in ((peer, PEER), *((ours, name) for name in OURS)):
        worker.ask(name, 5)
    for _ in range(rounds):  # alternating, so that other load slows all sides
        for name in OURS:
            seconds[name] += ours.ask(name, steps)[1]
        seconds["gpflow"] += peer.ask(PEER, steps)[1]
    medians = {name: 1e3 * statistics.median(times) for name, times in seconds.items()}
    for name, ms in medians.items():
        print(f"{name:14} {ms:7.2f} ms   gpflow/this {medians['gpflow'] / ms:.2f}")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", required=True, metavar="PATH", help="interpreter with gpflow")
    parser.add_argument("--num-inducing", type=int, default=100, metavar="M")
    parser.add_argument("--batch-size", type=int, default=200, metavar="B")
    parser.add_argument("--columns", type=int, default=8, metavar="D")
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20, help="number of steps of each kind per round")
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
