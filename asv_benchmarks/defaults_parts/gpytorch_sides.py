"""GPyTorch's SVGP and exact GP in a typical configuration, on standardised data in float64, without agp."""

import math
from collections.abc import Iterator
from typing import Any

import gpytorch
import numpy as np
import torch
from contract import Start  # in compare/peers
from gpytorch.constraints import Positive
from gpytorch_peer import Whitened

from defaults_parts.job import Job

NUM_INDUCING, BATCH, STEPS, RATE = 512, 1024, 10_000, 0.01
"""Settings of the SVGP; at most half of the rows are inducing inputs."""
EXACT_STEPS, EXACT_RATE = 200, 0.1
SMALL_INDUCING, SMALL_STEPS = 8, 20
"""Settings in a rehearsal."""
NOISE = 0.1
"""Starting value of the noise variance; lengthscales start at the square root of the number of columns."""

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)


class ExactGP(gpytorch.models.ExactGP):
    """Exact GP with a constant mean, an RBF kernel with a lengthscale for each column, and positive noise."""

    def __init__(self, X: torch.Tensor, y: torch.Tensor) -> None:
        # the default keeps the noise above 1e-4
        super().__init__(X, y, gpytorch.likelihoods.GaussianLikelihood(noise_constraint=Positive()))
        self.likelihood.noise = NOISE
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=X.shape[1]))
        self.covar_module.base_kernel.lengthscale = math.sqrt(X.shape[1])
        self.covar_module.outputscale = 1.0

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        """Prior at inputs x."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def fit_exact(job: Job, seed: int) -> Any:
    """Train an exact GP by Adam on the log evidence, with a Cholesky factorisation whatever the number of rows."""
    X, y = torch.from_numpy(job.inputs(job.X)), torch.from_numpy(job.targets())
    model, steps = ExactGP(X, y), SMALL_STEPS if job.small else EXACT_STEPS
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    adam = torch.optim.Adam(model.parameters(), lr=EXACT_RATE)
    gpytorch.settings.max_cholesky_size(len(y) + 1).__enter__()  # until the process ends
    model.train()
    for _ in range(steps):
        adam.zero_grad()
        (-evidence(model(X), y)).backward()
        adam.step()
    return _prediction(model, job), {"steps": steps}


def fit_svgp(job: Job, seed: int) -> Any:
    """Train a whitened SVGP by Adam, with random rows as initial inducing inputs."""
    inputs, rng = job.inputs(job.X), np.random.default_rng(seed)
    (N, D), steps = inputs.shape, SMALL_STEPS if job.small else STEPS
    M = min(SMALL_INDUCING if job.small else NUM_INDUCING, N // 2)
    X, y = torch.from_numpy(inputs), torch.from_numpy(job.targets().astype(np.float64))
    Z, lengthscale = inputs[rng.choice(N, M, replace=False)], np.full(D, math.sqrt(D))
    likelihood = "bernoulli" if job.classes else "gaussian"
    model = Whitened(
        Start(Z=Z, lengthscale=lengthscale, variance=1.0, noise=NOISE, mean=0.0, likelihood=likelihood, rows=N)
    )
    objective = gpytorch.mlls.VariationalELBO(model.likelihood, model, num_data=N)
    adam = torch.optim.Adam(model.parameters(), lr=RATE)
    model.train()
    for rows in minibatches(N, min(N, BATCH), steps, rng):
        adam.zero_grad()
        (-objective(model(X[rows]), y[rows])).backward()
        adam.step()
    return _prediction(model, job), {"steps": steps, "num_inducing": M}


def minibatches(rows: int, size: int, steps: int, rng: Any) -> Iterator[torch.Tensor]:
    """Yield the rows of each step: consecutive parts of random permutations, whose incomplete ends are dropped."""
    done = 0
    while done < steps:
        order = rng.permutation(rows)
        for i in range(min(rows // size, steps - done)):
            yield torch.from_numpy(order[i * size : (i + 1) * size])
            done += 1


def _prediction(model: Any, job: Job) -> Any:
    """A function from inputs to predictions, both in the units of the table."""
    model.eval()
    centre, spread = (0.0, 1.0) if job.classes else (job.y.mean(), job.y.std())

    @torch.no_grad()
    def predict(X: Any) -> Any:
        found = model.likelihood(model(torch.from_numpy(job.inputs(X))))
        if job.classes:
            mean = found.mean.numpy()
            return np.stack([1.0 - mean, mean], axis=1)
        return centre + spread * found.mean.numpy(), spread**2 * found.variance.numpy()

    return predict
