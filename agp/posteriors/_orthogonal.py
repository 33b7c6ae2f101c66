"""SOLVE-GP: each group of inducing variables explains only what the earlier groups do not explain.

Let u = f(Z) and v = f(O) be two groups. The part of f that u does not explain has the values v - Kvu Kuu^-1 u at O. A
priori, these values are independent of u and have the covariance Cvv = Kvv - Kvu Kuu^-1 Kuv. SOLVE-GP uses q(u) q(v -
Kvu Kuu^-1 u). The Cholesky factor of the joint covariance of (u, v) contains everything that SOLVE-GP requires:

    [[Kuu, Kuv], [Kvu, Kvv]] = L L^T,   L = [[Lu, 0], [A^T, Lv]],   Lu Lu^T = Kuu,  A = Lu^-1 Kuv,  Lv Lv^T = Cvv,

It follows that L^-1 [Kuf; Kvf] = [Lu^-1 Kuf; Lv^-1 Cvf]. In whitened coordinates, the groups are therefore two blocks
of one vector. The covariance of q is block-diagonal, with two blocks of size M instead of one block of size 2 M.
"""

from typing import Any, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.linalg import block_diagonal, cholesky, diagonal, groups_of, identity
from agp.posteriors._base import GroupPosterior, MeanPosterior
from agp.posteriors._dual import Dual
from agp.posteriors._factored import WhiteFactor, WhiteItself, WhitePosterior, WhiteState
from agp.posteriors._sites import SiteGradients, SiteHolder
from agp.posteriors._whitened import Whitened


