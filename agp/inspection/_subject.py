"""A common interface to trained models and estimators: inputs, predictions, and names of columns and classes."""

import dataclasses
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from agp import tree
from agp.backend import Array, asarray_like, check_array_type, to_numpy
from agp.errors import RepairWarning
from agp.inducing import Points
from agp.inspection._table import Table, as_table, column_names
from agp.likelihoods import Bernoulli, RobustMax, Softmax
from agp.models import Model, WithNeighbours
from agp.predictors import Predictor
from agp.processes import NearestNeighbours

Z95 = 1.959963984540054
"""The 97.5 % quantile of the standard normal distribution."""

NEAR_NEIGHBOURS = 50
"""The maximum number of neighbours where very many predictions are needed."""
Host = npt.NDArray[np.float64]
INNER = re.compile(r"\blayers\.[1-9]")
"""A pattern that matches paths inside inner layers."""


@runtime_checkable
class Estimator(Protocol):
    """The interface of `agp.estimators` that this subpackage uses."""

    def model_inputs(self, X: Any) -> Array:
        """Convert rows to model inputs [N, D]."""
        ...

    def model_columns(self) -> list[str]:
        """Return the names of the D input columns."""
        ...

    def model_sources(self) -> list[str]:
        """Return, for each of the D columns, the name of the table column from which it is computed."""
        ...

    def model_levels(self) -> dict[str, list[Any]]:
        """Return the values for which the codes 0, 1, ... of each category stand."""
        ...

    def _split_rows(self, X: Any, noise: Any = None) -> tuple[Any, Any, str]:
        """Return the rows without a column of measurement errors, the known noise, and its name in messages."""
        ...

    def _known_noise(self, X: Any, noise: Any) -> Array | None:
        """Return the known noise variances of rows: those of their column of measurement errors, or `noise`."""
        ...

    def _completed_inputs(self, X: Any) -> Array:
        """Convert rows to model inputs, with a random value in each unknown cell."""
        ...

    def _imputing_predictor(self) -> Any:
        """Return the predictor of observations, which accepts unknown cells."""
        ...


class Predicted(NamedTuple):
    """Predictions as host arrays, each [N, P]."""

    mean: Host
    """The mean of observations, or the class probabilities."""
    variance: Host
    """The variance of observations."""
    lower: Host
    """The lower end of the 95 % interval for the function, on the scale of `mean`."""
    upper: Host
    """The upper end."""


@dataclass(frozen=True)
class Subject:
    """A trained model with its inputs, the names of their columns, and its classes."""

    model: Any
    predictor: Callable[[], Any]
    """Returns the predictor of observations, on the scale of the user's targets."""
    inputs: Callable[[Any], Array]
    """Converts the user's rows to model inputs X [N, D], with NaN in unknown cells of tables."""
    completed: Callable[[Any], Array]
    """Converts the user's rows to model inputs X [N, D], with a random value in each unknown cell."""
    table: Callable[[Any], Table]
    """Wraps the user's rows as a table without columns that are no inputs, such as measurement errors."""
    noise: Callable[[Any, Any], Array | None]
    """Returns the known noise of the user's rows: that of their column of measurement errors, or the one given."""
    names: tuple[str, ...] | None
    """The names of the user's columns, if they have names."""
    columns: tuple[str, ...]
    """The names of the model columns."""
    classes: tuple[Any, ...]
    """The labels; empty in regression."""
    order: tuple[int, ...] = ()
    """The positions of ordered classes among the labels, from the lowest class to the highest."""
    sources: tuple[str, ...] = ()
    """For each model column, the table column from which it is computed."""
    levels: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """The values for which the codes 0, 1, ... in a model column stand, by its name."""
    row_facts: tuple[str, ...] = ()
    """What training knew of each row, such as "weights"."""

    @property
    def groups(self) -> dict[str, list[int]]:
        """Return the indices of the model columns computed from each table column, in the order of the table."""
        found: dict[str, list[int]] = {name: [] for name in self.names or self.sources}
        for i, name in enumerate(self.sources):
            found[name].append(i)
        return found

    @property
    def several_classes(self) -> bool:
        """Whether predictions are probabilities of several classes."""
        return bool(self.order) or isinstance(self.model.likelihood, (RobustMax, Softmax))

    def terms(self, predictor: Predictor) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
        """Return the names of the components, and the columns of the table on which each of them depends."""
        terms = predictor.processes[0].terms(self.sources)
        columns = tuple(tuple(dict.fromkeys(self.sources[d] for d in term.columns)) for term in terms)
        return tuple(term.text for term in terms), columns

    def predict(self, X: Array, **known: Array | None) -> Predicted:
        """Return predictions of observations and 95 % intervals for the function at model inputs X [N, D].

        `known` are the offset and the noise of the rows; intervals are those of the function without an offset.

        The ends of an interval are the mean of the function plus and minus 1.96 standard deviations, mapped through the
        link of the likelihood. For more than two classes the ends are NaN, because intervals are not defined.
        """
        predictor = self.predictor()
        if self.order:
            mean = np.exp(host(predictor.log_probabilities(X, len(self.order))))[:, np.argsort(self.order)]
            variance = mean * (1.0 - mean)
        else:
            mean, variance = map(host, predictor.predict(X, observed=True, **known))
        if self.several_classes:
            unknown = np.full_like(mean, np.nan)
            return Predicted(mean, variance, unknown, unknown)
        latent = predictor.predict(X)
        ends = [latent.mean + side * latent.variance**0.5 for side in (-Z95, Z95)]
        return Predicted(mean, variance, *(host(of_function(predictor.average_likelihood, f)) for f in ends))

    def interval(self, X: Array) -> tuple[Host, Host]:
        """Return the ends [N, K] of intervals that contain an observation with a probability of 95 %."""
        low, high = self.predictor().interval(X, 0.95)
        return host(low), host(high)

    def targets(self, y: Any) -> Host:
        """Convert targets or labels to a NumPy array [N, K] for the model. Raise ValueError for unknown labels."""
        from array_api_compat import is_array_api_obj

        y = np.asarray(to_numpy(y) if is_array_api_obj(y) else y)
        if self.classes:
            known = np.asarray(self.classes)
            unseen = ~np.isin(y, known)
            if unseen.any():
                first, labels = y[unseen].flat[0], ", ".join(map(str, known.tolist()))
                raise ValueError(f"y has the label {str(first)!r}, but the model was trained on {labels}.")
            y = np.searchsorted(known, y)
        values = np.asarray(y, dtype=np.float64)
        return values.reshape(len(values), -1)

    def pit(self, X: Array, y: Host, seed: int = 0, **known: Array | None) -> Host:
        """Return the probability integral transforms [N, K] of targets; the transform of NaN is NaN.

        `known` are the offset and the noise of the rows.
        """
        return host(self.predictor().pit(X, asarray_like(y, X), seed=seed, **known))


