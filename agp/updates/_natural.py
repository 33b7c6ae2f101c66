"""Natural-gradient steps of q(u): in natural and root coordinates, from Adam's gradient, and by changes of sites."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from agp import tree
from agp.backend import Array, backend_of
from agp.bounds import Batch
from agp.checks import check_choice
from agp.errors import NonFiniteError, NotPositiveDefiniteError
from agp.posteriors import KeepsSums, NaturalSteps, Posterior, RootSteps, SiteHolder
from agp.repairs import collect_reports, propagate_reports
from agp.updates._base import Info, Moved, State, class_names, leaves_of
from agp.updates._schedules import Rate, check_step, rate_at, settle_numbers

SHORTENED = 40
"""The maximum number of times that a step is halved before it is skipped."""
ROUNDING = 1e3
"""Decreases of the bound up to this many units of eps |bound| count as rounding errors."""
REACH = 1.0
"""The largest change of a mean in a step from Adam's gradient, in standard deviations, for likelihoods with unbounded
curvature.
"""


@dataclass(frozen=True)
class NaturalGradient:
    """An update that moves q(u) along the natural gradient of the bound.

    For each output, q(u) has the mean m and the covariance S = C C^T. Let alpha = d/dmu and beta = -2 (d/dvar) be the
    derivatives of the expected log density at the marginals, scaled by N / B. For M-SVGP, let Q = Kuu^-1 Kuf, and let
    the prior precision be Kuu^-1. For W-SVGP, let Q = Lu^-1 Kuf, and let the prior precision be I. A step of size rho
    is

        S_new^-1       = (1 - rho) S^-1 + rho (prior precision + Q diag(beta) Q^T)
        S_new^-1 m_new = (1 - rho) S^-1 m + rho Q (alpha + beta * (mu - h))

    in natural coordinates. For a Gaussian likelihood, a step with rho = 1 and all rows of data leads to the optimal
    q(u). In root coordinates (m, C), the step is a first-order step in the same direction, which requires no inverse of
    S.

    Use `NaturalGradient` for the posteriors `Whitened` and `Marginal`, together with ``Adam(frozen=("posterior.*",))``.

    Parameters
    ----------
    rate
        rho in (0, 1], or a function of the step count. For likelihoods that are not log-concave, the new precision may
        not be positive definite. The step is then halved until the precision is positive definite.
    coordinates
        "natural" or "root".
    memory
        Memory budget in MiB; rows are processed in blocks that fit. For the default, see `agp.models.Model.bound`.

    Raises
    ------
    ValueError
        If the rate is outside (0, 1], or the coordinates are unknown.

    Source: Salimbeni, Eleftheriadis & Hensman, "Natural gradients in practice", AISTATS 2018.
    """

    rate: Rate = 1.0
    coordinates: Literal["natural", "root"] = "natural"
    memory: float | None = None

    def __post_init__(self) -> None:
        check_step(self.rate, "a natural-gradient")
        settle_numbers(self, "rate")
        check_choice("coordinates", self.coordinates, ("natural", "root"))

    @staticmethod
    def stepping(model: Any, /) -> dict[str, NaturalSteps]:
        """Return the posteriors that take natural-gradient steps, by path."""
        return {path: q for path, q in tree.nodes(model, NaturalSteps).items() if path in model._site_paths}

    def init(self, model: Any, /) -> State:
        """Return a step count of zero. Raise TypeError if no posterior takes natural-gradient steps."""
        if not self.stepping(model):
            raise TypeError(
                f"natural gradients need the posterior Whitened or Marginal, not {class_names(model, Posterior)}."
            )
        return {"count": tree.zero_like(model)}

    def moves(self, model: Any, /) -> Moved:
        """Return the parameters of every q(u) that takes natural-gradient steps."""
        return Moved(leaves_of(self.stepping(model), "parameter"))

    def __call__(self, model: Any, batch: Batch, state: State, /) -> tuple[Any, State, Info]:
        """Return the model with a new q(u). The info contains the largest number of halvings.

        In a deep process, only the last layer takes natural-gradient steps.
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
            return tree.replace(model, new), {"halvings": xp.max(xp.stack(halvings))}

        moved, info = backtrack_on_bound(step, model, batch, rate, self.memory)
        return moved, {"count": state["count"] + 1.0}, info


# -- guard ------------------------------------------------------------------------------------------------------------


