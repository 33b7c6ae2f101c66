"""Posteriors with known offsets, such as logarithms of exposures, which are added to the latent functions."""

from typing import Any

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.bounds import tile_samples
from agp.predictors._conditional import Conditional, Observe, delegate
from agp.predictors._predictor import Predictor
from agp.processes import Paths


@tree.model
class OffsetConditional(Conditional):
    """A posterior with inputs [N, D + 1], whose last column is added to every latent function."""

    conditional: Conditional

    outputs = delegate("conditional", "outputs")  # type: ignore[override]
    reference = delegate("conditional", "reference")  # type: ignore[override]
    floats_per_row = delegate("conditional", "floats_per_row")  # type: ignore[override]
    rows_share_work = delegate("conditional", "rows_share_work")  # type: ignore[override]
    mixing = delegate("conditional", "mixing")  # type: ignore[override]
    observes = delegate("conditional", "observes")  # type: ignore[assignment]

    @property
    def width(self) -> int:
        return self.conditional.width + 1

    def mean(self, X: Array, /) -> Array:
        mean = self.conditional.mean(X[:, :-1])
        return mean + tile_samples(mean.shape[0] // X.shape[0], X[:, -1:], {})[0]

    def moments(self, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        (mean, variance), pull = self.conditional.moments(X[:, :-1])
        xp, rows = backend_of(X).xp, X.shape[0]
        offset, _ = tile_samples(mean.shape[0] // rows, X[:, -1:], {})

        def pullback(mu_bar, var_bar):
            X_bar = pull(mu_bar, var_bar)
            X_bar = xp.zeros_like(X[:, :-1]) if X_bar is None else X_bar
            offset_bar = xp.sum(xp.reshape(mu_bar, (-1, rows, mu_bar.shape[1])), axis=(0, 2))
            return xp.concat([X_bar, offset_bar[:, None]], axis=1)

        return (mean + offset, variance), pullback

    def observed_moments(self, X: Array, observe: Observe, /) -> tuple[Array, Array]:
        def moved(mean: Array, variance: Array) -> tuple[Array, Array]:
            return observe(mean + tile_samples(mean.shape[0] // X.shape[0], X[:, -1:], {})[0], variance)

        return self.conditional.observed_moments(X[:, :-1], moved)

    def covariance(self, X: Array, /) -> Array:
        return self.conditional.covariance(X[:, :-1])

    def for_rows(self, X: Array, /) -> "OffsetConditional":
        return OffsetConditional(self.conditional.for_rows(X[:, :-1]))

    def paths(self, rng: Any, count: int, features: int, /) -> Paths:
        return OffsetPaths(self.conditional.paths(rng, count, features))


@tree.model
class OffsetPaths(Paths):
    """Sample functions with inputs [N, D + 1], whose last column is added to every function."""

    inner: Paths

    count = delegate("inner", "count")  # type: ignore[override]
    outputs = delegate("inner", "outputs")  # type: ignore[override]
    reference = delegate("inner", "reference")  # type: ignore[override]
    floats_per_row = delegate("inner", "floats_per_row")  # type: ignore[override]

    @property
    def width(self) -> int:
        return self.inner.width + 1

    def evaluate(self, X: Array, /) -> tuple[Array, Pullback]:
        xp = backend_of(X).xp
        samples, pull = self.inner.evaluate(X[..., :-1])

        def pullback(bar):
            by_sample = xp.sum(bar, axis=-1, keepdims=True)
            offset_bar = by_sample if X.ndim == 3 else xp.sum(by_sample, axis=0)
            return xp.concat([pull(bar), offset_bar], axis=-1)

        return samples + X[..., -1:], pullback


def with_offsets(predictor: Predictor, /) -> Predictor:
    """Return a predictor for inputs [..., N, D + 1], whose last column is added to the latent functions."""
    moved: tuple[Any, ...] = tuple(OffsetConditional(one) for one in predictor.conditionals)
    return tree.replace(predictor, {"conditionals": moved})
