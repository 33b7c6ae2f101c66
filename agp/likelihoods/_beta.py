"""The beta likelihood for proportions between 0 and 1."""

import math
from typing import Any, ClassVar, Literal

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.checks import check_choice
from agp.distributions import MAX_LOG, MIN_PROBABILITY, ObservationModel, beta_tail
from agp.likelihoods._base import Prediction, check_number
from agp.likelihoods._bernoulli import LINKS
from agp.likelihoods._panels import FLOATS, ByPanels, Datum
from agp.likelihoods._quadrature import ByQuadrature, nodes_and_weights
from agp.likelihoods._range import positive_variance
from agp.tree import POSITIVE


@tree.model
class Beta(ByPanels, ByQuadrature):
    """The beta likelihood y_np ~ Beta(s F(f_np), s F(-f_np)) for proportions between 0 and 1, both excluded.

    log p(y | f) = lgamma(s) - lgamma(a) - lgamma(b) + (a - 1) log y + (b - 1) log(1 - y), with a = s F(f) and
    b = s F(-f). The mean of y is F(f) and its variance is F(f) F(-f) / (s + 1). Both tails of F are accurate, so means
    are not clipped near 0 and 1.

    Parameters
    ----------
    precision
        The positive number s, dimensionless and 0-d. The precision is trained; freeze it to keep its value.
    points
        The number of Gauss-Hermite quadrature nodes for computing expectations. Predictive densities use a different
        quadrature rule.
    link
        The link F: "probit" is the standard normal distribution function, and "logit" is 1 / (1 + exp(-f)).

    Source: Ferrari & Cribari-Neto, "Beta regression for modelling rates and proportions", J. Applied Statistics 2004.

    Examples
    --------
    For f = 0, proportions have the mean 1/2. A larger precision makes them vary less.

    >>> import numpy as np
    >>> import agp
    >>> zero = np.zeros((1, 1))
    >>> for precision in (1.0, 10.0, 100.0):
    ...     mean, variance = agp.Beta(precision).predict(zero, zero)
    ...     print(float(mean[0, 0]), round(float(variance[0, 0]) ** 0.5, 2))
    0.5 0.35
    0.5 0.15
    0.5 0.05
    """

    short_name: ClassVar[str] = "beta"
    precision: Array = tree.param(POSITIVE, default=10.0)
    points: int = 20
    link: Literal["probit", "logit"] = "probit"

    bounded_curvature: ClassVar[bool] = True
    support: ClassVar[tuple[float, float]] = (0.0, 1.0)
    # log_concave is False: for large s, log p becomes flat in the tails of F

    def _shapes(self, f: Array) -> tuple[Array, Array, Array, Array, Array, Array]:
        """Return a = s F(f), b = s F(-f), log a, log b, d log a / df and -d log b / df."""
        xp, link = backend_of(f).xp, LINKS[self.link]
        log_p, log_q, log_slope, log_s = link.log_cdf(f), link.log_cdf(-f), link.log_slope(f), xp.log(self.precision)
        return (
            self.precision * xp.exp(log_p),
            self.precision * xp.exp(log_q),
            log_s + log_p,
            log_s + log_q,
            xp.exp(log_slope - log_p),
            xp.exp(log_slope - log_q),
        )

    def _log_density(self, f: Array, y: Array) -> tuple[Array, Pullback]:
        B = backend_of(f)
        xp, s = B.xp, self.precision
        a, b, log_a, log_b, a_ratio, b_ratio = self._shapes(f)
        log_y, log_rest = xp.log(y), xp.log1p(-y)
        # lgamma(a) = lgamma(1 + a) - log a is also accurate where a underflows
        norm = B.special("gammaln", s) - B.special("gammaln", 1.0 + a) - B.special("gammaln", 1.0 + b) + log_a + log_b
        value = norm + (a - 1.0) * log_y + (b - 1.0) * log_rest

        def pullback(bar):
            # derivatives with respect to log a and log b: a (log y - digamma(a)) = a (log y - digamma(1 + a)) + 1
            a_bar = bar * (a * (log_y - B.special("digamma", 1.0 + a)) + 1.0)
            b_bar = bar * (b * (log_rest - B.special("digamma", 1.0 + b)) + 1.0)
            s_bar = xp.sum(bar) * B.special("digamma", s) + xp.sum(a_bar + b_bar) / s
            return tree.cotangent(self, precision=s_bar), a_bar * a_ratio - b_bar * b_ratio

        return value, pullback

    def predict(self, mu: Array, var: Array, /) -> Prediction:
        xp, link = backend_of(mu).xp, LINKS[self.link]
        f, _, weights = nodes_and_weights(mu, var, self.points)
        p, q = link.cdf(f), link.cdf(-f)
        mean = link.cdf(mu / xp.sqrt(1.0 + var)) if link.closed else xp.sum(weights * p, axis=-1)
        noise = xp.sum(weights * p * q, axis=-1) / (self.precision + 1.0)
        return Prediction(mean, positive_variance(noise + xp.sum(weights * (p - mean[..., None]) ** 2, axis=-1)))

    def _datum(self, y: Array) -> Datum:
        B = backend_of(y)
        xp = B.xp
        bend = B.special("ndtri", y) if self.link == "probit" else xp.log(y) - xp.log1p(-y)

        def slopes(f: Array) -> tuple[Array, Array]:
            # the expected curvature, (da/df)^2 (trigamma(a) + trigamma(b))
            a, b, _, _, a_ratio, b_ratio = self._shapes(f)
            information = (a * a_ratio) ** 2 * B.special("polygamma", 1, 1.0 + a) + a_ratio * a_ratio
            information = information + (b * b_ratio) ** 2 * B.special("polygamma", 1, 1.0 + b) + b_ratio * b_ratio
            ones = xp.ones_like(f)
            return self._log_density(f, y)[1](ones)[1], information

        return Datum(
            log_density=lambda f: self._log_density(f, y[..., None])[0],
            slopes=slopes,
            bend=bend,
            width=1.0 / xp.sqrt(1.0 + slopes(bend)[1]),
        )

    def observation_model(self) -> ObservationModel:
        cdf, s = LINKS[self.link].cdf, float(self.precision)

        def tail(v: Any, f: Any, upper: bool) -> Any:
            return beta_tail(s * cdf(f) + MIN_PROBABILITY, s * cdf(-f) + MIN_PROBABILITY, cdf(v), cdf(-v), upper)

        end = MAX_LOG if self.link == "logit" else math.sqrt(2.0 * MAX_LOG)
        return ObservationModel(tail, cdf, self._bends, 1.0 / math.sqrt(s + 1.0), (-end, end))

    def _bends(self, v: Any) -> tuple[tuple[Any, Any], ...]:
        """Return where the tails at y = F(v) bend, as functions of f, and how wide these bends are.

        One bend is at f = v. For y < 1/2, the other bend is that of y^a, which lies where a log y = -1, or at f = 0 if
        that point is positive. For y > 1/2, the other bend is the mirror image of the bend for 1 - y.
        """
        B, link, s = backend_of(v), LINKS[self.link], float(self.precision)
        xp = B.xp
        share = xp.minimum(-1.0 / (s * link.log_cdf(-xp.abs(v))), xp.full_like(v, 0.5))
        depth = B.special("ndtri", share) if self.link == "probit" else xp.log(share) - xp.log1p(-share)
        own = xp.exp(0.5 * (link.log_cdf(v) + link.log_cdf(-v)) - link.log_slope(v)) / math.sqrt(s + 1.0)
        return (v, xp.minimum(own, self._scale(v))), (-xp.sign(v) * depth, self._scale(depth))

    def _scale(self, f: Any) -> Any:
        """Return the distance over which log F changes in its lower tail."""
        xp = backend_of(f).xp
        return 1.0 / (1.0 + xp.abs(f)) if self.link == "probit" else xp.ones_like(f)

    def _sample(self, f: Any, rng: Any) -> Any:
        cdf, s = LINKS[self.link].cdf, float(self.precision)
        y = rng.beta(s * cdf(f) + MIN_PROBABILITY, s * cdf(-f) + MIN_PROBABILITY)
        return y.clip(MIN_PROBABILITY, 1.0 - 2.0**-53)

    def level(self, y: Array, /) -> Array:
        # the function value whose mean is the average of the targets
        B = backend_of(y)
        mean = B.xp.mean(y, axis=0)
        return B.special("ndtri", mean) if self.link == "probit" else B.xp.log(mean) - B.xp.log1p(-mean)

    @property
    def floats_per_row(self) -> int:
        return 12 * self.points + 2 * FLOATS

    def check_parameters(self) -> None:
        check_number("precision", self.precision)
        check_choice("link", self.link, LINKS)
        super().check_parameters()

    def check_targets(self, y: Array, /) -> None:
        xp = backend_of(y).xp
        low, high = float(xp.min(y)), float(xp.max(y))
        if not (low > 0.0 and high < 1.0):
            raise ValueError(
                f"targets must be between 0 and 1, both excluded, for the Beta likelihood; found "
                f"{high if low > 0.0 else low:g}."
            )
