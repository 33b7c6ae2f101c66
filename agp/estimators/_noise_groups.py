"""Gaussian noise whose variance differs between the levels of a column (`GPRegressor(noise_by=...)`).

The covariance of the targets y of a sample of rows is C = K + V. K is the kernel matrix of an exact GP. An observation
of level g with the known variance n has the variance t = v_g + n, and the entry of V for a row of weight w is t / w.
Rounds alternate between training the kernel for given variances, and Fisher scoring for u_g = log v_g. With P = C^-1,
a = P (y - m), the shares r = v_g / t, and sums over rows of level g (and h), the score is

    1/2 sum_i r_i (V_i (a_i^2 - P_ii) - (w_i - 1)),

and the Fisher information is 1/2 sum_ij r_i V_i P_ij^2 V_j r_j, plus 1/2 sum_i r_i^2 (w_i - 1) if g = h. With few rows,
both are averages over settings of the hyperparameters (`GPRMixture`). The prior of u_g is a normal distribution, whose
mean and variance are estimated from all levels. Therefore, variances of levels with few rows are close to those of the
others.
"""

import math
import operator
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, cholesky

from agp.backend import asarray_like, backend_of, to_numpy
from agp.errors import count_of, name_remedy
from agp.estimators._encoding import Encoder
from agp.estimators._observations import Observations
from agp.estimators._search import search_model
from agp.predictors import LevelNoise, Predictor
from agp.random import generator
from agp.tables import ORDERED
from agp.training import Piece, Tracker

Host = npt.NDArray[np.float64]

MAX_NUMBERS, MAX_LEVELS = 50, 1000
"""The maximum number of levels of a column of numbers, and of any column."""
MAX_ROWS = 2000
"""The maximum number of rows from which the variances are estimated."""
ROUNDS, CHANGE = 3, 0.1
"""Rounds of training end after so many, or if the logarithms of the variances change by less than this number."""
STEPS, MAX_STEP, SMALL_STEP = 20, 2.0, 0.01
"""Steps of Fisher scoring: their maximum number, their maximum size, and the size after which they end."""
PRIOR_STEPS = 30
"""The number of updates of the prior in each of these steps."""
SPREAD, SPREAD_LEVELS = 1.0, 1.0
"""The scale and the weight, in levels, of the prior on the variance of u_g: without data, factors of e are typical."""
LEAST_NOISE = 1e-8
"""The smallest noise variance, as a fraction of the variance of the targets."""


class NoiseGroups(NamedTuple):
    """The levels of a column, and the noise variances of their rows."""

    levels: list[float]
    """The numbers [L] in the model inputs."""
    further: list[float]
    """Noise variances [L], in addition to the trained variance."""
    unseen: float
    """The further noise variance of rows with another level."""


def number_of_column(asked: Any, encoder: Encoder | None) -> int:
    """Return the number of the model input that holds the levels of the column `noise_by`."""
    if encoder is None or (asked not in encoder.levels and asked not in encoder.names_of_numbers):
        return operator.index(asked)
    if asked in encoder.levels:
        return encoder.categories[[*encoder.levels].index(asked)]
    return encoder.names_of_numbers.index(asked)


def check_noise_by(regressor: Any, data: Observations) -> None:
    """Raise ValueError unless noise of different variances can be learned from the training rows."""
    by = f"noise_by is {regressor.noise_by!r}, but"
    if not regressor._is_gaussian or regressor._given_transform is not None:
        transform = regressor._given_transform
        found = f"target_transform={transform!r}" if transform else f"likelihood={regressor._likelihood_name}"
        raise ValueError(f"{by} {found} does not use it; use likelihood='gaussian' without a transform.")
    if not isinstance(regressor.likelihood, str) and regressor.likelihood.noise_variance == 0.0:
        raise ValueError(f"{by} the likelihood says that there is no noise; use likelihood='gaussian'.")
    if data.y.shape[1] > 1:
        raise ValueError(f"{by} y has {count_of(data.y.shape[1], 'column')}; fit one estimator for each target.")
    if not regressor._takes_codes:
        raise ValueError(f"{by} the method {regressor.method} does not take it; use another method, such as auto.")
    if backend_of(data.X).is_lazy:
        raise ValueError(f"{by} the rows are not in memory; pass a NumPy array or a table.")
    check_column(regressor)


