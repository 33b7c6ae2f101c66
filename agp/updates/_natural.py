"""Natural gradients for q(u): the step of conjugate-computation variational inference, in two coordinates."""

from dataclasses import dataclass
from typing import Any, Literal

from agp import tree
from agp.backend import backend_of
from agp.batch import Batch
from agp.posteriors import NaturalSteps, Posterior
from agp.tree import zero_like
from agp.updates._base import Info, Moved, State
from agp.updates._guard import guarded_by_bound
from agp.updates._schedules import Rate, check_step, rate_at

__all__ = ["NaturalGradient", "posterior_names"]


@dataclass(frozen=True)
class NaturalGradient:
    """A step of q(u) along the natural gradient of the bound, with mean m and covariance S = C C^T for each output.

    With alpha and beta = -2 (d/dvar) the derivatives of the expected log density at the marginals (scaled by N / B),
    Q = Kuu^-1 Kuf and prior precision Kuu^-1 (M-SVGP), or Q = Lu^-1 Kuf and I (W-SVGP), and the step size rho,

        S_new^-1       = (1 - rho) S^-1 + rho (prior precision + Q diag(beta) Q^T)
        S_new^-1 m_new = (1 - rho) S^-1 m + rho Q (alpha + beta * (mu - h))

    in natural coordinates: rho = 1 with a Gaussian likelihood and all data gives the optimal q(u) at once. The root
    coordinates (m, C) take the first-order step of the same direction, which needs no inverse of S.

    Use it beside `Adam` with ``frozen=("posterior.*",)``; it is for the posteriors `Whitened` and `Marginal`.

    Parameters
    ----------
    rate
        rho in (0, 1], or a function of the count of steps. A step to a precision that is not positive definite
        (possible where the likelihood is not log-concave) is halved until it is.
    coordinates
        "natural" or "root".
    memory
        Budget for working arrays, in MiB: more rows than fit are taken in blocks. None as in `agp.models.Model.bound`.

    Raises
    ------
    ValueError
        For a rate outside (0, 1], or unknown coordinates.

    Source: Salimbeni, Eleftheriadis & Hensman, "Natural gradients in practice", AISTATS 2018.
    """

    rate: Rate = 1.0
    coordinates: Literal["natural", "root"] = "natural"
    memory: float | None = None

    def __post_init__(self) -> None:
        check_step(self.rate, "a natural-gradient")
        if self.coordinates not in ("natural", "root"):
            msg = f"unknown coordinates {self.coordinates!r}; known are 'natural' and 'root'."
            raise ValueError(msg)

    @staticmethod
    def stepping(model: Any, /) -> dict[str, NaturalSteps]:
        """The posteriors that take the steps, by path."""
        return {path: q for path, q in tree.nodes(model, NaturalSteps).items() if path in model._site_paths}

    def init(self, model: Any, /) -> State:
        """The count of steps. TypeError if no posterior takes such steps."""
        if not self.stepping(model):
            msg = f"natural gradients need the posterior Whitened or Marginal, not {posterior_names(model)}."
            raise TypeError(msg)
        return {"count": zero_like(model)}

    def moves(self, model: Any, /) -> Moved:
        """The parameters of every q(u) that takes the steps."""
        stepping = self.stepping(model).items()
        return Moved(frozenset(tree.joined(path, leaf) for path, q in stepping for leaf in tree.leaves(q, "parameter")))

    def __call__(self, model: Any, batch: Batch, state: State, /) -> tuple[Any, State, Info]:
        """The model with the new q(u), of every posterior that takes such steps; the info is the largest number of
        halvings. Of the layers of a deep process only the last takes them.
        """
        xp = backend_of(state["count"]).xp
        rate = rate_at(self.rate, state["count"])
        stepping = self.stepping(model)
        gradients = model._site_gradients(batch, memory=self.memory)

        def step(rate: Any) -> tuple[Any, Info]:
            new, halvings = {}, []
            for path, found in gradients.items():
                if path in stepping:
                    new[path], tried = stepping[path].natural_step(found, rate, self.coordinates)
                    halvings.append(tried)
            return tree.replaced(model, new), {"halvings": xp.max(xp.stack(halvings))}

        moved, info = guarded_by_bound(step, model, batch, rate, self.memory)
        return moved, {"count": state["count"] + 1.0}, info


def posterior_names(model: Any) -> str:
    """The classes of q(u) in a model, for messages; that of the model where there is none."""
    found = sorted({type(posterior).__name__ for posterior in tree.nodes(model, Posterior).values()})
    return " and ".join(found) or type(model).__name__
