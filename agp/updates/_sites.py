"""The E-step of the dual parameterisation: sites move towards those that the likelihood asks for at the current q."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from agp import tree
from agp.backend import Array, backend_of, like
from agp.batch import Batch
from agp.linalg import diagonal, groups_of, identity
from agp.models import SiteModel
from agp.posteriors import Dual, DualInverseFree, Orthogonal, inducing_covariance
from agp.repairs import report
from agp.updates._base import Info, State
from agp.updates._natural import HALVINGS, check_step, site_gradients
from agp.updates._schedules import Rate, rate_at

__all__ = ["SiteStep"]


@dataclass(frozen=True)
class SiteStep:
    """A natural-gradient step of q(u), written as a step of the sites.

    At the current marginals, with alpha and beta of `Likelihood.site_gradients`, every site of the batch moves to

        lam1 <- (1 - rho) lam1 + rho (alpha + beta * (mu - h)),    lam2 <- (1 - rho) lam2 + rho beta,

    and tied sites, their sums, likewise by the features of the batch, scaled by N / B. It is the step of
    `NaturalGradient` with the same rate and batch, and needs no derivative of anything but the likelihood. With
    rho = 1, Gaussian noise and all data it reaches the optimum at once.

    Where beta is negative (the likelihood is not log-concave there), the step is taken as it is while the precision
    stays positive definite; else its rate is halved up to ten times; if that does not help, beta is clipped at zero.
    Models that cannot hold negative sites (`TVGP`, `DualInverseFree`) have them clipped at once. In `Orthogonal` all
    groups that are `Dual` move, each by its own part of the mean.

    Parameters
    ----------
    rate
        rho in (0, 1], or a function of the count of steps. 1 suits Gaussian noise with all data; 0.3 to 0.9 other
        likelihoods; 0.03 to 0.3 minibatches.
    clip
        Clip negative beta at once, as if no model could hold negative sites.
    groups
        Of an `Orthogonal` posterior: the groups that move, all by default.

    Raises
    ------
    ValueError
        For a rate outside (0, 1].

    Source: Adam, Chang, Khan & Solin, "Dual parameterization of sparse variational Gaussian processes", NeurIPS 2021.
    """

    rate: Rate = 0.5
    clip: bool = False
    groups: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_step(self.rate, "a site")

    def applies(self, model: Any, /) -> bool:
        """Whether the model has sites to move."""
        posterior = getattr(model, "posterior", None)
        return (
            isinstance(model, SiteModel)
            or isinstance(posterior, DualInverseFree)
            or bool(list(_groups(posterior, self.groups)))
        )

    def init(self, model: Any, /) -> State:
        """The count of steps. TypeError if the model has no sites."""
        if not self.applies(model):
            posterior = getattr(model, "posterior", None)
            name = type(model if posterior is None else posterior).__name__
            msg = f"site steps need TSVGP, TVGP, or the posterior Dual or DualInverseFree; {name} has no sites."
            raise TypeError(msg)
        reference = model.X if isinstance(model, SiteModel) else model.Z
        return {"count": backend_of(reference).xp.zeros_like(reference[0, 0])}

    def __call__(self, model: Any, batch: Batch, state: State, /) -> tuple[Any, State, Info]:
        """The model with moved sites.

        The info is the largest number of halvings over the outputs and how many outputs had beta clipped; without
        factorisations, the residual of the inverse factors and the steps that it took. With chosen groups the names
        end in their numbers, so that several such updates can alternate.
        """
        rho = rate_at(self.rate, state["count"])
        if isinstance(model, SiteModel):
            model, info = _step_of_each(model, batch, rho, self.clip)
        elif isinstance(model.posterior, DualInverseFree):
            model, info = _step_without_factors(model, batch, rho)
        else:
            model, info = self._step_of_sums(model, batch, rho)
        if self.groups is not None:
            chosen = "_".join(map(str, self.groups))
            info = {f"{name}_{chosen}": x for name, x in info.items()}
        return model, {"count": state["count"] + 1.0}, info

    def _step_of_sums(self, model: Any, batch: Batch, rho: Any) -> tuple[Any, Info]:
        found = site_gradients(model, batch, batch.scale)
        xp = backend_of(found.Kuf).xp
        A = backend_of(found.Kuf).solve_triangular(found.factor.Lu, found.Kuf)
        new, infos = {}, []
        for group in _groups(model.posterior, self.groups):
            Lu, dual, state = found.factor.Lu[group.rows, group.rows], group.dual, group.state(found.factor.state)
            part = A[group.rows, :]
            F, mu = dual.site_features(Lu, part), part.mT @ state.white_mean

            def sums(beta: Array, F: Array = F, mu: Array = mu) -> tuple[Array, Array]:
                return F @ (found.alpha + beta * mu), (F * beta.mT[:, None, :]) @ F.mT

            def proper(precision: Array, dual: Dual = dual, Lu: Array = Lu) -> Array:
                return _proper(tree.with_leaves(dual, {"precision": precision}).white_sites(Lu)[1])

            moved, info = _guarded(rho, (dual.shift, dual.precision), found.beta, sums, None if self.clip else proper)
            new |= {f"posterior.{group.name}shift": moved[0], f"posterior.{group.name}precision": moved[1]}
            infos.append(info)
        return tree.with_leaves(model, new), {k: xp.max(xp.stack([info[k] for info in infos])) for k in infos[0]}


# -- the kinds of sites -----------------------------------------------------------------------------------------------


class _Group(NamedTuple):
    name: str
    dual: Dual
    rows: slice
    state: Callable[[Any], Any]


def _groups(posterior: Any, wanted: tuple[int, ...] | None) -> Iterator[_Group]:
    """The dual parts of a posterior: itself, or groups of `Orthogonal`."""
    if isinstance(posterior, Dual):
        yield _Group("", posterior, slice(0, posterior.shift.shape[0]), lambda state: state)
    elif isinstance(posterior, Orthogonal):
        for i, (part, rows) in enumerate(zip(posterior.parts, groups_of(posterior.sizes), strict=True)):
            if isinstance(part, Dual) and (wanted is None or i in wanted):
                yield _Group(f"parts.{i}.", part, rows, lambda state, i=i: state.parts[i])


def _step_of_each(model: SiteModel, batch: Batch, rho: Any, clip: bool) -> tuple[SiteModel, Info]:
    """The sites of the rows of a batch, without the scale: each datum has its own."""
    view = model.site_view(batch)
    h = model.mean_function(batch.X)[0]
    alpha, beta = model.likelihood.site_gradients(view.mu + h, view.var, batch.y, batch.draws)
    old = model.site_shift, model.site_precision
    if batch.rows is not None:
        old = tuple(backend_of(x).xp.take(x, batch.rows, axis=0) for x in old)
    elif batch.X.shape[0] != model.X.shape[0]:
        msg = (
            f"a step on {batch.X.shape[0]} of the {model.X.shape[0]} data needs their positions, to find their sites; "
            "give the Batch its rows."
        )
        raise ValueError(msg)

    def sites(beta: Array) -> tuple[Array, Array]:
        return alpha + beta * view.mu, beta

    allowed = None if clip else view.allowed
    proper = None if allowed is None else lambda precision: allowed(precision - old[1])
    moved, info = _guarded(rho, old, beta, sites, proper)  # type: ignore[arg-type]
    return model.with_sites(*moved, batch.rows), info


def _step_without_factors(model: Any, batch: Batch, rho: Any) -> tuple[Any, Info]:
    model, _, before = _with_factors(model)
    found = site_gradients(model, batch, batch.scale)
    F = found.Kuf

    def sums(beta: Array) -> tuple[Array, Array]:
        return F @ (found.alpha + beta * found.mu), (F * beta.mT[:, None, :]) @ F.mT

    old = model.posterior.shift, model.posterior.precision
    moved, info = _guarded(rho, old, found.beta, sums, None)
    moved_model = tree.with_leaves(model, {"posterior.shift": moved[0], "posterior.precision": moved[1]})
    model, residual, after = _with_factors(moved_model)
    return model, info | {"site_residual": residual, "site_inverse_steps": before + after}


def _with_factors(model: Any) -> tuple[Any, Array, Array]:
    """The model with inverse factors that fit, their residual and the steps that it took."""
    posterior, residual, steps = model.posterior.followed(inducing_covariance(model)[0])
    leaves = {f"posterior.{name}": x for name, x in tree.leaves(posterior).items()}
    return tree.with_leaves(model, leaves), residual, steps


# -- the guard --------------------------------------------------------------------------------------------------------


def _guarded(
    rho: Any,
    old: tuple[Array, Array],
    beta: Array,
    target: Callable[[Array], tuple[Array, Array]],
    proper: Callable[[Array], Array] | None,
) -> tuple[tuple[Array, Array], Info]:
    """A step from the old sites (shift [., P], precision) towards ``target(beta)``, halved or clipped where it must be.

    `proper` says for each output whether a precision is allowed, Boolean [P]; None allows no negative beta.
    """
    B = backend_of(beta)
    xp = B.xp
    clipped = xp.maximum(beta, xp.zeros_like(beta))
    full = rho + xp.zeros((beta.shape[1],), **like(beta))
    negative = xp.any(beta < 0.0, axis=0)
    safe = target(clipped)
    if proper is None:
        return _mixed(old, safe, full), _info(xp.zeros_like(full), negative)
    raw = target(beta)

    def unfinished(_rate: Array, good: Array, count: Array) -> Array:
        return xp.any(~good) & (xp.max(count) < HALVINGS)

    def halve(rate: Array, good: Array, count: Array) -> tuple[Array, Array, Array]:
        rate = xp.where(good, rate, 0.5 * rate)
        return rate, good | proper(_mixed(old, raw, rate)[1]), xp.where(good, count, count + 1.0)

    start = (full, ~negative | proper(_mixed(old, raw, full)[1]), xp.zeros_like(full))
    rate, good, count = B.while_loop(unfinished, halve, start)
    step, fallback = _mixed(old, raw, rate), _mixed(old, safe, full)
    moved = tuple(xp.where(_along(good, x), x, y) for x, y in zip(step, fallback, strict=True))
    halvings = xp.where(good, count, xp.zeros_like(count))
    _report(halvings, good)
    return moved, _info(halvings, ~good)  # type: ignore[return-value]


def _report(halvings: Array, good: Array) -> None:
    xp = backend_of(good).xp
    lost = "a step of the sites would have left no positive definite precision"
    report(
        f"{lost}; its rate was halved (at most {{0:.0f}} times). Try a smaller rate.",
        xp.max(halvings),
        count=xp.count_nonzero(halvings),
    )
    clipped = xp.count_nonzero(~good)
    report(
        f"{lost}, however small; in {{0:.0f}} outputs the negative curvatures of the likelihood were clipped to zero.",
        xp.astype(clipped, halvings.dtype),
        count=clipped,
    )


def _info(halvings: Array, clipped: Array) -> Info:
    xp = backend_of(halvings).xp
    return {"halvings": xp.max(halvings), "clipped": xp.sum(xp.astype(clipped, halvings.dtype))}


def _mixed(old: tuple[Array, Array], new: tuple[Array, Array], rate: Array) -> tuple[Array, Array]:
    """(1 - rate_p) old + rate_p new for each output p."""
    return tuple(  # type: ignore[return-value]
        (1.0 - _along(rate, x)) * x + _along(rate, x) * y for x, y in zip(old, new, strict=True)
    )


def _along(per_output: Array, x: Array) -> Array:
    """Numbers [P] along the outputs of x: [., P], or [P, M, M]."""
    return per_output if x.ndim == 2 else per_output[:, None, None]


def _proper(site: Array) -> Array:
    """Whether I + each of the sites [P, M, M] is positive definite to working precision, Boolean [P]."""
    B = backend_of(site)
    W = site + identity(site)
    factors = [B.cholesky(W[p, ...]) for p in range(W.shape[0])]
    return B.xp.stack([B.xp.all(B.xp.isfinite(diagonal(L))) for L in factors])
