"""The effect of one column on predictions, averaged over the data."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from agp.backend import Array, backend_of, like, to_numpy
from agp.checks import check_whole
from agp.inspection._subject import Z95, Host, host, of_function, subject_of
from agp.inspection._table import Table, as_table
from agp.random import generator

MEAN_ROWS, BAND_ROWS = 500, 50
"""The most rows over which means are averaged, and from which the uncertainty of the average is computed."""
GRID = 25
"""Values of a column of numbers."""
CATEGORIES = 12
"""The number of categories, the most frequent ones."""
TAIL = 1.0
"""The percentage left out at either end of a column."""
FEATURES = 256
"""Random frequencies of a sampled function."""


class Effect(NamedTuple):
    """The average prediction at values of one column."""

    name: str
    values: npt.NDArray[Any]
    """[G], numbers or categories."""
    mean: Host
    """[G, P], of observations: values, or probabilities."""
    lower: Host
    """[G, P]: the average of the function lies between them with 95 %."""
    upper: Host
    is_number: bool


def partial_dependence(model: Any, X: Any, column: str | int = 0, /, *, samples: int = 100, seed: int = 0) -> Effect:
    """The partial dependence of predictions on a column: their average over the rows, all with one value there.

    Parameters
    ----------
    model
        An `agp.models.Model`, or a fitted `GPRegressor` or `GPClassifier`.
    X
        A table [N, D] as the model or estimator takes it: an array, or a data frame.
    column
        A name, or a number from 0 on.
    samples
        Of the function, where its band has no closed form.
    seed
        Of the rows that stand for a large table, and of samples.

    Returns
    -------
    effect
        At 25 values between the first and the last percent of a column of numbers, or at all that it has if these are
        fewer; at the 12 most frequent categories. Means are over 500 rows at most. The band holds 95 % of the
        posterior of the average *function* over 50 rows at most: of observations, in their units, or of probabilities,
        or of the numbers 0, 1, ... of classes in an order.

    Raises
    ------
    TypeError, ValueError
        For what is no model or table, and for a column that does not exist.

    Source: Friedman, "Greedy function approximation: a gradient boosting machine", Annals of Statistics 2001.
    """
    subject, rng = subject_of(model), generator(seed, 12)
    table = as_table(X, subject.names)
    where = table.position(column)
    values, chosen = _grid(table, where), rng.permutation(table.rows)
    many, few = (
        subject.inputs(table.crossed(where, values, np.sort(chosen[:count]))) for count in (MEAN_ROWS, BAND_ROWS)
    )
    mean = _averaged(observed_mean(subject.model, many), len(values))
    middle, lower, upper = average_prediction(subject.model, few, len(values), samples=samples, seed=seed)
    if subject.classes:  # probabilities, or numbers of classes in an order
        top = max(1.0, len(subject.order) - 1.0)
        lower, upper = np.maximum(mean + lower - middle, 0.0), np.minimum(mean + upper - middle, top)
    else:
        lower, upper = mean + lower - middle, mean + upper - middle
    return Effect(table.names[where], values, mean, lower, upper, table.is_number(where))


def average_prediction(
    model: Any, X: Array, groups: int, /, *, samples: int = 100, seed: int = 0
) -> tuple[Host, Host, Host]:
    """The average prediction over each of G groups of the rows X [G n, D], and its 95 % interval, each [G, P].

    Where observations have the function's own mean the interval is exact: 1.96 times the root of the average entry of
    the joint covariance of the group. Elsewhere, and in deep models, it holds the middle 95 % of samples of the
    function. ValueError unless the number of samples is a whole number from 1 on.
    """
    samples = check_whole("samples", samples)
    mean = _averaged(observed_mean(model, X), groups)
    if _observes_function(model, X):
        try:
            deviation = _deviation(model, X, groups)
        except TypeError:  # a deep process has no joint covariance
            pass
        else:
            return mean, mean - Z95 * deviation, mean + Z95 * deviation
    averages = [_averaged(of_function(model.likelihood, f), groups) for f in _samples(model, X, groups, samples, seed)]
    lower, upper = np.percentile(np.stack(averages), [2.5, 97.5], axis=0)
    return mean, lower, upper


def observed_mean(model: Any, X: Array) -> Array:
    """The mean of observations [N, P], without computing variances if it is the mean of the function."""
    return model.predict_mean(X) if _observes_function(model, X) else model.predict(X, observed=True).mean


def _observes_function(model: Any, X: Array) -> bool:
    """Whether observations have the mean of the function, tested on one value."""
    xp = backend_of(X).xp
    mean = xp.full((1, model.outputs), 0.25, **like(X))
    observed = model.likelihood.predict(mean, xp.ones_like(mean))[0]
    return np.array_equal(to_numpy(observed), to_numpy(mean))


def _deviation(model: Any, X: Array, groups: int) -> Host:
    size, found = X.shape[0] // groups, []
    predictor = model.predictor()  # computed once
    for g in range(groups):
        covariance = host(predictor.predict_covariance(X[g * size : (g + 1) * size, :]))
        found.append(np.sqrt(np.maximum(covariance.mean(axis=(1, 2)), 0.0)))
    return np.stack(found)


def _samples(model: Any, X: Array, groups: int, count: int, seed: int) -> Iterator[Array]:
    """Joint samples [N, P] of the latent functions, from random features if the kernel has them."""
    size = X.shape[0] // groups
    try:
        functions = model.sample_functions(count, seed=seed, features=FEATURES)
        parts = [functions(X[g * size : (g + 1) * size, :]) for g in range(groups)]
        samples = backend_of(X).xp.concat(parts, axis=1)
    except TypeError:
        samples = model.sample(X, count, seed=seed)
    return (samples[s, :, :] for s in range(count))


def _averaged(x: Array, groups: int) -> Host:
    values = host(x)
    return values.reshape(groups, -1, values.shape[1]).mean(axis=1)


def _grid(table: Table, column: int) -> npt.NDArray[Any]:
    values = table.values(column)
    if not table.is_number(column):
        return np.asarray([value for value, _ in Counter(values.tolist()).most_common(CATEGORIES)], dtype=object)
    values = values[np.isfinite(values)]
    if not values.size:
        msg = f"the column {table.names[column]!r} has no numbers."
        raise ValueError(msg)
    distinct = np.unique(values)
    if distinct.size <= GRID:
        return distinct
    low, high = np.percentile(values, [TAIL, 100.0 - TAIL])
    return np.linspace(float(low), float(high), GRID)
