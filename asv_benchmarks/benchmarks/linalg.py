"""Factorisations, solves and products of a training step, by backend, precision and M."""

import numpy as np

from .common import BACKENDS, BATCH, DTYPES, INDUCING, backend_or_skip


class Triangular:
    """Operations on one factor [M, M] and an array [M, 256]."""

    params = [BACKENDS, DTYPES, INDUCING]
    param_names = ["backend", "dtype", "size"]

    def setup(self, backend, dtype, size):
        self.B, device = backend_or_skip(backend)
        rng = np.random.default_rng(0)
        root = rng.normal(size=(size, size))
        host = (root @ root.T / size + np.eye(size), root, rng.normal(size=(size, BATCH)))
        self.A, self.S, self.C = (self.B.from_numpy(x, dtype=dtype, device=device) for x in host)
        self.L = self.B.cholesky(self.A)

    def time_cholesky(self, backend, dtype, size):
        self.B.synchronise(self.B.cholesky(self.A))

    def time_cholesky_pullback(self, backend, dtype, size):
        from agp.linalg import cholesky_pullback

        self.B.synchronise(cholesky_pullback(self.L, self.S))

    def time_solve(self, backend, dtype, size):
        self.B.synchronise(self.B.solve_triangular(self.L, self.C))

    def time_lower_of(self, backend, dtype, size):
        from agp.linalg import lower_of

        self.B.synchronise(lower_of(self.C, self.C.mT))

    def time_lower_times(self, backend, dtype, size):
        from agp.linalg import lower_times

        self.B.synchronise(lower_times(self.L, self.C))
