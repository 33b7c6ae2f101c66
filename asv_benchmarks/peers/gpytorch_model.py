"""GPyTorch's whitened SVGP with an RBF-ARD kernel and a Gaussian or Bernoulli likelihood, in float64."""

from typing import Any

import gpytorch
import torch
from gpytorch.constraints import Positive
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy


class WhitenedSVGP(gpytorch.models.ApproximateGP):
    """Whitened SVGP whose q(u) starts at the prior; the softplus makes parameters positive, as in agp.

    Parameters
    ----------
    Z
        Initial inducing inputs, a NumPy array [M, D]; they are trained.
    lengthscale, variance, noise
        Starting values: an array [D] and two numbers.
    binary
        Whether the likelihood is Bernoulli instead of Gaussian.
    constant_mean
        Whether the prior mean is a trained constant that starts at zero, instead of being fixed at zero.
    jitter
        Jitter on the diagonal of Kuu. None selects the library's default, 1e-6 in float64.
    """

    def __init__(
        self, Z: Any, lengthscale: Any, variance: float, noise: float, *, jitter: float | None, binary: bool = False,
        constant_mean: bool = False,
    ) -> None:  # fmt: skip
        M, D = Z.shape
        q = CholeskyVariationalDistribution(M, mean_init_std=0.0)
        super().__init__(VariationalStrategy(self, torch.from_numpy(Z.copy()), q, True, jitter_val=jitter))
        q.variational_mean.data.zero_()
        q.chol_variational_covar.data.copy_(torch.eye(M))
        self.variational_strategy.variational_params_initialized.fill_(1)
        self.mean_module = gpytorch.means.ConstantMean() if constant_mean else gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=D))
        self.covar_module.base_kernel.lengthscale = torch.from_numpy(lengthscale)
        self.covar_module.outputscale = variance
        if binary:
            self.likelihood = gpytorch.likelihoods.BernoulliLikelihood()
            return
        # the default keeps the noise above 1e-4
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=Positive())
        self.likelihood.noise = noise

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        """Prior at inputs x."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))
