"""Measure how time and memory for the loss and gradient of a computation-aware GP grow with the number of rows.

    python docs/examples/cagp_scaling.py --picture growth.png

This takes a few minutes on one core. The measurements use closed-form gradients on NumPy in float64. Each size runs in
a separate process, so that its peak memory can be measured.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np

import agp

SIZES = {"full": [2500, 5000, 10_000, 20_000], "capped": [25_000, 50_000, 100_000, 200_000]}


def measure(N, support, actions):
    """Return the CPU seconds for loss and gradient with N rows and three columns, and the peak memory in MiB."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(N, 3))
    y = np.sin(6.0 * X[:, :1]) * np.cos(4.0 * X[:, 1:2]) + 0.1 * rng.standard_normal((N, 1))
    model = agp.CaGP.from_data(X, y, kernel=agp.Matern32(), num_actions=actions, support=support)
    began = time.process_time()
    agp.value_and_gradient(model, X, y)
    return time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def in_its_own_process(N, support, actions):
    """Run `measure` in a new interpreter."""
    call = [sys.executable, __file__, "--one", str(N), "--actions", str(actions)]
    call += [] if support is None else ["--support", str(support)]
    return json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout)


def main():
    """Measure each size, fit the exponents and plot the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", type=int, help="measure only this number of rows")
    parser.add_argument("--actions", type=int, default=128)
    parser.add_argument("--support", type=int, help="rows that the actions cover (default: all, or 4096 if capped)")
    parser.add_argument("--shrink", type=int, default=1, help="divide all sizes by this number")
    parser.add_argument("--picture", help="where to save the curves")
    a = parser.parse_args()
    if a.one:
        print(json.dumps(measure(a.one, a.support, a.actions)))
        return
    curves = {}
    for kind, sizes in SIZES.items():
        support = (a.support or 4096) // a.shrink if kind == "capped" else None
        sizes = [N // a.shrink for N in sizes]
        found = [in_its_own_process(N, support, a.actions // a.shrink) for N in sizes]
        exponent = np.polyfit(np.log(sizes), np.log([seconds for seconds, _ in found]), 1)[0]
        for N, (seconds, memory) in zip(sizes, found, strict=True):
            print(f"{kind} support  N = {N:7,d}  {seconds:7.2f} s  {memory:5.0f} MiB")
        print(f"{kind} support: time grows with N to the power {exponent:.2f}", flush=True)
        curves[f"{kind} support, exponent {exponent:.2f}"] = sizes, [seconds for seconds, _ in found]
    if a.picture:
        draw(curves, a.picture)


def draw(curves, path):
    """Plot the seconds against N."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for label, (sizes, seconds) in curves.items():
        axes.loglog(sizes, seconds, "o-", label=label)
    axes.set(xlabel="N", ylabel="CPU seconds for loss and gradient")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
