"""What every model offers: a bound to train on, and prediction in chunks of bounded memory."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

from agp.backend import Array, Pullback, backend_of, to_numpy
from agp.batch import Batch
from agp.checks import check_finite, check_inputs, check_like, check_parameters, check_targets, check_whole
from agp.host import generator
from agp.likelihoods import Likelihood, Prediction
from agp.repairs import counted
from agp.rows import MEMORY, row_ranges, tile_rows

__all__ = ["Conditioned", "Model"]


class Conditioned(NamedTuple):
    """The posterior of a model, everything that does not depend on the test inputs computed."""

    mean: Callable[[Array], Array]
    """X [n, D] -> mu [n, P], at the cost of the mean alone."""
    moments: Callable[[Array], tuple[Array, Array]]
    """X [n, D] -> mu, var [n, P]."""
    covariance: Callable[[Array], Array]
    """X [n, D] -> covariances [P, n, n]."""
    floats_per_row: int
    """Numbers that `moments` holds for each row."""


class Model(ABC):
    """A model of y given X: its bound, and predictions. It is trained by `agp.train`."""

    stochastic: ClassVar[bool]
    """Whether the bound of a minibatch estimates the bound of all data without bias."""
    likelihood: Likelihood

    @property
    @abstractmethod
    def outputs(self) -> int:
        """The number of latent functions P."""

    @abstractmethod
    def objective(self, batch: Batch, /, *, memory: float = MEMORY) -> tuple[Array, Pullback]:
        """`bound` of a batch that is known to fit the model."""

    @counted
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
        """
        return self.objective(self.batch(X, y, scale=scale), memory=memory)

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
        y = check_targets(X, y, finite=False)
        self._check_outputs(y)
        if not self.stochastic and scale != 1.0:
            msg = f"the bound of {type(self).__name__} needs all data at once, but scale is {scale!r}."
            raise ValueError(msg)
        return Batch(X, y, scale)

    def draws(self, rng: Any, rows: int, /) -> dict[str, Any]:
        """The noise that a step on so many rows needs, as host arrays by name, from a NumPy generator."""
        return {}

    @abstractmethod
    def conditioned(self) -> Conditioned:
        """The posterior at the current leaves, with all that does not depend on test inputs computed; no checks."""

    @abstractmethod
    def _reference(self) -> tuple[str, Array]:
        """The name and value of an array [., D] that inputs must be like."""

    def check(self, X: Array, y: Array, /) -> None:
        """Raise unless the model can be trained on valid data X [N, D], y [N, K]."""
        name, reference = self._reference()
        check_parameters(self, name, reference)
        self.batch(X, y)
        self.likelihood.check_targets(y)

    # -- prediction -------------------------------------------------------------------------------------------------

    @counted
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
        """
        self._check_test_inputs(X)
        posterior = self.conditioned()
        parts = []
        for chunk in self._chunks(X, posterior.floats_per_row, memory):
            moments = posterior.moments(chunk)
            parts.append(self.likelihood.predict(*moments) if observed else moments)
        xp = backend_of(X).xp
        mean, variance = (xp.concat(list(column), axis=0) for column in zip(*parts, strict=True))
        return Prediction(mean, variance)

    @counted
    def predict_mean(self, X: Array, /, *, memory: float = MEMORY) -> Array:
        """The means [N, P] of the latent functions alone, at the cost of the mean alone; arguments as `predict`."""
        self._check_test_inputs(X)
        posterior = self.conditioned()
        parts = [posterior.mean(chunk) for chunk in self._chunks(X, posterior.floats_per_row, memory)]
        return backend_of(X).xp.concat(parts, axis=0)

    @counted
    def predict_covariance(self, X: Array, /) -> Array:
        """The joint covariances [P, N, N] of the latent functions at X [N, D]; O(N^2) memory."""
        self._check_test_inputs(X)
        check_finite("X", X)
        return self.conditioned().covariance(X)

    @counted
    def sample(self, X: Array, count: int = 1, /, *, seed: int = 0) -> Array:
        """Joint samples [S, N, P] of the latent functions at X [N, D]; the same for one seed on every backend.

        Takes the symmetric roots of the P covariances [N, N] by their eigenvalues (those below zero are rounding): no
        jitter, O(P N^3) operations, a factorisation of the test covariance even in the inverse-free methods.

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
        posterior = self.conditioned()
        mean, covariance = posterior.mean(X), posterior.covariance(X)
        B = backend_of(X)
        xp = B.xp
        eigenvalues, vectors = xp.linalg.eigh(covariance)
        scale = xp.sqrt(xp.maximum(eigenvalues, xp.zeros_like(eigenvalues)))[:, None, :]
        noise = generator(check_whole("seed", seed, least=0), 6).standard_normal((count, *mean.mT.shape, 1))
        noise = B.from_numpy(noise, dtype=str(to_numpy(X[:1, :]).dtype), device=B.device_name(X))
        rooted = (vectors * scale) @ (vectors.mT @ noise)  # the symmetric root is unique, eigenvectors are not
        return mean + xp.permute_dims(rooted[..., 0], (0, 2, 1))

    @counted
    def log_density(self, X: Array, y: Array, /, *, memory: float = MEMORY) -> Array:
        """The log predictive density of each row of y [N] or [N, K] at X [N, D]: log p(y_n | x_n, data) [N].

        Raises as `predict`, and ValueError for targets outside the likelihood's support.
        """
        self._check_test_inputs(X)
        y = check_targets(X, y)
        self._check_outputs(y)
        self.likelihood.check_targets(y)
        posterior = self.conditioned()
        parts, start = [], 0
        for chunk in self._chunks(X, posterior.floats_per_row, memory):
            stop = start + chunk.shape[0]
            parts.append(self.likelihood.predictive_log_density(*posterior.moments(chunk), y[start:stop, :]))
            start = stop
        return backend_of(X).xp.concat(parts, axis=0)

    def _check_test_inputs(self, X: Array) -> None:
        name, reference = self._reference()
        check_inputs("X", X, finite=False)
        check_like("X", X, name, reference)
        self._check_width(X)

    def _chunks(self, X: Array, floats_per_row: int, memory: float) -> Iterator[Array]:
        for start, stop in row_ranges(X.shape[0], tile_rows(memory, floats_per_row, X)):
            chunk = X[start:stop, :]
            check_finite("X", chunk, first_row=start)
            yield chunk

    def _check_outputs(self, y: Array) -> None:
        needed = self.likelihood.latents(y.shape[1])
        if needed != self.outputs:
            msg = f"y has {needed} outputs, the model has {self.outputs}; build the model for such targets."
            raise ValueError(msg)

    def _check_width(self, X: Any) -> None:
        name, reference = self._reference()
        if X.shape[1] != reference.shape[1]:
            msg = f"X has {X.shape[1]} columns, {name} has {reference.shape[1]}; they must live in one space."
            raise ValueError(msg)
