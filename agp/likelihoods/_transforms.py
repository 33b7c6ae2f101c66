"""Increasing transforms z = g(y) of targets, whose noise is then Gaussian."""

import math
from abc import ABC, abstractmethod
from typing import ClassVar

from agp import tree
from agp.backend import Array, backend_of
from agp.checks import as_number, check_positive
from agp.likelihoods._log_link import capped_exp
from agp.likelihoods._range import log_range

TINY_POWER = 1e-12
"""Powers of `YeoJohnson` below this number count as 0."""


class Transform(tree.Part, ABC):
    """Base class for increasing transforms z = g(y) of targets y, entry by entry.

    Targets are arrays of any shape and library. NaN stays NaN.
    """

    short_name: ClassVar[str]
    """The name in text, such as ``GPRegressor(target_transform="log")``."""
    support: tuple[float, float] = (-math.inf, math.inf)
    """The ends of the interval of possible targets, both excluded."""

    @abstractmethod
    def forward(self, y: Array, /) -> Array:
        """Return z = g(y)."""

    @abstractmethod
    def inverse(self, z: Array, /) -> Array:
        """Return the targets y with g(y) = z; they are finite, and inside the support."""

    @abstractmethod
    def log_slope(self, y: Array, /) -> Array:
        """Return log g'(y), which is added to the log density of z to obtain the log density of y."""

    def check_targets(self, y: Array, /) -> None:
        """Raise ValueError if a target is outside the support."""
        xp, (low, high) = backend_of(y).xp, self.support
        below, above = y <= low, y >= high
        if bool(xp.any(below | above)):
            some = float(xp.min(xp.where(below | above, y, xp.full_like(y, math.inf))))
            where = "positive targets" if low == 0.0 and high == math.inf else f"targets between {low:g} and {high:g}"
            raise ValueError(
                f"the transform {self.short_name!r} needs {where}, but y has {some:g}; use another transform, or none."
            )


@tree.model
class Log(Transform):
    """The transform z = log y of positive targets.

    Examples
    --------
    >>> import numpy as np
    >>> from agp.likelihoods import Log
    >>> print(Log().forward(np.asarray([1.0, 10.0])).round(2))
    [0.  2.3]
    """

    short_name: ClassVar[str] = "log"
    support = (0.0, math.inf)

    def forward(self, y: Array, /) -> Array:
        return backend_of(y).xp.log(y)

    def inverse(self, z: Array, /) -> Array:
        xp = backend_of(z).xp
        return xp.maximum(capped_exp(z), xp.full_like(z, float(xp.finfo(z.dtype).smallest_normal)))

    def log_slope(self, y: Array, /) -> Array:
        return -backend_of(y).xp.log(y)


