"""The posterior given data, in which each function value depends on the nearest rows, and on inducing inputs.

Let c be the k rows nearest to x, and B, D, u as in `agp.bounds.NearConditional`. Then f(x) is, given the data, normal
with

    mean h(x) + u^T m + B^T (y_c - h_c),    variance D + u^T S u,

where N(m, S) is the posterior of the whitened inducing variables v. Without inducing inputs, the terms with u are
absent. The errors of these predictions are f - W e with W_ic = B_ic, so that joint covariances and function samples
follow.
"""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any, Self
from weakref import WeakKeyDictionary

from agp import tree
from agp.backend import Array, Pullback, asarray_like, backend_of, row_numbers
from agp.bounds import (
    Batch,
    NearConditional,
    NearRows,
    NearSums,
    RowNoise,
    condition_on_neighbours,
    near_moments,
    near_sums,
)
from agp.chunking import cached_rows, row_ranges, rows_within, tile_rows
from agp.inducing import Inducing
from agp.kernels import Kernel, terms_of
from agp.likelihoods import Gaussian, Likelihood
from agp.linalg import add_jitter, cholesky, covariance_with, default_jitter, identity
from agp.means import Mean
from agp.neighbours import NeighbourSearch
from agp.processes._base import Process
from agp.processes._further import refuse_data
from agp.processes._near_paths import NearPaths
from agp.processes._of_data import HoldsRows, no_pullback
from agp.processes._paths import Paths
from agp.processes._terms import Moments, Term, describe_terms, join_terms
from agp.random import generator
from agp.repairs import outside


def near_search(kernel: Kernel, X: Array, /) -> NeighbourSearch:
    """Return a search for the rows of X [N, D] that are nearest to others in the metric of the kernel.

    The metric is that of the scaled inputs (`Kernel.inverse_scales`, of `Kernel.metric_inputs`) or, if the kernel has
    no scales, 1 minus the squared correlation.
    """
    factors = kernel.inverse_scales(X.shape[1])
    if factors is not None:
        return NeighbourSearch(X, factors, levels=kernel.category_levels(X.shape[1]), coordinates=kernel.metric_inputs)

    def distances(Q: Array, Z: Array) -> Array:
        xp = backend_of(Q).xp
        if Q.ndim == 3:
            n, C, D = Z.shape
            K = kernel.grouped_covariance(Q, Z)[0][:, 0, :]
            at_Z = xp.reshape(kernel.diag(xp.reshape(Z, (n * C, D)))[0], (n, C))
            at_Q = kernel.diag(Q[:, 0, :])[0][:, None]
        else:
            K, at_Q, at_Z = kernel(Q, Z)[0], kernel.diag(Q)[0][:, None], kernel.diag(Z)[0][None, :]
        size = xp.sqrt(at_Q) * xp.sqrt(at_Z)  # the product of variances may overflow
        correlation = xp.where(size > 0.0, K / xp.where(size > 0.0, size, 1.0), 0.0)
        return 1.0 - correlation * correlation

    return NeighbourSearch(X, None, distances)


def ordered_rows(N: int, seed: int, beside: Array, /, *, last: int = 0) -> Array:
    """Return a random order of N rows, as their numbers [N] beside other arrays. The `last` rows keep their places."""
    return asarray_like([*generator(seed, 31).permutation(N - last).tolist(), *range(N - last, N)], beside)


TOGETHER = 1024
"""The maximum number of neighbours that several inputs have together, if each has more than one."""
_SEARCHES: WeakKeyDictionary[Any, NeighbourSearch] = WeakKeyDictionary()
"""The searches of processes that have been used. They are no part of the processes, which can be saved and moved."""


@tree.model
class NearFactor:
    """The factor of `NearestNeighbours`."""

    residual: Array = tree.auxiliary()
    """y - h [N, P] at the training inputs."""
    Lz: Array | None = tree.constant(optional=True)
    """The Cholesky factor [M, M] of Kuu, or None without inducing inputs."""
    features: Array | None = tree.constant(optional=True)
    """A [N, M], the whitened features of the training inputs."""
    mean: Array | None = tree.constant(optional=True)
    """m [M, P]."""
    root: Array | None = tree.constant(optional=True)
    """LQ [M, M], with S = (LQ LQ^T)^-1."""


