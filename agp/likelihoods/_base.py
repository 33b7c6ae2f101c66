"""The base class for likelihoods."""

import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, Literal, NamedTuple, Self

from agp import tree
from agp.backend import Array, Pullback, as_widest_float, asarray_like, backend_of, to_numpy
from agp.checks import check_levels, check_whole
from agp.distributions import Mixture, ObservationModel, marginal_mixture, mixture_cdf, mixture_crps, mixture_quantiles
from agp.errors import count_of, there_are
from agp.likelihoods._range import in_range
from agp.repairs import derive_pullbacks, on_instance, public, with_values

Drawn = Mapping[str, Array] | None
"""Named noise arrays, as returned by `Likelihood.draws`; None for fixed noise."""


class Prediction(NamedTuple):
    """Means [N, P] and variances [N, P] of latent functions or observations, or their derivatives."""

    mean: Array
    variance: Array


def shared_precision(trace: Array, square: Array, /) -> Array:
    """Return the precisions tr(W_n^2) / tr(W_n) [N, 1], or 0 for W_n = 0, from tr(W_n) and tr(W_n^2) [N]."""
    xp = backend_of(trace).xp
    some = trace > 0.0
    return xp.where(some, square / xp.where(some, trace, xp.ones_like(trace)), xp.zeros_like(trace))[:, None]


