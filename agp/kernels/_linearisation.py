"""Derivatives of covariance matrices k(X, X) with respect to kernel parameters, as products with vectors.

Symmetric matrices [N, N] are given by their lower triangles; entries above the diagonal are not read.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from agp import tree
from agp.backend import Array, backend_of


class Linearisation(NamedTuple):
    """A covariance matrix K = k(X, X) to first order in the parameters of its kernel."""

    K: Array
    """The lower triangle of the covariances [N, N]."""
    pull: Any
    """A function that maps the lower triangle of a symmetric cotangent of K to the cotangent of the kernel.

    That of groups of inputs is None, because `Kernel.grouped_covariance` has it.
    """
    times: Callable[[Array, Array | None], Any]
    """A function ``(a, W) -> products`` for a [N, P] and a symmetric matrix W [N, N], or None for a matrix of ones.

    The products are a tree like the kernel. The leaf for a parameter theta of shape S is ``[N, P, *S]`` and contains
    sum_m W_nm (dK_nm / dtheta) a_mp.
    """


def apply_weights(W: Array | None, A: Array, /) -> Array:
    """Return the elementwise product W * A, or A if W is None."""
    return A if W is None else W * A


def times_vectors(W: Array, a: Array, x: Array, /) -> Array:
    """Return sum_m W_nm x_mj a_mp [N, P, J] for a symmetric W [N, N], a [N, P] and x [N, J]."""
    B = backend_of(x)
    (N, P), J = a.shape, x.shape[1]
    both = B.xp.reshape(a[:, :, None] * x[:, None, :], (N, P * J))
    return B.xp.reshape(B.symmetric_product(W, both), (N, P, J))


def times_groups(W: Array, a: Array, /) -> Array:
    """Return sum_m W_gnm a_gm [G, N] for W [G, N, N] and a [G, N]."""
    return (W @ a[:, :, None])[:, :, 0]


def times_symmetric(W: Array, a: Array, /) -> Array:
    """Return sum_m W_nm a_m [N, P] for a symmetric W [N, N], or the same for groups, as `times_groups` does."""
    return times_groups(W, a) if W.ndim == 3 else backend_of(W).symmetric_product(W, a)


def distance_times_groups(x: Array, W: Array, a: Array, /) -> Array:
    """Return sum_m W_gnm (x_gnd - x_gmd)^2 a_gm [G, N, D] for x [G, N, D], W [G, N, N] and a [G, N]."""
    xp, a = backend_of(x).xp, a[:, :, None]
    return _combine_powers(x, W @ xp.concat([a, a * x, a * (x * x)], axis=2))


def _combine_powers(x: Array, products: Array) -> Array:
    """Return x^2 p_0 - 2 x p_1 + p_2 for x [..., D] and sums p [..., 1 + 2 D] over 1, x' and x'^2."""
    D = x.shape[-1]
    return x * x * products[..., :1] - 2.0 * x * products[..., 1 : D + 1] + products[..., D + 1 :]


class DistanceSums(NamedTuple):
    """Sums over pairs of rows that contain the squared differences of the columns of x."""

    x: Array
    """Centred inputs [N, D]."""
    differences: bool = False
    """Whether to make one pass over [N, N] for each column, which avoids cancellation for close rows."""

    def total(self, W: Array, /) -> Array:
        """Return sum_nm W_nm (x_nd - x_md)^2 [D] for a symmetric W [N, N]."""
        B = backend_of(W)
        if self.differences:
            return B.xp.stack([B.symmetric_inner(W, squares) for squares in self._squares()])
        products = B.symmetric_product(W, B.xp.concat([self.x, B.xp.ones_like(self.x[:, :1])], axis=1))
        return 2.0 * B.inner_by_column(self.x, products[:, -1:] * self.x - products[:, :-1])

    def times(self, W: Array, a: Array, /) -> Array:
        """Return sum_m W_nm (x_nd - x_md)^2 a_mp [N, P, D] for a symmetric W [N, N] and a [N, P]."""
        B = backend_of(W)
        if self.differences:
            return B.xp.stack([B.symmetric_product(W * squares, a) for squares in self._squares()], axis=-1)
        powers = B.xp.concat([B.xp.ones_like(self.x[:, :1]), self.x, self.x * self.x], axis=1)
        return _combine_powers(self.x[:, None, :], times_vectors(W, a, powers))

    def _squares(self) -> Iterator[Array]:
        for d in range(self.x.shape[1]):
            difference = self.x[:, None, d] - self.x[None, :, d]
            yield difference * difference


def sum_linearisations(kernel: Any, parts: list[Linearisation]) -> Linearisation:
    """Return the linearisation of a sum of kernels."""
    K = parts[0].K
    for part in parts[1:]:
        K = K + part.K
    return Linearisation(
        K,
        lambda K_bar: tree.cotangent(kernel, parts=tuple(part.pull(K_bar) for part in parts)),
        lambda a, W=None: tree.cotangent(kernel, parts=tuple(part.times(a, W) for part in parts)),
    )


def multiply_linearisations(kernel: Any, parts: list[Linearisation]) -> Linearisation:
    """Return the linearisation of a product of kernels."""

    def others(i: int, W: Array | None) -> Array | None:
        for j, part in enumerate(parts):
            W = W if j == i else apply_weights(W, part.K)
        return W

    def times(a: Array, W: Array | None = None) -> Any:
        return tree.cotangent(kernel, parts=tuple(part.times(a, others(i, W)) for i, part in enumerate(parts)))

    def pull(K_bar: Array) -> Any:
        return tree.cotangent(kernel, parts=tuple(part.pull(others(i, K_bar)) for i, part in enumerate(parts)))

    return Linearisation(others(-1, None), pull, times)  # type: ignore[arg-type]