def check_column(regressor: Any) -> None:
    """Raise ValueError unless `noise_by` is a column of the inputs without missing numbers."""
    asked, encoder = regressor.noise_by, vars(regressor).get("columns_")
    by = f"noise_by is {asked!r}, but"
    if encoder is None or encoder.columns is None:
        count = regressor.n_features_in_
        if isinstance(asked, bool) or not isinstance(asked, Integral) or not 0 <= int(asked) < count:
            raise ValueError(
                f"{by} X has no names of columns; pass the number of a column, "
                f"{f'from 0 to {count - 1}' if count > 1 else '0'}, or pass X as a data frame."
            )
    elif asked in encoder.left_out:
        raise ValueError(f"{by} this column is left out of the inputs; name it in keep.")
    elif asked not in encoder.columns.kinds:
        raise ValueError(f"{by} there is no such column; {name_remedy(asked, encoder.columns.kinds)}")
    if encoder is not None and asked not in encoder.levels:
        number = number_of_column(asked, encoder)
        if encoder.marked[number]:
            raise ValueError(f"{by} this column has missing cells; fill them in, or convert the column to text.")


def divide_seconds(most: float | None) -> float | None:
    """Return the maximum time of one of the fits, given that of all of them."""
    return None if most is None else most / (ROUNDS + 1)


@contextmanager
def stages_of_groups(regressor: Any, tracker: Tracker) -> Iterator[None]:
    """Tell the progress the fits that learn the noise of groups, if there are any, and the last fit."""
    if regressor.noise_by is None:
        yield
        return
    pieces = [*[Piece("noise", 1.0)] * ROUNDS, Piece("fit", 1.5)]
    with tracker.inside(pieces, max_seconds=regressor.max_seconds, in_seconds=False):
        yield
        tracker.conclude(vars(regressor).get("ending_") or "converged")


def learn_noise(regressor: Any, data: Observations, tracker: Tracker, *, constant: bool) -> NoiseGroups:
    """Learn the noise variance of each level from the training rows of an estimator whose columns are known.

    If the targets are `constant`, all variances are equal. Raise ValueError if the column has too many levels.
    """
    asked = regressor.noise_by
    cells = to_numpy(data.X[:, number_of_column(asked, vars(regressor).get("columns_"))]).astype(np.float64)
    levels, group = np.unique(cells, return_inverse=True)
    is_category = asked in regressor.columns_.levels if "columns_" in vars(regressor) else False
    most = MAX_LEVELS if is_category else MAX_NUMBERS
    if len(levels) > most:
        advice = "group them" if is_category else "group them, or convert the column to text"
        raise ValueError(f"noise_by is {asked!r}, but this column has {len(levels):,} different values; {advice}.")
    if constant or len(levels) == 1:
        return NoiseGroups(levels.tolist(), [0.0] * len(levels), 0.0)
    rows = _sample(group, regressor._seed)
    B = backend_of(data.X)
    sample = Observations(*(None if x is None else B.gather(x, rows) for x in data))
    variances, counts = _alternate(regressor, sample, tracker, group[rows], len(levels)), np.bincount(group)
    least, pooled = float(variances.min()), float(counts @ variances / counts.sum())
    unseen = max(float(variances.mean()), pooled)
    return NoiseGroups(levels.tolist(), (variances - least).tolist(), unseen - least)


def with_noise_of(groups: NoiseGroups, data: Observations, regressor: Any) -> Observations:
    """Return the data with the further noise variances of the rows, in addition to those that are known."""
    column = number_of_column(regressor.noise_by, vars(regressor).get("columns_"))
    further = _level_noise(groups, column, data.X).at(data.X)
    return data._replace(noise=further if data.noise is None else data.noise + further)


def with_groups(predictor: Predictor, regressor: Any) -> Predictor:
    """Return a predictor of observations whose noise depends on their levels, if the estimator has `noise_by`."""
    here = vars(regressor)
    if here.get("_noise_groups") is None:
        return predictor
    column = number_of_column(here["noise_by"], here.get("columns_"))
    return replace(predictor, level_noise=_level_noise(here["_noise_groups"], column, predictor.reference[1]))


