"""Weighted sums of all covariances among some inputs, each pair of which is looked at once."""

from typing import Any

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.rows import row_ranges

__all__ = ["quadratic_form"]

HEIGHT = 192
"""Inputs in a strip of the triangle below the diagonal: up to so many, one call for the square is faster."""


def quadratic_form(kernel: Any, X: Array, w: Array, height: int = HEIGHT) -> tuple[Array, Pullback]:
    """w^T k(X, X) w, 0-d, for inputs X [Q, D] and weights w [Q], and ``bar -> (kernel_bar, X_bar, w_bar)``; by strips.

    The blocks on the diagonal are those of k(X) with one argument, which sees white noise.
    """
    xp = backend_of(X).xp
    Q = X.shape[0]
    found = [_strip(kernel, X, w, i, j) for i, j in row_ranges(Q, height)]
    product = None  # k(X, X) w
    for Kw, _ in found:
        product = tree.add(product, Kw)

    def pullback(bar):
        kernel_bar, X_bar = None, None
        for _, pull in found:
            one_bar, strip_bar = pull(bar)
            kernel_bar, X_bar = tree.add(kernel_bar, one_bar), tree.add(X_bar, strip_bar)
        return kernel_bar, X_bar, 2.0 * bar * product

    return xp.sum(w * product), pullback


def _strip(kernel: Any, X: Array, w: Array, i: int, j: int) -> tuple[Array, Pullback]:
    """The share [Q] of k(X, X) w that the rows i to j have with themselves, and both ways with the rows after them.

    The pullback takes the cotangent of w^T k(X, X) w to (kernel_bar, X_bar).
    """
    xp = backend_of(X).xp
    rest, before = X.shape[0] - j, xp.zeros((i, X.shape[1]), **like(X))
    K, pull_own = kernel(X[i:j, :])
    own, others = w[i:j], w[j:]
    if not rest:
        product = xp.concat([before[:, 0], K @ own], axis=0)

        def pull_last(bar):
            kernel_bar, own_bar = pull_own(bar * (own[:, None] * own))
            return kernel_bar, xp.concat([before, own_bar], axis=0)

        return product, pull_last
    C, pull_cross = kernel(X[i:j, :], X[j:, :])
    product = xp.concat([before[:, 0], K @ own + C @ others, own @ C], axis=0)

    def pullback(bar):
        kernel_bar, own_bar = pull_own(bar * (own[:, None] * own))
        cross_bar, first_bar, others_bar = pull_cross((2.0 * bar) * (own[:, None] * others))
        return tree.add(kernel_bar, cross_bar), xp.concat([before, own_bar + first_bar, others_bar], axis=0)

    return product, pullback
