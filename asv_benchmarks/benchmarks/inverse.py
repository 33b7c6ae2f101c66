"""The inversion by natural-gradient steps, the Cholesky factorisation that it replaces, and traces of the bound."""

from .common import BACKENDS, axis, backend_or_skip


def target(backend, size):
    """Return the backend, and an RBF covariance [size, size] of random inputs with 1e-2 added to its diagonal."""
    from agp import RBF
    from agp.linalg import identity

    from .common import beside, problem

    B, device = backend_or_skip(backend)
    X, _ = problem(B, device)
    K = beside(B, RBF(1.0, 2.0), X)(X[:size, :])[0]
    return B, K + 1e-2 * identity(K)


class Inverse:
    """A cold start, a warm start after a variance increase of one per cent, and a Cholesky factorisation."""

    params = [BACKENDS, axis([512, 1024], 512)]
    param_names = ["backend", "size"]

    def setup(self, backend, size):
        from agp.linalg import inverse_factor

        self.B, self.A = target(backend, size)
        self.start = inverse_factor(self.A)
        self.moved = 1.01 * self.A

    def time_cold_start(self, backend, size):
        from agp.linalg import inverse_factor

        self.B.synchronise(inverse_factor(self.A).factor)

    def time_warm_start(self, backend, size):
        from agp.linalg import inverse_factor

        found = inverse_factor(self.moved, self.start.factor, vector=self.start.vector, tolerance=1e-4)
        self.B.synchronise(found.factor)

    def track_cold_steps(self, backend, size):
        from agp.linalg import inverse_factor

        return float(inverse_factor(self.A).steps)

    def track_warm_steps(self, backend, size):
        from agp.linalg import inverse_factor

        found = inverse_factor(self.moved, self.start.factor, vector=self.start.vector, tolerance=1e-4)
        return float(found.steps)

    def time_cholesky(self, backend, size):
        self.B.synchronise(self.B.cholesky(self.A))


class NaturalStep:
    """One step, including B = L^T A L; triangular products are split in halves `depth` times (0 means dense)."""

    params = [BACKENDS, axis([512, 1024], 512), axis([0, 1, 2, 3], 0, 2)]
    param_names = ["backend", "size", "depth"]

    def setup(self, backend, size, depth):
        from agp.backend import Backend
        from agp.linalg import inverse_factor

        self.B, self.A = target(backend, size)
        self.L = inverse_factor(self.A).factor
        self.usual = Backend.triangular_block
        Backend.triangular_block = size // 2**depth

    def teardown(self, backend, size, depth):
        from agp.backend import Backend

        Backend.triangular_block = self.usual

    def time_natural_step(self, backend, size, depth):
        from agp.linalg import gram, natural_step

        self.B.synchronise(natural_step(self.L, gram(self.A, self.L), 1.0))


class Traces:
    """The KL divergence of R-SVGP with its gradient, with exact traces (0 probes) or estimates."""

    params = [BACKENDS, axis([512, 1024], 512), axis([0, 64, 256], 0, 64)]
    param_names = ["backend", "num_inducing", "probes"]

    def setup(self, backend, num_inducing, probes):
        import dataclasses

        import numpy as np

        from agp.posteriors import Relaxed

        self.B, self.Kuu = target(backend, num_inducing)
        q = dataclasses.replace(Relaxed.from_prior(self.Kuu, 1), probes=probes)
        draws = q.draws(np.random.default_rng(0))
        device = self.B.device_name(self.Kuu)
        self.q = q.with_draws({name: self.B.from_numpy(x, device=device) for name, x in draws.items()})

    def time_kl_and_gradient(self, backend, num_inducing, probes):
        factor, pull_factor = self.q.factorise(self.Kuu)
        _, pullback = self.q.kl_divergence(factor)
        self.B.synchronise(pull_factor(pullback(1.0)[1])[1])

    def peakmem_kl_and_gradient(self, backend, num_inducing, probes):
        self.time_kl_and_gradient(backend, num_inducing, probes)
