"""A training whose scheduler is killed in its middle, and which goes on without it: `lost_scheduler.py CHECKPOINT`."""

import socket
import subprocess
import sys

import dask.array as da
import numpy as np
from dask import config
from distributed import Client

import agp
from agp.errors import WorkerError

STEPS, KILLED_AT = 20, 10


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def started(kind, *arguments):
    command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *arguments, "--dashboard-address", "127.0.0.1:0"]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def main(checkpoint):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 2))
    y = np.sin(X[:, 0])
    rows = da.from_array(X, chunks=(200, -1)), da.from_array(y, chunks=200)
    model = agp.SVGP.from_data(X, y, num_inducing=8)
    options = {"steps": STEPS, "batch_size": 100, "data_parallel": True}
    with config.set(scheduler="synchronous"):
        expected = agp.train(model, *rows, **options).trace["bound"]

    address = f"127.0.0.1:{free_port()}"
    scheduler = started("scheduler", "--host", "127.0.0.1", "--port", address.partition(":")[2])
    worker = started("worker", address, "--nthreads", "1")

    def kill(seen):
        if seen.step == KILLED_AT:
            scheduler.kill()

    try:
        with Client(address, timeout=20) as client:
            client.wait_for_workers(1, timeout=60)
            agp.train(model, *rows, **options, checkpoint=checkpoint, checkpoint_every=5, callbacks=[kill])
    except WorkerError as error:
        print("lost:", error)
    finally:
        scheduler.kill()
        worker.kill()
    with config.set(scheduler="synchronous"):
        found = agp.train(model, *rows, **options, checkpoint=checkpoint, checkpoint_every=5)
    gap = np.max(np.abs(np.asarray(found.trace["bound"]) / expected - 1.0))
    print(f"{found.steps} steps, difference {gap:.1e}")


if __name__ == "__main__":
    main(sys.argv[1])
