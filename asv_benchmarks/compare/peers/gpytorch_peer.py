"""GPyTorch's whitened SVGP. In training mode, GPyTorch clears its caches, so every step factorises Kuu."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
import math
import os
from typing import Any

import gpytorch
import torch
from contract import Start
from gpytorch.constraints import Positive
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy

SMOOTHNESS = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}


class Whitened(gpytorch.models.ApproximateGP):
    """Whitened SVGP. As in agp, positive parameters are softplus of raw values. Jitter is added to prior variances."""

    def __init__(self, start: Start) -> None:
        s, (M, D) = start, start.Z.shape
        q = CholeskyVariationalDistribution(M, mean_init_std=0.0)
        super().__init__(VariationalStrategy(self, torch.from_numpy(s.Z.copy()), q, True, jitter_val=s.jitter))
        q.variational_mean.data.copy_(torch.from_numpy(s.q_mean))
        q.chol_variational_covar.data.copy_(torch.from_numpy(s.q_scale))
        self.variational_strategy.variational_params_initialized.fill_(1)
        means = gpytorch.means
        self.mean_module = means.ZeroMean() if math.isnan(s.mean) else means.ConstantMean()
        if not math.isnan(s.mean):
            self.mean_module.initialize(constant=s.mean)
        kernels = gpytorch.kernels
        stationary = (
            kernels.RBFKernel(ard_num_dims=D)
            if s.kernel == "rbf"
            else kernels.MaternKernel(nu=SMOOTHNESS[s.kernel], ard_num_dims=D)
        )
        self.covar_module = kernels.ScaleKernel(stationary)
        self.covar_module.base_kernel.lengthscale = torch.from_numpy(s.lengthscale)
        self.covar_module.outputscale = s.variance
        if s.likelihood == "bernoulli":
            self.likelihood = gpytorch.likelihoods.BernoulliLikelihood()
            return
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=Positive())  # default: > 1e-4
        self.likelihood.noise = s.noise

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        """The prior distribution of f at x."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class Peer:
    """See `contract.Peer`."""

    versions = {"gpytorch": gpytorch.__version__, "torch": torch.__version__}

    def __init__(self, start: Start) -> None:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        torch.set_default_dtype(getattr(torch, start.Z.dtype.name))
        self.rows = start.rows
        self.model = Whitened(start)
        self.model.train()
        self.objective = gpytorch.mlls.VariationalELBO(self.model.likelihood, self.model, num_data=start.rows)
        Z = self.model.variational_strategy.inducing_points
        others = [x for x in self.model.parameters() if x is not Z]
        groups = [{"params": others}, {"params": [Z], "betas": (start.Z_beta1, 0.999)}]
        self.adam = torch.optim.Adam(groups, eps=start.epsilon)

    def _bound(self, X: Any, y: Any) -> torch.Tensor:
        # the total, not the mean over the rows, so that Adam's epsilon has the same effect as in agp
        return self.rows * self.objective(self.model(torch.from_numpy(X)), torch.from_numpy(y))

    def bound(self, X: Any, y: Any) -> float:
        """See `contract.Peer` for this method and the following ones."""
        with torch.no_grad():
            return float(self._bound(X, y))

    def kl(self) -> float:
        with torch.no_grad():
            return float(self.model.variational_strategy.kl_divergence())

    def gradient(self, X: Any, y: Any) -> float:
        self.adam.zero_grad()
        loss = -self._bound(X, y)
        loss.backward()
        return -float(loss.detach())

    def step(self, X: Any, y: Any, rate: float, Z_rate: float) -> float:
        for group, value in zip(self.adam.param_groups, (rate, Z_rate), strict=True):
            group["lr"] = value
        bound = self.gradient(X, y)
        self.adam.step()
        return bound

    def predict(self, X: Any) -> tuple[Any, Any]:
        self.model.eval()
        with torch.no_grad():
            f = self.model(torch.from_numpy(X))
            mean, variance = f.mean.numpy(), f.variance.numpy()
        self.model.train()
        return mean, variance

    def noise(self) -> float:
        likelihood = self.model.likelihood
        if isinstance(likelihood, gpytorch.likelihoods.BernoulliLikelihood):
            return 0.0
        return float(likelihood.noise.detach())
