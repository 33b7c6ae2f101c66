"""q(f) from the rows of data themselves: posteriors whose inducing inputs are all training inputs.

With `Points(X)` as inducing variables, Kuu = K is the covariance of f - h at the data, and the posterior at x has the
mean h(x) + k_x^T w and the variance k_xx - |E k_x|^2. The posteriors differ in the weights w and in the root E.
"""

from abc import abstractmethod
from typing import Any, NoReturn, Protocol, Self, TypeVar

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.errors import count_of
from agp.linalg import add_diagonal, cholesky, noisy_cholesky, nonnegative, solve_each
from agp.posteriors._base import Posterior
from agp.posteriors._datum_sites import SiteSystem


class WeightedFactor(Protocol):
    """A factor with the weights w [N, P] of the mean Kuf^T w."""

    @property
    def weights(self) -> Array: ...


DataFactor = TypeVar("DataFactor", bound=WeightedFactor)


class DataPosterior(Posterior[DataFactor]):
    """Base class of posteriors that hold the data. Subclasses define the root E and its transpose.

    The hyperparameters of such a posterior are trained by the evidence of a model, not by a bound with a KL divergence.
    """

    holds_data = True

    @abstractmethod
    def half(self, factor: DataFactor, Kuf: Array, /) -> Array:
        """Return E Kuf [N, n] or, if outputs have separate variances, [P, N, n]."""

    @abstractmethod
    def half_transposed(self, factor: DataFactor, V: Array, /) -> Array:
        """Return E^T V [N, n] for V with the shape of `half`, summed over separate outputs."""

    @abstractmethod
    def add_data(
        self, factor: DataFactor, Kuf: Array, Kff: Array, shift: Array, precision: Array, /
    ) -> tuple[Self, Any]:
        """Return the posterior and its factor given sites [k, P] of f - h at k further rows.

        Kuf [N, k] and Kff [k, k] are covariances with the further rows. The sites are exp(shift f - precision f^2 / 2).
        A factor of None means that it must be computed by `factorise`.
        """

    @classmethod
    def from_prior(cls, Kuu: Array, outputs: int, /) -> Self:  # noqa: ARG003
        cls._refuse("is built by a model that holds data")

    def kl_divergence(self, factor: DataFactor, /) -> tuple[Array, Pullback]:
        self._refuse("has no KL divergence; train the model that built it")

    @classmethod
    def _refuse(cls, what: str) -> NoReturn:
        raise TypeError(f"{cls.__name__} {what}.")

    def _no_pullback(self, *_: Any) -> NoReturn:
        self._refuse("has no derivatives with respect to hyperparameters; train the model that built it")

    def project(self, factor: DataFactor, Kuf: Array, kff: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        xp = backend_of(Kuf).xp
        weights = factor.weights
        E = self.half(factor, Kuf)
        var, pull_var = self._variance(E, kff)

        def pullback(mu_bar, var_bar):
            left = pull_var(var_bar)
            through = self.half_transposed(factor, E * (left.mT if E.ndim == 2 else left.mT[:, None, :]))
            return None, None, weights @ mu_bar.mT - 2.0 * through, xp.sum(left, axis=1)

        return (Kuf.mT @ weights, var), pullback

    def project_mean(self, factor: DataFactor, Kuf: Array, /) -> Array:
        return Kuf.mT @ factor.weights

    def project_covariance(self, factor: DataFactor, Kuf: Array, Kff: Array, /) -> Array:
        return self._covariance(self.half(factor, Kuf), Kff)

    def project_joint(self, factor: DataFactor, Kuf: Array, kff: Array, Kff: Array, /) -> tuple[Array, Array, Array]:
        E = self.half(factor, Kuf)
        return Kuf.mT @ factor.weights, self._variance(E, kff)[0], self._covariance(E, Kff)

    def _variance(self, E: Array, kff: Array) -> tuple[Array, Pullback]:
        """Return the variances [n, P], and their pullback to those [n, 1] of all outputs, or [n, P]."""
        xp, shared = backend_of(E).xp, E.ndim == 2  # shared: one variance for all outputs
        explained = xp.sum(E * E, axis=-2)
        var, pull = nonnegative(kff[:, None] - (explained[:, None] if shared else explained.mT))
        own = lambda bar: pull(xp.sum(bar, axis=1, keepdims=True) if shared else bar)  # noqa: E731
        return xp.broadcast_to(var, (E.shape[-1], self.outputs)), own

    def _covariance(self, E: Array, Kff: Array) -> Array:
        covariance = Kff - E.mT @ E
        return backend_of(E).xp.broadcast_to(covariance, (self.outputs, *covariance.shape[-2:]))


# -- exact posteriors -------------------------------------------------------------------------------------------------


@tree.model
class ExactFactor:
    """The Cholesky factor of C = K + diag(noise), and solutions with it."""

    L: Array = tree.auxiliary()
    """The Cholesky factor [N, N] of C."""
    white: Array = tree.auxiliary()
    """L^-1 (y - h) [N, P]."""
    weights: Array = tree.auxiliary()
    """C^-1 (y - h) [N, P]."""


@tree.model
class Exact(DataPosterior[ExactFactor]):
    """The exact posterior for Gaussian noise; predictions take N^2 operations per test input. E = L^-1.

    Parameters
    ----------
    residual
        The targets minus the prior mean, y - h [N, P].
    noise
        The noise variance, which the outputs share: 0-d, or [N] if it differs between rows.
    """

    residual: Array = tree.constant()
    noise: Array = tree.auxiliary()

    @property
    def outputs(self) -> int:
        return self.residual.shape[1]

    @property
    def count(self) -> int:
        return self.residual.shape[0]

    @property
    def floats_per_inducing(self) -> int:
        return 1

    def check_one_noise(self, noise: Array | None, /) -> None:
        if noise is not None and noise.shape[1] > 1:
            raise ValueError(
                f"noise has {count_of(noise.shape[1], 'column')}, but the outputs of an exact model share one "
                "covariance; pass one "
                'noise variance for each row, or use a variational model, such as SVGP.from_data(outputs="separate").'
            )

    def factorise(self, Kuu: Array, /) -> tuple[ExactFactor, Pullback]:
        L = noisy_cholesky(Kuu, self.noise)
        return _exact_factor(L, backend_of(L).solve_triangular(L, self.residual)), self._no_pullback

    def half(self, factor: ExactFactor, Kuf: Array, /) -> Array:
        return backend_of(Kuf).solve_triangular(factor.L, Kuf)

    def half_transposed(self, factor: ExactFactor, V: Array, /) -> Array:
        return backend_of(V).solve_triangular(factor.L, V, transpose=True)

    def path_weights(self, factor: ExactFactor, values: Array, noise: Array, /) -> Array:
        # C^-1 (y - h - values - sigma noise)
        xp = backend_of(values).xp
        deviation = xp.sqrt(self.noise)
        seen = values + (deviation[:, None] if deviation.ndim else deviation) * noise
        known = solve_each(factor.L, solve_each(factor.L, seen), transpose=True)
        return factor.weights.mT[:, :, None] - known

    def add_data(
        self, factor: ExactFactor, Kuf: Array, Kff: Array, shift: Array, precision: Array, /
    ) -> tuple[Self, ExactFactor]:
        # The new rows of L are [A^T, L2] with A = L^-1 Kuf and L2 L2^T = Kff + diag(noise) - A^T A: O(k N^2).
        B = backend_of(Kuf)
        xp = B.xp
        values, noise = shift / precision, 1.0 / precision[:, 0]  # the outputs share the noise
        A = self.half(factor, Kuf)
        L2 = cholesky(add_diagonal(Kff - A.mT @ A, noise))
        rest = B.solve_triangular(L2, values - A.mT @ factor.white)
        L = B.join_blocks(factor.L, xp.zeros_like(A), A.mT, L2)
        new = _exact_factor(L, xp.concat([factor.white, rest], axis=0))
        residual = xp.concat([self.residual, values], axis=0)
        return type(self)(residual, xp.concat([xp.broadcast_to(self.noise, (self.count,)), noise], axis=0)), new


def _exact_factor(L: Array, white: Array) -> ExactFactor:
    return ExactFactor(L, white, backend_of(L).solve_triangular(L, white, transpose=True))


# -- sites ------------------------------------------------------------------------------------------------------------


@tree.model
class DatumSitesFactor:
    """The factor of `DatumSites`, with s = sqrt(precision) and W = I + diag(s) K diag(s)."""

    scale: Array = tree.auxiliary()
    """s [Q, N]."""
    inverse: Array = tree.auxiliary()
    """The inverse [Q, N, N] of the Cholesky factor of W."""
    weights: Array = tree.auxiliary()
    """K^-1 times the posterior mean of f - h at the data, [N, P]."""


@tree.model
class DatumSites(DataPosterior[DatumSitesFactor]):
    """A Gaussian site for each row and output (t-VGP); predictions take N^2 Q operations per test input.

    With the Cholesky factor LW of W = I + diag(s) K diag(s) and s = sqrt(precision), E = LW^-1 diag(s).

    Parameters
    ----------
    shift, precision
        The parameters lam1 [N, P] and lam2 [N, Q] of the sites exp(lam1 (f - h) - lam2 (f - h)^2 / 2). Outputs have
        their own precisions (Q = P) or share them (Q = 1).
    """

    shift: Array = tree.auxiliary()
    precision: Array = tree.auxiliary()

    @property
    def outputs(self) -> int:
        return self.shift.shape[1]

    @property
    def count(self) -> int:
        return self.shift.shape[0]

    @property
    def floats_per_inducing(self) -> int:
        return 2 + 2 * self.precision.shape[1]

    def factorise(self, Kuu: Array, /) -> tuple[DatumSitesFactor, Pullback]:
        system = SiteSystem.of(Kuu, self.precision)
        scale = backend_of(Kuu).xp.sqrt(self.precision).mT
        return DatumSitesFactor(scale, system.inverse, system.weights(self.shift)), self._no_pullback

    def half(self, factor: DatumSitesFactor, Kuf: Array, /) -> Array:
        if factor.scale.shape[0] == 1:  # one variance for all outputs
            return factor.inverse[0, ...] @ (factor.scale[0, :, None] * Kuf)
        return factor.inverse @ (factor.scale[:, :, None] * Kuf)

    def half_transposed(self, factor: DatumSitesFactor, V: Array, /) -> Array:
        return backend_of(V).xp.sum(factor.scale[:, :, None] * (factor.inverse.mT @ V), axis=0)

    def path_weights(self, factor: DatumSitesFactor, values: Array, noise: Array, /) -> Array:
        # g - diag(s) W^-1 (s values + noise), where s values + noise has the covariance W
        scale = factor.scale[:, :, None]
        seen = factor.inverse @ (scale * values + noise)
        return factor.weights.mT[:, :, None] - scale * (factor.inverse.mT @ seen)

    def add_data(
        self, factor: DatumSitesFactor, Kuf: Array, Kff: Array, shift: Array, precision: Array, /
    ) -> tuple[Self, None]:
        xp = backend_of(shift).xp
        precisions = xp.broadcast_to(self.precision, self.shift.shape)  # new rows have a precision for each output
        both = ((self.shift, shift), (precisions, precision))
        return type(self)(*(xp.concat(list(pair), axis=0) for pair in both)), None
