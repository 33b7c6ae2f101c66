"""Hyperparameters as a vector on the host, without those that are fixed or follow others."""

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from agp import tree
from agp.backend import Array, asarray_like, backend_of, to_numpy
from agp.priors import fixed_entries, fixed_entry_names, limits_of
from agp.tree import REAL

Vector = npt.NDArray[np.float64]

ROUNDING = 1e3
"""The minimum of a positive parameter, as a multiple of machine precision times its unit."""
LARGEST = 16.0
"""The maximum logarithm of a positive parameter in its unit."""


class Coordinates:
    """The map between some parameters of a model and a vector [n] on the host.

    The entries are the logarithms of positive parameters in their units, and real parameters in their units. Entries
    that are fixed, by the model's priors or by patterns of entries among `frozen`, are not in the vector.
    """

    def __init__(self, model: Any, names: list[str], frozen: tuple[str, ...] = ()) -> None:
        self.model, self.given_limits = model, limits_of(model, frozen)
        known = {leaf.name: leaf for leaf in tree.describe(model)}
        fixed, self._fixed_names = fixed_entries(model, frozen), fixed_entry_names(model, frozen)
        counts = {name: math.prod(known[name].value.shape) for name in sorted(names)}  # the order of `expand_evidence`
        free = {name: np.setdiff1d(np.arange(count), fixed.get(name, ())) for name, count in counts.items()}
        self.leaves = [known[name] for name, inside in free.items() if len(inside) or not counts[name]]
        self.inside = {name: inside for name, inside in free.items() if len(inside) < counts[name]}
        """The places of the free entries, for leaves of which some entries are fixed."""
        self.followers = tree.followers(model)
        self.sizes = [len(free[leaf.name]) for leaf in self.leaves]
        self.places = np.split(np.arange(sum(self.sizes)), np.cumsum(self.sizes)[:-1])
        """The places of each parameter in the vector."""
        self.positive = self._each(lambda leaf: leaf.constraint is not REAL)
        self.of_mean = self._each(lambda leaf: leaf.name.startswith("mean_function."))
        """True for the coefficients of the mean function."""
        self.linear = self._each(
            lambda leaf: leaf.name.startswith("mean_function.") and leaf.name not in self.given_limits
        )
        """True for those that have no limits and no fixed entries, and follow from the other coordinates."""

    def _each(self, f: Callable[[tree.Leaf], bool]) -> npt.NDArray[np.bool_]:
        return np.repeat([f(leaf) for leaf in self.leaves], self.sizes)

    @property
    def fixed_names(self) -> tuple[str, ...]:
        """The names of the fixed entries of the leaves, such as "kernel.lengthscale[0]"."""
        return tuple(name for name in self._fixed_names if name.partition("[")[0] in self.inside)

    def vector_of(self, model: Any) -> Vector:
        """Return the coordinates of a model."""
        values = tree.leaves(model)
        return self._coordinates_of({leaf.name: values[leaf.name] for leaf in self.leaves})

    def _coordinates_of(self, values: Mapping[str, Array]) -> Vector:
        parts = {
            leaf.name: to_numpy(values[leaf.name] if leaf.unit is None else values[leaf.name] / leaf.unit)
            for leaf in self.leaves
        }
        vector = self.gather(parts)
        with np.errstate(all="ignore"):  # limits may be zero or infinite
            vector[self.positive] = np.log(np.maximum(vector[self.positive], 0.0))
        return vector

    def gather(self, parts: Mapping[str, Any]) -> Vector:
        """Concatenate the free entries of arrays in the shapes of the leaves, by name."""
        return np.concatenate([self.take(leaf.name, parts[leaf.name]) for leaf in self.leaves])

    def take(self, name: str, part: Any) -> Vector:
        """Return the free entries of an array in the shape of a leaf, or of the flat array."""
        return np.asarray(part, dtype=np.float64).reshape(-1)[self.inside.get(name, slice(None))]

    def model_at(self, vector: Vector) -> Any:
        """Return the model with these coordinates."""
        return tree.with_leaves(self.model, self.values_at(vector))

    def values_at(self, vectors: Vector) -> dict[str, Array]:
        """Return the parameters at vectors [..., n], by name."""
        values = np.where(self.positive, np.exp(np.where(self.positive, vectors, 0.0)), vectors)
        found, lead = {}, vectors.shape[:-1]
        for leaf, places in zip(self.leaves, self.places, strict=True):
            part = values[..., places]
            if (inside := self.inside.get(leaf.name)) is not None:
                given = to_numpy(leaf.value if leaf.unit is None else leaf.value / leaf.unit).astype(np.float64)
                whole = np.array(np.broadcast_to(given.reshape(-1), (*lead, given.size)))
                whole[..., inside] = part
                part = whole
            value = asarray_like(part.reshape((*lead, *leaf.value.shape)), leaf.value)
            found[leaf.name] = value if leaf.unit is None else leaf.unit * value
        return found

    def scales_at(self, model: Any) -> dict[str, Array]:
        """Return the derivatives of the parameters of a model, and of the leaves that follow them, by coordinates."""
        values = tree.leaves(model)
        found = {}
        for leaf in self.leaves:
            one = values[leaf.name]
            if leaf.constraint is REAL:
                ones = backend_of(one).xp.ones_like(one)
                one = ones if leaf.unit is None else leaf.unit * ones
            found[leaf.name] = one
        return found | {name: found[leader] for name, leader in self.followers.items() if leader in found}

    @cached_property
    def columns(self) -> npt.NDArray[np.intp] | None:
        """The coordinate of each entry of the sorted leaves of `scales_at`, n for fixed entries; None if all are free.

        Leaves that follow others have the coordinates of these.
        """
        if not self.inside and not self.followers:
            return None
        n, own = sum(self.sizes), {}
        for leaf, places in zip(self.leaves, self.places, strict=True):
            own[leaf.name] = np.full(math.prod(leaf.value.shape), n)
            own[leaf.name][self.inside.get(leaf.name, slice(None))] = places
        own |= {name: own[leader] for name, leader in self.followers.items() if leader in own}
        return np.concatenate([own[name] for name in sorted(own)])

    def fold(self, found: Any) -> Any:
        """Add the entries [..., m] of the leaves of `scales_at` that share a coordinate: [..., n]."""
        if self.columns is None:
            return found
        n = sum(self.sizes)
        by_column = np.zeros((n + 1, *found.shape[:-1]))
        np.add.at(by_column, self.columns, np.moveaxis(found, -1, 0))
        return np.moveaxis(by_column[:n], 0, -1)

    @cached_property
    def limits(self) -> tuple[Vector, Vector]:
        """The limits of the coordinates from the model's priors."""
        limits = self.given_limits
        own = {leaf.name: leaf.value for leaf in self.leaves}
        ends: list[Vector] = []
        for end, none in (("low", -np.inf), ("high", np.inf)):
            known = {name: getattr(limits[name], end) for name in own if name in limits}
            vector = self._coordinates_of({**own, **known})
            ends.append(np.where(np.repeat([leaf.name in known for leaf in self.leaves], self.sizes), vector, none))
        return ends[0], ends[1]

    def within(self, low: Vector, high: Vector) -> tuple[Vector, Vector]:
        """Return the part of a box that the model's priors allow."""
        least, most = self.limits
        return np.clip(low, least, most), np.clip(high, least, most)

    def box(self, start: Vector) -> tuple[Vector, Vector]:
        """Return limits of the coordinates, far from rounding errors and overflow, which include a start."""
        least = math.log(ROUNDING * float(backend_of(self.leaves[0].value).xp.finfo(self.leaves[0].value.dtype).eps))
        low = np.where(self.positive, least, -np.inf)
        return self.within(np.minimum(low, start), np.maximum(np.where(self.positive, LARGEST, np.inf), start))
