"""The effect of one column on predictions, averaged over the data."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from agp.backend import Array, backend_of
from agp.checks import check_whole
from agp.errors import explain_call
from agp.inspection._subject import Z95, Host, host, of_function, subject_of, with_fewer_neighbours
from agp.inspection._table import Table, in_days, like_values
from agp.likelihoods import Transformed
from agp.models import WithNeighbours
from agp.predictors import Predictor
from agp.random import generator

MEAN_ROWS, BAND_ROWS = 500, 50
"""The maximum numbers of rows for the average prediction, and for its uncertainty."""
NEAR_ROWS = 200
"""The maximum number of rows for the average prediction of models with neighbours."""
GRID = 25
"""The maximum number of values at which the effect of a numeric column is computed."""
CATEGORIES = 12
"""The maximum number of categories; the most frequent ones are used."""
TAIL = 1.0
"""The percentage of a column's values that are left out at each end."""
FEATURES = 256
"""The number of random features for each function sample."""


class Effect(NamedTuple):
    """The average predictions at several values of one column."""

    name: str
    values: npt.NDArray[Any]
    """The numbers, NumPy dates (in UTC) or durations, or categories [G] that are inserted into the column."""
    mean: Host
    """The average prediction of observations [G, P], or the average probability of each class."""
    lower: Host
    """The lower ends [G, P] of the 95 % intervals for the average function."""
    upper: Host
    """The upper ends [G, P]."""
    is_number: bool
    """Whether the column contains numbers or times, not categories."""


@explain_call
def partial_dependence(model: Any, X: Any, column: str | int = 0, /, *, samples: int = 100, seed: int = 0) -> Effect:
    """Compute the partial dependence on a column: the average prediction if all rows have the same value in the column.

    Parameters
    ----------
    model
        An `agp.models.Model`, or a fitted `GPRegressor` or `GPClassifier`.
    X
        The inputs of the model or estimator as a table [N, D]: an array or a data frame.
    column
        The name of the column, or its number, counted from 0.
    samples
        The number of function samples for bands that have no closed form.
    seed
        The seed for drawing the samples and for choosing rows from a large table.

    Returns
    -------
    effect
        The effect. A column of numbers or times is evaluated at 25 values between its 1st and 99th percentiles, or at
        all of its values if there are at most 25; a categorical column is evaluated at its 12 most frequent values, in
        the order of the levels if it is of an ordered categorical type. Predictions
        are averaged over at most 500 rows. The band contains 95 % of the posterior of the *function*, averaged over at
        most 50 rows. For models with neighbours, predictions are averaged over at most 200 rows, without jumps
        (`NNGP.predict_mean_along`), and the band is that of at most 50 neighbours. The averages and the band are in the
        units of the observations: probabilities for classes, and class numbers 0, 1 and so on for ordered classes.

    Raises
    ------
    TypeError, ValueError
        If the arguments are not a model and a table, or the column does not exist.

    Source: Friedman, "Greedy function approximation: a gradient boosting machine", Annals of Statistics 2001.
    """
    subject, rng = subject_of(model), generator(seed, 12)
    table = subject.table(X)
    where = table.position(column)
    values, chosen = _grid(table, where), rng.permutation(table.rows)
    many, few = (
        subject.completed(table.cartesian_product(where, values, np.sort(chosen[:count])))
        for count in (NEAR_ROWS if isinstance(subject.model, WithNeighbours) else MEAN_ROWS, BAND_ROWS)
    )
    predictor = subject.predictor()
    model = predictor if isinstance(predictor.likelihood, Transformed) else subject.model  # in the unit of the targets
    mean = _average_groups(_means_along(model, many, len(values)), len(values))
    rough = with_fewer_neighbours(model)  # a joint covariance contains the union of the neighbours of all rows
    middle, lower, upper = average_prediction(rough, few, len(values), samples=samples, seed=seed)
    lower, upper = mean + lower - middle, mean + upper - middle
    if subject.classes:  # probabilities, or numbers of ordered classes
        lower, upper = np.maximum(lower, 0.0), np.minimum(upper, max(1.0, len(subject.order) - 1.0))
    return Effect(table.names[where], values, mean, lower, upper, table.is_number(where))


