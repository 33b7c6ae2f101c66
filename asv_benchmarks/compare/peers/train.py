"""Train a library's whitened SVGP: ``python train.py LIBRARY START.npz RUN.npz OUT.npz``."""

import dataclasses
import sys
import time
from importlib import import_module
from typing import Any

import numpy as np
from contract import Peer, Run, Start

BLOCK = 2000
"""Maximum number of rows that are predicted together."""


def peak_memory() -> float:
    """Return the peak memory of the process in MiB, or NaN on Windows."""
    try:
        import resource
    except ImportError:
        return float("nan")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def open_peer(library: str) -> type[Peer]:
    """Import the `Peer` class of a library. Raise an ImportError if this interpreter lacks the library."""
    return import_module(f"{library}_peer").Peer


def blocks(count: int) -> list[slice]:
    """Slices of at most `BLOCK` rows that cover all rows."""
    return [slice(i, min(i + BLOCK, count)) for i in range(0, count, BLOCK)]


def predictions(peer: Peer, X: Any) -> tuple[Any, Any]:
    """Means [N] and variances [N] of observations."""
    pieces = [peer.predict(X[rows]) for rows in blocks(len(X))]
    mean, variance = (np.concatenate(part) for part in zip(*pieces, strict=True))
    return mean, variance + peer.noise()


def bound_on_all_rows(peer: Peer, run: Run) -> float:
    """Compute the bound for all rows from the bounds for blocks of rows."""
    kl, total = peer.kl(), len(run.X)
    pieces = blocks(total)
    parts = [(peer.bound(run.X[rows], run.y[rows]) + kl) * (rows.stop - rows.start) / total for rows in pieces]
    return sum(parts) - kl


def main(library: str, start_path: str, run_path: str, out: str) -> None:
    """Evaluate the bound at the probe values of q(u), train the model, and predict the test rows."""
    kind, start, run = open_peer(library), Start.read(start_path), Run.read(run_path)
    first = run.batches[0]
    probe = dataclasses.replace(start, q_mean=run.probe_mean, q_scale=run.probe_scale)
    probed = kind(probe).bound(run.X[first], run.y[first])
    peer, curve = kind(start), []
    seconds = np.zeros(len(run.batches))
    for t, rows in enumerate(run.batches):
        X, y = run.X[rows], run.y[rows]
        began = time.perf_counter()
        peer.step(X, y, float(run.rates[t]), float(run.Z_rates[t]))
        seconds[t] = time.perf_counter() - began
        if t + 1 in run.curve_steps:
            curve.append((seconds[: t + 1].sum(), *predictions(peer, run.X_test[run.curve_rows])))
    mean, variance = predictions(peer, run.X_test)
    when, curve_means, curve_variances = (np.stack(part) for part in zip(*curve, strict=True))
    np.savez(
        out, allow_pickle=False, probe=probed, bound=bound_on_all_rows(peer, run), seconds=seconds, mean=mean,
        variance=variance, curve_seconds=when, curve_means=curve_means, curve_variances=curve_variances,
        peak_mib=peak_memory(),
        versions=" ".join(f"{name} {number}" for name, number in kind.versions.items()),
    )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
