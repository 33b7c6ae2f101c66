"""The update of auxiliary inverse factors: L L^T follows the inverse that the parameters have moved away from."""

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from agp import tree
from agp.backend import Array, backend_of
from agp.batch import Batch
from agp.linalg import (
    PRECISIONS,
    InverseFactor,
    StepRule,
    report_fallbacks,
    report_restarts,
    safe_step,
    starting_vector,
)
from agp.posteriors import InverseOwner
from agp.processes import Process
from agp.tree import first_leaf
from agp.updates._base import Info, Moved, State
from agp.updates._stopping import Residual, Stopping

__all__ = ["InverseUpdate"]

LOGGED = ("residual", "steps", "restarts", "gap", "fallbacks")
"""What is logged of each inversion, summarised over the factors."""

TOLERANCE = 5e-3
"""Of the residual, in models of one layer."""
DEEP_TOLERANCE, ROUNDINGS = 1e-9, 1e3
"""Of the residual in layers of deep processes, but no fewer than so many roundings.

What an inexact inverse leaves in the samples of one layer is what the next ones see.
"""


@dataclass(frozen=True)
class InverseUpdate:
    """Natural-gradient steps on each inverse factor, warm-started, until its residual is small again.

    Parameters
    ----------
    tolerance
        Where to stop, in the unit of `stopping`: of the residual |L^T A L - I|_F / sqrt(M) unless another is chosen.
        By default 5e-3, and in layers of a `Deep` process 1e-9, or a thousand roundings where that is more (float32).
    least_steps
        Steps at least in one call. The gradient takes L for a constant, so it pulls the parameters back to where L
        fits: a factor that stays where it is as long as the tolerance allows holds them up. One step removes the pull
        to second order.
    max_steps
        Steps at most in one call.
    patience
        Stop after so many unit steps in a row without progress (the floor of the precision).
    step
        The rule for the step size: `agp.linalg.safe_step`, `constant_step`, `log_linear_step` or `doubling_step`.
    stopping
        What is measured before each step: the `Residual`, or the `VarianceGap` of the batch.
    jumps
        Whether the parameters may jump between two calls, as in a line search: that a factor is thrown away and found
        anew is then no repair to report.
    precision
        "float32", "tf32" or "bfloat16": products of the iteration in that precision; the last B = L^T A L, and the
        residual, are those of the model's own precision, to which steps return (a repair that is reported) where the
        matrix is too badly conditioned. None, the default, or a precision no lower than the model's, changes nothing.
        See the page on numerics for the error and for what suits which precision.
    """

    tolerance: float | None = None
    least_steps: int = 1
    max_steps: int = 100
    patience: int = 5
    step: StepRule = safe_step
    stopping: Stopping = Residual()  # noqa: RUF009 - frozen
    jumps: bool = False
    precision: str | None = None

    def __post_init__(self) -> None:
        if self.precision is not None and self.precision not in PRECISIONS:
            msg = f"precision is {self.precision!r}, but must be None or one of {', '.join(map(repr, PRECISIONS))}."
            raise ValueError(msg)

    def init(self, model: Any, /) -> State:
        """For each factor a vector to start eigenvalue estimates from.

        Raises
        ------
        TypeError
            If no posterior has inverse factors, or the rule for stopping does not apply to the model.
        agp.errors.BackendError
            If the array library, or the device, has no products in the precision that was asked for.
        """
        owners = _owners(model)
        if not owners:
            found = sorted({type(owner.posterior).__name__ for owner in tree.nodes(model, InverseOwner).values()})
            what = " and ".join(found) or type(model).__name__
            msg = f"{what} has no inverse factors to update; leave InverseUpdate out."
            raise TypeError(msg)
        self.stopping.check(model)
        leaves = tree.leaves(model)
        if self.precision is not None:
            for x in leaves.values():
                backend_of(x).reduced_precision(self.precision, x)
        return {name: starting_vector(leaves[name]) for path, owner in owners.items() for name in _names(path, owner)}

    @staticmethod
    def moves(model: Any, /) -> Moved:
        """The inverse factors."""
        return Moved(frozenset(name for path, owner in _owners(model).items() for name in _names(path, owner)))

    def __call__(self, model: Any, batch: Batch, state: State, /) -> tuple[Any, State, Info]:
        """The model with better inverse factors, owner after owner, those of one owner in their order.

        The info is the largest residual, the steps taken, the restarts and the largest of what the rule for stopping
        has measured.
        """
        found: dict[str, InverseFactor] = {}
        layers = _paths_of_layers(model)
        for path, owner in _owners(model).items():
            tolerance = (
                _usual_tolerance(path in layers, first_leaf(model)) if self.tolerance is None else self.tolerance
            )
            matrix, gap, posterior = owner._followed_matrix(), self.stopping.gap(model, owner, batch), owner.posterior
            done: dict[str, Array] = {}
            for name, leaf in zip(posterior.inverse_factors, _names(path, owner), strict=True):
                posterior = tree.with_leaves(posterior, done) if done else posterior
                inverted = posterior.inverted(
                    matrix,
                    name,
                    tolerance=tolerance,
                    least_steps=self.least_steps,
                    max_steps=self.max_steps,
                    patience=self.patience,
                    step=self.step,
                    vector=state[leaf],
                    gap=gap,
                    precision=self.precision,
                )
                found[leaf] = inverted if self.jumps else report_restarts(inverted, name)
                if self.precision is not None:
                    report_fallbacks(inverted, name, self.precision)
                done = {name: found[leaf].factor}
        model = tree.with_leaves(model, {leaf: one.factor for leaf, one in found.items()})
        xp = backend_of(next(iter(found.values())).factor).xp
        all_of = {field: xp.stack(list(map(attrgetter(field), found.values()))) for field in LOGGED}
        info = {"residual": xp.max(all_of["residual"]), "inverse_steps": xp.sum(all_of["steps"])}
        if self.precision is not None:
            info |= {"fallbacks": xp.sum(all_of["fallbacks"])}
        info |= {"restarts": xp.sum(all_of["restarts"]), self.stopping.name: xp.max(all_of["gap"])}
        return model, {name: one.vector for name, one in found.items()}, info


def _owners(model: Any) -> dict[str, InverseOwner]:
    """What has inverse factors, by path: layers, terms, or the model itself."""
    return {path: owner for path, owner in tree.nodes(model, InverseOwner).items() if owner.posterior.inverse_factors}


def _paths_of_layers(model: Any) -> set[str]:
    """The paths of all that is inside a process of several layers."""
    deep = {path: process for path, process in tree.nodes(model, Process).items() if process.depth > 1}  # type: ignore[type-abstract]
    return {tree.joined(path, own) for path, process in deep.items() for own in tree.nodes(process, InverseOwner)}


def _usual_tolerance(deep: bool, like_leaves: Array) -> float:
    if not deep:
        return TOLERANCE
    return max(DEEP_TOLERANCE, ROUNDINGS * float(backend_of(like_leaves).xp.finfo(like_leaves.dtype).eps))


def _names(path: str, owner: InverseOwner) -> list[str]:
    """The names of the leaves that are the owner's factors."""
    return [tree.joined(path, "posterior", name) for name in owner.posterior.inverse_factors]
