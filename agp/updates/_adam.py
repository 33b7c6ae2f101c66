"""Adam on the raw leaves of a model."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from agp import tree
from agp.backend import Array, Backend, backend_of
from agp.bounds import Batch
from agp.checks import as_number
from agp.gradient import GradientMode, check_mode, gradient_of_batch
from agp.priors import check_priors, fixed_entry_names, held_leaves, limits_of, restrict
from agp.tree import LOWER
from agp.updates._base import Info, Moved, State
from agp.updates._natural import root_steps, stepping_leaves
from agp.updates._schedules import Plateau, Rate, check_rate, check_share, check_step, rate_at, settle_numbers

OTHER_LEAVES = "other leaves"
"""The name in the state for leaves without a group; it differs from every leaf name."""


@dataclass(frozen=True)
class Group:
    """Adam's settings for a group of leaves.

    Parameters
    ----------
    rate
        The learning rate: a number, or a function of the step count (`linear`, `exponential`, `stepped`, `delayed`).
    beta1, beta2
        The decay rates of the moments, in [0, 1).
    plateau
        A `Plateau` that reduces the rate when the bound stops improving; None by default.

    Raises
    ------
    ValueError
        If the rate is negative, a decay rate is outside [0, 1), or the floor of the plateau lies above the rate.
    """

    rate: Rate
    beta1: float = 0.9
    beta2: float = 0.999
    plateau: Plateau | None = None

    def __post_init__(self) -> None:
        if not callable(self.rate):
            check_rate("rate", self.rate)
        for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            if as_number(beta) != 0.0:
                check_share(name, beta, one=False)
        settle_numbers(self, "rate", "beta1", "beta2")
        if self.plateau is not None:
            if not isinstance(self.plateau, Plateau):
                raise TypeError(
                    f"plateau is {self.plateau!r}, but must be a Plateau, such as Plateau(0.95, patience=1000)."
                )
            self.plateau.check_rate(self.rate)


@dataclass(frozen=True)
class Adam:
    """The Adam optimiser: stochastic gradient ascent on the objective, with steps scaled by moments of the gradient.

    The objective is the bound. For a model with `priors`, the objective is the bound plus the log density of the priors
    (`agp.priors`).

    Parameters
    ----------
    rate
        The learning rate of leaves without a group.
    groups
        Settings for groups of leaves, by pattern of leaf names, such as
        ``{"Z": Group(1e-3), "kernel.*": Group(5e-3)}``. The first matching pattern determines the group of a leaf.
    frozen
        One or several patterns for the names of leaves that do not change, or for single entries of leaves, such as
        ``"kernel.lengthscale[0]"``. Adam never changes auxiliary arrays. If no
        update changes an auxiliary array, list the array here to avoid a warning.
    gradient
        "closed-form" (every backend) or "autodiff" (torch, JAX).
    epsilon
        A non-negative number, added to the root of the second moment.
    plateau
        A `Plateau` that reduces the rate of leaves without a group when the bound stops improving. Each group can have
        its own `Plateau`.
    natural
        The step size rho in (0, 1] of natural-gradient steps, or a function of the step count. These steps use Adam's
        gradient and replace Adam's steps of q(u) for every `agp.posteriors.RootSteps` that is not frozen and whose
        marginals enter the likelihood. By default, every q(u) takes Adam's steps.
    memory
        Memory budget for the bound and its gradient, in MiB. For the default, see `agp.models.Model.bound`.

    Raises
    ------
    ValueError
        If the rate or epsilon is negative, the natural rate is outside (0, 1], or the floor of the plateau lies above
        the rate.

    Source: Kingma & Ba, "Adam: a method for stochastic optimization", ICLR 2015.
    """

    rate: Rate = 1e-2
    groups: Mapping[str, Group] = field(default_factory=dict)
    frozen: str | Iterable[str] = ()
    gradient: GradientMode = "closed-form"
    epsilon: float = 1e-7
    plateau: Plateau | None = None
    natural: Rate | None = None
    memory: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "frozen", tree.patterns(self.frozen))
        if not isinstance(self.groups, Mapping):
            raise TypeError(f"groups is {self.groups!r}, but must be a dictionary such as {{'kernel.*': Group(1e-3)}}.")
        check_rate("epsilon", self.epsilon)
        if self.natural is not None:
            check_step(self.natural, "a natural-gradient")
        for pattern, group in self._all_groups.items():
            if not isinstance(group, Group):
                raise TypeError(f"the group {pattern!r} is {group!r}, but must be a Group, such as Group(1e-3).")
        settle_numbers(self, "rate", "epsilon", "natural")

    @cached_property
    def _entries(self) -> tuple[str, ...]:
        """The patterns of single entries among `frozen`."""
        return tuple(pattern for pattern in self.frozen if tree.whole_pattern(pattern) != pattern)

    @cached_property
    def _all_groups(self) -> dict[str, Group]:
        return {**self.groups, OTHER_LEAVES: Group(self.rate, plateau=self.plateau)}

    def init(self, model: Any, /) -> State:
        """Return moments of zero.

        Raises
        ------
        TypeError, ValueError
            If a pattern matches no parameter, the gradient mode is unknown, or the priors do not fit the model; see
            `agp.priors.log_prior`.
        agp.errors.BackendError
            If `gradient` is "autodiff" and the backend has no automatic differentiation.
        """
        parameters = tree.leaves(model, "parameter")
        freezable = [*parameters, *tree.leaves(model, "auxiliary")]
        for patterns, names in ((self.groups, parameters), (self.frozen, freezable)):
            for pattern in patterns:
                whole = pattern if patterns is self.groups else tree.whole_pattern(pattern)
                if not any(tree.matches(name, whole) for name in names):
                    raise ValueError(tree.no_match_message(pattern, parameters, tree.leaves(model, "constant")))
        check_mode(next(iter(parameters.values())), self.gradient)
        check_priors(model)
        natural = set() if self.natural is None else set(stepping_leaves(model, tuple(self.frozen)))
        limits_of(model, self._entries)  # checks the entries
        fixed = natural | held_leaves(model)
        moving = {name: x for name, x in parameters.items() if name not in fixed and not self._freezes(name)}
        zeros = {name: backend_of(x).xp.zeros_like(x) for name, x in moving.items()}
        count = tree.zero_like(model)
        state = {"count": count, "first": zeros, "second": dict(zeros)}
        waiting = {name: group.plateau.start(count) for name, group in self._all_groups.items() if group.plateau}
        if waiting:
            state["plateau"] = {"best": backend_of(count).xp.full_like(count, -float("inf")), "groups": waiting}
        return state

    def _freezes(self, name: str) -> bool:
        return any(tree.matches(name, pattern) for pattern in self.frozen)

    def moves(self, model: Any, /) -> Moved:
        """Return the names of the parameters that are not frozen, and the names of all frozen leaves and entries."""
        kept = {name for name in tree.leaves(model) if self._freezes(name)} | held_leaves(model)
        entries = fixed_entry_names(model, self._entries)
        return Moved(frozenset(tree.leaves(model, "parameter")) - kept, frozenset({*kept, *entries}))

    def __call__(self, model: Any, batch: Batch, state: State, /) -> tuple[Any, State, Info]:
        """Take one step along the gradient of the batch's objective.

        The info contains the objective before the step as "bound", and the learning rate of each group with a
        `Plateau`.
        """
        bound, gradient = gradient_of_batch(model, batch, self.gradient, memory=self.memory)
        raw, count, groups, B = tree.unconstrain(model), state["count"], self._all_groups, backend_of(bound)
        scheduled = {name: rate_at(group.rate, count) for name, group in groups.items()}
        waiting = _with_plateau(groups, state) if "plateau" in state else []
        rates = dict(scheduled)
        for name, plateau, old in waiting:
            rates[name] = plateau.reduced_rate(scheduled[name], old)
        moved, first, second = {}, dict(state["first"]), dict(state["second"])
        constraints, later = tree.constraints(model), count + 1.0
        by_pattern = _by_pattern((*self.groups,), (*first,))
        corrections = _corrections(B, by_pattern, groups, later)
        for pattern, names in by_pattern.items():
            group, arrays, lower = groups[pattern], [], []
            sizes = B.fused(_sizes, rates[pattern], corrections[group.beta1], corrections[group.beta2], self.epsilon)
            numbers = (*sizes, 1.0 - group.beta1, 1.0 - group.beta2)
            for name in names:
                arrays.append((raw[name], gradient[name], first[name], second[name]))
                lower.append(constraints[name] is LOWER)
            found = B.elementwise_each(_adam_step, arrays, numbers=numbers, lower=lower)
            for name, parts in zip(names, found, strict=True):
                moved[name], first[name], second[name] = parts
        if self.natural is not None:
            moved |= root_steps(model, raw, gradient, rate_at(self.natural, count), tuple(self.frozen))
        new = {"count": later, "first": first, "second": second}
        if waiting:
            best, xp = state["plateau"]["best"], B.xp
            improved = bound > best
            later = {name: plateau.advance(scheduled[name], old, improved) for name, plateau, old in waiting}
            new["plateau"] = {"best": xp.where(improved, bound, best), "groups": later}
        info = {"bound": bound}
        for name, _, _ in waiting:
            info[f"rate of {name}"] = rates[name]
        return restrict(tree.constrain(model, moved), limits_of(model, self._entries)), new, info


# rate m^ / (sqrt(v^) + eps) with the bias-corrected moments m^ = m / (1 - b1^t), v^ = v / (1 - b2^t)


def _sizes(B: Backend, rate: Array | float, first: Array, second: Array, epsilon: float) -> tuple[Array, Array]:
    """Return the step size in units of m / sqrt(v), and the term added to sqrt(v), given the bias corrections."""
    root = B.xp.sqrt(second)
    return rate * root / first, epsilon * root


def _adam_step(
    B: Backend,
    raw: Array,
    slope: Array,
    first: Array,
    second: Array,
    size: Array,
    least: Array,
    share1: float,
    share2: float,
) -> tuple[Array, Array, Array]:
    """Return a raw leaf and its moments after a step, elementwise.

    `share1` and `share2` are the weights of the gradient `slope` in the first and second moment.
    """
    # Clip finite entries whose squares would overflow, since an infinite second moment would freeze the leaf for ever.
    # Steps do not depend on the scale of the gradient. NaN and infinite entries become NaN, which training detects.
    largest = 0.5 * float(B.xp.finfo(slope.dtype).max) ** 0.5
    slope = B.xp.clip(slope, -largest, largest) + 0.0 * slope
    first = B.lerp(first, slope, share1)
    second = B.lerp(second, slope * slope, share2)
    return B.add_product(raw, size, first / (B.xp.sqrt(second) + least)), first, second


def _corrections(
    B: Backend, by_pattern: Iterable[str], groups: Mapping[str, Group], steps: Array
) -> dict[float, Array]:
    """Return the bias correction 1 - beta^t after t steps for each decay rate beta of these groups."""
    betas: dict[float, None] = {}  # the keys are ordered and distinct; a generator would add calls to each step
    for name in by_pattern:
        betas |= {groups[name].beta1: None, groups[name].beta2: None}
    return dict(zip(betas, B.fused(_extend_moments, steps, *betas), strict=True))


def _extend_moments(_: Backend, steps: Array, *betas: float) -> tuple[Array, ...]:
    found: tuple[Array, ...] = ()
    for beta in betas:
        found += (1.0 - beta**steps,)
    return found


@lru_cache(maxsize=256)
def _by_pattern(patterns: tuple[str, ...], names: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the names of the leaves in each group, by pattern. The first matching pattern determines the group."""
    found: dict[str, list[str]] = {}
    for name in names:
        pattern = next((pattern for pattern in patterns if tree.matches(name, pattern)), OTHER_LEAVES)
        found.setdefault(pattern, []).append(name)
    return found


def _with_plateau(groups: dict[str, Group], state: State) -> list[tuple[str, Plateau, dict[str, Array]]]:
    """Return the name, settings and state of each group that has a plateau."""
    found = ((name, group.plateau) for name, group in groups.items())
    return [(name, plateau, state["plateau"]["groups"][name]) for name, plateau in found if plateau is not None]
