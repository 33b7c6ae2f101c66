"""Stacks of kernels: a kernel with several settings of its parameters, evaluated for all settings at once.

In a stack, each parameter has a leading axis of S settings. Constants are common to all settings.
"""

from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of


class Stackable:
    """Base class for kernels, with the evaluation of stacks."""

    takes_stacks: ClassVar[bool] = False
    """Whether calls accept parameters [S, 1, 1] and [S, 1, D] with groups of inputs [S, N, D]."""

    def setting(self, s: int, /) -> Self:
        """Return the kernel of one setting of this stack."""
        return tree.with_leaves(self, {name: x[s, ...] for name, x in tree.leaves(self, "parameter").items()})

    def stacked_covariance(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        """Return the covariances of each setting of this stack, and their pullback to the inputs.

        If `takes_stacks` is true, the kernel is called once for all settings. Otherwise it is called for each setting.

        Parameters
        ----------
        X
            Inputs [N, D].
        Z
            Other inputs [M, D].

        Returns
        -------
        K
            Covariances [S, N, M], or the symmetric [S, N, N] if Z is omitted.
        pullback
            A function ``K_bar -> (X_bar, Z_bar)``, or ``K_bar -> (X_bar,)`` if Z is omitted.
        """
        inputs, xp = (X,) if Z is None else (X, Z), backend_of(X).xp
        if self.takes_stacks:
            groups = (xp.broadcast_to(x[None, :, :], (count_settings(self), *x.shape)) for x in inputs)
            K, pull = self._spread()(*groups)  # type: ignore[operator]
            return K, lambda K_bar: tuple(xp.sum(bar, axis=0) for bar in pull(K_bar)[1:])
        found = [self.setting(s)(*inputs) for s in range(count_settings(self))]  # type: ignore[operator]

        def pullback(K_bar):
            bars = zip(*(pull(K_bar[s, ...])[1:] for s, (_, pull) in enumerate(found)), strict=True)
            return tuple(xp.sum(xp.stack(several), axis=0) for several in bars)

        return xp.stack([K for K, _ in found]), pullback

    def stacked_variances(self, X: Array, /) -> tuple[Array, Pullback]:
        """Return the variances k(x, x) [S, N] of each setting of this stack, and the pullback ``bar -> X_bar``.

        X_bar [N, D] is None if the variances do not depend on the inputs.
        """
        xp, S = backend_of(X).xp, count_settings(self)
        if self.takes_stacks:
            variances, pull = self._spread().diag(X)  # type: ignore[attr-defined]

            def by_settings(bar: Array) -> Array | None:
                X_bar = pull(bar)[1]
                return X_bar if X_bar is None or X_bar.ndim == 2 else xp.sum(X_bar, axis=0)

            return xp.broadcast_to(variances, (S, X.shape[0])), by_settings
        found = [self.setting(s).diag(X) for s in range(S)]  # type: ignore[attr-defined]

        def pullback(bar):
            total = None
            for s, (_, pull) in enumerate(found):
                total = tree.add(total, pull(bar[s, :])[1])
            return total

        return xp.stack([one for one, _ in found]), pullback

    def _spread(self) -> Self:
        """Return this stack with parameters [S, 1, 1] and [S, 1, D], which broadcast with arrays [S, N, M]."""
        leaves = tree.leaves(self, "parameter")
        return tree.with_leaves(
            self, {name: x[:, None, None] if x.ndim == 1 else x[:, None, :] for name, x in leaves.items()}
        )


def part_of_stack(stack: Any, places: slice, /) -> Any:
    """Return the stack of some of the settings."""
    return tree.with_leaves(stack, {name: x[places, ...] for name, x in tree.leaves(stack, "parameter").items()})


def count_settings(stack: Any, /) -> int:
    """Return the number of settings S of a stack."""
    return next(iter(tree.leaves(stack, "parameter").values())).shape[0]


def by_row(leaf: Array, /) -> Array:
    """Return a scalar parameter (0-d), or that of a stack [S, 1, 1] as [S, 1], which broadcasts with [S, N]."""
    return leaf[..., 0] if leaf.ndim else leaf
