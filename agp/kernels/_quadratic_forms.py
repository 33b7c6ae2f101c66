"""Weighted sums of all covariances within groups of inputs, with one evaluation for each pair of inputs."""

from typing import Any

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.chunking import row_ranges

ROWS_PER_STRIP = 192
"""The number of inputs in a strip of the lower triangle; for fewer inputs, a single call for the square is faster."""


def quadratic_forms(kernel: Any, X: Array, w: Array, height: int | None = None) -> tuple[Array, Pullback]:
    """Compute `Kernel.quadratic_forms` in strips of rows; `height` is the number of rows per group in a strip.

    The blocks on the diagonal come from calls with one argument and include white noise.
    """
    xp = backend_of(X).xp
    found = [_strip(kernel, X, w, i, j) for i, j in row_ranges(X.shape[1], height or ROWS_PER_STRIP)]
    product = None  # k(X_g, X_g) w_g
    for Kw, _ in found:
        product = tree.add(product, Kw)

    def pullback(bar):
        kernel_bar, X_bar = None, None
        for _, pull in found:
            one_bar, strip_bar = pull(bar)
            kernel_bar, X_bar = tree.add(kernel_bar, one_bar), tree.add(X_bar, strip_bar)
        return kernel_bar, X_bar, 2.0 * bar[:, None] * product

    return xp.sum(w * product, axis=-1), pullback


def _strip(kernel: Any, X: Array, w: Array, i: int, j: int) -> tuple[Array, Pullback]:
    """Return the part [G, C] of k(X_g, X_g) w_g from pairing rows i to j with each other and with later rows.

    The pullback maps the cotangent [G] of w_g^T k(X_g, X_g) w_g to (kernel_bar, X_bar).
    """
    xp = backend_of(X).xp
    (G, C, D), own, others = X.shape, w[:, i:j], w[:, j:]
    before = xp.zeros((G, i, D), **like(X))
    K, pull_own = kernel.grouped_covariance(X[:, i:j, :])
    own_product = (K @ own[:, :, None])[:, :, 0]
    if j == C:

        def pull_last(bar):
            kernel_bar, own_bar = pull_own((bar[:, None] * own)[:, :, None] * own[:, None, :])
            return kernel_bar, xp.concat([before, own_bar], axis=1)

        return xp.concat([before[:, :, 0], own_product], axis=1), pull_last
    cross, pull_cross = kernel.grouped_covariance(X[:, i:j, :], X[:, j:, :])
    own_product = own_product + (cross @ others[:, :, None])[:, :, 0]
    product = xp.concat([before[:, :, 0], own_product, (own[:, None, :] @ cross)[:, 0, :]], axis=1)

    def pullback(bar):
        scaled = (bar[:, None] * own)[:, :, None]
        kernel_bar, own_bar = pull_own(scaled * own[:, None, :])
        cross_bar, first_bar, others_bar = pull_cross((2.0 * scaled) * others[:, None, :])
        return tree.add(kernel_bar, cross_bar), xp.concat([before, own_bar + first_bar, others_bar], axis=1)

    return product, pullback
