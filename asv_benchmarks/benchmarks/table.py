"""CPU time of steps and predictions, by method, library and size.

``AGP_BENCH=all asv run --bench table`` runs all of them, which takes more than half an hour on a busy machine. By
default, one library and one size are run.
"""

import os
import time

from .common import axis, backend_or_skip, problem
from .stepping import Stepping

METHODS = ["gpr", "sgpr", "wsvgp", "rsvgp", "asvgp", "solve", "qsvgp", "cagp-opt"]
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


class Table:
    """A step on 256 of 1,024 rows, or on all rows if the method requires it; means and variances for 1,024 rows."""

    params = [METHODS, axis(["numpy", "torch", "jax"], "numpy"), axis([128, 512], 128)]
    param_names = ["method", "backend", "num_inducing"]
    timeout = 300
    timer = time.process_time  # other processes do not affect it
    rounds, repeat, warmup_time = 1, (5, 9, 2.0), 0.05

    def setup(self, method, backend, num_inducing):
        if method == "gpr" and num_inducing != self.params[2][0]:
            raise NotImplementedError  # the method has no inducing inputs, so one size is enough
        os.environ.setdefault("XLA_FLAGS", ONE_THREAD)  # otherwise JAX uses all cores, and their times add up
        self.B, device = backend_or_skip(backend)
        if backend == "torch":
            import torch

            torch.set_num_threads(1)
        self.stepping = Stepping(method, backend, "closed-form", "float64", num_inducing).warm()
        self.model = self.stepping.model
        self.X, _ = problem(self.B, device, rows=1024)

    def time_step(self, method, backend, num_inducing):
        self.stepping.step()

    def time_predict(self, method, backend, num_inducing):
        for x in self.model.predict(self.X):
            self.B.synchronise(x)
