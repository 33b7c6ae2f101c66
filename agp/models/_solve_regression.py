"""The collapsed SOLVE-GP: regression with two orthogonal groups of inducing inputs and the optimal q."""

import dataclasses
from typing import Any, Self, Unpack

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.bounds import (
    Batch,
    SplitNoise,
    collapsed_bound,
    collapsed_posterior,
    free_collapsed_bound,
    optimal_first_group,
    tight_bound,
    totals_of,
)
from agp.inducing import Inducing
from agp.kernels import Kernel
from agp.likelihoods import Gaussian
from agp.linalg import cholesky, groups_of
from agp.means import Mean, ZeroMean
from agp.models._groups import check_part, resolve_groups
from agp.models._parts import GroupParts
from agp.models._regression import SparseRegression, prepare_regression
from agp.models._sgpr import shared_covariance
from agp.models._solve import SOLVEGP
from agp.models._start import held_data, initialise_model, sparse_parts
from agp.posteriors import Orthogonal, Posterior, SiteHolder, find_posterior
from agp.priors import Priors
from agp.processes import Process, Sparse


@tree.model
class SOLVEGPR(SparseRegression):
    """SOLVE-GP for regression with Gaussian noise, with the optimal q(u) and an optimal or trained q(v).

    The first group has M inducing variables u, and the second has M2 inducing variables v. Like `SGPR`, the model
    processes all data in blocks of rows. The predictive means are those of an SGPR with all M + M2 inducing inputs. The
    bound lies between the bounds of an SGPR with the first group and an SGPR with both groups.

    Parameters
    ----------
    kernel, likelihood
        The prior covariance of f, and `Gaussian` noise.
    inducing
        The M + M2 inducing variables, such as `agp.inducing.Points`. The variables of the first group come first.
    X, y
        The training inputs [N, D] and targets [N, P], which are also used for prediction.
    sizes
        The sizes (M, M2) of the groups, or (M,) without a second group.
    second
        A q(v) that is trained with the other parameters: `Whitened`, `Marginal`, or `PriorSpread` (ODVGP). None means
        the optimal q(v).
    tight
        Whether to maximise a tighter bound, whose approximate posterior lets u depend on the part of f that the
        inducing variables do not explain. The tighter bound takes O(N^2) memory, and cannot be combined with `second`.
        Predictions are still those of the optimal q(u) q(v).
    jitter
        See `SGPR`.
    mean_function, priors
        See `SVGP`.
    weights, offset, noise
        What is known of the rows; see `GPR`.

    Source: Shi, Titsias & Mnih, "Sparse orthogonal variational inference for Gaussian processes", AISTATS 2020.

    Examples
    --------
    The bound lies between those of `SGPR` with the first group and with both groups.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 6.0, 31)[:, None]
    >>> y, Z, O = np.sin(X[:, 0]), X[::10, :], X[5::10, :]
    >>> parts = {"kernel": agp.RBF(1.0, 1.0), "likelihood": agp.Gaussian(0.01)}
    >>> first = agp.SGPR.from_data(X, y, Z=Z, **parts)
    >>> groups = agp.SOLVEGPR.from_data(X, y, Z=Z, O=O, **parts)
    >>> both = agp.SGPR.from_data(X, y, Z=np.concatenate([Z, O]), **parts)
    >>> [round(float(model.bound(X, y)[0]), 1) for model in (first, groups, both)]
    [-250.3, 14.3, 15.5]
    """

    kernel: Kernel
    likelihood: Gaussian
    inducing: Inducing
    X: Array = tree.constant()
    y: Array = tree.constant()
    sizes: tuple[int, ...] = ()
    second: Posterior[Any] | None = None
    tight: bool = False
    mean_function: Mean = ZeroMean()
    jitter: float | None = None
    priors: Priors = ()
    weights: Array | None = tree.constant(default=None, optional=True)
    offset: Array | None = tree.constant(default=None, optional=True)
    noise: Array | None = tree.constant(default=None, optional=True)

    @classmethod
    def from_data(
        cls, X: Array, y: Array, /, *, second: Any = None, tight: bool = False, **parts: Unpack[GroupParts]
    ) -> Self:
        """Build a model that is ready for training.

        Parameters
        ----------
        second
            The posterior class of the second group or its name: `Whitened`, `Marginal`, or `PriorSpread`. Its q(v) is
            trained. None means the optimal q(v).
        tight
            Whether to maximise a tighter bound, which takes O(N^2) memory and cannot be combined with `second`.

        Raises
        ------
        TypeError
            If the likelihood is not Gaussian.
        ValueError
            If `second` is combined with `tight`, or if the class `second` has sites.
        """
        second = find_posterior(second)
        if second is not None and issubclass(check_part("second", second), SiteHolder):
            raise ValueError(
                f"{cls.__name__} cannot train the sites of {second.__name__}; use SOLVEGP, or pass another class as "
                "second."
            )
        if tight and second is not None:
            raise ValueError("the tight bound uses the optimal q(v); omit second= or tight=.")
        data, sizes = resolve_groups(prepare_regression(cls, X, y, parts))
        model = cls(**sparse_parts(data), **held_data(X, y, data), sizes=sizes, tight=tight)
        if second is not None and len(sizes) == 2:
            L = cholesky(model._inducing_covariance()[0])[groups_of(sizes)[1], groups_of(sizes)[1]]
            model = dataclasses.replace(model, second=second.from_prior(L @ L.mT, data.y.shape[1]))
        return initialise_model(model, data)

    def _objective(self, batch: Batch, /, *, memory: float | None = None) -> tuple[Array, Pullback]:
        if self.tight:
            # ignores the budget, because N x N matrices are stored
            return tight_bound(self, batch, sizes=self.sizes)
        rows = self._block_rows(batch.X, memory)
        if self.second is not None:
            pair: Any = self.sizes
            return free_collapsed_bound(self, batch, sizes=pair, block_rows=rows)
        kept = self._num_cached_rows(batch.X, memory)
        return collapsed_bound(self, batch, sizes=self.sizes, block_rows=rows, kept_rows=kept)

    # -- prediction -------------------------------------------------------------------------------------------------

    def to_solve(self, *, memory: float | None = None) -> SOLVEGP:
        """Return a SOLVE-GP with the optimal q, the same bound and the same predictions, but without the data."""
        rows = self._block_rows(self.X, memory)
        second: Any = self.second
        if second is None:
            _, LB, c, factors = collapsed_posterior(self, self._data, sizes=self.sizes, block_rows=rows)
            mean = backend_of(LB).solve_triangular(LB, c, transpose=True)
            groups = zip(groups_of(self.sizes), factors, strict=True)
            parts = tuple(shared_covariance(mean[group, :], LG) for group, LG in groups)
        else:
            L = cholesky(self._inducing_covariance()[0])
            totals = totals_of(self, L, self._data, rows)[0]
            group = groups_of(self.sizes)[1]
            state = second.whitened_state(L[group, group])[0]
            noise = SplitNoise.of(self.likelihood.noise_variance, self._data).common
            first = optimal_first_group(totals, noise, state, self.sizes)  # type: ignore[arg-type]
            parts = shared_covariance(*first), second
        return SOLVEGP(Sparse.of(self, Orthogonal(parts, self.sizes)), self.likelihood, self.priors)

    def _drop_data(self) -> SOLVEGP:
        return self.to_solve()

    def _posterior_process(self, *, memory: float | None = None) -> Process:
        return self.to_solve(memory=memory)._posterior_process()
