"""t-SVGP with a site for each datum."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.batch import Batch
from agp.inducing import How
from agp.kernels import Kernel
from agp.likelihoods import Likelihood
from agp.linalg import cholesky, cholesky_pullback, diagonal, identity, lower_of
from agp.means import Mean, ZeroMean
from agp.models._base import Conditioned
from agp.models._sites import SiteModel, SiteView
from agp.models._start import checked_jitter, chosen_inducing, copied, started, started_model
from agp.models._svgp import SVGP
from agp.posteriors import Dual, NaturalState, Tied, factorise, inducing_covariance, natural_state
from agp.priors import Prior, Priors, as_priors
from agp.rows import MEMORY, blocks_of, tile_rows
from agp.units import column_spreads

__all__ = ["TSVGP"]


@tree.model
class TSVGP(SiteModel):
    """A sparse variational GP in the dual parameterisation, with a Gaussian site for each datum; any likelihood.

    q(u_p) ~ N(0, Kuu) prod_n exp(lam1_np a_n^T u - lam2_np (a_n^T u)^2 / 2) with a_n = Kuu^-1 k_un. The sites, 2 N P
    numbers, have no gradient: `agp.updates.SiteStep` moves them. As a function of kernel and inducing inputs the bound
    follows the optimum of q(u) closely, and exactly for Gaussian noise, where it is that of `SGPR`. Each evaluation
    passes over all data, in blocks of rows; the expected log density is taken at the rows of the batch. Tied sites
    (`agp.posteriors.Dual` with `SVGP`) need neither the pass nor the data.

    Parameters
    ----------
    kernel, likelihood
        The prior covariance of f, and p(y | f).
    Z
        Inducing inputs [M, D].
    X
        The inputs of all data [N, D], to which the sites belong. Constant: the pullback of the bound gives a cotangent
        of the rows at which expectations are taken, and none of these.
    site_shift, site_precision
        lam1 and lam2 [N, P]; 0 is no site. Auxiliary.
    jitter
        Added to the diagonal of Kuu: absolute if given; by default 1e-6 (float64) or 1e-4 (float32) of its mean.
    mean_function
        The prior mean h of f; sites and q(u) are those of f - h.
    priors
        As `SVGP`.

    Source: Adam, Chang, Khan & Solin, "Dual parameterization of sparse variational Gaussian processes", NeurIPS 2021.
    """

    kernel: Kernel
    likelihood: Likelihood
    Z: Array = tree.param(unit="Z_unit")
    X: Array = tree.constant()
    site_shift: Array = tree.auxiliary()
    site_precision: Array = tree.auxiliary()
    jitter: float | None = None
    mean_function: Mean = ZeroMean()
    priors: Priors = ()
    Z_unit: Array | None = tree.unit(default=None)

    stochastic: ClassVar[bool] = True

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
        """A model ready to be trained, without sites yet; arguments and errors as `SVGP.from_data`."""
        X, y, kernel, likelihood, mean_function = started(X, y, kernel, likelihood, mean_function)
        Z = chosen_inducing(X, Z, kernel, num_inducing, how=inducing, seed=seed)
        xp = backend_of(X).xp
        none = xp.zeros((X.shape[0], likelihood.latents(y.shape[1])), **like(X))
        settings = checked_jitter(jitter), mean_function, as_priors(priors)
        sites = none, none + 0.0
        return started_model(cls(kernel, likelihood, Z, copied(X), *sites, *settings, Z_unit=column_spreads(X)))

    # -- q(u) -------------------------------------------------------------------------------------------------------

    def white_sites(self, *, memory: float = MEMORY) -> tuple[tuple[Array, Array], Pullback]:
        """The sites of v = Lu^-1 u, [M, P] and [P, M, M], and their pullback to the model; a fold over the data."""
        Kuu, pull_Kuu = inducing_covariance(self)
        Lu = cholesky(Kuu)
        blocks = self._blocks(memory)
        sites, pull = backend_of(Lu).fold(_block, (self, Lu), blocks, add=tree.add)

        def pullback(shift_bar, precision_bar):
            model_bar, change_bar = pull((shift_bar, precision_bar))
            return tree.add(model_bar, pull_Kuu(cholesky_pullback(Lu, change_bar)))

        return sites, pullback

    def _blocks(self, memory: float) -> list[tuple[Array, ...]]:
        P = self.outputs
        floats = self.Z.shape[0] * (self.kernel.floats_per_entry + 4 + 2 * P)
        rows = tile_rows(memory, floats, self.X)
        return list(blocks_of(rows, self.X, self.site_shift, self.site_precision))

    def _state(self, memory: float = MEMORY) -> tuple[NaturalState, Pullback]:
        """q(v), and ``state_bar -> model_bar``."""
        (shift, site), pull_sites = self.white_sites(memory=memory)
        state, pull_state = natural_state(shift, site + identity(site))
        return state, lambda state_bar: pull_sites(*pull_state(state_bar))

    def _sparse(self, posterior: Any) -> SVGP:
        settings = self.jitter, self.mean_function, self.priors
        return SVGP(self.kernel, self.likelihood, posterior, self.Z, *settings, Z_unit=self.Z_unit)

    # -- bound ------------------------------------------------------------------------------------------------------

    def objective(self, batch: Batch, /, *, memory: float = MEMORY) -> tuple[Array, Pullback]:
        state, pull_state = self._state(memory)
        value, pull = self._sparse(state).objective(batch, memory=memory)

        def pullback(bar=1.0):
            sparse_bar, X_bar = pull(bar)
            names = ("kernel", "likelihood", "Z", "mean_function")
            direct = tree.cotangent(self, **{name: getattr(sparse_bar, name) for name in names})
            return tree.add(direct, pull_state(sparse_bar.posterior)), X_bar

        return value, pullback

    def site_view(self, batch: Batch, /) -> SiteView:
        (shift, site), _ = self.white_sites()
        precision = site + identity(site)
        process = self._sparse(natural_state(shift, precision)[0])
        factor = factorise(process)[0]
        Kuf, kff = self.kernel(self.Z, batch.X)[0], self.kernel.diag(batch.X)[0]
        mu, var = process.posterior.project(factor, Kuf, kff)[0]
        B = backend_of(Kuf)
        A = B.solve_triangular(factor.Lu, Kuf)

        def allowed(change: Array) -> Array:
            moved = precision + (A * change.mT[:, None, :]) @ A.mT
            return proper(moved)

        return SiteView(mu, var, allowed)

    # -- prediction and conversion ----------------------------------------------------------------------------------

    def conditioned(self) -> Conditioned:
        return self._sparse(self._state()[0]).conditioned()

    def to_svgp(self) -> SVGP:
        """The W-SVGP with the same parameters and q(u): same bound, same predictions, without the data."""
        Kuu = inducing_covariance(self)[0]
        return self._sparse(Dual(*self.white_sites()[0], tied="white").to_whitened(Kuu))

    def to_tied(self, tied: Tied = "natural") -> SVGP:
        """The t-SVGP with the same parameters and q(u) whose sites are summed and stored as `Dual` says."""
        Lu = cholesky(inducing_covariance(self)[0])
        return self._sparse(Dual.from_white_sites(*self.white_sites()[0], Lu, tied=tied))

    def _reference(self) -> tuple[str, Array]:
        return "Z", self.Z


def proper(precision: Array) -> Array:
    """Whether each of the matrices [P, M, M] is positive definite to working precision, Boolean [P]."""
    B = backend_of(precision)
    factors = [B.cholesky(precision[p, ...]) for p in range(precision.shape[0])]
    return B.xp.stack([B.xp.all(B.xp.isfinite(diagonal(L))) for L in factors])


def _block(params: tuple[TSVGP, Array], block: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], Pullback]:
    # sum_n A_n lam1_n and sum_n lam2_n A_n A_n^T, A = Lu^-1 Kuf
    (model, Lu), (X, shift, precision) = params, block
    B = backend_of(X)
    Kuf, pull_Kuf = model.kernel(model.Z, X)
    A = B.solve_triangular(Lu, Kuf)
    weighted = A * precision.mT[:, None, :]

    def pullback(bar):
        shift_bar, precision_bar = bar  # precision_bar is symmetric
        A_bar = shift_bar @ shift.mT + 2.0 * B.xp.sum(precision_bar @ weighted, axis=0)
        kernel_bar, Z_bar, _ = pull_Kuf(B.solve_triangular(Lu, A_bar, transpose=True))
        # dA = Lu^-1 dKuf - (Lu^-1 dLu) A
        return tree.cotangent(model, kernel=kernel_bar, Z=Z_bar), -lower_of(A_bar, A.mT)

    return (A @ shift, weighted @ A.mT), pullback