def backtrack_on_bound(
    step: Callable[[Any], tuple[Any, Info]], model: Any, batch: Batch, rate: Any, memory: float | None
) -> tuple[Any, Info]:
    """Halve the rate until ``step(rate)`` does not lower the bound of the batch; return the model and the info.

    If the curvature of the log density is unbounded, as for exp(f), a Newton step may overshoot so far that later steps
    cannot recover. For likelihoods with `bounded_curvature`, the step is taken unchanged. The check evaluates the bound
    twice, and once more for each halving. The info contains the number of halvings as "shortened". If the step lowers
    the bound at every rate, the step is skipped.
    """
    if model.likelihood.bounded_curvature:
        return step(rate)
    before = _bound(model, batch, memory)
    B = backend_of(before)
    xp = B.xp
    least = before - ROUNDING * float(xp.finfo(before.dtype).eps) * xp.abs(before)
    none = xp.zeros_like(before)

    def attempt(rate: Any) -> tuple[tuple[Any, Info], Array]:
        moved = step(rate)
        value = _bound(moved[0], batch, memory)
        return moved, xp.isfinite(value) & ((value >= least) | ~xp.isfinite(before))

    with collect_reports() as seen:
        first, good = attempt(rate + none)

    def taken() -> tuple[Any, Info]:
        propagate_reports(seen)
        return first[0], first[1] | {"shortened": none}

    def search() -> tuple[Any, Info]:
        def shorten(rate: Array, _good: Array, count: Array) -> tuple[Array, Array, Array]:
            return 0.5 * rate, attempt(0.5 * rate)[1], count + 1.0

        start = rate + none, good, none
        with collect_reports():  # repairs in trials do not count
            found, helped, count = B.while_loop(lambda _r, good, n: ~good & (n < SHORTENED), shorten, start)
        moved, info = step(xp.where(helped, found, none))
        return moved, info | {"shortened": count}

    return B.cond(good, taken, search, likely=True)


def _bound(model: Any, batch: Batch, memory: float | None) -> Array:
    """Return the bound of a batch as a 0-d array, which is NaN if the computation fails."""
    try:
        with collect_reports():  # the optimiser reports the same repairs
            return model._objective(batch, memory=memory)[0]
    except (NonFiniteError, NotPositiveDefiniteError):
        return tree.zero_like(model) + float("nan")


# -- steps from the gradient of an optimiser --------------------------------------------------------------------------


def _stepping(model: Any, frozen: tuple[str, ...]) -> dict[str, RootSteps]:
    """Return the posteriors that take natural-gradient steps from Adam's gradient, by path."""
    wholes = model._site_paths
    found = tree.nodes(model, RootSteps).items()
    return {path: posterior for path, posterior in found if _steps_at(path, wholes, frozen)}


def _leaves_at(path: str) -> tuple[str, str]:
    """Return the names of the posterior's leaves `mean` and `scale`, given its path."""
    return tree.join_path(path, "mean"), tree.join_path(path, "scale")


@lru_cache(maxsize=256)
def _steps_at(path: str, wholes: tuple[str, ...], frozen: tuple[str, ...]) -> bool:
    """Return whether the posterior at `path` takes natural-gradient steps.

    The posterior must not be frozen. Its marginals, or the marginals of its owner, must enter the likelihood. Raises
    ValueError if only one of its leaves is frozen.
    """
    if not any(path == whole or path.startswith(f"{whole}.") for whole in wholes):
        return False
    names = _leaves_at(path)
    kept = [name for name in names if any(tree.matches(name, pattern) for pattern in frozen)]
    if kept and len(kept) < len(names):
        raise ValueError(
            f"{kept[0]} is frozen, but natural-gradient steps would change it; freeze both {' and '.join(names)}, or "
            "neither of them."
        )
    return not kept


