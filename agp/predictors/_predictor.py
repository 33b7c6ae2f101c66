"""Predictions from a precomputed posterior."""

import dataclasses
from functools import partial
from typing import Any, Self

from agp import tree
from agp.backend import Array, asarray_like, backend_of
from agp.bounds import Batch, raise_noise, with_row_noise
from agp.checks import check_finite, check_whole
from agp.likelihoods import Likelihood, Prediction
from agp.linalg import covariance_with, nonnegative
from agp.predictors._by_rows import (
    latent_means,
    latent_projection,
    moved_by,
    refuse_nonfinite,
    split_sets,
    with_common_draws,
)
from agp.predictors._components import Components, draw_terms, latent_terms, mixture_of_terms
from agp.predictors._functions import FunctionSamples
from agp.predictors._imputed import Imputations
from agp.predictors._level_noise import LevelNoise
from agp.predictors._mixture import at_draws, average, average_parameters, combine, cross_covariances, mixture, slopes
from agp.predictors._saturating import Saturation
from agp.predictors._scores import Scores
from agp.processes import Process
from agp.random import generator
from agp.repairs import public
from agp.summaries import html_with_fallback, summary_html

FREQUENCIES = 1024
"""The default number of random frequencies per stationary kernel in `Predictor.sample_functions`."""


