"""Base classes for posteriors that factorise Kuu = Lu Lu^T, so that u = Lu v and v ~ N(0, I) a priori.

Each posterior has a state, which is a Gaussian q(v) in whitened coordinates. A state's methods take the whitened
features A = Lu^-1 Kuf [M, N]. The base classes compute A and everything else that depends on Lu.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.linalg import (
    cholesky,
    cholesky_pullback,
    each_cholesky,
    identity,
    lower_of,
    nonnegative,
    relative_cholesky_pullback,
    solve_each,
)
from agp.posteriors._base import WeightedMeans
from agp.repairs import derive_pullbacks


class WhiteState(ABC):
    """A Gaussian q(v) with mean [M, P] and covariances [P, M, M]. The prior of v is N(0, I).

    Each subclass chooses the type of its cotangents, which `tree.add` must support.
    """

    mean: Array

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        derive_pullbacks(cls, {"white_moments": 1, "white_spread": 1, "white_kl": 0})

    @property
    def white_mean(self) -> Array:
        """The mean [M, P] of v; by default, the field `mean`."""
        return self.mean

    @abstractmethod
    def white_moments(self, A: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        """Return the means and variances of A^T v, both [N, P], given A [M, N].

        The pullback is ``(mu_bar, var_bar) -> (state_bar, A_bar)``.
        """

    @abstractmethod
    def white_covariance(self, A: Array, /) -> Array:
        """Return the covariances [P, N, N] of A^T v, given A [M, N]."""

    def white_samples(self, noise: Array, /) -> Array:
        """Return samples of v [P, M, S], computed from standard normal noise of the same shape."""
        eye = backend_of(noise).xp.eye(noise.shape[1], **like(noise))
        roots = each_cholesky(self.white_covariance(eye))
        return self.white_mean.mT[:, :, None] + roots @ noise

    def white_spread(self, G: Array, /) -> tuple[Array, Pullback]:
        """Return sum_p tr(S_p G) for the covariances S_p of v and a symmetric G [M, M].

        The pullback is ``bar -> (state_bar, G_bar)``.
        """
        xp = backend_of(G).xp
        S = xp.sum(self.white_covariance(identity(G)), axis=0)

        def pullback(bar):
            # with G = sum_k w_k a_k a_k^T, the result is a weighted sum of the variances of a_k^T v
            w, A = xp.linalg.eigh(G)
            (mu, var), pull = self.white_moments(A)
            state_bar, _ = pull(xp.zeros_like(mu), bar * w[:, None] + xp.zeros_like(var))
            return state_bar, bar * S

        return xp.sum(S * G), pullback

    @abstractmethod
    def white_kl(self) -> tuple[Array, Pullback]:
        """Return KL[q(v) || N(0, I)], summed over the outputs (a scalar), and its pullback ``bar -> state_bar``."""


@tree.model
class WhiteFactor:
    """The Cholesky factor Lu [M, M] of Kuu, and the state q(v).

    In cotangents, the field `Lu` contains the cotangent of Lu or of Lu^-1 dLu; see `WhitePosterior.is_white`.
    """

    Lu: Array = tree.auxiliary()
    state: Any = None
    weights: Array | None = tree.constant(default=None, optional=True)
    """The weights [M, P] of means, after `Posterior.prepare_means`."""


def _relative(args: tuple[Array], bars: tuple[Any, Array | None]) -> tuple[Any, Array | None]:
    """Convert the cotangent of Lu to that of Lu^-1 dLu."""
    (Lu,), (posterior_bar, Lu_bar) = args, bars
    return posterior_bar, None if Lu_bar is None else lower_of(Lu.mT, Lu_bar)


class WhitePosterior(WeightedMeans[WhiteFactor]):
    """A q(u) that is computed from a state q(v) in whitened coordinates, with u = Lu v."""

    is_white: ClassVar[bool] = False
    """True if q(v) does not depend on Lu. Pullbacks use the cotangent of Lu if this is true, and otherwise the
    cotangent of the relative change Lu^-1 dLu. Each choice saves a matrix product.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        derive_pullbacks(cls, {"whitened_state": 1}, _relative)

    @abstractmethod
    def whitened_state(self, Lu: Array, /) -> tuple[WhiteState, Pullback]:
        """Return the state q(v), given Lu [M, M].

        The pullback is ``state_bar -> (posterior_bar, S_bar)``, where S_bar is the cotangent of Lu^-1 dLu.
        """

    def factorise(self, Kuu: Array, /) -> tuple[WhiteFactor, Pullback]:
        Lu = cholesky(Kuu)
        state, pull_state = self.whitened_state(Lu)

        def pullback(factor_bar):
            posterior_bar, S_bar = None, None
            if factor_bar.state is not None:
                posterior_bar, S_bar = pull_state(factor_bar.state)
            S_bar = tree.add(S_bar, factor_bar.Lu)
            pull = cholesky_pullback if self.is_white else relative_cholesky_pullback
            return posterior_bar, None if S_bar is None else pull(Lu, S_bar)

        return WhiteFactor(Lu, state), pullback

    def project(self, factor: WhiteFactor, Kuf: Array, kff: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        B = backend_of(Kuf)
        A = B.solve_triangular(factor.Lu, Kuf)
        marginals, pull = _white_marginals(factor.state, A, kff)

        def pullback(mu_bar, var_bar):
            state_bar, A_bar, kff_bar = pull(mu_bar, var_bar)
            # dA = Lu^-1 dKuf - (Lu^-1 dLu) A
            Kuf_bar = B.solve_triangular(factor.Lu, A_bar, transpose=True)
            Lu_bar = -lower_of(Kuf_bar if self.is_white else A_bar, A.mT)
            return None, WhiteFactor(Lu_bar, state_bar), Kuf_bar, kff_bar

        return marginals, pullback

    def project_to_sites(
        self, factor: WhiteFactor, Kuf: Array, kff: Array, /
    ) -> tuple[tuple[Array, Array], Callable[[Array, Array], Any]]:
        A = backend_of(Kuf).solve_triangular(factor.Lu, Kuf)
        mu, var = _white_marginals(factor.state, A, kff)[0]
        return (mu, var), lambda alpha, beta: self.white_site_sums(factor, A, alpha, beta, mu)

    def site_sums(self, factor: WhiteFactor, Kuf: Array, alpha: Array, beta: Array, mu: Array, /) -> Any:
        A = backend_of(Kuf).solve_triangular(factor.Lu, Kuf)
        return self.white_site_sums(factor, A, alpha, beta, mu)

    def white_site_sums(self, factor: WhiteFactor, A: Array, alpha: Array, beta: Array, mu: Array, /) -> Any:
        """Return `site_sums`, given A = Lu^-1 Kuf [M, N]; None by default."""
        return None

    def kl_divergence(self, factor: WhiteFactor, /) -> tuple[Array, Pullback]:
        kl, pull = factor.state.white_kl()
        return kl, lambda bar: (None, WhiteFactor(None, pull(bar)))

    def path_weights(self, factor: WhiteFactor, values: Array, noise: Array, /) -> Array:
        # Lu^-T (v - Lu^-1 values)
        change = factor.state.white_samples(noise) - solve_each(factor.Lu, values)
        return solve_each(factor.Lu, change, transpose=True)

    def weights_of_mean(self, factor: WhiteFactor, /) -> Array:
        return backend_of(factor.Lu).solve_triangular(factor.Lu, factor.state.white_mean, transpose=True)

    def project_covariance(self, factor: WhiteFactor, Kuf: Array, Kff: Array, /) -> Array:
        A = backend_of(Kuf).solve_triangular(factor.Lu, Kuf)
        return Kff - A.mT @ A + factor.state.white_covariance(A)


class WhiteItself(WhitePosterior, WhiteState):
    """A q(u) whose leaves describe q(v) directly. The object is its own `WhiteState`."""

    is_white: ClassVar[bool] = True

    def whitened_state(self, Lu: Array, /) -> tuple[Self, Pullback]:
        return self, lambda state_bar: (state_bar, None)


def _white_marginals(state: WhiteState, A: Array, kff: Array) -> tuple[tuple[Array, Array], Pullback]:
    """Return the marginal means and variances [N, P] of f - h, given A = Lu^-1 Kuf [M, N] and kff [N].

    The pullback is ``(mu_bar, var_bar) -> (state_bar, A_bar, kff_bar)``.
    """
    # f | v has mean A^T v and variance kff - colsum(A^2)
    (mu, spread), pull = state.white_moments(A)
    residual, pull_residual = nonnegative(kff - backend_of(A).xp.sum(A * A, axis=0))

    def pullback(mu_bar, var_bar):
        kff_bar = pull_residual(backend_of(A).xp.sum(var_bar, axis=1))
        state_bar, A_bar = pull(mu_bar, var_bar)
        return state_bar, A_bar - A * (2.0 * kff_bar), kff_bar

    return (mu, residual[:, None] + spread), pullback
