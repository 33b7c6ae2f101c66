"""What every model offers: a bound to train on, and prediction in chunks of bounded memory."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, Self

from agp.adjoint import carrying_adjoint
from agp.backend import Array, Pullback, backend_of, like, placed
from agp.batch import Batch
from agp.bounds import tiled
from agp.checks import (
    check_finite,
    check_inputs,
    check_like,
    check_parameters,
    check_results,
    check_targets,
    check_whole,
)
from agp.draws import Draws, under
from agp.entrances import entrance
from agp.host import generator, overflow_is_judged, underflow_is_zero
from agp.leaves import first_leaf
from agp.likelihoods import Likelihood, Prediction
from agp.linalg import covariance_with, nonnegative
from agp.models._functions import FunctionSamples
from agp.models._joint import cross_covariances, output_covariances, with_own
from agp.models._mixture import average, log_average, mixture
from agp.priors import Priors
from agp.processes import Paths
from agp.repairs import counted
from agp.rows import MEMORY, row_ranges, rows_within, tile_rows

__all__ = ["Conditioned", "Model"]

FREQUENCIES = 1024
"""Random frequencies of each stationary kernel in samples of functions, unless the user says otherwise."""


class Conditioned(NamedTuple):
    """The posterior of a model, everything that does not depend on the test inputs computed."""

    mean: Callable[[Array], Array]
    """X [n, D] -> mu [n, P], at the cost of the mean alone."""
    moments: Callable[[Array], tuple[Array, Array]]
    """X [n, D] -> mu, var [n, P]."""
    covariance: Callable[[Array], Array]
    """X [n, D] -> covariances [L, n, n] of independent functions, which are the outputs unless these are mixtures."""
    floats_per_row: int
    """Numbers that `moments` holds for each row."""
    for_rows: Callable[[Array], "Conditioned"] | None = None
    """The same for a chunk X [n, D]: for predictions that average over samples, of which each row has its own array."""
    rows_share_work: bool = False
    """Whether most of the work of `moments` does not depend on the number of rows, so that they come all at once."""
    mixing: Array | None = None
    """A [P, L], where the outputs are mixtures of L functions."""

    def output_covariance(self, X: Array, /) -> Array:
        """The covariances [P, n, n] of each output with itself at X [n, D]."""
        return output_covariances(self.covariance(X), self.mixing)


class Model(ABC):
    """A model of y given X: its bound, and predictions. It is trained by `agp.train`."""

    priors: Priors = ()
    """Pairs of a pattern of leaf names and a prior."""
    stochastic: ClassVar[bool]
    """Whether the bound of a minibatch estimates the bound of all data without bias."""
    likelihood: Likelihood
    built_by: ClassVar[str] = "{name}.from_data(X, y) builds one"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if isinstance(build := vars(cls).get("from_data"), classmethod):  # a public entrance like those below
            cls.from_data = classmethod(entrance(underflow_is_zero(overflow_is_judged(build.__func__))))

    @property
    @abstractmethod
    def outputs(self) -> int:
        """The number of latent functions P."""

    @abstractmethod
    def objective(self, batch: Batch, /, *, memory: float = MEMORY) -> tuple[Array, Pullback]:
        """`bound` of a batch that is known to fit the model."""

    @counted
    @entrance
    @underflow_is_zero
    def bound(self, X: Array, y: Array, /, *, scale: float = 1.0, memory: float = MEMORY) -> tuple[Array, Pullback]:
        """The objective to maximise, a total over the N data.

        Parameters
        ----------
        X, y
            Inputs [B, D] and targets [B] or [B, K]; all data, or a minibatch if the model is `stochastic`. The
            likelihood says which K columns y has; by default one for each of the P latent functions.
        scale
            N / B.
        memory
            Budget for working arrays, in MiB: where the bound is a sum over the rows, more rows than fit are taken in
            blocks.

        Returns
        -------
        bound
            0-d.
        pullback
            ``bar=1.0 -> (model_bar, X_bar)``; X_bar is None where rows were taken in blocks.

        Inside a program that torch or JAX differentiates, the bound needs no pullback: where leaves (or X) ask for
        gradients, they get them from the same closed form.
        """
        batch = self.batch(X, y, scale=scale)
        value, pullback = carrying_adjoint(lambda model, batch: model.objective(batch, memory=memory), self, batch)
        return value, underflow_is_zero(pullback)

    def batch(self, X: Array, y: Array, /, *, scale: float = 1.0) -> Batch:
        """Data that fit the model as a batch; shapes and dtypes are checked, values are not.

        Raises
        ------
        TypeError, ValueError
            If X [B, D] or y [B] or [B, K] have other shapes, dtypes or libraries than the model.
        """
        name, reference = self._reference()
        check_inputs("X", X, finite=False)
        check_like("X", X, name, reference)
        self._check_width(X)
        self._check_parts()
        y = check_targets(X, y, finite=False)
        self._check_outputs(y)
        if not self.stochastic and scale != 1.0:
            msg = f"the bound of {type(self).__name__} needs all data at once, but scale is {scale!r}."
            raise ValueError(msg)
        return Batch(X, y, scale)

    def draws(self, rng: Any, rows: int, /) -> Draws:
        """The noise that a step on so many rows needs, drawn by a NumPy generator or an `agp.draws.Noise`."""
        return under("likelihood", Draws(self.likelihood.draws(rng, rows, self.outputs), {}))

    @property
    def site_paths(self) -> tuple[str, ...]:
        """The paths of the nodes that `site_gradients` may speak of."""
        return ()

    def site_gradients(self, batch: Batch, /, *, memory: float = MEMORY) -> dict[str, Any]:
        """What steps of sites and natural gradients need of a batch, by the path of the node that takes the step.

        Usually nothing. One pass over the rows, in blocks that fit `memory` MiB.
        """
        return {}

    def settled(self) -> Self:
        """The model in the state that a step of its sites needs; usually itself."""
        return self

    def without_rows(self) -> "Model":
        """A model with the same predictions that holds no rows of data, where there is one; usually itself."""
        return self

    @abstractmethod
    def conditioned(self, *, memory: float = MEMORY) -> Conditioned:
        """The posterior at the current leaves, with all that does not depend on test inputs computed; no checks.

        Where that takes a pass over the data, it does so in blocks that fit `memory` MiB.
        """

    @property
    def width(self) -> int:
        """The number of columns D of the inputs."""
        return self._reference()[1].shape[1]

    @abstractmethod
    def _reference(self) -> tuple[str, Array]:
        """The name and value of an array [., D] that inputs must be like."""

    def check(self, X: Array, y: Array, /) -> None:
        """Raise unless the model can be trained on valid data X [N, D], y [N, K]."""
        name, reference = self._reference()
        check_parameters(self, name, reference)
        self.batch(X, y)
        self.likelihood.check_targets(y)

    def on_first_datum(self) -> Self:
        """The model on the first of the data that it holds, to be tried at the cost of one; usually itself.

        Raises
        ------
        TypeError, ValueError
            If data, sites or actions do not have the shapes that fit each other.
        """
        return self

    def example_input(self) -> Array:
        """An input [1, D] that the model can take: the first of those that it holds, or zeros."""
        _, reference = self._reference()
        if reference.ndim == 2 and reference.shape[1] == self.width:
            return reference[:1, :]
        return backend_of(reference).xp.zeros((1, self.width), **like(reference))

    # -- what a comparison of methods asks --------------------------------------------------------------------------

    def inverted_matrices(self) -> tuple[Array, ...]:
        """The matrices [..., M, M] whose inverses the bound needs, or others whose condition numbers are no lower: they
        tell how much rounding the results may show.
        """
        return ()

    def evidence_interval(self, X: Array, y: Array, /) -> tuple[Array, Array] | None:
        """Two numbers, 0-d, between which the log evidence of the exact GP at these parameters lies; arguments as
        `bound`. None where the method does not tell.
        """
        return None

    def tightened(self) -> Self:
        """The model whose iterative solves end near the working precision of float64; usually itself."""
        return self

    # -- prediction -------------------------------------------------------------------------------------------------

    @counted
    @entrance
    @underflow_is_zero
    @overflow_is_judged
    def predict(self, X: Array, /, *, observed: bool = False, memory: float = MEMORY) -> Prediction:
        """Means and variances [N, P] of the latent functions at X [N, D], or of the observations.

        Parameters
        ----------
        X
            Test inputs, like the inputs of training; may be memory-mapped.
        observed
            Predict y rather than f: the noise is included.
        memory
            Budget for working arrays, in MiB: rows are predicted in chunks of that size.

        Raises
        ------
        TypeError, ValueError
            If X has another library, dtype, device or width than the model, or entries that are not finite.
        agp.errors.NonFiniteError
            If a prediction is NaN or infinite: no number of the dtype can hold it. (Student-t noise may have an
            infinite variance, which is predicted as such.)
        """
        self._check_test_inputs(X)
        unbounded = observed and self.likelihood.infinite_variance
        posterior = self.conditioned(memory=memory)

        def predicted(X: Array) -> Prediction:
            parts = []
            for chunk, moments in self._moments(posterior, X, memory):
                if unbounded:
                    self._refuse_nonfinite(variance=moments[1])
                moments = self.likelihood.predict(*moments) if observed else moments
                parts.append(mixture(moments, chunk.shape[0]))
            found = _joined(parts)
            self._refuse_nonfinite(mean=found.mean, **({} if unbounded else {"variance": found.variance}))
            return found

        return Prediction(*self._row_by_row(predicted, X))

    @counted
    @entrance
    @underflow_is_zero
    @overflow_is_judged
    def predict_mean(self, X: Array, /, *, memory: float = MEMORY) -> Array:
        """The means [N, P] of the latent functions alone, at the cost of the mean alone; arguments as `predict`."""
        self._check_test_inputs(X)
        posterior = self.conditioned(memory=memory)

        def averaged(X: Array) -> tuple[Array]:
            parts = [average(here.mean(chunk), chunk.shape[0]) for chunk, here in self._chunks(X, posterior, memory)]
            mean = backend_of(X).xp.concat(parts, axis=0)
            self._refuse_nonfinite(mean=mean)
            return (mean,)

        return self._row_by_row(averaged, X)[0]

    @counted
    @entrance
    @underflow_is_zero
    @overflow_is_judged
    def predict_covariance(self, X: Array, /, *, cross_outputs: bool = False) -> Array:
        """The joint covariances [P, N, N] of the latent functions at X [N, D]; O(N^2) memory.

        They are symmetric, and their diagonals are the variances of `predict`, never negative: where rounding has left
        less there, it is raised. Errors as `predict`.

        Parameters
        ----------
        X
            Test inputs, like the inputs of training.
        cross_outputs
            Return the covariances of all with all [N, P, N, P], entry [n, p, m, q] that of output p at row n with
            output q at row m: zero for independent outputs, not so for coregionalised ones (`Mixed`).
        """
        self._check_test_inputs(X)
        check_finite("X", X)
        X, posterior = self._gathered(X), self.conditioned()
        variance = _joined([moments for _, moments in self._moments(posterior, X, MEMORY)]).variance
        latent = posterior.covariance(X)
        covariance = covariance_with(variance.mT, output_covariances(latent, posterior.mixing))  # type: ignore[union-attr]
        if cross_outputs:
            covariance = with_own(covariance, cross_covariances(latent, posterior.mixing))
        self._refuse_nonfinite(covariance=covariance)
        return covariance

    @counted
    @entrance
    @underflow_is_zero
    @overflow_is_judged
    def sample(self, X: Array, count: int = 1, /, *, seed: int = 0) -> Array:
        """Joint samples [S, N, P] of the latent functions at X [N, D]; the same for one seed on every backend.

        Takes the symmetric roots of covariances [N, N] by their eigenvalues (those below zero are rounding): no
        jitter, O(L N^3) operations for L independent functions, a factorisation of the test covariance even in the
        inverse-free methods. Outputs that are mixtures of functions (`Mixed`) depend on each other as these say.

        Parameters
        ----------
        X
            Test inputs, like the inputs of training.
        count
            S.
        seed
            Of the noise, which is drawn on the host.

        Raises
        ------
        TypeError, ValueError
            As `predict`, and if the count is not a positive whole number.
        """
        count = check_whole("count", count)
        self._check_test_inputs(X)
        check_finite("X", X)
        X, posterior = self._gathered(X), self.conditioned()
        latent, mean = posterior.covariance(X), posterior.mean(X)
        if posterior.mixing is None:
            variance = _joined([moments for _, moments in self._moments(posterior, X, MEMORY)]).variance
            latent = covariance_with(variance.mT, latent)  # type: ignore[union-attr]
        self._refuse_nonfinite(covariance=latent, mean=mean)
        xp = backend_of(X).xp
        eigenvalues, vectors = xp.linalg.eigh(0.5 * (latent + latent.mT))
        scale = xp.sqrt(nonnegative(eigenvalues)[0])[:, None, :]
        noise = generator(check_whole("seed", seed, least=0), 6).standard_normal((count, *latent.shape[:2], 1))
        # the symmetric root is unique, eigenvectors are not
        rooted = (vectors * scale) @ (vectors.mT @ placed(noise, X))
        functions = xp.permute_dims(rooted[..., 0], (0, 2, 1))
        return mean + (functions if posterior.mixing is None else functions @ posterior.mixing.mT)

    @counted
    @entrance
    @underflow_is_zero
    @overflow_is_judged
    def sample_functions(self, count: int = 1, /, *, seed: int = 0, features: int = FREQUENCIES) -> FunctionSamples:
        """Samples of the latent functions as functions: of any inputs, the same whenever and in whatever parts asked.

        A sample of the prior, by random features of the kernel, is conditioned on a sample of q(u), or on the data.
        The update is exact. What the features leave to chance, the prior far from the data foremost, falls like one
        over the root of their number and is the same for all samples of a call; kernels of finite rank have none.

        Parameters
        ----------
        count
            S.
        seed
            Of all numbers, which are drawn on the host: one seed gives the same functions on every backend.
        features
            How many random frequencies stand for each stationary kernel; each is a cosine and a sine.

        Raises
        ------
        TypeError
            If a kernel has no features, such as white noise, or the model offers no such samples.
        ValueError
            If a number is not whole, or too small.

        Source: Wilson et al., "Efficiently sampling functions from Gaussian process posteriors", ICML 2020.
        """
        count, features = check_whole("count", count), check_whole("features", features)
        rng = generator(check_whole("seed", seed, least=0), 11)
        return FunctionSamples(self.paths(rng, count, features))

    def paths(self, rng: Any, count: int, features: int, /) -> Paths:
        """What `sample_functions` evaluates, drawn from a NumPy generator; no checks."""
        msg = f"{type(self).__name__} has no samples of functions; use sample at given inputs."
        raise TypeError(msg)

    @counted
    @entrance
    @underflow_is_zero
    @overflow_is_judged
    def log_density(self, X: Array, y: Array, /, *, memory: float = MEMORY) -> Array:
        """The log predictive density of each row of y [N] or [N, K] at X [N, D]: log p(y_n | x_n, data) [N].

        Of a sampled process, that of the mixture of its samples. Raises as `predict`, and ValueError for targets
        outside the likelihood's support.
        """
        return self._log_density(X, y, log_average, memory)

    @counted
    @entrance
    @underflow_is_zero
    @overflow_is_judged
    def mean_log_density(self, X: Array, y: Array, /, *, memory: float = MEMORY) -> Array:
        """The log densities of each row [N] under each sample of a sampled (deep) process, averaged over the samples.

        Never more than `log_density`, which takes the logarithm of the average; for other models the same. Tables of
        deep models in the literature report either. Arguments and errors as `log_density`.
        """
        return self._log_density(X, y, average, memory)

    def _log_density(self, X: Array, y: Array, over_samples: Callable[[Array, int], Array], memory: float) -> Array:
        self._check_test_inputs(X)
        y = check_targets(X, y, missing=self.likelihood.missing)
        self._check_outputs(y)
        if backend_of(y).is_concrete(y):
            self.likelihood.check_targets(y)
        posterior = self.conditioned(memory=memory)

        def scored(X: Array, y: Array) -> tuple[Array]:
            parts, start = [], 0
            for chunk, (mu, var) in self._moments(posterior, X, memory):
                stop = start + chunk.shape[0]
                targets, _ = tiled(mu.shape[0] // chunk.shape[0], y[start:stop, :], {})
                density = self.likelihood.predictive_log_density(mu, var, targets)
                parts.append(over_samples(density, chunk.shape[0]))
                start = stop
            density = backend_of(X).xp.concat(parts, axis=0)
            self._refuse_nonfinite(**{"log density": density})
            return (density,)

        return self._row_by_row(scored, X, y)[0]

    def _row_by_row(self, f: Callable[..., tuple], X: Array, *others: Array) -> tuple[Array, ...]:
        """What f gives of rows in memory: of all rows, or of rows that lie elsewhere chunk by chunk, when asked for."""
        B = backend_of(X)
        if not B.rows_elsewhere:
            return f(X, *others)

        def gathered(*rows: Array) -> tuple[Array, ...]:
            return f(*(self._gathered(x) for x in rows))

        return B.map_chunks(gathered, (X, *others), gathered(*(x[:1, :] for x in (X, *others))))

    def _gathered(self, X: Array) -> Array:
        """Rows that lie elsewhere as an array like the leaves; others as they are."""
        reference = first_leaf(self)
        x = backend_of(X).gathered(X)
        return x if backend_of(x) is backend_of(reference) else placed(x, reference)

    def _check_test_inputs(self, X: Array) -> None:
        name, reference = self._reference()
        check_inputs("X", X, finite=False)
        check_like("X", X, name, reference)
        self._check_width(X)
        self._check_parts()

    def _refuse_nonfinite(self, **predicted: Array) -> None:
        remedy = "look at the kernel's parameters, use standardised data or float64, or predict closer to the data"
        check_results("the predicted", predicted, remedy)

    def _moments(self, posterior: Conditioned, X: Array, memory: float) -> Iterator[tuple[Array, tuple[Array, Array]]]:
        """The chunks of X, and the marginals there."""
        for chunk, here in self._chunks(X, posterior, memory):
            yield chunk, here.moments(chunk)

    def _chunks(self, X: Array, posterior: Conditioned, memory: float) -> Iterator[tuple[Array, Conditioned]]:
        rows_of = rows_within if posterior.rows_share_work else tile_rows
        for start, stop in row_ranges(X.shape[0], rows_of(memory, posterior.floats_per_row, X)):
            chunk = X[start:stop, :]
            check_finite("X", chunk, first_row=start)
            yield chunk, posterior if posterior.for_rows is None else posterior.for_rows(chunk)

    def _check_parts(self) -> None:  # noqa: B027 - most models are made of parts that always fit
        """Raise ValueError unless the parts fit each other."""

    def _check_outputs(self, y: Array) -> None:
        needed = self.likelihood.latents(y.shape[1])
        if needed != self.outputs:
            msg = f"y has {needed} outputs, the model has {self.outputs}; build the model for such targets."
            raise ValueError(msg)
        self.likelihood.check_outputs(needed)

    def _check_width(self, X: Any) -> None:
        if X.shape[1] != self.width:
            msg = f"X has {X.shape[1]} columns, but the model was built for {self.width}."
            raise ValueError(msg)


def _joined(parts: list[tuple[Array, Array]]) -> Prediction:
    """The predictions for consecutive rows as one."""
    mean, variance = (list(column) for column in zip(*parts, strict=True))
    xp = backend_of(mean[0]).xp
    return Prediction(xp.concat(mean, axis=0), xp.concat(variance, axis=0))
