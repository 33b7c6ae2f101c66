"""Site steps, the E-steps of the dual parameterisation."""

from dataclasses import dataclass
from typing import Any

from agp import tree
from agp.backend import backend_of
from agp.bounds import Batch
from agp.posteriors import KeepsSums, Posterior, SiteHolder
from agp.updates._base import Info, Moved, State, class_names
from agp.updates._natural import backtrack_on_bound
from agp.updates._schedules import Rate, check_step, rate_at


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

    def applies(self, model: Any, /) -> bool:
        """Return whether the model has sites."""
        return bool(_holders(model))

    def init(self, model: Any, /) -> State:
        """Return a step count of zero, and any sums that the model keeps. Raise TypeError if the model has no sites."""
        if not self.applies(model):
            msg = (
                f"{class_names(model, Posterior)} has no sites that SiteStep can update; use TSVGP or TVGP, or the "
                "posterior Dual or DualInverseFree."
            )
            raise TypeError(msg)
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

        moved, logged = backtrack_on_bound(step, model, batch, rate, self.memory)
        ending = "" if self.groups is None else "_" + "_".join(map(str, self.groups))
        new = state | {"count": state["count"] + 1.0}
        if kept is not None:
            moved, new["sums"] = moved._release_sums()
        return moved, new, {f"{name}{ending}": x for name, x in logged.items()}


def _holders(model: Any) -> dict[str, SiteHolder]:
    """Return the nodes with sites whose marginals enter the likelihood, by path: posteriors, or the model itself."""
    found = tree.nodes(model, SiteHolder)
    return {path: found[path] for path in model._site_paths if path in found and found[path]._has_sites}
