"""Step sizes for the inversion, as functions of the number of steps so far and the largest eigenvalue of B."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from agp.backend import Array, backend_of

StepRule = Callable[[Array, Array], Array]
"""A function from the number of steps so far and the largest eigenvalue of B (both 0-d) to the step size gamma."""


def safe_step(count: Array, eigenvalue: Array) -> Array:  # noqa: ARG001 - all rules have the same signature
    """Return min(1, 1.5 / lambda_max(B)).

    From every start, steps of this size strictly decrease the objective l(L) of the inversion and keep diag L positive.
    """
    return 1.0 / backend_of(eigenvalue).xp.maximum(eigenvalue / 1.5, 1.0 + 0.0 * eigenvalue)


@dataclass(frozen=True)
class constant_step:  # noqa: N801 - reads as the function that it is
    """A constant step size. A size of 1 suits warm starts with a slowly changing A."""

    gamma: float

    def __post_init__(self) -> None:
        _check_size("gamma", self.gamma)

    def __call__(self, count: Array, _eigenvalue: Array, /) -> Array:
        """Return gamma (0-d)."""
        return self.gamma + 0.0 * count


@dataclass(frozen=True)
class log_linear_step:  # noqa: N801 - reads as the function that it is
    """A step size that rises geometrically from `start` to `end` in each call, and then stays at `end`.

    `steps` is the number of steps over which the size rises. gamma_t = start (end / start)^(t / (steps - 1)) for t <
    steps. The first steps have almost no effect; the rule is robust because of the steps with sizes of a few hundredths
    or tenths. With start = 1e-5 and ten steps, the inversion converges for lambda_max(B) up to about 1e5.

    Source: the schedule of Cortinovis et al., "Inverse-free sparse variational Gaussian processes".
    """

    start: float = 1e-5
    steps: int = 10
    end: float = 1.0

    def __post_init__(self) -> None:
        _check_size("start", self.start)
        _check_size("end", self.end)
        if not self.steps > 1:
            raise ValueError(
                f"steps is {self.steps!r}, but must be at least 2; for one size, use constant_step({self.end!r})."
            )

    def __call__(self, count: Array, _eigenvalue: Array, /) -> Array:
        """Return gamma_t (0-d)."""
        xp = backend_of(count).xp
        share = xp.minimum(count / (self.steps - 1), xp.ones_like(count))
        # (1 - share) log start + share log end is exact at both ends
        return xp.exp((1.0 - share) * math.log(self.start) + share * math.log(self.end))


@dataclass(frozen=True)
class doubling_step:  # noqa: N801 - reads as the function that it is
    """The rule min(1, start 2^(t / every)) for step t of a call.

    `every` is the number of steps in which the step size doubles.

    Source: the schedule of Cortinovis et al., "Inverse-free sparse variational Gaussian processes", for their criterion
    based on the predictive variance. Their schedule has no line search and rejects no steps.
    """

    start: float = 1e-2
    every: float = 1.0

    def __post_init__(self) -> None:
        _check_size("start", self.start)
        _check_size("every", self.every)

    def __call__(self, count: Array, _eigenvalue: Array, /) -> Array:
        """Return gamma_t (0-d)."""
        xp = backend_of(count).xp
        # the exponent is capped, so that 2^t cannot overflow
        needed = xp.full_like(count, -math.log(self.start))
        return self.start * xp.exp(xp.minimum(count * (math.log(2.0) / self.every), needed))


def _check_size(name: str, value: float) -> None:
    if not 0.0 < value < float("inf"):
        raise ValueError(f"{name} is {value!r}, but must be a positive finite number.")