@tree.model
class YeoJohnson(Transform):
    """A power transform of targets of both signs, after a shift and a division: x = (y - centre) / scale.

    For x of at least 0, z = ((1 + x)^p - 1) / p with the power p; for x below 0, z = (1 - (1 - x)^q) / q with
    q = 2 - p. If p or q is 0, the power is replaced by the logarithm. A power of 1 is the shift and the division alone,
    a smaller power shortens the upper tail, and a larger one the lower tail.

    Parameters
    ----------
    power
        The power p, from 0 to 2. All numbers z are then possible.
    centre, scale
        The shift and the positive divisor, in the unit of the targets.

    Source: Yeo & Johnson, "A new family of power transformations to improve normality or symmetry", Biometrika 2000.

    Examples
    --------
    >>> import numpy as np
    >>> from agp.likelihoods import YeoJohnson
    >>> transform = YeoJohnson(0.5, centre=10.0, scale=2.0)
    >>> print(transform.forward(np.asarray([6.0, 10.0, 26.0])).round(2))
    [-2.8  0.   4. ]
    >>> print(transform.inverse(np.asarray([0.0, 4.0])))
    [10. 26.]
    """

    short_name: ClassVar[str] = "yeo-johnson"
    power: float = 1.0
    centre: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= as_number(self.power) <= 2.0:
            raise ValueError(f"power is {self.power!r}, but must be from 0 to 2.")
        check_positive("scale", self.scale)

    def forward(self, y: Array, /) -> Array:
        xp, x = backend_of(y).xp, (y - self.centre) / self.scale
        logs = xp.log1p(xp.abs(x))
        return xp.where(x < 0.0, -_power_of(logs, 2.0 - self.power), _power_of(logs, self.power))

    def inverse(self, z: Array, /) -> Array:
        xp, size = backend_of(z).xp, backend_of(z).xp.abs(z)
        logs = xp.where(z < 0.0, _logs_of(size, 2.0 - self.power), _logs_of(size, self.power))
        most = log_range(z)[1] - 20.0 - abs(math.log(self.scale))
        x = xp.expm1(xp.minimum(logs, xp.full_like(logs, most)))
        return self.centre + self.scale * xp.where(z < 0.0, -x, x)

    def log_slope(self, y: Array, /) -> Array:
        xp, x = backend_of(y).xp, (y - self.centre) / self.scale
        logs = xp.log1p(xp.abs(x))
        return xp.where(x < 0.0, (1.0 - self.power) * logs, (self.power - 1.0) * logs) - math.log(self.scale)


def _power_of(logs: Array, power: float) -> Array:
    """Return (exp(power logs) - 1) / power, or logs for power 0."""
    return logs if power < TINY_POWER else backend_of(logs).xp.expm1(power * logs) / power


def _logs_of(size: Array, power: float) -> Array:
    """Return the inverse of `_power_of` at numbers of at least 0."""
    return size if power < TINY_POWER else backend_of(size).xp.log1p(power * size) / power


@tree.model
class Logit(Transform):
    """The transform z = log((y - lower) / (upper - y)) of targets in an interval, such as proportions or percentages.

    Parameters
    ----------
    lower, upper
        The ends of the interval, both excluded.

    Examples
    --------
    >>> import numpy as np
    >>> from agp.likelihoods import Logit
    >>> print(Logit(0.0, 100.0).forward(np.asarray([50.0, 90.0])).round(2))
    [0.  2.2]
    """

    short_name: ClassVar[str] = "logit"
    lower: float = 0.0
    upper: float = 1.0

    def __post_init__(self) -> None:
        if not -math.inf < as_number(self.lower) < as_number(self.upper) < math.inf:
            raise ValueError(f"the interval from {self.lower!r} to {self.upper!r} must be finite and not empty.")

    @property
    def support(self) -> tuple[float, float]:  # type: ignore[override]
        return self.lower, self.upper

    def forward(self, y: Array, /) -> Array:
        xp = backend_of(y).xp
        return xp.log(y - self.lower) - xp.log(self.upper - y)

    def inverse(self, z: Array, /) -> Array:
        # the distance from the nearer end is (upper - lower) / (1 + exp(|z|))
        xp = backend_of(z).xp
        info = xp.finfo(z.dtype)
        near = (self.upper - self.lower) / (1.0 + capped_exp(xp.abs(z)))
        below = self.lower + xp.maximum(near, xp.full_like(z, _step(self.lower, info)))
        return xp.where(z < 0.0, below, self.upper - xp.maximum(near, xp.full_like(z, _step(self.upper, info))))

    def log_slope(self, y: Array, /) -> Array:
        xp = backend_of(y).xp
        return math.log(self.upper - self.lower) - xp.log(y - self.lower) - xp.log(self.upper - y)


def _step(end: float, info: object) -> float:
    """Return a distance from the end of an interval that rounding does not remove."""
    return max(float(info.eps) * abs(end), float(info.smallest_normal))  # type: ignore[attr-defined]


TRANSFORMS: dict[str, type[Transform]] = {kind.short_name: kind for kind in (Log, YeoJohnson, Logit)}
"""The transforms by their names, the simplest first."""
