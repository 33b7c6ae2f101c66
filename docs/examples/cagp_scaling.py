"""Time and memory of the loss of a computation-aware GP with its gradient, against the number of data.

usage: python cagp_scaling.py PICTURE.png        (about five minutes on one core)
"""

import multiprocessing
import resource
import sys
import time

import matplotlib.pyplot as plt
import numpy as np

import agp

ACTIONS, SUPPORT = 128, 4096
SIZES = {"full support": [2500, 5000, 10_000, 20_000], "capped support": [25_000, 50_000, 100_000, 200_000]}


def measure(kind: str, N: int) -> tuple[float, float]:
    """CPU seconds of loss and gradient (closed form, NumPy, float64), and the largest memory in MiB."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(N, 3))
    y = np.sin(6.0 * X[:, :1]) * np.cos(4.0 * X[:, 1:2]) + 0.1 * rng.standard_normal((N, 1))
    support = SUPPORT if kind == "capped support" else None
    model = agp.CaGP.from_data(X, y, kernel=agp.Matern32(), num_actions=ACTIONS, support=support)
    began = time.process_time()
    agp.value_and_gradient(model, X, y)
    return time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def main() -> None:
    """Measure each size in a process of its own, fit exponents, draw."""
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for kind, sizes in SIZES.items():
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            found = [pool.apply(measure, (kind, N)) for N in sizes]
        seconds = [s for s, _ in found]
        exponent = np.polyfit(np.log(sizes), np.log(seconds), 1)[0]
        for N, (s, memory) in zip(sizes, found, strict=True):
            print(f"{kind:15s} N = {N:7,d}  {s:7.1f} s  {memory:5.0f} MiB")
        print(f"{kind:15s} time grows with N to the power {exponent:.2f}")
        axes.loglog(sizes, seconds, "o-", label=f"{kind}, exponent {exponent:.2f}")
    axes.set(xlabel="N", ylabel="CPU seconds of loss and gradient")
    axes.legend(frameon=False)
    figure.savefig(sys.argv[1], dpi=150)


if __name__ == "__main__":
    main()
