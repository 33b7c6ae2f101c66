"""The optimal pseudo-observations of L-SVGP and R-SVGP at fixed hyperparameters, by products of matrices."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from agp import tree
from agp.backend import Array, backend_of
from agp.bounds import Batch, expected_row_density, row_site_gradients
from agp.checks import check_whole
from agp.posteriors import GrowingSiteForm, Posterior
from agp.processes import Sparse
from agp.updates._base import Info, Moved, State, class_names
from agp.updates._schedules import check_rate, settle_numbers

ROUNDING = 20.0
"""Gains of up to this many units of eps |bound| count as rounding errors."""
GROWTH, SHORTEST = 1.4, 1e-3
"""The factor by which the rate grows after each accepted step, up to 1, and the rate at which the steps end."""
PLACE = "process.posterior"
"""The path of q(u) in the models to which the update applies."""


class Progress(NamedTuple):
    """The state of the steps."""

    bound: Array
    posterior: Any
    alpha: Array
    """The site gradients alpha and beta [N, P] of the likelihood, multiplied by the scale of the batch."""
    beta: Array
    rate: Array
    """The rate of the next step."""
    gain: Array
    """The gain of the last accepted step divided by its rate, in nats."""
    steps: Array


@dataclass(frozen=True)
class OptimalPseudoObservations:
    """An update that moves the pseudo-observations of q(u) to an optimum, given the other leaves and all rows of data.

    For the posteriors `LikelihoodForm` and `Relaxed`, q(u) is the posterior of u given pseudo-observations m with the
    noise variances s. Each step multiplies the precision 1 / s_i of each pseudo-observation by the ratio of what the
    data tell about u_i to what the pseudo-observations tell about it, and moves m by a damped Newton step. A step that
    lowers the bound is rejected, and the next one is half as long. The steps end when one of them gains less than the
    tolerance. They need products of matrices only; for `Relaxed`, the inverse factor is updated after each step.

    `agp.fit` applies this update before and after its search for hyperparameters. The features of all rows are computed
    once and stored, so the update takes O(NM) memory.

    Parameters
    ----------
    tolerance
        The gain of the bound in nats. A smaller tolerance than the rounding error of the bound has no effect.
    max_steps
        The maximum number of steps.

    Raises
    ------
    ValueError
        If the tolerance is negative, or the number of steps is not a positive integer.

    Examples
    --------
    At fixed hyperparameters, the bound is nearly that of the best q(u) with a full covariance, which SGPR has.

    >>> import numpy as np
    >>> import agp
    >>> from agp.bounds import Batch
    >>> X = np.linspace(0.0, 6.0, 200)[:, None]
    >>> y = np.sin(2.0 * X) + 0.1 * np.cos(40.0 * X)
    >>> model = agp.training.initial_state(agp.SVGP.from_data(X, y, num_inducing=12))
    >>> update = agp.updates.OptimalPseudoObservations()
    >>> found, _, info = update(model, Batch(X, y), update.init(model))
    >>> best = agp.SGPR.from_data(X, y, kernel=model.kernel, likelihood=model.likelihood, num_inducing=12)
    >>> [round(float(best.bound(X, y)[0] - one.bound(X, y)[0]), 1) for one in (model, found)]
    [1004.3, 0.1]
    """

    tolerance: float = 1e-4
    max_steps: int = 100

    def __post_init__(self) -> None:
        check_rate("tolerance", self.tolerance)
        settle_numbers(self, "tolerance")
        check_whole("max_steps", self.max_steps)

    @staticmethod
    def applies(model: Any, /) -> bool:
        """Return whether the model has one sparse process without mixed outputs, whose q(u) has the right form."""
        found = tree.nodes(model, Sparse)
        if set(found) != {"process"} or found["process"].mixing is not None:
            return False
        posterior = found["process"].posterior
        return isinstance(posterior, GrowingSiteForm) and posterior.can_match

    def init(self, model: Any, /) -> State:
        """Return an empty state. Raise TypeError if the update does not apply to the model."""
        if not self.applies(model):
            raise TypeError(
                f"{class_names(model, Posterior)} has no pseudo-observations to optimise; use SVGP with the posterior "
                "Relaxed or LikelihoodForm, preconditioned=True, and outputs that are not mixed."
            )
        return {}

    def moves(self, model: Any, /) -> Moved:
        """Return the leaves of q(u)."""
        return Moved(frozenset(tree.join_path(PLACE, name) for name in _moving(model.process.posterior)))

    def __call__(self, model: Any, batch: Batch, state: State, /) -> tuple[Any, State, Info]:
        """Return the model with optimal pseudo-observations. The info contains the number of steps."""
        look, step = _steps_of(model, batch)
        first = model.process.posterior.reinvert(model.process._matrix_to_invert())
        start = look(first)
        xp, eps = backend_of(start[0]).xp, float(backend_of(start[0]).xp.finfo(start[0].dtype).eps)
        zero = xp.zeros_like(start[0])

        def unfinished(*now: Any) -> Array:
            last = Progress(*now)
            least = xp.maximum(zero + self.tolerance, ROUNDING * eps * xp.abs(last.bound))
            return (last.gain > least) & (last.rate > SHORTEST) & (last.steps < self.max_steps)

        begun = Progress(start[0], first, *start[1:], zero + 1.0, zero + float("inf"), zero)
        found = Progress(*backend_of(zero).while_loop(unfinished, step, tuple(begun)))
        return tree.replace(model, {PLACE: found.posterior}), state, {"matching_steps": found.steps}


def _moving(posterior: Any) -> tuple[str, ...]:
    """Return the names of the leaves that steps change."""
    return ("mean", posterior.site_noise.name, *posterior.inverse_factors)


def _steps_of(model: Any, batch: Batch) -> tuple[Callable[[Any], tuple[Array, Array, Array]], Callable[..., Any]]:
    """Return the function from q(u) to the bound and the site gradients, and the function of a step."""
    process, likelihood, scale = model.process, model.likelihood, batch.scale
    (Kuf, kff, h), _ = process.features(batch.X)
    Kuu = process._matrix_to_invert()
    xp = backend_of(Kuu).xp

    def look(q: Any) -> tuple[Array, Array, Array]:
        factor = q.factorise(Kuu)[0]
        residual, var = q.project(factor, Kuf, kff)[0]
        mu = h + residual
        ell = expected_row_density(likelihood, mu, var, batch)[0]
        alpha, beta = row_site_gradients(likelihood, mu, var, batch)
        return scale * xp.sum(ell) - q.kl_divergence(factor)[0], scale * alpha, scale * beta

    def step(*now: Any) -> tuple[Any, ...]:
        last = Progress(*now)
        q = last.posterior.match_data(Kuu, Kuf, last.alpha, last.beta, last.rate).reinvert(Kuu)
        bound, alpha, beta = look(q)
        good = xp.isfinite(bound) & (bound >= last.bound)
        new, old = tree.leaves(q), tree.leaves(last.posterior)
        chosen = {name: xp.where(good, new[name], old[name]) for name in _moving(q)}
        return tuple(
            Progress(
                xp.where(good, bound, last.bound),
                tree.with_leaves(last.posterior, chosen),
                xp.where(good, alpha, last.alpha),
                xp.where(good, beta, last.beta),
                xp.where(good, xp.minimum(GROWTH * last.rate, xp.ones_like(bound)), 0.5 * last.rate),
                xp.where(good, (bound - last.bound) / last.rate, last.gain),
                last.steps + 1.0,
            )
        )

    return look, step
