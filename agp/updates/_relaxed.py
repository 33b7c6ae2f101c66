"""The update of R-SVGP's auxiliary factor: L L^T follows the inverse that the parameters have moved away from."""

from dataclasses import dataclass
from typing import Any

from agp import tree
from agp.batch import Batch
from agp.linalg import StepRule, inverse_factor, safe_step, starting_vector
from agp.posteriors import inducing_covariance
from agp.updates._base import Info, State

__all__ = ["InverseUpdate"]


@dataclass(frozen=True)
class InverseUpdate:
    """Natural-gradient steps on the inverse factor, warm-started, until its residual is small again.

    Parameters
    ----------
    tolerance
        The residual |L^T A L - I|_F / sqrt(M) at which to stop; 5e-3 suits single layers, 1e-9 deep models.
    max_steps
        Steps at most in one call.
    patience
        Stop after so many steps in a row without progress (the floor of the precision).
    step
        The rule for the step size.
    """

    tolerance: float = 5e-3
    max_steps: int = 100
    patience: int = 5
    step: StepRule = safe_step

    def init(self, model: Any, /) -> State:
        """A vector to start eigenvalue estimates from."""
        return {"vector": starting_vector(model.posterior.inverse_factor)}

    def __call__(self, model: Any, batch: Batch, state: State, /) -> tuple[Any, State, Info]:
        """The model with a better inverse factor; the info is its residual, the steps taken and the restarts."""
        Kuu = inducing_covariance(model)[0]
        found = inverse_factor(
            model.posterior.inverse_target(Kuu),
            model.posterior.inverse_factor,
            tolerance=self.tolerance,
            max_steps=self.max_steps,
            patience=self.patience,
            step=self.step,
            vector=state["vector"],
        )
        model = tree.with_leaves(model, {"posterior.inverse_factor": found.factor})
        info = {"residual": found.residual, "inverse_steps": found.steps, "restarts": found.restarts}
        return model, {"vector": found.vector}, info
