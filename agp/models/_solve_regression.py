"""Regression with two orthogonal groups of inducing inputs and the optimal q: the collapsed SOLVE-GP."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.batch import Batch
from agp.bounds import collapsed_bound, collapsed_posterior, free_collapsed_bound, tight_bound
from agp.bounds._collapsed import totals_of
from agp.bounds._orthogonal import optimal_first_group
from agp.inducing import How
from agp.kernels import Kernel
from agp.likelihoods import Gaussian, Likelihood
from agp.linalg import cholesky, groups_of
from agp.means import Mean, ZeroMean
from agp.models._base import Conditioned
from agp.models._regression import SparseRegression, gaussian_only
from agp.models._sgpr import shared_covariance
from agp.models._solve import SOLVEGP, check_groups, check_part
from agp.models._start import checked_jitter, chosen_inducing, copied, started, started_model
from agp.posteriors import Orthogonal, Posterior, inducing_covariance
from agp.priors import Prior, Priors, as_priors
from agp.rows import MEMORY
from agp.units import column_spreads

__all__ = ["SOLVEGPR"]


@tree.model
class SOLVEGPR(SparseRegression):
    """SOLVE-GP for regression with Gaussian noise: the bound at its optimal q(u), with the optimal or a free q(v).

    Takes all data at once, in blocks of rows, as `SGPR` does. The means are those of an SGPR with all M + M2 inducing
    inputs; the bound lies between those of SGPR with the first group and with both.

    Parameters
    ----------
    kernel, likelihood
        The prior covariance of f, and `Gaussian` noise.
    Z
        Inducing inputs [M + M2, D], group after group.
    X, y
        The data [N, D] and [N, P], which prediction needs.
    sizes
        (M, M2), or (M,) without a second group.
    second
        q(v) of the second group, trained with the other parameters: `Whitened`, `Marginal`, or `PriorSpread` (ODVGP).
        None takes the optimal one.
    tight
        Maximise the tighter bound in which u depends on what it does not explain: O(N^2) memory, and no `second`.
        Predictions are those of the optimal q(u) q(v) all the same.
    jitter
        Added to the diagonal of Kuu: absolute if given; by default 1e-6 (float64) or 1e-4 (float32) of its mean.
    mean_function, priors
        As `SVGP`.

    Source: Shi, Titsias & Mnih, "Sparse orthogonal variational inference for Gaussian processes", AISTATS 2020.
    """

    kernel: Kernel
    likelihood: Gaussian  # type: ignore[assignment]
    Z: Array = tree.param(unit="Z_unit")
    X: Array = tree.constant()
    y: Array = tree.constant()
    sizes: tuple[int, ...] = ()
    second: Posterior | None = None
    tight: bool = False
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
        second: type[Posterior] | None = None,
        tight: bool = False,
        kernel: Kernel | None = None,
        likelihood: Likelihood | None = None,
        mean_function: Mean | None = None,
        num_inducing: int | None = None,
        num_orthogonal: int | None = None,
        Z: Array | None = None,
        O: Array | None = None,  # noqa: E741 - the name that the field uses
        inducing: How = "kmeans",
        priors: Mapping[str, Prior] | None = None,
        seed: int = 0,
        jitter: float | None = None,
    ) -> Self:
        """A model ready to be trained; arguments and errors as `SOLVEGP.from_data`.

        Raises
        ------
        TypeError, ValueError
            Also if the likelihood is not Gaussian, or a tight bound is wanted with a free q(v).
        """
        if second is not None:
            check_part("second", second)
        if tight and second is not None:
            msg = "the tight bound takes the optimal q(v); leave `second` out, or `tight`."
            raise ValueError(msg)
        X, y, kernel, likelihood, mean_function = started(X, y, kernel, gaussian_only(cls, likelihood), mean_function)
        union, sizes = check_groups(X, Z, O, num_inducing, num_orthogonal)
        Z = chosen_inducing(X, union, kernel, sum(sizes), how=inducing, seed=seed)
        settings = tight, checked_jitter(jitter), mean_function, as_priors(priors)
        parts = kernel, likelihood, Z, copied(X), copied(y), sizes, None
        model = cls(*parts, *settings, Z_unit=column_spreads(X))  # type: ignore[arg-type]
        q = None
        if second is not None and len(sizes) == 2:
            L = cholesky(inducing_covariance(model)[0])[groups_of(sizes)[1], groups_of(sizes)[1]]
            q = second.from_prior(L @ L.mT, y.shape[1])
        return started_model(dataclasses.replace(model, second=q))

    def objective(self, batch: Batch, /, *, memory: float = MEMORY) -> tuple[Array, Pullback]:
        if self.tight:
            return tight_bound(self, batch.X, batch.y, sizes=self.sizes)  # N x N whatever the budget
        rows = self._block_rows(batch.X, memory)
        if self.second is not None:
            return free_collapsed_bound(self, batch.X, batch.y, sizes=self._pair, block_rows=rows)
        return collapsed_bound(self, batch.X, batch.y, sizes=self.sizes, block_rows=rows)

    @property
    def _pair(self) -> tuple[int, int]:
        M, M2 = self.sizes
        return M, M2

    # -- prediction -------------------------------------------------------------------------------------------------

    def to_solve(self) -> SOLVEGP:
        """The SOLVE-GP with the same parameters and the optimal q: same bound, same predictions, without the data."""
        parts = self._optimal() if self.second is None else self._optimal_first()
        q = Orthogonal(parts, self.sizes)
        settings = self.jitter, self.mean_function, self.priors
        return SOLVEGP(self.kernel, self.likelihood, q, self.Z, *settings, Z_unit=self.Z_unit)

    def _optimal(self) -> tuple[Any, ...]:
        rows = self._block_rows(self.X, MEMORY)
        _, LB, c, factors = collapsed_posterior(self, self.X, self.y, sizes=self.sizes, block_rows=rows)
        mean = backend_of(LB).solve_triangular(LB, c, transpose=True)
        groups = zip(groups_of(self.sizes), factors, strict=True)
        return tuple(shared_covariance(mean[group, :], LG) for group, LG in groups)

    def _optimal_first(self) -> tuple[Any, ...]:
        assert self.second is not None
        L = cholesky(inducing_covariance(self)[0])
        totals = totals_of(self, L, self.X, self.y, self._block_rows(self.X, MEMORY))[0]
        second = groups_of(self.sizes)[1]
        state = self.second.whitened(L[second, second])[0]  # type: ignore[attr-defined]
        first = optimal_first_group(totals, self.likelihood.noise_variance, state, self._pair)
        return shared_covariance(*first), self.second

    def conditioned(self) -> Conditioned:
        return self.to_solve().conditioned()
