# pyright: reportMissingImports=false
"""Batches of posteriors that differ only in their leaves: sets of further data, and draws of hyperparameters."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple, Self

import torch
from torch.utils._pytree import tree_map

from agp import tree
from agp.predictors import Predictor, joint_moments
from agp.random import generator

Tensor = torch.Tensor


class Posteriors(NamedTuple):
    """A batch of posteriors with the same structure."""

    single: Predictor
    """The predictor of the first posterior."""
    leaves: dict[str, Tensor]
    """The leaves [*batch, ...] of all posteriors."""
    batch: torch.Size

    @classmethod
    def stack(cls, several: Sequence[Predictor], batch: tuple[int, ...]) -> Self:
        """Return the batch of these predictors, which have one posterior each."""
        leaves = tree.leaves(several[0])
        if not batch:
            return cls(several[0], leaves, torch.Size())
        each = [tree.leaves(one) for one in several]

        def together(name: str, x: Tensor) -> Tensor:
            parts = [one[name] for one in each]
            same = all(y is x for y in parts)
            return (x.expand(len(parts), *x.shape) if same else torch.stack(parts)).unflatten(0, batch)

        return cls(several[0], {name: together(name, x) for name, x in leaves.items()}, torch.Size(batch))

    def batch_with(self, *rows: Tensor) -> torch.Size:
        """Return the batch axes of rows [..., n, .] given these posteriors."""
        return torch.broadcast_shapes(self.batch, *(x.shape[:-2] for x in rows))

    def apply(self, f: Callable[[Tensor], Tensor]) -> Self:
        """Return the posteriors with converted arrays."""
        own = {name: f(x) for name, x in tree.leaves(self.single).items()}
        return type(self)(
            tree.with_leaves(self.single, own), {name: f(x) for name, x in self.leaves.items()}, self.batch
        )

    def at(self, index: tuple[int, ...]) -> Predictor:
        """Return the predictor of one posterior."""
        return tree.with_leaves(self.single, {name: x[index] for name, x in self.leaves.items()})

    def over_sets(self, f: Callable[..., Any], *rows: Tensor, looped: bool = False) -> Any:
        """Compute ``f(predictor, *rows)`` for each set of rows [..., n, .] and its posterior."""
        batch = self.batch_with(*rows)
        names = list(self.leaves)
        counts = [len(self.batch)] * len(names) + [x.ndim - 2 for x in rows]
        several = zip((*self.leaves.values(), *rows), counts, strict=True)
        given = [_without_constant_axes(x, count, len(batch)) for x, count in several]
        looped = looped or not self.single.processes[0].fixed_shapes
        mapped = [axis for _, axes in given for axis in axes]
        if mapped and not looped:  # `Backend.with_pullback` asks whether rows are mapped, not whether leaves are
            axis = max(mapped)
            for i, (x, axes) in enumerate(given):
                if i >= len(names) and not axes:
                    given[i] = x.expand(batch[axis], *x.shape), [axis]

        def one(*arrays: Tensor) -> Any:
            leaves = dict(zip(names, arrays, strict=False))
            return f(tree.with_leaves(self.single, leaves), *arrays[len(names) :])

        for axis in reversed(range(len(batch))):
            one = _along_axis(one, [axis in axes for _, axes in given], batch[axis], looped=looped)
        return one(*(x for x, _ in given))

    def moments(self, X: Tensor, *, cross: bool) -> tuple[Tensor, Tensor]:
        """Return means [..., q, P] and covariances at X [..., q, D].

        Covariances have the shape [..., q, P, q, P] if `cross` is true, otherwise [..., P, q, q].
        """
        axes = X.shape[: max(X.ndim - 2 - len(self.batch), 0)]
        shared = not any(size > 1 for size in X.shape[len(axes) : -2])
        if X.shape[-2] > 1 or cross or not shared:
            return self.over_sets(lambda one, x: joint_moments(one, x, cross_outputs=cross), X)
        rows = X.reshape(-1, X.shape[-1])  # for single points, marginals suffice
        found = self.over_sets(lambda one, x: tuple(one.predict(x)), rows)
        mean, variance = (x.movedim(-2, 0).reshape(*axes, *self.batch, 1, x.shape[-1]) for x in found)
        return mean, variance.mT[..., None]

    def noise(self, X: Tensor) -> Tensor:
        """Return the noise variances [..., q, P] of observations at X [..., q, D]."""

        def variances(one: Predictor, x: Tensor) -> Tensor:
            zeros = x.new_zeros(x.shape[0], one.outputs)
            return one.likelihood.predict(zeros, zeros).variance

        return self.over_sets(variances, X)

    @property
    def mean_noise(self) -> Tensor | None:
        """The mean noise variance of the training rows, if some likelihood has no noise; otherwise None."""
        names = ("likelihood.noise_variance", "processes.0.posterior.noise")
        trained, known = (self.leaves.get(name) for name in names)
        if trained is None or known is None or (trained > 0.0).all() or not (known > 0.0).all():
            return None
        return known.mean()

    def condition_on(self, X: Tensor, Y: Tensor, noise: Tensor | None) -> Self:
        """Return the posteriors given further observations; `noise` replaces the noise of the likelihood."""
        found: list[Predictor] = []

        def given(one: Predictor, X: Tensor, Y: Tensor, noise: Tensor | None = None) -> dict[str, Tensor]:
            likelihood = one.likelihood
            if noise is not None:  # it replaces the noise of the likelihood, to which `condition_on` would add it
                likelihood.check_takes_noise()
                zero = torch.zeros_like(tree.first_leaf(likelihood))
                one = replace(one, likelihood=tree.with_leaves(likelihood, {"noise_variance": zero}))
            found.append(replace(one.condition_on(X, Y, noise=noise), likelihood=likelihood))
            return tree.leaves(found[-1])

        data = (X, Y) if noise is None else (X, Y, noise.expand(*noise.shape[:-2], Y.shape[-2], noise.shape[-1]))
        looped = not self.single.likelihood.quadratic  # the number of dual steps differs between sets
        leaves = self.over_sets(given, *data, looped=looped)
        batch = self.batch_with(*data)
        first = {name: x[(0,) * len(batch)] for name, x in leaves.items()}
        return type(self)(tree.with_leaves(found[0], first), leaves, batch)


def posteriors_of(predictor: Predictor) -> Posteriors:
    """Return all posteriors of a predictor."""
    each = [
        replace(predictor, processes=(process,), factors=(factor,), lead=())
        for process, factor in zip(predictor.processes, predictor.factors, strict=True)
    ]
    return Posteriors.stack(each, predictor.lead)


def draws_of(predictor: Predictor, count: int) -> tuple[Posteriors, ...]:
    """Return `count` equally probable settings of the hyperparameters, with a batch [S] for each kernel."""
    chosen = predictor.processes[0].parts_of_draws(predictor.factors[0], count, generator(0, 22))
    each = [(process, factor) for process, factor, number in chosen for _ in range(number)]
    likelihood = predictor.likelihood_of_draws(count, seed=0)
    several = []
    for i, (process, factor) in enumerate(each):
        own = {name: x[i, 0, 0] for name, x in tree.leaves(likelihood).items() if x.ndim == 3}
        given = tree.with_leaves(likelihood, own)
        several.append(replace(predictor, processes=(process,), factors=(factor,), likelihood=given))
    groups = [list(group) for _, group in groupby(several, key=tree.structure)]
    return tuple(Posteriors.stack(group, (len(group),)) for group in groups)


def _without_constant_axes(x: Tensor, count: int, axes: int) -> tuple[Tensor, list[int]]:
    """Return x without its constant batch axes, and the other ones.

    The first `count` axes of x are the last ones of the batch, which has so many axes.
    """
    varying = [i for i in range(count) if x.shape[i] > 1 and x.stride(i)]
    array = x[tuple(slice(None) if i in varying else 0 for i in range(count))]
    return array, [axes - count + i for i in varying]


def _along_axis(f: Callable[..., Any], have: Sequence[bool], size: int, *, looped: bool) -> Callable[..., Any]:
    """Map f over the first axis of those arrays that have it, by `torch.func.vmap` or in a loop.

    If no array has the axis, the result is computed once and expanded.
    """
    if not any(have):
        return lambda *arrays: tree_map(lambda x: x.expand(size, *x.shape), f(*arrays))
    if not looped:
        return torch.func.vmap(f, in_dims=tuple(0 if one else None for one in have))

    def stacked(*arrays: Tensor) -> Any:
        each = [f(*(x[i] if one else x for x, one in zip(arrays, have, strict=True))) for i in range(size)]
        return tree_map(lambda *parts: torch.stack(parts), *each)

    return stacked
