"""Quantiles, distribution functions and scores of predicted observations."""

from collections.abc import Callable, Sequence
from typing import Any

from agp.backend import Array, asarray_like, backend_of, find_backend, like
from agp.bounds import Batch, with_row_noise
from agp.checks import check_level, check_levels, check_whole
from agp.predictors._by_rows import ByRows, moved_by
from agp.predictors._mixture import average, log_average
from agp.random import generator
from agp.repairs import public


class Scores(ByRows):
    """Base class of predictors, with the distribution of observations at each row."""

    @public
    def quantile(
        self,
        X: Array,
        q: float | Sequence[float],
        /,
        *,
        offset: Array | None = None,
        noise: Array | None = None,
        memory: float | None = None,
    ) -> Array:
        """Compute quantiles of the observations at X [..., N, D].

        The quantile is the smallest y with P(Y <= y) >= q for an observation Y. The distribution of Y includes the
        noise and the uncertainty of f. Quantiles of counts are whole numbers.

        Parameters
        ----------
        X, offset, noise, memory
            See `predict`.
        q
            A probability or a sequence of Q probabilities. For one probability, the result is [..., N, K]. For a
            sequence, the result is [Q, ..., N, K].

        Raises
        ------
        TypeError, ValueError
            For the reasons listed in `predict`, or if q is not between 0 and 1, or if the observations are classes,
            which have no order.
        """
        given: Any = q
        several = given.ndim > 0 if find_backend(q) else isinstance(q, Sequence) and not isinstance(q, str)
        levels = check_levels(q, "q") if several else (check_level(q, "q"),)

        def found(
            moments: tuple[Array, Array], shares: Array | None, X: Array, offset: Array | None, noise: Array | None
        ) -> tuple[Array, ...]:
            rows, likelihood = X.shape[0], with_row_noise(self.likelihood, noise)
            mean = moved_by(moments[0], offset, rows)
            of = {"samples": mean.shape[0] // rows, "shares": shares}
            quantiles = likelihood.predictive_quantiles(mean, moments[1], levels, **of)
            return tuple(quantiles[i, ...] for i in range(len(levels)))

        names = ("quantiles",) * len(levels)
        each = self._in_chunks(found, X, memory, names, *self._by_row_terms(X, offset, noise))
        return backend_of(each[0]).xp.stack(list(each)) if several else each[0]

    def interval(
        self,
        X: Array,
        level: float = 0.9,
        /,
        *,
        offset: Array | None = None,
        noise: Array | None = None,
        memory: float | None = None,
    ) -> tuple[Array, Array]:
        """Compute the ends of central intervals that contain an observation with probability `level`.

        Returns the lower and the upper ends, both [..., N, K]. For counts, the probability is at least `level`. See
        `quantile` for the other arguments and the errors.
        """
        level = check_level(level)
        q = (0.5 * (1.0 - level), 0.5 * (1.0 + level))
        ends = self.quantile(X, q, offset=offset, noise=noise, memory=memory)
        return ends[0, ...], ends[1, ...]

    @public
    def log_density(
        self,
        X: Array,
        y: Array,
        /,
        *,
        offset: Array | None = None,
        noise: Array | None = None,
        memory: float | None = None,
    ) -> Array:
        """Compute the log predictive density log p(y_n | x_n, data) [N] of each row of y [N] or [N, K] at X [N, D].

        For a deep process, this is the log density of the mixture of its samples. If X has leading axes, y must have
        the same leading axes. See `predict` for the other arguments.

        Raises
        ------
        TypeError, ValueError
            For the reasons listed in `predict`, or if a target is outside the support of the likelihood.
        """
        return self._log_density(X, y, log_average, offset, noise, memory)

    @public
    def mean_log_density(
        self,
        X: Array,
        y: Array,
        /,
        *,
        offset: Array | None = None,
        noise: Array | None = None,
        memory: float | None = None,
    ) -> Array:
        """Average the log density [N] of each row over the samples of a deep process.

        The result is at most `log_density`, which is the logarithm of the average density. The two are equal for models
        that are not deep. Papers on deep models report one or the other. See `log_density` for the arguments and
        errors.
        """
        return self._log_density(X, y, average, offset, noise, memory)

    def _log_density(self, X: Array, y: Array, over_samples: Callable[..., Array], *others: Any) -> Array:
        def density(mu: Array, var: Array, batch: Batch, shares: Array | None) -> Array:
            rows = batch.y.shape[0]
            samples = mu.shape[0] // rows
            likelihood = with_row_noise(self.likelihood, batch.noise, samples)
            densities = likelihood.predictive_log_density(mu, var, batch.tile(samples).y)
            return over_samples(densities, rows, shares)

        return self._score("log density", density, X, self._targets(X, y), *others)

    @public
    def log_probabilities(self, X: Array, classes: int, /, *, memory: float | None = None) -> Array:
        """Compute the log probabilities [..., N, C] of the labels 0 to C - 1 at X [..., N, D], in one pass over X.

        They are accurate for small probabilities, also if these are below the smallest number of the dtype.

        Parameters
        ----------
        X, memory
            See `predict`.
        classes
            The number of classes C of the likelihood.

        Raises
        ------
        TypeError, ValueError
            For the reasons listed in `predict`.
        """

        def found(moments: tuple[Array, Array], shares: Array | None, X: Array) -> tuple[Array]:
            (mean, variance), rows, xp = moments, X.shape[0], backend_of(X).xp
            columns = []
            for label in range(check_whole("classes", classes)):
                y = xp.full((mean.shape[0], 1), float(label), **like(mean))
                columns.append(log_average(self.likelihood.predictive_log_density(mean, variance, y), rows, shares))
            return (xp.stack(columns, axis=1),)

        return self._in_chunks(found, X, memory, ("log probability",), averaged="logs")[0]

    @public
    def cdf(
        self,
        X: Array,
        y: Array,
        /,
        *,
        offset: Array | None = None,
        noise: Array | None = None,
        memory: float | None = None,
    ) -> Array:
        """Compute the probability P(Y <= y) [..., N, K] of observations Y at X [..., N, D].

        Parameters
        ----------
        X, offset, noise, memory
            See `predict`.
        y
            Thresholds [..., N, K], or [N] for one column. Thresholds may be outside the support of the likelihood. The
            probability for a threshold of NaN is NaN.

        Raises
        ------
        TypeError, ValueError
            For the reasons listed in `quantile`, or if the shape of y does not fit X.
        """
        return self._cdf(X, self._thresholds(X, y), offset, noise, memory)

    @public
    def pit(
        self,
        X: Array,
        y: Array,
        /,
        *,
        offset: Array | None = None,
        noise: Array | None = None,
        seed: int = 0,
        memory: float | None = None,
    ) -> Array:
        """Compute the probability integral transforms F(y) [..., N, K] of targets y.

        The transforms are uniform on (0, 1) if the predictions are calibrated. For counts, each transform is a random
        number, uniform between P(Y < y) and P(Y <= y).

        Parameters
        ----------
        X, offset, noise, memory
            See `predict`.
        y
            Targets, as in `log_density`. A target of NaN counts as missing, and its transform is NaN.
        seed
            Seed for the random numbers, which are drawn on the host.

        Raises
        ------
        TypeError, ValueError
            For the reasons listed in `quantile`, or if a target is outside the support of the likelihood.

        Source: Czado, Gneiting & Held, "Predictive model assessment for count data", Biometrics 2009.
        """
        y = self._check_targets(X, y)
        F = self._cdf(X, y, offset, noise, memory)
        if not self.likelihood.whole_numbers:
            return F
        below = self._cdf(X, y - 1.0, offset, noise, memory)
        share = generator(check_whole("seed", seed, least=0), 17).uniform(size=tuple(F.shape))
        return below + asarray_like(share, F) * (F - below)

    @public
    def crps(
        self,
        X: Array,
        y: Array,
        /,
        *,
        offset: Array | None = None,
        noise: Array | None = None,
        memory: float | None = None,
    ) -> Array:
        """Compute the continuous ranked probability score [..., N, K] of each target, in units of y; lower is better.

        The score is the integral of (P(Y <= x) - H(x - y))^2 over x, where H is the unit step function. The score
        generalises the absolute error. Gaussian noise has a closed form. For other likelihoods, the relative error is
        about 1e-4. See `pit` for the arguments and errors.

        Source: Gneiting & Raftery, "Strictly proper scoring rules, prediction, and estimation", JASA 2007.
        """

        def score(mu: Array, var: Array, batch: Batch, shares: Array | None) -> Array:
            of = {"samples": mu.shape[0] // batch.y.shape[0], "shares": shares}
            return with_row_noise(self.likelihood, batch.noise).predictive_crps(mu, var, batch.y, **of)

        return self._score(None, score, X, self._check_targets(X, y), offset, noise, memory)

    def _cdf(self, X: Array, y: Array, *others: Any) -> Array:
        def below(mu: Array, var: Array, batch: Batch, shares: Array | None) -> Array:
            of = {"samples": mu.shape[0] // batch.y.shape[0], "shares": shares}
            return with_row_noise(self.likelihood, batch.noise).predictive_cdf(mu, var, batch.y, **of)

        return self._score(None, below, X, y, *others)

    def _score(
        self,
        what: str | None,
        score: Callable[[Array, Array, Batch, Array | None], Array],
        X: Array,
        y: Array,
        offset: Array | None,
        noise: Array | None,
        memory: float | None,
    ) -> Array:
        """Compute scores in chunks of rows, from marginals [S n, P], the rows and the weights [S].

        `what` is the name of the score. If it is given, NonFiniteError is raised for scores that are not finite.
        """

        def scored(
            moments: tuple[Array, Array],
            shares: Array | None,
            X: Array,
            y: Array,
            offset: Array | None,
            noise: Array | None,
        ) -> tuple[Array]:
            mean = moved_by(moments[0], offset, X.shape[0])
            return (score(mean, moments[1], Batch(X, y, noise=noise), shares),)

        names = () if what is None else (what,)
        return self._in_chunks(scored, X, memory, names, y, *self._by_row_terms(X, offset, noise))[0]
