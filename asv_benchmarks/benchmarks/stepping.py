"""Training steps of any method, as `agp.train` takes them: compiled where the library can, waited for at the end."""

import statistics
import time

from .common import BATCH, backend_or_skip, problem, protocol

ROWS = 1024
"""Of the data; methods that take all rows at once are dense in them."""
ROUNDS = 9
"""Turns of a step and of what it is measured by."""


class Stepping:
    """A method in training on one minibatch (or on all rows, where it takes all).

    Nothing has been compiled or computed when it is made: the first `step` does it.
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
        """The updates, one after the other."""
        info, moved = {}, []
        for update, state in zip(self.updates, states, strict=True):
            model, state, logged = update(model, batch, state)
            moved.append(state)
            info |= logged
        return model, moved, info

    def step(self):
        """One step, until the device has done it."""
        from agp import tree

        self.model, self.states, _ = self.compiled(self.model, self.states, self.batch)
        for x in tree.leaves(self.model).values():
            self.B.synchronise(x)

    def warm(self):
        """The first steps, which compile; the second may do so anew for arrays that the first returned."""
        self.step()
        self.step()
        return self

    def bound_and_gradient(self):
        """The work of which a step is made, without the updates."""
        from agp.gradient import gradient_of_batch

        bound, gradient = gradient_of_batch(self.model, self.batch, self.gradient)
        for x in (bound, *gradient.values()):
            self.B.synchronise(x)


def clock(backend):
    """Processor time of this process, which others do not slow; on a GPU, time on the wall."""
    return time.perf_counter if backend.endswith(("cuda", "cupy")) else time.process_time


def in_turn(works, now, rounds=ROUNDS, seconds=0.02):
    """Median seconds of each of some functions, which take turns; short ones are repeated in their turn."""
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
