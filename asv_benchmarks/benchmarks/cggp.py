"""Time and memory of an exact GP with conjugate gradients, and the effect of the preconditioner's rank."""

from .common import BACKENDS, DTYPES, GRADIENTS, axis, backend_or_skip, finished, problem, protocol

ROWS = 1024
RANKS = [0, 15, 100]


def model_of(X, y, **options):
    """Create a model with little noise, for which a preconditioner is useful."""
    from agp.kernels import Matern32
    from agp.likelihoods import Gaussian
    from agp.models import CGGP

    return CGGP.from_data(X, y, kernel=Matern32(), likelihood=Gaussian(0.05), **options)


class Iterative:
    """The estimated log evidence, its gradient, and predictions, on 1024 rows."""

    params = [BACKENDS, GRADIENTS, DTYPES]
    param_names = ["backend", "gradient", "dtype"]

    def setup(self, backend, gradient, dtype):
        self.B, device = backend_or_skip(backend, gradient)
        self.X, y = problem(self.B, device, rows=ROWS, dtype=dtype)
        self.model = model_of(self.X, y, rank=100)
        self.batch = protocol(self.model, "batch")(self.X, y)

    def time_value(self, backend, gradient, dtype):
        self.B.synchronise(protocol(self.model, "objective")(self.batch)[0])

    def time_gradient(self, backend, gradient, dtype):
        from agp.gradient import gradient_of_batch

        finished(self.B, gradient_of_batch(self.model, self.batch, gradient)[1])

    def time_predictions(self, backend, gradient, dtype):
        self.B.synchronise(self.model.predict(self.X[:64, :]).variance)

    def peakmem_gradient(self, backend, gradient, dtype):
        self.time_gradient(backend, gradient, dtype)


class Rank:
    """The estimated log evidence at several ranks, with tiles of 8 MiB, and the number of iterations."""

    params = [axis(["numpy", "torch", "torch:cuda"], "numpy"), RANKS]
    param_names = ["backend", "rank"]

    def setup(self, backend, rank):
        self.B, device = backend_or_skip(backend)
        self.X, self.y = problem(self.B, device, rows=ROWS)
        self.model = model_of(self.X, self.y, rank=rank, max_iterations=2000)

    def time_value(self, backend, rank):
        self.B.synchronise(self.model.bound(self.X, self.y, memory=8.0)[0])

    def track_iterations(self, backend, rank):
        from agp.bounds import CovarianceSystem

        noise = self.model.likelihood.noise_variance
        system = CovarianceSystem.of(self.model, self.X, noise, ROWS)
        return float(system.solve(self.y, self.model.tolerance).iterations)

    track_iterations.unit = "iterations"
