"""The optimal q(u) at fixed hyperparameters, by natural-gradient steps on features that are computed once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from agp import tree
from agp.backend import Array, backend_of
from agp.bounds import Batch, expected_row_density, row_site_gradients
from agp.checks import check_whole
from agp.posteriors import Posterior, Sums
from agp.repairs import report
from agp.updates._at_rows import can_fix_rows, fix_rows, sites_of, with_sites, without_residuals
from agp.updates._base import Info, Moved, Repeat, State, class_names, leaves_of
from agp.updates._natural import NaturalGradient
from agp.updates._schedules import check_rate, settle_numbers

ROUNDING = 20.0
"""Changes of the bound up to this many units of eps |bound| count as rounding errors."""
GROWTH = 1.4
"""The factor by which the rate grows after each accepted step, up to 1; doubling it lets every second step fail."""
SMALL_RATE, REGROWTH = 1e-2, 0.3
"""Far from the optimum, the first rate may be 1e-40. Below the first number, a rate r falls by this factor or grows to
0.3 sqrt(r), and precisions stay below eps^(-3/4), because with larger ones the bound consists of rounding errors."""
NEAR = 2.0
"""After a step with such a rate, a small change of the bound means that q(u) is at its optimum only if a step with rate
1 leads to precisions of less than this factor."""
RATE, STEPS = 0.8, 8
"""The rate and the number of natural-gradient steps if the features of all rows exceed the memory budget."""

NOTABLE = 1e-5
"""If the last step gained more than this many nats, q(u) is far enough from its optimum for a report."""

Sites = dict[str, Sums]
"""The white sites of each sparse process, by path."""


class Progress(NamedTuple):
    """The state of the steps."""

    bound: Array
    sites: Sites
    target: Sites
    """The sites after a step of rate 1."""
    rate: Array
    """The rate of the next step."""
    gain: Array
    """The gain of the last accepted step divided by its rate, in nats."""
    steps: Array
    shortened: Array
    """How often a step was rejected."""


@dataclass(frozen=True)
class OptimalPosterior:
    """An update that moves q(u) to its optimum, given the other leaves and all rows of data.

    The update repeats the natural-gradient step of `NaturalGradient` with rate 1, in the coordinates v = Lu^-1 u, until
    a step gains less than the tolerance. A step that lowers the bound, or whose precision is not positive definite, is
    rejected, and the rate is halved. After each accepted step, the rate grows by 40 %, up to 1. Rates below 0.01 fall
    and grow faster. If the likelihood is not log-concave, there may be several optima, and the start then determines to
    which of them the steps lead.

    The features of all rows are computed once for all steps. If they do not fit the memory budget, the update takes
    8 steps of `NaturalGradient` with rate 0.8 instead.

    Use `OptimalPosterior` in `agp.fit_lbfgs`, for the posteriors `Whitened` and `Marginal` and a likelihood without
    Monte Carlo estimates. `agp.fit` does so by default.

    Parameters
    ----------
    tolerance
        The gain of the bound in nats. A smaller tolerance than the rounding error of the bound has no effect.
    max_steps
        The maximum number of steps. If they are not enough, a `RepairWarning` says so.
    memory
        Memory budget in MiB; see `agp.models.Model.bound`.

    Raises
    ------
    ValueError
        If the tolerance is not positive, or the number of steps is not a positive integer.

    Source: Salimbeni, Eleftheriadis & Hensman, "Natural gradients in practice", AISTATS 2018.
    """

    tolerance: float = 1e-10
    max_steps: int = 200
    memory: float | None = None

    def __post_init__(self) -> None:
        check_rate("tolerance", self.tolerance)
        settle_numbers(self, "tolerance")
        check_whole("max_steps", self.max_steps)

    @staticmethod
    def applies(model: Any, /) -> bool:
        """Return whether the update can set all q(u) of the model."""
        found = NaturalGradient.stepping(model)
        every = bool(found) and set(found) == set(tree.nodes(model, Posterior))
        return every and all(path.startswith("process.") for path in found) and can_fix_rows(model.process)

    def init(self, model: Any, /) -> State:
        """Return an empty state. Raise TypeError if the update does not apply to the model."""
        if not self.applies(model):
            raise TypeError(
                f"{class_names(model, Posterior)} cannot be set to its optimum; use a process with the posterior "
                "Whitened or Marginal."
            )
        return {}

    def moves(self, model: Any, /) -> Moved:
        """Return the parameters of every q(u)."""
        return Moved(leaves_of(NaturalGradient.stepping(model), "parameter"))

    def __call__(self, model: Any, batch: Batch, state: State, /) -> tuple[Any, State, Info]:
        """Return the model with the optimal q(u).

        The info contains the numbers of steps and of rejected steps, and whether the limit ended the steps (1 or 0).
        """
        block_rows = model._block_rows(batch.X, self.memory)
        if block_rows is not None and block_rows < batch.X.shape[0]:
            steps = Repeat(NaturalGradient(RATE, memory=self.memory), STEPS)
            return steps(model, batch, steps.init(model))[0], state, {}
        process, roots = fix_rows(model.process, batch.X)
        found = self._settle(_looking(model, process, batch), sites_of(process))
        nodes = tree.nodes(model.process, Posterior)
        new = {}
        for path, sites in found.sites.items():
            place = tree.join_path(path, "posterior")
            new[tree.join_path("process", place)] = nodes[place].with_white_sites(sites, roots[path])  # type: ignore[attr-defined]
        unfinished = backend_of(found.steps).xp.astype(found.steps >= self.max_steps, found.steps.dtype)
        info = {"solve_steps": found.steps, "shortened": found.shortened, "unfinished": unfinished}
        return tree.replace(model, new), state, info

    def _settle(self, look: Callable[[Sites], tuple[Array, Sites]], start: Sites) -> Progress:
        """Take steps from the given sites until they gain less than the tolerance."""
        bound, target = look(start)
        B = backend_of(bound)
        xp, zero, one = B.xp, B.xp.zeros_like(bound), B.xp.ones_like(bound)
        eps = float(xp.finfo(bound.dtype).eps)
        rounding, limit = ROUNDING * eps, one / eps**0.75
        slowest = one * float(xp.finfo(bound.dtype).smallest_normal) ** 0.5

        def least(bound: Array) -> Array:
            return xp.maximum(self.tolerance * one, rounding * xp.abs(bound))

        def unfinished(*now: Any) -> Array:
            last = Progress(*now)
            near = (last.rate >= SMALL_RATE) | (_size(last.target) <= NEAR * _size(last.sites))
            return ~(near & (last.gain <= least(last.bound))) & (last.steps < self.max_steps)

        def step(*now: Any) -> tuple[Any, ...]:
            last = Progress(*now)
            pairs = {path: zip(last.sites[path], last.target[path], strict=True) for path in start}
            sites = {path: Sums(*(B.lerp(x, y, last.rate) for x, y in pair)) for path, pair in pairs.items()}
            bound, target = look(sites)
            stable = (last.rate >= SMALL_RATE) | (_size(sites) <= xp.maximum(limit, _size(last.sites)))
            good = stable & xp.isfinite(bound) & ((bound >= last.bound - least(last.bound)) | ~xp.isfinite(last.bound))
            rejected = 1.0 - xp.astype(good, bound.dtype)
            shorter = xp.where(last.rate < SMALL_RATE, SMALL_RATE * one, 0.5 * one) * last.rate
            grown = xp.minimum(xp.maximum(GROWTH * last.rate, REGROWTH * xp.sqrt(last.rate)), one)
            new = Progress(
                xp.where(good, bound, last.bound),
                _choose(good, sites, last.sites),
                _choose(good, target, last.target),
                xp.where(good, grown, xp.maximum(shorter, slowest)),
                xp.where(good, xp.abs(bound - last.bound) / last.rate, last.gain),
                last.steps + 1.0,
                last.shortened + rejected,
            )
            return tuple(new)

        begun = Progress(bound, start, target, one, one * float("inf"), zero, zero)
        found = Progress(*B.while_loop(unfinished, step, tuple(begun)))
        text = (
            "after {0:.0f} steps, the posterior q(u) was not at its optimum (the last step gained {1:.1g} nats), so "
            "predictions may be less accurate; compare the scores of held-out rows."
        )
        report(text, found.steps, found.gain, count=~(found.gain <= xp.maximum(NOTABLE * one, least(found.bound))))
        return found


def unexplained_nats(model: Any, batch: Batch, /) -> Array:
    """Return roughly how many nats of the bound are lost because there are so few inducing inputs, as a 0-d array.

    The result is half the sum over rows of the curvature beta times the prior variance that the inducing variables do
    not explain. For Gaussian noise, it is the trace term of the collapsed bound. `OptimalPosterior` must apply to the
    model.
    """
    process = fix_rows(model.process, batch.X)[0]
    both = process, without_residuals(process)
    (mu, var), (_, explained) = (one.project(one.factorise()[0], batch.X)[0] for one in both)
    beta = row_site_gradients(model.likelihood, mu, var, batch)[1]
    xp = backend_of(mu).xp
    return 0.5 * batch.scale * xp.sum(xp.abs(beta) * (var - explained))


def _looking(model: Any, process: Any, batch: Batch) -> Callable[[Sites], tuple[Array, Sites]]:
    """Return the function that maps sites to the bound (0-d) and to the sites after a step of rate 1."""
    scale, likelihood = batch.scale, model.likelihood

    def look(sites: Sites) -> tuple[Array, Sites]:
        here = with_sites(process, sites)
        factor = here.factorise()[0]
        (mu, var), to_sites = here.project_to_sites(factor, batch.X)
        ell = expected_row_density(likelihood, mu, var, batch)[0]
        alpha, beta = row_site_gradients(likelihood, mu, var, batch)
        sums = to_sites(scale * alpha, -0.5 * scale * beta)
        bound = scale * backend_of(ell).xp.sum(ell) - here.kl_divergence(factor)[0]
        return bound, {path: sums[tree.join_path(path, "posterior")] for path in sites}

    return look


def _size(sites: Sites) -> Array:
    """Return the largest absolute entry of the precisions."""
    precisions = [each.precision for each in sites.values()]
    xp = backend_of(precisions[0]).xp
    return xp.max(xp.stack([xp.max(xp.abs(each)) for each in precisions]))


def _choose(good: Array, new: Sites, old: Sites) -> Sites:
    xp = backend_of(good).xp
    return {path: Sums(*(xp.where(good, x, y) for x, y in zip(new[path], old[path], strict=True))) for path in new}
