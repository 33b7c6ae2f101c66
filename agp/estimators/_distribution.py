"""Predictive distributions: quantiles, intervals, densities and samples."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from agp.backend import Array, asarray_like, backend_of, like, to_numpy
from agp.bounds import with_row_noise
from agp.checks import check_level, check_levels, check_whole
from agp.errors import explain_call
from agp.estimators._arrays import as_output, resolve_seed
from agp.estimators._base import GPEstimator
from agp.estimators._error_column import NOISE
from agp.estimators._observations import noise_variances, row_numbers
from agp.likelihoods import Gaussian, LatentNoiseGaussian
from agp.predictors import Predictor
from agp.random import generator
from agp.repairs import public


class Distribution(GPEstimator):
    """Base class of estimators with methods for the predictive distribution of observations."""

    @public(repairs=False, ignore=None)
    def predict_quantiles(
        self,
        X: Any,
        quantiles: Sequence[float] = (0.05, 0.5, 0.95),
        exposure: Any = None,
        noise: Any = None,
        *,
        observed: bool = True,
    ) -> Any:
        """Return quantiles of new observations [N, Q], or [N, K, Q] for several targets.

        Quantiles account for both the noise and the uncertainty of the function. Quantiles of counts are whole numbers.

        Parameters
        ----------
        X
            Rows [N, D].
        quantiles
            Q probabilities between 0 and 1.
        exposure
            The factors [N] that multiply the rates of the rows; None means 1.
        noise
            Known noise variances [N] of the observations, in squared units of the targets, which are added to the
            trained noise variance of a Gaussian likelihood. None means 0.
        observed
            If false, return the quantiles of the function without noise, as `GPRegressor.predict` defines it.
        """
        at = self._predictor_at(X, exposure, noise, observed=observed)
        found, host = at.predictor.quantile(at.X, check_levels(quantiles, "quantiles"), **at.known), at.host
        return self._reshape_targets(backend_of(found).xp.permute_dims(found, (1, 2, 0)), host=host)

    @explain_call
    def predict_interval(
        self, X: Any, level: float = 0.9, exposure: Any = None, noise: Any = None, *, observed: bool = True
    ) -> Any:
        """Return the ends of intervals that contain an observation with probability `level`, as an array [N, 2].

        The array is [N, K, 2] for several targets. An observation is as likely to lie below the interval as above it.
        For counts, the probability of the interval is at least `level`. The other arguments are those of
        `predict_quantiles`.
        """
        level = check_level(level)
        ends = 0.5 * (1.0 - level), 0.5 * (1.0 + level)
        return self.predict_quantiles(X, ends, exposure, noise, observed=observed)

    @public(repairs=False, ignore=None)
    def log_density(self, X: Any, y: Any, exposure: Any = None, noise: Any = None) -> Any:
        """Return the log predictive density of each row of y [N].

        For counts and classes, this is the log probability.

        Parameters
        ----------
        X, y
            Rows [N, D], and targets or labels as in `fit`. For several targets [N, K], the result is summed over the
            targets.
        exposure, noise
            As in `predict_quantiles`.
        """
        at = self._predictor_at(X, exposure, noise)
        density = at.predictor.log_density(at.X, self._prepare_targets(y, at.X), **at.known)
        return as_output(density, host=at.host)

    @public(repairs=False, ignore=None)
    def sample(self, X: Any, count: int = 1, random_state: Any = 0, exposure: Any = None, noise: Any = None) -> Any:
        """Draw observations [N, count] jointly for all rows of X.

        For several targets, the shape is [N, K, count]. Each draw uses one sample of the function for all rows, so sums
        over rows have the correct distribution. `sample_y` draws functions without noise. The method takes O(N^3)
        operations, except for deep models, whose functions are drawn with random features.

        Parameters
        ----------
        X, exposure, noise
            As in `predict_quantiles`.
        count
            The number of draws.
        random_state
            A seed, a `numpy.random.RandomState`, or None.
        """
        at = self._predictor_at(X, exposure, noise)
        count, seed = check_whole("count", count), resolve_seed(random_state)
        if "layers" in self._record.takes:
            functions = at.predictor.sample_functions(count, seed=seed)(at.X)
        else:
            functions = at.predictor.sample(at.X, count, seed=seed)
        offset, noise = at.known["offset"], at.predictor.noise_at(at.X, at.known["noise"])
        likelihood = with_row_noise(at.predictor.likelihood_of_draws(count, seed=seed), noise)
        functions = functions if offset is None else functions + offset[:, None]
        observations = likelihood.sample(functions, generator(seed, 14))
        stacked = backend_of(observations).xp.permute_dims(observations, (1, 2, 0))
        return self._reshape_targets(stacked, host=at.host)

    @abstractmethod
    def _prepare_targets(self, y: Any, A: Array) -> Array:
        """Convert y to targets [N, K] of the likelihood, for rows with the model inputs A [N, D]."""

    @abstractmethod
    def _reshape_targets(self, x: Array, *, host: bool) -> Any:
        """Remove the axis K of a result [N, K, ...] if the training targets were [N]."""

    @abstractmethod
    def _check_takes_exposure(self) -> None:
        """Raise ValueError unless the likelihood supports exposures."""

    @abstractmethod
    def _check_takes_noise(self) -> None:
        """Raise ValueError unless the likelihood supports known noise variances."""

    @abstractmethod
    def _without_noise(self, predictor: Predictor) -> Predictor:
        """Return the predictor whose observations are the function without noise. Raise ValueError for labels."""

    def _predictor_at(self, X: Any, exposure: Any = None, noise: Any = None, *, observed: bool = True) -> "At":
        """Return a predictor of observations with the inputs, offsets and noise variances of the rows X.

        If `observed` is false, its observations are the function without noise.
        """
        self._check_fitted()
        if observed not in (True, False):
            raise TypeError(f"observed is {observed!r}, but must be True or False.")
        X, noise, names = self._split_rows(X, noise)
        if not observed:
            if noise is not None and names is NOISE:
                raise ValueError(
                    "noise is given, but observed is False, for the function without noise; leave one of them out."
                )
            noise = None
        A, host = self._prepare_inputs(X)
        predictor, xp = self.predictor_, backend_of(A).xp
        offset = None
        if exposure is not None:
            self._check_takes_exposure()
            exposures: Any = row_numbers("exposure", exposure, A, positive=True)
            offset = xp.log(exposures)
        if noise is not None:
            self._check_takes_noise()
            noise = noise_variances(noise, A, predictor.outputs, names=names)
        known = {"offset": offset, "noise": noise}
        if host and "columns_" in vars(self) and bool(xp.any(xp.isnan(A))):
            predictor = self._with_imputations(predictor)
        return At(predictor if observed else self._without_noise(predictor), A, known, host)

    def _known_noise(self, X: Any, noise: Any) -> Array | None:
        """Return the noise variances of the rows X: those of the column `error_column`, or `noise`."""
        return self._predictor_at(X, None, noise).known["noise"]


class At(NamedTuple):
    """A predictor, with what it needs for rows of a table."""

    predictor: Predictor
    X: Array
    """The inputs [N, D]."""
    known: dict[str, Any]
    """The arguments "offset" and "noise" of the predictor's methods."""
    host: bool
    """Whether to convert results to NumPy arrays."""


def joint_covariance(predictor: Predictor, A: Array, mean: Array, variance: Array) -> Array:
    """Return the covariances [K, N, N] of observations with these means and variances [N, K]."""
    likelihood, K = predictor.likelihood, mean.shape[1]  # functions after the first K model the noise
    if not isinstance(likelihood, Gaussian | LatentNoiseGaussian):
        name = type(likelihood).__name__
        raise TypeError(f"joint covariances need Gaussian noise, but the likelihood is {name}; draw samples instead.")
    covariance = predictor.predict_covariance(A)[:K, :, :]
    B = backend_of(covariance)
    latent: Any = predictor.predict(A).variance
    noise = variance - latent[:, :K]
    if backend_of(noise) is not B:  # the arrays are in different libraries
        noise = asarray_like(to_numpy(noise), covariance)
    return covariance + noise.mT[:, :, None] * B.xp.eye(covariance.shape[-1], **like(covariance))
