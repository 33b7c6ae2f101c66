"""The update of inverse factors L, for which L L^T approximates an inverse, and the rules that end it.

The limits `least_steps` and `max_steps` apply with every stopping rule.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar, Protocol

from agp import tree
from agp.backend import Array, backend_of
from agp.bounds import Batch
from agp.linalg import (
    PRECISIONS,
    Gap,
    InverseFactor,
    StepRule,
    report_restarts,
    safe_step,
    starting_vector,
)
from agp.posteriors import InverseOwner, Posterior
from agp.processes import Process
from agp.repairs import report
from agp.updates._base import Info, Moved, State, class_names
from agp.updates._schedules import check_rate, settle_numbers

TOLERANCE = 5e-3
"""The tolerance of the residual in models with one layer."""
DEEP_TOLERANCE, ROUNDINGS = 1e-9, 1e3
"""The tolerance of the residual in deep processes, and its minimum in units of eps. The tolerance is small because
later layers depend on the samples of earlier layers.
"""


class Stopping(Protocol):
    """A stopping rule, which defines the quantity that an `InverseUpdate` reduces to its tolerance.

    Stopping rules are immutable objects.
    """

    name: ClassVar[str]
    """The name of the quantity in logs."""

    def check(self, model: Any, /) -> None:
        """Raise TypeError unless the rule applies to the model."""

    def gap(self, model: Any, owner: Any, batch: Batch, /) -> Gap | None:
        """Return a function that computes the quantity on the batch, or None if the quantity is the residual.

        `owner` is the part of the model that contains the inverse factors.
        """


@dataclass(frozen=True)
class Residual:
    """The residual |L^T A L - I|_F / sqrt(M). The rule requires no extra computation and applies to every model."""

    name: ClassVar[str] = "residual"

    def check(self, model: Any, /) -> None:
        """Do nothing, since the rule applies to every model."""

    def gap(self, model: Any, owner: Any, batch: Batch, /) -> Gap | None:
        """Return None, because the quantity is the residual."""
        return None


@dataclass(frozen=True)
class VarianceGap:
    """An upper bound, in nats, on the loss of expected log likelihood due to an inexact inverse in R-SVGP.

    The noise must be Gaussian. Let T = L L^T. The variance of row n is too large by at most G_n = |(I - Kt T) k_un|^2 /
    min_i s_i. For a batch of B rows, the training bound on N rows therefore loses at most P (N / B) sum_n G_n / (2
    sigma^2), where the sum is over the batch. For mixtures A g, the sum of A_pl^2 / sigma_p^2 replaces P / sigma^2. The
    rule is strict if some s_i are small. Each test takes 4 M^2 B operations, and the covariances [M, B] of the batch
    must fit in memory.

    Parameters
    ----------
    per_datum
        Whether to divide the loss by N. If true, the tolerance is a limit on the average loss per row, as in the code
        of the paper's authors. If false, it is a limit on the loss of all rows, as in the paper.

    Source: the criterion based on predictive variances in Cortinovis et al., "Inverse-free sparse variational Gaussian
    processes", where it is a sum over all rows.
    """

    per_datum: bool = False
    name: ClassVar[str] = "variance_gap"

    def check(self, model: Any, /) -> None:
        """Raise TypeError unless the model has Gaussian noise and a single R-SVGP layer."""
        if any(process.depth > 1 for process in tree.nodes(model, Process).values()):  # type: ignore[type-abstract]
            raise TypeError("VarianceGap does not support models with several layers; use Residual().")
        owners = tree.nodes(model, InverseOwner).values()
        known = [owner for owner in owners if owner.posterior.bounds_variance_gap]
        if model.likelihood.variance_cost() is None or len(known) != 1:
            posterior = ", ".join(type(owner.posterior).__name__ for owner in owners)
            raise TypeError(
                "VarianceGap needs a Gaussian likelihood and one Relaxed posterior, but the model has "
                f"{type(model.likelihood).__name__} and {posterior}; use Residual()."
            )

    def gap(self, model: Any, owner: Any, batch: Batch, /) -> Gap:
        """Return a function that computes the loss, a 0-d array."""
        X = backend_of(batch.X).gather(batch.X)
        Kuf = owner.inducing.cross(owner.kernel, X)[0]
        weight = 1.0 / batch.X.shape[0] if self.per_datum else batch.scale
        cost, mixing = model.likelihood.variance_cost(), model.process.mixing
        xp = backend_of(cost).xp
        # an upper bound (0-d) on the loss per unit of excess variance of the owner's functions
        loss = xp.max(cost) * owner.outputs if mixing is None else xp.sum(cost * xp.sum(mixing * mixing, axis=1))
        factor = loss * weight
        excess = owner.posterior.variance_gap(Kuf)

        def measured(A: Array, L: Array, gram: Array) -> Array:
            return factor * excess(A, L, gram)

        return measured


# -- stopping rules ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InverseUpdate:
    """An update that improves each inverse factor by natural-gradient steps until its residual is small again.

    The steps start from the current factor.

    Parameters
    ----------
    tolerance
        The iteration continues until the quantity that `stopping` defines is below this value. By default, the
        quantity is the residual |L^T A L - I|_F / sqrt(M), and the tolerance is 5e-3. In layers of a `Deep` process,
        the default tolerance is the larger of 1e-9 and 1000 eps.
    least_steps
        The minimum number of steps in a call. The gradient treats L as a constant, so training is biased towards
        parameters that fit the current L. A single step reduces this bias to second order.
    max_steps
        The maximum number of steps in a call.
    patience
        The iteration stops after this number of successive unit steps without progress.
    step
        The rule for the step size: `agp.linalg.safe_step`, `constant_step`, `log_linear_step` or `doubling_step`.
    stopping
        The quantity to reduce: `Residual()`, `VarianceGap()`, or another object with the methods of `Stopping`.
    jumps
        Whether the parameters may change by large amounts between calls, as in a line search. If true, restarts of a
        factor are not reported as repairs.
    precision
        The precision of matrix products in the iteration: "float32", "tf32", "tf32x3", "bfloat16" or "bfloat16x3". In
        "tf32x3" and "bfloat16x3", three products of split matrices replace each product. The last B = L^T A L and the
        residual are computed in the model's precision. If the matrix is too badly conditioned, the iteration returns to
        the model's precision and reports a repair. By default, the iteration uses the model's precision. A precision
        that is not lower than the model's precision has no effect. The page on numerics lists the errors that a lower
        precision causes.
    """

    tolerance: float | None = None
    least_steps: int = 1
    max_steps: int = 100
    patience: int = 5
    step: StepRule = safe_step
    stopping: Stopping = Residual()
    jumps: bool = False
    precision: str | None = None

    def __post_init__(self) -> None:
        if self.tolerance is not None:
            check_rate("tolerance", self.tolerance)
            settle_numbers(self, "tolerance")
        if self.precision is not None and self.precision not in PRECISIONS:
            raise ValueError(
                f"precision is {self.precision!r}, but must be None or one of {', '.join(map(repr, PRECISIONS))}."
            )

    def init(self, model: Any, /) -> State:
        """Return a starting vector for the eigenvalue estimates of each factor.

        Raises
        ------
        TypeError
            If no posterior has inverse factors, or the stopping rule does not apply to the model.
        agp.errors.BackendError
            If the array library or the device does not support products in the chosen precision.
        """
        owners = _owners(model)
        if not owners:
            raise TypeError(f"{class_names(model, Posterior)} has no inverse factors to update; remove InverseUpdate.")
        self.stopping.check(model)
        leaves = tree.leaves(model)
        if self.precision is not None:
            for x in leaves.values():
                backend_of(x).reduced_precision(self.precision, x)
        return {name: starting_vector(leaves[name]) for path, owner in owners.items() for name in _names(path, owner)}

    @staticmethod
    def moves(model: Any, /) -> Moved:
        """Return the inverse factors."""
        return Moved(frozenset(name for path, owner in _owners(model).items() for name in _names(path, owner)))

    def __call__(self, model: Any, batch: Batch, state: State, /) -> tuple[Any, State, Info]:
        """Return the model with updated inverse factors.

        The info contains the largest residual, the numbers of steps and restarts, and the largest value of the quantity
        that `stopping` defines.
        """
        found: dict[str, InverseFactor] = {}
        deep = _paths_of_layers(model)
        for path, owner in _owners(model).items():
            tolerance = TOLERANCE if self.tolerance is None else self.tolerance
            if self.tolerance is None and path in deep:
                first = tree.first_leaf(model)
                tolerance = max(DEEP_TOLERANCE, ROUNDINGS * float(backend_of(first).xp.finfo(first.dtype).eps))
            matrix, gap, posterior = owner._matrix_to_invert(), self.stopping.gap(model, owner, batch), owner.posterior
            done: dict[str, Array] = {}
            for name, leaf in zip(posterior.inverse_factors, _names(path, owner), strict=True):
                posterior = tree.with_leaves(posterior, done) if done else posterior
                inverted = posterior.invert(
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
                    _report_fallbacks(inverted, name, self.precision)
                done = {name: found[leaf].factor}
        model = tree.with_leaves(model, {leaf: one.factor for leaf, one in found.items()})
        xp = backend_of(next(iter(found.values())).factor).xp

        def over_all(field: str, reduce: Callable[[Array], Array]) -> Array:
            values = list(map(attrgetter(field), found.values()))
            return values[0] if len(values) == 1 else reduce(xp.stack(values))

        info = {"residual": over_all("residual", xp.max), "inverse_steps": over_all("steps", xp.sum)}
        if self.precision is not None:
            info |= {"fallbacks": over_all("fallbacks", xp.sum)}
        info |= {"restarts": over_all("restarts", xp.sum), self.stopping.name: over_all("gap", xp.max)}
        return model, {name: one.vector for name, one in found.items()}, info


def _owners(model: Any) -> dict[str, InverseOwner]:
    """Return the parts with inverse factors by path: layers, terms, or the model itself."""
    return {path: owner for path, owner in tree.nodes(model, InverseOwner).items() if owner.posterior.inverse_factors}


def _paths_of_layers(model: Any) -> set[str]:
    """Return the paths of all owners in processes with several layers."""
    deep = {path: process for path, process in tree.nodes(model, Process).items() if process.depth > 1}  # type: ignore[type-abstract]
    return {tree.join_path(path, own) for path, process in deep.items() for own in tree.nodes(process, InverseOwner)}


def _names(path: str, owner: InverseOwner) -> list[str]:
    """Return the names of the leaves that are the owner's factors."""
    return [tree.join_path(path, "posterior", name) for name in owner.posterior.inverse_factors]


def _report_fallbacks(found: InverseFactor, name: str, precision: str, /) -> InverseFactor:
    """Return `found` unchanged; report if products in a lower precision were not accurate enough for this factor."""
    report(
        f"products in {precision} were too coarse to update the {name.replace('_', ' ')} (residual about "
        "{0:.2g}), so the steps used the precision of the model; omit precision=, or raise the jitter or the "
        "tolerance.",
        found.rounding,
        count=found.fallbacks,
    )
    return found
