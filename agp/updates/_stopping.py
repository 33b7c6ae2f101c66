"""Stopping rules of the inversion in a training step, in addition to its limits on steps."""

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
    """A frozen object that defines the quantity that must fall below the tolerance of an `InverseUpdate`."""

    name: ClassVar[str]
    """The name of the quantity in logs."""

    def check(self, model: Any, /) -> None:
        """Raise TypeError unless the rule applies to the model."""
        ...

    def gap(self, model: Any, owner: Any, batch: Batch, /) -> Gap | None:
        """Return the quantity for the inverse factors of an owner in a model on these rows; None is the residual."""
        ...


@dataclass(frozen=True)
class Residual:
    """The residual |L^T A L - I|_F / sqrt(M), at no extra cost and for every likelihood."""

    name: ClassVar[str] = "residual"

    def check(self, model: Any, /) -> None:
        """Do nothing, since the rule applies to every model."""

    def gap(self, model: Any, owner: Any, batch: Batch, /) -> Gap | None:
        """Return None: the quantity is the residual."""
        return None


@dataclass(frozen=True)
class VarianceGap:
    """A bound on the loss of expected log-likelihood, in nats, by an inexact inverse, for Gaussian noise and R-SVGP.

    Let T = L L^T. The excess variance of datum n is at most G_n = |(I - Kt T) k_un|^2 / min_i s_i. So the bound of all
    N data loses at most P (N / B) sum_n G_n / (2 sigma^2), summed over a batch of B rows. For mixtures A g, the sum of
    A_pl^2 / sigma_p^2 replaces P / sigma^2. The rule is strict if some s are small. Each test costs 4 M^2 B operations
    in addition to the covariances [M, B] of the batch, which must fit in memory.

    Parameters
    ----------
    per_datum
        Whether to divide by N, so that the tolerance is the average loss per datum.

    Source: the criterion by predictive variance of Cortinovis et al., "Inverse-free sparse variational Gaussian
    processes", who take the mean over the batch.
    """

    per_datum: bool = False
    name: ClassVar[str] = "variance_gap"

    def check(self, model: Any, /) -> None:
        """Raise TypeError unless the model has Gaussian noise and one layer of R-SVGP."""
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
        """Return the loss, 0-d."""
        X = backend_of(batch.X).gather(batch.X)
        Kuf = owner.inducing.cross(owner.kernel, X)[0]
        weight = 1.0 / batch.X.shape[0] if self.per_datum else batch.scale
        factor = _cost(model, owner) * weight
        excess = owner.posterior.variance_gap(Kuf)

        def measured(A: Array, L: Array, gram: Array) -> Array:
            return factor * excess(A, L, gram)

        return measured


def _cost(model: Any, owner: Any) -> Array:
    """Return an upper bound, 0-d, on the cost of one unit of variance in each function of an owner."""
    cost, mixing = model.likelihood.variance_cost(), model.process.mixing
    xp = backend_of(cost).xp
    return xp.max(cost) * owner.outputs if mixing is None else xp.sum(cost * xp.sum(mixing * mixing, axis=1))