@tree.model
class PriorSpread(WhiteItself, MeanPosterior[WhiteFactor]):
    """A q(u) with the prior covariance and a free mean, in whitened coordinates.

    An `Orthogonal` with `PriorSpread` as its second group is the orthogonally decoupled GP (ODVGP).

    Parameters
    ----------
    mean
        m [M, P], dimensionless.
    """

    mean: Array = tree.param()

    def white_moments(self, A: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        # mu = A^T m;  var = colsum(A^2)
        xp = backend_of(A).xp

        def pullback(mu_bar, var_bar):
            A_bar = self.mean @ mu_bar.mT + 2.0 * A * xp.sum(var_bar, axis=1)
            return tree.cotangent(self, mean=A @ mu_bar), A_bar

        var = xp.sum(A * A, axis=0)
        return (A.mT @ self.mean, xp.broadcast_to(var[:, None], (A.shape[1], self.outputs))), pullback

    def white_covariance(self, A: Array, /) -> Array:
        covariance = A.mT @ A
        return backend_of(A).xp.broadcast_to(covariance, (self.outputs, *covariance.shape))

    def white_samples(self, noise: Array, /) -> Array:
        return self.mean.mT[:, :, None] + noise

    def white_spread(self, G: Array, /) -> tuple[Array, Pullback]:
        P = self.outputs
        trace = P * backend_of(G).xp.sum(diagonal(G))
        return trace, lambda bar: (None, P * bar * identity(G))

    def white_kl(self) -> tuple[Array, Pullback]:
        m = self.mean
        return 0.5 * backend_of(m).xp.sum(m * m), lambda bar: tree.cotangent(self, mean=bar * m)

    @classmethod
    def from_prior(cls, Kuu: Array, outputs: int, /) -> Self:
        return cls(backend_of(Kuu).xp.zeros((Kuu.shape[0], outputs), **like(Kuu)))


@tree.model
class OrthogonalState(WhiteState):
    """A q(v) with independent blocks of consecutive rows. Cotangents are tuples with the cotangent of each block."""

    parts: tuple[Any, ...]
    """The state of each block."""
    sizes: tuple[int, ...]
    """The number of rows in each block."""

    @property
    def white_mean(self) -> Array:
        return backend_of(self.parts[0].white_mean).xp.concat([part.white_mean for part in self.parts], axis=0)

    def white_moments(self, A: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        found = [part.white_moments(A[rows, :]) for part, rows in zip(self.parts, groups_of(self.sizes), strict=True)]
        mu = sum(moments[0] for moments, _ in found[1:]) + found[0][0][0]
        var = sum(moments[1] for moments, _ in found[1:]) + found[0][0][1]

        def pullback(mu_bar, var_bar):
            bars = [pull(mu_bar, var_bar) for _, pull in found]
            A_bar = backend_of(A).xp.concat([A_part for _, A_part in bars], axis=0)
            return tuple(bar for bar, _ in bars), A_bar

        return (mu, var), pullback

    def white_covariance(self, A: Array, /) -> Array:
        groups = zip(self.parts, groups_of(self.sizes), strict=True)
        first, *others = (part.white_covariance(A[rows, :]) for part, rows in groups)
        return sum(others, start=first)

    def white_samples(self, noise: Array, /) -> Array:
        groups = zip(self.parts, groups_of(self.sizes), strict=True)
        return backend_of(noise).xp.concat([part.white_samples(noise[:, rows, :]) for part, rows in groups], axis=1)

    def white_kl(self) -> tuple[Array, Pullback]:
        found = [part.white_kl() for part in self.parts]
        kl = sum((kl for kl, _ in found[1:]), start=found[0][0])
        return kl, lambda bar: tuple(pull(bar) for _, pull in found)


@tree.model
class Orthogonal(WhitePosterior, SiteHolder, GroupPosterior[WhiteFactor]):
    """SOLVE-GP: a product of independent posteriors for orthogonal groups of inducing variables.

    The groups are consecutive rows of the inducing inputs.

    Parameters
    ----------
    parts
        A posterior for each group, such as `Whitened` or `Marginal`. With `PriorSpread` as the second part, the model
        is the orthogonally decoupled GP (ODVGP).
    sizes
        The number of inducing inputs in each group.

    Source: Shi, Titsias & Mnih, "Sparse orthogonal variational inference for Gaussian processes", AISTATS 2020.
    """

    parts: tuple[Any, ...]
    sizes: tuple[int, ...]

    @property
    def outputs(self) -> int:
        return self.parts[0].outputs

    @property
    def count(self) -> int | None:
        counts = [part.count for part in self.parts]
        return None if None in counts else sum(count for count in counts if count is not None)

    def whitened_state(self, Lu: Array, /) -> tuple[OrthogonalState, Pullback]:
        groups = zip(self.parts, groups_of(self.sizes), strict=True)
        found = [part.whitened_state(Lu[rows, rows]) for part, rows in groups]

        def pullback(state_bar):
            bars = [pull(bar) for (_, pull), bar in zip(found, state_bar, strict=True)]
            S_bar = block_diagonal([bar for _, bar in bars], self.sizes)
            return tree.cotangent(self, parts=tuple(bar for bar, _ in bars)), S_bar

        return OrthogonalState(tuple(state for state, _ in found), self.sizes), pullback

    # -- steps ------------------------------------------------------------------------------------------------------

    @property
    def _has_sites(self) -> bool:
        return bool(self._dual())

    def _dual(self) -> list[tuple[int, slice, Dual]]:
        """Return the indices, rows and posteriors of the groups with sites."""
        groups = enumerate(zip(self.parts, groups_of(self.sizes), strict=True))
        return [(i, rows, part) for i, (part, rows) in groups if isinstance(part, Dual)]

    def white_site_sums(self, factor: WhiteFactor, A: Array, alpha: Array, beta: Array, mu: Array, /) -> Any:
        """Return the sums for each group that has sites, at its part of the mean, or None if no group has sites."""
        sums = []
        for i, rows, dual in self._dual():
            part = A[rows, :]
            mean = part.mT @ factor.state.parts[i].white_mean
            sums.append(dual.white_site_sums(WhiteFactor(factor.Lu[rows, rows], None), part, alpha, beta, mean))
        return tuple(sums) or None

    def _site_step(
        self, found: SiteGradients, rate: Any, /, *, clip: bool, groups: tuple[int, ...] | None = None, rows: Any = None
    ) -> tuple[Self, dict[str, Array]]:
        parts, infos = list(self.parts), []
        for (i, own, dual), sums in zip(self._dual(), found.sums, strict=True):
            if groups is None or i in groups:
                factor = WhiteFactor(found.factor.Lu[own, own], None)
                parts[i], info = dual._site_step(SiteGradients(factor, sums), rate, clip=clip)
                infos.append(info)
        xp = backend_of(found.factor.Lu).xp
        logged = {k: xp.max(xp.stack([info[k] for info in infos])) for k in infos[0]}
        return type(self)(tuple(parts), self.sizes), logged

    @classmethod
    def from_prior(cls, Kuu: Array, outputs: int, /, *, sizes: tuple[int, ...] = (), parts: Any = Whitened) -> Self:
        """Return the prior, in groups of the given sizes (two halves by default).

        `parts` is one class for all groups, or a tuple with a class for each group.
        """
        M = Kuu.shape[0]
        sizes = sizes or (M - M // 2, M // 2)
        if sum(sizes) != M or min(sizes) < 0:
            raise ValueError(
                f"the group sizes {sizes} do not cover the {M} inducing inputs; pass sizes that add up to {M}."
            )
        kinds = parts if isinstance(parts, tuple) else (parts,) * len(sizes)
        sizes, kinds = zip(*((size, kind) for size, kind in zip(sizes, kinds, strict=True) if size), strict=True)

        L = cholesky(Kuu)  # the covariance of a group is L_ii L_ii^T
        groups = zip(kinds, groups_of(sizes), strict=True)
        return cls(tuple(kind.from_prior(L[rows, rows] @ L[rows, rows].mT, outputs) for kind, rows in groups), sizes)
