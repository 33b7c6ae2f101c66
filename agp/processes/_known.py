"""A fixed map of the inputs, for use as part of a stack or as a layer."""

from typing import Any, ClassVar

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.means import Projection
from agp.processes._base import SitePull, WithoutSites
from agp.processes._outputs import Mapped
from agp.processes._paths import KnownPaths, Paths


@tree.model
class FixedMap(Mapped, WithoutSites):
    """Functions without uncertainty: a fixed linear map of the inputs, such as the identity.

    In a `Stack` with another process, a `FixedMap` passes the inputs of a layer on to the next layer.

    Parameters
    ----------
    mean_function
        The linear map.
    """

    mean_function: Projection

    shares_inputs: ClassVar[bool] = True

    @property
    def floats_per_row(self) -> int:
        return 4 * self.outputs

    @property
    def latents(self) -> int:
        return 0

    @property
    def mixing(self) -> Array:
        """The matrix A [P, 0], which has no columns, because the process contains no random functions."""
        weights = self.mean_function.weights
        return backend_of(weights).xp.zeros((self.outputs, 0), **like(weights))

    def factorise(self) -> tuple[Any, Pullback]:
        return None, lambda _factor_bar: tree.cotangent(self)

    def project(self, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        h, pull = self.mean_function(X)
        moments = h, backend_of(h).xp.zeros_like(h)
        return moments, lambda mu_bar, _var_bar: (tree.cotangent(self), None, pull(mu_bar)[1])

    def kl_divergence(self, factor: Any, /) -> tuple[Array, Pullback]:
        weights = self.mean_function.weights
        return backend_of(weights).xp.zeros((), **like(weights)), lambda _bar: (tree.cotangent(self), None)

    def sample_marginals(self, factor: Any, X: Array, noise: Array, /) -> tuple[Array, Pullback]:
        h, pull = self.mean_function(X)
        xp, shape = backend_of(h).xp, (noise.shape[0], *h.shape)

        def pullback(bar):
            return tree.cotangent(self), None, pull(xp.sum(xp.reshape(bar, shape), axis=0))[1]

        return xp.reshape(xp.broadcast_to(h, shape), (-1, self.outputs)), pullback

    def project_mean(self, factor: Any, X: Array, /) -> Array:
        return self.mean_function(X)[0]

    def project_covariance(self, factor: Any, X: Array, /) -> Array:
        return backend_of(X).xp.zeros((0, X.shape[0], X.shape[0]), **like(X))

    def paths(self, factor: Any, rng: Any, count: int, features: int, /) -> Paths:
        return KnownPaths(self.mean_function, count)

    def project_to_sites(self, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], SitePull]:
        return self.project(factor, X)[0], lambda _mu_bar, _var_bar: {}

    def check(self) -> None:
        self.mean_function.check(self.width, self.outputs)