def subject_of(x: Any) -> Subject:
    """Wrap an agp model or a fitted estimator. Raise TypeError for anything else."""
    if isinstance(x, Model):
        reference = tree.first_leaf(x)
        columns = column_names(x._width)
        classes = _classes_of(x.likelihood)

        def inputs(X: Any) -> Array:
            return _beside(X, reference)

        def noise(X: Any, given: Any) -> Array | None:
            return None if given is None else asarray_like(np.asarray(given, float), inputs(X))

        return Subject(x, x.predictor, inputs, inputs, as_table, noise, None, columns, classes, sources=columns)
    if not isinstance(x, Estimator) or isinstance(x, type):
        kind = x.__name__ if isinstance(x, type) else type(x).__name__
        raise TypeError(
            f"the first argument is a {kind}, but must be a model, or a fitted GPRegressor or GPClassifier."
        )
    columns = tuple(x.model_columns())  # raises if it is not fitted
    fitted = vars(x)
    names = None
    if "feature_names_in_" in fitted:
        names = tuple(str(name) for name in fitted["feature_names_in_"] if name not in fitted["left_out_"])
    classes = tuple(np.asarray(fitted["classes_"]).tolist()) if "classes_" in fitted else ()
    order = tuple(fitted["order_"].tolist()) if "order_" in fitted else ()
    inputs, completed, sources = x.model_inputs, x._completed_inputs, tuple(x.model_sources())
    facts = tuple(fitted.get("_row_facts", ()))

    def table(X: Any) -> Table:
        return as_table(x._split_rows(X)[0], names)

    parts = names, columns, classes, order, sources, x.model_levels(), facts
    return Subject(fitted["model_"], x._imputing_predictor, inputs, completed, table, x._known_noise, *parts)


def with_fewer_neighbours(x: Any) -> Any:
    """Return a model, or its predictor, with at most `NEAR_NEIGHBOURS` neighbours for each row."""
    if isinstance(x, WithNeighbours):
        return dataclasses.replace(x, neighbours=min(x.neighbours, NEAR_NEIGHBOURS), sets=None)  # type: ignore[type-var]
    if isinstance(x, Predictor):
        return dataclasses.replace(x, processes=tuple(map(_of_fewer_neighbours, x.processes)))
    return x


def _of_fewer_neighbours(process: Any) -> Any:
    if not isinstance(process, NearestNeighbours) or process.inducing is not None:  # the factor depends on k
        return process
    fewer = dataclasses.replace(process, neighbours=min(process.neighbours, NEAR_NEIGHBOURS))
    return fewer.with_search(process.search)


def of_function(likelihood: Any, f: Array) -> Array:
    """Return the means [N, P] of observations given latent function values f [N, P]."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RepairWarning)  # the variances may be 0, but are not used
        return likelihood.predict(f, 0.0 * f).mean


def _classes_of(likelihood: Any) -> tuple[int, ...]:
    if isinstance(likelihood, Bernoulli):
        return (0, 1)
    return tuple(range(likelihood.classes)) if isinstance(likelihood, (RobustMax, Softmax)) else ()


def _beside(X: Any, reference: Array) -> Array:
    """Convert NumPy rows to the library, dtype and device of the reference; return other arrays unchanged."""
    check_array_type("X", X)
    return asarray_like(X.astype(np.float64), reference) if isinstance(X, np.ndarray) else X


def host(x: Array) -> Host:
    """Convert an array of any library to a NumPy array of float64."""
    return np.asarray(to_numpy(x), dtype=np.float64)


def inducing_inputs(model: Any, /) -> dict[str, npt.NDArray[np.float64]]:
    """Return a model's inducing inputs as a dictionary that maps each node's path to a NumPy array [M, D].

    Inducing inputs of inner layers and inducing image patches are left out because they do not lie in the input space.
    """
    found = tree.nodes(model, Points)
    return {path: host(node.Z) for path, node in found.items() if not INNER.search(path)}
