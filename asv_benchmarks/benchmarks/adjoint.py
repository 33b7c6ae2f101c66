"""A bound inside somebody else's program: its gradient by the hand-derived adjoint, and by differentiating the forward.

The program is a torch module's backward pass, or `jax.jit(jax.value_and_grad(...))`, over the raw leaves.
"""

from .common import axis, backend_or_skip, problem, protocol, sparse_model

ROWS = 1024


def bound_of(model, X, y, gradient):
    """The bound that a program sees: it carries the adjoint, or the library records its forward."""
    from agp.batch import Batch

    return model.bound(X, y)[0] if gradient == "closed-form" else protocol(model, "objective")(Batch(X, y))[0]


def torch_program(model, X, y, gradient):
    """Forward and backward of minus the bound, as an optimiser's closure runs them."""
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
    """Time and memory of the value and gradient on 1024 rows."""

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
    """What JAX's compiled program needs besides its arguments and results."""

    params = Program.params[1:]
    param_names = Program.param_names[1:]

    def setup(self, gradient, method, num_inducing):
        B, device = backend_or_skip("jax", "autodiff")
        X, y = problem(B, device, rows=ROWS)
        self.compiled = jax_program(sparse_model(method, X, y, num_inducing), X, y, gradient)[1]

    def track_bytes(self, gradient, method, num_inducing):
        return self.compiled.memory_analysis().temp_size_in_bytes

    track_bytes.unit = "bytes"