def average_prediction(
    model: Any, X: Array, groups: int, /, *, samples: int = 100, seed: int = 0
) -> tuple[Host, Host, Host]:
    """Compute the average predictions [G, P] in G groups of rows, and the ends of 95 % intervals.

    The rows of X [G n, D] are sorted by group, with n rows per group. If the mean of the observations equals that of
    the function, the interval is exact: its half-width is 1.96 times the square root of the average entry of the
    group's joint covariance. For other likelihoods and for deep models, the interval contains the middle 95 % of the
    function samples. Raise ValueError unless the number of samples is a whole number of at least 1.
    """
    samples = check_whole("samples", samples)
    mean = _average_groups(model.predict_mean(X, observed=True), groups)
    likelihood = model.average_likelihood if isinstance(model, Predictor) else model.likelihood
    if likelihood.mean_is_latent and likelihood.latents(1) == 1:  # the mean of observations is that of the function
        try:
            deviation = _deviation(model, X, groups)
        except TypeError:  # deep processes have no joint covariance
            pass
        else:
            return mean, mean - Z95 * deviation, mean + Z95 * deviation
    averages = [_average_groups(of_function(likelihood, f), groups) for f in _samples(model, X, groups, samples, seed)]
    lower, upper = np.percentile(np.stack(averages), [2.5, 97.5], axis=0)
    return mean, lower, upper


def _means_along(model: Any, X: Array, groups: int) -> Array:
    """Compute the means of observations [N, P] so that they do not jump between the groups.

    Row i of each group belongs to line i; nearest neighbours are those of the lines.
    """
    if not isinstance(model, WithNeighbours):
        return model.predict_mean(X, observed=True)
    xp = backend_of(X).xp
    lines = xp.permute_dims(xp.reshape(X, (groups, -1, X.shape[1])), (1, 0, 2))
    along = model.predict_mean_along(lines)
    means = xp.reshape(xp.permute_dims(along, (1, 0, 2)), (X.shape[0], along.shape[2]))
    if model.likelihood.mean_is_latent:
        return means
    return model.likelihood.predict(means, model.predict(X).variance).mean


def _deviation(model: Any, X: Array, groups: int) -> Host:
    size, found = X.shape[0] // groups, []
    predictor = model.predictor()  # computed once
    for g in range(groups):
        covariance = host(predictor.predict_covariance(X[g * size : (g + 1) * size, :]))
        found.append(np.sqrt(np.maximum(covariance.mean(axis=(1, 2)), 0.0)))
    return np.stack(found)


def _samples(model: Any, X: Array, groups: int, count: int, seed: int) -> Iterator[Array]:
    """Draw joint samples [N, P] of the latent functions, with random features if the kernel has them."""
    size = X.shape[0] // groups
    try:
        functions = model.sample_functions(count, seed=seed, features=FEATURES)
        parts = [functions(X[g * size : (g + 1) * size, :]) for g in range(groups)]
        samples = backend_of(X).xp.concat(parts, axis=1)
    except TypeError:
        samples = model.sample(X, count, seed=seed)
    return (samples[s, :, :] for s in range(count))


def _average_groups(x: Array, groups: int) -> Host:
    values = host(x)
    return values.reshape(groups, -1, values.shape[1]).mean(axis=1)


def frequent_levels(table: Table, column: int) -> npt.NDArray[Any]:
    """Return the most frequent categories of a column, in the order of its levels if there is one."""
    most = [value for value, _ in Counter(table.values(column).tolist()).most_common(CATEGORIES)]
    if (order := table.order(column)) is not None:
        most.sort(key=[*order, None].index)
    return np.asarray(most, dtype=object)


def _grid(table: Table, column: int) -> npt.NDArray[Any]:
    values = table.values(column)
    if not table.is_number(column):
        return frequent_levels(table, column)
    numbers = in_days(values)
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size:
        raise ValueError(f"the column {table.names[column]!r} has no finite numbers; choose another column.")
    distinct = np.unique(numbers)
    if distinct.size > GRID:
        low, high = np.percentile(numbers, [TAIL, 100.0 - TAIL])
        distinct = np.linspace(float(low), float(high), GRID)
    return like_values(distinct, values)