def stepping_leaves(model: Any, frozen: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the leaves that `root_steps` moves."""
    return tuple(name for path in _stepping(model, frozen) for name in _leaves_at(path))


def root_steps(
    model: Any, raw: Mapping[str, Array], gradient: Mapping[str, Array], rate: Any, frozen: tuple[str, ...]
) -> dict[str, Array]:
    """Take a natural-gradient step for each q(u) that supports such steps; return the new raw leaves by name.

    `raw` and `gradient` contain all raw leaves and their gradient. The constraints of m and C are linear, so their raw
    values describe the same q(u) in other units.
    """
    moved: dict[str, Array] = {}
    reach = float("inf") if model.likelihood.bounded_curvature else REACH
    for path, posterior in _stepping(model, frozen).items():
        mean, scale = _leaves_at(path)
        now = raw[mean], raw[scale]
        moved[mean], moved[scale] = posterior.root_step(*now, gradient[mean], gradient[scale], rate, reach)
    return moved


# -- steps of sites ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SiteStep:
    """An update that moves q(u) along the natural gradient by changing its sites.

    Let alpha and beta be the arrays that `Likelihood.site_gradients` returns at the current marginals, and let rho be
    the step size. Each site of the batch takes the step

        lam1 <- (1 - rho) lam1 + rho (alpha + beta * (mu - h)),    lam2 <- (1 - rho) lam2 + rho beta.

    Tied sites, which are sums over the rows of data, take the same step with the features of the batch, scaled by N /
    B. The step equals that of `NaturalGradient` with the same rate and batch, but requires only derivatives of the
    likelihood. With rho = 1, Gaussian noise and all rows of data, one step reaches the optimal q(u).

    If the likelihood is not log-concave, beta can be negative, and the new precision may not be positive definite. In
    that case, the rate is halved up to ten times. If the precision is still not positive definite, negative entries of
    beta are set to zero. This is always done for `TVGP` and `DualInverseFree`, which cannot represent negative sites.
    For likelihoods with unbounded curvature, such as `Poisson`, the rate is also halved until the bound of the batch no
    longer falls. For `TVGP`, alpha and beta are then also scaled down together where beta times the variance of q(f)
    exceeds eps^(-1/2); this product is at most 1 at the optimal sites. In an `Orthogonal` posterior, each `Dual` group
    takes a step, which is computed from the group's own part of the mean.

    Parameters
    ----------
    rate
        rho in (0, 1], or a function of the step count. Use 1 for Gaussian noise with all rows of data, 0.3 to 0.9 for
        other likelihoods, and 0.03 to 0.3 for minibatches.
    clip
        Whether to set negative entries of beta to zero in every model, without halving the rate first.
    groups
        The indices of the groups in an `Orthogonal` posterior that take the step; by default, all groups.
    memory
        Memory budget in MiB; rows are processed in blocks that fit. For the default, see `agp.models.Model.bound`.

    Raises
    ------
    ValueError
        If the rate is outside (0, 1].

    Source: Adam, Chang, Khan & Solin, "Dual parameterization of sparse variational Gaussian processes", NeurIPS 2021.
    """

    rate: Rate = 0.5
    clip: bool = False
    groups: tuple[int, ...] | None = None
    memory: float | None = None

    def __post_init__(self) -> None:
        check_step(self.rate, "a site")
        settle_numbers(self, "rate")

    def applies(self, model: Any, /) -> bool:
        """Return whether the model has sites."""
        return bool(_holders(model))

    def init(self, model: Any, /) -> State:
        """Return a step count of zero, and any sums that the model keeps. Raise TypeError if the model has no sites."""
        if not self.applies(model):
            raise TypeError(
                f"{class_names(model, Posterior)} has no sites that SiteStep can update; use TSVGP or TVGP, or the "
                "posterior Dual or DualInverseFree."
            )
        return {"count": tree.zero_like(model)} | ({"sums": model._no_sums()} if isinstance(model, KeepsSums) else {})

    def moves(self, model: Any, /) -> Moved:
        """Return the sites and the inverse factors of the chosen groups; by default, of all groups."""
        found = list(_holders(model))
        if self.groups is not None:
            found = [tree.join_path(path, f"parts.{i}") for path in found for i in self.groups]
        names = tree.leaves(model, "auxiliary")
        prefixes = tuple(f"{path}." if path else "" for path in found)
        return Moved(frozenset(name for name in names if name.startswith(prefixes)))

    def __call__(self, model: Any, batch: Batch, state: State, /) -> tuple[Any, State, Info]:
        """Return the model with new sites.

        The info contains the largest number of halvings over the outputs, and the number of outputs with entries of
        beta that were set to zero. For inverse-free posteriors, it also contains the residual of the inverse factors
        and the number of their steps. For likelihoods with unbounded curvature, the info also contains how often the
        rate was halved because the bound fell. If `groups` is given, the names of the logged values end with the
        indices of the groups, so that several updates do not log the same name.
        """
        xp, rate = backend_of(state["count"]).xp, rate_at(self.rate, state["count"])
        model = model._prepare_site_step()
        kept = None if batch.rows is None else state.get("sums")
        if kept is not None:
            model = model._with_sums(kept, self.memory)
        holders = _holders(model)
        gradients = model._site_gradients(batch, memory=self.memory)
        moving = [path for path in gradients if path in holders]
        chosen = {"clip": self.clip, "groups": self.groups, "rows": batch.rows}

        def step(rate: Any) -> tuple[Any, Info]:
            new, infos = {}, []
            for path in moving:
                new[path], info = holders[path]._site_step(gradients[path], rate, **chosen)
                infos.append(info)
            logged = {name: xp.max(xp.stack([info[name] for info in infos if name in info])) for name in infos[0]}
            return tree.replace(model, new), logged

        guarded = all(holders[path]._guards_steps for path in moving)
        moved, logged = step(rate) if guarded else backtrack_on_bound(step, model, batch, rate, self.memory)
        ending = "" if self.groups is None else "_" + "_".join(map(str, self.groups))
        new = state | {"count": state["count"] + 1.0}
        if kept is not None:
            moved, new["sums"] = moved._release_sums()
        return moved, new, {f"{name}{ending}": x for name, x in logged.items()}


def _holders(model: Any) -> dict[str, SiteHolder]:
    """Return the nodes with sites whose marginals enter the likelihood, by path: posteriors, or the model itself."""
    found = tree.nodes(model, SiteHolder)
    return {path: found[path] for path in model._site_paths if path in found and found[path]._has_sites}
