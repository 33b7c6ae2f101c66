"""Predictions from a precomputed posterior."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from agp import tree
from agp._context import public
from agp.backend import Array, asarray_like, backend_of, check_array_type
from agp.bounds import tile_samples
from agp.checks import check_finite, check_levels, check_results, check_targets, check_whole
from agp.chunking import row_ranges, rows_within, tile_rows
from agp.likelihoods import Likelihood, Prediction
from agp.linalg import covariance_with, nonnegative
from agp.markup import html_with_fallback
from agp.predictors._conditional import Conditional, check_outputs, check_test_inputs
from agp.predictors._functions import FunctionSamples
from agp.predictors._further import with_known_noise
from agp.predictors._mixture import average, combine, cross_covariances, log_average, mixture, slopes
from agp.random import generator
from agp.speculation import speculate
from agp.summaries import summary_html
from agp.tree import first_leaf

FREQUENCIES = 1024
"""The default number of random frequencies per stationary kernel in `Predictor.sample_functions`."""


@tree.model
class Predictor:
    """A posterior ready for prediction: it stores all quantities that do not depend on the test inputs.

    `Model.predictor` builds a predictor. Like a model, a predictor is an immutable tree of arrays, which you can
    pickle, save, and move with `agp.to_backend`. Test inputs have shape [..., N, D], and each leading index gives
    separate predictions. With torch and JAX, means and variances are differentiable with respect to X in closed form.

    Parameters
    ----------
    conditionals
        One posterior, or one posterior for each set of further data (see `condition_on`).
    likelihood
        The likelihood p(y | f).
    lead
        The sizes of the axes that index the sets of further data. These axes come first in all predictions. The
        default, (), means a single posterior.
    """

    conditionals: tuple[Conditional, ...]
    likelihood: Likelihood
    lead: tuple[int, ...] = ()

    _built_by = "model.predictor() builds one"

    def _repr_html_(self) -> str:
        return html_with_fallback(lambda: summary_html(self), self)

    @property
    def outputs(self) -> int:
        """The number of latent functions P."""
        return self.conditionals[0].outputs

    @property
    def width(self) -> int:
        """The number of columns D of the inputs."""
        return self.conditionals[0].width

    @property
    def floats_per_row(self) -> int:
        """The number of floats in memory per predicted row, for memory budgets."""
        return self.conditionals[0].floats_per_row + self.likelihood.floats_per_row * self.outputs

    # -- marginals --------------------------------------------------------------------------------------------------

    @public
    def predict(self, X: Array, /, *, observed: bool = False, memory: float | None = None) -> Prediction:
        """Predict means and variances [..., N, P] of the latent functions or the observations at X [..., N, D].

        Parameters
        ----------
        X
            Test inputs with the same array library, dtype, device and number of columns as the training inputs. X may
            be memory-mapped.
        observed
            Whether to predict observations y, which include noise, instead of latent functions f.
        memory
            Memory budget for working arrays, in MiB. Rows are processed in chunks that fit within this budget. None
            means 256 MiB on the host and, on a device, an eighth of its memory, rounded down to a power of two.

        Raises
        ------
        TypeError, ValueError
            If X and the training inputs differ in library, dtype, device or number of columns, or X has NaN or infinite
            entries.
        agp.errors.NonFiniteError
            If a prediction is NaN or infinite, for example because of overflow. Student-t noise may have infinite
            variance, which does not raise an error.
        """
        unbounded = observed and self.likelihood.infinite_variance

        def predicted(conditional: Conditional, X: Array) -> tuple[Array, Array]:
            if observed and conditional.observes:
                return conditional.observed_moments(X, self.likelihood.predict)
            moments = _moments_at(conditional, X)
            if unbounded:
                _refuse_nonfinite(variance=moments[1])
            return mixture(self.likelihood.predict(*moments) if observed else moments, X.shape[0])

        return Prediction(*self._in_chunks(predicted, X, memory, ("mean",) if unbounded else ("mean", "variance")))

    @public
    def predict_mean(self, X: Array, /, *, memory: float | None = None) -> Array:
        """Predict only the means [..., N, P] of the latent functions, without computing their variances.

        See `predict` for the arguments and errors.
        """
        return self._in_chunks(lambda here, x: (average(here.mean(x), x.shape[0]),), X, memory, ("mean",))[0]

    @public
    def gradient(self, X: Array, /, *, memory: float | None = None) -> Prediction:
        """Compute the derivatives [..., N, P, D] of the latent means and variances with respect to X [..., N, D].

        Closed forms are used with every array library. See `predict` for the arguments and errors.
        """

        def derived(conditional: Conditional, X: Array) -> tuple[Array, Array]:
            return slopes(*conditional.moments(X), X)

        return Prediction(*self._in_chunks(derived, X, memory, ("slope of the mean", "slope of the variance")))

    @public
    def quantile(self, X: Array, q: float | Sequence[float], /, *, memory: float | None = None) -> Array:
        """Compute quantiles of the observations at X [..., N, D].

        The quantile is the smallest y with P(Y <= y) >= q for an observation Y. The distribution of Y includes the
        noise and the uncertainty of f. Quantiles of counts are whole numbers.

        Parameters
        ----------
        X, memory
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
        levels = check_levels(tuple(q) if isinstance(q, Sequence) else (q,))

        def found(conditional: Conditional, X: Array) -> tuple[Array, ...]:
            parts = []
            for chunk, here in self._chunks(conditional, X, memory):
                mu, var = _moments_at(here, chunk)
                samples = mu.shape[0] // chunk.shape[0]
                parts.append(self.likelihood.predictive_quantiles(mu, var, levels, samples=samples))
            quantiles = backend_of(X).xp.concat(parts, axis=1)
            _refuse_nonfinite(quantiles=quantiles)
            return tuple(quantiles[i, ...] for i in range(len(levels)))

        each = self._by_row(found, X)
        return backend_of(each[0]).xp.stack(list(each)) if isinstance(q, Sequence) else each[0]

    def interval(self, X: Array, level: float = 0.9, /, *, memory: float | None = None) -> tuple[Array, Array]:
        """Compute the ends of central intervals that contain an observation with probability `level`.

        Returns the lower and the upper ends, both [..., N, K]. For counts, the probability is at least `level`. See
        `quantile` for the other arguments and the errors.
        """
        (level,) = check_levels((level,))
        ends = self.quantile(X, (0.5 * (1.0 - level), 0.5 * (1.0 + level)), memory=memory)
        return ends[0, ...], ends[1, ...]

    @public
    def log_density(self, X: Array, y: Array, /, *, memory: float | None = None) -> Array:
        """Compute the log predictive density log p(y_n | x_n, data) [N] of each row of y [N] or [N, K] at X [N, D].

        For a deep process, this is the log density of the mixture of its samples. If X has leading axes, y must have
        the same leading axes. See `predict` for the other arguments.

        Raises
        ------
        TypeError, ValueError
            For the reasons listed in `predict`, or if a target is outside the support of the likelihood.
        """
        return self._log_density(X, y, log_average, memory)

    @public
    def mean_log_density(self, X: Array, y: Array, /, *, memory: float | None = None) -> Array:
        """Average the log density [N] of each row over the samples of a deep process.

        The result is at most `log_density`, which is the logarithm of the average density. The two are equal for models
        that are not deep. Papers on deep models report one or the other. See `log_density` for the arguments and
        errors.
        """
        return self._log_density(X, y, average, memory)

    def _log_density(
        self, X: Array, y: Array, over_samples: Callable[[Array, int], Array], memory: float | None
    ) -> Array:
        def density(mu: Array, var: Array, y: Array) -> Array:
            targets, _ = tile_samples(mu.shape[0] // y.shape[0], y, {})
            return over_samples(self.likelihood.predictive_log_density(mu, var, targets), y.shape[0])

        return self._score("log density", density, X, self._targets(X, y, self.likelihood), memory)

    @public
    def cdf(self, X: Array, y: Array, /, *, memory: float | None = None) -> Array:
        """Compute the probability P(Y <= y) [..., N, K] of observations Y at X [..., N, D].

        Parameters
        ----------
        X, memory
            See `predict`.
        y
            Thresholds [..., N, K], or [N] for one column. Thresholds may be outside the support of the likelihood. The
            probability for a threshold of NaN is NaN.

        Raises
        ------
        TypeError, ValueError
            For the reasons listed in `quantile`, or if the shape of y does not fit X.
        """
        return self._cdf(X, self._thresholds(X, y, self.likelihood), memory)

    @public
    def pit(self, X: Array, y: Array, /, *, seed: int = 0, memory: float | None = None) -> Array:
        """Compute the probability integral transforms F(y) [..., N, K] of targets y.

        The transforms are uniform on (0, 1) if the predictions are calibrated. For counts, each transform is a random
        number, uniform between P(Y < y) and P(Y <= y).

        Parameters
        ----------
        X, memory
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
        F = self._cdf(X, y, memory)
        if not self.likelihood.whole_numbers:
            return F
        below = self._cdf(X, y - 1.0, memory)
        share = generator(check_whole("seed", seed, least=0), 17).uniform(size=tuple(F.shape))
        return below + asarray_like(share, F) * (F - below)

    @public
    def crps(self, X: Array, y: Array, /, *, memory: float | None = None) -> Array:
        """Compute the continuous ranked probability score [..., N, K] of each target, in units of y; lower is better.

        The score is the integral of (P(Y <= x) - H(x - y))^2 over x, where H is the unit step function. The score
        generalises the absolute error. Gaussian noise has a closed form. For other likelihoods, the relative error is
        about 1e-4. See `pit` for the arguments and errors.

        Source: Gneiting & Raftery, "Strictly proper scoring rules, prediction, and estimation", JASA 2007.
        """

        def score(mu: Array, var: Array, y: Array) -> Array:
            return self.likelihood.predictive_crps(mu, var, y, samples=mu.shape[0] // y.shape[0])

        return self._score(None, score, X, self._check_targets(X, y), memory)

    def _cdf(self, X: Array, y: Array, memory: float | None) -> Array:
        def below(mu: Array, var: Array, y: Array) -> Array:
            return self.likelihood.predictive_cdf(mu, var, y, samples=mu.shape[0] // y.shape[0])

        return self._score(None, below, X, y, memory)

    def _score(
        self,
        what: str | None,
        score: Callable[[Array, Array, Array], Array],
        X: Array,
        y: Array,
        memory: float | None,
    ) -> Array:
        """Compute scores in chunks of rows, from marginals [S n, P] and targets [n, K] of each chunk.

        `what` is the name of the score. If it is given, NonFiniteError is raised for scores that are not finite.
        """

        def scored(conditional: Conditional, X: Array, y: Array) -> tuple[Array]:
            return (score(*_moments_at(conditional, X), y),)

        return self._in_chunks(scored, X, memory, () if what is None else (what,), y)[0]

    # -- joint ------------------------------------------------------------------------------------------------------

    @public
    def predict_covariance(self, X: Array, /, *, cross_outputs: bool = False) -> Array:
        """Compute the joint covariances [..., P, N, N] of the latent functions at X [..., N, D], in O(N^2) memory.

        The matrices are symmetric, and their diagonals are the variances of `predict`. See `predict` for the errors.

        Parameters
        ----------
        X
            Test inputs, as in `predict`.
        cross_outputs
            Whether to return covariances across outputs, [..., N, P, N, P]. Entry [n, p, m, q] is the covariance of
            output p at row n with output q at row m. Covariances of different outputs are zero, unless the outputs are
            coregionalised (`LinearMixing`).
        """

        def joint(conditional: Conditional, X: Array) -> Array:
            latent, mixing = conditional.covariance(X), conditional.mixing
            own = latent if mixing is None else combine(mixing * mixing, latent)
            covariance = covariance_with(self._variance(conditional, X).mT, own)
            if cross_outputs:
                covariance = cross_covariances(covariance, latent, mixing)
            _refuse_nonfinite(covariance=covariance)
            return covariance

        return self._map_sets(joint, X)

    @public
    def sample(self, X: Array, count: int = 1, /, *, seed: int = 0) -> Array:
        """Draw joint samples [..., S, N, P] of the latent functions at X [..., N, D].

        Samples are the same on every backend. Sampling computes symmetric square roots of the covariances [N, N] from
        their eigenvalues, even for inverse-free methods. This takes O(L N^3) operations for L independent functions and
        adds no jitter. Samples of mixed outputs (`LinearMixing`) are dependent across outputs.

        Parameters
        ----------
        X
            Test inputs, as in `predict`.
        count
            The number of samples S.
        seed
            Seed for the noise, which is drawn on the host.

        Raises
        ------
        TypeError, ValueError
            For the reasons listed in `predict`, or if `count` is not a positive whole number.
        """
        count, seed = check_whole("count", count), check_whole("seed", seed, least=0)

        def sampled(conditional: Conditional, X: Array) -> Array:
            latent, mean, mixing = conditional.covariance(X), conditional.mean(X), conditional.mixing
            if mixing is None:
                latent = covariance_with(self._variance(conditional, X).mT, latent)
            _refuse_nonfinite(covariance=latent, mean=mean)
            xp = backend_of(X).xp
            eigenvalues, vectors = xp.linalg.eigh(0.5 * (latent + latent.mT))
            scale = xp.sqrt(nonnegative(eigenvalues)[0])[:, None, :]
            noise = generator(seed, 6).standard_normal((count, *latent.shape[:2], 1))
            # eigenvectors are not unique, but the symmetric root is
            rooted = (vectors * scale) @ (vectors.mT @ asarray_like(noise, X))
            functions = xp.permute_dims(rooted[..., 0], (0, 2, 1))
            return mean + (functions if mixing is None else functions @ mixing.mT)

        return self._map_sets(sampled, X)

    @public
    def sample_functions(self, count: int = 1, /, *, seed: int = 0, features: int = FREQUENCIES) -> FunctionSamples:
        """Draw function samples of the posterior, which can be evaluated at any inputs.

        Each prior sample is drawn with random features of the kernel, and then conditioned exactly on a sample of q(u)
        or on the data. The features cause an approximation error, mostly far from the data, which is inversely
        proportional to the square root of the number of features and the same for all samples of a call. Kernels of
        finite rank cause no such error.

        Parameters
        ----------
        count
            The number of samples S.
        seed
            Seed for all random numbers, which are drawn on the host. A seed gives the same functions on every backend.
        features
            The number of random frequencies per stationary kernel. Each frequency gives a cosine and a sine.

        Raises
        ------
        TypeError
            If a kernel, such as white noise, has no features, or if the model does not support function samples.
        ValueError
            If an argument is not a whole number or is too small, or if the predictor has several posteriors
            (`condition_on` with leading axes).

        Source: Wilson et al., "Efficiently sampling functions from Gaussian process posteriors", ICML 2020.
        """
        count, features = check_whole("count", count), check_whole("features", features)
        if self.lead:
            several = len(self.conditionals)
            msg = f"sample_functions needs one posterior, but there are {several}; condition on one set of data."
            raise ValueError(msg)
        rng = generator(check_whole("seed", seed, least=0), 11)
        return FunctionSamples(self.conditionals[0].paths(rng, count, features))

    # -- further data -----------------------------------------------------------------------------------------------

    @public
    def condition_on(self, X: Array, y: Array, /, *, noise: Array | None = None) -> Self:
        """Return a new predictor that is conditioned on further observations, at the same hyperparameters.

        The result is exact for Gaussian noise. Adding k rows to N rows takes O(k N^2) operations, or O(k M^2 + M^3)
        with M inducing inputs. For other likelihoods, a Gaussian site is added for each new row and computed by dual
        steps until convergence; existing sites do not change. With several outputs, each output may have its own
        process (`Stack`) or be a multiple of one function (`LinearMixing`). Outputs that are sums of several functions
        are not supported.

        Parameters
        ----------
        X, y
            Inputs [k, D] and targets [k] or [k, K]. Arrays with leading axes, [..., k, D] and [..., k] or [..., k, K],
            hold several sets of observations ("fantasies"). Each set gives its own posterior, and the leading axes come
            first in all predictions.
        noise
            Known noise variances, with the shape of y, which replace the noise variance of a Gaussian likelihood. Exact
            models support known noise only for one output.

        Raises
        ------
        TypeError, ValueError
            For the reasons listed in `log_density`, or if the posterior cannot be conditioned on further data. These
            errors are also raised if the leading axes do not fit those of the predictor, or if `noise` is given but the
            likelihood or the model does not support known noise.
        """
        likelihood = self.likelihood
        if noise is not None:
            likelihood, y = with_known_noise(likelihood, X, y, noise)
        y = self._targets(X, y, likelihood)
        check_finite("X", X)
        new = tuple(X.shape[:-2])
        if self.lead and new not in ((), self.lead):
            msg = (
                f"X has the leading axes {new}, but the posteriors have {self.lead}; pass one set of rows for each "
                "posterior, or one set for all posteriors."
            )
            raise ValueError(msg)
        sets = list(zip(_sets(X), _sets(y), strict=True))
        olds = list(self.conditionals)
        olds, sets = (olds * len(sets), sets) if len(olds) == 1 else (olds, sets * (len(olds) // len(sets)))
        more = [old.condition_on(*data, likelihood) for old, data in zip(olds, sets, strict=True)]
        return type(self)(tuple(more), self.likelihood, self.lead or new)

    # -- rows, sets, chunks -----------------------------------------------------------------------------------------

    def _in_chunks(
        self, f: Callable[..., Any], X: Array, memory: float | None, names: tuple[str, ...], *others: Array
    ) -> tuple[Array, ...]:
        """Evaluate ``f(conditional, X, *others)`` in chunks of rows; return arrays [..., N, .].

        `names` are the names of the first arrays that `f` returns. Raises NonFiniteError if one of these arrays is not
        finite.
        """

        def evaluated(conditional: Conditional, X: Array, *others: Array) -> tuple[Array, ...]:
            parts, start = [], 0
            for chunk, here in self._chunks(conditional, X, memory):
                stop = start + chunk.shape[0]
                parts.append(f(here, chunk, *(x[start:stop, :] for x in others)))
                start = stop
            found = _concat(parts)
            _refuse_nonfinite(**dict(zip(names, found, strict=False)))
            return found

        return self._by_row(evaluated, X, *others)

    def _by_row(self, f: Callable[..., Any], X: Array, *others: Array) -> tuple[Array, ...]:
        """Evaluate ``f(conditional, X, *others)`` with leading axes flattened to rows; return arrays [..., N, .]."""
        self._check(X)
        B = backend_of(X)
        if B.is_lazy:

            def gathered(*rows: Array) -> tuple[Array, ...]:
                return f(self.conditionals[0], *(self._gather(x) for x in rows))

            return B.map_chunks(gathered, (X, *others), gathered(*(x[:1, :] for x in (X, *others))))
        batch, rows = X.shape[:-1], [x if x.ndim == 2 else B.xp.reshape(x, (-1, x.shape[-1])) for x in (X, *others)]
        found, _ = speculate(lambda: [f(conditional, *rows) for conditional in self.conditionals], X)
        return tuple(self._reshape_batch(list(parts), batch) for parts in zip(*found, strict=True))

    def _map_sets(self, f: Callable[[Conditional, Array], Array], X: Array) -> Array:
        """Evaluate ``f(conditional, X)`` for each set [N, D] of inputs; return an array with the leading axes of X."""
        self._check(X)
        _check_cells(self.conditionals[0], X)
        sets = _sets(self._gather(X))
        found = [backend_of(sets[0]).xp.stack([f(one, x) for x in sets]) for one in self.conditionals]
        return self._reshape_batch(found, X.shape[:-2])

    def _reshape_batch(self, parts: list[Array], batch: tuple[int, ...]) -> Array:
        """Combine the arrays [N, ...] of all posteriors into one array [*lead, *batch, ...]."""
        xp, one = backend_of(parts[0]).xp, parts[0]
        return xp.reshape(xp.stack(parts) if self.lead else one, (*self.lead, *batch, *one.shape[1:]))

    def _gather(self, X: Array) -> Array:
        """Load the rows into memory, as an array with the library and dtype of the leaves."""
        reference = first_leaf(self)
        x = backend_of(X).gather(X)
        return x if backend_of(x) is backend_of(reference) else asarray_like(x, reference)

    def _variance(self, conditional: Conditional, X: Array) -> Array:
        return _concat([_moments_at(here, chunk) for chunk, here in self._chunks(conditional, X, None)])[1]

    def _chunks(self, conditional: Conditional, X: Array, memory: float | None) -> Iterator[tuple[Array, Conditional]]:
        rows_of = rows_within if conditional.rows_share_work else tile_rows
        for start, stop in row_ranges(X.shape[0], rows_of(memory, self.floats_per_row, X)):
            chunk = X[start:stop, :]
            _check_cells(conditional, chunk, first_row=start)
            yield chunk, conditional.for_rows(chunk)

    # -- checks -----------------------------------------------------------------------------------------------------

    def _check(self, X: Array) -> None:
        check_test_inputs(X, self.width, *self.conditionals[0].reference)

    def _targets(self, X: Array, y: Array, likelihood: Likelihood) -> Array:
        """Check targets, and return them as [..., N, K]."""
        y = self._thresholds(X, y, likelihood, missing=likelihood.missing)
        columns = y if y.ndim == 2 else backend_of(y).xp.reshape(y, (-1, y.shape[-1]))
        if backend_of(columns).is_concrete(columns):
            likelihood.check_targets(columns)
        return y

    def _check_targets(self, X: Array, y: Array) -> Array:
        """Check targets that are not NaN, and return all targets as [..., N, K]."""
        y = self._thresholds(X, y, self.likelihood)
        B = backend_of(y)
        if B.is_concrete(y) and not B.is_lazy:
            columns = B.xp.reshape(y, (-1, y.shape[-1]))
            (seen,) = B.xp.nonzero(~B.xp.any(B.xp.isnan(columns), axis=1))
            known = B.xp.take(columns, seen, axis=0)
            if known.shape[0]:
                self.likelihood.check_targets(known)
        return y

    def _thresholds(self, X: Array, y: Array, likelihood: Likelihood, *, missing: bool = True) -> Array:
        """Check that y fits the rows and the outputs, and return it as [..., N, K].

        y may contain NaN if `missing` is True.
        """
        self._check(X)
        check_array_type("y", y)
        rows, columns = X, y
        if X.ndim > 2:
            if tuple(y.shape[: X.ndim - 1]) != tuple(X.shape[:-1]):
                msg = f"X has shape {tuple(X.shape)}, but y has {tuple(y.shape)}; pass one target for each row of X."
                raise ValueError(msg)
            xp, N = backend_of(X).xp, math.prod(X.shape[:-1])
            rows, columns = xp.reshape(X, (N, -1)), xp.reshape(y, (N, -1))
        columns = check_targets(rows, columns, missing=missing)
        columns = likelihood.with_columns(columns, self.outputs)
        check_outputs(likelihood, columns, self.outputs)
        return columns if X.ndim == 2 else backend_of(y).xp.reshape(columns, (*X.shape[:-1], columns.shape[1]))


def _check_cells(conditional: Conditional, X: Array, first_row: int = 0) -> None:
    """Raise ValueError for infinite entries of X and, unless the posterior takes unknown cells, for NaN."""
    xp = backend_of(X).xp
    check_finite(
        "X", xp.where(xp.isnan(X), xp.zeros_like(X), X) if conditional.takes_unknown_cells else X, first_row=first_row
    )


def _moments_at(conditional: Conditional, X: Array) -> tuple[Array, Array]:
    """Compute the marginals. If only X requires gradients, torch or JAX uses the closed-form pullback."""
    B = backend_of(X)
    if not B.asks_gradient(X) or any(B.asks_gradient(x) for x in tree.leaves(conditional).values()):
        return conditional.moments(X)[0]
    P, xp = conditional.outputs, B.xp

    def closed_form(arrays: dict[str, Array]) -> tuple[Array, Callable]:
        x = arrays["X"]
        moments, pull = conditional.moments(x)

        def cotangents(bar: Array, names: tuple[str, ...]) -> dict[str, Array]:
            X_bar = pull(bar[:, :P], bar[:, P:])
            return dict.fromkeys(names, xp.zeros_like(x) if X_bar is None else X_bar)

        return xp.concat(list(moments), axis=1), cotangents

    both = B.with_pullback(closed_form, {"X": X})
    return both[:, :P], both[:, P:]


def _sets(X: Array) -> list[Array]:
    """Split an array [..., N, .] into its sets [N, .]."""
    flat = backend_of(X).xp.reshape(X, (-1, *X.shape[-2:]))
    return [flat[i, :, :] for i in range(flat.shape[0])]


def _refuse_nonfinite(**predicted: Array) -> None:
    remedy = "check the kernel's parameters, use standardised data or float64, or predict closer to the data"
    check_results("the predicted", predicted, remedy)


def _concat(parts: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    """Concatenate arrays for consecutive rows."""
    if len(parts) == 1:
        return tuple(parts[0])
    xp = backend_of(parts[0][0]).xp
    return tuple(xp.concat(list(column), axis=0) for column in zip(*parts, strict=True))
