"""Likelihoods with a further column of targets: the weight or the exposure of each datum."""

from operator import attrgetter
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.likelihoods._base import Drawn, Likelihood, Prediction
from agp.quantiles import Mixture, ObservationModel


def _forwarded(name: str) -> Any:
    """A property that is that of the wrapped likelihood."""
    return property(attrgetter(f"likelihood.{name}"))


class WithColumn(Likelihood):
    """A likelihood of targets [N, K + 1]: those of another likelihood, and a further column.

    Predictions do not need the column, which is 1 if it is absent.
    """

    likelihood: Likelihood
    column: ClassVar[str]
    """The contents of the column, in the plural."""

    def __post_init__(self) -> None:
        if not isinstance(self.likelihood, Likelihood):
            hint = f"; write {self.likelihood.__name__}()" if isinstance(self.likelihood, type) else ""
            msg = f"likelihood is {self.likelihood!r}, but must be an instance of agp's Likelihood{hint}."
            raise TypeError(msg)

    def _split(self, y: Array) -> tuple[Array, Array]:
        """The targets [N, K] and the column [N]."""
        return y[:, :-1], y[:, -1]

    # -- forwarded to the wrapped likelihood ------------------------------------------------------------------------

    couples_outputs = _forwarded("couples_outputs")
    bounded_curvature = _forwarded("bounded_curvature")
    log_concave = _forwarded("log_concave")
    quadratic = _forwarded("quadratic")
    slopes_vanish = _forwarded("slopes_vanish")
    support = _forwarded("support")
    whole_numbers = _forwarded("whole_numbers")
    missing = _forwarded("missing")
    infinite_variance = _forwarded("infinite_variance")

    @property
    def floats_per_row(self) -> int:
        return self.likelihood.floats_per_row + 1

    def latents(self, columns: int, /) -> int:
        if columns < 2:
            msg = f"y has {columns} columns, but {type(self).__name__} takes targets, then a column of {self.column}."
            raise ValueError(msg)
        return self.likelihood.latents(columns - 1)

    def with_columns(self, y: Array, latents: int, /) -> Array:
        if _fits(self, y, latents):
            return y
        inner = self.likelihood.with_columns(y, latents)
        if not _fits(self.likelihood, inner, latents):
            return y
        xp = backend_of(y).xp
        return xp.concat([inner, xp.ones_like(inner[:, :1])], axis=1)

    def check_outputs(self, outputs: int, /) -> None:
        self.likelihood.check_outputs(outputs)

    def check_parameters(self) -> None:
        self.likelihood.check_parameters()

    def draws(self, rng: Any, rows: int, latents: int, /) -> dict[str, Any]:
        return self.likelihood.draws(rng, rows, latents)

    def predict(self, mu: Array, var: Array, /) -> Prediction:
        return self.likelihood.predict(mu, var)

    def _alone(self, mu: Array, y: Array) -> tuple[Array, Array]:
        """Latent means [S N, P] and targets [N, K] for the wrapped likelihood."""
        return mu, self._split(self.with_columns(y, mu.shape[1]))[0]

    def predictive_cdf(self, mu: Array, var: Array, y: Array, /, *, samples: int = 1) -> Array:
        mu, y = self._alone(mu, y)
        return self.likelihood.predictive_cdf(mu, var, y, samples=samples)

    def predictive_crps(self, mu: Array, var: Array, y: Array, /, *, samples: int = 1) -> Array:
        mu, y = self._alone(mu, y)
        return self.likelihood.predictive_crps(mu, var, y, samples=samples)

    def _quantiles(self, mu: Array, var: Array, levels: tuple[float, ...]) -> Array:
        return self.likelihood._quantiles(mu, var, levels)

    def observation_model(self) -> ObservationModel:
        return self.likelihood.observation_model()

    def mixture(self, mu: Any, var: Any, /) -> Mixture:
        return self.likelihood.mixture(mu, var)

    def _sample(self, f: Any, rng: Any) -> Any:
        return self.likelihood._sample(f, rng)

    def from_data(self, variance: float, /) -> Self:
        return tree.replaced(self, {"likelihood": self.likelihood.from_data(variance)})

    def from_outputs(self, variances: Array, /) -> Self:
        return tree.replaced(self, {"likelihood": self.likelihood.from_outputs(variances)})


def _fits(likelihood: Likelihood, y: Array, latents: int) -> bool:
    """Whether the targets have the columns for this number of latent functions."""
    try:
        return likelihood.latents(y.shape[1]) == latents
    except ValueError:
        return False


