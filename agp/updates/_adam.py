"""Adam on the raw leaves of a model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from agp import tree
from agp.backend import Array, backend_of, like
from agp.batch import Batch
from agp.gradient import GradientMode, check_mode, gradient_of
from agp.updates._base import Info, State
from agp.updates._schedules import Rate, rate_at

__all__ = ["Adam", "Group"]


@dataclass(frozen=True)
class Group:
    """How Adam moves some of the leaves: a learning rate (a number, or a function of the count) and its decays."""

    rate: Rate
    beta1: float = 0.9
    beta2: float = 0.999


@dataclass(frozen=True)
class Adam:
    """Stochastic gradient ascent on the bound, each raw leaf scaled by its own second moment.

    Parameters
    ----------
    rate
        The learning rate of all leaves that are in no group.
    groups
        Other settings by pattern of leaf names, such as ``{"Z": Group(1e-3), "kernel.*": Group(5e-3)}``; the first
        pattern that matches counts.
    frozen
        Patterns of leaves that stay as they are.
    gradient
        "closed-form" (every backend) or "autodiff" (torch, JAX).
    epsilon
        Added to the root of the second moment.

    Source: Kingma & Ba, "Adam: a method for stochastic optimization", ICLR 2015.
    """

    rate: Rate = 1e-2
    groups: Mapping[str, Group] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()
    gradient: GradientMode = "closed-form"
    epsilon: float = 1e-7

    def init(self, model: Any, /) -> State:
        """Zero moments.

        Raises
        ------
        ValueError
            If a pattern matches no parameter (the parameters are listed) or the gradient mode is unknown.
        agp.errors.BackendError
            If the backend has no automatic differentiation but it is asked for.
        """
        parameters = tree.leaves(model, "parameter")
        for pattern in (*self.groups, *self.frozen):
            if not any(fnmatchcase(name, pattern) for name in parameters):
                msg = f"no parameter matches {pattern!r}; the parameters are {', '.join(parameters)}."
                raise ValueError(msg)
        check_mode(next(iter(parameters.values())), self.gradient)
        moving = {name: x for name, x in parameters.items() if self._group(name) is not None}
        zeros = {name: backend_of(x).xp.zeros_like(x) for name, x in moving.items()}
        first = next(iter(parameters.values()))
        return {"count": backend_of(first).xp.zeros((), **like(first)), "first": zeros, "second": dict(zeros)}

    def _group(self, name: str) -> Group | None:
        if any(fnmatchcase(name, pattern) for pattern in self.frozen):
            return None
        matching = (group for pattern, group in self.groups.items() if fnmatchcase(name, pattern))
        return next(matching, Group(self.rate))

    def __call__(self, model: Any, batch: Batch, state: State, /) -> tuple[Any, State, Info]:
        """One step along the gradient of the bound of the batch; the info is the bound before the step."""
        bound, gradient = gradient_of(model, batch, self.gradient)
        raw, count = tree.unconstrain(model), state["count"]
        moved, first, second = {}, {}, {}
        for name in state["first"]:
            group = self._group(name)
            assert group is not None
            first[name] = _mean(state["first"][name], gradient[name], group.beta1)
            second[name] = _mean(state["second"][name], gradient[name] * gradient[name], group.beta2)
            moved[name] = raw[name] + self._step(first[name], second[name], group, count)
        state = {"count": count + 1.0, "first": first, "second": second}
        return tree.constrain(model, moved), state, {"bound": bound}

    def _step(self, first: Array, second: Array, group: Group, count: Array) -> Array:
        # rate m^ / (sqrt(v^) + eps) with the bias-corrected moments m^ = m / (1 - b1^t), v^ = v / (1 - b2^t)
        xp = backend_of(first).xp
        root = xp.sqrt(1.0 - group.beta2 ** (count + 1.0))
        size = rate_at(group.rate, count) * root / (1.0 - group.beta1 ** (count + 1.0))
        return size * first / (xp.sqrt(second) + self.epsilon * root)


def _mean(old: Array, new: Array, decay: float) -> Array:
    return decay * old + (1.0 - decay) * new
