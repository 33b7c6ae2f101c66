"""Train on minibatches of rows in a large file, and measure memory, speed, and the effect of sorted rows.

    python docs/examples/rows_on_disk.py --file rows.npy --rows 100_000_000
    python docs/examples/rows_on_disk.py --sorted

The first command creates the file if it does not exist (float32, 36 bytes per row). It measures training steps of
R-SVGP on the file and on a million rows in memory, in turn. The second command trains on sorted rows, with several
chunk sizes.
"""

import argparse
import statistics
import time
from pathlib import Path

import dask.array as da
import numpy as np
from lazy_rows import COLUMNS, made

import agp
from agp.tables import open_rows
from agp.training import _batches

HELD = 1_000_000


def written(path, rows):
    """Write the file, a million rows at a time."""
    table = np.lib.format.open_memmap(path, "w+", np.float32, (rows, COLUMNS + 1))
    for i, start in enumerate(range(0, rows, HELD)):
        table[start : start + HELD] = made(i, min(HELD, rows - start))
    table.flush()


def memory():
    """Return the resident memory of this process in MiB: anonymous memory, and file pages."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {line.partition(":")[0]: float(line.split()[1]) / 2**10 for line in lines if line.startswith("Rss")}
    return found["RssAnon"], found["RssFile"]


def on_disk(given):
    """Measure training steps on rows of the file and on rows in memory, in turn."""
    if not Path(given.file).exists():
        written(given.file, given.rows)
    print(f"start: {memory()[0]:.0f} MiB in use", flush=True)
    X, y, _ = open_rows(given.file, target=-1)
    began = time.perf_counter()
    model = agp.SVGP.from_data(X, y, num_inducing=given.num_inducing)
    seconds = time.perf_counter() - began
    print(f"{X.shape[0]:,} rows, model created in {seconds:.0f} s, {memory()[0]:.0f} MiB in use", flush=True)
    few = np.array(X[:HELD]), np.array(y[:HELD])
    rates = {"disk": [], "memory": []}
    for seed in range(given.turns):
        for name, data in (("disk", (X, y)), ("memory", few)):
            seen = []
            agp.train(
                model,
                *data,
                steps=given.steps,
                batch_size=1000,
                seed=seed,
                callbacks=[lambda p, seen=seen: seen.append(p.seconds)],
            )
            rates[name].append((given.steps - given.steps // 5) / (seen[-1] - seen[given.steps // 5 - 1]))
            own, files = memory()
            print(f"{name}: {rates[name][-1]:.1f} steps/s; {own:.0f} MiB in use, {files:.0f} MiB of files", flush=True)
    ratio = statistics.median(rates["disk"]) / statistics.median(rates["memory"])
    print(f"rate on disk over rate in memory: {ratio:.2f}")


def on_sorted_rows(given):
    """Print the NLPD of a model trained on rows sorted by their first input, for several chunk sizes."""
    rows = made(0, 110_000)
    train, test = rows[:100_000], rows[100_000:]
    by_first = train[np.argsort(train[:, 0])]
    model = agp.SVGP.from_data(train[:, :COLUMNS], train[:, COLUMNS], num_inducing=given.num_inducing)
    _batches.POOL_MIB = 0.0  # a pool is then eight batches of 1,000 rows; the default pool would contain all rows
    for name, data, chunk in [
        ("in memory", train, None),
        ("shuffled, chunks of 10,000", train, 10_000),
        ("sorted, chunks of 10,000", by_first, 10_000),
        ("sorted, chunks of 1,000", by_first, 1_000),
        ("sorted, chunks of 100", by_first, 100),
    ]:
        X, y = data[:, :COLUMNS], data[:, COLUMNS]
        if chunk is not None:
            X, y = da.from_array(X, chunks=(chunk, -1)), da.from_array(y, chunks=chunk)
        found = agp.train(model, X, y, steps=given.steps, batch_size=1000).model
        score = -float(np.mean(found.log_density(test[:, :COLUMNS], test[:, COLUMNS])))
        print(f"{name}: NLPD {score:.4f} after {given.steps:,} steps", flush=True)


def main():
    """Run one of the two measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", default="rows.npy")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--num-inducing", type=int, default=128)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--sorted", action="store_true")
    given = parser.parse_args()
    (on_sorted_rows if given.sorted else on_disk)(given)


if __name__ == "__main__":
    main()
