"""Time and memory of one training step, over backend x gradient x method x M."""

from .common import BACKENDS, BATCH, GRADIENTS, INDUCING, METHODS, ROWS, backend_or_skip, problem, sparse_model


class Step:
    """One step of the recipe on a minibatch of 512 rows, float64."""

    params = [BACKENDS, GRADIENTS, METHODS, INDUCING]
    param_names = ["backend", "gradient", "method", "num_inducing"]
    timeout = 120

    def setup(self, backend, gradient, method, num_inducing):
        from agp import recipe
        from agp.updates import Batch

        self.B, device = backend_or_skip(backend, gradient)
        X, y = problem(self.B, device)
        self.model = sparse_model(method, X, y, num_inducing)
        self.batch = Batch(X[:BATCH, :], y[:BATCH, :], ROWS / BATCH)
        self.updates = recipe(self.model, 100, gradient=gradient)
        self.states = [update.init(self.model) for update in self.updates]
        self.step()

    def step(self):
        for i, update in enumerate(self.updates):
            self.model, self.states[i], info = update(self.model, self.batch, self.states[i])
        self.B.synchronise(next(iter(info.values())))

    def time_step(self, backend, gradient, method, num_inducing):
        self.step()

    def peakmem_step(self, backend, gradient, method, num_inducing):
        self.step()

    def peakmem_reference(self, backend, gradient, method, num_inducing):
        """What set-up alone needs, to subtract from `peakmem_step`."""


class Prediction:
    """Means and variances of 20,000 rows, and the means alone."""

    params = [BACKENDS, METHODS, INDUCING]
    param_names = ["backend", "method", "num_inducing"]

    def setup(self, backend, method, num_inducing):
        self.B, device = backend_or_skip(backend)
        X, y = problem(self.B, device)
        self.model = sparse_model(method, X, y, num_inducing)
        self.X, _ = problem(self.B, device, rows=20_000)

    def time_moments(self, backend, method, num_inducing):
        self.B.synchronise(self.model.predict(self.X).mean)

    def time_mean(self, backend, method, num_inducing):
        self.B.synchronise(self.model.predict_mean(self.X))

    def peakmem_moments(self, backend, method, num_inducing):
        self.model.predict(self.X, memory=64.0)


class Training:
    """What 100 steps reach, so that speed bought with quality shows."""

    params = [["numpy", "torch"], METHODS]
    param_names = ["backend", "method"]

    def setup(self, backend, method):
        self.B, device = backend_or_skip(backend)
        self.X, self.y = problem(self.B, device)
        self.model = sparse_model(method, self.X, self.y, 128)

    def track_bound(self, backend, method):
        from agp import train

        result = train(self.model, self.X, self.y, steps=100, batch_size=BATCH)
        return float(result.model.bound(self.X, self.y)[0])

    track_bound.unit = "nats"
