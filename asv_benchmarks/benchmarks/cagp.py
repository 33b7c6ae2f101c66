"""Loss and gradient of computation-aware GPs with full and limited support, and their growth with the data."""

from .common import BACKENDS, DTYPES, GRADIENTS, axis, backend_or_skip, finished, protocol

ACTIONS, SUPPORT = 128, 1024


def model_of(B, device, rows, support, dtype="float64", inverse_free=False):
    """Create a CaGP with three input columns, and its data."""
    import numpy as np

    from agp import CaGP, Matern32

    rng = np.random.default_rng(0)
    X = rng.uniform(size=(rows, 3))
    y = np.sin(6.0 * X[:, :1]) * np.cos(4.0 * X[:, 1:2]) + 0.1 * rng.normal(size=(rows, 1))
    X, y = (B.from_numpy(x, dtype=dtype, device=device) for x in (X, y))
    settings = {"num_actions": min(ACTIONS, support or rows), "support": support, "inverse_free": inverse_free}
    return CaGP.from_data(X, y, kernel=Matern32(), **settings), X, y


class Loss:
    """The loss and its gradient on 4,096 rows, with a limited support of 1,024 rows."""

    params = [["cholesky", "inverse-free"], BACKENDS, GRADIENTS, DTYPES]
    param_names = ["posterior", "backend", "gradient", "dtype"]

    def setup(self, posterior, backend, gradient, dtype):
        self.B, device = backend_or_skip(backend, gradient)
        self.model, X, y = model_of(self.B, device, 4096, SUPPORT, dtype, posterior == "inverse-free")
        self.batch = protocol(self.model, "batch")(X, y)

    def time_value(self, posterior, backend, gradient, dtype):
        self.B.synchronise(protocol(self.model, "objective")(self.batch)[0])

    def time_gradient(self, posterior, backend, gradient, dtype):
        from agp.gradient import gradient_of_batch

        finished(self.B, gradient_of_batch(self.model, self.batch, gradient)[1])


class Growth:
    """Growth with the number of rows: quadratic with full support, linear with a support of 1,024 rows."""

    params = [
        ["full", "capped"],
        axis(["numpy", "torch:cuda", "cupy"], "numpy"),
        axis([1024, 2048, 4096, 8192], 1024, 2048),
    ]
    param_names = ["support", "backend", "rows"]

    def setup(self, support, backend, rows):
        self.B, device = backend_or_skip(backend)
        self.model, X, y = model_of(self.B, device, rows, SUPPORT if support == "capped" else None)
        self.batch = protocol(self.model, "batch")(X, y)

    def time_gradient(self, support, backend, rows):
        from agp.gradient import gradient_of_batch

        finished(self.B, gradient_of_batch(self.model, self.batch, "closed-form")[1])

    def peakmem_gradient(self, support, backend, rows):
        self.time_gradient(support, backend, rows)


class Large:
    """The gradient on a minibatch and on all of 200,000 rows, with a support of 4,096 rows."""

    params = [axis(["numpy", "torch:cuda", "cupy"], "numpy"), axis([1024, 200_000], 1024)]
    param_names = ["backend", "batch_rows"]
    timeout = 900
    number, repeat, warmup_time = 1, (1, 3, 60.0), 0.0  # all rows take about a minute on one core

    def setup(self, backend, batch_rows):
        from agp.bounds import Batch

        self.B, device = backend_or_skip(backend)
        self.model, X, y = model_of(self.B, device, 200_000, 4096)
        self.batch = Batch(X[:batch_rows, :], y[:batch_rows, :], 200_000 / batch_rows)

    def time_gradient(self, backend, batch_rows):
        from agp.gradient import gradient_of_batch

        finished(self.B, gradient_of_batch(self.model, self.batch, "closed-form")[1])

    def peakmem_gradient(self, backend, batch_rows):
        self.time_gradient(backend, batch_rows)
