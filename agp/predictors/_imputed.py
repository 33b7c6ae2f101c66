"""Moments at inputs with unknown cells, averaged over possible values of these cells."""

from collections.abc import Callable

from agp import tree
from agp.backend import Array, backend_of
from agp.chunking import repeat_rows


@tree.model
class Imputations:
    """Possible values of unknown cells, which are NaN, in rows of inputs [n, D].

    Let x_s be the row x with its unknown cells replaced by those of row s of the imputations, and m(x_s) and v(x_s) the
    moments of the latent function. By the law of total variance, the moments at x are the mean E_s[m(x_s)] and the
    variance E_s[v(x_s)] + c Var_s[m(x_s)]. The factor c >= 1 allows for imputations that are a small sample themselves.
    The moments of observations follow from those at x_s in the same way, so that they are in the range of the
    observations at x_s. Densities and quantiles are those of a latent function with a normal distribution at x.

    Parameters
    ----------
    values
        Possible values [S, D] of the cells of a row.
    factors
        The factor c for each column [D]. For a row with several unknown cells, the largest of their factors is used.
    """

    values: Array = tree.constant()
    factors: Array = tree.constant()

    @property
    def count(self) -> int:
        """The number of imputations S."""
        return self.values.shape[0]

    def average_covariances(self, X: Array, evaluate: Callable[[Array], Array]) -> Array:
        """Return E_s[evaluate(X_s)]; cells of rows are imputed independently, which affects only the diagonal."""
        xp = backend_of(X).xp
        completed = (xp.where(xp.isnan(X), self.values[s, :], X) for s in range(self.count))
        total = evaluate(next(completed)) / self.count
        for one in completed:
            total = total + evaluate(one) / self.count
        return total

    def average(
        self, X: Array, evaluate: Callable[..., tuple[Array, ...]], *known: Array | None, of_logs: bool = False
    ) -> tuple[Array, ...]:
        """Evaluate means, or means and variances, at X [n, D], and average those of rows with unknown cells.

        ``evaluate(X, *known)`` returns arrays [R n, P] for R samples of a process. `known` are arrays [n, .] or None.
        Means [R n, P, K] of K terms come with their covariances [R n, P, K, K].
        If `of_logs` is true, the array contains logarithms of means.
        """
        xp = backend_of(X).xp
        unknown = xp.isnan(X)
        some = xp.any(unknown, axis=1)
        (at,), (complete,) = xp.nonzero(some), xp.nonzero(~some)
        if not at.shape[0]:
            return evaluate(X, *known)
        x, gaps = xp.take(X, at, axis=0), xp.take(unknown, at, axis=0)
        completed = xp.where(gaps[None, :, :], self.values[:, None, :], x[None, :, :])
        factor = xp.max(xp.where(gaps, self.factors[None, :], xp.ones_like(x)), axis=1)[:, None]
        here = (repeat_rows(_take(one, at), self.count) for one in known)
        found = evaluate(xp.reshape(completed, (-1, X.shape[1])), *here)
        parts = self._average_logs(found[0], at.shape[0]) if of_logs else self._average(found, at.shape[0], factor)
        if complete.shape[0]:
            others = evaluate(*(_take(one, complete) for one in (X, *known)))
            others = [xp.reshape(part, (-1, complete.shape[0], *part.shape[1:])) for part in others]
            order = xp.argsort(xp.concat([complete, at]))
            pairs = zip(others, parts, strict=True)
            parts = [xp.take(xp.concat(list(pair), axis=1), order, axis=1) for pair in pairs]
        return tuple(xp.reshape(part, (-1, *part.shape[2:])) for part in parts)

    def _average(self, found: tuple[Array, ...], rows: int, factor: Array) -> list[Array]:
        """Average means and variances [R S n, P], or covariances, over the S imputations; return arrays [R, n, P]."""
        xp, S = backend_of(factor).xp, self.count
        each = [xp.reshape(part, (-1, S, rows, *part.shape[1:])) for part in found]
        averages = [xp.mean(part, axis=1) for part in each]
        if len(averages) == 2:
            apart = each[0] - averages[0][:, None, ...]
            joint = each[1].ndim > apart.ndim  # covariances of terms
            square = apart[..., :, None] * apart[..., None, :] if joint else apart * apart
            factor = xp.reshape(factor, (-1, *(1 for _ in each[1].shape[3:])))
            averages[1] = averages[1] + factor * xp.mean(square, axis=1)
        return averages

    def _average_logs(self, logs: Array, rows: int) -> list[Array]:
        """Average numbers over the S imputations, given their logarithms [R S n, P]; return logarithms [R, n, P]."""
        xp = backend_of(logs).xp
        each = xp.reshape(logs, (-1, self.count, rows, logs.shape[-1]))
        largest = xp.max(each, axis=1)
        return [largest + xp.log(xp.mean(xp.exp(each - largest[:, None, :, :]), axis=1))]


def _take(x: Array | None, rows: Array) -> Array | None:
    return None if x is None else backend_of(x).xp.take(x, rows, axis=0)
