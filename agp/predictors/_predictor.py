"""Predictions from a posterior that is computed once."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from agp import tree
from agp._context import public
from agp.backend import Array, backend_of, check_array_type, placed
from agp.bounds import tiled
from agp.checks import (
    check_finite,
    check_inputs,
    check_levels,
    check_like,
    check_results,
    check_targets,
    check_whole,
)
from agp.chunking import row_ranges, rows_within, tile_rows
from agp.likelihoods import Likelihood, Prediction
from agp.linalg import covariance_with, nonnegative
from agp.markup import guarded
from agp.predictors._conditional import Conditional
from agp.predictors._functions import FunctionSamples
from agp.predictors._further import with_known_noise
from agp.predictors._mixture import (
    average,
    cross_covariances,
    log_average,
    mixture,
    output_covariances,
    slopes,
    with_own,
)
from agp.random import generator
from agp.speculation import speculate
from agp.summaries import summary_html
from agp.tree import first_leaf

__all__ = ["FREQUENCIES", "Predictor", "check_test_inputs"]

FREQUENCIES = 1024
"""Random frequencies of each stationary kernel in samples of functions, by default."""


@tree.model
class Predictor:
    """A posterior with everything that does not depend on test inputs computed, from `Model.predictor`.

    Immutable, a tree of arrays like a model: it can be pickled, saved and moved by `agp.to_backend`. Inputs are
    [..., N, D], with independent predictions for each leading index. In torch and JAX, means and variances are
    differentiable in X by closed form.

    Parameters
    ----------
    conditionals
        The posterior, or one for each of several sets of further data (`condition_on`).
    likelihood
        p(y | f).
    lead
        The axes of these sets, before those of X; none for one posterior.
    """

    conditionals: tuple[Conditional, ...]
    likelihood: Likelihood
    lead: tuple[int, ...] = ()

    _built_by = "model.predictor() builds one"

    def _repr_html_(self) -> str:
        return guarded(lambda: summary_html(self), self)

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
        """Numbers held for each row of a prediction, for memory budgets."""
        return self.conditionals[0].floats_per_row + self.likelihood.floats_per_row * self.outputs

    # -- marginals --------------------------------------------------------------------------------------------------

    @public
    def predict(self, X: Array, /, *, observed: bool = False, memory: float | None = None) -> Prediction:
        """Means and variances [..., N, P] of the latent functions at X [..., N, D], or of the observations.

        Parameters
        ----------
        X
            Test inputs, like the inputs of training; may be memory-mapped.
        observed
            Predict y, with noise, rather than f.
        memory
            Budget for working arrays, in MiB: rows are predicted in chunks that fit. None is 256 on the host, and on a
            device an eighth of its memory, rounded down to a power of two.

        Raises
        ------
        TypeError, ValueError
            If X has another library, dtype, device or width than the model, or entries that are not finite.
        agp.errors.NonFiniteError
            If a prediction is NaN or infinite, as on overflow. (The infinite variance of Student-t noise is valid.)
        """
        unbounded = observed and self.likelihood.infinite_variance

        def predicted(conditional: Conditional, X: Array) -> Prediction:
            parts = []
            for chunk, moments in self._moments(conditional, X, memory):
                if unbounded:
                    _refuse_nonfinite(variance=moments[1])
                moments = self.likelihood.predict(*moments) if observed else moments
                parts.append(mixture(moments, chunk.shape[0]))
            found = _joined(parts)
            _refuse_nonfinite(mean=found.mean, **({} if unbounded else {"variance": found.variance}))
            return found

        return Prediction(*self._by_row(predicted, X))

    @public
    def predict_mean(self, X: Array, /, *, memory: float | None = None) -> Array:
        """The means [..., N, P] of the latent functions, at the cost of the means alone; arguments as `predict`."""

        def averaged(conditional: Conditional, X: Array) -> tuple[Array]:
            chunks = self._chunks(conditional, X, memory)
            mean = backend_of(X).xp.concat([average(here.mean(x), x.shape[0]) for x, here in chunks], axis=0)
            _refuse_nonfinite(mean=mean)
            return (mean,)

        return self._by_row(averaged, X)[0]

    @public
    def gradient(self, X: Array, /, *, memory: float | None = None) -> Prediction:
        """The derivatives [..., N, P, D] of the latent means and variances in the columns of X [..., N, D].

        By closed form on every library; arguments and errors as `predict`.
        """

        def derived(conditional: Conditional, X: Array) -> tuple[Array, Array]:
            parts = []
            for chunk, here in self._chunks(conditional, X, memory):
                parts.append(slopes(*here.moments(chunk), chunk))
            mean, variance = _joined(parts)
            _refuse_nonfinite(**{"slope of the mean": mean, "slope of the variance": variance})
            return mean, variance

        return Prediction(*self._by_row(derived, X))

    @public
    def quantile(self, X: Array, q: float | Sequence[float], /, *, memory: float | None = None) -> Array:
        """The smallest value that an observation at X [..., N, D] does not exceed with probability q.

        It includes the noise and the uncertainty of f. For counts it is a whole number.

        Parameters
        ----------
        X, memory
            As `predict`.
        q
            A probability, for quantiles [..., N, K], or a sequence, for [Q, ..., N, K].

        Raises
        ------
        TypeError, ValueError
            As `predict`; if q is not between 0 and 1; and for observations without order, such as classes.
        """
        levels = check_levels(tuple(q) if isinstance(q, Sequence) else (q,))

        def found(conditional: Conditional, X: Array) -> tuple[Array, ...]:
            parts = []
            for chunk, (mu, var) in self._moments(conditional, X, memory):
                samples = mu.shape[0] // chunk.shape[0]
                parts.append(self.likelihood.predictive_quantiles(mu, var, levels, samples=samples))
            quantiles = backend_of(X).xp.concat(parts, axis=1)
            _refuse_nonfinite(quantiles=quantiles)
            return tuple(quantiles[i, ...] for i in range(len(levels)))

        each = self._by_row(found, X)
        return backend_of(each[0]).xp.stack(list(each)) if isinstance(q, Sequence) else each[0]

    def interval(self, X: Array, level: float = 0.9, /, *, memory: float | None = None) -> tuple[Array, Array]:
        """Lower and upper ends [..., N, K] of the central interval that holds an observation with probability `level`.

        Intervals of counts hold at least that. Arguments and errors as `quantile`.
        """
        (level,) = check_levels((level,))
        ends = self.quantile(X, (0.5 * (1.0 - level), 0.5 * (1.0 + level)), memory=memory)
        return ends[0, ...], ends[1, ...]

    @public
    def log_density(self, X: Array, y: Array, /, *, memory: float | None = None) -> Array:
        """The log predictive density of each row of y [N] or [N, K] at X [N, D]: log p(y_n | x_n, data) [N].

        For a sampled process, that of the mixture of its samples. Raises as `predict`, and ValueError for targets
        outside the likelihood's support. Leading axes of y are those of X.
        """
        return self._log_density(X, y, log_average, memory)

    @public
    def mean_log_density(self, X: Array, y: Array, /, *, memory: float | None = None) -> Array:
        """The log density of each row [N], averaged over the samples of a sampled (deep) process.

        At most `log_density`, the logarithm of the average; equal for other models. The literature on deep models
        reports either. Arguments and errors as `log_density`.
        """
        return self._log_density(X, y, average, memory)

    def _log_density(
        self, X: Array, y: Array, over_samples: Callable[[Array, int], Array], memory: float | None
    ) -> Array:
        def density(mu: Array, var: Array, y: Array) -> Array:
            targets, _ = tiled(mu.shape[0] // y.shape[0], y, {})
            return over_samples(self.likelihood.predictive_log_density(mu, var, targets), y.shape[0])

        return self._scored("log density", density, X, self._targets(X, y), memory)

    @public
    def cdf(self, X: Array, y: Array, /, *, memory: float | None = None) -> Array:
        """P(Y <= y) [..., N, K] of observations Y at X [..., N, D], for numbers y [..., N, K] (or [N]).

        Parameters
        ----------
        X, memory
            As `predict`.
        y
            Numbers, also outside the support of the likelihood. NaN gives NaN.

        Raises
        ------
        TypeError, ValueError
            As `quantile`, and if y does not fit X.
        """
        return self._cdf(X, self._thresholds(X, y), memory)

    @public
    def pit(self, X: Array, y: Array, /, *, seed: int = 0, memory: float | None = None) -> Array:
        """Probability integral transforms F(y) [..., N, K] of targets: uniform on (0, 1) if predictions are calibrated.

        Counts have randomised ones, uniform between P(Y < y) and P(Y <= y).

        Parameters
        ----------
        X, memory
            As `predict`.
        y
            Targets, like those of `log_density`. NaN, for missing, gives NaN.
        seed
            Of the random numbers, drawn on the host.

        Raises
        ------
        TypeError, ValueError
            As `quantile`, and for targets outside the likelihood's support.

        Source: Czado, Gneiting & Held, "Predictive model assessment for count data", Biometrics 2009.
        """
        y = self._observed(X, y)
        F = self._cdf(X, y, memory)
        if not self.likelihood.whole_numbers:
            return F
        below = self._cdf(X, y - 1.0, memory)
        share = generator(check_whole("seed", seed, least=0), 17).uniform(size=tuple(F.shape))
        return below + placed(share, F) * (F - below)

    @public
    def crps(self, X: Array, y: Array, /, *, memory: float | None = None) -> Array:
        """The continuous ranked probability scores [..., N, K] of targets, in their unit: lower is better.

        The integral of (P(Y <= x) - [y <= x])^2 over x, which generalises the absolute error. A closed form for
        Gaussian noise, else accurate to about 1e-4 of its value. Arguments and errors as `pit`.

        Source: Gneiting & Raftery, "Strictly proper scoring rules, prediction, and estimation", JASA 2007.
        """

        def score(mu: Array, var: Array, y: Array) -> Array:
            return self.likelihood.predictive_crps(mu, var, y, samples=mu.shape[0] // y.shape[0])

        return self._scored(None, score, X, self._observed(X, y), memory)

    def _cdf(self, X: Array, y: Array, memory: float | None) -> Array:
        def below(mu: Array, var: Array, y: Array) -> Array:
            return self.likelihood.predictive_cdf(mu, var, y, samples=mu.shape[0] // y.shape[0])

        return self._scored(None, below, X, y, memory)

    def _scored(
        self,
        what: str | None,
        score: Callable[[Array, Array, Array], Array],
        X: Array,
        y: Array,
        memory: float | None,
    ) -> Array:
        """Scores from marginals [S n, P] and targets [n, K] of each chunk of rows; must be finite if named."""

        def scored(conditional: Conditional, X: Array, y: Array) -> tuple[Array]:
            parts, start = [], 0
            for chunk, (mu, var) in self._moments(conditional, X, memory):
                stop = start + chunk.shape[0]
                parts.append(score(mu, var, y[start:stop, :]))
                start = stop
            found = backend_of(X).xp.concat(parts, axis=0)
            if what is not None:
                _refuse_nonfinite(**{what: found})
            return (found,)

        return self._by_row(scored, X, y)[0]

    # -- joint ------------------------------------------------------------------------------------------------------

    @public
    def predict_covariance(self, X: Array, /, *, cross_outputs: bool = False) -> Array:
        """The joint covariances [..., P, N, N] of the latent functions at X [..., N, D]; O(N^2) memory.

        They are symmetric, with the variances of `predict` on the diagonal. Errors as `predict`.

        Parameters
        ----------
        X
            Test inputs, like the inputs of training.
        cross_outputs
            Return covariances across outputs [N, P, N, P]: entry [n, p, m, q] is that of output p at row n with output
            q at row m, zero unless outputs are coregionalised (`Mixed`).
        """

        def joint(conditional: Conditional, X: Array) -> Array:
            variance = _joined([moments for _, moments in self._moments(conditional, X, None)]).variance
            latent, mixing = conditional.covariance(X), conditional.mixing
            covariance = covariance_with(variance.mT, output_covariances(latent, mixing))  # type: ignore[union-attr]
            if cross_outputs:
                covariance = with_own(covariance, cross_covariances(latent, mixing))
            _refuse_nonfinite(covariance=covariance)
            return covariance

        return self._by_set(joint, X)

    @public
    def sample(self, X: Array, count: int = 1, /, *, seed: int = 0) -> Array:
        """Joint samples [..., S, N, P] of the latent functions at X [..., N, D]; the same on every backend.

        Uses symmetric roots of the covariances [N, N] from their eigenvalues, also in inverse-free methods: O(L N^3)
        operations for L independent functions, no jitter. Outputs that are mixtures (`Mixed`) are dependent.

        Parameters
        ----------
        X
            Test inputs, like the inputs of training.
        count
            S.
        seed
            Of the noise, drawn on the host.

        Raises
        ------
        TypeError, ValueError
            As `predict`, and if the count is not a positive whole number.
        """
        count, seed = check_whole("count", count), check_whole("seed", seed, least=0)

        def sampled(conditional: Conditional, X: Array) -> Array:
            latent, mean, mixing = conditional.covariance(X), conditional.mean(X), conditional.mixing
            if mixing is None:
                variance = _joined([moments for _, moments in self._moments(conditional, X, None)]).variance
                latent = covariance_with(variance.mT, latent)  # type: ignore[union-attr]
            _refuse_nonfinite(covariance=latent, mean=mean)
            xp = backend_of(X).xp
            eigenvalues, vectors = xp.linalg.eigh(0.5 * (latent + latent.mT))
            scale = xp.sqrt(nonnegative(eigenvalues)[0])[:, None, :]
            noise = generator(seed, 6).standard_normal((count, *latent.shape[:2], 1))
            # the symmetric root is unique, eigenvectors are not
            rooted = (vectors * scale) @ (vectors.mT @ placed(noise, X))
            functions = xp.permute_dims(rooted[..., 0], (0, 2, 1))
            return mean + (functions if mixing is None else functions @ mixing.mT)

        return self._by_set(sampled, X)

    @public
    def sample_functions(self, count: int = 1, /, *, seed: int = 0, features: int = FREQUENCIES) -> FunctionSamples:
        """Samples of the latent functions as functions, which can be evaluated at any inputs at any time.

        A sample of the prior, from random features of the kernel, is conditioned exactly on a sample of q(u), or on the
        data. The error of the features, mostly far from the data, falls like one over the root of their number and is
        the same for all samples of a call; kernels of finite rank have no error.

        Parameters
        ----------
        count
            S.
        seed
            Of all random numbers, drawn on the host: the same functions on every backend.
        features
            The number of random frequencies of each stationary kernel; each gives a cosine and a sine.

        Raises
        ------
        TypeError
            If a kernel has no features, such as white noise, or the model has no such samples.
        ValueError
            If a number is not whole, or too small; or for several posteriors (`condition_on` with leading axes).

        Source: Wilson et al., "Efficiently sampling functions from Gaussian process posteriors", ICML 2020.
        """
        count, features = check_whole("count", count), check_whole("features", features)
        if self.lead:
            msg = "there are several posteriors, and functions are samples of one; condition on one set of data."
            raise ValueError(msg)
        rng = generator(check_whole("seed", seed, least=0), 11)
        return FunctionSamples(self.conditionals[0].paths(rng, count, features))

    # -- further data -----------------------------------------------------------------------------------------------

    @public
    def condition_on(self, X: Array, y: Array, /, *, noise: Array | None = None) -> Self:
        """A new predictor given further observations, at the same hyperparameters.

        Exact for Gaussian noise: k rows cost O(k N^2) after N data, or O(k M^2 + M^3) with M inducing inputs. Other
        likelihoods get a Gaussian site for each new row, by dual steps to convergence; old sites do not change. Several
        outputs may have separate processes (`Stack`) or be multiples of one (`Mixed`), but not sums.

        Parameters
        ----------
        X, y
            Inputs [k, D] and targets [k] or [k, K]. With leading axes, [..., k, D] and [..., k] or [..., k, K], each
            set gives its own posterior, and all predictions start with these axes ("fantasies").
        noise
            Known variances of the noise in y, of its shape, instead of that of a Gaussian likelihood. Exact models
            take them for one output.

        Raises
        ------
        TypeError, ValueError
            As `log_density`; if the posterior takes no further data; if leading axes do not fit those there are; and
            if the likelihood or the model cannot have known noise.
        """
        likelihood = self.likelihood
        if noise is not None:
            likelihood, y = with_known_noise(likelihood, X, y, noise)
        y = self._targets(X, y, likelihood)
        check_finite("X", X)
        new = tuple(X.shape[:-2])
        if self.lead and new not in ((), self.lead):
            msg = f"X begins with the axes {new}, but there are posteriors {self.lead}; give one set for each, or one."
            raise ValueError(msg)
        sets = list(zip(_sets(X), _sets(y), strict=True))
        olds = list(self.conditionals)
        olds, sets = (olds * len(sets), sets) if len(olds) == 1 else (olds, sets * (len(olds) // len(sets)))
        more = [old.given(*data, likelihood) for old, data in zip(olds, sets, strict=True)]
        return type(self)(tuple(more), self.likelihood, self.lead or new)

    # -- rows, sets, chunks -----------------------------------------------------------------------------------------

    def _by_row(self, f: Callable[..., Any], X: Array, *others: Array) -> tuple[Array, ...]:
        """Arrays [..., N, .] of ``f(conditional, X, *others)``, with all leading axes flattened to rows."""
        self._check(X)
        B = backend_of(X)
        if B.is_lazy:

            def gathered(*rows: Array) -> tuple[Array, ...]:
                return f(self.conditionals[0], *(self._gathered(x) for x in rows))

            return B.map_chunks(gathered, (X, *others), gathered(*(x[:1, :] for x in (X, *others))))
        batch, rows = X.shape[:-1], [x if x.ndim == 2 else B.xp.reshape(x, (-1, x.shape[-1])) for x in (X, *others)]
        found, _ = speculate(lambda: [f(conditional, *rows) for conditional in self.conditionals], X)
        return tuple(self._shaped(list(parts), batch, 1) for parts in zip(*found, strict=True))

    def _by_set(self, f: Callable[[Conditional, Array], Array], X: Array) -> Array:
        """Arrays [..., .] of ``f(conditional, X)`` for each set [N, D] of inputs."""
        self._check(X)
        check_finite("X", X)
        sets = _sets(self._gathered(X))
        found = [backend_of(sets[0]).xp.stack([f(one, x) for x in sets]) for one in self.conditionals]
        return self._shaped(found, X.shape[:-2], 1)

    def _shaped(self, parts: list[Array], batch: tuple[int, ...], axes: int) -> Array:
        """The arrays of all posteriors as one, with the axes of a batch first."""
        shape = tuple(batch) + tuple(parts[0].shape[axes:])
        if not self.lead:
            return parts[0] if tuple(parts[0].shape) == shape else backend_of(parts[0]).xp.reshape(parts[0], shape)
        xp = backend_of(parts[0]).xp
        return xp.reshape(xp.stack(parts), (*self.lead, *shape))

    def _gathered(self, X: Array) -> Array:
        """Rows in memory, as an array like the leaves."""
        reference = first_leaf(self)
        x = backend_of(X).gathered(X)
        return x if backend_of(x) is backend_of(reference) else placed(x, reference)

    def _moments(
        self, conditional: Conditional, X: Array, memory: float | None
    ) -> Iterator[tuple[Array, tuple[Array, Array]]]:
        """The chunks of X [N, D], and their marginals."""
        for chunk, here in self._chunks(conditional, X, memory):
            yield chunk, _moments_at(here, chunk)

    def _chunks(self, conditional: Conditional, X: Array, memory: float | None) -> Iterator[tuple[Array, Conditional]]:
        rows_of = rows_within if conditional.rows_share_work else tile_rows
        for start, stop in row_ranges(X.shape[0], rows_of(memory, self.floats_per_row, X)):
            chunk = X[start:stop, :]
            check_finite("X", chunk, first_row=start)
            yield chunk, conditional.for_rows(chunk)

    # -- checks -----------------------------------------------------------------------------------------------------

    def _check(self, X: Array) -> None:
        check_test_inputs(X, self.width, *self.conditionals[0].reference)

    def _targets(self, X: Array, y: Array, likelihood: Likelihood | None = None) -> Array:
        """y as [..., N, K], checked."""
        likelihood = self.likelihood if likelihood is None else likelihood
        y = self._thresholds(X, y, likelihood, missing=likelihood.missing)
        columns = y if y.ndim == 2 else backend_of(y).xp.reshape(y, (-1, y.shape[-1]))
        if backend_of(columns).is_concrete(columns):
            likelihood.check_targets(columns)
        return y

    def _observed(self, X: Array, y: Array) -> Array:
        """Targets [..., N, K], checked except for NaN."""
        y = self._thresholds(X, y)
        B = backend_of(y)
        if B.is_concrete(y) and not B.is_lazy:
            columns = B.xp.reshape(y, (-1, y.shape[-1]))
            (seen,) = B.xp.nonzero(~B.xp.any(B.xp.isnan(columns), axis=1))
            known = B.xp.take(columns, seen, axis=0)
            if known.shape[0]:
                self.likelihood.check_targets(known)
        return y

    def _thresholds(self, X: Array, y: Array, likelihood: Likelihood | None = None, *, missing: bool = True) -> Array:
        """Numbers y as [..., N, K], which must fit the rows and the outputs; NaN are allowed if `missing`."""
        likelihood = self.likelihood if likelihood is None else likelihood
        self._check(X)
        check_array_type("y", y)
        rows, columns = X, y
        if X.ndim > 2:
            if tuple(y.shape[: X.ndim - 1]) != tuple(X.shape[:-1]):
                msg = f"X has shape {tuple(X.shape)}, y {tuple(y.shape)}; each row of X needs its target."
                raise ValueError(msg)
            xp, N = backend_of(X).xp, math.prod(X.shape[:-1])
            rows, columns = xp.reshape(X, (N, -1)), xp.reshape(y, (N, -1))
        columns = check_targets(rows, columns, missing=missing)
        columns = likelihood.with_columns(columns, self.outputs)
        needed = likelihood.latents(columns.shape[1])
        if needed != self.outputs:
            msg = f"y has {needed} outputs, the model has {self.outputs}; build the model for such targets."
            raise ValueError(msg)
        likelihood.check_outputs(needed)
        return columns if X.ndim == 2 else backend_of(y).xp.reshape(columns, (*X.shape[:-1], columns.shape[1]))


def check_test_inputs(X: Array, width: int, name: str, reference: Array) -> None:
    """TypeError or ValueError unless X is an array [..., N, D] like a named reference, with D = width."""
    check_array_type("X", X)
    if X.ndim > 2 and 0 in X.shape:
        msg = f"X has shape {tuple(X.shape)}, but must have at least one row and one column."
        raise ValueError(msg)
    check_inputs("X", X if X.ndim <= 2 else X[(0,) * (X.ndim - 2)], finite=False)
    check_like("X", X, name, reference)
    if X.shape[-1] != width:
        msg = f"X has {X.shape[-1]} columns, but the model was built for {width}."
        raise ValueError(msg)


def _moments_at(conditional: Conditional, X: Array) -> tuple[Array, Array]:
    """The marginals; the array library differentiates them in X by the closed form if only X asks for gradients."""
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
    """The sets [N, .] of an array [..., N, .]."""
    if X.ndim == 2:
        return [X]
    flat = backend_of(X).xp.reshape(X, (-1, *X.shape[-2:]))
    return [flat[i, :, :] for i in range(flat.shape[0])]


def _refuse_nonfinite(**predicted: Array) -> None:
    remedy = "look at the kernel's parameters, use standardised data or float64, or predict closer to the data"
    check_results("the predicted", predicted, remedy)


def _joined(parts: list[tuple[Array, Array]]) -> Prediction:
    """The predictions for consecutive rows as one."""
    mean, variance = (list(column) for column in zip(*parts, strict=True))
    if len(mean) == 1:
        return Prediction(mean[0], variance[0])
    xp = backend_of(mean[0]).xp
    return Prediction(xp.concat(mean, axis=0), xp.concat(variance, axis=0))
