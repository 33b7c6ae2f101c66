"""Learning rates that change with the step count, or when the bound stops improving."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from agp.backend import Array, Backend, backend_of, backend_of_type
from agp.checks import as_number, check_whole

Rate: TypeAlias = float | Callable[[Array], Array]
"""A learning rate, or a function that takes the number of earlier steps (0-d) and returns the learning rate."""


def check_rate(name: str, value: Any) -> None:
    """Raise ValueError unless the value is a finite, non-negative number."""
    if not 0.0 <= as_number(value) < float("inf"):
        raise ValueError(f"{name} is {value!r}, but must be a finite number, 0 or greater.")


def check_share(name: str, value: Any, *, one: bool) -> None:
    """Raise ValueError unless the value lies in (0, 1), or in (0, 1] if `one` is true."""
    number = as_number(value)
    if not 0.0 < number <= 1.0 or (number == 1.0 and not one):
        raise ValueError(f"{name} is {value!r}, but must be above 0 and {'at most' if one else 'below'} 1.")


def check_step(rate: Any, what: str) -> None:
    """Raise ValueError unless the rate is a function, or a number in (0, 1]."""
    if not callable(rate) and not 0.0 < as_number(rate) <= 1.0:
        raise ValueError(f"the rate of {what} step is {rate!r}, but must be in (0, 1].")


def settle_numbers(owner: Any, *names: str) -> None:
    """Convert fields of a frozen dataclass that hold scalars of an array library to floats.

    An array of another library could not be multiplied by arrays of the model's library, and a NumPy scalar would
    promote float32 arrays to float64.
    """
    for name in names:
        value = vars(owner)[name]
        if value is not None and not callable(value) and type(value) not in (int, float):
            object.__setattr__(owner, name, as_number(value))


def rate_at(rate: Rate, count: Array) -> Array | float:
    """Return the learning rate after `count` steps: a number, or a 0-d array like `count`.

    Raises
    ------
    TypeError
        If a schedule returns anything else than a number or a 0-d array.
    """
    if not callable(rate):
        return float(rate)
    found: Any = rate(count)
    B = backend_of(count)
    if backend_of_type(type(found)) is not B:
        number = as_number(found)
        if number != number and not isinstance(found, float):
            raise TypeError(f"the schedule {rate!r} returned {found!r}, but must return a number or a 0-d array.")
        return number
    if found.shape != ():
        raise TypeError(
            f"the schedule {rate!r} returned an array of shape {tuple(found.shape)}, but must return a 0-d array."
        )
    return found if found.dtype == count.dtype else B.xp.astype(found, count.dtype)


@dataclass(frozen=True)
class delayed:  # noqa: N801 - used like a function
    """A rate that is zero for the first `start` steps, and `rate` afterwards.

    If `rate` is a schedule, the schedule begins after the first `start` steps.

    Raises ValueError if the rate is negative, or `start` is not a non-negative integer.
    """

    rate: Rate
    start: int

    def __post_init__(self) -> None:
        if not callable(self.rate):
            check_rate("the delayed rate", self.rate)
        settle_numbers(self, "rate")
        check_whole("start", self.start, least=0)

    def __call__(self, count: Array, /) -> Array:
        """Return the rate after `count` steps, as a 0-d array."""
        xp = backend_of(count).xp
        begun = count - float(self.start)
        rate = rate_at(self.rate, xp.clip(begun, min=0.0)) if callable(self.rate) else xp.full_like(count, self.rate)
        return xp.where(begun >= 0.0, rate, xp.zeros_like(count))


@dataclass(frozen=True)
class linear:  # noqa: N801
    """A rate that changes linearly from `start` to `end` over the first `steps` steps, and then stays at `end`.

    Raises ValueError if a rate is negative, or `steps` is not a positive integer.
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        check_rate("start", self.start)
        check_rate("end", self.end)
        settle_numbers(self, "start", "end")
        check_whole("steps", self.steps)

    def __call__(self, count: Array, /) -> Array:
        """Return the rate after `count` steps, as a 0-d array."""
        return backend_of(count).fused(_line, count, self.start, self.end, float(self.steps))[0]


