"""The E-step of the dual parameterisation: sites move towards those that the likelihood asks for at the current q."""

from dataclasses import dataclass
from typing import Any

from agp import tree
from agp.backend import Array, backend_of
from agp.batch import Batch
from agp.posteriors import HoldsSums, KeepsSums, SiteHolder
from agp.tree import zero_like
from agp.updates._base import Info, Moved, State
from agp.updates._guard import guarded_by_bound
from agp.updates._natural import posterior_names
from agp.updates._schedules import Rate, check_step, rate_at

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
    For likelihoods whose curvature has no bound (Poisson) it is halved until the bound of the batch does not fall, too.
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
    memory
        Budget for working arrays, in MiB: more rows than fit are taken in blocks. None as in `agp.models.Model.bound`.

    Raises
    ------
    ValueError
        For a rate outside (0, 1].

    Source: Adam, Chang, Khan & Solin, "Dual parameterization of sparse variational Gaussian processes", NeurIPS 2021.
    """

    rate: Rate = 0.5
    clip: bool = False
    groups: tuple[int, ...] | None = None
    memory: float | None = None

    def __post_init__(self) -> None:
        check_step(self.rate, "a site")

    def applies(self, model: Any, /) -> bool:
        """Whether the model has sites to move."""
        holders = tree.nodes(model, SiteHolder)
        return any(path in holders and holders[path]._has_sites for path in model._site_paths)

    def init(self, model: Any, /) -> State:
        """The count of steps, and sums over all data where the model keeps them. TypeError if it has no sites."""
        if not self.applies(model):
            found = posterior_names(model)
            msg = f"site steps need TSVGP, TVGP, or the posterior Dual or DualInverseFree; {found} has no sites."
            raise TypeError(msg)
        return {"count": zero_like(model)} | ({"sums": model._no_sums()} if isinstance(model, KeepsSums) else {})

    def moves(self, model: Any, /) -> Moved:
        """The sites, and the inverse factors that follow them; of chosen groups, theirs."""
        holders = tree.nodes(model, SiteHolder)
        found = [path for path in model._site_paths if path in holders and holders[path]._has_sites]
        if self.groups is not None:
            found = [tree.joined(path, f"parts.{i}") for path in found for i in self.groups]
        names = tree.leaves(model, "auxiliary")
        return Moved(frozenset(name for name in names if any(_is_under(name, path) for path in found)))

    def __call__(self, model: Any, batch: Batch, state: State, /) -> tuple[Any, State, Info]:
        """The model with moved sites.

        The info is the largest number of halvings over the outputs and how many outputs had beta clipped; without
        factorisations, the residual of the inverse factors and the steps that it took; for likelihoods of unbounded
        curvature, how often the step was halved for the sake of the bound. With chosen groups the names
        end in their numbers, so that several such updates can alternate.
        """
        rate = rate_at(self.rate, state["count"])
        model = self._ready(model._settled(), batch, state)
        holders = tree.nodes(model, SiteHolder)
        gradients = model._site_gradients(batch, memory=self.memory)
        moving = {path: found for path, found in gradients.items() if path in holders and holders[path]._has_sites}
        chosen = {"clip": self.clip, "groups": self.groups, "rows": batch.rows}

        def step(rate: Any) -> tuple[Any, Info]:
            new, infos = {}, []
            for path, found in moving.items():
                new[path], info = holders[path]._site_step(found, rate, **chosen)
                infos.append(info)
            logged = {name: _largest([info[name] for info in infos if name in info]) for name in infos[0]}
            return tree.replaced(model, new), logged

        moved, logged = guarded_by_bound(step, model, batch, rate, self.memory)
        ending = "" if self.groups is None else "_" + "_".join(map(str, self.groups))
        new = state | {"count": state["count"] + 1.0}
        if isinstance(moved, HoldsSums):
            moved, new["sums"] = moved._released()
        return moved, new, {f"{name}{ending}": x for name, x in logged.items()}

    def _ready(self, model: Any, batch: Batch, state: State) -> Any:
        """The model that holds its sums over all data, where it can and the batch is a part of them."""
        if batch.rows is None or not isinstance(model, KeepsSums):
            return model
        return model._with_sums(state["sums"], self.memory)


def _is_under(name: str, path: str) -> bool:
    return not path or name.startswith(f"{path}.")


def _largest(values: list[Array]) -> Array:
    xp = backend_of(values[0]).xp
    return xp.max(xp.stack(values))
