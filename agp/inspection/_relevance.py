"""The relevance of each table column to the kernel and to predictions."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from agp import tree
from agp.backend import Array, asarray_like, backend_of, to_numpy
from agp.checks import check_whole
from agp.errors import count_of, explain_call, require
from agp.inducing import Inducing, Points
from agp.inspection._subject import Host, Subject, host, inducing_inputs, subject_of, with_fewer_neighbours
from agp.kernels import Kernel, OnSphere, Overlap, Projected, Stationary, pair_rows, variance_shares
from agp.likelihoods import Transformed
from agp.models import Model
from agp.processes import Deep
from agp.random import generator
from agp.summaries import columns_by_kernel
from agp.training import laplace

PAIRS = 2000
"""The number of row pairs between which the cells of a column are exchanged."""
CURVATURE_ROWS = 1000
STEP = 1e-5
"""The finite-difference step for relevances, in raw coordinates."""
MIN_PROBABILITY = 1e-300
"""The lower limit for probabilities in the log loss."""


class Lengthscale(NamedTuple):
    """The lengthscale of a stationary kernel, or of `Overlap`, for one column of the model."""

    column: str
    """The column of the table."""
    input: str
    """The model column that is computed from this table column, such as "when [days since 1970-01-01]"."""
    kernel: str
    """The path of the kernel."""
    value: float
    """The lengthscale, in the unit of the column. Different levels of a category are at the distance 1."""
    factor: float
    """exp(standard deviation of the log lengthscale); the error bar extends from value / factor to value * factor."""


class KernelRelevance(NamedTuple):
    """The relevance of each of C columns to a model's kernels."""

    names: tuple[str, ...]
    mean: Host
    """The relevances [C], from 0 to 1 for stationary kernels."""
    deviation: Host
    """The standard deviations [C] of the relevances under the hyperparameter posterior; NaN if unknown."""
    lengthscales: tuple[Lengthscale, ...]
    """The lengthscales in the order of the kernels. A shared lengthscale is listed once per column."""
    rows: int
    """The number of rows from which the standard deviations were computed; 0 if they are unknown."""
    reason: str
    """Why the standard deviations are unknown; empty if they are known."""
    settings: int = 0
    """The number of settings of the hyperparameters of which averages and standard deviations were computed, or 0."""


class PermutationImportance(NamedTuple):
    """The increase in prediction error for each of K targets when one of C columns is shuffled."""

    names: tuple[str, ...]
    mean: Host
    """The increase [C, K] in the score, averaged over the repeats."""
    deviation: Host
    """The standard deviations [C, K] of the increase over the repeats."""
    score: Host
    """The scores [K] without shuffling."""
    scoring: str
    """The score: "RMSE" in the units of the targets, or for classes "log loss" in nats per row (K = 1)."""
    rows: int


# -- by the kernel ----------------------------------------------------------------------------------------------------


