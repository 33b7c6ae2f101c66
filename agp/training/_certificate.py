"""How far a bound is from what any number of inducing inputs could reach."""

import math
from typing import Any, NamedTuple

from agp.backend import Array, backend_of, placed
from agp.checks import as_columns
from agp.likelihoods import Gaussian
from agp.models import collapsed_model
from agp.random import generator
from agp.training._baseline import baseline

__all__ = ["CERTIFIED_ROWS", "Certificate", "certified", "noise_alone"]

LOG_2PI = math.log(2.0 * math.pi)
CERTIFIED_ROWS = 200_000
"""Rows that are looked at by default, at the most."""


class Certificate(NamedTuple):
    """In nats per datum."""

    bound: float
    upper: float
    """On the evidence of the exact GP at the same hyperparameters; NaN for none. The sum of both if rows were drawn."""
    gap: float
    """Between this and the bound; or, on rows that were drawn, the collapsed bound of the same rows."""
    rows: int
    """The rows that the upper bound has seen."""


def certified(
    model: Any, X: Array, y: Array, /, *, rows: int = CERTIFIED_ROWS, seed: int, memory: float | None
) -> Certificate:
    """The bound of a model per datum, and for Gaussian noise an upper bound: O(N M^2).

    Of more rows than asked for so many are drawn by the seed, but for models whose bound takes all rows in any case.
    """
    N, all_rows = X.shape[0], True
    if model.stochastic and rows < N:
        B, index = backend_of(X), placed(generator(seed, 14).permutation(N)[:rows], X)
        X, y, all_rows = B.rows_at(X, index), B.rows_at(y, index), False
    scale = {} if all_rows else {"scale": N / rows}
    bound = float(model.bound(X, y, memory=memory, **scale)[0]) / N
    collapsed = collapsed_model(model, X, y)
    if collapsed is None:
        return Certificate(bound, math.nan, math.nan, 0)
    y = collapsed.y
    upper = float(collapsed.upper_bound(X, y, memory=memory)) / X.shape[0]
    if all_rows:
        return Certificate(bound, upper, upper - bound, N)
    gap = upper - float(collapsed.bound(X, y, memory=memory)[0]) / rows  # fewer rows have less evidence each
    return Certificate(bound, bound + gap, gap, rows)


def noise_alone(y: Array, /, weights: Array | None = None) -> float:
    """The log density per row of targets [N, P] that are nothing but noise, at their means and variances; rows with
    weights [N] count that often.
    """
    if weights is not None:
        return baseline(Gaussian(), as_columns(y), weights)
    xp = backend_of(y).xp
    variances = xp.var(as_columns(y), axis=0)
    positive = xp.where(variances > 0.0, variances, xp.ones_like(variances))
    return float(-0.5 * xp.sum(xp.log(positive) + (LOG_2PI + 1.0)))
