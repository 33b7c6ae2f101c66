"""Noise of observations whose variance depends on the level of a column of the inputs."""

from agp import tree
from agp.backend import Array, backend_of

TOLERANCE = 1e-6
"""Numbers are equal if they differ by less than this fraction, which is above the rounding of float32."""


@tree.model
class LevelNoise:
    """Further noise variances of observations, by the level of a column of the inputs.

    Parameters
    ----------
    levels
        The numbers [L] that the column may contain.
    variances
        The noise variance of each level [L], in squared units of the targets, which is added to the trained variance.
    unseen
        The noise variance [1] of rows with any other number, or an unknown cell (NaN).
    column
        The number of the column.
    """

    levels: Array = tree.constant()
    variances: Array = tree.constant()
    unseen: Array = tree.constant()
    column: int = 0

    def at(self, X: Array, /) -> Array:
        """Return the noise variances [..., N, 1] of rows X [..., N, D]."""
        xp = backend_of(X).xp
        cells = X[..., self.column : self.column + 1]
        equal = xp.astype(xp.abs(cells - self.levels) <= TOLERANCE * xp.abs(self.levels), X.dtype)
        count = xp.sum(equal, axis=-1, keepdims=True)
        total = xp.sum(equal * self.variances, axis=-1, keepdims=True)
        return xp.where(count > 0.0, total / xp.where(count > 0.0, count, xp.ones_like(count)), self.unseen)
