"""Worker of `natural_step.py` for agp: on request, times steps of q(u) with NumPy."""

import sys
import warnings
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
from contract import Problem
from exchange import serve
from natural_step import BATCHES

import agp
from agp.bounds import Batch
from agp.updates import NaturalGradient, SiteStep

SVGP = agp.SVGP.from_data
KINDS: dict[str, tuple[Callable[..., Any], Callable[[float], Any]]] = {
    "datum": (agp.TSVGP.from_data, SiteStep),
    "natural": (partial(SVGP, posterior=partial(agp.posteriors.Dual.from_prior, tied="natural")), SiteStep),
    "kernel": (partial(SVGP, posterior=partial(agp.posteriors.Dual.from_prior, tied="kernel")), SiteStep),
    "white": (partial(SVGP, posterior=partial(agp.posteriors.Dual.from_prior, tied="white")), SiteStep),
    "inverse-free": (partial(SVGP, posterior=agp.posteriors.DualInverseFree), SiteStep),
    "q-svgp": (partial(SVGP, posterior=agp.posteriors.Whitened), NaturalGradient),
}


class Steps:
    """Steps of q(u) on one minibatch after another, at fixed hyperparameters."""

    def __init__(self, problem: Problem, kind: str) -> None:
        p = problem
        make, update = KINDS[kind]
        binary = p.likelihood == "bernoulli"
        self.X, self.y = p.X, p.y[:, None]
        likelihood = agp.Bernoulli() if binary else agp.Gaussian(p.noise)
        kernel = agp.RBF(p.variance, p.lengthscale)
        self.model = make(self.X, self.y, kernel=kernel, likelihood=likelihood, Z=p.Z, jitter=p.jitter)
        self.update = update(p.rate)
        self.state = self.update.init(self.model)
        parts = np.split(np.arange(p.rows), BATCHES)
        self.batches = cycle([Batch(self.X[rows], self.y[rows], float(BATCHES), rows) for rows in parts])

    def step(self) -> float:
        """Run one step; return the maximum number of step halvings."""
        self.model, self.state, info = self.update(self.model, next(self.batches), self.state)
        return float(info["halvings"])

    def bound(self) -> float:
        """Run a step on each minibatch; return the bound of all rows."""
        for _ in range(BATCHES):
            self.step()
        return float(self.model.bound(self.X, self.y)[0])


if __name__ == "__main__":
    warnings.simplefilter("error")  # a step with a repaired factorisation would be a different step
    given = Problem.read(sys.argv[1])
    work: dict[str, Callable[[], float]] = {}
    for kind in KINDS:
        work |= {kind: Steps(given, kind).step, f"bound:{kind}": Steps(given, kind).bound}
    serve(work, {"agp": agp.__version__, "numpy": np.__version__})
