"""Training steps of any method, as in `agp.train`: compiled if the library can, with a wait at the end."""

import statistics
import time

from .common import BATCH, backend_or_skip, problem, protocol

ROWS = 1024
"""Number of rows of data; methods that use all rows have dense matrices of this size."""
ROUNDS = 9
"""Number of alternating runs of a step and its reference."""


class Stepping:
    """Training of a method on one minibatch, or on all rows if the method requires them.

    The constructor compiles and computes nothing; the first `step` does.
    """

    def __init__(self, method, backend, gradient, dtype, num_inducing, *, rows=ROWS, batch_rows=BATCH, **options):
        from agp.likelihoods import Gaussian
        from agp.methods import build, updates_of
        from agp.training import Batches, initial_state

        self.B, device = backend_or_skip(backend, gradient)
        self.gradient = gradient
        X, y = problem(self.B, device, rows=rows, dtype=dtype)
        options = {"num_actions": num_inducing, "support": max(num_inducing, rows // 2)} | options
        parts = {"likelihood": Gaussian(0.1), "kernel": "rbf", "num_inducing": num_inducing, "seed": 0}
        model = build(method, X, y, **parts, **options)
        self.model = initial_state(model)
        size = min(batch_rows, rows) if model.stochastic else rows
        self.batch = Batches(X, y, size, 0, protocol(model, "draws"))[0]
        self.updates = updates_of(method, self.model, 100, gradient=gradient)
        self.states = [update.init(self.model) for update in self.updates]
        self.compiled = self.B.compile(self.applied)

    def applied(self, model, states, batch):
        """Apply the updates one after the other."""
        info, moved = {}, []
        for update, state in zip(self.updates, states, strict=True):
            model, state, logged = update(model, batch, state)
            moved.append(state)
            info |= logged
        return model, moved, info

    def step(self):
        """Run one step, and wait for the device."""
        from agp import tree

        self.model, self.states, _ = self.compiled(self.model, self.states, self.batch)
        for x in tree.leaves(self.model).values():
            self.B.synchronise(x)

    def warm(self):
        """Run the first two steps; the second may compile again for the arrays that the first returned."""
        self.step()
        self.step()
        return self

    def bound_and_gradient(self):
        """Compute the bound and its gradient, without the updates."""
        from agp.gradient import gradient_of_batch

        bound, gradient = gradient_of_batch(self.model, self.batch, self.gradient)
        for x in (bound, *gradient.values()):
            self.B.synchronise(x)


def clock(backend):
    """CPU time of this process, which other processes do not affect; on a GPU, wall-clock time."""
    return time.perf_counter if backend.endswith(("cuda", "cupy")) else time.process_time


def in_turn(works, now, rounds=ROUNDS, seconds=0.02):
    """Median seconds of each function in alternating runs; a run repeats short functions."""
    counts = []
    for work in works:
        began = now()
        work()
        counts.append(max(1, int(seconds / max(now() - began, 1e-6))))
    times = [[] for _ in works]
    for _ in range(rounds):
        for work, count, found in zip(works, counts, times, strict=True):
            began = now()
            for _ in range(count):
                work()
            found.append((now() - began) / count)
    return [statistics.median(found) for found in times]
