"""Simulate how long it takes to evaluate a bound on a cluster, from measured times for the parts of the evaluation.

    python docs/examples/scaling_simulation.py --measure
    python docs/examples/scaling_simulation.py --chunk-seconds 2.9 2.9 --task-seconds 0.0009 --num-inducing 256

The evaluation has two passes over the chunks, one for values and one for cotangents. Results are summed in groups of
eight. The scheduler starts one task after the other, and tasks send their results at network speed. `--measure` prints
the seconds for a chunk and for an empty task.
"""

import argparse
import heapq
import time

import numpy as np
from dask.delayed import delayed
from distributed import Client, LocalCluster
from lazy_rows import COLUMNS, data, made

import agp

BRANCHES = 8


def passed(chunks, workers, chunk_seconds, task_seconds, sum_seconds):
    """Simulate one pass and return its seconds: one task per chunk, then sums in groups of eight, until one is left."""
    free = [0.0] * workers
    clock, ready = 0.0, []
    for _ in range(chunks):
        clock += task_seconds  # the scheduler is one process
        begin = max(clock, heapq.heappop(free))
        ready.append(begin + chunk_seconds)
        heapq.heappush(free, ready[-1])
    while len(ready) > 1:
        groups = [ready[i : i + BRANCHES] for i in range(0, len(ready), BRANCHES)]
        ready = []
        for group in groups:
            clock = max(clock + task_seconds, max(group))
            begin = max(clock, heapq.heappop(free))
            ready.append(begin + sum_seconds * len(group))
            heapq.heappush(free, ready[-1])
    return ready[0]


def simulated(rows, workers, given):
    """Return the simulated seconds for value and gradient with the given numbers of rows and workers."""
    M, D = given.num_inducing, 8
    chunks = max(1, rows // given.chunk)
    megabytes = (M * M + 2 * M) * 8e-6, (M * M + M * D) * 8e-6
    once = [
        passed(chunks, workers, seconds, given.task_seconds, size / given.network)
        for seconds, size in zip(given.chunk_seconds, megabytes, strict=True)
    ]
    sent = min(workers, chunks) ** 0.5 * sum(megabytes) / given.network  # workers pass the parameters on to each other
    return sum(once) + sent + given.client_seconds


def measured(given):
    """Measure the seconds for the two passes over a chunk, for an empty task, and on the client."""
    first = made(0, given.chunk)
    X, y = first[:, :COLUMNS], first[:, COLUMNS:]
    model = agp.SGPR.from_data(X, y, num_inducing=given.num_inducing)
    few = [x.rechunk({0: given.chunk}) for x in data(1000, 1000)]
    agp.value_and_gradient(model, X[:1000], y[:1000])
    times = []
    for one in ((X, y), few):
        began = time.perf_counter()
        _, pullback = model.bound(*one, memory=64.0)
        between = time.perf_counter()
        pullback()
        times.append((between - began, time.perf_counter() - between))
    own = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(host="127.0.0.1", **own) as cluster, Client(cluster) as client:
        empty = delayed(lambda i: i, pure=False)
        client.compute([empty(i) for i in range(20)], sync=True)
        began = time.perf_counter()
        client.compute([empty(i) for i in range(2000)], sync=True)
        task = (time.perf_counter() - began) / 2000
    print(f"chunk of {given.chunk:,} rows: {times[0][0]:.2f} and {times[0][1]:.2f} s; client {sum(times[1]):.2f} s")
    print(f"an empty task: {1e3 * task:.2f} ms")


def main():
    """Print the table of simulated times, or the measured times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--chunk", type=int, default=100_000)
    parser.add_argument("--num-inducing", type=int, default=256)
    parser.add_argument("--chunk-seconds", type=float, nargs=2, default=[2.0, 3.7], help="for the two passes")
    parser.add_argument("--task-seconds", type=float, default=0.001, help="seconds per task in the scheduler")
    parser.add_argument("--client-seconds", type=float, default=0.05)
    parser.add_argument("--network", type=float, default=1000.0, help="network speed in MB/s")
    given = parser.parse_args()
    if given.measure:
        measured(given)
        return
    counts = [1, 4, 16, 64, 256, 1000]
    print("| rows | chunks |" + "".join(f" {count:,} workers |" for count in counts))
    print("|---|---|" + "---|" * len(counts))
    for rows in 10 ** np.arange(6, 11):
        took = [simulated(int(rows), count, given) for count in counts]
        cells = [f"{seconds:,.0f} s ({took[0] / seconds:.0f}x)" for seconds in took]
        print(f"| {rows:,} | {max(1, rows // given.chunk):,} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
