"""Stacks of kernels: a kernel with several settings of its parameters, evaluated for all settings at once.

In a stack, each parameter has a leading axis of S settings. Constants are common to all settings. Stationary and linear
kernels are sums over columns of entries that do not depend on the parameters, with weights that do not depend on the
inputs. For all settings together, these sums are one matrix product.
"""

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of


class Stackable:
    """Base class for kernels, with the evaluation of stacks. By default, the kernel is called for each setting."""

    slopes: ClassVar[tuple[str, ...]] = ()
    """The names of parameters that are variances of slopes; `agp.integrate` varies their entries together."""

    def setting(self, s: int, /) -> Self:
        """Return the kernel of one setting of this stack."""
        return tree.with_leaves(self, {name: x[s, ...] for name, x in tree.leaves(self, "parameter").items()})

    def stacked_covariance(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        """Return the covariances of each setting of this stack, and their pullback to the inputs.

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
        found = [self.setting(s)(X, Z) for s in range(count_settings(self))]  # type: ignore[operator]

        def pullback(K_bar):
            bars = zip(*(pull(K_bar[s, ...])[1:] for s, (_, pull) in enumerate(found)), strict=True)
            return tuple(reduce(tree.add, several) for several in bars)

        return backend_of(X).xp.stack([K for K, _ in found]), pullback

    def stacked_less_shift(
        self,
        X: Array,
        Z: Array | None,
        shift: Array | None,  # noqa: ARG002
        /,
    ) -> tuple[Array, Callable[[Array], Any]]:
        """Return the covariances minus s, and their pullback to the inputs; see `Kernel.less_shift`."""
        return self.stacked_covariance(X, Z)

    def stacked_variances(self, X: Array, /) -> tuple[Array, Pullback]:
        """Return the variances k(x, x) [S, N] of each setting of this stack, and the pullback ``bar -> X_bar``.

        X_bar [N, D] is None if the variances do not depend on the inputs.
        """
        found = [self.setting(s).diag(X) for s in range(count_settings(self))]  # type: ignore[attr-defined]

        def pullback(bar):
            return reduce(tree.add, (pull(bar[s, :])[1] for s, (_, pull) in enumerate(found)))

        return backend_of(X).xp.stack([one for one, _ in found]), pullback


def count_settings(stack: Any, /) -> int:
    """Return the number of settings S of a stack."""
    return next(iter(tree.leaves(stack, "parameter").values())).shape[0]


def weighted_columns(entries: Array, weights: Array, /) -> tuple[Array, Callable[[Array], Array]]:
    """Return sum_d w_sd E_d [S, ...] for entries E [..., D] and weights w [S, D] or [S], and its pullback to E."""
    xp = backend_of(entries).xp
    shape, D = entries.shape[:-1], entries.shape[-1]
    each = weights if weights.ndim == 2 else xp.broadcast_to(weights[:, None], (weights.shape[0], D))
    sums = each @ xp.reshape(entries, (-1, D)).mT

    def pullback(bar):
        return xp.reshape(xp.reshape(bar, (weights.shape[0], -1)).mT @ each, entries.shape)

    return xp.reshape(sums, (weights.shape[0], *shape)), pullback


def stacked_distances(X: Array, Z: Array | None, lengthscale: Array, /) -> tuple[Array, Pullback]:
    """Return squared distances r2 [S, N, M] for lengthscales [S] or [S, D], and ``bar -> (X_bar, Z_bar)``.

    Differences are divided by the lengthscales of the first setting, and their squares weighted by squared ratios.
    """
    xp = backend_of(X).xp
    first = lengthscale[0, ...]
    apart = (X[:, None, :] - (X if Z is None else Z)[None, :, :]) / first
    ratio = first / lengthscale
    r2, pull = weighted_columns(apart * apart, ratio * ratio)

    def pullback(bar):
        by_entry = pull(bar) * (2.0 * apart / first)
        X_bar, Z_bar = xp.sum(by_entry, axis=1), -xp.sum(by_entry, axis=0)
        return (X_bar + Z_bar,) if Z is None else (X_bar, Z_bar)

    return r2, pullback


def spread_scalars(x: Array, /) -> Array:
    """Return numbers [S] as [S, 1, 1], which broadcast with covariances [S, N, M]."""
    return x[:, None, None]


def add_stacks(terms: list[tuple[Array, Pullback]], /) -> tuple[Array, Pullback]:
    """Add covariances or variances of stacks; their pullbacks to the inputs have the same form."""

    def pullback(bar):
        return reduce(tree.add, (pull(bar) for _, pull in terms))

    return reduce(operator.add, (K for K, _ in terms)), pullback


def multiply_stacks(terms: list[tuple[Array, Pullback]], /) -> tuple[Array, Pullback]:
    """Multiply covariances or variances of stacks; their pullbacks to the inputs have the same form."""
    values = [K for K, _ in terms]

    def pullback(bar):
        others = (reduce(operator.mul, values[:i] + values[i + 1 :], bar) for i in range(len(values)))
        return reduce(tree.add, (pull(rest) for (_, pull), rest in zip(terms, others, strict=True)))

    return reduce(operator.mul, values), pullback
