"""Gradient of a bound inside a torch or JAX program: by the closed-form pullback, and by automatic differentiation.

The program is a torch module's backward pass, or `jax.jit(jax.value_and_grad(...))`, over the unconstrained parameters.
"""

from .common import axis, backend_or_skip, problem, protocol, sparse_model

ROWS = 1024


def bound_of(model, X, y, gradient):
    """The bound for a program: with its closed-form pullback, or with recorded operations."""
    from agp.bounds import Batch

    return model.bound(X, y)[0] if gradient == "closed-form" else protocol(model, "objective")(Batch(X, y))[0]


def torch_program(model, X, y, gradient):
    """A closure for an optimiser: forward and backward pass of minus the bound."""
    from agp import tree

    raw = {name: x.clone().requires_grad_() for name, x in tree.unconstrain(model).items()}

    def run():
        for x in raw.values():
            x.grad = None
        (-bound_of(tree.constrain(model, raw), X, y, gradient)).backward()

    return run


def jax_program(model, X, y, gradient):
    """The compiled value and gradient of the bound."""
    import jax

    from agp import tree

    def of_raw(raw, X, y):
        return bound_of(tree.constrain(model, raw), X, y, gradient)

    raw = tree.unconstrain(model)
    compiled = jax.jit(jax.value_and_grad(of_raw)).lower(raw, X, y).compile()
    return lambda: jax.block_until_ready(compiled(raw, X, y)), compiled


class Program:
    """Time and peak memory of the value and gradient on 1024 rows."""

    params = [
        axis(["torch", "jax"], "torch"),
        ["closed-form", "autodiff"],
        axis(["wsvgp", "rsvgp"], "wsvgp"),
        axis([128, 512, 1024], 128),
    ]
    param_names = ["backend", "gradient", "method", "num_inducing"]

    def setup(self, backend, gradient, method, num_inducing):
        B, device = backend_or_skip(backend, "autodiff")
        X, y = problem(B, device, rows=ROWS)
        model = sparse_model(method, X, y, num_inducing)
        self.run = torch_program(model, X, y, gradient) if backend == "torch" else jax_program(model, X, y, gradient)[0]
        self.run()

    def time_program(self, backend, gradient, method, num_inducing):
        self.run()

    def peakmem_program(self, backend, gradient, method, num_inducing):
        self.run()


class Compiled:
    """Temporary memory of JAX's compiled program."""

    params = Program.params[1:]
    param_names = Program.param_names[1:]

    def setup(self, gradient, method, num_inducing):
        B, device = backend_or_skip("jax", "autodiff")
        X, y = problem(B, device, rows=ROWS)
        self.compiled = jax_program(sparse_model(method, X, y, num_inducing), X, y, gradient)[1]

    def track_bytes(self, gradient, method, num_inducing):
        return self.compiled.memory_analysis().temp_size_in_bytes

    track_bytes.unit = "bytes"