@tree.model
class Predictor(Scores):
    """A posterior ready for prediction: it stores all quantities that do not depend on the test inputs.

    `Model.predictor` builds a predictor. Like a model, a predictor is an immutable tree of arrays, which you can
    pickle, save, and move with `agp.to_backend`. Test inputs have shape [..., N, D], and each leading index gives
    separate predictions. With torch and JAX, means and variances are differentiable with respect to X in closed form.

    Parameters
    ----------
    processes
        One posterior process, or one for each set of further data (see `condition_on`).
    factors
        The factor that ``process.factorise()`` returns, for each process.
    likelihood
        The likelihood p(y | f).
    lead
        The sizes of the axes that index the sets of further data. These axes come first in all predictions. The
        default, (), means a single posterior.
    saturation
        Limits of a logarithmic link, for moments of observations; see `Saturation`. The default is None.
    imputations
        Possible values of unknown cells, which are NaN in the inputs; see `Imputations`. By default, NaN raises an
        error.
    level_noise
        Further noise variances of observations, which depend on a column of the inputs; see `LevelNoise`. By default,
        there are none.
    input_names
        Names of the D columns of the inputs, for the names of components. `GPRegressor.predictor_` has them. By
        default, the columns are numbered.

    Examples
    --------
    A further observation gives a new predictor, which is more certain near that row only.

    >>> import numpy as np
    >>> import agp
    >>> X = np.asarray([[0.0], [1.0], [2.0]])
    >>> y = np.asarray([1.0, 3.0, 2.0])
    >>> kernel, likelihood = agp.RBF(1.0, 1.0), agp.Gaussian(0.01)
    >>> predictor = agp.GPR.from_data(X, y, kernel=kernel, likelihood=likelihood).predictor()
    >>> more = predictor.condition_on(np.asarray([[6.0]]), np.asarray([4.0]))
    >>> isinstance(more, agp.Predictor)
    True
    >>> for one in (predictor, more):
    ...     print(one.predict(np.asarray([[1.0], [6.0]])).variance[:, 0].round(2))
    [0.01 1.  ]
    [0.01 0.01]
    """

    processes: tuple[Process, ...]
    factors: tuple[Any, ...]
    likelihood: Likelihood
    lead: tuple[int, ...] = ()
    saturation: Saturation | None = None
    imputations: Imputations | None = None
    level_noise: LevelNoise | None = None
    input_names: tuple[str, ...] = ()

    _built_by = "model.predictor() builds one"

    def _repr_html_(self) -> str:
        return html_with_fallback(lambda: summary_html(self), self)

    @property
    def average_likelihood(self) -> Likelihood:
        """The likelihood, with averages of parameters that differ between settings of the hyperparameters."""
        if not self.likelihood.differs_by_sample:
            return self.likelihood
        return average_parameters(self.likelihood, self.processes[0].shares)

    # -- marginals --------------------------------------------------------------------------------------------------

    @public
    def predict(
        self,
        X: Array,
        /,
        *,
        observed: bool = False,
        offset: Array | None = None,
        noise: Array | None = None,
        memory: float | None = None,
    ) -> Prediction:
        """Predict means and variances [..., N, P] of the latent functions or the observations at X [..., N, D].

        Parameters
        ----------
        X
            Test inputs with the same array library, dtype, device and number of columns as the training inputs. X may
            be memory-mapped.
        observed
            Whether to predict observations y, which include noise, instead of latent functions f.
        offset
            Known numbers [..., N] or [..., N, P] that are added to the latent functions, such as logarithms of
            exposures. None means 0.
        noise
            Known noise variances [..., N] or [..., N, P] of the observations, in squared units of y, which are added to
            the trained noise variance of a Gaussian likelihood. None means 0.
        memory
            Memory budget for working arrays, in MiB. Rows are processed in chunks that fit within this budget. None
            means 256 MiB on the host and, on a device, an eighth of its memory, rounded down to a power of two.

        Raises
        ------
        TypeError, ValueError
            If X and the training inputs differ in library, dtype, device or number of columns, or X has NaN or infinite
            entries. These errors are also raised if `offset` or `noise` does not fit X, or if `noise` is given but the
            likelihood is not Gaussian, or `observed` is False.
        agp.errors.NonFiniteError
            If a prediction is NaN or infinite, for example because of overflow. Student-t noise may have infinite
            variance, which does not raise an error.
        """
        self._check_observed(noise, observed=observed)
        unbounded = observed and self.likelihood.infinite_variance

        def predicted(
            moments: tuple[Array, Array], shares: Array | None, X: Array, offset: Array | None, noise: Array | None
        ) -> tuple[Array, Array]:
            (mean, variance), rows = moments, X.shape[0]
            if unbounded:
                refuse_nonfinite(variance=variance)
            if observed and self.saturation is not None:  # the limits are those of rates without an offset
                mean, variance = self.saturation.bound_moments(mean, variance)
            if offset is not None:
                mean = moved_by(mean, offset, rows)
            found = self._observe(mean, variance, noise, rows) if observed else (mean, variance)
            return found if mean.shape[0] == rows else mixture(found, rows, shares)

        names, known = ("mean",) if unbounded else ("mean", "variance"), self._by_row_terms(X, offset, noise)
        return Prediction(*self._in_chunks(predicted, X, memory, names, *known, averaged="moments"))

    def _observe(self, mean: Array, variance: Array, noise: Array | None, rows: int) -> Prediction:
        """Return the moments [S n, K] of observations, from those of the latent functions."""
        likelihood = self.likelihood if noise is None else with_row_noise(self.likelihood, noise, mean.shape[0] // rows)
        return likelihood.predict(mean, variance)

    @public
    def predict_mean(
        self,
        X: Array,
        /,
        *,
        observed: bool = False,
        offset: Array | None = None,
        noise: Array | None = None,
        memory: float | None = None,
    ) -> Array:
        """Predict only the means [..., N, P] of the latent functions or the observations.

        No variances are computed, unless the mean of observations depends on them (`Likelihood.mean_is_latent`), as for
        logarithmic links. See `predict` for the arguments and errors.
        """
        if observed and not self.likelihood.mean_is_latent:
            return self.predict(X, observed=True, offset=offset, noise=noise, memory=memory).mean
        self._check_observed(noise, observed=observed)
        columns = self.outputs // self.likelihood.latents(1) if observed else self.outputs

        def predicted(mean: Array, shares: Array | None, X: Array, offset: Array | None) -> tuple[Array]:
            mean = average(mean, X.shape[0], shares)
            return ((mean if offset is None else mean + offset)[:, :columns],)

        offset = self._by_row_terms(X, offset, noise)[0]
        return self._in_chunks(predicted, X, memory, ("mean",), offset, of=latent_means, averaged="moments")[0]

    @public
    def gradient(self, X: Array, /, *, memory: float | None = None) -> Prediction:
        """Compute the derivatives [..., N, P, D] of the latent means and variances with respect to X [..., N, D].

        Closed forms are used with every array library. See `predict` for the arguments and errors.
        """
        if self.imputations is not None:
            raise TypeError(
                "predictions at unknown cells have no derivatives with respect to the inputs; fill in these cells."
            )

        def derived(projection: tuple[tuple[Array, Array], Any], shares: Array | None, X: Array) -> tuple[Array, Array]:
            return slopes(*projection, X, shares)

        names = ("slope of the mean", "slope of the variance")
        return Prediction(*self._in_chunks(derived, X, memory, names, of=latent_projection))

    @public
    def components(self, X: Array, /, *, memory: float | None = None) -> Components:
        """Compute the posterior of each term of the latent functions at X [..., N, D], if the kernel is a sum.

        For the kernel k_1 + k_2 + ..., the latent function is f = h + f_1 + f_2 + ..., with the mean function h and
        independent Gaussian processes f_i. The components are these functions given the data, and h, unless it is
        zero. Sums and multiples of sums are split; products are not. A kernel that is no sum has a single component.

        An offset is no part of the components. If the targets are transformed, or the likelihood has a link, the
        components are those of the latent function: on a log scale, their exponentials are factors.

        Parameters
        ----------
        X, memory
            As in `predict`.

        Returns
        -------
        components
            The means [..., N, P, K] and the covariances [..., N, P, K, K] of K components, with their names.

        Raises
        ------
        TypeError, ValueError
            For the reasons listed in `predict`, or if the model is deep or convolutional. A TypeError is also raised if
            the model averages over kernels, or its outputs have kernels, whose terms do not correspond to each other.

        Source: Duvenaud, "Automatic model construction with Gaussian processes", 2014, section 2.3.
        """
        terms = self.processes[0].terms(self.input_names)

        def found(moments: tuple[Array, Array], shares: Array | None, X: Array) -> tuple[Array, Array]:  # noqa: ARG001
            mean, covariance = mixture_of_terms(moments, shares)
            return mean[..., : len(terms)], covariance[..., : len(terms), : len(terms)]

        kinds = ("means of components", "covariances of components")
        of = partial(latent_terms, memory)
        mean, covariance = self._in_chunks(found, X, memory, kinds, of=of, averaged="moments")
        names, columns = zip(*terms, strict=True)
        return Components(names, mean, covariance, columns)

    @public
    def sample_components(self, X: Array, count: int = 1, /, *, seed: int = 0) -> Array:
        """Draw joint samples [count, N, P, K] of the K components at X [N, D].

        Samples at different rows depend on each other, so that contrasts, slopes over a decade and amplitudes of
        seasons have error bars: compute them for each sample. The mean function, the last component, is known, except
        for the constant of a mixture.

        Parameters
        ----------
        X
            Test inputs [N, D].
        count
            The number of samples.
        seed
            Seed for the noise, which is drawn on the host.

        Raises
        ------
        TypeError, ValueError
            For the reasons listed in `components`, if X has unknown cells, or if the joint distribution of the
            components is not known: it is known for `GPR`, its mixtures, computation-aware models, and models with one
            process of inducing inputs.
        """
        count, seed = check_whole("count", count), check_whole("seed", seed, least=0)
        names = len(self.processes[0].terms())

        def sampled(process: Process, factor: Any, X: Array) -> Array:
            check_finite("X", X)  # unknown cells may be imputed only for marginals
            rng, xp = generator(seed, 24), backend_of(X).xp
            parts = process.parts_of_draws(factor, count, generator(seed, 22))
            return xp.concat([draw_terms(*part, X, rng, names) for part in parts], axis=0)

        return self._map_sets(sampled, X)

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

        def joint(process: Process, factor: Any, X: Array) -> Array:
            latent, variance = self._covariance(process, factor, X), self._one(process, factor).predict(X).variance
            covariance = _covariance_of_outputs(variance, latent, process.mixing, cross_outputs=cross_outputs)
            refuse_nonfinite(covariance=covariance)
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

        def sampled(process: Process, factor: Any, X: Array) -> Array:
            xp, rng = backend_of(X).xp, generator(seed, 6)
            parts = process.parts_of_draws(factor, count, generator(seed, 22))
            return xp.concat([self._draw(*part, X, rng) for part in parts], axis=0)

        return self._map_sets(sampled, X)

    def likelihood_of_draws(self, count: int, /, *, seed: int = 0) -> Likelihood:
        """Return the likelihood of observations of the functions [count, N, P] that `sample` draws with this seed.

        If the model averages over settings of the hyperparameters, the noise variance differs between draws.
        """
        if not self.likelihood.differs_by_sample:
            return self.likelihood
        return at_draws(self.likelihood, self.processes[0].numbers_of_draws(count, generator(seed, 22)))

    def _draw(self, process: Process, factor: Any, count: int, X: Array, rng: Any) -> Array:
        """Draw joint samples [count, n, P] of a Gaussian process at X [n, D]."""
        latent, mixing = self._covariance(process, factor, X), process.mixing
        one = self._one(process, factor)
        mean = one.predict_mean(X)
        if mixing is None:
            latent = covariance_with(one.predict(X).variance.mT, latent)
        refuse_nonfinite(covariance=latent, mean=mean)
        xp = backend_of(X).xp
        eigenvalues, vectors = xp.linalg.eigh(0.5 * (latent + latent.mT))
        scale = xp.sqrt(nonnegative(eigenvalues)[0])[:, None, :]
        noise = rng.standard_normal((count, *latent.shape[:2], 1))
        # eigenvectors are not unique, but the symmetric root is
        rooted = (vectors * scale) @ (vectors.mT @ asarray_like(noise, X))
        functions = xp.permute_dims(rooted[..., 0], (0, 2, 1))
        return mean + (functions if mixing is None else functions @ mixing.mT)

    @public
    def sample_functions(self, count: int = 1, /, *, seed: int = 0, features: int = FREQUENCIES) -> FunctionSamples:
        """Draw function samples of the posterior, which can be evaluated at any inputs.

        Each prior sample is drawn with random features of the kernel, and then conditioned exactly on a sample of q(u)
        or on the data. The features cause an approximation error, which is inversely proportional to the square root
        of the number of features and the same for all samples of a call. Kernels of finite rank cause no such error.
        For many draws at fixed inputs, use `sample`.

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
            several = len(self.processes)
            raise ValueError(
                f"sample_functions needs one posterior, but there are {several}; condition on one set of data."
            )
        rng = generator(check_whole("seed", seed, least=0), 11)
        return FunctionSamples(self.processes[0].paths(self.factors[0], rng, count, features))

    # -- further data -----------------------------------------------------------------------------------------------

    @public
    def condition_on(
        self,
        X: Array,
        y: Array,
        /,
        *,
        weights: Array | None = None,
        offset: Array | None = None,
        noise: Array | None = None,
    ) -> Self:
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
        weights
            The number of observations [..., k] that each row represents. None means 1.
        offset, noise
            Known offsets and noise variances of the new rows; see `predict`. An exact model uses one noise variance for
            all outputs of a row.

        Raises
        ------
        TypeError, ValueError
            For the reasons listed in `log_density`, or if the posterior cannot be conditioned on further data. These
            errors are also raised if the leading axes do not fit those of the predictor, or if `noise` is given but the
            likelihood or the model does not support known noise.
        """
        y = self._targets(X, y)
        check_finite("X", X)
        known = self._by_row_terms(X, offset, noise, weights)
        if known[1] is not None:
            known = known[0], raise_noise(self.likelihood, known[1], self), *known[2:]
        if backend_of(X).is_concrete(X):
            self.likelihood.check_noise(known[1])
        new = tuple(X.shape[:-2])
        if self.lead and new not in ((), self.lead):
            raise ValueError(
                f"X has the leading axes {new}, but the posteriors have {self.lead}; pass one set of rows for each "
                "posterior, or one set for all posteriors."
            )
        named = dict(zip(("X", "y", "offset", "noise", "weights"), (X, y, *known), strict=True))
        sets = {name: split_sets(x) for name, x in named.items() if x is not None}
        if weights is not None:
            sets["weights"] = [x[:, 0] for x in sets["weights"]]
        batches = [Batch(**{name: found[i] for name, found in sets.items()}) for i in range(len(sets["X"]))]
        olds = list(zip(self.processes, self.factors, strict=True))
        olds, batches = (
            (olds * len(batches), batches) if len(olds) == 1 else (olds, batches * (len(olds) // len(batches)))
        )
        pairs = zip(olds, batches, strict=True)
        more = [process.condition_on(factor, batch, self.likelihood) for (process, factor), batch in pairs]
        processes, factors = zip(*((process, process.prepare_means(factor)) for process, factor in more), strict=True)
        return dataclasses.replace(self, processes=processes, factors=factors, lead=self.lead or new)


@public
def joint_moments(predictor: Predictor, X: Array, /, *, cross_outputs: bool) -> tuple[Array, Array]:
    """Return `predict_mean` and `predict_covariance` at X [N, D], from one evaluation of the kernel if possible."""
    process = predictor.processes[0]
    if predictor.imputations is not None or process.samples > 1 or predictor.lead:
        return predictor.predict_mean(X), predictor.predict_covariance(X, cross_outputs=cross_outputs)
    mean, variance, latent = with_common_draws(process, X).project_joint(predictor.factors[0], X)
    return mean, _covariance_of_outputs(variance, latent, process.mixing, cross_outputs=cross_outputs)


def _covariance_of_outputs(variance: Array, latent: Array, mixing: Array | None, *, cross_outputs: bool) -> Array:
    """Return covariances [P, N, N], or [N, P, N, P], from the variances [N, P] and those of the functions [L, N, N]."""
    own = latent if mixing is None else combine(mixing * mixing, latent)
    covariance = covariance_with(variance.mT, own)
    return cross_covariances(covariance, latent, mixing) if cross_outputs else covariance