@explain_call
def kernel_relevance(model: Any, X: Any = None, y: Any = None, /, *, seed: int = 0) -> KernelRelevance:
    """Compute the fraction of the prior variance that depends on each column, and the lengthscales, with error bars.

    Let x and z be two rows, and let x' be x with the cells of one column taken from z. The column's relevance is
        sum E[(f(x) - f(x'))^2] / sum E[(f(x) - f(z))^2],    E[(f(x) - f(z))^2] = k(x, x) + k(z, z) - 2 k(x, z),

    summed over 2,000 pairs of rows. This relevance is the column's total Sobol index under the prior of f. It has no
    unit, and is defined for every kernel, including sums, products and shared lengthscales. All model columns that
    encode one categorical column count as one column. Relevances sum to 1 for additive functions, and to more if
    columns interact. If the model has several kernels, their relevances are averaged. The computation runs on the host
    in double precision. Like every relevance derived from lengthscales, this one describes the prior: it is too low for
    a column with a linear effect, whose lengthscale is long. Compare `permutation_importance`.

    Parameters
    ----------
    model
        An `agp.models.Model`, or a fitted `GPRegressor` or `GPClassifier`.
    X, y
        The training data, in the form that the model or estimator accepts. Without X, the rows stored in the model are
        used or, if there are none, its inducing inputs. Error bars are Laplace approximations, computed on at most
        1,000 rows from the curvature of the bound at the hyperparameters. They require X and y unless the model stores
        its training data, as `GPR` does. For a `GPRMixture`, averages and error bars are those of its settings with the
        largest weights. Laplace approximations describe only the neighbourhood of the hyperparameters, although any
        lengthscale far longer than the range of its column fits equally well.
    seed
        The seed for drawing the pairs and choosing the rows.

    Raises
    ------
    TypeError
        If the model is deep or its kernels act on image patches, because the lengthscales then do not refer to columns.
    ValueError
        If X does not fit the model, or if X is missing and the model contains neither rows nor inducing inputs.

    Sources: Neal, "Bayesian learning for neural networks", 1996 (relevance from lengthscales); Jansen, "Analysis of
    variance designs for model output", Computer Physics Communications 1999 (the index).
    """
    from scipy.optimize import approx_fprime

    subject = subject_of(model)
    _check_columns(subject.model)
    rows = _rows(subject, X)
    subject = replace(subject, model=tree.to_backend(subject.model, "numpy", dtype="float64"))
    if len(settings := subject.model._weighted_settings()) > 1:
        return _of_settings(subject, settings, rows, seed)
    shares, lengthscales = _Shares(subject, rows, seed), _lengthscales(subject)
    mean = shares(subject.model)
    unknown = KernelRelevance(tuple(subject.groups), mean, np.full_like(mean, np.nan), lengthscales, 0, "")
    if len(tree.nodes(subject.model, Model)) > 1:
        return unknown._replace(reason="the model is an average of models, which were trained one by one")
    sample = _training_sample(subject, None if X is None else rows, y, seed)
    if sample is None:
        return unknown._replace(reason="the model does not contain its training data; pass X and y")
    if subject.row_facts and not subject.model._holds_data:
        return unknown._replace(reason=f"the model was trained with {' and '.join(subject.row_facts)} of rows")
    try:
        found = laplace(*sample)
    except (ArithmeticError, TypeError, ValueError) as error:
        return unknown._replace(reason=str(error).rstrip("."))

    def answers(vector: Host) -> Host:
        moved = found.unflatten(vector)
        logs = [np.log(scale.value) for scale in _lengthscales(replace(subject, model=moved))]
        return np.concatenate([shares(moved), logs])

    J: Any = approx_fprime(found.mean, answers, STEP)
    deviation = np.sqrt(np.sum((J @ found.covariance) * J, axis=1))
    factors = np.exp(deviation[len(mean) :])
    lengthscales = tuple(one._replace(factor=float(x)) for one, x in zip(lengthscales, factors, strict=True))
    return unknown._replace(deviation=deviation[: len(mean)], lengthscales=lengthscales, rows=len(sample[1]))


def _of_settings(subject: Subject, settings: list[tuple[float, Any]], rows: Host, seed: int) -> KernelRelevance:
    """Return the averages over weighted settings of the hyperparameters, with their standard deviations."""
    at = [replace(subject, model=model) for _, model in settings]
    weights = np.asarray([weight for weight, _ in settings])
    shares = np.stack([_Shares(one, rows, seed)(one.model) for one in at])
    mean = weights @ shares
    deviation = np.sqrt(weights @ (shares - mean) ** 2)
    first = _lengthscales(replace(subject, model=subject.model.mode))
    each = zip(weights, map(_lengthscales, at), strict=True)
    same = [(weight, found) for weight, found in each if len(found) == len(first)]
    lengthscales: tuple[Lengthscale, ...] = ()
    if first and same:
        logs = np.log([[scale.value for scale in found] for _, found in same])
        own = np.asarray([weight for weight, _ in same]) / sum(weight for weight, _ in same)
        centre = own @ logs
        spread = np.sqrt(own @ (logs - centre) ** 2)
        pairs = zip(first, np.exp(centre).tolist(), np.exp(spread).tolist(), strict=True)
        lengthscales = tuple(scale._replace(value=value, factor=factor) for scale, value, factor in pairs)
    return KernelRelevance(tuple(subject.groups), mean, deviation, lengthscales, len(rows), "", len(settings))


def _check_columns(model: Any) -> None:
    others = [node for node in tree.nodes(model, Inducing).values() if not isinstance(node, Points)]
    if tree.nodes(model, Deep) or others:
        what = "layers" if not others else "image patches"
        raise TypeError(
            f"the model has {what}, whose lengthscales do not refer to columns; use permutation_importance."
        )


