"""Worker of `step_time.py` for another library: times steps of its whitened SVGP, as in `agp compare --peers`."""

import math
import sys

import numpy as np
from exchange import Problem, serve

from contract import Start  # isort: skip - exchange adds the folder to sys.path
from train import open_peer  # isort: skip


class Steps:
    """Training of the problem's model by Adam from q(u) = p(u)."""

    def __init__(self, library: str, problem: Problem) -> None:
        p = problem
        M, dtype = len(p.Z), p.Z.dtype
        q = {"q_mean": np.zeros(M, dtype), "q_scale": np.eye(M, dtype=dtype)}
        parts = {"mean": math.nan, "kernel": "rbf", "rows": p.rows, "epsilon": 1e-7, "Z_beta1": 0.9}
        start = Start(p.Z, p.lengthscale, p.variance, p.noise, jitter=p.jitter, **parts, **q)
        self.kind = open_peer(library)
        self.peer, self.X, self.y, self.rate = self.kind(start), p.X, p.y, p.rate

    def gradient(self) -> float:
        """Compute the gradient of all parameters; return the bound."""
        return self.peer.gradient(self.X, self.y)

    def step(self) -> float:
        """Compute the gradient and apply Adam's update; return the bound."""
        return self.peer.step(self.X, self.y, self.rate, self.rate)


if __name__ == "__main__":
    steps = Steps(sys.argv[2], Problem.read(sys.argv[1]))
    serve({"gradient": steps.gradient, "step": steps.step}, steps.kind.versions)
