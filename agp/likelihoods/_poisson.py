"""The Poisson likelihood for counts."""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.likelihoods._base import Likelihood, Prediction
from agp.likelihoods._log_link import capped_exp, log_normal_prediction
from agp.likelihoods._panels import FLOATS, Datum, log_predictive_density
from agp.quantiles import LARGEST, ObservationModel, gamma_tail

__all__ = ["Poisson", "check_counts", "check_exposure", "counts_of_rate", "observation_model_of_counts"]

LARGEST_RATE = 9e18
"""Of the counts that NumPy draws."""


@tree.model
class Poisson(Likelihood):
    """Counts y_np ~ Poisson(exposure exp(f_np)): f is the logarithm of the rate.

    Expectations are closed forms; predictive densities, and they alone, are quadrature, whose panels go where the
    posterior of f is. A predicted mean or variance beyond the largest float comes back as that float, with a
    `RepairWarning`.

    Parameters
    ----------
    exposure
        What the rate is multiplied with: the length of time, area or bin that each count belongs to. Since f has prior
        mean 0, it is also the count to expect before any data.
    """

    exposure: float = 1.0

    whole_numbers: ClassVar[bool] = True
    log_concave: ClassVar[bool] = True
    log_link: ClassVar[bool] = True

    def _log_constant(self, y: Array) -> Array:
        return y * math.log(self.exposure) - backend_of(y).special("gammaln", y + 1.0)

    def _rate(self, f: Array) -> Array:
        return capped_exp(f + math.log(self.exposure))

    def expected_log_density(
        self, mu: Array, var: Array, y: Array, /, draws: Mapping[str, Array] | None = None
    ) -> tuple[Array, Pullback]:
        # y mu - b exp(mu + var / 2) + y log b - lgamma(y + 1)
        mean = self._rate(mu + 0.5 * var)

        def pullback(bar):
            column = bar[:, None]
            return tree.cotangent(self), column * (y - mean), -0.5 * column * mean

        return backend_of(mu).xp.sum(y * mu - mean + self._log_constant(y), axis=-1), pullback

    def predict(self, mu: Array, var: Array, /) -> Prediction:
        log_mean = mu + 0.5 * var + math.log(self.exposure)
        return log_normal_prediction(log_mean, log_mean, var)

    def _datum(self, y: Array) -> Datum:
        xp = backend_of(y).xp

        def slopes(f: Array) -> tuple[Array, Array]:
            rate = self._rate(f)
            return y - rate, rate

        some = xp.maximum(y, xp.ones_like(y))
        return Datum(
            log_density=lambda f: y[..., None] * f - self._rate(f),
            slopes=slopes,
            bend=xp.log(some) - math.log(self.exposure),
            width=1.0 / xp.sqrt(some),
        )

    def predictive_log_density(self, mu: Array, var: Array, y: Array, /) -> Array:
        value = log_predictive_density(self._datum(y), mu, var) + self._log_constant(y)
        return backend_of(mu).xp.sum(value, axis=-1)

    def observation_model(self) -> ObservationModel:
        # P(y <= k) is the probability that a gamma variable of shape k + 1 exceeds the rate
        return observation_model_of_counts(
            lambda more, log_rate, upper: gamma_tail(more, log_rate, not upper), self.exposure
        )

    def _sample(self, f: Any, rng: Any) -> Any:
        return counts_of_rate(self.exposure * capped_exp(f), rng)

    @property
    def floats_per_row(self) -> int:
        return 8 + FLOATS

    def from_data(self, variance: float, /) -> Self:
        return self

    def proxies(self, y: Array, /) -> Array:
        return backend_of(y).xp.log(y + 0.5)  # roughly f and a constant

    def check_parameters(self) -> None:
        check_exposure(self.exposure)

    def check_targets(self, y: Array, /) -> None:
        check_counts(y, "Poisson")


def observation_model_of_counts(
    tail: Callable[[Any, Any, bool], Any], exposure: float, dispersion: float = 0.0
) -> ObservationModel:
    """The tails of counts on the host, by tail(y + 1, log mean, upper), continuous in y: y + 1 = exposure exp(v)."""
    log_exposure = math.log(exposure)

    def bends(v: Any) -> tuple[tuple[Any, Any], ...]:
        # as those of the density: see NegativeBinomial
        xp = backend_of(v).xp
        square = xp.minimum(xp.exp(-v - log_exposure) + dispersion, xp.ones_like(v))
        return ((v - math.log(max(dispersion, 1.0)), xp.sqrt(square)),)

    return ObservationModel(
        tail=lambda v, f, upper: tail(backend_of(v).xp.exp(v + log_exposure), f + log_exposure, upper),
        value=lambda v: backend_of(v).xp.exp(v + log_exposure) - 1.0,
        bends=bends,
        width=1.0,
        ends=(-log_exposure - 1.0, LARGEST - log_exposure),
        place=lambda y: backend_of(y).xp.log(y + 1.0) - log_exposure,
    )


def counts_of_rate(rate: Any, rng: Any) -> Any:
    """Poisson counts of a rate, as floating-point numbers; a rate beyond the range of the generator is its largest."""
    return rng.poisson(rate.clip(max=LARGEST_RATE)) + 0.0


def check_exposure(exposure: float) -> None:
    """ValueError unless counts can have this exposure."""
    if not 0.0 < exposure < math.inf:
        msg = f"exposure is {exposure!r}, but must be positive and finite."
        raise ValueError(msg)


def check_counts(y: Array, name: str) -> None:
    """ValueError unless the targets are counts, for the likelihood of that name."""
    xp = backend_of(y).xp
    bad = (y < 0.0) | (y != xp.floor(y))
    if bool(xp.any(bad)):
        example = float(xp.min(xp.where(bad, y, xp.full_like(y, math.inf))))
        msg = f"counts must be whole numbers from 0 on for the {name} likelihood; found {example:g}."
        raise ValueError(msg)
