"""Time and memory of bounds, gradients and training steps, over method x backend x gradient x precision x M."""

from .common import (
    BACKENDS,
    BATCH,
    DTYPES,
    GRADIENTS,
    INDUCING,
    METHODS,
    ROWS,
    backend_or_skip,
    finished,
    full_model,
    problem,
    sparse_model,
)


def step_of(method, backend, gradient, dtype, num_inducing):
    """A training step of the recipe: model, batch, and a function that takes one step."""
    from agp.batch import Batch
    from agp.training import begun, recipe

    B, device = backend_or_skip(backend, gradient)
    X, y = problem(B, device, dtype=dtype)
    model = begun(sparse_model(method, X, y, num_inducing))
    batch = Batch(X[:BATCH, :], y[:BATCH, :], ROWS / BATCH)
    updates = recipe(model, 100, gradient=gradient)
    states = [update.init(model) for update in updates]
    moving = [model]

    def step():
        info = {}
        for i, update in enumerate(updates):
            moving[0], states[i], logged = update(moving[0], batch, states[i])
            info |= logged
        B.synchronise(info["bound"])

    step()
    return B, model, batch, step


class Step:
    """The bound, its gradient, and a step of the recipe, for M = 256 on a minibatch of 256 rows."""

    params = [METHODS, BACKENDS, GRADIENTS, DTYPES]
    param_names = ["method", "backend", "gradient", "dtype"]

    def setup(self, method, backend, gradient, dtype):
        self.B, self.model, self.batch, self.step = step_of(method, backend, gradient, dtype, 256)

    def time_value(self, method, backend, gradient, dtype):
        self.B.synchronise(self.model.objective(self.batch)[0])

    def time_gradient(self, method, backend, gradient, dtype):
        from agp.gradient import gradient_of

        finished(self.B, gradient_of(self.model, self.batch, gradient)[1])

    def time_step(self, method, backend, gradient, dtype):
        self.step()


class Size:
    """How a step grows with M, closed form in float64."""

    params = [METHODS, BACKENDS, INDUCING]
    param_names = ["method", "backend", "num_inducing"]

    def setup(self, method, backend, num_inducing):
        self.step = step_of(method, backend, "closed-form", "float64", num_inducing)[3]

    def time_step(self, method, backend, num_inducing):
        self.step()

    def peakmem_step(self, method, backend, num_inducing):
        self.step()


class FullBatch:
    """The bound of SGPR and the evidence of an exact GP, and their gradients, on 1024 rows."""

    params = [["sgpr", "gpr"], BACKENDS, GRADIENTS, DTYPES]
    param_names = ["method", "backend", "gradient", "dtype"]

    def setup(self, method, backend, gradient, dtype):
        self.B, device = backend_or_skip(backend, gradient)
        X, y = problem(self.B, device, rows=1024, dtype=dtype)
        self.model = full_model(method, X, y, 128)
        self.batch = self.model.batch(X, y)

    def time_value(self, method, backend, gradient, dtype):
        self.B.synchronise(self.model.objective(self.batch)[0])

    def time_gradient(self, method, backend, gradient, dtype):
        from agp.gradient import gradient_of

        finished(self.B, gradient_of(self.model, self.batch, gradient)[1])

    def peakmem_gradient(self, method, backend, gradient, dtype):
        self.time_gradient(method, backend, gradient, dtype)


class Baseline:
    """What the process holds before any step, to subtract from the peaks above."""

    params = [BACKENDS]
    param_names = ["backend"]

    def setup(self, backend):
        self.B, self.device = backend_or_skip(backend)

    def peakmem_data(self, backend):
        problem(self.B, self.device)


class Training:
    """What 100 steps reach, so that speed bought with quality shows."""

    params = [["numpy", "torch"], METHODS]
    param_names = ["backend", "method"]

    def setup(self, backend, method):
        self.B, device = backend_or_skip(backend)
        self.X, self.y = problem(self.B, device)
        self.model = sparse_model(method, self.X, self.y, 64)

    def track_bound(self, backend, method):
        from agp.training import train

        result = train(self.model, self.X, self.y, steps=100, batch_size=BATCH)
        return float(result.model.bound(self.X, self.y)[0])

    track_bound.unit = "nats"