def _line(B: Backend, count: Array, start: float, end: float, steps: float) -> tuple[Array]:
    done = B.xp.clip(count / steps, min=0.0, max=1.0)
    return (start * (1.0 - done) + end * done,)


@dataclass(frozen=True)
class exponential:  # noqa: N801
    """A rate that decays exponentially: max(rate * factor ** (t / every), floor) after t steps.

    Raises ValueError if the rate is negative, `factor` is outside (0, 1], `every` is not a positive integer, or `floor`
    is above the rate.
    """

    rate: float
    factor: float
    every: int = 1
    floor: float = 0.0

    def __post_init__(self) -> None:
        check_rate("rate", self.rate)
        check_share("factor", self.factor, one=True)
        check_whole("every", self.every)
        _check_floor(self.floor, self.rate)
        settle_numbers(self, "rate", "factor", "floor")

    def __call__(self, count: Array, /) -> Array:
        """Return the rate after `count` steps, as a 0-d array."""
        return backend_of(count).xp.clip(self.rate * self.factor ** self._times(count), min=self.floor)

    def _times(self, count: Array) -> Array:
        return count / float(self.every)


@dataclass(frozen=True)
class stepped(exponential):  # noqa: N801
    """A rate that is multiplied by `factor` at regular intervals, and does not fall below `floor`.

    Each interval lasts `every` steps. The errors are those of `exponential`. For example,
    ``stepped(1e-3, 10 ** (-1 / 3), 30_000)`` falls to a tenth over 90,000 steps.
    """

    def _times(self, count: Array) -> Array:
        return count // float(self.every)


def _check_floor(floor: Any, rate: Any) -> None:
    check_rate("floor", floor)
    if as_number(floor) > as_number(rate):
        raise ValueError(
            f"floor is {floor!r}, but must be at most the rate {rate!r}; choose a lower floor or a higher rate."
        )


@dataclass(frozen=True)
class Plateau:
    """Multiply a rate by `factor` whenever the bound has not exceeded its best value for `patience` steps.

    The bound is computed from the minibatch. There is no cooldown after a reduction. Steps with rate zero (`delayed`)
    are not counted. Reductions stop at `floor`. If the rate of a schedule is below the floor, the rate is used
    unchanged.

    Parameters
    ----------
    factor
        The factor, in (0, 1).
    patience
        The number of steps without a new best bound before a reduction.
    floor
        The smallest rate after reductions.

    Raises
    ------
    ValueError
        If the factor is outside (0, 1), the patience is not a positive integer, or the floor is negative.
    """

    factor: float
    patience: int
    floor: float = 1e-6

    def __post_init__(self) -> None:
        check_share("factor", self.factor, one=False)
        check_whole("patience", self.patience)
        check_rate("floor", self.floor)
        settle_numbers(self, "factor", "floor")

    def check_rate(self, rate: Rate) -> None:
        """Raise ValueError if the rate is a number below the floor."""
        if not callable(rate):
            _check_floor(self.floor, rate)

    def start(self, reference: Array, /) -> dict[str, Array]:
        """Return the initial state as 0-d arrays: the number of steps without improvement, and the rate factor."""
        xp = backend_of(reference).xp
        return {"waited": xp.zeros_like(reference), "scale": xp.ones_like(reference)}

    def reduced_rate(self, rate: Array | float, state: dict[str, Array], /) -> Array:
        """Return the rate after reductions, as a 0-d array, given the rate of the schedule."""
        xp = backend_of(state["scale"]).xp
        rate = xp.zeros_like(state["scale"]) + rate
        # the floor does not raise a lower rate of the schedule
        return xp.maximum(state["scale"] * rate, xp.minimum(rate, xp.full_like(rate, self.floor)))

    def advance(self, rate: Array | float, state: dict[str, Array], improved: Array, /) -> dict[str, Array]:
        """Return the state after a step, given the rate of the schedule.

        `improved` (0-d Boolean) is true if the bound of the step exceeds all earlier bounds.
        """
        xp = backend_of(improved).xp
        zero = xp.zeros_like(state["waited"])
        waited = xp.where(improved | (zero + rate <= 0.0), zero, state["waited"] + 1.0)
        over = waited >= self.patience
        scale = xp.where(over, self.factor * state["scale"], state["scale"])
        return {"waited": xp.where(over, zero, waited), "scale": scale}
