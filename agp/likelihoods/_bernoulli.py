"""The Bernoulli likelihood for two classes."""

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

from agp import tree
from agp.backend import Array, Backend, Pullback, backend_of
from agp.checks import check_choice
from agp.likelihoods._base import Prediction
from agp.likelihoods._categories import OrderedCategories, Tails
from agp.likelihoods._panels import FLOATS, Datum, log_predictive_density
from agp.likelihoods._quadrature import LOG_SQRT_2PI, ByQuadrature
from agp.likelihoods._range import positive_variance

PEAK_STEPS = 10
"""The number of steps towards the peak of the integrand of a logit's predictive density."""


class _Link(NamedTuple):
    """A link: a symmetric distribution function F that maps f to the probability of label 1."""

    cdf: Callable[[Array], Array]
    log_cdf: Callable[[Array], Array]
    """log F(x), accurate in both tails."""
    log_slope: Callable[[Array], Array]
    """log F'(x)."""
    closed: bool
    """Whether E[F(f)] = F(mu / sqrt(1 + var)) for f ~ N(mu, var)."""


def _softplus(x: Array) -> Array:
    xp = backend_of(x).xp
    return xp.logaddexp(x, xp.zeros_like(x))


def _slopes_of_log_sigmoid(f: Array) -> tuple[Array, Array]:
    q = 0.5 - 0.5 * backend_of(f).xp.tanh(0.5 * f)  # 1 / (1 + exp(f))
    return q, q * (1.0 - q)


LINKS = {
    "probit": _Link(
        cdf=lambda x: backend_of(x).special("ndtr", x),
        log_cdf=lambda x: backend_of(x).special("log_ndtr", x),
        log_slope=lambda x: -0.5 * x * x - LOG_SQRT_2PI,
        closed=True,
    ),
    "logit": _Link(
        cdf=lambda x: backend_of(x).xp.exp(-_softplus(-x)),
        log_cdf=lambda x: -_softplus(-x),
        log_slope=lambda x: -_softplus(-x) - _softplus(x),
        closed=False,
    ),
}


def _pull_density(B: Backend, bar: Array, sign: Array, log_slope: Array, value: Array, share: float) -> tuple[Array]:
    # d/dx log((1 - 2q) F(x) + q) = (1 - 2q) F'(x) / p, computed from logarithms, which do not underflow in the tails
    return (bar * sign * (share * B.xp.exp(log_slope - value)),)


@tree.model
class Bernoulli(OrderedCategories, ByQuadrature):
    """The Bernoulli likelihood for labels 0 and 1: p(y = 1 | f) = (1 - 2 squash) F(f) + squash, with a link F.

    Parameters
    ----------
    squash
        The probability that a label is flipped, in either direction. GPflow uses 1e-3 for its probit link.
    points
        The number of Gauss-Hermite quadrature nodes for computing expectations.
    link
        The link F: "probit" is the standard normal distribution function, and "logit" is 1 / (1 + exp(-f)). Predictions
        have closed forms for probit and are computed by quadrature for logit.

    Examples
    --------
    The less certain f is, the closer the probability of label 1 is to 1/2.

    >>> import numpy as np
    >>> import agp
    >>> mu, var = np.full((3, 1), 2.0), np.asarray([[0.0], [3.0], [100.0]])
    >>> print(agp.Bernoulli().predict(mu, var).mean[:, 0].round(2))
    [0.98 0.84 0.58]
    """

    squash: float = 0.0
    points: int = 20
    link: Literal["probit", "logit"] = "probit"

    bounded_curvature: ClassVar[bool] = True
    log_concave: ClassVar[bool] = True
    decided_by_sign: ClassVar[bool] = True
    labels: ClassVar[bool] = True

    @property
    def is_logistic(self) -> bool:
        return self.link == "logit" and not self.squash

    def _log_density(self, f: Array, y: Array) -> tuple[Array, Pullback]:
        B, link = backend_of(f), LINKS[self.link]
        xp = B.xp
        sign = 2.0 * y - 1.0
        x = sign * f
        value = xp.log((1.0 - 2.0 * self.squash) * link.cdf(x) + self.squash) if self.squash else link.log_cdf(x)

        def pullback(bar):
            share = 1.0 - 2.0 * self.squash
            return tree.cotangent(self), B.fused(_pull_density, bar, sign, link.log_slope(x), value, share)[0]

        return value, pullback

    def predict(self, mu: Array, var: Array, /) -> Prediction:
        # p and q are computed separately because 1 - p is inaccurate for p close to 1
        xp, K = backend_of(mu).xp, mu.shape[-1]
        both = self._log_probability(xp.concat([mu, -mu], axis=-1), xp.concat([var, var], axis=-1))
        p, q = xp.exp(both[..., :K]), xp.exp(both[..., K:])
        return Prediction(p, positive_variance(p * q))

    def _log_probability(self, mu: Array, var: Array) -> Array:
        """Compute the log probability of label 1 [N, P], for f ~ N(mu, var)."""
        xp = backend_of(mu).xp
        link = LINKS[self.link]
        if link.closed:
            value = link.log_cdf(mu / xp.sqrt(1.0 + var))
        else:
            # log F is concave, and bends at 0
            datum = Datum(
                log_density=link.log_cdf,
                slopes=_slopes_of_log_sigmoid,
                bend=xp.zeros_like(mu),
                width=xp.ones_like(mu),
                steps=PEAK_STEPS,
                concave=True,
            )
            value = log_predictive_density(datum, mu, var)
        return xp.log((1.0 - 2.0 * self.squash) * xp.exp(value) + self.squash) if self.squash else value

    def predictive_log_density(self, mu: Array, var: Array, y: Array, /) -> Array:
        return backend_of(mu).xp.sum(self._log_probability((2.0 * y - 1.0) * mu, var), axis=-1)

    def _tails(self, mu: Array, var: Array) -> Tails:
        zero, one = (backend_of(mu).xp.exp(self._log_probability(x, var)) for x in (-mu, mu))
        return [(zero, one)]

    def _sample(self, f: Any, rng: Any) -> Any:
        p = (1.0 - 2.0 * self.squash) * LINKS[self.link].cdf(f) + self.squash
        return 1.0 * (rng.random(f.shape) < p)

    @property
    def floats_per_row(self) -> int:
        return super().floats_per_row + (0 if LINKS[self.link].closed else 2 * FLOATS)

    def check_parameters(self) -> None:
        if not 0.0 <= self.squash < 0.5:
            raise ValueError(f"squash is {self.squash!r}, but must be at least 0 and less than 0.5.")
        check_choice("link", self.link, LINKS)
        super().check_parameters()

    def in_support(self, y: Array, /) -> Array:
        return (y == 0.0) | (y == 1.0)

    def check_targets(self, y: Array, /) -> None:
        xp = backend_of(y).xp
        bad = ~self.in_support(y)
        if bool(xp.any(bad)):
            example = float(xp.max(xp.where(bad, y, xp.full_like(y, -math.inf))))
            raise ValueError(f"labels must be 0 or 1 for the Bernoulli likelihood; found {example:g}.")