def _level_noise(groups: NoiseGroups, column: int, reference: Any) -> LevelNoise:
    levels, further, unseen = (asarray_like(np.atleast_1d(x), reference) for x in groups)
    return LevelNoise(levels, further, unseen, column)


def variances_by_level(regressor: Any) -> dict[Any, float]:
    """Return the noise variance of each level, by its label in the table."""
    likelihood: Any = regressor.predictor_.average_likelihood
    trained = float(to_numpy(likelihood.noise_variance))
    variances = [trained + x for x in regressor._noise_groups.further]
    return dict(zip(labels_of_levels(regressor), variances, strict=True))


def labels_of_levels(regressor: Any) -> list[Any]:
    """Return the labels of the levels in the table. Raise ValueError if a level is none of the column's."""
    asked, encoder, levels = regressor.noise_by, vars(regressor).get("columns_"), regressor._noise_groups.levels
    if encoder is None or encoder.columns is None:
        return levels
    is_ordered = encoder.columns.kinds.get(asked) == ORDERED
    known = encoder.columns.orders[asked] if is_ordered else encoder.levels.get(asked)
    if known is None:
        return [encoder.columns.label_of(asked, level) for level in levels]
    if not set(levels) <= set(range(len(known))):
        raise ValueError(
            f"it has the levels {str(levels)[:80]} of {asked!r}, which has {count_of(len(known), 'level')}"
        )
    return [known[int(level)] for level in levels]


# -- estimation -------------------------------------------------------------------------------------------------------


def _sample(group: npt.NDArray[np.intp], seed: int) -> npt.NDArray[np.intp]:
    """Return the sorted numbers of at most `MAX_ROWS` rows, with equal numbers of each level as far as it has them."""
    order = generator(seed, 36).permutation(len(group))
    first = order[np.argsort(group[order], kind="stable")]  # by level, in random order
    counts = np.bincount(group)
    place = np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen = first[np.argsort(place, kind="stable")[:MAX_ROWS]]
    return np.sort(chosen)


def _alternate(regressor: Any, sample: Observations, tracker: Tracker, group: Any, count: int) -> Host:
    """Return the variances [L] of the levels, by rounds of training exact GPs and Fisher scoring."""
    hyperparameters = "mode" if regressor.hyperparameters == "mode" else "auto"
    y = to_numpy(sample.y).astype(np.float64)[:, 0]
    with np.errstate(over="ignore"):  # the models refuse targets whose variance overflows
        floor = math.log(LEAST_NOISE * y.var())
    variances, further = np.zeros(count), np.zeros(count)
    settings_of_all: dict[str, Any] = {"method": "gpr", "hyperparameters": hyperparameters, "progress": tracker}
    for i in range(ROUNDS):
        tracker.begin("noise", f"learning the noise of {count} groups")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # only warnings about the last model matter
            noise = further[group, None] if sample.noise is None else further[group, None] + to_numpy(sample.noise)
            data = sample if i == 0 else sample._replace(noise=asarray_like(noise, sample.y))
            model: Any = search_model(regressor, data, **settings_of_all).model
        settings: list[tuple[float, Any]] = model._weighted_settings()
        trained = sum(share * float(to_numpy(one.likelihood.noise_variance)) for share, one in settings)
        before = np.maximum(np.log(np.maximum(further + trained, 1e-300)), floor)
        u = _estimate(_Rows.of(settings, sample, group, count), before, floor, start=i == 0)
        variances = np.exp(u)
        further = variances - variances.min()
        if np.abs(u - before).max() < CHANGE:
            break
    return variances


