"""Likelihoods whose targets have an additional last column: the weight or the exposure of each row."""

from typing import ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.likelihoods._base import Drawn, Likelihood, forward


class WithColumn(Likelihood):
    """Base class for likelihoods that append a column to the K target columns of another likelihood.

    The column is not needed for predictions; its default value is 1.
    """

    likelihood: Likelihood
    column: ClassVar[str]
    """A plural noun for the contents of the column, for use in messages."""
    positive: ClassVar[bool]
    """Whether zeros in the column raise an error."""

    def __post_init__(self) -> None:
        if not isinstance(self.likelihood, Likelihood):
            hint = f"; write {self.likelihood.__name__}()" if isinstance(self.likelihood, type) else ""
            msg = f"likelihood is {self.likelihood!r}, but must be an instance of agp's Likelihood{hint}."
            raise TypeError(msg)

    def _inner(self, mu: Array, y: Array) -> tuple[Array, Array]:
        """Return the latent means [S N, P] and targets [N, K] for the wrapped likelihood, given targets [N, K + 1]."""
        return mu, y[:, :-1]

    def expected_log_density(self, mu: Array, var: Array, y: Array, /, draws: Drawn = None) -> tuple[Array, Pullback]:
        weights = self.row_weights(y)
        mu, y = self._inner(mu, y)
        value, pull = self.likelihood.expected_log_density(mu, var, y, draws)

        def pullback(bar):
            own, mu_bar, var_bar = pull(bar if weights is None else weights * bar)
            return tree.cotangent(self, likelihood=own), mu_bar, var_bar

        return value if weights is None else weights * value, pullback

    def site_gradients(self, mu: Array, var: Array, y: Array, /, draws: Drawn = None) -> tuple[Array, Array]:
        weights = self.row_weights(y)
        mu, y = self._inner(mu, y)
        alpha, beta = self.likelihood.site_gradients(mu, var, y, draws)
        return (alpha, beta) if weights is None else (weights[:, None] * alpha, weights[:, None] * beta)

    def predictive_log_density(self, mu: Array, var: Array, y: Array, /) -> Array:
        mu, y = self._inner(mu, self.with_columns(y, mu.shape[1]))
        return self.likelihood.predictive_log_density(mu, var, y)

    def predictive_cdf(self, mu: Array, var: Array, y: Array, /, *, samples: int = 1) -> Array:
        mu, y = self._inner(mu, self.with_columns(y, mu.shape[1]))
        return self.likelihood.predictive_cdf(mu, var, y, samples=samples)

    def predictive_crps(self, mu: Array, var: Array, y: Array, /, *, samples: int = 1) -> Array:
        mu, y = self._inner(mu, self.with_columns(y, mu.shape[1]))
        return self.likelihood.predictive_crps(mu, var, y, samples=samples)

    def check_targets(self, y: Array, /) -> None:
        self.latents(y.shape[1])
        self.likelihood.check_targets(y[:, :-1])
        xp, column = backend_of(y).xp, y[:, -1]
        if not bool(xp.all(column > 0.0 if self.positive else column >= 0.0)):
            rule = "be positive" if self.positive else "not be negative"
            msg = f"{self.column}, the last column of y, must {rule}; found {float(xp.min(column)):g}."
            raise ValueError(msg)

    # -- forwarded to the wrapped likelihood ------------------------------------------------------------------------

    couples_outputs = forward("likelihood.couples_outputs")
    bounded_curvature = forward("likelihood.bounded_curvature")
    log_concave = forward("likelihood.log_concave")
    quadratic = forward("likelihood.quadratic")
    slopes_vanish = forward("likelihood.slopes_vanish")
    support = forward("likelihood.support")
    whole_numbers = forward("likelihood.whole_numbers")
    missing = forward("likelihood.missing")
    infinite_variance = forward("likelihood.infinite_variance")  # type: ignore[override]
    check_outputs = forward("likelihood.check_outputs")
    check_parameters = forward("likelihood.check_parameters")
    draws = forward("likelihood.draws")
    predict = forward("likelihood.predict")
    observation_model = forward("likelihood.observation_model")
    mixture = forward("likelihood.mixture")
    _quantiles = forward("likelihood._quantiles")
    _sample = forward("likelihood._sample")

    @property
    def floats_per_row(self) -> int:
        return self.likelihood.floats_per_row + 1

    def latents(self, columns: int, /) -> int:
        if columns < 2:
            msg = (
                f"y has {columns} columns, but {type(self).__name__} needs two or more; append {self.column} as the "
                "last column."
            )
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

    def from_data(self, variance: float, /) -> Self:
        return tree.replace(self, {"likelihood": self.likelihood.from_data(variance)})

    def from_outputs(self, variances: Array, /) -> Self:
        return tree.replace(self, {"likelihood": self.likelihood.from_outputs(variances)})


