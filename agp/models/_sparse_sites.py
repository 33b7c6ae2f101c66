"""The base class of sparse variational GPs with a site for each row of data."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from agp import tree
from agp.backend import Array, Pullback, backend_of, row_blocks
from agp.bounds import Batch
from agp.chunking import tile_rows
from agp.likelihoods import Likelihood
from agp.linalg import add_diagonal, lower_of, positive_definite
from agp.models._base import WithInducing
from agp.models._sites import SiteModel
from agp.models._svgp import SVGP
from agp.posteriors import Sums, WhiteSites
from agp.priors import Priors
from agp.processes import Process, Sparse


class SparseSites(WithInducing, SiteModel):
    """Base class of sparse variational GPs with a site for each row of X [N, D]. Subclasses sum the sites."""

    likelihood: Likelihood
    priors: Priors

    @abstractmethod
    def _white_sites(self, *, memory: float | None = None) -> tuple[Sums, Pullback]:
        """Sum the sites of v = Lu^-1 u over the data; return the sums [M, P] and [P, M, M] and their pullback."""

    @property
    def _floats_per_row(self) -> int:
        return self.inducing.floats_per_row(self.kernel) + self.inducing.count * (3 + 2 * self.outputs)

    def _posterior(self, memory: float | None) -> tuple[WhiteSites, Pullback]:
        """Return q(u) and its pullback ``posterior_bar -> model_bar``."""
        sites, pull_sites = self._white_sites(memory=memory)
        return WhiteSites(*sites), lambda bar: pull_sites(Sums(bar.shift, bar.precision))

    def _sparse(self, posterior: Any) -> SVGP:
        return SVGP(Sparse.of(self, posterior), self.likelihood, self.priors)

    # -- bound ------------------------------------------------------------------------------------------------------

    def _objective(self, batch: Batch, /, *, memory: float | None = None) -> tuple[Array, Pullback]:
        posterior, pull_posterior = self._posterior(memory)
        value, pull = self._sparse(posterior)._objective(batch, memory=memory)

        def pullback(bar=1.0):
            sparse_bar, X_bar = pull(bar)
            own = {name: getattr(sparse_bar.process, name) for name in ("kernel", "inducing", "mean_function")}
            direct = tree.cotangent(self, likelihood=sparse_bar.likelihood, **own)
            return tree.add(direct, pull_posterior(sparse_bar.process.posterior)), X_bar

        return value, pullback

    def _site_moments(self, batch: Batch, memory: float | None, /) -> tuple[Array, Array, Callable[[Array], Array]]:
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

    # -- prediction -------------------------------------------------------------------------------------------------

    def _drop_data(self) -> SVGP:
        return self._sparse(self._posterior(None)[0])

    def _posterior_process(self, *, memory: float | None = None) -> Process:
        return self._sparse(self._posterior(memory)[0])._posterior_process()


def white_site_sums(
    prior: Any, Lu: Array, X: Array, shift: Array, precision: Array, /, *, block_rows: int
) -> tuple[Sums, Pullback]:
    """Whitened sums of the sites over their inputs X [N, D], with memory for one block of rows.

    With A = Lu^-1 Kuf, the sums are sum_n A_n lam1_n [M, P] and sum_n lam2_n A_n A_n^T [P, M, M], for the linear
    parameters lam1 [N, P] (`shift`) and precisions lam2 [N, P] of the sites. `prior` is an `agp.processes.SparsePrior`
    with the Cholesky factor Lu [M, M] of Kuu.

    The pullback is ``sums_bar -> (prior_bar, S_bar)``, where `S_bar` is the cotangent of Lu^-1 dLu. The cotangent of
    the precision sum must be symmetric.
    """
    rows = X, shift, precision
    return backend_of(X).fold(_white_block, (prior, Lu), rows, block_rows, add=tree.add)


def _white_block(params: tuple[Any, Array], block: tuple[Array, Array, Array]) -> tuple[Sums, Pullback]:
    (prior, Lu), (X, shift, precision) = params, block
    B = backend_of(X)
    xp = B.xp
    (Kuf, kff, h), pull_features = prior._features(X)
    A = B.solve_triangular(Lu, Kuf)
    weighted = A * precision.mT[:, None, :]

    def pullback(bar):
        shift_bar, precision_bar = bar
        A_bar = shift_bar @ shift.mT + 2.0 * xp.sum(precision_bar @ weighted, axis=0)
        Kuf_bar = B.solve_triangular(Lu, A_bar, transpose=True)
        prior_bar, _ = pull_features(Kuf_bar, xp.zeros_like(kff), xp.zeros_like(h))
        # dA = Lu^-1 dKuf - (Lu^-1 dLu) A
        return prior_bar, -lower_of(A_bar, A.mT)

    return Sums(A @ shift, weighted @ A.mT), pullback
