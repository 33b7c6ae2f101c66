"""The worker of `step_time.py` for agp: times W-SVGP steps of the NumPy backend on request."""

import sys
import warnings

import numpy as np
from exchange import Problem, serve

import agp
from agp.batch import Batch
from agp.gradient import gradient_of_batch
from agp.updates import Adam


class Steps:
    """The model of the problem, in training by Adam."""

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
        """The bound, computed with the gradient of all parameters."""
        return float(gradient_of_batch(self.model, self.batch, "closed-form")[0])

    def step(self) -> float:
        """The same, and Adam's update."""
        self.model, self.state, info = self.adam(self.model, self.batch, self.state)
        return float(info["bound"])


if __name__ == "__main__":
    warnings.simplefilter("error")  # a repaired factorisation would not be the same step
    steps = Steps(Problem.read(sys.argv[1]))
    serve({"gradient": steps.gradient, "step": steps.step}, {"agp": agp.__version__, "numpy": np.__version__})
