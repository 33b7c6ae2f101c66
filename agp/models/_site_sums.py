"""Sums over the sites of all data that go from step to step, so that minibatches touch their own rows alone.

A step moves the sites of its rows. While kernel and inducing variables stand still, the sums over all data move by what
these rows contribute: O(B M^2) operations in place of O(N M^2). Each such change adds a rounding of the sums. How much
they may be off is kept beside them, and where it exceeds some thousand roundings of what they are now (after as many
steps, or at once when the sites have become much smaller), they are made anew from all data.
"""

import dataclasses
from typing import Any, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.bounds import white_site_sums
from agp.chunking import tile_rows
from agp.linalg import cholesky
from agp.models._sparse_sites import SparseSites
from agp.posteriors import HoldsSums, Sums

__all__ = ["SummedSites", "nothing_kept"]

HELD = ("factor", "shift", "precision", "drift")
"""What is kept of a model from step to step."""
ROUNDINGS = 4e3
"""The sums are made anew when they may be off by more than so many roundings of their largest entries."""


def _of_the_model(name: str) -> Any:
    return property(lambda self: getattr(self.model, name))


@tree.model
class SummedSites(SparseSites, HoldsSums):
    """A model for the length of a step of its sites.

    Parameters
    ----------
    model
        A `TSVGP`.
    factor
        Lu [M, M].
    shift, precision
        The sites of v = Lu^-1 u: [M, P] and [P, M, M].
    drift
        By how much the entries of both may be off, [2].
    memory
        Budget for working arrays, in MiB, or None.
    """

    model: SparseSites
    factor: Array = tree.auxiliary()
    shift: Array = tree.auxiliary()
    precision: Array = tree.auxiliary()
    drift: Array = tree.auxiliary()
    memory: float | None = None

    @classmethod
    def of(cls, model: SparseSites, kept: dict[str, Any], memory: float | None) -> Self:
        """The model with these sums if they are its own, else with new ones."""
        xp, now = backend_of(model.X).xp, depended_on(model)
        same = [xp.all(kept["at"][name] == x) for name, x in now.items()]
        fits = xp.all(xp.stack(same)) & _accurate(kept)
        untouched = all(kept["at"][name] is x for name, x in now.items())  # as where the hyperparameters are frozen

        def old() -> tuple[Array, ...]:
            return tuple(kept[name] for name in HELD)

        def new() -> tuple[Array, ...]:
            Lu = cholesky(model._inducing_covariance()[0])
            return Lu, *model._white_sites(memory=memory)[0], xp.zeros_like(kept["drift"])

        held = dict(zip(HELD, backend_of(model.X).cond(fits, old, new, likely=untouched), strict=True))
        return cls(model=model, **held, memory=memory)

    def _released(self) -> tuple[SparseSites, dict[str, Any]]:
        return self.model, {name: getattr(self, name) for name in HELD} | {"at": depended_on(self.model)}

    # -- what the model has -----------------------------------------------------------------------------------------

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
            msg = "sums that are held are never differentiated."
            raise TypeError(msg)

        return Sums(self.shift, self.precision), pullback

    def _with_sites(self, shift: Array, precision: Array, rows: Array | None = None, /) -> Self:
        moved = self.model._with_sites(shift, precision, rows)
        xp = backend_of(shift).xp
        placed = xp.sort(rows)
        # a row that a batch has twice counts once
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


def depended_on(model: SparseSites) -> dict[str, Array]:
    """What the sums depend on, by name: the leaves of kernel and inducing variables, and the sites."""
    leaves = {part: tree.leaves(getattr(model, part)) for part in ("kernel", "inducing")}
    found = {tree.joined(part, name): x for part, several in leaves.items() for name, x in several.items()}
    return found | {"site_shift": model.site_shift, "site_precision": model.site_precision}


def nothing_kept(model: SparseSites) -> dict[str, Any]:
    """What stands for sums where there are none yet."""
    M, P = model.inducing.count, model.outputs
    xp = backend_of(model.X).xp
    new = like(model.X)
    shapes = {"factor": (M, M), "shift": (M, P), "precision": (P, M, M)}
    none = {name: xp.zeros(shape, **new) for name, shape in shapes.items()}
    at = {name: xp.full_like(x, float("nan")) for name, x in depended_on(model).items()}
    return none | {"drift": xp.ones((2,), **new), "at": at}


def _sizes(sums: Any) -> Array:
    """The largest entries of both sums, [2]."""
    xp = backend_of(sums.shift).xp
    return xp.stack([xp.max(xp.abs(sums.shift)), xp.max(xp.abs(sums.precision))])


def _accurate(kept: dict[str, Any]) -> Array:
    """Whether sums are as exact as they were when they were made, to some thousand roundings; False for NaN."""
    xp = backend_of(kept["shift"]).xp
    allowed = ROUNDINGS * float(xp.finfo(kept["shift"].dtype).eps) * _sizes(Sums(kept["shift"], kept["precision"]))
    return xp.all(kept["drift"] <= allowed)
