"""Stopping rules of the inversion in a training step, besides its limits on steps and on steps without progress."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from agp import tree
from agp.backend import Array, backend_of
from agp.batch import Batch
from agp.linalg import Gap
from agp.posteriors import InverseOwner
from agp.processes import Process

__all__ = ["Residual", "Stopping", "VarianceGap"]


class Stopping(Protocol):
    """A frozen object that defines what must fall below the tolerance of an `InverseUpdate`."""

    name: ClassVar[str]
    """The name of the number in logs."""

    def check(self, model: Any, /) -> None:
        """Raise unless the rule applies to the model."""
        ...

    def gap(self, model: Any, owner: Any, batch: Batch, /) -> Gap | None:
        """The number for the inverse factors of an owner in a model, on these rows; None for the residual."""
        ...


@dataclass(frozen=True)
class Residual:
    """|L^T A L - I|_F / sqrt(M): at no cost, for every likelihood."""

    name: ClassVar[str] = "residual"

    def check(self, model: Any, /) -> None:
        """The rule applies to every model."""

    def gap(self, model: Any, owner: Any, batch: Batch, /) -> Gap | None:
        """The residual."""
        return None


@dataclass(frozen=True)
class VarianceGap:
    """The most that an inexact inverse can cost the expected log-likelihood, in nats: Gaussian likelihood and R-SVGP.

    With T = L L^T the excess variance of datum n is at most G_n = |(I - Kt T) k_un|^2 / min_i s_i, so the bound of all
    N data loses at most P (N / B) sum_n G_n / (2 sigma^2), summed over a batch of B rows. For mixtures A g, the sum of
    A_pl^2 / sigma_p^2 replaces P / sigma^2. The rule is strict if some s are small. Each test costs 4 M^2 B operations
    besides the covariances [M, B] of the batch, which must fit in memory.

    Parameters
    ----------
    per_datum
        Divide by N: the tolerance is then the loss of an average datum.

    Source: the criterion by predictive variance of Cortinovis et al., "Inverse-free sparse variational Gaussian
    processes", who take the mean over the batch.
    """

    per_datum: bool = False
    name: ClassVar[str] = "variance_gap"

    def check(self, model: Any, /) -> None:
        """TypeError unless the model has Gaussian noise and one layer of R-SVGP."""
        if any(process.depth > 1 for process in tree.nodes(model, Process).values()):  # type: ignore[type-abstract]
            msg = "VarianceGap needs the inputs of all inverse factors, which only one layer has; use Residual()."
            raise TypeError(msg)
        owners = tree.nodes(model, InverseOwner).values()
        known = [owner for owner in owners if owner.posterior.bounds_variance_gap]
        if model.likelihood.variance_cost() is None or len(known) != 1:
            posterior = ", ".join(type(owner.posterior).__name__ for owner in owners)
            msg = (
                "VarianceGap needs a Gaussian likelihood and one Relaxed posterior, but the model has "
                f"{type(model.likelihood).__name__} and {posterior}; use Residual()."
            )
            raise TypeError(msg)

    def gap(self, model: Any, owner: Any, batch: Batch, /) -> Gap:
        """The loss, 0-d."""
        X = backend_of(batch.X).gathered(batch.X)
        Kuf = owner.inducing.cross(owner.kernel, X)[0]
        weight = 1.0 / batch.X.shape[0] if self.per_datum else batch.scale
        factor = _cost(model, owner) * weight
        excess = owner.posterior.variance_gap(Kuf)

        def measured(A: Array, L: Array, gram: Array) -> Array:
            return factor * excess(A, L, gram)

        return measured


def _cost(model: Any, owner: Any) -> Array:
    """An upper bound, 0-d, on the cost of a unit of the variance of each function of an owner."""
    cost, mixing = model.likelihood.variance_cost(), model.process.mixing
    xp = backend_of(cost).xp
    return xp.max(cost) * owner.outputs if mixing is None else xp.sum(cost * xp.sum(mixing * mixing, axis=1))
