"""Covariance matrices and their pullbacks, by kernel, backend and precision."""

from .common import BACKENDS, DTYPES, backend_or_skip, beside, problem

KERNELS = ["RBF", "Matern12", "Matern32", "Matern52", "RationalQuadratic", "Periodic", "Linear", "RBF+Linear"]


class Covariance:
    """Covariances k(Z, Z) of 512 rows, and k(Z, X) of 512 and 1024 rows, with 8 columns."""

    params = [KERNELS, BACKENDS, DTYPES]
    param_names = ["kernel", "backend", "dtype"]

    def setup(self, kernel, backend, dtype):
        from agp import kernels

        self.B, device = backend_or_skip(backend)
        self.X, _ = problem(self.B, device, rows=1024, dtype=dtype)
        self.Z = self.X[:512, :]
        first, *rest = (getattr(kernels, name)() for name in kernel.split("+"))
        self.kernel = beside(self.B, sum(rest, first).from_data(self.X, 1.0), self.X)
        self.inputs = {"square": (self.Z,), "cross": (self.Z, self.X)}
        self.pull = {name: self.kernel(*inputs) for name, inputs in self.inputs.items()}

    def value(self, name):
        self.B.synchronise(self.kernel(*self.inputs[name])[0])

    def pullback(self, name):
        K, pull = self.pull[name]
        self.B.synchronise(pull(K)[1])

    def time_square(self, kernel, backend, dtype):
        self.value("square")

    def time_square_pullback(self, kernel, backend, dtype):
        self.pullback("square")

    def time_cross(self, kernel, backend, dtype):
        self.value("cross")

    def time_cross_pullback(self, kernel, backend, dtype):
        self.pullback("cross")