class Likelihood(tree.Part, ABC):
    """Base class for likelihoods p(y | f), in which rows are independent given the P latent functions f.

    For most likelihoods the targets y [N, K] have one column per latent function, so K = P. `latents` returns P for
    a given K.
    """

    short_name: ClassVar[str]
    """The name in text, such as ``GPRegressor(likelihood="student-t")``.

    Text can name the exported likelihoods of numbers that define this attribute. Their constructors have no required
    arguments.
    """

    couples_outputs: ClassVar[bool] = False
    """Whether the density of a target depends on more than one latent function."""

    bounded_curvature: ClassVar[bool] = False
    """Whether -d^2/df^2 log p(y | f) is bounded for each y, which makes site steps safe."""

    log_concave: ClassVar[bool] = False
    """Whether log p(y | f) is concave in f. Repeated site steps then converge for any prior."""

    quadratic: ClassVar[bool] = False
    """Whether log p(y | f) is quadratic in f. One site step of rate 1 with all rows then reaches the optimum."""

    slopes_vanish: ClassVar[bool] = False
    """Whether log p(y | f) is flat where y is unlikely, so that the gradient there is too small to improve q(u)."""

    labels: ClassVar[bool] = False
    """Whether y consists of labels. Hyperparameters at the optimum of the bound then tend to fit them too closely."""

    quality: ClassVar[Literal["error", "label", "fit"]] = "fit"
    """How the log density of a row is put into words during training: as the size of an error in the units of y, as the
    probability of the right label, or as a number of nats."""

    log_link: ClassVar[bool] = False
    """Whether the mean of y is a multiple of exp(f). An exposure then adds its logarithm to f."""

    mean_is_latent: ClassVar[bool] = False
    """Whether the mean of y [N, K] given f is the first K columns of f, so that predicted means need no variances."""

    decided_by_sign: ClassVar[bool] = False
    """Whether, of two classes, 1 is more probable than 0 if and only if the mean of f is positive, for any variance."""

    support: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    """Bounds on quantiles and draws: 0 and infinity for positive targets, 0 and 1 for proportions.

    The bounds are excluded, except for whole numbers.
    """

    whole_numbers: ClassVar[bool] = False
    """Whether observations are whole numbers of at least 0."""

    missing: bool = False
    """Whether targets may be NaN, which marks them as unobserved. Otherwise NaN raises an error."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in {"expected_log_density", "predict", "predictive_log_density", "_sample"} & vars(cls).keys():
            inputs = 2 if name == "expected_log_density" else None
            setattr(cls, name, with_values(vars(cls)[name], "likelihood.from_data(variance)", inputs))
        derive_pullbacks(cls, {"_log_density": 1})
        if "from_data" in vars(cls):
            cls.from_data = on_instance(vars(cls)["from_data"], Likelihood, "Gaussian().from_data(variance)")  # type: ignore[method-assign]

    def latents(self, columns: int, /) -> int:
        """Return the number P of latent functions for targets with K columns; by default P = K.

        Raises
        ------
        ValueError
            If the likelihood does not accept targets with this number of columns.
        """
        return columns

    def check_outputs(self, outputs: int, /) -> None:
        """Raise ValueError unless the parameters fit this number of latent functions."""

    @property
    def is_logistic(self) -> bool:
        """Whether the log odds of labels are latent functions, one for two classes or one for each class."""
        return False

    @property
    def infinite_variance(self) -> bool:
        """Whether the noise has infinite variance."""
        return False

    @property
    def differs_by_sample(self) -> bool:
        """Whether parameters have a leading axis for the samples of a process, whose moments are [S n, P]."""
        return False

    @property
    def floats_per_row(self) -> int:
        """The number of floats that an evaluation keeps in memory for each row and latent function."""
        return 8

    @abstractmethod
    def expected_log_density(self, mu: Array, var: Array, y: Array, /, draws: Drawn = None) -> tuple[Array, Pullback]:
        """Compute E[log p(y_n | f_n)] under f_np ~ N(mu_np, var_np), and its pullback.

        Parameters
        ----------
        mu, var
            Means and variances of the latent functions [N, P].
        y
            Targets [N, K].
        draws
            The result of `draws` for these rows, with the library, dtype and device of `mu`. By default Monte Carlo
            estimates use fixed noise.

        Returns
        -------
        value
            The expectations [N], summed over the outputs.
        pullback
            ``bar [N] -> (likelihood_bar, mu_bar [N, P], var_bar [N, P])``.
        """

    def site_gradients(self, mu: Array, var: Array, y: Array, /, draws: Drawn = None) -> tuple[Array, Array]:
        """Return alpha and beta [N, P], the coefficients of a Gaussian site that approximates each row.

        The logarithm of the site is alpha f - beta (f - mu)^2 / 2. alpha = E[d/df log p(y_n | f)] is the derivative of
        the expected log density with respect to the mean. beta = -E[d^2/df^2 log p(y_n | f)] is -2 times the derivative
        with respect to the variance. For log-concave likelihoods, beta is not negative. The arguments are those of
        `expected_log_density`.

        Raises
        ------
        TypeError
            If the pullback of the likelihood does not return these derivatives.
        """
        ell, pullback = self.expected_log_density(mu, var, y, draws)
        _, alpha, var_bar = pullback(backend_of(ell).xp.ones_like(ell))
        if alpha is None or var_bar is None:
            name = type(self).__name__
            raise TypeError(
                f"{name} returns no derivative of its expected log density with respect to the "
                f"{'mean' if alpha is None else 'variance'}, but this derivative is needed for natural gradients "
                "and sites; return it from the pullback, or define site_gradients."
            )
        return alpha, -2.0 * var_bar

    def shared_site_gradients(self, mu: Array, var: Array, y: Array, /, draws: Drawn = None) -> tuple[Array, Array]:
        """Return alpha [N, P], and one precision beta [N, 1] for all latent functions of a row.

        Let W_n [P, P] be the expectation of minus the second derivatives of log p(y_n | f). The precision is the
        average eigenvalue of W_n, weighted by the eigenvalues themselves, tr(W_n^2) / tr(W_n). Directions in which the
        density is flat therefore do not count. For one latent function, this is `site_gradients`. The arguments are
        those of `expected_log_density`.
        """
        alpha, beta = self.site_gradients(mu, var, y, draws)
        xp = backend_of(beta).xp
        beta = xp.maximum(beta, xp.zeros_like(beta))
        return alpha, shared_precision(xp.sum(beta, axis=1), xp.sum(beta * beta, axis=1))

    takes_noise: ClassVar[bool] = False
    """Whether rows may have known noise variances; see `with_noise`."""

    def with_noise(self, noise: Array, /) -> tuple["Likelihood", Pullback]:
        """Return the likelihood of rows with known noise variances [N, 1] or [N, P], which add to the trained variance.

        The pullback maps a cotangent of that likelihood to one of this likelihood.

        Raises
        ------
        TypeError
            If the likelihood has no Gaussian noise.
        """
        self.check_takes_noise()
        raise TypeError(f"{type(self).__name__} does not define with_noise.")

    def raise_noise(self, noise: Array, /) -> Array:
        """Return known noise variances, above zero if there is no other noise and the variance of the targets is known.

        They are those of training rows. Predictions use the variances as they are.
        """
        return noise

    def check_noise(self, noise: Array | None, /) -> None:
        """Raise ValueError if the trained and the known noise variance of a row are both zero."""

    def check_offset(self, offset: Array | None, /) -> None:
        """Raise ValueError if one offset for all latent functions, [..., N, 1], does not make sense."""

    def check_takes_noise(self) -> None:
        """Raise TypeError unless rows may have known noise variances."""
        if not self.takes_noise:
            raise TypeError(
                f"noise is given, but the likelihood is {type(self).__name__}; omit noise=, or use Gaussian."
            )

    def variance_cost(self) -> Array | None:
        """Return the decrease in expected log density per unit of latent variance, 0-d or [P].

        Return None if the decrease differs between rows.
        """
        return None

    def draws(self, rng: Any, rows: int, latents: int, /) -> dict[str, Any]:
        """Draw the noise for a Monte Carlo estimate with S samples; return a dictionary of arrays [S, rows, ...].

        The dictionary is empty for likelihoods without such estimates. `rng` is a NumPy generator or an
        `agp.random.Noise`.
        """
        return {}

    @abstractmethod
    def predict(self, mu: Array, var: Array, /) -> Prediction:
        """Return the means and variances of observations [N, P], for latent means and variances [N, P]."""

    @abstractmethod
    def predictive_log_density(self, mu: Array, var: Array, y: Array, /) -> Array:
        """Compute the log of the integral of p(y_n | f) N(f; mu_n, var_n) df [N], for targets y [N, K]."""

    @public(repairs=False, context=False, ignore="underflow")
    def predictive_quantiles(
        self, mu: Array, var: Array, levels: tuple[float, ...], /, *, samples: int = 1, shares: Array | None = None
    ) -> Array:
        """Compute quantiles [Q, N, K] of observations for Q levels.

        The quantile at a level is the smallest y with P(y_nk <= y) >= level. P is the predictive distribution, whose
        density is the integral of p(y_n | f) N(f; mu_n, var_n) df. Intervals between two quantiles therefore include
        both the noise and the uncertainty about f. If the observations are whole numbers, so are their quantiles.
        Intervals between such quantiles have at least the stated probability. Quantiles without a closed form are
        computed with NumPy on the host.

        Parameters
        ----------
        mu, var
            Means and variances of the latent functions [N, P]. For S samples, the shape is [S N, P], with one block of
            N rows per sample.
        levels
            Q probabilities between 0 and 1, both excluded.
        samples
            The number of samples S. The predictive distribution of a row is the mixture over its S samples.
        shares
            The weights [S] of the samples, which sum to 1. None means that they are equal.

        Raises
        ------
        ValueError
            If a level is not between 0 and 1, or the number of rows is not a multiple of `samples`.
        TypeError
            If the observations have no order, the likelihood has no distribution function, or the arrays are traced and
            the quantiles have no closed form.
        """
        levels = check_levels(levels)
        return self._quantiles(*_by_sample(mu, var, samples), levels, shares)

    def _quantiles(self, mu: Array, var: Array, levels: tuple[float, ...], shares: Array | None) -> Array:
        """Compute quantiles [Q, N, K] for latent moments [S, N, P], by default from `mixture` on the host."""
        found = mixture_quantiles(*self._on_host("quantiles", mu, var, shares), levels)
        return in_range("predicted quantiles", found, mu, self.support, whole_numbers=self.whole_numbers)

    @public(repairs=False, context=False, ignore="underflow")
    def predictive_cdf(
        self, mu: Array, var: Array, y: Array, /, *, samples: int = 1, shares: Array | None = None
    ) -> Array:
        """Compute P(Y_nk <= y_nk) [N, K], the distribution function of predicted observations Y at given values y.

        Parameters
        ----------
        mu, var, samples, shares
            As for `predictive_quantiles`.
        y
            Any numbers [N, K]; the result for NaN is NaN.

        Raises
        ------
        ValueError, TypeError
            As for `predictive_quantiles`.
        """
        return self._cdf(*_by_sample(mu, var, samples), y, shares)

    @public(repairs=False, context=False, ignore="underflow")
    def predictive_crps(
        self, mu: Array, var: Array, y: Array, /, *, samples: int = 1, shares: Array | None = None
    ) -> Array:
        """Compute the continuous ranked probability score (CRPS) of each target [N, K]; lower is better.

        The score is the integral of (P(Y <= x) - [y <= x])^2 over x, in the unit of the targets. The integral has a
        closed form for Gaussian noise and categories. For other likelihoods the score is computed on the host, with a
        relative accuracy of about 1e-4. If a sample is much narrower than other samples and lies within their spread,
        the relative accuracy may be only 5e-3. Arguments and errors are those of `predictive_cdf`.

        Source: Gneiting & Raftery, "Strictly proper scoring rules, prediction, and estimation", JASA 2007.
        """
        return self._crps(*_by_sample(mu, var, samples), y, shares)

    def _cdf(self, mu: Array, var: Array, y: Array, shares: Array | None) -> Array:
        """Compute P(Y <= y) [N, K] for latent moments [S, N, P], by default from `mixture` on the host."""
        found = mixture_cdf(*self._on_host("distribution functions", mu, var, shares), as_widest_float(to_numpy(y)))
        return asarray_like(found, mu)

    def _crps(self, mu: Array, var: Array, y: Array, shares: Array | None) -> Array:
        """Compute the CRPS [N, K] for latent moments [S, N, P], by default from `mixture` on the host."""
        scores = mixture_crps(*self._on_host("scores", mu, var, shares), as_widest_float(to_numpy(y)))
        return in_range("scores", scores, mu, (-math.inf, math.inf))

    def _on_host(self, what: str, mu: Array, var: Array, shares: Array | None) -> tuple[Any, Any, Any]:
        """Return `mixture`, mu and var with all arrays on the host. Raise TypeError for traced arrays."""
        if not backend_of(mu).is_concrete(mu):
            name = type(self).__name__
            raise TypeError(
                f"{what} of {name} are computed on the host, not in traced functions; do not trace this method."
            )
        mu, var = as_widest_float(to_numpy(mu)), as_widest_float(to_numpy(var))
        mixture = self._host_copy(mu).mixture
        if shares is None:
            return mixture, mu, var
        return partial(mixture, shares=as_widest_float(to_numpy(shares))), mu, var

    def observation_model(self) -> ObservationModel:
        """Return, on the host, the tails of p(y | f), from which quantiles are computed.

        Raise TypeError if the likelihood does not define tails.
        """
        raise TypeError(
            f"{type(self).__name__} has no distribution function for quantiles; define `observation_model`."
        )

    def mixture(self, mu: Any, var: Any, /, shares: Any = None) -> Mixture:
        """Return the tails of predicted observations on the host, for latent means and variances [S, N, P].

        These are the tails from `observation_model`, averaged over f and over S samples with the weights `shares` [S].
        None means that the weights are equal.
        """
        return marginal_mixture(self.observation_model(), mu, var, shares)

    def sample(self, f: Array, rng: Any, /) -> Array:
        """Draw observations [..., K] given latent functions f [..., P], on the host with a NumPy generator.

        Raises
        ------
        TypeError
            If the likelihood does not define `_sample`.
        """
        on_host = as_widest_float(to_numpy(f))
        values = self._host_copy(on_host)._sample(on_host, rng)
        return in_range("draws", values, f, self.support, whole_numbers=self.whole_numbers)

    def _sample(self, f: Any, rng: Any) -> Any:
        """Draw observations as `sample` does, as NumPy arrays of float64."""
        raise TypeError(f"{type(self).__name__} cannot draw observations; define `_sample`.")

    def _host_copy(self, reference: Any) -> Self:
        """Return a copy with all leaves as float64 NumPy arrays; `reference` is passed to `tree.place_leaves`."""
        leaves = tree.leaves(tree.place_leaves(self, reference)).items()
        return tree.with_leaves(self, {name: as_widest_float(to_numpy(x)) for name, x in leaves})

    def observations(self, y: Array, /) -> Array | None:
        """Convert targets y [N, K] to noisy values of the latent functions [N, P], or return None.

        The result is None if the targets do not determine such values. The prior starts with the mean and the variance
        of these values, or with mean 0 and variance 1 if there are none.
        """
        return None

    def level(self, y: Array, /) -> Array | None:
        """Estimate the average [P] of the latent functions from targets y [N, K]; None if there is no estimate.

        The default mean function is a constant that starts at this estimate, unless `observations` returns values.
        """
        return None

    def proxies(self, y: Array, /) -> Array:
        """Return numbers [N, Q] that increase with the latent functions, for least-squares fits of starting values.

        By default, the numbers are those of `observations`. If `observations` returns None, the numbers are the targets
        y [N, K].
        """
        values = self.observations(y)
        return y if values is None else values

    def log_density_alone(self, y: Array, /, weights: Array | None = None) -> float | None:
        """Compute the maximum log density per row of targets y [N, K] under a model without inputs.

        The density is maximised over the parameters and one constant f per output. The rows are weighted by `weights`
        [N]. If the maximum has no closed form, the result is None, and callers fit the constants at the current
        parameters.
        """
        return None

    def from_data(self, variance: float, /) -> Self:
        """Return the likelihood with starting values for leaves that are None, given the prior variance of f."""
        return self

    def from_outputs(self, variances: Array, /) -> Self:
        """Return the likelihood with starting values, given the prior variances [P] of P latent functions.

        By default this method calls `from_data` with the average of the variances.
        """
        return self.from_data(float(backend_of(variances).xp.mean(variances)))

    def check_parameters(self) -> None:
        """Raise ValueError if a parameter is invalid."""

    def check_targets(self, y: Array, /) -> None:
        """Raise ValueError if a target in y [N, K] is outside the support; by default any finite number is valid."""

    def in_support(self, y: Array, /) -> Array:
        """Return a Boolean array [N, K], true for valid targets: those inside `support`, and NaN if `missing`.

        Traced bounds, where `check_targets` cannot raise an error, are NaN if a target is not valid.
        """
        xp, (low, high) = backend_of(y).xp, self.support
        valid = (y >= 0.0) & (y == xp.floor(y)) & xp.isfinite(y) if self.whole_numbers else (y > low) & (y < high)
        return valid | xp.isnan(y) if self.missing else valid


def forward(path: str) -> Any:
    """Return a property that forwards to an attribute or method of a part of the likelihood, such as "likelihood.x"."""
    return property(attrgetter(path))


def check_number(name: str, value: Array) -> None:
    """Raise ValueError unless a parameter is 0-d."""
    if value.ndim != 0:
        raise ValueError(f"{name} has shape {tuple(value.shape)}, but must be one number.")


def check_by_output(name: str, value: Any, outputs: int | None = None, /) -> None:
    """Raise ValueError unless a parameter is None, one number, or one per output; `outputs=None` allows any.

    In predictions from S settings of the hyperparameters, a parameter may have the shape [S, 1, 1].
    """
    if value is None or isinstance(value, numbers.Real):
        return
    shape = (len(value),) if isinstance(value, (list, tuple)) else tuple(value.shape)
    if len(shape) == 3:
        return
    if len(shape) > 1:
        raise ValueError(f"{name} has shape {shape}, but must be one number or one per output.")
    if shape and outputs not in (None, shape[0]):
        raise ValueError(
            f"{name} has {count_of(shape[0], 'entry')}, but {there_are(outputs, 'output')}; give one number, or one "
            "per output."
        )


def _by_sample(mu: Array, var: Array, samples: int) -> tuple[Array, Array]:
    """Reshape latent means and variances from [S N, P] to [S, N, P]."""
    S = check_whole("samples", samples)
    if mu.shape[0] % S:
        raise ValueError(
            f"mu has {count_of(mu.shape[0], 'row')}, which is not a multiple of samples={S}; give S rows for each "
            "test input."
        )
    xp, shape = backend_of(mu).xp, (S, mu.shape[0] // S, mu.shape[1])
    return xp.reshape(mu, shape), xp.reshape(var, shape)


# -- samples of a process, such as settings of the hyperparameters --------------------------------------------------


def average_samples(x: Array, shares: Array | None, /) -> Array:
    """Average an array [S, ...] over the samples, with the weights `shares` [S]; None means 1 / S."""
    xp = backend_of(x).xp
    return xp.mean(x, axis=0) if shares is None else xp.tensordot(shares, x, axes=1)
