"""What every likelihood offers."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

from agp import tree
from agp._context import public
from agp.backend import Array, Pullback, backend_of, placed, to_numpy, wide
from agp.checks import check_levels, check_whole
from agp.likelihoods._range import in_range
from agp.quantiles import Mixture, ObservationModel, averaged, mixture_quantiles, scalar
from agp.scores import mixture_cdf, mixture_crps

__all__ = ["Likelihood", "Prediction"]


class Prediction(NamedTuple):
    """Means and variances, each [N, P]; the variance is None where only the mean was asked for."""

    mean: Array
    variance: Array | None


class Likelihood(ABC):
    """p(y | f), independent for each datum given the P latent functions there.

    The targets y [N, K] of most likelihoods have one column for each latent function, K = P; `latents` says which
    number of functions goes with which number of columns.
    """

    couples_outputs: ClassVar[bool] = False
    """Whether the density of a datum depends on several latent functions together, so that their independence counts.
    """

    bounded_curvature: ClassVar[bool] = False
    """Whether -d^2/df^2 log p(y | f) is bounded for each y, so that steps of sites cannot run away."""

    log_concave: ClassVar[bool] = False
    """Whether log p(y | f) is a concave function of f, so that repeated site steps settle for whatever prior."""

    quadratic: ClassVar[bool] = False
    """Whether log p(y | f) is quadratic in f, so that one site step of rate 1 with all data reaches the optimum."""

    slopes_vanish: ClassVar[bool] = False
    """Whether log p(y | f) is flat where y is far from likely, so that a q(u) that a step has thrown there stays."""

    log_link: ClassVar[bool] = False
    """Whether the mean of y is a multiple of exp(f), so that an exposure adds its logarithm to f."""

    support: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    """Open ends between which quantiles are kept: 0 or 1 for positive targets and shares, none for whole numbers."""

    whole_numbers: ClassVar[bool] = False
    """Whether observations are whole numbers from 0 on, so that their distribution function has jumps."""

    missing: bool = False
    """Whether a target that is NaN was not observed; otherwise such targets are refused."""

    def latents(self, columns: int, /) -> int:
        """The number of latent functions P for targets with so many columns K; usually the same.

        Raises
        ------
        ValueError
            If targets cannot have so many columns.
        """
        return columns

    def with_columns(self, y: Array, latents: int, /) -> Array:
        """Targets that are to be predicted with the columns [N, K] of training, where these have a usual value."""
        return y

    def check_outputs(self, outputs: int, /) -> None:  # noqa: B027 - most serve any number
        """ValueError unless the parameters are those of so many latent functions."""

    @property
    def infinite_variance(self) -> bool:
        """Whether observations have no finite variance; usually not."""
        return False

    @abstractmethod
    def expected_log_density(
        self, mu: Array, var: Array, y: Array, /, draws: Mapping[str, Array] | None = None
    ) -> tuple[Array, Pullback]:
        """E[log p(y_n | f_n)] under f_np ~ N(mu_np, var_np), with its pullback.

        Parameters
        ----------
        mu, var
            Marginals [N, P].
        y
            Targets [N, K].
        draws
            What `draws` gave for these rows, as arrays like mu; without it, Monte Carlo estimates use fixed noise.

        Returns
        -------
        value
            [N], summed over the outputs of a datum.
        pullback
            ``bar [N] -> (likelihood_bar, mu_bar [N, P], var_bar [N, P])``.
        """

    def site_gradients(
        self, mu: Array, var: Array, y: Array, /, draws: Mapping[str, Array] | None = None
    ) -> tuple[Array, Array]:
        """alpha and beta [N, P]: to q, the likelihood of a datum is the site alpha f - beta (f - mu)^2 / 2.

        alpha = E[d/df log p(y_n | f)] is the derivative of the expected log density with respect to the mean, and
        beta = -E[d^2/df^2 log p(y_n | f)] is -2 times that with respect to the variance; beta >= 0 where the likelihood
        is log-concave. Arguments as `expected_log_density`.

        Raises
        ------
        TypeError
            If the likelihood gives no such derivatives.
        """
        ell, pullback = self.expected_log_density(mu, var, y, draws)
        _, alpha, var_bar = pullback(backend_of(ell).xp.ones_like(ell))
        if alpha is None or var_bar is None:
            name = type(self).__name__
            msg = (
                f"{name} gives no derivative of its expected log density with respect to the "
                f"{'mean' if alpha is None else 'variance'}, which natural gradients and sites need; let the pullback "
                "return it, or define site_gradients."
            )
            raise TypeError(msg)
        return alpha, -2.0 * var_bar

    def variance_cost(self) -> Array | None:
        """What a unit of marginal variance costs in expected log density, 0-d or [P]; None where the datum says."""
        return None

    def draws(self, rng: Any, rows: int, latents: int, /) -> dict[str, Any]:
        """The noise that an estimate for so many rows and latent functions needs, from a generator.

        That is NumPy's, or an `agp.random.Noise`. Arrays [S, rows, ...] by name, for S samples: the rows lie along the
        second axis. Usually none.
        """
        return {}

    @abstractmethod
    def predict(self, mu: Array, var: Array, /) -> Prediction:
        """Mean and variance of the observations y [N, P] for marginals [N, P]."""

    @abstractmethod
    def predictive_log_density(self, mu: Array, var: Array, y: Array, /) -> Array:
        """Log of the integral of p(y_n | f) N(f; mu_n, var_n) df [N], for marginals [N, P] and targets [N, K]."""

    @public(repairs=False, context=False, ignore="underflow")
    def predictive_quantiles(self, mu: Array, var: Array, levels: tuple[float, ...], /, *, samples: int = 1) -> Array:
        """The smallest y with P(y_nk <= y) >= level [Q, N, K], for each of Q levels and marginals [N, P].

        P is the distribution of an observation, the integral of p(y_n | f) N(f; mu_n, var_n) df: intervals between two
        quantiles hold the noise and what is not known of f. Quantiles of whole numbers are whole numbers, so such
        intervals hold at least what their levels say. What has no closed form is computed on the host.

        Parameters
        ----------
        mu, var
            Marginals [N, P]; sample after sample [S N, P] where there are several of each row.
        levels
            Probabilities between 0 and 1, both excluded.
        samples
            S, the marginals of each row: the quantiles are those of their mixture.

        Raises
        ------
        ValueError
            If a level is not between 0 and 1, or the rows are no multiple of `samples`.
        TypeError
            If observations have no order, the likelihood does not tell its distribution function, or what has no closed
            form is traced.
        """
        levels = check_levels(levels)
        return self._quantiles(*_by_sample(mu, var, samples), levels)

    def _quantiles(self, mu: Array, var: Array, levels: tuple[float, ...]) -> Array:
        """Quantiles [Q, N, K] for marginals [S, N, P]: usually those of `mixture`, by a search on the host."""
        found = mixture_quantiles(*self._on_host("quantiles", mu, var), levels)
        return in_range("predicted quantiles", found, mu, self.support)

    @public(repairs=False, context=False, ignore="underflow")
    def predictive_cdf(self, mu: Array, var: Array, y: Array, /, *, samples: int = 1) -> Array:
        """P(Y_nk <= y_nk) [N, K] of observations Y, for marginals and samples as `predictive_quantiles`.

        Parameters
        ----------
        mu, var, samples
            As `predictive_quantiles`.
        y
            Numbers [N, K], of the support or not; where one is NaN, so is the probability. (For
            `HeteroscedasticGaussian` with the known variances beside them, [N, 2 K].)

        Raises
        ------
        ValueError, TypeError
            As `predictive_quantiles`.
        """
        return self._cdf(*_by_sample(mu, var, samples), y)

    @public(repairs=False, context=False, ignore="underflow")
    def predictive_crps(self, mu: Array, var: Array, y: Array, /, *, samples: int = 1) -> Array:
        """The continuous ranked probability score of each target [N, K], in its unit: lower is better.

        The integral of (P(Y <= x) - [y <= x])^2 over x: a closed form for Gaussian noise and for categories, else on
        the host to about 1e-4 of its value. Arguments and errors as `predictive_cdf`.

        Source: Gneiting & Raftery, "Strictly proper scoring rules, prediction, and estimation", JASA 2007.
        """
        return self._crps(*_by_sample(mu, var, samples), y)

    def _cdf(self, mu: Array, var: Array, y: Array) -> Array:
        """P(Y <= y) [N, K] for marginals [S, N, P]: usually that of `mixture`, on the host."""
        return placed(mixture_cdf(*self._on_host("distribution functions", mu, var), wide(to_numpy(y))), mu)

    def _crps(self, mu: Array, var: Array, y: Array) -> Array:
        """The CRPS [N, K] for marginals [S, N, P]: usually that of `mixture`, on the host."""
        scores = mixture_crps(*self._on_host("scores", mu, var), wide(to_numpy(y)))
        return in_range("scores", scores, mu, (-math.inf, math.inf))

    def _on_host(self, what: str, mu: Array, var: Array) -> tuple[Any, Any, Any]:
        """`mixture` of the likelihood with leaves on the host, and the marginals there. TypeError for traced ones."""
        if not backend_of(mu).is_concrete(mu):
            name = type(self).__name__
            msg = f"{what} of {name} are searched on the host, which a traced function cannot; call it untraced."
            raise TypeError(msg)
        return self._host_copy().mixture, wide(to_numpy(mu)), wide(to_numpy(var))

    def observation_model(self) -> ObservationModel:
        """The tails of p(y | f) for a latent function of each column, on the host: all that quantiles need.

        Raises
        ------
        TypeError
            If the likelihood does not tell them.
        """
        name = type(self).__name__
        msg = f"{name} does not tell its distribution function, which quantiles need; define `observation_model`."
        raise TypeError(msg)

    def mixture(self, mu: Any, var: Any, /) -> Mixture:
        """The tails of observations for marginals [S, N, P] on the host: averages of `observation_model` over f."""
        return averaged(self.observation_model(), mu, var)

    def sample(self, f: Array, rng: Any, /) -> Array:
        """Draw observations [..., K] given latent functions f [..., P], on the host from a NumPy generator.

        Raises
        ------
        TypeError
            If the likelihood does not offer it.
        """
        return in_range("draws", self._host_copy()._sample(wide(to_numpy(f)), rng), f, self.support)

    def _sample(self, f: Any, rng: Any) -> Any:
        """`sample` by NumPy, the parameters on the host."""
        msg = f"{type(self).__name__} draws no observations; define `_sample`."
        raise TypeError(msg)

    def _host_copy(self) -> Self:
        """The same with all leaves as NumPy arrays of float64, Python's numbers too."""
        leaves = tree.leaves(self).items()
        arrays = {name: scalar(x) if isinstance(x, int | float) else wide(to_numpy(x)) for name, x in leaves}
        return tree.with_leaves(self, arrays)

    @property
    def floats_per_row(self) -> int:
        """Numbers that an evaluation holds for each row and latent function, for memory budgets."""
        return 8

    def observations(self, y: Array, /) -> Array | None:
        """The values [N, P] among the targets y [N, K] that observe the latent functions directly, if there are any.

        Their average and variance are starting values for the prior; without them, those are 0 and 1.
        """
        return None

    def level(self, y: Array, /) -> Array | None:
        """Where the latent functions lie on the average [P], if targets that do not observe them tell it.

        The default mean function is a constant then, which starts there.
        """
        return None

    def proxies(self, y: Array, /) -> Array:
        """Numbers [N, Q] that grow with the latent functions, to compare starting values by least squares.

        Usually what observes these, or the targets y [N, K] themselves.
        """
        values = self.observations(y)
        return y if values is None else values

    def row_weights(self, y: Array, /) -> Array | None:
        """How many observations each row of targets y [N, K] counts as [N]; usually one each, which is None."""
        return None

    def log_density_alone(self, y: Array, /, weights: Array | None = None) -> float | None:
        """The log density per row of targets y [N, K] without inputs, at the best constants and parameters.

        Rows with weights [N] count that often. None where it has no closed form: constants are then sought at the
        parameters that there are.
        """
        return None

    @abstractmethod
    def from_data(self, variance: float, /) -> Self:
        """A likelihood whose missing leaves start at values that suit a variance of the latent functions."""

    def from_outputs(self, variances: Array, /) -> Self:
        """As `from_data`, for latent functions of these variances [P]; usually by their average.

        Of a likelihood whose outputs may have parameters of their own, each starts at what suits its variance.
        """
        return self.from_data(float(backend_of(variances).xp.mean(variances)))

    def check_parameters(self) -> None:  # noqa: B027 - most likelihoods have nothing to check
        """Raise ValueError for parameters of a shape that the likelihood cannot take."""

    @abstractmethod
    def check_targets(self, y: Array, /) -> None:
        """Raise ValueError if a target of y [N, K] lies outside the support."""


def _by_sample(mu: Array, var: Array, samples: int) -> tuple[Array, Array]:
    """Marginals [S N, P] as [S, N, P]."""
    S = check_whole("samples", samples)
    if mu.shape[0] % S:
        msg = f"mu has {mu.shape[0]} rows, no multiple of samples={S}; give S marginals for each row."
        raise ValueError(msg)
    xp, shape = backend_of(mu).xp, (S, mu.shape[0] // S, mu.shape[1])
    return xp.reshape(mu, shape), xp.reshape(var, shape)
