"""t-SVGP with a site for each datum."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like, row_blocks
from agp.batch import Batch
from agp.bounds import white_site_sums
from agp.inducing import How, Inducing
from agp.kernels import Kernel
from agp.leaves import copied
from agp.likelihoods import Likelihood
from agp.linalg import add_diagonal, cholesky, positive_definite, relative_cholesky_pullback
from agp.means import Mean, ZeroMean
from agp.models._base import Conditioned
from agp.models._sites import SiteModel
from agp.models._start import observed, started_model
from agp.models._svgp import SVGP
from agp.posteriors import Dual, Sums, Tied, WhiteSites
from agp.priors import Prior, Priors, as_priors
from agp.processes import Paths, Sparse, SparsePrior, started_prior
from agp.rows import MEMORY, tile_rows

__all__ = ["TSVGP"]


@tree.model
class TSVGP(SiteModel, SparsePrior):
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
    inducing
        `agp.inducing.Points`, or another place of inducing variables.
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
    inducing: Inducing
    X: Array = tree.constant()
    site_shift: Array = tree.auxiliary()
    site_precision: Array = tree.auxiliary()
    mean_function: Mean = ZeroMean()
    jitter: float | None = None
    priors: Priors = ()

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
        inducing: How | Inducing = "kmeans",
        priors: Mapping[str, Prior] | None = None,
        seed: int = 0,
        jitter: float | None = None,
    ) -> Self:
        """A model ready to be trained, without sites yet; arguments and errors as `SVGP.from_data`."""
        data = observed(X, y, kernel, likelihood, mean_function)
        choice = {"inducing": inducing, "Z": Z, "num_inducing": num_inducing, "seed": seed, "jitter": jitter}
        prior = started_prior(data.X, kernel, data.mean_function, data.level, data.variance, **choice)
        none = backend_of(data.X).xp.zeros((data.X.shape[0], data.outputs), **like(data.X))
        held = {"likelihood": data.likelihood, "X": copied(data.X), "site_shift": none, "site_precision": none + 0.0}
        return started_model(cls(**prior._asdict(), **held, priors=as_priors(priors)))

    # -- q(u) -------------------------------------------------------------------------------------------------------

    def white_sites(self, *, memory: float = MEMORY) -> tuple[Sums, Pullback]:
        """The sites of v = Lu^-1 u, [M, P] and [P, M, M], and their pullback to the model; a fold over the data."""
        Kuu, pull_Kuu = self.inducing_covariance()
        Lu = cholesky(Kuu)
        rows = tile_rows(memory, self._floats_per_row, self.X)
        sums, pull = white_site_sums(self, Lu, self.X, self.site_shift, self.site_precision, block_rows=rows)

        def pullback(sums_bar):
            model_bar, change_bar = pull(sums_bar)
            return tree.add(model_bar, pull_Kuu(relative_cholesky_pullback(Lu, change_bar)))

        return sums, pullback

    @property
    def _floats_per_row(self) -> int:
        return self.inducing.floats_per_row(self.kernel) + self.inducing.count * (3 + 2 * self.outputs)

    def _posterior(self, memory: float) -> tuple[WhiteSites, Pullback]:
        """q(u), and ``posterior_bar -> model_bar``."""
        sites, pull_sites = self.white_sites(memory=memory)
        return WhiteSites(*sites), lambda bar: pull_sites(Sums(bar.shift, bar.precision))

    def _sparse(self, posterior: Any) -> SVGP:
        return SVGP(Sparse.of(self, posterior), self.likelihood, self.priors)

    # -- bound ------------------------------------------------------------------------------------------------------

    def objective(self, batch: Batch, /, *, memory: float = MEMORY) -> tuple[Array, Pullback]:
        posterior, pull_posterior = self._posterior(memory)
        value, pull = self._sparse(posterior).objective(batch, memory=memory)

        def pullback(bar=1.0):
            sparse_bar, X_bar = pull(bar)
            own = {name: getattr(sparse_bar.process, name) for name in ("kernel", "inducing", "mean_function")}
            direct = tree.cotangent(self, likelihood=sparse_bar.likelihood, **own)
            return tree.add(direct, pull_posterior(sparse_bar.process.posterior)), X_bar

        return value, pullback

    def site_moments(self, batch: Batch, memory: float, /) -> tuple[Array, Array, Callable[[Array], Array]]:
        posterior, _ = self._posterior(memory)
        precision = add_diagonal(posterior.precision, 1.0)
        process = Sparse.of(self, posterior)
        factor = process.factorise()[0]
        rows = tile_rows(memory, self._floats_per_row, batch.X)
        xp = backend_of(precision).xp
        parts = [process.project(factor, X)[0] for X in row_blocks(batch.X, rows)]
        mu, var = (xp.concat(list(column), axis=0) for column in zip(*parts, strict=True))

        def allowed(change: Array) -> Array:
            none = xp.zeros_like(change)
            added = white_site_sums(self, factor.Lu, batch.X, none, change, block_rows=rows)[0]
            return positive_definite(precision + added.precision)

        return mu - self.mean_function(batch.X)[0], var, allowed

    def inverted_matrices(self) -> tuple[Array, ...]:
        """Kuu."""
        return (self.inducing_covariance()[0],)

    # -- prediction and conversion ----------------------------------------------------------------------------------

    def conditioned(self, *, memory: float = MEMORY) -> Conditioned:
        return self._sparse(self._posterior(memory)[0]).conditioned()

    def paths(self, rng: Any, count: int, features: int, /) -> Paths:
        return self._sparse(self._posterior(MEMORY)[0]).paths(rng, count, features)

    def to_svgp(self, *, memory: float = MEMORY) -> SVGP:
        """The W-SVGP with the same parameters and q(u): same bound, same predictions, without the data."""
        Kuu = self.inducing_covariance()[0]
        return self._sparse(Dual(*self.white_sites(memory=memory)[0], tied="white").to_whitened(Kuu))

    def to_tied(self, tied: Tied = "natural", *, memory: float = MEMORY) -> SVGP:
        """The t-SVGP with the same parameters and q(u) whose sites are summed and stored as `Dual` says."""
        Lu = cholesky(self.inducing_covariance()[0])
        return self._sparse(Dual.from_white_sites(*self.white_sites(memory=memory)[0], Lu, tied=tied))

    @property
    def width(self) -> int:
        return self.inducing.width

    def _reference(self) -> tuple[str, Array]:
        return self.inducing.reference