def _fits(likelihood: Likelihood, y: Array, latents: int) -> bool:
    """Whether the number of target columns fits this number of latent functions."""
    try:
        return likelihood.latents(y.shape[1]) == latents
    except ValueError:
        return False


@tree.model
class Weighted(WithColumn):
    """A weighted likelihood p(y_n | f_n)^(w_n), where the weight w_n is the last column of the targets [N, K + 1].

    A weight is the number of observations that a row represents. Weights must be at least 0, but need not be whole
    numbers. Training, starting values and `Predictor.condition_on` use the weights. Predictive log densities refer to
    single observations and ignore the weights, so targets passed to them may omit the weight column. `agp.GPR`
    and `agp.SGPR` have a `weights` argument instead.

    Parameters
    ----------
    likelihood
        The likelihood p(y | f) of one observation, for targets [N, K].
    """

    likelihood: Likelihood

    column: ClassVar[str] = "weights"
    positive: ClassVar[bool] = False

    def row_weights(self, y: Array, /) -> Array:
        return y[:, -1]

    def observations(self, y: Array, /) -> Array | None:
        return self.likelihood.observations(y[:, :-1])

    def level(self, y: Array, /) -> Array | None:
        return self.likelihood.level(y[:, :-1])

    def proxies(self, y: Array, /) -> Array:
        return self.likelihood.proxies(y[:, :-1])

    def log_density_alone(self, y: Array, /, weights: Array | None = None) -> float | None:
        own = y[:, -1]
        return self.likelihood.log_density_alone(y[:, :-1], own if weights is None else own * weights)


@tree.model
class Exposed(WithColumn):
    """A likelihood whose mean is multiplied by an exposure e_n, the last column of the targets [N, K + 1].

    The exposure is the time, the area or the population over which a target was counted or summed. The mean of the
    wrapped likelihood must be a multiple of exp(f), so that the exposure adds log(e_n) to f. The exposure is 1 for
    predictions, and for targets without an exposure column. Starting values are computed from the rates y / e. A weight
    column comes after the exposure column: the targets of ``Weighted(Exposed(Poisson()))`` are y, exposure, weight.

    Parameters
    ----------
    likelihood
        `Poisson`, `NegativeBinomial`, `Gamma`, `Exponential`, or your own likelihood with `log_link = True`.
    """

    likelihood: Likelihood

    column: ClassVar[str] = "exposures"
    positive: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.likelihood.log_link:
            msg = (
                f"likelihood is {type(self.likelihood).__name__}, but must be a likelihood with a mean proportional "
                "to exp(f); use Poisson, NegativeBinomial, Gamma or Exponential."
            )
            raise TypeError(msg)

    def _inner(self, mu: Array, y: Array) -> tuple[Array, Array]:
        # add log(exposure) to mu in each of S samples
        xp = backend_of(mu).xp
        offset = xp.log(y[:, -1:])
        samples = mu.shape[0] // max(offset.shape[0], 1)
        return mu + (offset if samples <= 1 else xp.tile(offset, (samples, 1))), y[:, :-1]

    def observations(self, y: Array, /) -> Array | None:
        return self.likelihood.observations(y[:, :-1] / y[:, -1:])

    def level(self, y: Array, /) -> Array:
        # the logarithm of the overall rate; a total of 0 is replaced by 0.5
        xp = backend_of(y).xp
        total = xp.sum(y[:, :-1], axis=0)
        return xp.log(xp.where(total > 0.0, total, xp.full_like(total, 0.5))) - xp.log(xp.sum(y[:, -1]))

    def proxies(self, y: Array, /) -> Array:
        return self.likelihood.proxies(y[:, :-1]) - backend_of(y).xp.log(y[:, -1:])
