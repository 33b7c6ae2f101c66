"""Time and memory of predictions, by method, backend and precision."""

from .common import BACKENDS, DTYPES, METHODS, backend_or_skip, full_model, problem, sparse_model


class Prediction:
    """Means and variances for 10,000 rows, and means alone; the exact GP has 1024 training rows."""

    params = [[*METHODS, "sgpr", "gpr"], BACKENDS, DTYPES]
    param_names = ["method", "backend", "dtype"]

    def setup(self, method, backend, dtype):
        self.B, device = backend_or_skip(backend)
        X, y = problem(self.B, device, rows=1024, dtype=dtype)
        make = full_model if method in ("sgpr", "gpr") else sparse_model
        self.model = make(method, X, y, 256)
        self.X, _ = problem(self.B, device, rows=10_000, dtype=dtype)

    def time_moments(self, method, backend, dtype):
        self.B.synchronise(self.model.predict(self.X, memory=64.0).mean)

    def time_mean(self, method, backend, dtype):
        self.B.synchronise(self.model.predict_mean(self.X, memory=64.0))

    def peakmem_moments(self, method, backend, dtype):
        self.model.predict(self.X, memory=64.0)
