"""The base class of likelihoods."""

import math
import numbers
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

Drawn = Mapping[str, Array] | None
"""Noise by name, as from `Likelihood.draws`; None for fixed noise."""


class Prediction(NamedTuple):
    """Means and variances, each [N, P]; the variance is None if only the mean was requested."""

    mean: Array
    variance: Array | None


class Likelihood(ABC):
    """p(y | f), independent for each datum given the P latent functions there.

    The targets y [N, K] of most likelihoods have one column for each latent function, K = P; `latents` gives P for any
    K.
    """

    couples_outputs: ClassVar[bool] = False
    """Whether the density of a datum depends on several latent functions at once."""

    bounded_curvature: ClassVar[bool] = False
    """Whether -d^2/df^2 log p(y | f) is bounded for each y, so that site steps are safe."""

    log_concave: ClassVar[bool] = False
    """Whether log p(y | f) is concave in f, so that repeated site steps converge for any prior."""

    quadratic: ClassVar[bool] = False
    """Whether log p(y | f) is quadratic in f, so that one site step of rate 1 with all data reaches the optimum."""

    slopes_vanish: ClassVar[bool] = False
    """Whether log p(y | f) is flat where y is unlikely, so that a q(u) there has no gradient to return by."""

    log_link: ClassVar[bool] = False
    """Whether the mean of y is a multiple of exp(f), so that an exposure adds its logarithm to f."""

    support: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    """Open bounds for quantiles and draws: 0 or 1 for positive targets and shares, infinite for whole numbers."""

    whole_numbers: ClassVar[bool] = False
    """Whether observations are whole numbers from 0 on."""

    missing: bool = False
    """Whether NaN marks an unobserved target; otherwise NaN is refused."""

    def latents(self, columns: int, /) -> int:
        """The number of latent functions P for targets with K columns; usually K.

        Raises
        ------
        ValueError
            If targets cannot have this number of columns.
        """
        return columns

    def with_columns(self, y: Array, latents: int, /) -> Array:
        """Targets for predictions with all columns [N, K] of training targets; missing columns get their default."""
        return y

    def check_outputs(self, outputs: int, /) -> None:  # noqa: B027 - most serve any number
        """Raise ValueError unless the parameters fit this number of latent functions."""

    @property
    def infinite_variance(self) -> bool:
        """Whether the variance of observations is infinite."""
        return False

    @abstractmethod
    def expected_log_density(self, mu: Array, var: Array, y: Array, /, draws: Drawn = None) -> tuple[Array, Pullback]:
        """E[log p(y_n | f_n)] under f_np ~ N(mu_np, var_np), with its pullback.

        Parameters
        ----------
        mu, var
            Marginals [N, P].
        y
            Targets [N, K].
        draws
            The result of `draws` for these rows, as arrays like mu. Without it, Monte Carlo estimates use fixed noise.

        Returns
        -------
        value
            [N], summed over the outputs of a datum.
        pullback
            ``bar [N] -> (likelihood_bar, mu_bar [N, P], var_bar [N, P])``.
        """

    def site_gradients(self, mu: Array, var: Array, y: Array, /, draws: Drawn = None) -> tuple[Array, Array]:
        """alpha and beta [N, P] of the Gaussian site alpha f - beta (f - mu)^2 / 2 that approximates each datum.

        alpha = E[d/df log p(y_n | f)] is the derivative of the expected log density with respect to the mean;
        beta = -E[d^2/df^2 log p(y_n | f)] is -2 times its derivative with respect to the variance, and not negative for
        log-concave likelihoods. Arguments as for `expected_log_density`.

        Raises
        ------
        TypeError
            If the likelihood does not return these derivatives.
        """
        ell, pullback = self.expected_log_density(mu, var, y, draws)
        _, alpha, var_bar = pullback(backend_of(ell).xp.ones_like(ell))
        if alpha is None or var_bar is None:
            name = type(self).__name__
            msg = (
                f"{name} gives no derivative of its expected log density with respect to the "
                f"{'mean' if alpha is None else 'variance'}, which natural gradients and sites need; return it from "
                "the pullback, or define site_gradients."
            )
            raise TypeError(msg)
        return alpha, -2.0 * var_bar

    def variance_cost(self) -> Array | None:
        """The expected log density lost per unit of marginal variance, 0-d or [P]; None if it depends on the datum."""
        return None

    def draws(self, rng: Any, rows: int, latents: int, /) -> dict[str, Any]:
        """The noise that a Monte Carlo estimate needs, as arrays [S, rows, ...] by name for S samples; usually none.

        `rng` is a NumPy generator or an `agp.random.Noise`.
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

        P is the predictive distribution, the integral of p(y_n | f) N(f; mu_n, var_n) df, so that intervals between two
        quantiles cover both noise and uncertainty about f. Quantiles of whole numbers are whole numbers; intervals
        between them contain at least the stated probability. Quantiles without a closed form are computed on the host.

        Parameters
        ----------
        mu, var
            Marginals [N, P]; or [S N, P], sample after sample, for S of each row.
        levels
            Probabilities between 0 and 1, both excluded.
        samples
            S. Quantiles are those of the mixture of the S marginals of a row.

        Raises
        ------
        ValueError
            If a level is not between 0 and 1, or the number of rows is not a multiple of `samples`.
        TypeError
            If observations have no order, the likelihood has no distribution function, or quantiles without a closed
            form are traced.
        """
        levels = check_levels(levels)
        return self._quantiles(*_by_sample(mu, var, samples), levels)

    def _quantiles(self, mu: Array, var: Array, levels: tuple[float, ...]) -> Array:
        """Quantiles [Q, N, K] for marginals [S, N, P]; by default those of `mixture`, searched on the host."""
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
            Any numbers [N, K]; NaN gives NaN. For `HeteroscedasticGaussian` with the known variances, [N, 2 K].

        Raises
        ------
        ValueError, TypeError
            As `predictive_quantiles`.
        """
        return self._cdf(*_by_sample(mu, var, samples), y)

    @public(repairs=False, context=False, ignore="underflow")
    def predictive_crps(self, mu: Array, var: Array, y: Array, /, *, samples: int = 1) -> Array:
        """The continuous ranked probability score of each target [N, K], in its unit: lower is better.

        The integral of (P(Y <= x) - [y <= x])^2 over x: in closed form for Gaussian noise and categories, otherwise on
        the host to a relative accuracy of about 1e-4. Arguments and errors as for `predictive_cdf`.

        Source: Gneiting & Raftery, "Strictly proper scoring rules, prediction, and estimation", JASA 2007.
        """
        return self._crps(*_by_sample(mu, var, samples), y)

    def _cdf(self, mu: Array, var: Array, y: Array) -> Array:
        """P(Y <= y) [N, K] for marginals [S, N, P]; by default that of `mixture`, on the host."""
        return placed(mixture_cdf(*self._on_host("distribution functions", mu, var), wide(to_numpy(y))), mu)

    def _crps(self, mu: Array, var: Array, y: Array) -> Array:
        """The CRPS [N, K] for marginals [S, N, P]; by default that of `mixture`, on the host."""
        scores = mixture_crps(*self._on_host("scores", mu, var), wide(to_numpy(y)))
        return in_range("scores", scores, mu, (-math.inf, math.inf))

    def _on_host(self, what: str, mu: Array, var: Array) -> tuple[Any, Any, Any]:
        """`mixture` and the marginals, with all arrays on the host. TypeError for traced arrays."""
        if not backend_of(mu).is_concrete(mu):
            name = type(self).__name__
            msg = f"{what} of {name} are computed on the host, not inside traced functions; call this untraced."
            raise TypeError(msg)
        return self._host_copy().mixture, wide(to_numpy(mu)), wide(to_numpy(var))

    def observation_model(self) -> ObservationModel:
        """The tails of p(y | f) on the host, for quantiles; TypeError if the likelihood does not define them."""
        msg = f"{type(self).__name__} has no distribution function, which quantiles need; define `observation_model`."
        raise TypeError(msg)

    def mixture(self, mu: Any, var: Any, /) -> Mixture:
        """The tails of observations on the host: `observation_model` averaged over marginals [S, N, P]."""
        return averaged(self.observation_model(), mu, var)

    def sample(self, f: Array, rng: Any, /) -> Array:
        """Draw observations [..., K] given latent functions f [..., P], on the host from a NumPy generator.

        TypeError if the likelihood does not define `_sample`.
        """
        return in_range("draws", self._host_copy()._sample(wide(to_numpy(f)), rng), f, self.support)

    def _sample(self, f: Any, rng: Any) -> Any:
        """`sample` with NumPy arrays."""
        msg = f"{type(self).__name__} cannot draw observations; define `_sample`."
        raise TypeError(msg)

    def _host_copy(self) -> Self:
        """The same with all leaves as NumPy arrays of float64."""
        leaves = tree.leaves(self).items()
        arrays = {name: scalar(x) if isinstance(x, int | float) else wide(to_numpy(x)) for name, x in leaves}
        return tree.with_leaves(self, arrays)

    @property
    def floats_per_row(self) -> int:
        """The numbers held by an evaluation for each row and latent function, for memory budgets."""
        return 8

    def observations(self, y: Array, /) -> Array | None:
        """The values [N, P] among the targets y [N, K] that observe the latent functions directly, or None.

        The prior starts at their mean and variance; without them, at 0 and 1.
        """
        return None

    def level(self, y: Array, /) -> Array | None:
        """The average [P] of the latent functions, estimated from targets that do not observe them; None if unknown.

        If given, the default mean function is a constant that starts there.
        """
        return None

    def proxies(self, y: Array, /) -> Array:
        """Numbers [N, Q] that grow with the latent functions, to compare starting values by least squares.

        By default `observations`, or else the targets y [N, K].
        """
        values = self.observations(y)
        return y if values is None else values

    def row_weights(self, y: Array, /) -> Array | None:
        """The number of observations [N] that each row of y [N, K] counts as; None if one each."""
        return None

    def log_density_alone(self, y: Array, /, weights: Array | None = None) -> float | None:
        """The log density per row of targets y [N, K] without inputs, at the best constants and parameters.

        Rows count with their weights [N]. None if there is no closed form; constants are then fitted at the present
        parameters.
        """
        return None

    def from_data(self, variance: float, /) -> Self:
        """The likelihood with missing leaves filled for this variance of the latent functions; by default itself."""
        return self

    def from_outputs(self, variances: Array, /) -> Self:
        """As `from_data`, for the variances [P] of several latent functions; by default their average."""
        return self.from_data(float(backend_of(variances).xp.mean(variances)))

    def check_parameters(self) -> None:  # noqa: B027 - most likelihoods have nothing to check
        """Raise ValueError if a parameter is invalid."""

    def check_targets(self, y: Array, /) -> None:  # noqa: B027 - any finite number
        """Raise ValueError if a target of y [N, K] lies outside the support; by default any finite number is valid."""


def check_number(name: str, value: Array) -> None:
    """ValueError unless a parameter is 0-d."""
    if value.ndim != 0:
        msg = f"{name} has shape {tuple(value.shape)}, but must be one number."
        raise ValueError(msg)


def check_by_output(name: str, value: Any, outputs: int | None = None, /) -> None:
    """ValueError unless a parameter is missing, one number, or one number for each output (any count if None)."""
    if value is None or isinstance(value, numbers.Real):
        return
    shape = (len(value),) if isinstance(value, (list, tuple)) else tuple(value.shape)
    if len(shape) > 1:
        msg = f"{name} has shape {shape}, but must be one number, or one for each output."
        raise ValueError(msg)
    if shape and outputs not in (None, shape[0]):
        msg = f"{name} has {shape[0]} entries, but there are {outputs} outputs; give one for each, or one for all."
        raise ValueError(msg)


def _by_sample(mu: Array, var: Array, samples: int) -> tuple[Array, Array]:
    """Marginals [S N, P] as [S, N, P]."""
    S = check_whole("samples", samples)
    if mu.shape[0] % S:
        msg = f"mu has {mu.shape[0]} rows, not a multiple of samples={S}; give S marginals for each row."
        raise ValueError(msg)
    xp, shape = backend_of(mu).xp, (S, mu.shape[0] // S, mu.shape[1])
    return xp.reshape(mu, shape), xp.reshape(var, shape)
