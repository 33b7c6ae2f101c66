"""Stopping rules of `InverseUpdate`. The limits `least_steps` and `max_steps` apply with every rule."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from agp import tree
from agp.backend import Array, backend_of
from agp.bounds import Batch
from agp.linalg import Gap
from agp.posteriors import InverseOwner
from agp.processes import Process


class Stopping(Protocol):
    """A stopping rule, which defines the quantity that an `InverseUpdate` reduces to its tolerance.

    Stopping rules are immutable objects.
    """

    name: ClassVar[str]
    """The name of the quantity in logs."""

    def check(self, model: Any, /) -> None:
        """Raise TypeError unless the rule applies to the model."""
        ...

    def gap(self, model: Any, owner: Any, batch: Batch, /) -> Gap | None:
        """Return a function that computes the quantity on the batch, or None if the quantity is the residual.

        `owner` is the part of the model that contains the inverse factors.
        """
        ...


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
        Whether to divide the loss by N. If true, the tolerance is a limit on the average loss per row.

    Source: the criterion based on predictive variances in Cortinovis et al., "Inverse-free sparse variational Gaussian
    processes", where it is an average over the batch.
    """

    per_datum: bool = False
    name: ClassVar[str] = "variance_gap"

    def check(self, model: Any, /) -> None:
        """Raise TypeError unless the model has Gaussian noise and a single R-SVGP layer."""
        if any(process.depth > 1 for process in tree.nodes(model, Process).values()):  # type: ignore[type-abstract]
            msg = "VarianceGap does not support models with several layers; use Residual()."
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
