"""How long the stages of a fit are expected to take, before anything is measured."""

import math
from typing import Any

from agp.backend import backend_of
from agp.selection._climb import operations
from agp.selection._race import SAMPLE
from agp.selection._signal import baseline_of
from agp.training import Piece, Score

SPEED = 2e10
"""Operations per second."""
SEARCH, TRANSFORMS, LAST = 18.0, 6.0, 0.35
"""The duration of a search, of the comparison of transforms, and of a training on all rows that starts near the
optimum, in evaluations on the same rows at this speed. A training on more rows than a sample takes one, because it is
in float32."""
INTEGRAL = 1.2
"""The seconds for an integral over hyperparameters."""
NEAR, NEAR_ROWS, NEAR_COLUMNS = 6.0, 18_000, 20
"""The seconds of training with nearest rows for so many rows and few columns, and the columns that double them."""
METRIC = 0.35
"""The duration of learning a metric, as a fraction of the training before it."""
SMALL, KERNELS, LATER = 0.6, 34.0, 24.0
"""For labels: the seconds of comparing kernels of a latent function on few rows, and the operations of comparing and
of training them further per cubed number of rows."""
SETTLED, SEVERAL, INDUCING = 6.0, 90.0, 34.0
"""The operations of a posterior of all rows per cubed number of rows, for two classes and for more, and those of a
posterior with inducing inputs per row and pair of them."""


def _evaluations(rows: int, columns: int, count: float) -> float:
    """Return the seconds of so many evaluations of an exact evidence."""
    return count * operations(rows, columns) / SPEED


def scale_of(fit: Any) -> Score:
    """Return the scale of the scores that are shown during a fit of targets."""
    shown = fit.watch.tracker.outputs and not backend_of(fit.rows.data.X).is_lazy
    return Score("error", baseline_of(fit.plan.likelihood, fit.rows.data) if shown else math.nan)


def stages_of_regression(fit: Any, *, mixed: bool, exact: bool, near: bool) -> list[Piece]:
    """Return the stages that a fit of targets is expected to go through, with their seconds."""
    total, columns = fit.rows.total, fit.rows.data.X.shape[1]
    if mixed:
        return [Piece("integrate", INTEGRAL), *([Piece("transforms", INTEGRAL)] if fit.plan.transforms else [])]
    drawn, sample = len(fit.rows.order), min(len(fit.rows.order), SAMPLE)
    found = [Piece("search", 0.1 + _evaluations(sample, columns, SEARCH))]
    if fit.plan.transforms:
        found += [Piece("transforms", _evaluations(sample, columns, TRANSFORMS))]
    rows = fit._trained_rows(min(drawn, 2000))
    training = Piece("train", _evaluations(rows, columns, 1.0 if rows > SAMPLE else SEARCH / 2.0))
    if exact:
        more = [Piece("train", _evaluations(fit._trained_rows(total), columns, LAST))] if total > rows else []
        return [*found, training, *more]
    compare = Piece("compare", 2.0 * min(drawn, 16_384) * fit.few**2 / SPEED)
    posterior = Piece("posterior", 2.0 * total * fit.few**2 / SPEED)
    if near:
        wide = (1.0 + columns / NEAR_COLUMNS) * min(1.0, (drawn / NEAR_ROWS)) ** 0.5
        neighbours = Piece("neighbours", NEAR * wide)
        return [*found, training, Piece("metric", METRIC * training.cost), neighbours, compare, posterior]
    judge = Piece("judge", 2.0 * min(drawn, 4096) * min(fit.few, 512) ** 2 / SPEED)
    last = [Piece("train", _evaluations(fit._trained_rows(3200), columns, LAST))] if drawn > 2000 else []
    return [*found, judge, training, *last, judge, compare, posterior]


def stages_of_labels(rows: tuple[int, int], total: int, latents: int, count: int, *, exact: bool) -> list[Piece]:
    """Return the stages that a fit of labels is expected to go through.

    Parameters
    ----------
    rows
        The numbers of rows for comparing kernels and for training them further.
    total, latents, count
        The numbers of all rows, of latent functions, and of inducing inputs.
    exact
        Whether the posterior is that of all rows.
    """
    found = [Piece("kernels", latents * (SMALL + KERNELS * rows[0] ** 3 / SPEED))]
    if rows[1] > rows[0] and not (exact and latents > 1):
        found.append(Piece("further rows", LATER * latents * rows[1] ** 3 / SPEED))
    if exact:
        operations_of_all = (SEVERAL if latents > 1 else SETTLED) * float(total) ** 3
    else:
        operations_of_all = INDUCING * float(total) * count**2 * latents
    return [*found, Piece("posterior", operations_of_all / SPEED)]
