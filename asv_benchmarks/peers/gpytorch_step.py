"""The worker of `step_time.py` for GPyTorch: times steps of its whitened SVGP on request."""

import sys

import gpytorch
import torch
from exchange import Problem, serve
from gpytorch_model import WhitenedSVGP


class Steps:
    """The model of the problem, in training by Adam.

    In training mode GPyTorch clears its caches at each call, so every step factorises Kuu anew.
    """

    def __init__(self, problem: Problem) -> None:
        p = problem
        self.X, self.y, self.rows = torch.from_numpy(p.X), torch.from_numpy(p.y), p.rows
        self.model = WhitenedSVGP(p.Z, p.lengthscale, p.variance, p.noise, jitter=p.jitter)
        self.model.train()
        self.objective = gpytorch.mlls.VariationalELBO(self.model.likelihood, self.model, num_data=p.rows)
        self.adam = torch.optim.Adam(self.model.parameters(), lr=p.rate, eps=1e-7)

    def gradient(self) -> float:
        """The bound, computed with the gradient of all parameters."""
        self.adam.zero_grad()
        loss = -self.rows * self.objective(self.model(self.X), self.y)
        loss.backward()
        return -float(loss.detach())

    def step(self) -> float:
        """The same, and Adam's update."""
        bound = self.gradient()
        self.adam.step()
        return bound


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    steps = Steps(Problem.read(sys.argv[1]))
    versions = {"gpytorch": gpytorch.__version__, "torch": torch.__version__}
    serve({"gradient": steps.gradient, "step": steps.step}, versions)
