"""Time and memory of training steps and of bounds with gradients, and their ratio to dense products.

By default, the axes have few values (see `common`): every method on NumPy, and W-SVGP on every backend, in every
gradient mode and precision.
"""

from .common import (
    BACKENDS,
    BATCH,
    DTYPES,
    EVERY_BACKEND,
    EVERY_DTYPE,
    EVERY_GRADIENT,
    GRADIENTS,
    INDUCING,
    METHODS,
    TIMER,
    axis,
    backend_or_skip,
    problem,
    sparse_model,
)
from .launches import launches
from .stepping import Stepping, clock, in_turn

EVERY_METHOD = [
    "gpr", "sgpr", "nngp", "vif", "msvgp", "wsvgp", "lsvgp", "rsvgp", "asvgp", "qsvgp", "tsvgp", "tvgp",
    "tnngp", "solve", "odvgp", "solve-collapsed", "solve-relaxed", "cagp-opt", "cagp-cg", "cggp",
    "deep-msvgp", "deep-wsvgp", "deep-lsvgp", "deep-rsvgp", "deep-asvgp", "deep-solve",
]  # fmt: skip
"""The names in `agp.methods.METHODS`, written here to avoid the import."""
WAYS = ["method", "backend", "gradient", "dtype", "num_inducing"]


class Methods:
    """Steps of each method, on minibatches of 256 out of 1,024 rows, or on all rows."""

    params = [EVERY_METHOD, BACKENDS, GRADIENTS, DTYPES, axis([32, 128], 32)]
    param_names = WAYS
    timeout = 300
    timer = TIMER

    def setup(self, *way):
        self.stepping = Stepping(*way).warm()

    def time_step(self, *way):
        self.stepping.step()

    def peakmem_bound_and_gradient(self, *way):
        self.stepping.bound_and_gradient()


class Products:
    """Time of a step divided by that of a dense product [M, M] by [M, M] in the same library and precision."""

    params = [axis(EVERY_METHOD, *METHODS), BACKENDS, GRADIENTS, DTYPES, axis([256, 512], 256)]
    param_names = WAYS
    timeout = 300

    def setup(self, *way):
        self.stepping = Stepping(*way).warm()

    def track_step(self, method, backend, gradient, dtype, num_inducing):
        B = self.stepping.B
        _, device = backend_or_skip(backend)
        X, _ = problem(B, device, rows=num_inducing, dtype=dtype)
        A = X @ X.mT
        step, product = in_turn([self.stepping.step, lambda: B.synchronise(A @ A)], clock(backend))
        return step / product

    track_step.unit = "products"


class Ways:
    """Steps of W-SVGP on every backend, in both gradient modes and precisions."""

    params = [axis(EVERY_METHOD, "wsvgp"), EVERY_BACKEND, EVERY_GRADIENT, EVERY_DTYPE, [128]]
    param_names = WAYS
    timeout = 300
    timer = TIMER

    setup = Methods.setup
    time_step = Methods.time_step


class Launches:
    """Number of array library calls in a step; on an accelerator, each call takes time, whatever its size."""

    params = [axis(EVERY_METHOD, "wsvgp", "rsvgp"), ["torch", "jax"], EVERY_GRADIENT]
    param_names = WAYS[:3]
    timeout = 300

    def setup(self, method, backend, gradient):
        self.stepping = Stepping(method, backend, gradient, "float64", 32)

    def track_calls(self, method, backend, gradient):
        return launches(self.stepping)

    track_calls.unit = "calls"


class FirstStep:
    """Time of the first step in a process, during which JAX traces and compiles; the other benchmarks exclude it."""

    params = [axis(EVERY_METHOD, "wsvgp", "rsvgp"), axis(EVERY_BACKEND, "jax"), EVERY_GRADIENT]
    param_names = WAYS[:3]
    timeout = 300

    def setup(self, method, backend, gradient):
        self.stepping = Stepping(method, backend, gradient, "float64", 32)

    def track_seconds(self, method, backend, gradient):
        now = clock(backend)
        began = now()
        self.stepping.step()
        return now() - began

    track_seconds.unit = "seconds"


class Size:
    """How the time of a step grows with M, for closed-form gradients in float64."""

    params = [axis(METHODS, "wsvgp", "rsvgp"), BACKENDS, INDUCING]
    param_names = ["method", "backend", "num_inducing"]
    timer = TIMER

    def setup(self, method, backend, num_inducing):
        self.stepping = Stepping(method, backend, "closed-form", "float64", num_inducing).warm()

    def time_step(self, method, backend, num_inducing):
        self.stepping.step()


class Large:
    """Time and memory of steps with 1,024 and 2,048 inducing inputs, on minibatches of 256 out of 4,096 rows."""

    params = [axis(METHODS, "wsvgp"), BACKENDS, GRADIENTS, DTYPES, axis([1024, 2048], 1024)]
    param_names = WAYS
    timeout = 900
    timer = TIMER

    def setup(self, *way):
        self.stepping = Stepping(*way, rows=4096).warm()

    def time_step(self, *way):
        self.stepping.step()

    def peakmem_bound_and_gradient(self, *way):
        self.stepping.bound_and_gradient()


class Baseline:
    """Memory of the process before any step, to be subtracted from the peaks above."""

    params = [EVERY_BACKEND]
    param_names = ["backend"]

    def setup(self, backend):
        self.B, self.device = backend_or_skip(backend)

    def peakmem_data(self, backend):
        problem(self.B, self.device)


class Training:
    """The bound after 100 steps, to detect a loss of quality."""

    params = [axis(["numpy", "torch"], "numpy"), METHODS]
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
