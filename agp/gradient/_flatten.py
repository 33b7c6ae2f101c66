"""Models as vectors of raw leaves, for optimisers and samplers."""

import itertools
import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Generic, TypeVar

from agp import tree
from agp.backend import Array, Pullback, asarray_like, backend_of
from agp.checks import check_like
from agp.priors import fixed_entries
from agp.repairs import public
from agp.tree import LOWER

T = TypeVar("T")


class Unflatten(Generic[T]):
    """A function that converts a vector [n] of raw leaves to a model: ``unflatten(vector)``. `flatten` creates it.

    torch and JAX can differentiate this function. You can use it inside ``jax.jit``, ``jax.grad`` and ``jax.vmap``.

    Parameters
    ----------
    model
        The model that provides the settings, and the leaves that are not in the vector.
    names
        The parameters in the vector, in this order.
    frozen
        Patterns of single entries that are not in the vector, such as ``kernel.lengthscale[0]``. Entries that the
        model's priors fix (`agp.priors.Fixed`) are not in it either.

    Raises
    ------
    TypeError, ValueError
        If the parameters differ in library, dtype or device. Calls raise these errors if the vector does not have the
        size, library, dtype and device of the parameters.
    """

    def __init__(self, model: T, names: Iterable[str], frozen: tuple[str, ...] = ()) -> None:
        by_name = {leaf.name: leaf for leaf in tree.describe(model)}
        self.model = model
        fixed = fixed_entries(model, frozen)
        counts = {name: math.prod(by_name[name].value.shape) for name in names}
        self._inside = {
            name: [i for i in range(count) if i not in fixed[name]] for name, count in counts.items() if name in fixed
        }
        """The places of the entries in the vector, for leaves of which some entries are fixed."""
        self.leaves: tuple[tree.Leaf, ...] = tuple(
            by_name[name] for name in counts if self._inside.get(name, [0]) != []
        )
        """The parameters in the vector."""
        for leaf in self.leaves:
            check_like(leaf.name, leaf.value, self.leaves[0].name, self.leaves[0].value)
        sizes = (len(self._inside.get(leaf.name, ())) or math.prod(leaf.value.shape) for leaf in self.leaves)
        ends = list(itertools.accumulate(sizes))
        self.entries: tuple[int, ...] = tuple(end - start for start, end in zip([0, *ends], ends, strict=False))
        """The number of entries of each of these parameters."""
        self.size: int = ends[-1]
        """The length n of the vector."""
        self._ranges = list(zip([0, *ends], ends, strict=False))

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each entry [n] of the vector, such as "kernel.variance" or "kernel.lengthscale[1]"."""
        found = []
        for leaf in self.leaves:
            places = list(itertools.product(*map(range, leaf.value.shape)))
            kept = [places[i] for i in self._inside[leaf.name]] if leaf.name in self._inside else places
            found += [f"{leaf.name}{list(place) or ''}" for place in kept]
        return tuple(found)

    @public(repairs=False, context=False, ignore="underflow")
    def __call__(self, vector: Array, /) -> T:
        return tree.constrain(self.model, self.raw(vector))

    def raw(self, vector: Array, /) -> dict[str, Array]:
        """Split the vector into raw leaves by name, for `agp.tree.constrain`. Raises the errors of `__call__`."""
        check_like("vector", vector, self.leaves[0].name, self.leaves[0].value)
        if tuple(vector.shape) != (self.size,):
            raise ValueError(f"vector has shape {tuple(vector.shape)}, but must have shape ({self.size},).")
        xp, found = backend_of(vector).xp, {}
        for leaf, (start, end) in zip(self.leaves, self._ranges, strict=True):
            part = vector[start:end]
            if (inside := self._inside.get(leaf.name)) is not None:
                before = xp.reshape(self._raw_leaves[leaf.name], (-1,))
                count = before.shape[0]
                where = [*range(count)]
                for k, place in enumerate(inside):
                    where[place] = count + k
                part = xp.take(xp.concat([before, part]), asarray_like(where, vector))
            found[leaf.name] = xp.reshape(part, tuple(leaf.value.shape))
        return found

    @cached_property
    def _raw_leaves(self) -> dict[str, Array]:
        return tree.unconstrain(self.model)

    def vector(self, raw: Mapping[str, Array], /) -> Array:
        """Concatenate raw leaves, or their gradient from `agp.value_and_gradient`, to a vector [n].

        `raw` is a dictionary of arrays by leaf name. Names of other leaves are ignored.

        Raises
        ------
        KeyError
            If a leaf is missing.
        """
        parts = [self._entries(leaf.name, raw[leaf.name]) for leaf in self.leaves]
        xp = backend_of(parts[0]).xp
        return xp.concat([xp.reshape(x, (-1,)) for x in parts])

    @public(repairs=False, context=False, ignore="underflow")
    def log_jacobian(self, vector: Array, /) -> tuple[Array, Pullback]:
        """Return log |d values / d vector|, 0-d, for the parameters in the vector, and the pullback ``bar=1.0 -> [n]``.

        Samplers use the log density of the vector, which is the log density of the values plus this log Jacobian.

        Raises
        ------
        TypeError, ValueError
            For the reasons listed in the class, or if part of the vector is a triangular matrix. Entries above the
            diagonal of such a matrix do not change the model, so the density of the vector cannot be normalised.
        """
        if triangular := [leaf.name for leaf in self.leaves if leaf.constraint == LOWER]:
            names = ", ".join(triangular)
            raise ValueError(
                f"the entries of {names} above the diagonal have no effect; freeze {names} in agp.flatten."
            )
        raw, values, slopes = self.raw(vector), [], []
        for leaf in self.leaves:
            unit = leaf.unit
            if unit is not None and leaf.name in self._inside:
                unit = self._entries(leaf.name, backend_of(unit).xp.broadcast_to(unit, leaf.value.shape))
            value, slope = leaf._replace(unit=unit).log_jacobian(self._entries(leaf.name, raw[leaf.name]))
            values.append(value)
            slopes.append(slope)
        xp = backend_of(vector).xp
        slope = xp.concat([xp.reshape(x, (-1,)) for x in slopes])
        return sum(values), lambda bar=1.0: bar * slope

    def _entries(self, name: str, x: Array) -> Array:
        """Return the entries of a leaf that are in the vector: [k], or the leaf itself if these are all."""
        inside = self._inside.get(name)
        if inside is None:
            return x
        xp = backend_of(x).xp
        return xp.take(xp.reshape(x, (-1,)), asarray_like(inside, x))


@public(repairs=False, context=False, ignore="underflow")
def flatten(model: T, *, frozen: str | Iterable[str] = ()) -> tuple[Array, Unflatten[T]]:
    """Return the raw leaves of a model's parameters as one vector [n], and the function from vectors to models.

    Raw leaves are unconstrained and dimensionless, so every finite vector corresponds to a model. Auxiliary arrays,
    such as inverse factors, are not in the vector and do not change.

    Parameters
    ----------
    model
        A model, or a part of one.
    frozen
        One or several patterns of leaf names, such as ``"Z"`` or ``("Z", "likelihood.*")``, or of single entries, such
        as ``"kernel.lengthscale[0]"``. What matches does not change and is not in the vector, and neither is what the
        model's priors fix (`agp.priors.Fixed`). Other limits (`agp.priors.Between`) do not apply to the vector.

    Returns
    -------
    vector
        [n], with library, dtype and device of the leaves, in the order of `agp.tree.leaves`.
    unflatten
        ``unflatten(vector)`` is the model; see `Unflatten` for names, gradients and densities.

    Raises
    ------
    TypeError, ValueError
        If a pattern matches nothing, no parameter is left, a parameter has no value, or parameters differ in library,
        dtype or device.

    Examples
    --------
    A small step along the gradient increases the bound. Optimisers for vectors take such steps.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 6.0, 20)[:, None]
    >>> y = np.sin(X[:, 0])
    >>> model = agp.GPR.from_data(X, y)
    >>> vector, unflatten = agp.flatten(model, frozen="mean_function.*")
    >>> unflatten.names
    ('kernel.variance', 'kernel.lengthscale[0]', 'likelihood.noise_variance')
    >>> value, gradient = agp.value_and_gradient(model, X, y)
    >>> better = unflatten(vector + 1e-3 * unflatten.vector(gradient))
    >>> bool(better.bound(X, y)[0] > value)
    True
    """
    if missing := tree.missing(model):
        raise ValueError(
            f"{', '.join(missing)} has no value; build the model with from_data, which sets initial values."
        )
    names = tree.patterns(frozen)
    unflatten = Unflatten(model, unfrozen(model, names), names)
    raw = tree.unconstrain(model)
    return unflatten.vector({leaf.name: raw[leaf.name] for leaf in unflatten.leaves}), unflatten


def unfrozen(model: Any, frozen: tuple[str, ...], /) -> list[str]:
    """Return the names of the parameters with entries that no pattern matches, and that the priors do not fix.

    Raise ValueError if a pattern matches nothing, or if no parameter is left.
    """
    parameters = tree.leaves(model, "parameter")
    for pattern in frozen:
        whole = tree.whole_pattern(pattern)
        if not any(tree.matches(name, whole) for name in [*parameters, *tree.leaves(model, "auxiliary")]):
            raise ValueError(tree.no_match_message(pattern, parameters, tree.leaves(model, "constant")))
    fixed = fixed_entries(model, frozen)
    moving = [name for name, x in parameters.items() if name not in fixed or len(fixed[name]) < math.prod(x.shape)]
    if not moving:
        by = ", ".join(pattern.removeprefix("^") for pattern in frozen)
        why = f"every parameter is frozen by {by}" if frozen else "the model has no parameters"
        raise ValueError(f"{why}, so the vector would be empty.")
    return moving
