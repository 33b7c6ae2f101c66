"""Sparse GP regression with the optimal q(u)."""

from collections.abc import Mapping
from typing import Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.batch import Batch
from agp.bounds import Collapsed, collapsed_bound, collapsed_posterior
from agp.inducing import How
from agp.kernels import Kernel
from agp.likelihoods import Gaussian, Likelihood
from agp.linalg import cholesky, identity
from agp.means import Mean, ZeroMean
from agp.models._base import Conditioned
from agp.models._regression import SparseRegression, gaussian_only
from agp.models._start import checked_jitter, chosen_inducing, copied, started, started_model
from agp.models._svgp import SVGP
from agp.posteriors import Whitened
from agp.priors import Prior, Priors, as_priors
from agp.rows import MEMORY
from agp.units import column_spreads

__all__ = ["SGPR", "shared_covariance"]


def shared_covariance(mean: Array, L: Array) -> Whitened:
    """q(v_p) = N(m_p, (L L^T)^-1) in whitened coordinates, for a mean [M, P] and L [M, M]."""
    B = backend_of(L)
    xp = B.xp
    M, P = mean.shape
    # C C^T = (L L^T)^-1 with lower C: factorise with rows and columns in reverse order, R R^T = J (L L^T) J; then
    # C = J R^-T J, and nothing is inverted twice
    R = cholesky(xp.flip(L @ L.mT))
    scale = xp.tril(xp.flip(B.solve_triangular(R, identity(R), transpose=True)))
    return Whitened(mean, xp.asarray(xp.broadcast_to(scale, (P, M, M)), copy=True))


@tree.model
class SGPR(SparseRegression):
    """Sparse GP regression with Gaussian noise: the variational bound at its optimal q(u), O(N M^2) time.

    There is no q(u) to train: kernel, noise and inducing inputs are all the parameters. The bound needs all data at
    once and takes them in blocks of rows, so that memory does not grow with N, but for the copy of the data themselves.
    Each prediction passes over the data first; `to_svgp` gives a model that need not, and does not hold them.

    Parameters
    ----------
    kernel, likelihood
        The prior covariance of f, and `Gaussian` noise.
    Z
        Inducing inputs [M, D].
    X, y
        The data [N, D] and [N, P], which prediction needs: N (D + P) numbers, which checkpoints hold as well.
    jitter
        Added to the diagonal of Kuu: absolute if given; by default 1e-6 (float64) or 1e-4 (float32) of its mean.
    mean_function, priors
        As `SVGP`.

    Source: Titsias, "Variational learning of inducing variables in sparse Gaussian processes", AISTATS 2009.
    """

    kernel: Kernel
    likelihood: Gaussian  # type: ignore[assignment]
    Z: Array = tree.param(unit="Z_unit")
    X: Array = tree.constant()
    y: Array = tree.constant()
    jitter: float | None = None
    mean_function: Mean = ZeroMean()
    priors: Priors = ()
    Z_unit: Array | None = tree.unit(default=None)

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
        num_inducing: int | None = None,
        Z: Array | None = None,
        inducing: How = "kmeans",
        priors: Mapping[str, Prior] | None = None,
        seed: int = 0,
        jitter: float | None = None,
    ) -> Self:
        """A model ready to be trained; arguments and errors as `SVGP.from_data`.

        Raises
        ------
        TypeError
            Also if the likelihood is not Gaussian.
        """
        X, y, kernel, likelihood, mean_function = started(X, y, kernel, gaussian_only(cls, likelihood), mean_function)
        Z = chosen_inducing(X, Z, kernel, num_inducing, how=inducing, seed=seed)
        settings = checked_jitter(jitter), mean_function, as_priors(priors)
        data = Z, copied(X), copied(y)
        return started_model(cls(kernel, likelihood, *data, *settings, Z_unit=column_spreads(X)))  # type: ignore[arg-type]

    def objective(self, batch: Batch, /, *, memory: float = MEMORY) -> tuple[Array, Pullback]:
        return collapsed_bound(self, batch.X, batch.y, block_rows=self._block_rows(batch.X, memory))

    # -- prediction -------------------------------------------------------------------------------------------------

    def _posterior(self) -> Collapsed:
        return collapsed_posterior(self, self.X, self.y, block_rows=self._block_rows(self.X, MEMORY))

    def to_svgp(self) -> SVGP:
        """The W-SVGP with the same parameters and the optimal q(u): same bound, same predictions, without the data."""
        _, LB, c, _ = self._posterior()
        posterior = shared_covariance(backend_of(LB).solve_triangular(LB, c, transpose=True), LB)
        settings = self.jitter, self.mean_function, self.priors
        return SVGP(self.kernel, self.likelihood, posterior, self.Z, *settings, Z_unit=self.Z_unit)

    def conditioned(self) -> Conditioned:
        Lu, LB, c, _ = self._posterior()
        B = backend_of(Lu)
        xp = B.xp
        P = c.shape[1]
        weights = B.solve_triangular(Lu, B.solve_triangular(LB, c, transpose=True), transpose=True)

        def mean(X: Array) -> Array:
            return self.mean_function(X)[0] + self.kernel(self.Z, X)[0].mT @ weights

        def moments(X: Array) -> tuple[Array, Array]:
            # kss - colsum(As^2) + colsum(Bs^2), As = Lu^-1 Kus, Bs = LB^-1 As
            A = B.solve_triangular(Lu, self.kernel(self.Z, X)[0])
            A_LB = B.solve_triangular(LB, A)
            conditional = self.kernel.diag(X)[0] - xp.sum(A * A, axis=0)
            var = xp.maximum(conditional, xp.zeros_like(conditional)) + xp.sum(A_LB * A_LB, axis=0)
            return self.mean_function(X)[0] + A_LB.mT @ c, xp.broadcast_to(var[:, None], (X.shape[0], P))

        def covariance(X: Array) -> Array:
            A = B.solve_triangular(Lu, self.kernel(self.Z, X)[0])
            A_LB = B.solve_triangular(LB, A)
            full = self.kernel(X)[0] - A.mT @ A + A_LB.mT @ A_LB
            return xp.broadcast_to(full, (P, *full.shape))

        return Conditioned(mean, moments, covariance, floats_per_row=self._floats_per_row)
