"""Training steps of SOLVE-GP, ODVGP and SVGP, and the collapsed bounds of SOLVE-GP."""

from .common import BACKENDS, BATCH, DTYPES, GRADIENTS, ROWS, axis, backend_or_skip, finished, problem, protocol

METHODS = ["svgp", "svgp-all", "solve", "solve-marginal", "odvgp", "solve-relaxed", "solve-union"]
BOUNDS = ["optimal", "free", "tight"]


def model_of(method, X, y, size):
    """Create a model with two equal groups of random rows, or an SVGP with one group or with the union of both."""
    from agp import posteriors
    from agp.models import SOLVEGP, SVGP

    if method.startswith("svgp"):
        rows = size if method == "svgp" else 2 * size
        return SVGP.from_data(X, y, posterior=posteriors.Whitened, Z=X[:rows, :])
    options = {
        "solve": {},
        "solve-marginal": {"posterior": posteriors.Marginal},
        "odvgp": {"second": posteriors.PriorSpread},
        "solve-relaxed": {"posterior": posteriors.RelaxedOrthogonal},
        "solve-union": {"posterior": posteriors.RelaxedUnion},
    }
    return SOLVEGP.from_data(X, y, Z=X[:size, :], O=X[size : 2 * size, :], **options[method])


class Step:
    """The bound, its gradient, and a step of the recipe, with two groups of 128 on a minibatch of 256 rows."""

    params = [METHODS, BACKENDS, GRADIENTS, DTYPES]
    param_names = ["method", "backend", "gradient", "dtype"]

    def setup(self, method, backend, gradient, dtype):
        from agp.bounds import Batch
        from agp.training import recipe

        self.B, device = backend_or_skip(backend, gradient)
        X, y = problem(self.B, device, dtype=dtype)
        self.model = self.moving = model_of(method, X, y, 128)
        self.batch = Batch(X[:BATCH, :], y[:BATCH, :], ROWS / BATCH)
        self.updates = recipe(self.model, 100, gradient=gradient)
        self.states = [update.init(self.model) for update in self.updates]
        self.time_step(method, backend, gradient, dtype)

    def time_value(self, method, backend, gradient, dtype):
        self.B.synchronise(protocol(self.model, "objective")(self.batch)[0])

    def time_gradient(self, method, backend, gradient, dtype):
        from agp.gradient import gradient_of_batch

        finished(self.B, gradient_of_batch(self.model, self.batch, gradient)[1])

    def time_step(self, method, backend, gradient, dtype):
        info = {}
        for i, update in enumerate(self.updates):
            self.moving, self.states[i], logged = update(self.moving, self.batch, self.states[i])
            info |= logged
        self.B.synchronise(info["bound"])

    def peakmem_step(self, method, backend, gradient, dtype):
        self.time_step(method, backend, gradient, dtype)


class Collapsed:
    """The collapsed bounds and their gradients on 1024 rows, with two groups of 64."""

    params = [BOUNDS, BACKENDS, GRADIENTS, DTYPES]
    param_names = ["bound", "backend", "gradient", "dtype"]

    def setup(self, bound, backend, gradient, dtype):
        from agp.models import SOLVEGPR
        from agp.posteriors import Whitened

        self.B, device = backend_or_skip(backend, gradient)
        X, y = problem(self.B, device, rows=1024, dtype=dtype)
        options = {"optimal": {}, "free": {"second": Whitened}, "tight": {"tight": True}}
        self.model = SOLVEGPR.from_data(X, y, Z=X[:64, :], O=X[64:128, :], **options[bound])
        self.batch = protocol(self.model, "batch")(X, y)

    def time_value(self, bound, backend, gradient, dtype):
        self.B.synchronise(protocol(self.model, "objective")(self.batch)[0])

    def time_gradient(self, bound, backend, gradient, dtype):
        from agp.gradient import gradient_of_batch

        finished(self.B, gradient_of_batch(self.model, self.batch, gradient)[1])

    def peakmem_gradient(self, bound, backend, gradient, dtype):
        self.time_gradient(bound, backend, gradient, dtype)


class Training:
    """The bound after 100 steps with two groups of 32, to detect a loss of quality."""

    params = [axis(["numpy", "torch"], "numpy"), METHODS]
    param_names = ["backend", "method"]

    def setup(self, backend, method):
        self.B, device = backend_or_skip(backend)
        self.X, self.y = problem(self.B, device)
        self.model = model_of(method, self.X, self.y, 32)

    def track_bound(self, backend, method):
        from agp.training import train

        result = train(self.model, self.X, self.y, steps=100, batch_size=BATCH)
        return float(result.model.bound(self.X, self.y)[0])

    track_bound.unit = "nats"
