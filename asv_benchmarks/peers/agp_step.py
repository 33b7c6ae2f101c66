"""Worker of `step_time.py` for agp: on request, times W-SVGP steps with NumPy."""

import sys
import warnings

import numpy as np
from exchange import Problem, serve

import agp
from agp.bounds import Batch
from agp.gradient import gradient_of_batch
from agp.updates import Adam


class Steps:
    """Training of the problem's model by Adam."""

    def __init__(self, problem: Problem) -> None:
        p = problem
        M = len(p.Z)
        process = agp.processes.Sparse(
            kernel=agp.RBF(np.asarray(p.variance, p.Z.dtype), p.lengthscale.copy()),
            inducing=agp.inducing.Points(p.Z.copy()),
            posterior=agp.posteriors.Whitened(np.zeros((M, 1), p.Z.dtype), np.eye(M, dtype=p.Z.dtype)[None]),
            jitter=p.jitter,
        )
        self.model = agp.SVGP(process, agp.Gaussian(np.asarray(p.noise, p.Z.dtype)))
        self.batch = Batch(p.X, p.y[:, None], p.rows / len(p.X))
        self.adam = Adam(p.rate)
        self.state = self.adam.init(self.model)

    def gradient(self) -> float:
        """Compute the gradient of all parameters; return the bound."""
        return float(gradient_of_batch(self.model, self.batch, "closed-form")[0])

    def step(self) -> float:
        """Compute the gradient and apply Adam's update; return the bound."""
        self.model, self.state, info = self.adam(self.model, self.batch, self.state)
        return float(info["bound"])


if __name__ == "__main__":
    warnings.simplefilter("error")  # a step with a repaired factorisation would be a different step
    steps = Steps(Problem.read(sys.argv[1]))
    serve({"gradient": steps.gradient, "step": steps.step}, {"agp": agp.__version__, "numpy": np.__version__})
