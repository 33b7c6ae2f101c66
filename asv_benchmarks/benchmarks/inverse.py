"""The natural-gradient inverse against the factorisation that it replaces."""

from .common import BACKENDS, backend_or_skip


class Inverse:
    """A warm step and a cold start for a 512 x 512 or 1024 x 1024 RBF covariance, beside a Cholesky factorisation."""

    params = [BACKENDS, [512, 1024]]
    param_names = ["backend", "size"]

    def setup(self, backend, size):
        from agp import RBF
        from agp.linalg import gram, identity, inverse_factor
        from agp.models import placed

        from .common import problem

        self.B, device = backend_or_skip(backend)
        X, _ = problem(self.B, device)
        K = placed(RBF(1.0, 2.0), X)(X[:size, :])[0]
        self.A = K + 1e-2 * identity(K)
        self.L = inverse_factor(self.A).factor
        self.gram = gram(self.A, self.L)

    def time_natural_step(self, backend, size):
        from agp.linalg import gram, natural_step

        L = natural_step(self.L, self.gram, 1.0)
        self.B.synchronise(gram(self.A, L))

    def time_cold_start(self, backend, size):
        from agp.linalg import inverse_factor

        self.B.synchronise(inverse_factor(self.A).factor)

    def time_cholesky(self, backend, size):
        self.B.synchronise(self.B.cholesky(self.A))
