"""The base class for priors, and their densities."""

import dataclasses
import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from agp.backend import Array, Pullback, backend_of

LOG_2PI = math.log(2.0 * math.pi)
LOG_2_OVER_PI = math.log(2.0 / math.pi)

Entries = tuple[Array, Callable[[], Array]]


class Prior(ABC):
    """Base class for priors. A prior is a univariate density, applied independently to each entry of a parameter.

    Priors are frozen dataclasses of floats, so they compare and hash by value. Arguments must be finite, and positive
    unless the class documentation allows other values. Invalid arguments raise ValueError.
    """

    positive: ClassVar[bool] = True
    """Whether the density is zero for numbers that are not positive."""
    highest: ClassVar[float] = math.inf
    """The density is zero for numbers above this number, 1 or infinity."""
    is_density: ClassVar[bool] = True
    """False for `Between` and `Fixed`, which limit a parameter."""
    real_arguments: ClassVar[tuple[str, ...]] = ()
    """The names of the arguments that need not be positive."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            given = getattr(self, field.name)
            real = isinstance(given, numbers.Real) and not isinstance(given, bool)
            value, anywhere = float(given) if real else float("nan"), field.name in self.real_arguments
            if not (-float("inf") if anywhere else 0.0) < value < float("inf"):
                wanted = "finite" if anywhere else "positive and finite"
                raise ValueError(f"{field.name} of {type(self).__name__} is {given!r}, but must be {wanted}.")
            object.__setattr__(self, field.name, value)

    def log_density(self, x: Array, /, unit: Array | None = None) -> tuple[Array, Pullback]:  # noqa: ARG002
        """Compute the log density, summed over the entries of x, and its pullback ``bar -> x_bar``.

        x may have any shape. Only `Relative` uses the unit of x.
        """
        entries, slopes = self._entries(x)
        return backend_of(x).xp.sum(entries), lambda bar: bar * slopes()

    @abstractmethod
    def _entries(self, x: Array) -> Entries:
        """Compute the log density of each entry; return also a function that computes the derivatives."""


@dataclass(frozen=True)
class Normal(Prior):
    """The normal density.

    For positive parameters, the normalising constant of the truncated density is omitted, which does not change
    estimates.

    Parameters
    ----------
    mean
        Any number.
    deviation
        The standard deviation.
    """

    mean: float = 0.0
    deviation: float = 1.0
    positive: ClassVar[bool] = False
    real_arguments: ClassVar[tuple[str, ...]] = ("mean",)

    def _entries(self, x: Array) -> Entries:
        z = (x - self.mean) / self.deviation
        return -0.5 * z * z - (math.log(self.deviation) + 0.5 * LOG_2PI), lambda: -z / self.deviation


@dataclass(frozen=True)
class LogNormal(Prior):
    """The density of x if log x is normal, with median exp(mean) and mode exp(mean - deviation^2).

    Parameters
    ----------
    mean, deviation
        The mean and the standard deviation of log x. The mean may be any number.
    """

    mean: float = 0.0
    deviation: float = 1.0
    real_arguments: ClassVar[tuple[str, ...]] = ("mean",)

    def _entries(self, x: Array) -> Entries:
        log_x = backend_of(x).xp.log(x)
        z = (log_x - self.mean) / self.deviation
        constant = math.log(self.deviation) + 0.5 * LOG_2PI
        return -0.5 * z * z - log_x - constant, lambda: -(1.0 + z / self.deviation) / x


@dataclass(frozen=True)
class Relative(Prior):
    """A density for the ratio of a parameter to its unit, or for the parameter itself if it has no unit.

    Units are computed by `from_data`. The unit of a lengthscale is the spread of its column times the square root of
    the number of columns.

    Parameters
    ----------
    prior
        The prior of the dimensionless ratio.
    """

    prior: Prior

    def __post_init__(self) -> None:
        if not isinstance(self.prior, Prior) or not self.prior.is_density:
            raise TypeError(
                f"prior is {self.prior!r}, but must be a density of agp.priors, such as LogNormal(0.0, 1.0)."
            )

    @property
    def positive(self) -> bool:  # type: ignore[override]
        return self.prior.positive

    @property
    def highest(self) -> float:  # type: ignore[override]
        return self.prior.highest

    def log_density(self, x: Array, /, unit: Array | None = None) -> tuple[Array, Pullback]:
        if unit is None:
            return self.prior.log_density(x)
        value, pull = self.prior.log_density(x / unit)
        return value, lambda bar: pull(bar) / unit

    def _entries(self, x: Array) -> Entries:
        return self.prior._entries(x)


@dataclass(frozen=True)
class Gamma(Prior):
    """The density proportional to x^(concentration - 1) exp(-rate x). The mean is concentration / rate."""

    concentration: float
    rate: float

    def _entries(self, x: Array) -> Entries:
        a, b = self.concentration, self.rate
        constant = a * math.log(b) - math.lgamma(a)
        return (a - 1.0) * backend_of(x).xp.log(x) - b * x + constant, lambda: (a - 1.0) / x - b


@dataclass(frozen=True)
class Beta(Prior):
    """The density proportional to x^(a - 1) (1 - x)^(b - 1) of a number between 0 and 1, with the mean a / (a + b).

    It is for parameters with the constraint `agp.tree.PROPORTION`, or another one whose range lies between 0 and 1.

    Examples
    --------
    >>> import numpy as np
    >>> import agp
    >>> value, _ = agp.priors.Beta(2.0, 5.0).log_density(np.asarray([0.2]))  # the density is 30 x (1 - x)^4
    >>> round(float(np.exp(value)), 4)
    2.4576
    """

    a: float
    b: float
    highest: ClassVar[float] = 1.0

    def _entries(self, x: Array) -> Entries:
        xp, a, b = backend_of(x).xp, self.a, self.b
        constant = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
        value = (a - 1.0) * xp.log(x) + (b - 1.0) * xp.log1p(-x) + constant
        return value, lambda: (a - 1.0) / x - (b - 1.0) / (1.0 - x)


@dataclass(frozen=True)
class InverseGamma(Prior):
    """The density proportional to x^(-concentration - 1) exp(-scale / x), which vanishes at 0.

    The mode is scale / (concentration + 1).
    """

    concentration: float
    scale: float

    def _entries(self, x: Array) -> Entries:
        a, b = self.concentration, self.scale
        constant = a * math.log(b) - math.lgamma(a)
        return constant - (a + 1.0) * backend_of(x).xp.log(x) - b / x, lambda: (b / x - (a + 1.0)) / x


@dataclass(frozen=True)
class HalfNormal(Prior):
    """The density of |x| if x is normal with mean 0.

    Parameters
    ----------
    scale
        The standard deviation of x.
    """

    scale: float = 1.0

    def _entries(self, x: Array) -> Entries:
        z = x / self.scale
        return 0.5 * LOG_2_OVER_PI - math.log(self.scale) - 0.5 * z * z, lambda: -z / self.scale


@dataclass(frozen=True)
class HalfCauchy(Prior):
    """The heavy-tailed density of |x| if x has a Cauchy density with centre 0.

    Parameters
    ----------
    scale
        The median of |x|.
    """

    scale: float = 1.0

    def _entries(self, x: Array) -> Entries:
        z = x / self.scale
        value = LOG_2_OVER_PI - math.log(self.scale) - backend_of(x).xp.log1p(z * z)
        return value, lambda: -2.0 * z / (1.0 + z * z) / self.scale
