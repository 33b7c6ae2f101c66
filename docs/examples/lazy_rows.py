"""Measure time and memory of sparse regression on a local cluster, and test that it survives killed workers.

    python docs/examples/lazy_rows.py --rows 10_000_000 --chunk 100_000 --num-inducing 256 --workers 1 2
    python docs/examples/lazy_rows.py --rows 400_000 --workers 2 --kills 10

Clusters accept connections only from this machine. The workers generate the rows chunk by chunk, from a seed and the
chunk number.
"""

import argparse
import contextlib
import os
import signal
import threading
import time

import dask.array as da
import numpy as np
from dask.delayed import delayed
from distributed import Client, LocalCluster

import agp

COLUMNS = 8


def made(chunk, rows):
    """Generate the rows [rows, 9] of a chunk: eight inputs and a target."""
    rng = np.random.default_rng([0, chunk])
    X = rng.standard_normal((rows, COLUMNS))
    y = np.sin(X[:, :4].sum(axis=1)) + 0.3 * X[:, 4] * X[:, 5] + 0.2 * rng.standard_normal(rows)
    return np.concatenate([X, y[:, None]], axis=1)


def data(N, rows):
    """Return lazy arrays X [N, 8] and y [N, 1] with `rows` rows per chunk."""
    counts = [min(rows, N - start) for start in range(0, N, rows)]
    parts = [da.from_delayed(delayed(made)(i, n), (n, COLUMNS + 1), float) for i, n in enumerate(counts)]
    both = da.concatenate(parts, axis=0)
    return both[:, :COLUMNS], both[:, COLUMNS:]


def memory_peak():
    """Return the peak memory of this process so far, in MiB."""
    return agp.get_backend("numpy").peak_memory(np.ones(1))


def difference(found, expected):
    """Return the largest relative difference between two bounds and between the leaves of their gradients."""
    gaps = [np.max(np.abs(found[1][name] - x)) / np.max(np.abs(x)) for name, x in expected[1].items()]
    return max(abs(found[0] / expected[0] - 1.0), *gaps)


def evaluated(model, X, y, memory):
    """Return the value and gradient, and the seconds that they took."""
    began = time.perf_counter()
    return agp.value_and_gradient(model, X, y, memory=memory), time.perf_counter() - began


@contextlib.contextmanager
def started(count, given):
    """Start a cluster of `count` processes and yield a client."""
    own = {"n_workers": count, "threads_per_worker": 1, "memory_limit": given.limit}
    with LocalCluster(host="127.0.0.1", dashboard_address=None, **own) as cluster, Client(cluster) as client:
        yield client


def killer(client, after):
    """Start a thread that kills one worker after the given number of seconds."""
    workers = list(client.run(os.getpid).values())

    def kill():
        time.sleep(after)
        os.kill(workers[int(1000 * after) % len(workers)], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


def main():
    """Evaluate the bound with each number of workers, and with workers that are killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--chunk", type=int, default=20_000)
    parser.add_argument("--num-inducing", type=int, default=64)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--limit", default="1.5GiB", help="memory limit per worker")
    parser.add_argument("--memory", type=float, default=64.0, help="memory budget per task, in MiB")
    parser.add_argument("--kills", type=int, default=0, help="number of evaluations in which a worker is killed")
    given = parser.parse_args()
    X, y = data(given.rows, given.chunk)
    first = made(0, given.chunk)
    start = agp.SGPR.from_data(first[:, :COLUMNS], first[:, COLUMNS:], num_inducing=given.num_inducing)
    model = agp.tree.with_leaves(start, {"X": X, "y": y})

    def first_chunk():
        return evaluated(model, X[: given.chunk], y[: given.chunk], given.memory)

    expected = None
    for count in given.workers:
        with started(count, given) as client:
            first_chunk()  # import modules in the workers before timing
            found, seconds = evaluated(model, X, y, given.memory)
            expected = expected or found
            peaks = [round(peak) for peak in client.run(memory_peak).values()]
            print(
                f"{count} workers: {seconds:.1f} s, bound {float(found[0]):.6f}, difference "
                f"{difference(found, expected):.1e}, peak MiB client {memory_peak():.0f}, workers {peaks}",
                flush=True,
            )
        for after in np.random.default_rng(0).uniform(0.0, seconds, given.kills):
            with started(count, given) as client:
                first_chunk()
                thread = killer(client, float(after))
                found, took = evaluated(model, X, y, given.memory)
                thread.join()
                print(
                    f"killed after {after:.1f} s: {took:.1f} s ({took / seconds:.2f} times), difference "
                    f"{difference(found, expected):.1e}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