class _Rows(NamedTuple):
    """N rows, and what S settings of the hyperparameters say about them."""

    shares: list[float]
    """The weights [S] of the settings."""
    kernels: list[Host]
    """Kernel matrices [N, N]."""
    residuals: list[Host]
    """The targets without the mean [N]."""
    weights: Host
    """The numbers of observations [N]."""
    known: Host
    """The known noise variances of observations [N]."""
    group: Any
    """The numbers [N] of the levels."""
    sums: Host
    """A matrix [L, N] that adds numbers of the rows of each level."""

    @classmethod
    def of(cls, settings: list[tuple[float, Any]], sample: Observations, group: Any, count: int) -> "_Rows":
        """Evaluate the kernels and the mean functions of exact GPs."""
        X, y = sample.X, to_numpy(sample.y).astype(np.float64)
        weights = np.ones(len(y)) if sample.weights is None else to_numpy(sample.weights).astype(np.float64)
        known = np.zeros(len(y)) if sample.noise is None else to_numpy(sample.noise).astype(np.float64)[:, 0]
        kernels = [to_numpy(one.kernel(X)[0]).astype(np.float64) for _, one in settings]
        residuals = [(y - to_numpy(one.mean_function(X)[0]))[:, 0] for _, one in settings]
        shares, sums = [share for share, _ in settings], np.eye(count)[:, group]
        return cls(shares, kernels, residuals, weights, known, group, sums)

    def evaluate(self, u: Host) -> tuple[Host, Host, Host]:
        """Return the averages over the settings of the score [L], the information [L, L] and expected squares [L].

        The last are the expected squares of the learned noise of one observation of each level, or exp(u) without any
        row. Of noise e, the learned part given e has the mean r e and the variance v (1 - r).
        """
        w, sums, learned = self.weights, self.sums, np.exp(u)[self.group]
        r = learned / (learned + self.known)
        V = (learned + self.known) / w
        squares = learned * (1.0 - r) / w
        information = 0.5 * np.diag(sums @ (r**2 * np.maximum(w - 1.0, 0.0)))
        score = -0.5 * sums @ (r * (w - 1.0))
        for share, K, residual in zip(self.shares, self.kernels, self.residuals, strict=True):
            root = cholesky(K + np.diag(V), lower=True, check_finite=False)
            P = cho_solve((root, True), np.eye(len(V)), check_finite=False)
            a, diagonal, scaled = P @ residual, np.diag(P), sums * (r * V)
            score = score + share * 0.5 * scaled @ (a**2 - diagonal)
            information = information + share * 0.5 * scaled @ (P * P) @ scaled.T
            squares += share * r**2 * ((V * a) ** 2 + V - V**2 * diagonal)
        count = sums @ w
        expected = np.where(count > 0.0, sums @ (w * squares) / np.where(count > 0.0, count, 1.0), np.exp(u))
        return score, information, expected


def _estimate(rows: _Rows, u: Host, floor: float, *, start: bool) -> Host:
    """Return the logarithms [L] of the variances that have the largest posterior density, from start values [L].

    With `start`, the first step is one of the EM algorithm. Variances are at least exp(floor).
    """
    prior = float(u.mean()), SPREAD**2
    for i in range(STEPS):
        score, information, squares = rows.evaluate(u)
        if start and i == 0:
            new = np.log(squares)
        else:
            new, prior = _posterior(information, information @ u + score, prior)
            new = np.clip(new, u - MAX_STEP, u + MAX_STEP)
        new, old = np.maximum(new, floor), u
        u = new
        if np.abs(new - old).max() < SMALL_STEP:
            break
    return u


def _posterior(information: Host, target: Host, prior: tuple[float, float]) -> tuple[Host, tuple[float, float]]:
    """Return the maximum [L] of a quadratic log density with a normal prior, and the mean and variance of the prior.

    The prior is updated by the EM algorithm. The log density is -u F u / 2 + b u, with the information F and target b.
    """
    (mean, variance), (values, vectors) = prior, np.linalg.eigh(information)
    u = np.full(len(target), mean)
    for _ in range(PRIOR_STEPS):
        inverse = 1.0 / (np.maximum(values, 0.0) + 1.0 / variance)
        u = vectors @ (inverse * (vectors.T @ (target + mean / variance)))
        mean = float(u.mean())
        squares = (u - mean) ** 2 + (vectors**2) @ inverse
        variance = float((squares.sum() + SPREAD_LEVELS * SPREAD**2) / (len(u) + SPREAD_LEVELS))
    return u, (mean, variance)