@tree.model
class NearestNeighbours(HoldsRows):
    """The posterior in which each function value depends on the nearest rows, and on inducing inputs if there are any.

    Parameters
    ----------
    kernel, mean_function
        The prior covariance and the prior mean of f.
    X, y
        The training inputs [N, D], and the targets minus their offsets [N, P].
    noise
        The noise variances [N] of the rows.
    neighbours
        The number k of neighbours, at most N.
    inducing, jitter
        The inducing variables, or None, and the number added to the diagonal of Kuu (see `Sparse`).
    sets
        The numbers [N, k] of the neighbours of each training row among the rows before it in a random order, from which
        the posterior of the inducing variables follows; see `NeighbourSearch.earlier`. None means that they are found
        when needed.
    posterior_rows
        The number of rows, the last in the order, from which the posterior of the inducing variables is computed; None
        means all.
    seed
        The seed of the order.
    added
        The number of rows that `condition_on` added, which come last in the order.
    memory
        The memory budget for the pass over the training rows, in MiB.
    """

    kernel: Kernel
    mean_function: Mean
    X: Array = tree.constant()
    y: Array = tree.constant()
    noise: Array = tree.auxiliary()
    neighbours: int
    inducing: Inducing | None = None
    jitter: float | None = None
    sets: Array | None = tree.constant(default=None, optional=True)
    posterior_rows: int | None = None
    seed: int = 0
    added: int = 0
    memory: float | None = None

    @property
    def outputs(self) -> int:
        return self.y.shape[1]

    @property
    def fixed_shapes(self) -> bool:
        return False

    @property
    def count(self) -> int:
        """The number of neighbours that exist."""
        return min(self.neighbours, self.X.shape[0])

    @property
    def floats_per_row(self) -> int:
        M = 0 if self.inducing is None else self.inducing.count
        return self.count * (3 * self.width + 2 * self.outputs + 8) + 3 * M

    def factorise(self) -> tuple[NearFactor, Pullback]:
        self.search  # noqa: B018 - prepared now, and not by the first prediction
        residual = self.y - self.mean_function(self.X)[0]
        if self.inducing is None:
            return NearFactor(residual, None, None, None, None), no_pullback
        B = backend_of(self.X)
        Lz = cholesky(add_jitter(self.inducing.covariance(self.kernel)[0], self.jitter))
        A = self._features_of_rows(Lz, self.X)
        sums = self._sums(A)
        LQ = cholesky(identity(Lz) + sums.gram)
        m = B.solve_triangular(LQ, B.solve_triangular(LQ, sums.projected), transpose=True)
        return NearFactor(residual, Lz, A, m, LQ), no_pullback

    @property
    def search(self) -> NeighbourSearch:
        """The search for rows of X, which is prepared once."""
        found = _SEARCHES.get(self)
        if found is None:
            found = _SEARCHES[self] = near_search(self.kernel, self.X)
        return found

    def with_search(self, search: NeighbourSearch, /) -> Self:
        """Return the process, with a search that was prepared for the same rows and kernel."""
        _SEARCHES[self] = search
        return self

    def _features_of_rows(self, Lz: Array, X: Array) -> Array:
        """Return the features A [n, M] at X [n, D], in blocks of rows."""
        B, inducing = backend_of(X), self.inducing
        assert inducing is not None
        rows = tile_rows(self.memory, inducing.floats_per_row(self.kernel) + inducing.count, X)
        parts = [
            B.solve_triangular(Lz, inducing.cross(self.kernel, X[i:j, :])[0]).mT
            for i, j in row_ranges(X.shape[0], rows)
        ]
        return B.row_major(parts[0] if len(parts) == 1 else B.xp.concat(parts, axis=0))

    def _sums(self, A: Array) -> NearSums:
        """Return the sums over the training rows, given their neighbours among earlier rows."""
        B, N = backend_of(self.X), self.X.shape[0]
        if self.sets is not None and self.posterior_rows is None:
            rows, sets = B.xp.astype(row_numbers(N, self.X), self.sets.dtype), self.sets
        else:
            order = ordered_rows(N, self.seed, self.X, last=self.added)
            start = 0 if self.posterior_rows is None else max(0, N - self.posterior_rows)
            rows, sets = order[start:], self.search.earlier(order, self.count, start=start, memory=self.memory)
        data = NearRows(self.X, self.y, None, self.noise, None)
        model = _Prior(self.kernel, self.mean_function, Gaussian(B.xp.zeros((), **B.like(self.X))))
        floats = self._floats_per_group
        block = min(rows_within(self.memory, floats, self.X), cached_rows(floats, self.X))
        return B.fold(_sums_of_block, (model, data, A), (rows, sets), block, add=tree.add)[0]

    # -- predictions ------------------------------------------------------------------------------------------------

    def _condition(self, factor: NearFactor, X: Array) -> tuple[Array, NearConditional]:
        """Condition the values at X [n, D] on their neighbours, whose numbers [n, k] are also returned."""
        xp = backend_of(X).xp
        sets = self.search.nearest(X, self.count, memory=self.memory)
        own = self._own_features(factor, X)[0]
        parts = []
        for i, j in row_ranges(X.shape[0], cached_rows(self._floats_per_group, X)):
            group, noise, F = self._group(factor, X[i:j, :], sets[i:j, :], None if own is None else own[i:j, :])
            parts.append(near_moments(self.kernel, group, noise, F)[:3])
        b, D, u = (None if x[0] is None else xp.concat(list(x), axis=0) for x in zip(*parts, strict=True))
        return sets, NearConditional(b, D, u, None)

    @property
    def _floats_per_group(self) -> int:
        C, M = self.count + 1, 0 if self.inducing is None else self.inducing.count
        return C * C * (self.kernel.floats_per_entry + 3) + C * (3 * self.width + 2 * M + self.outputs)

    def _group(self, factor: NearFactor, X: Array, sets: Array, own: Array | None) -> tuple[Array, Array, Array | None]:
        """Return the inputs, the noise and the features of groups; `own` are the features at X."""
        B, (n, k) = backend_of(X), sets.shape
        xp, index = B.xp, B.xp.reshape(sets, (-1,))
        group = xp.concat([xp.reshape(B.rows_at(self.X, index), (n, k, X.shape[1])), X[:, None, :]], axis=1)
        noise = xp.reshape(B.rows_at(self.noise, index), (n, k))
        if own is None:
            return group, noise, None
        near = xp.reshape(B.rows_at(factor.features, index), (n, k, own.shape[1]))
        return group, noise, xp.concat([near, own[:, None, :]], axis=1)

    def _pull(self, factor: NearFactor, X: Array, sets: Array, B_bar: Array, D_bar: Array, u_bar: Any) -> Array:
        """Return the cotangent of X, from those of B, D and u; the neighbours are constants."""
        xp = backend_of(X).xp
        own, pull_own = self._own_features(factor, X)
        inputs, features = [], []
        for i, j in row_ranges(X.shape[0], cached_rows(2 * self._floats_per_group, X)):
            group, noise, F = self._group(factor, X[i:j, :], sets[i:j, :], None if own is None else own[i:j, :])
            pull = condition_on_neighbours(self.kernel, group, noise, None, F)[1]
            _, X_bar, _, F_bar = pull(B_bar[i:j, :], D_bar[i:j], None if F is None else u_bar[i:j, :])
            inputs.append(X_bar[:, -1, :])
            features.append(None if F_bar is None else F_bar[:, -1, :])
        X_bar = xp.concat(inputs, axis=0)
        return X_bar if own is None else X_bar + pull_own(xp.concat(features, axis=0))

    def _own_features(self, factor: NearFactor, X: Array) -> tuple[Any, Pullback]:
        """Return the features A [n, M] at X [n, D], and their pullback to X; None without inducing inputs."""
        if self.inducing is None:
            return None, no_pullback
        B = backend_of(X)
        Kuf, pull = self.inducing.cross(self.kernel, X)
        A = B.solve_triangular(factor.Lz, Kuf).mT
        return A, lambda bar: pull(B.solve_triangular(factor.Lz, bar.mT, transpose=True))[-1]

    def project(self, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        B = backend_of(X)
        xp = B.xp
        sets, found = self._condition(factor, X)
        mean, near, pull_mean = self._mean(factor, X, sets, found)
        variance, u = found.variance, found.features
        half: Any = None
        if u is not None:
            half = B.solve_triangular(factor.root, u.mT)
            variance = variance + xp.sum(half * half, axis=0)

        def pullback(mu_bar, var_bar):
            D_bar, u_bar = xp.sum(var_bar, axis=1), None
            if u is not None:
                Su = B.solve_triangular(factor.root, half, transpose=True).mT
                u_bar = mu_bar @ factor.mean.mT + 2.0 * D_bar[:, None] * Su
            B_bar = (near @ mu_bar[:, :, None])[:, :, 0]
            return None, None, tree.add(self._pull(factor, X, sets, B_bar, D_bar, u_bar), pull_mean(mu_bar)[1])

        return (mean, xp.broadcast_to(variance[:, None], mean.shape)), pullback

    def project_mean(self, factor: NearFactor, X: Array, /) -> Array:
        return self._mean(factor, X, *self._condition(factor, X))[0]

    def _mean(self, factor: NearFactor, X: Array, sets: Array, found: NearConditional) -> tuple[Array, Array, Pullback]:
        """Return the means [n, P], the residuals [n, k, P] of the neighbours, and the pullback of the mean function."""
        B = backend_of(X)
        xp = B.xp
        near = xp.reshape(B.rows_at(factor.residual, xp.reshape(sets, (-1,))), (*sets.shape, self.outputs))
        h, pull = self.mean_function(X)
        mean = h - (found.b[:, None, :-1] @ near)[:, 0, :]
        mean = mean if found.features is None else mean + found.features @ factor.mean
        return xp.broadcast_to(mean, (X.shape[0], self.outputs)), near, pull

    def project_mean_along(self, factor: NearFactor, X: Array, /) -> Array:
        """Return the means [n, P] at inputs of which all have the union of their neighbours, so that none jumps.

        If the union has more than `TOGETHER` rows, each input contributes fewer of its nearest rows.
        """
        B = backend_of(X)
        union = self._union_of(self.search.nearest(X, self.count, memory=self.memory))
        near, noise = B.rows_at(self.X, union), B.rows_at(self.noise, union)
        L = cholesky(B.add_diagonal(self._residual_covariance(factor, near, None, union), noise))
        weights = B.solve_triangular(L, self._residual_covariance(factor, near, X, union))
        weights = B.solve_triangular(L, weights, transpose=True).mT
        mean = self.mean_function(X)[0] + weights @ B.rows_at(factor.residual, union)
        if factor.features is not None:
            u = self._features_at(factor, X, None) - weights @ self._features_at(factor, near, union)
            mean = mean + u @ factor.mean
        return mean

    def _union_of(self, sets: Array) -> Array:
        """Return the union of as many of the nearest rows of each input as fit into `TOGETHER`, but at least one."""
        xp = backend_of(sets).xp

        def union(k: int) -> Array:
            return xp.unique_values(xp.reshape(sets[:, :k], (-1,)))

        least, most = 1, sets.shape[1]
        while least < most:
            k = (least + most + 1) // 2
            least, most = (k, most) if union(k).shape[0] <= TOGETHER else (least, k - 1)
        return union(least)

    def project_covariance(self, factor: NearFactor, X: Array, /) -> Array:
        """Return the covariances [P, n, n] of the errors f - W e of all predictions."""
        B = backend_of(X)
        xp, n = B.xp, X.shape[0]
        sets, found = self._condition(factor, X)
        weights, variance = -found.b[:, :-1], found.variance
        union, place = xp.unique_inverse(xp.reshape(sets, (-1,)))
        place = xp.reshape(xp.reshape(place, sets.shape) + union.shape[0] * row_numbers(n, X)[:, None], (-1,))
        W = xp.reshape(B.sum_at(xp.reshape(weights, (-1, 1)), place, n * union.shape[0]), (n, union.shape[0]))
        near, noise = B.rows_at(self.X, union), B.rows_at(self.noise, union)
        K = self._residual_covariance(factor, X, None, None)
        cross = self._weights_times(factor, W, near, union, X, None)
        inner = self._weights_times(factor, W, near, union, near, union) @ W.mT + (W * noise) @ W.mT
        K = K - cross - cross.mT + inner
        if found.features is not None:
            half = B.solve_triangular(factor.root, found.features.mT)
            K, variance = K + half.mT @ half, variance + xp.sum(half * half, axis=0)
        return xp.broadcast_to(covariance_with(variance, K), (self.outputs, n, n))

    def _weights_times(
        self, factor: NearFactor, W: Array, near: Array, union: Array, Z: Array, numbers: Array | None
    ) -> Array:
        """Return W r(near, Z) [n, m], in blocks of rows of `near`; `numbers` are those of training rows Z, or None."""
        floats = Z.shape[0] * (self.kernel.floats_per_entry + 2)
        total = None
        for i, j in row_ranges(near.shape[0], rows_within(self.memory, floats, near)):
            part = W[:, i:j] @ self._residual_covariance(factor, near[i:j, :], Z, union[i:j], numbers)
            total = part if total is None else total + part
        return total

    def _residual_covariance(
        self, factor: NearFactor, X: Array, Z: Array | None, rows: Array | None, others: Array | None = None
    ) -> Array:
        """Return r(X, Z). `rows` and `others` are the numbers of X and Z if they are training rows, or None."""
        K = self.kernel(X)[0] if Z is None else self.kernel(X, Z)[0]
        if factor.features is None:
            return K
        left = self._features_at(factor, X, rows)
        return K - left @ (left if Z is None else self._features_at(factor, Z, others)).mT

    def _features_at(self, factor: NearFactor, X: Array, rows: Array | None) -> Array:
        if rows is None:
            return self._own_features(factor, X)[0]
        return backend_of(X).rows_at(factor.features, rows)

    def terms(self, names: Sequence[str] = (), /) -> tuple[Term, ...]:
        return describe_terms(self.kernel, self.mean_function, self.width, names)

    def project_terms(self, factor: Any, X: Array, /) -> Moments:
        xp = backend_of(X).xp
        if self.inducing is None and 2 * self.count < self.X.shape[0] and len(terms_of(self.kernel)) > 1:
            text = (
                f"components given nearest rows: {self.count} of {self.X.shape[0]} rows may not tell the terms of a "
                "sum apart, such as trend and season; use VIF, SGPR or GPR, or more neighbours."
            )
            warnings.warn(text, UserWarning, stacklevel=outside())
        sets = self.search.nearest(X, self.count, memory=self.memory)
        floats = self._floats_per_group * (1 + len(terms_of(self.kernel)))
        rows = row_ranges(X.shape[0], cached_rows(floats, X))
        found = [self._project_terms(factor, X[i:j, :], sets[i:j, :]) for i, j in rows]
        mean, covariance = (xp.concat(list(several), axis=0) for several in zip(*found, strict=True))
        return mean, covariance

    def _project_terms(self, factor: NearFactor, X: Array, sets: Array) -> Moments:
        B, terms, k = backend_of(X), terms_of(self.kernel), sets.shape[1]
        xp, own = B.xp, self._own_features(factor, X)[0]
        group, noise, F = self._group(factor, X, sets, own)
        found = condition_on_neighbours(self.kernel, group, noise, None, F)[0]
        prior = xp.stack([term.diag(X)[0] for term in terms], axis=-1)
        cross = [term.grouped_covariance(group[:, :k, :], group[:, k:, :])[0][:, :, 0] for term in terms]
        r = xp.stack(cross, axis=-1)  # [n, k, K]
        residual = xp.reshape(B.rows_at(factor.residual, xp.reshape(sets, (-1,))), (*sets.shape, self.outputs))
        if self.inducing is None:
            W = found.solve(r)
            means, explained = residual.mT @ W, r.mT @ W
        else:
            parts, near = self.inducing.cross_terms(self.kernel, X), F[:, :k, :]  # type: ignore[index]
            a = xp.stack([B.solve_triangular(factor.Lz, Kuf).mT for Kuf, _ in parts], axis=-1)  # [n, M, K]
            r = r - near @ a
            W = found.solve(r)
            u = xp.permute_dims(a - near.mT @ W, (1, 0, 2))
            half = xp.reshape(B.solve_triangular(factor.root, xp.reshape(u, (u.shape[0], -1))), u.shape)
            half, u = (xp.permute_dims(x, (1, 0, 2)) for x in (half, u))
            means = residual.mT @ W + factor.mean.mT @ u  # type: ignore[union-attr]
            explained = r.mT @ W + a.mT @ a - half.mT @ half
        return join_terms(means, prior, explained[:, None, :, :], self.mean_function(X)[0])

    def paths(self, factor: NearFactor, rng: Any, count: int, features: int, /) -> Paths:
        B = backend_of(self.X)
        xp, (N, P) = B.xp, self.y.shape
        if self.inducing is None:
            phi, own = self.kernel.random_features(rng, features, self.width), None
            size = phi(self.X[:1, :])[0].shape[1]
        else:
            phi, own = self.inducing.random_features(self.kernel, rng, features)
            size = own.shape[1]
        prior = asarray_like(rng.standard_normal((P, size, count)), self.X)
        noise = xp.sqrt(self.noise)[:, None, None] * asarray_like(rng.standard_normal((N, P, count)), self.X)
        shift = None if own is None else self._shift_of_inducing(factor, own @ prior, rng)
        return NearPaths(self, factor, phi, prior, noise, shift)

    def _shift_of_inducing(self, factor: NearFactor, u: Array, rng: Any) -> Array:
        """Return samples [M, P, S] of v from its posterior minus those of prior samples u [P, M, S]."""
        B, inducing = backend_of(u), self.inducing
        assert inducing is not None
        P, M, S = u.shape
        Kuu = inducing.covariance(self.kernel)[0]
        jitter = default_jitter(Kuu) if self.jitter is None else self.jitter
        u = u + jitter**0.5 * asarray_like(rng.standard_normal(u.shape), u)  # u has the covariance Kuu + jitter I
        flat = B.xp.reshape(B.xp.permute_dims(u, (1, 0, 2)), (M, P * S))
        draws = asarray_like(rng.standard_normal((M, P * S)), u)
        change = B.solve_triangular(factor.root, draws, transpose=True) - B.solve_triangular(factor.Lz, flat)
        return factor.mean[:, :, None] + B.xp.reshape(change, (M, P, S))  # type: ignore[index]

    # -- further data -----------------------------------------------------------------------------------------------

    def condition_on(self, factor: Any, batch: Batch, likelihood: Likelihood, /) -> tuple[Process, Any]:
        del factor
        xp = backend_of(self.X).xp
        if not isinstance(likelihood, Gaussian):
            refuse_data("a posterior from nearest rows, with a likelihood that is not Gaussian,")
        if likelihood.missing:
            refuse_data("a posterior from nearest rows, with targets that may be missing,")
        if likelihood.noise_variance.ndim or (batch.noise is not None and batch.noise.shape[1] > 1):
            refuse_data("a posterior from nearest rows, whose outputs have noise variances of their own,")
        noise = RowNoise.of(likelihood.noise_variance, batch).by_row
        y = batch.y if batch.offset is None else batch.y - batch.offset
        more = dataclasses.replace(
            self,
            X=xp.concat([self.X, batch.X], axis=0),
            y=xp.concat([self.y, y], axis=0),
            noise=xp.concat([self.noise, xp.broadcast_to(noise, (batch.X.shape[0],))]),
            sets=None,
            added=self.added + batch.X.shape[0],
        )
        return more, more.factorise()[0]

    def places(self, factor: Any, batch: Batch, /) -> Any:
        refuse_data("a part of a process that uses nearest rows")

    def check(self) -> None:
        self.kernel.check(self.width)
        self.mean_function.check(self.width, self.outputs)


@tree.model
class _Prior:
    """The parts of a model that `near_sums` uses. The noise of the rows is known, so that the trained noise is 0."""

    kernel: Kernel
    mean_function: Mean
    likelihood: Gaussian


def _sums_of_block(params: Any, block: Any) -> Any:
    return near_sums(params, block, left_out=False)
