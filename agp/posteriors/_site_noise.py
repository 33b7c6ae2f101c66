"""The noise of pseudo-observations of u: the covariance S [M, M] that L-SVGP and R-SVGP add to Kuu."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

from agp.backend import Array, backend_of, like
from agp.linalg import (
    add_diagonal,
    block_diagonal,
    diagonal,
    identity,
    lower_of,
    lower_product,
    lower_times,
    lower_times_lower,
    lower_transposed_product,
    lower_transposed_times,
    phi,
    symmetric_from_lower,
)


class NoiseTrace(NamedTuple):
    """The trace tr(A S) for a symmetric A = W^T J W [M, M], and its derivatives."""

    value: Array
    leaf_bar: Array
    """The derivative with respect to the leaf, at fixed A."""
    seen: Callable[[], Array]
    """A function that returns the derivative W S W^T [M, M] with respect to J, or the lower triangle of this matrix."""


@dataclass(frozen=True)
class DiagonalNoise:
    """S = diag(s); the leaf is s [M], positive."""

    leaf: Array

    name: ClassVar[str] = "site"
    """The name of the leaf in posteriors."""
    start: ClassVar[float] = 1e-4
    """The variances at the start of training, relative to mean(diag(Kuu)). Starting from the prior is much slower."""

    @classmethod
    def independent(cls, variances: Array, /) -> Self:
        """Return S = diag(v) for variances v [M]."""
        return cls(variances)

    @staticmethod
    def unit(variance: Array, /) -> Array:
        """Return the unit in which the leaf is trained (a scalar), given mean(diag(Kuu))."""
        return variance

    @property
    def variances(self) -> Array:
        """The diagonal of S [M]."""
        return self.leaf

    def append_variances(self, variances: Array, /) -> Self:
        """Return S extended by independent pseudo-observations with these variances."""
        return type(self)(backend_of(variances).xp.concat([self.leaf, variances]))

    def add_to_covariance(self, K: Array, /) -> Array:
        """Return K + S, given K [M, M]."""
        return add_diagonal(K, self.leaf)

    def pullback(self, S_bar: Array, /) -> Array:
        """Return the cotangent of the leaf, given the symmetric cotangent of S."""
        return diagonal(S_bar)

    def root_times(self, normal: Array, /) -> Array:
        """Return S^(1/2) x for standard normal x [P, M, number of samples]."""
        return backend_of(normal).xp.sqrt(self.leaf)[:, None] * normal

    def log_determinant(self) -> tuple[Array, Array]:
        """Return log|S| (a scalar) and its derivative with respect to the leaf."""
        xp = backend_of(self.leaf).xp
        return xp.sum(xp.log(self.leaf)), 1.0 / self.leaf

    def trace_with_gram(self, W: Array, /) -> NoiseTrace:
        """Return tr(W^T W S) for a lower triangular W [M, M], with its derivatives."""
        # sum_i s_i [W^T W]_ii
        xp = backend_of(W).xp
        squares = xp.sum(W * W, axis=0)
        return NoiseTrace(xp.sum(self.leaf * squares), squares, lambda: lower_of(W * self.leaf, W.mT))

    def trace_relaxed(self, L: Array, G: Array, /) -> NoiseTrace:
        """Return tr(L (I - G) L^T S) for a lower triangular L and a symmetric G [M, M], with its derivatives."""
        # diag(L G L^T) = 2 rowsum(L * (L Phi(G)))
        xp = backend_of(L).xp
        relaxed = xp.sum(L * (L - 2.0 * lower_times_lower(L, phi(G))), axis=-1)

        def seen() -> Array:
            return symmetric_from_lower(lower_transposed_product(L, self.leaf[:, None] * L))

        return NoiseTrace(xp.sum(self.leaf * relaxed), relaxed, seen)


@dataclass(frozen=True)
class FactoredNoise:
    """S = C C^T; the leaf is C [M, M], lower triangular. The class has the same methods as `DiagonalNoise`."""

    leaf: Array

    name: ClassVar[str] = "site_scale"
    start: ClassVar[float] = 1e-2

    @classmethod
    def independent(cls, variances: Array, /) -> Self:
        xp = backend_of(variances).xp
        return cls(xp.sqrt(variances) * xp.eye(variances.shape[0], **like(variances)))

    @staticmethod
    def unit(variance: Array, /) -> Array:
        # training then starts at C = I in these units, where optimiser steps are small
        return (FactoredNoise.start * variance) ** 0.5

    @property
    def variances(self) -> Array:
        return backend_of(self.leaf).xp.sum(self.leaf * self.leaf, axis=-1)

    def append_variances(self, variances: Array, /) -> Self:
        sizes = [self.leaf.shape[0], variances.shape[0]]
        return type(self)(block_diagonal([self.leaf, self.independent(variances).leaf], sizes))

    def add_to_covariance(self, K: Array, /) -> Array:
        return K + backend_of(self.leaf).times_own_transpose(self.leaf)

    def pullback(self, S_bar: Array, /) -> Array:
        return 2.0 * lower_product(S_bar, self.leaf)

    def root_times(self, normal: Array, /) -> Array:
        return self.leaf @ normal

    def log_determinant(self) -> tuple[Array, Array]:
        # log|S| = 2 sum log|C_ii|
        xp = backend_of(self.leaf).xp
        entries = diagonal(self.leaf)
        return 2.0 * xp.sum(xp.log(xp.abs(entries))), 2.0 / entries * identity(self.leaf)

    def trace_with_gram(self, W: Array, /) -> NoiseTrace:
        # |V|^2 with V = W C
        xp = backend_of(W).xp
        V = lower_times_lower(W, self.leaf)
        return NoiseTrace(xp.sum(V * V), 2.0 * lower_transposed_product(W, V), lambda: lower_of(V, V.mT))

    def trace_relaxed(self, L: Array, G: Array, /) -> NoiseTrace:
        # sum(V * (V - G V)) with V = L^T C
        xp = backend_of(L).xp
        V = lower_transposed_times(L, self.leaf)
        relaxed = V - G @ V
        leaf_bar = 2.0 * xp.tril(lower_times(L, relaxed))
        return NoiseTrace(xp.sum(V * relaxed), leaf_bar, lambda: backend_of(V).times_own_transpose(V))


SiteNoise = DiagonalNoise | FactoredNoise
