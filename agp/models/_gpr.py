"""Exact GP regression."""

from collections.abc import Mapping
from typing import Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.batch import Batch
from agp.bounds import log_evidence
from agp.kernels import Kernel
from agp.likelihoods import Gaussian, Likelihood
from agp.linalg import cholesky, identity, nonnegative
from agp.means import Mean, ZeroMean
from agp.models._base import Conditioned
from agp.models._regression import Regression, gaussian_only
from agp.leaves import copied
from agp.models._start import started, started_model
from agp.priors import Prior, Priors, as_priors
from agp.rows import MEMORY

__all__ = ["GPR"]


@tree.model
class GPR(Regression):
    """Exact GP regression with Gaussian noise: O(N^3) time, O(N^2) memory; the yardstick for every approximation.

    Parameters
    ----------
    kernel, likelihood
        The prior covariance of f, and `Gaussian` noise.
    X, y
        The data [N, D] and [N, P], which prediction needs.
    mean_function, priors
        As `SVGP`.
    """

    kernel: Kernel
    likelihood: Gaussian  # type: ignore[assignment]
    X: Array = tree.constant()
    y: Array = tree.constant()
    mean_function: Mean = ZeroMean()
    priors: Priors = ()

    @classmethod
    def from_data(
        cls,
        X: Array,
        y: Array,
        /,
        *,
        kernel: Kernel | None = None,
        likelihood: Likelihood | None = None,
        mean_function: Mean | None = None,
        priors: Mapping[str, Prior] | None = None,
    ) -> Self:
        """A model ready to be trained; arguments and errors as `SVGP.from_data`.

        Raises
        ------
        TypeError
            Also if the likelihood is not Gaussian.
        """
        X, y, kernel, likelihood, mean_function = started(X, y, kernel, gaussian_only(cls, likelihood), mean_function)
        return started_model(cls(kernel, likelihood, copied(X), copied(y), mean_function, as_priors(priors)))  # type: ignore[arg-type]

    def objective(self, batch: Batch, /, *, memory: float = MEMORY) -> tuple[Array, Pullback]:  # noqa: ARG002
        return log_evidence(self, batch.X, batch.y)  # N x N whatever the budget

    def conditioned(self, *, memory: float = MEMORY) -> Conditioned:
        B = backend_of(self.X)
        xp = B.xp
        K = self.kernel(self.X)[0]
        L = cholesky(K + self.likelihood.noise_variance * identity(K))
        residual = self.y - self.mean_function(self.X)[0]
        weights = B.solve_triangular(L, B.solve_triangular(L, residual), transpose=True)
        N, P = self.y.shape

        def mean(X: Array) -> Array:
            return self.mean_function(X)[0] + self.kernel(X, self.X)[0] @ weights

        def moments(X: Array) -> tuple[Array, Array]:
            Kfs = self.kernel(self.X, X)[0]
            A = B.solve_triangular(L, Kfs)
            var = nonnegative(self.kernel.diag(X)[0] - xp.sum(A * A, axis=0))[0]
            return self.mean_function(X)[0] + Kfs.mT @ weights, xp.broadcast_to(var[:, None], (X.shape[0], P))

        def covariance(X: Array) -> Array:
            A = B.solve_triangular(L, self.kernel(self.X, X)[0])
            full = self.kernel(X)[0] - A.mT @ A
            return xp.broadcast_to(full, (P, *full.shape))

        return Conditioned(mean, moments, covariance, floats_per_row=N * (self.kernel.floats_per_entry + 2))