def _rows(subject: Subject, X: Any) -> Host:
    """Return X [N, D] if given, otherwise the rows stored in the model or, if there are none, its inducing inputs."""
    if X is not None:
        return host(subject.inputs(X))
    rows = subject.model._held_rows().get("X")
    held = [] if rows is None else [rows]
    held += [x for name, x in tree.leaves(subject.model).items() if name.rpartition(".")[2] == "X"]
    if held:  # an average of models holds the same rows several times
        return host(held[0])
    found = [*inducing_inputs(subject.model).values()]
    if not found:
        raise ValueError(f"{type(subject.model).__name__} contains no rows; pass X.")
    return np.concatenate(found)


def _training_sample(subject: Subject, X: Host | None, y: Any, seed: int) -> tuple[Any, Host, Host] | None:
    """Return the model and a sample of the training data stored in it, or else of X and y; None without either."""
    held = tree.leaves(subject.model)
    if {"X", "y"} <= held.keys():
        names = [name for name in ("X", "y", "weights", "offset", "noise", "squares") if name in held]
        found = dict(zip(names, _sample(*(held[name] for name in names), count=CURVATURE_ROWS, seed=seed), strict=True))
        return tree.with_leaves(with_fewer_neighbours(subject.model), found), found["X"], found["y"]
    if X is None or y is None:
        return None
    targets = subject.targets(y)
    likelihood = subject.predictor().likelihood
    if isinstance(likelihood, Transformed):
        targets = likelihood.transform.forward(targets)
    if subject.order:  # the targets of the likelihood are positions in the order of the classes
        targets = np.argsort(subject.order)[targets.astype(int)].astype(float)
    A, b = _sample(X, targets, count=CURVATURE_ROWS, seed=seed)
    return subject.model, A, b


class _Shares:
    """A function that maps a model to the fractions [C] of the prior variance that depend on each column."""

    def __init__(self, subject: Subject, X: Host, seed: int) -> None:
        paths = [*columns_by_kernel(subject.model, subject.columns)]
        self.kernels = [path for path in paths if not any(path.startswith(f"{above}.") for above in paths)]
        if len(X) < 2:
            raise ValueError(
                f"X has {count_of(len(X), 'row')}, but relevance needs differences between rows; pass at least two "
                "rows."
            )
        self.pairs, self.groups = pair_rows(X, PAIRS, generator(seed, 21)), [*subject.groups.values()]

    def __call__(self, model: Any) -> Host:
        kernels = tree.nodes(model, Kernel)
        return np.mean([self._of_kernel(kernels[path]) for path in self.kernels], axis=0)

    def _of_kernel(self, kernel: Kernel) -> Host:
        shares = variance_shares(kernel, *self.pairs, self.groups)
        return np.zeros(len(self.groups)) if shares is None else np.asarray(shares)


def _lengthscales(subject: Subject) -> tuple[Lengthscale, ...]:
    """Return the lengthscales of columns. Those of combinations of columns and of unit vectors are left out."""
    sources = dict(zip(subject.columns, subject.sources, strict=True))
    kernels: dict[str, Any] = {**tree.nodes(subject.model, Stationary), **tree.nodes(subject.model, Overlap)}
    changed = [f"{path}." for kind in (OnSphere, Projected) for path in tree.nodes(subject.model, kind)]
    found = []
    for path, columns in columns_by_kernel(subject.model, subject.columns).items():
        if path in kernels and not path.startswith(tuple(changed)):
            values = np.broadcast_to(host(kernels[path].lengthscale), (len(columns),))
            found += [
                Lengthscale(sources[column], column, path, value, float("nan"))
                for column, value in zip(columns, values.tolist(), strict=True)
            ]
    return tuple(found)


def _sample(X: Array, y: Any, *others: Array, count: int, seed: int) -> tuple[Any, ...]:
    N = X.shape[0]
    if y.shape[0] != N:
        raise ValueError(f"X has {count_of(N, 'row')}, but y has {count_of(y.shape[0], 'row')}.")
    if count >= N:
        return X, y, *others
    rows = np.sort(generator(seed, 22).permutation(N)[:count])
    return tuple(backend_of(x).gather(x, rows) for x in (X, y, *others))


# -- by permutation ---------------------------------------------------------------------------------------------------