@tree.model
class Weighted(WithColumn):
    """p(y_n | f_n)^(w_n): the last column of the targets [N, K + 1] is the number of observations each row counts as.

    Weights w_n >= 0 need not be whole, and stay with their rows in minibatches and blocks. They count in training, in
    starting values and in `Predictor.condition_on`. Predictive log densities are those of single observations, for
    targets with or without the column. `agp.GPR` and `agp.SGPR` have a `weights` argument of their own.

    Parameters
    ----------
    likelihood
        p(y | f) of one observation, for the targets [N, K].
    """

    likelihood: Likelihood

    column: ClassVar[str] = "weights"

    def expected_log_density(self, mu: Array, var: Array, y: Array, /, draws: Drawn = None) -> tuple[Array, Pullback]:
        y, weights = self._split(y)
        value, pull = self.likelihood.expected_log_density(mu, var, y, draws)

        def pullback(bar):
            own, mu_bar, var_bar = pull(weights * bar)
            return tree.cotangent(self, likelihood=own), mu_bar, var_bar

        return weights * value, pullback

    def site_gradients(self, mu: Array, var: Array, y: Array, /, draws: Drawn = None) -> tuple[Array, Array]:
        y, weights = self._split(y)
        alpha, beta = self.likelihood.site_gradients(mu, var, y, draws)
        return weights[:, None] * alpha, weights[:, None] * beta

    def predictive_log_density(self, mu: Array, var: Array, y: Array, /) -> Array:
        y, _ = self._split(self.with_columns(y, mu.shape[1]))
        return self.likelihood.predictive_log_density(mu, var, y)

    def row_weights(self, y: Array, /) -> Array:
        return self._split(y)[1]

    def observations(self, y: Array, /) -> Array | None:
        return self.likelihood.observations(self._split(y)[0])

    def level(self, y: Array, /) -> Array | None:
        return self.likelihood.level(self._split(y)[0])

    def proxies(self, y: Array, /) -> Array:
        return self.likelihood.proxies(self._split(y)[0])

    def log_density_alone(self, y: Array, /, weights: Array | None = None) -> float | None:
        y, own = self._split(y)
        return self.likelihood.log_density_alone(y, own if weights is None else own * weights)

    def check_targets(self, y: Array, /) -> None:
        self.latents(y.shape[1])
        y, weights = self._split(y)
        self.likelihood.check_targets(y)
        xp = backend_of(y).xp
        if not bool(xp.all(weights >= 0.0)):
            msg = f"weights, the last column of y, must not be negative; found {float(xp.min(weights)):g}."
            raise ValueError(msg)


@tree.model
class Exposed(WithColumn):
    """The last column of the targets [N, K + 1] is an exposure e_n that multiplies the mean of y_n.

    The exposure is the time, area or population that a count, a sum or a waiting time belongs to: for likelihoods whose
    mean is a multiple of exp(f), f is shifted by log(e). Predictions, and targets without the column, have an exposure
    of 1. Starting values come from the rates y / e. Weights come last: ``Weighted(Exposed(Poisson()))`` has the columns
    y, exposure, weight.

    Parameters
    ----------
    likelihood
        `Poisson`, `NegativeBinomial`, `Gamma` or `Exponential`, or another one with `log_link`.
    """

    likelihood: Likelihood

    column: ClassVar[str] = "exposures"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.likelihood.log_link:
            msg = (
                f"Exposed takes a likelihood whose mean is a multiple of exp(f), not {type(self.likelihood).__name__}: "
                "Poisson, NegativeBinomial, Gamma or Exponential."
            )
            raise TypeError(msg)

    def _shifted(self, mu: Array, y: Array) -> tuple[Array, Array]:
        """mu + log(exposure) [N, P], and the targets [N, K]."""
        y, exposure = self._split(y)
        return mu + backend_of(mu).xp.log(exposure)[:, None], y

    def _alone(self, mu: Array, y: Array) -> tuple[Array, Array]:
        y, exposure = self._split(self.with_columns(y, mu.shape[1]))
        xp = backend_of(mu).xp
        offset = xp.log(exposure)[:, None]
        return mu + xp.tile(offset, (mu.shape[0] // offset.shape[0], 1)), y

    def _rates(self, y: Array) -> Array:
        """The targets per unit of exposure [N, K]."""
        y, exposure = self._split(y)
        return y / exposure[:, None]

    def expected_log_density(self, mu: Array, var: Array, y: Array, /, draws: Drawn = None) -> tuple[Array, Pullback]:
        mu, y = self._shifted(mu, y)
        value, pull = self.likelihood.expected_log_density(mu, var, y, draws)

        def pullback(bar):
            own, mu_bar, var_bar = pull(bar)
            return tree.cotangent(self, likelihood=own), mu_bar, var_bar

        return value, pullback

    def site_gradients(self, mu: Array, var: Array, y: Array, /, draws: Drawn = None) -> tuple[Array, Array]:
        mu, y = self._shifted(mu, y)
        return self.likelihood.site_gradients(mu, var, y, draws)

    def predictive_log_density(self, mu: Array, var: Array, y: Array, /) -> Array:
        mu, y = self._shifted(mu, self.with_columns(y, mu.shape[1]))
        return self.likelihood.predictive_log_density(mu, var, y)

    def observations(self, y: Array, /) -> Array | None:
        return self.likelihood.observations(self._rates(y))

    def level(self, y: Array, /) -> Array:
        # the logarithm of the overall rate; a total of zero counts as one half
        y, exposure = self._split(y)
        xp = backend_of(y).xp
        total = xp.sum(y, axis=0)
        return xp.log(xp.where(total > 0.0, total, xp.full_like(total, 0.5))) - xp.log(xp.sum(exposure))

    def proxies(self, y: Array, /) -> Array:
        y, exposure = self._split(y)
        return self.likelihood.proxies(y) - backend_of(y).xp.log(exposure)[:, None]

    def check_targets(self, y: Array, /) -> None:
        self.latents(y.shape[1])
        y, exposure = self._split(y)
        self.likelihood.check_targets(y)
        xp = backend_of(y).xp
        if not bool(xp.all(exposure > 0.0)):
            msg = f"exposures, the last column of y, must be positive; found {float(xp.min(exposure)):g}."
            raise ValueError(msg)
