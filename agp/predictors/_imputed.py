"""Posteriors at inputs with unknown cells, averaged over possible values of these cells."""

from collections.abc import Callable
from typing import Any

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.likelihoods import Likelihood
from agp.predictors._conditional import Conditional, Observe, delegate
from agp.predictors._predictor import Predictor
from agp.processes import Paths


@tree.model
class ImputedConditional(Conditional):
    """A posterior whose inputs [n, D] may have unknown cells, which are NaN.

    Let x_s be the row x with its unknown cells replaced by those of row s of the imputations, and m(x_s) and v(x_s) the
    moments of the latent function. By the law of total variance, the moments at x are the mean E_s[m(x_s)] and the
    variance E_s[v(x_s)] + c Var_s[m(x_s)]. The factor c >= 1 allows for imputations that are a small sample themselves.
    The moments of observations follow from those at x_s in the same way, so that they are in the range of the
    observations at x_s. Densities and quantiles are those of a latent function with a normal distribution at x.

    Parameters
    ----------
    conditional
        The posterior at complete inputs.
    imputations
        Possible values [S, D] of the cells of a row.
    factors
        The factor c for each column [D]. For a row with several unknown cells, the largest of their factors is used.
    """

    conditional: Conditional
    imputations: Array = tree.constant()
    factors: Array = tree.constant()

    outputs = delegate("conditional", "outputs")  # type: ignore[override]
    width = delegate("conditional", "width")  # type: ignore[override]
    reference = delegate("conditional", "reference")  # type: ignore[override]
    rows_share_work = delegate("conditional", "rows_share_work")  # type: ignore[override]
    mixing = delegate("conditional", "mixing")  # type: ignore[override]

    takes_unknown_cells = True
    observes = True

    @property
    def floats_per_row(self) -> int:
        return self.imputations.shape[0] * self.conditional.floats_per_row

    def mean(self, X: Array, /) -> Array:
        def means(x: Array) -> tuple[Array]:
            return (self.conditional.for_rows(x).mean(x),)

        return self._by_rows(X, means)[0]

    def moments(self, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        def moments(x: Array) -> tuple[Array, Array]:
            return self.conditional.for_rows(x).moments(x)[0]

        def pullback(*_: Array) -> Array:
            msg = "predictions at unknown cells have no derivatives with respect to the inputs; fill in these cells."
            raise TypeError(msg)

        mean, variance = self._by_rows(X, moments)
        return (mean, variance), pullback

    def observed_moments(self, X: Array, observe: Observe, /) -> tuple[Array, Array]:
        def moments(x: Array) -> tuple[Array, Array]:
            return self.conditional.for_rows(x).observed_moments(x, observe)

        mean, variance = self._by_rows(X, moments)
        return mean, variance

    def covariance(self, X: Array, /) -> Array:
        """Return E_s[k(X_s, X_s)]; cells of different rows are imputed independently, which affects only the diagonal.

        Raises
        ------
        TypeError
            If the outputs are mixtures of latent functions, or the posterior is not a Gaussian process.
        """
        if self.mixing is not None:
            msg = "joint predictions of mixed outputs need complete rows; fill in missing cells, or predict marginals."
            raise TypeError(msg)
        xp, S = backend_of(X).xp, self.imputations.shape[0]
        total = None
        for s in range(S):
            completed = self.conditional.covariance(xp.where(xp.isnan(X), self.imputations[s, :], X)) / S
            total = completed if total is None else total + completed
        return total  # type: ignore[return-value]

    def paths(self, rng: Any, count: int, features: int, /) -> Paths:
        return self.conditional.paths(rng, count, features)

    def condition_on(self, X: Array, y: Array, likelihood: Likelihood, /) -> "ImputedConditional":
        return ImputedConditional(self.conditional.condition_on(X, y, likelihood), self.imputations, self.factors)

    def _by_rows(self, X: Array, evaluate: Callable[[Array], tuple[Array, ...]]) -> tuple[Array, ...]:
        """Evaluate means, or means and variances, and average those of rows with unknown cells."""
        xp = backend_of(X).xp
        unknown = xp.isnan(X)
        some = xp.any(unknown, axis=1)
        (at,), (known,) = xp.nonzero(some), xp.nonzero(~some)
        if not at.shape[0]:
            return evaluate(X)
        x, gaps = xp.take(X, at, axis=0), xp.take(unknown, at, axis=0)
        completed = xp.where(gaps[None, :, :], self.imputations[:, None, :], x[None, :, :])
        factor = xp.max(xp.where(gaps, self.factors[None, :], xp.ones_like(x)), axis=1)[:, None]
        parts = self._average(evaluate(xp.reshape(completed, (-1, X.shape[1]))), at.shape[0], factor)
        if known.shape[0]:
            others = evaluate(xp.take(X, known, axis=0))
            others = [xp.reshape(part, (-1, known.shape[0], part.shape[-1])) for part in others]
            order = xp.argsort(xp.concat([known, at]))
            pairs = zip(others, parts, strict=True)
            parts = [xp.take(xp.concat(list(pair), axis=1), order, axis=1) for pair in pairs]
        return tuple(xp.reshape(part, (-1, part.shape[-1])) for part in parts)

    def _average(self, found: tuple[Array, ...], rows: int, factor: Array) -> list[Array]:
        """Average means and variances [R S n, P] over the S imputations; return arrays [R, n, P]."""
        xp, S = backend_of(factor).xp, self.imputations.shape[0]
        each = [xp.reshape(part, (-1, S, rows, part.shape[-1])) for part in found]
        averages = [xp.mean(part, axis=1) for part in each]
        if len(averages) == 2:
            apart = each[0] - averages[0][:, None, :, :]
            averages[1] = averages[1] + factor * xp.mean(apart * apart, axis=1)
        return averages


def with_imputations(predictor: Predictor, imputations: Array, factors: Array, /) -> Predictor:
    """Return a predictor that accepts NaN in X for unknown cells; see `ImputedConditional` for the arguments."""
    filled: tuple[Any, ...] = tuple(ImputedConditional(one, imputations, factors) for one in predictor.conditionals)
    return tree.replace(predictor, {"conditionals": filled})