@explain_call
def permutation_importance(
    model: Any, X: Any = None, y: Any = None, /, *, repeats: int = 10, max_rows: int = 500, seed: int = 0
) -> PermutationImportance:
    """Use scikit-learn to compute the increase in prediction error when the cells of a column are shuffled.

    The results are those of `sklearn.inspection.permutation_importance` for the table columns. All model columns that
    encode one categorical column are shuffled together. The score is the root mean squared error of each target, in the
    target's unit; for classes, it is the log loss in nats. Similar columns can replace each other, so each of them is
    less important on its own than all of them together.

    Parameters
    ----------
    model
        An `agp.models.Model`, or a fitted `GPRegressor` or `GPClassifier`. Deep models are supported.
    X, y
        Rows and targets, preferably unseen in training. By default, the training data stored in the model are used;
        `GPR`, for example, stores them.
    repeats
        The number of times that each column is shuffled.
    max_rows
        The maximum number of rows. For a larger table, a random sample of this size is used. Nearest-neighbour models
        predict them from at most 50 neighbours.
    seed
        The seed for the sample and the shuffles.

    Raises
    ------
    ImportError
        If scikit-learn is not installed.
    ValueError
        If X and y do not fit the model, or if they are missing and the model contains no training data.

    Source: Breiman, "Random forests", Machine Learning 2001.
    """
    inspection = require("sklearn.inspection", "permutation_importance needs", "sklearn", package="scikit-learn")
    check_whole("repeats", repeats)
    subject = subject_of(model)
    inputs, targets = _rows_to_score(subject, X, y)
    inputs, targets = _sample(inputs, targets, count=check_whole("max_rows", max_rows), seed=seed)
    groups = subject.groups
    shuffled = _Shuffled(subject, inputs, [*groups.values()])
    places = np.repeat(np.arange(len(targets))[:, None], len(groups), axis=1)
    settings: Any = {"scoring": _score, "n_repeats": repeats, "random_state": seed}
    found: Any = inspection.permutation_importance(shuffled, places, targets, **settings)
    mean, deviation = (
        np.stack([one[what] for one in found.values()], axis=1) for what in ("importances_mean", "importances_std")
    )
    score = -np.asarray([*_score(shuffled, places, targets).values()])
    scoring = "log loss" if subject.classes else "RMSE"
    return PermutationImportance(tuple(groups), mean, deviation, score, scoring, len(targets))


def _rows_to_score(subject: Subject, X: Any, y: Any) -> tuple[Array, Host]:
    if X is None and y is None:
        held = tree.leaves(subject.model) | subject.model._held_rows()
        if not {"X", "y"} <= held.keys():
            raise ValueError(f"{type(subject.model).__name__} contains no rows with targets; pass X and y.")
        y = host(held["y"])
        likelihood = subject.predictor().likelihood
        return held["X"], likelihood.transform.inverse(y) if isinstance(likelihood, Transformed) else y
    if X is None or y is None:
        raise ValueError(f"{'X' if X is None else 'y'} is missing; give X and y.")
    return subject.inputs(X), subject.targets(y)


class _Shuffled:
    """A scikit-learn estimator whose inputs [N, C] are row numbers.

    The entry in row n and column c is the number of the row from which that cell is copied.
    """

    def __init__(self, subject: Subject, X: Array, groups: list[list[int]]) -> None:
        self.subject = replace(subject, model=with_fewer_neighbours(subject.predictor()))  # computed once
        self.X, self.host, self.groups = X, np.asarray(to_numpy(X)), groups

    def fit(self, *_: Any) -> None:
        """Do nothing, because the model is already trained."""

    def predict(self, places: npt.NDArray[np.int64]) -> Host:
        """Return means [N, K], or the probabilities of classes."""
        rows = self.host.copy()
        for group, taken in zip(self.groups, places.T, strict=True):
            rows[:, group] = self.host[taken][:, group]
        X, model = asarray_like(rows, self.X), self.subject.model
        if self.subject.order:
            order = self.subject.order
            return np.exp(host(model.log_probabilities(X, len(order))))[:, np.argsort(order)]
        mean = host(model.predict_mean(X, observed=True))
        return np.concatenate([1.0 - mean, mean], axis=1) if len(self.subject.classes) == 2 else mean


def _score(shuffled: _Shuffled, places: npt.NDArray[np.int64], y: Host) -> dict[str, float]:
    """Return the score of each target, where higher is better; missing targets are ignored."""
    predicted = shuffled.predict(places)
    if shuffled.subject.classes:
        likely = np.take_along_axis(predicted, y.astype(int), axis=1)
        return {"0": float(np.mean(np.log(np.maximum(likely, MIN_PROBABILITY))))}
    squares = np.nanmean((predicted - y[:, : predicted.shape[1]]) ** 2, axis=0)
    return {str(k): -float(x) for k, x in enumerate(np.sqrt(squares))}
