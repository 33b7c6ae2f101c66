"""The update of auxiliary inverse factors: L L^T follows the inverse that the parameters have moved away from."""

from dataclasses import dataclass
from typing import Any

from agp import tree
from agp.backend import Array, backend_of
from agp.batch import Batch
from agp.linalg import StepRule, report_restarts, safe_step, starting_vector
from agp.posteriors import FollowsInverse, inducing_covariance
from agp.updates._base import Info, State
from agp.updates._stopping import Residual, Stopping

__all__ = ["InverseUpdate"]

LOGGED = ("residual", "steps", "restarts", "gap")
"""What is logged of each inversion, summarised over the factors."""


@dataclass(frozen=True)
class InverseUpdate:
    """Natural-gradient steps on each inverse factor, warm-started, until its residual is small again.

    Parameters
    ----------
    tolerance
        Where to stop, in the unit of `stopping`. For the residual |L^T A L - I|_F / sqrt(M), 5e-3 suits single
        layers, 1e-9 deep models.
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
    """

    tolerance: float = 5e-3
    least_steps: int = 1
    max_steps: int = 100
    patience: int = 5
    step: StepRule = safe_step
    stopping: Stopping = Residual()  # noqa: RUF009 - frozen

    def init(self, model: Any, /) -> State:
        """For each factor a vector to start eigenvalue estimates from.

        Raises
        ------
        TypeError
            If the posterior has no inverse factors, or the rule for stopping does not apply to the model.
        """
        self.stopping.check(model)
        posterior = model.posterior
        if not isinstance(posterior, FollowsInverse):
            msg = f"{type(posterior).__name__} has no inverse factors to update; leave InverseUpdate out."
            raise TypeError(msg)
        return {name: starting_vector(getattr(posterior, name)) for name in posterior.inverse_factors}

    def __call__(self, model: Any, batch: Batch, state: State, /) -> tuple[Any, State, Info]:
        """The model with better inverse factors, in their order.

        The info is the largest residual, the steps taken, the restarts and the largest of what the rule for stopping
        has measured.
        """
        Kuu = _matrix_of(model)
        gap = self.stopping.gap(model, batch)
        found = {}
        for name in model.posterior.inverse_factors:
            inverted = model.posterior.inverted(
                Kuu,
                name,
                tolerance=self.tolerance,
                least_steps=self.least_steps,
                max_steps=self.max_steps,
                patience=self.patience,
                step=self.step,
                vector=state[name],
                gap=gap,
            )
            found[name] = report_restarts(inverted, name)
            model = tree.with_leaves(model, {f"posterior.{name}": found[name].factor})
        xp = backend_of(Kuu).xp
        all_of = {field: xp.stack([getattr(one, field) for one in found.values()]) for field in LOGGED}
        info = {"residual": xp.max(all_of["residual"]), "inverse_steps": xp.sum(all_of["steps"])}
        info |= {"restarts": xp.sum(all_of["restarts"]), self.stopping.name: xp.max(all_of["gap"])}
        return model, {name: one.vector for name, one in found.items()}, info


def _matrix_of(model: Any) -> Array:
    """The matrix that the targets of a model depend on: its own, or Kuu."""
    own = getattr(model, "projected_covariance", None)
    return inducing_covariance(model)[0] if own is None else own()
