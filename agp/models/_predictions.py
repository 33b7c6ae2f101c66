"""The predictions of a model: those of its predictor, asked for once."""

from collections.abc import Sequence

from agp._context import public
from agp.backend import Array
from agp.checks import check_whole
from agp.likelihoods import Prediction
from agp.models._protocol import ModelProtocol
from agp.predictors import FREQUENCIES, FunctionSamples, Predictor, check_test_inputs
from agp.speculation import speculate

__all__ = ["Predictions"]


class Predictions(ModelProtocol):
    """What models share with their predictors."""

    @public
    def predictor(self, *, memory: float | None = None) -> Predictor:
        """What answers at the cost of test inputs alone: the posterior of the model as it is, computed once.

        Predictions of the model are those of its predictor, to the bit; ask the predictor where there are several.

        Parameters
        ----------
        memory
            Budget for working arrays, in MiB, where that takes a pass over the data; None as in `bound`.
        """
        conditional, _ = speculate(lambda: self._conditional(memory=memory), self._reference()[1])
        return Predictor((conditional,), self.likelihood)

    def _predictor_at(self, X: Array, memory: float | None = None) -> Predictor:
        """The predictor, once it is known that X fits: that costs nothing."""
        check_test_inputs(X, self._width, *self._reference())
        self._check_parts()
        return self.predictor(memory=memory)

    @public
    def predict(self, X: Array, /, *, observed: bool = False, memory: float | None = None) -> Prediction:
        """`Predictor.predict` of the model's predictor: means and variances [..., N, P] at X [..., N, D]."""
        return self._predictor_at(X, memory).predict(X, observed=observed, memory=memory)

    @public
    def predict_mean(self, X: Array, /, *, memory: float | None = None) -> Array:
        """`Predictor.predict_mean`: the means [..., N, P] alone."""
        return self._predictor_at(X, memory).predict_mean(X, memory=memory)

    @public
    def gradient(self, X: Array, /, *, memory: float | None = None) -> Prediction:
        """`Predictor.gradient`: the derivatives [..., N, P, D] of means and variances in X."""
        return self._predictor_at(X, memory).gradient(X, memory=memory)

    @public
    def quantile(self, X: Array, q: float | Sequence[float], /, *, memory: float | None = None) -> Array:
        """`Predictor.quantile`: quantiles [..., N, K] of observations, or [Q, ..., N, K]."""
        return self._predictor_at(X, memory).quantile(X, q, memory=memory)

    @public
    def interval(self, X: Array, level: float = 0.9, /, *, memory: float | None = None) -> tuple[Array, Array]:
        """`Predictor.interval`: the ends [..., N, K] of intervals that hold observations with such a probability."""
        return self._predictor_at(X, memory).interval(X, level, memory=memory)

    @public
    def predict_covariance(self, X: Array, /, *, cross_outputs: bool = False) -> Array:
        """`Predictor.predict_covariance`: joint covariances [..., P, N, N]."""
        return self._predictor_at(X).predict_covariance(X, cross_outputs=cross_outputs)

    @public
    def sample(self, X: Array, count: int = 1, /, *, seed: int = 0) -> Array:
        """`Predictor.sample`: joint samples [..., S, N, P] of the latent functions at X."""
        count = check_whole("count", count)
        return self._predictor_at(X).sample(X, count, seed=seed)

    @public
    def sample_functions(self, count: int = 1, /, *, seed: int = 0, features: int = FREQUENCIES) -> FunctionSamples:
        """`Predictor.sample_functions`: samples of the latent functions as functions."""
        return self.predictor().sample_functions(count, seed=seed, features=features)

    @public
    def log_density(self, X: Array, y: Array, /, *, memory: float | None = None) -> Array:
        """`Predictor.log_density`: log p(y_n | x_n, data) [N] of each row."""
        return self._predictor_at(X, memory).log_density(X, y, memory=memory)

    @public
    def mean_log_density(self, X: Array, y: Array, /, *, memory: float | None = None) -> Array:
        """`Predictor.mean_log_density`: the same, averaged over the samples of a deep process."""
        return self._predictor_at(X, memory).mean_log_density(X, y, memory=memory)
