"""Sums over the sites of all rows, which are cached between steps.

A step on a minibatch changes only the sites of its B rows. If the kernel and the inducing variables do not change, the
sums can be updated in O(B M^2) operations, instead of O(N M^2) for all rows. Each update adds rounding errors. The sums
are recomputed from all rows when a bound on these errors exceeds `MAX_ROUNDINGS`.
"""

import dataclasses
from typing import Any, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.bounds import white_site_sums
from agp.chunking import tile_rows
from agp.linalg import cholesky
from agp.models._sparse_sites import SparseSites
from agp.posteriors import Sums

CACHED_SUMS = ("factor", "shift", "precision", "drift")
"""The names of the arrays that are cached between steps."""
MAX_ROUNDINGS = 4e3
"""The maximum error of the sums, in units of the rounding error of their largest entries."""


def _of_the_model(name: str) -> Any:
    return property(lambda self: getattr(self.model, name))


@tree.model
class SummedSites(SparseSites):
    """A TSVGP with cached sums, used during a site step.

    The sums [M, P] and [P, M, M] are for v = Lu^-1 u, and the field `factor` is Lu [M, M]. The field `drift` [2] bounds
    the errors of the two sums. The memory budget for working arrays is in MiB.
    """

    model: SparseSites
    factor: Array = tree.auxiliary()
    shift: Array = tree.auxiliary()
    precision: Array = tree.auxiliary()
    drift: Array = tree.auxiliary()
    memory: float | None = None

    @classmethod
    def of(cls, model: SparseSites, kept: dict[str, Any], memory: float | None) -> Self:
        """Return the model with the cached sums if they are valid, otherwise with new sums."""
        xp, now = backend_of(model.X).xp, dependencies_of_sums(model)
        same = [xp.all(kept["at"][name] == x) for name, x in now.items()]
        fits = xp.all(xp.stack(same)) & _accurate(kept)
        untouched = all(kept["at"][name] is x for name, x in now.items())  # true for frozen hyperparameters

        def old() -> tuple[Array, ...]:
            return tuple(kept[name] for name in CACHED_SUMS)

        def new() -> tuple[Array, ...]:
            Lu = cholesky(model._inducing_covariance()[0])
            return Lu, *model._white_sites(memory=memory)[0], xp.zeros_like(kept["drift"])

        held = dict(zip(CACHED_SUMS, backend_of(model.X).cond(fits, old, new, likely=untouched), strict=True))
        return cls(model=model, **held, memory=memory)

    def _release_sums(self) -> tuple[SparseSites, dict[str, Any]]:
        """Separate the sums from the model; return the model without sums, and the sums."""
        return self.model, {name: getattr(self, name) for name in CACHED_SUMS} | {
            "at": dependencies_of_sums(self.model)
        }

    # -- parts of the model -----------------------------------------------------------------------------------------

    kernel = _of_the_model("kernel")
    likelihood = _of_the_model("likelihood")
    inducing = _of_the_model("inducing")
    mean_function = _of_the_model("mean_function")
    jitter = _of_the_model("jitter")
    priors = _of_the_model("priors")
    X = _of_the_model("X")
    site_shift = _of_the_model("site_shift")
    site_precision = _of_the_model("site_precision")

    # -- sums -------------------------------------------------------------------------------------------------------

    def _white_sites(self, *, memory: float | None = None) -> tuple[Sums, Pullback]:  # noqa: ARG002
        def pullback(_bar):
            msg = "cached sums cannot be differentiated; use TSVGP instead of SummedSites."
            raise TypeError(msg)

        return Sums(self.shift, self.precision), pullback

    def _with_sites(self, shift: Array, precision: Array, rows: Array | None = None, /) -> Self:
        moved = self.model._with_sites(shift, precision, rows)
        xp = backend_of(shift).xp
        placed = xp.sort(rows)
        # a row that occurs twice in a batch counts once
        first = xp.concat([placed[:1] == placed[:1], placed[1:] != placed[:-1]])
        weight = xp.astype(first, shift.dtype)[:, None]
        changes = [
            weight * (xp.take(getattr(moved, name), placed, axis=0) - xp.take(getattr(self, name), placed, axis=0))
            for name in ("site_shift", "site_precision")
        ]
        X = backend_of(self.X).rows_at(self.X, placed)
        block_rows = tile_rows(self.memory, self._floats_per_row, X)
        added = white_site_sums(self, self.factor, X, *changes, block_rows=block_rows)[0]
        sums = Sums(self.shift + added.shift, self.precision + added.precision)
        rounding = float(xp.finfo(shift.dtype).eps) * (_sizes(self) + _sizes(sums))
        return dataclasses.replace(self, model=moved, drift=self.drift + rounding, **sums._asdict())


def dependencies_of_sums(model: SparseSites) -> dict[str, Array]:
    """Return the arrays that determine the sums: the sites, and the leaves of the kernel and the inducing variables."""
    leaves = {part: tree.leaves(getattr(model, part)) for part in ("kernel", "inducing")}
    found = {tree.join_path(part, name): x for part, several in leaves.items() for name, x in several.items()}
    return found | {"site_shift": model.site_shift, "site_precision": model.site_precision}


def empty_sums(model: SparseSites) -> dict[str, Any]:
    """Return placeholders for sums that have not been computed."""
    M, P = model.inducing.count, model.outputs
    xp = backend_of(model.X).xp
    new = like(model.X)
    shapes = {"factor": (M, M), "shift": (M, P), "precision": (P, M, M)}
    none = {name: xp.zeros(shape, **new) for name, shape in shapes.items()}
    at = {name: xp.full_like(x, float("nan")) for name, x in dependencies_of_sums(model).items()}
    return none | {"drift": xp.ones((2,), **new), "at": at}


def _sizes(sums: Any) -> Array:
    """Return the largest magnitude in each of the two sums, as an array [2]."""
    xp = backend_of(sums.shift).xp
    return xp.stack([xp.max(xp.abs(sums.shift)), xp.max(xp.abs(sums.precision))])


def _accurate(kept: dict[str, Any]) -> Array:
    """Whether the errors of the sums are at most the permitted maximum. False for NaN."""
    xp = backend_of(kept["shift"]).xp
    allowed = MAX_ROUNDINGS * float(xp.finfo(kept["shift"].dtype).eps) * _sizes(Sums(kept["shift"], kept["precision"]))
    return xp.all(kept["drift"] <= allowed)
