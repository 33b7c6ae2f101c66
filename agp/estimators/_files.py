"""Storage of estimators in files. A file contains everything that is required for predictions, but no code."""

import inspect
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from agp import tree
from agp.backend import asarray_like
from agp.checks import check_choice
from agp.errors import count_of, there_are
from agp.estimators._arrays import is_foreign, on_host
from agp.estimators._base import GPEstimator
from agp.estimators._classifier import GPClassifier
from agp.estimators._encoding import IMPUTATIONS, Encoder
from agp.estimators._names import with_coded_names, with_names
from agp.estimators._noise_groups import NoiseGroups, check_column, labels_of_levels
from agp.estimators._priors import decode_priors, encode_priors
from agp.estimators._regressor import GPRegressor
from agp.inspection import column_names
from agp.io import Kind, Stored, fits, register_kind
from agp.likelihoods import TRANSFORMS, Ordinal, Transform
from agp.methods import METHODS
from agp.selection import Candidate
from agp.tables import CATEGORY, KINDS, MISSING, NUMBER, ORDERED, Columns, Style
from agp.training import Round

KIND, TRANSFORM = "estimator", "transform_"
CLASSES = {"GPRegressor": GPRegressor, "GPClassifier": GPClassifier}
FITTED_TYPES: dict[str, type] = {
    "method_": str,
    "n_features_in_": int,
    "n_rows_seen_": int,
    "n_iter_": int,
    "bound_": float,
    "converged_": bool,
    "learned_": bool,
    "_seed": int,
    "_single": bool,
}
"""The types of the attributes that training sets, except for the model, the columns, the classes and the history."""
TEXT_LABELS = ("object", "str")
LABELS = (*TEXT_LABELS, "bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)))
LABELS += ("float16", "float32", "float64", *(f"datetime64[{unit}]" for unit in ("D", "s", "ms", "us", "ns")))
"""The dtypes that labels may have: text (as NumPy strings or Python objects), Booleans, numbers, or dates."""


def register() -> None:
    """Register estimators with `agp.save` and `agp.load`."""
    register_kind(KIND, Kind(GPEstimator, serialise, deserialise))


# -- writing ----------------------------------------------------------------------------------------------------------


def serialise(estimator: GPEstimator) -> Stored:
    """Return the file contents for a trained estimator.

    Raises
    ------
    sklearn.exceptions.NotFittedError
        If the estimator is not trained.
    TypeError
        If a parameter, a label or a column name cannot be stored in a file. The message names this item.
    """
    check_is_fitted(estimator, "bound_")  # set last
    if type(estimator) not in CLASSES.values():
        raise TypeError(f"{type(estimator).__name__} is not a class of agp; save its model_ instead.")
    here = vars(estimator)
    parameters = {name: _plain(name, value) for name, value in estimator.get_params(deep=False).items()}
    parts = {name: value for name, value in parameters.items() if tree.is_model(value)}
    parts |= {TRANSFORM: here[TRANSFORM]} if here.get(TRANSFORM) is not None else {}
    facts: dict[str, Any] = {
        "class": type(estimator).__name__,
        "parameters": {name: value for name, value in parameters.items() if name not in parts},
        "learned": {name: _scalar(here[name]) for name in FITTED_TYPES if name in here},
    }
    if "feature_names_in_" in here:
        facts["names"] = [str(name) for name in here["feature_names_in_"]]
    if "_largest" in here:
        facts["largest"] = here["_largest"]
    if "_row_facts" in here:
        facts["known of rows"] = here["_row_facts"]
    if "noise_by_" in here:
        variances = [float(x) for x in here["noise_by_"].values()]
        facts["noise groups"] = here["_noise_groups"]._asdict() | {"variances": variances}
    facts["left out"] = [str(name) for name in here["left_out_"]]
    if "columns_" in here:
        facts["columns"] = state_of(here["columns_"])
    facts["history"] = list(estimator.history_)
    arrays = {f"history.{name}": np.asarray(steps, float) for name, steps in estimator.history_.items()}
    if "ending_" in here:
        facts["ending"] = here["ending_"]
    if "candidates_" in here:
        numbers = {name: column for name, column in here["candidates_"].items() if name != "kernel"}
        facts["candidates"] = {"kernel": here["kernel_"], "compared": here["candidates_"]["kernel"]}
        arrays |= {f"candidates.{name}": np.asarray(column, float) for name, column in numbers.items()}
    if "growth_" in here:
        facts["growth"] = here["growth_reason_"]
        arrays |= {f"growth.{name}": np.asarray(values, float) for name, values in estimator.growth_.items()}
    if "classes_" in here:
        facts["classes"] = _labels(here["classes_"])
    if "order_" in here:
        facts["order"] = here["order_"].tolist()
    return Stored(estimator.model_, KIND, facts, parts, arrays)


def _scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _plain(name: str, value: Any) -> Any:
    """Convert a parameter to the form that is written to a file."""
    value = _scalar(value)
    if name == "verbose":  # log files are those of this machine
        return value is True
    if name == "dtype" and value is not None and not isinstance(value, str):
        return str(value).rpartition(".")[2].rstrip("'>")  # numpy.float32, torch.float64, ...
    if isinstance(value, (list, tuple)) and all(type(_scalar(name)) in (int, str) for name in value):
        return [_scalar(name) for name in value]
    if name == "priors" and isinstance(value, Mapping):
        return encode_priors(value)
    if name == "class_weight" and isinstance(value, Mapping):  # keys of JSON are text, but labels may be numbers
        return [[_plain(name, _scalar(label)), float(factor)] for label, factor in value.items()]
    finite = not isinstance(value, float) or math.isfinite(value)
    if (type(value) in (bool, int, float, str) and finite) or value is None or tree.is_model(value):
        return value
    remedy = f"set a number or a string with set_params({name}=...)"
    raise TypeError(f"the parameter {name} is {value!r:.80}, which cannot be stored in a file; {remedy}.")


def _labels(given: Any) -> dict[str, Any]:
    """Convert labels to the form that is written to a file; `foreign` marks arrays of libraries other than NumPy."""
    classes = on_host(given)
    name = "str" if classes.dtype.kind == "U" else classes.dtype.name
    values = (classes.astype(np.int64) if classes.dtype.kind == "M" else classes).tolist()
    if name not in LABELS or (name in TEXT_LABELS and not all(type(value) is str for value in values)):
        what = "strings, numbers, Booleans or dates"
        raise TypeError(f"labels of dtype {classes.dtype} cannot be saved; use {what}, and fit again.")
    return {"dtype": name, "values": values, "foreign": is_foreign(given)}


# -- reading ----------------------------------------------------------------------------------------------------------


def deserialise(found: Stored, asked: Mapping[str, str | None]) -> GPEstimator:
    """Return the estimator that `serialise` stored, after checking all of its entries.

    Parameters
    ----------
    found
        The contents of a file.
    asked
        The backend, device and dtype that replace those of the estimator.

    Raises
    ------
    LookupError, TypeError, ValueError
        If an entry is missing, has a wrong type, or is inconsistent with other entries.
    """
    facts = found.facts
    cls = CLASSES[facts["class"]]
    estimator = cls(**_parameters(cls, found, asked))
    check_choice("missing", estimator.missing, MISSING)  # constructors check nothing
    learned = _fitted_attributes(cls, facts["learned"])
    vars(estimator).update(learned, model_=found.model)
    if "names" in facts:
        count, names = learned["n_features_in_"], facts["names"]
        what = f"the names of {count} columns"
        names = _check(len(_texts(names, what)) == count, names, what)
        estimator.feature_names_in_ = np.asarray(names, dtype=object)
    estimator.left_out_ = _texts(facts["left out"], "a list of strings")
    if "largest" in facts:
        largest = facts["largest"]
        sound = isinstance(largest, list) and all(type(x) is float and 0.0 < x < math.inf for x in largest)
        estimator._largest = _check(sound and len(largest) > 0, largest, "the largest targets")
    if "known of rows" in facts:
        estimator._row_facts = _texts(facts["known of rows"], "what was known of the training rows")
    if "columns" in facts:
        _restore_columns(estimator, facts["columns"])
    estimator.history_ = {name: found.arrays[f"history.{name}"].tolist() for name in facts["history"]}
    if "ending" in facts:
        estimator.ending_ = _check(isinstance(facts["ending"], str), facts["ending"], "the reason why training ended")
    if "candidates" in facts:
        compared = facts["candidates"]
        estimator.kernel_ = str(compared["kernel"])
        numbers = {name: found.arrays[f"candidates.{name}"].tolist() for name in Candidate._fields if name != "kernel"}
        estimator.candidates_ = {"kernel": [str(name) for name in compared["compared"]], **numbers}
    if "growth" in facts:
        reason = facts["growth"]
        estimator.growth_reason_ = _check(isinstance(reason, str), reason, "the reason why growth ended")
        estimator.growth_ = {name: found.arrays[f"growth.{name}"].tolist() for name in Round._fields}
    if cls is GPClassifier:
        _restore_classes(estimator, facts, found.model)
    else:
        estimator.transform_ = _checked_transform(estimator, found.parts.get(TRANSFORM))
        _restore_noise(estimator, facts.get("noise groups"))
    _check_fit(estimator)
    estimator._prepare_search()
    return estimator


def _restore_columns(estimator: Any, stored: dict[str, Any]) -> None:
    """Set the encoder of the columns."""
    state, left_out = with_names(stored)
    estimator.columns_, estimator.left_out_ = encoder_of(state), left_out or estimator.left_out_
    if estimator.columns_.columns is not None:
        estimator.columns_.columns.left_out = estimator.left_out_


def _checked_transform(estimator: Any, transform: Any) -> Transform | None:
    """Return the transform of the targets. Raise ValueError unless it is one that the parameters allow."""
    name = transform.short_name if isinstance(transform, Transform) else transform
    possible = (None, *TRANSFORMS) if estimator.target_transform == "auto" else (estimator._given_transform,)
    return _check(name in possible, transform, "the transform of its targets")


def _restore_noise(estimator: Any, facts: Mapping[str, Any] | None) -> None:
    """Set the noise variances of the levels of a column, if there are any, after checking them."""
    if (facts is None) != (estimator.noise_by is None):
        raise ValueError(f"it has {'no ' if facts is None else ''}noise variances of levels")
    if facts is None:
        return
    levels, further, variances, unseen = (facts[name] for name in ("levels", "further", "variances", "unseen"))
    sound = all(isinstance(x, list) and len(x) == len(levels) > 0 for x in (levels, further, variances))
    numbers: list[Any] = [*further, *variances, unseen] if sound else [None]
    sound = sound and all(type(x) is float and math.isfinite(x) for x in [*levels, *numbers]) and min(numbers) >= 0.0
    _check(sound, facts, "noise variances of levels")
    estimator._noise_groups = NoiseGroups(levels, further, unseen)
    check_column(estimator)
    estimator.noise_by_ = dict(zip(labels_of_levels(estimator), variances, strict=True))


def _restore_classes(estimator: Any, facts: Mapping[str, Any], model: Any) -> None:
    classes, beside = _classes(facts["classes"]), tree.first_leaf(model)
    foreign = facts["classes"]["foreign"] and is_foreign(beside)
    estimator.classes_ = asarray_like(classes, beside) if foreign else classes
    if "order" in facts:
        estimator.order_ = _order(facts["order"], len(classes))


def _fitted_attributes(cls: type, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that training sets, after checking that all are present and have the right types."""
    for name, value in facts.items():
        if type(value) is not FITTED_TYPES[name]:
            raise TypeError(f"its {name} is {value!r:.80}, which has the wrong type")
    expected = FITTED_TYPES.keys() - ({"_single"} if cls is GPClassifier else set())
    if missing := sorted(expected - facts.keys()):
        raise ValueError(f"it has no {missing[0]}")
    if facts["method_"] not in METHODS:
        raise ValueError(f"its method is {facts['method_']!r:.80}, which is not a method of agp")
    return dict(facts)


def _parameters(cls: type, found: Stored, asked: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the arguments of the constructor, after checking their types."""
    given = {**found.facts["parameters"], **found.parts}
    parameters = {name: value for name, value in given.items() if name != TRANSFORM}
    if isinstance(pairs := parameters.get("class_weight"), list):
        sound = all(isinstance(pair, list) and len(pair) == 2 and type(pair[1]) is float for pair in pairs)
        parameters["class_weight"] = dict(_check(sound, pairs, "factors of labels"))
    if isinstance(frozen := parameters.get("frozen"), list):
        parameters["frozen"] = tuple(_texts(frozen, "patterns of frozen parameters"))
    if isinstance(priors := parameters.get("priors"), list):
        parameters["priors"] = decode_priors(priors, found)
    declared = inspect.get_annotations(cls.__init__, eval_str=True)
    for name, value in parameters.items():
        if name not in declared or not fits(value, declared[name]):
            raise ValueError(f"{cls.__name__} does not take {name:.80}={value!r:.80}")
    if asked["backend"] is not None:
        parameters |= {"backend": asked["backend"], "device": None}
    return parameters | {name: value for name, value in asked.items() if value is not None}


def _check(sound: bool, found: Any, what: str) -> Any:
    """Return `found`. Raise ValueError unless `sound` is true; `what` describes the expected value."""
    if not sound:
        raise ValueError(f"it has {str(found)[:80]} instead of {what}")
    return found


def _texts(found: Any, what: str, *, gaps: bool = False) -> list[Any]:
    """Check a list of strings, and return it. Entries may be None if `gaps` is true."""
    sound = isinstance(found, list) and all(isinstance(text, str) or (gaps and text is None) for text in found)
    return _check(sound, found, what)


def _classes(facts: Any) -> Any:
    name, values = facts["dtype"], facts["values"]
    kind = str if name in TEXT_LABELS else bool if name == "bool" else float if name.startswith("float") else int
    sound = name in LABELS and isinstance(values, list) and all(type(value) is kind for value in values)
    _check(sound, facts, "labels")
    classes = np.asarray(values, dtype=name)
    if len(classes) < 2 or (classes[1:] <= classes[:-1]).any():
        raise ValueError("its labels are not sorted, or some labels are repeated")
    return classes


def _order(found: Any, count: int) -> Any:
    sound = isinstance(found, list) and all(type(k) is int for k in found) and sorted(found) == [*range(count)]
    return np.asarray(_check(sound, found, f"the order of {count} labels"))


def _check_fit(estimator: Any) -> None:
    """Raise ValueError unless the columns, the model and the labels are consistent."""
    model, encoder = estimator.model_, vars(estimator).get("columns_")
    given = width = estimator.n_features_in_
    if encoder is not None:
        columns, width = encoder.columns, len(encoder.sources())
        names = encoder.names_of_numbers if columns is None else [*columns.kinds, *columns.left_out]
        given = len(names)
        if "feature_names_in_" in vars(estimator) and sorted(estimator.feature_names_in_) != sorted(names):
            raise ValueError("its column names differ from those of its fitted columns")
    if "feature_names_in_" in vars(estimator) and (encoder is None or encoder.columns is None):
        raise ValueError("it has column names, but no fitted columns")
    if (given, width) != (estimator.n_features_in_, model._width):
        needed = f"{count_of(estimator.n_features_in_, 'column')} and {model._width} inputs"
        raise ValueError(f"its {count_of(given, 'column')} become {width} inputs, but its model needs {needed}")
    count = estimator.classes_.shape[0] if "classes_" in vars(estimator) else 0
    expected = type(estimator._likelihood()) if count else estimator._likelihood_class
    outputs = estimator._likelihood().latents(1) if count else model.outputs
    if not isinstance(model.likelihood, expected) or outputs != model.outputs:
        raise ValueError(f"its model has a likelihood other than {expected.__name__}, or does not fit its labels")
    if count and isinstance(model.likelihood, Ordinal) and model.likelihood.classes != count:
        raise ValueError(f"its model has {model.likelihood.classes} ordered classes, but {there_are(count, 'label')}")
    if not count and estimator._single and model.outputs != model.likelihood.latents(1):
        raise ValueError(f"its model has {count_of(model.outputs, 'output')}, but must have one output")


# -- columns ----------------------------------------------------------------------------------------------------------


def state_of(encoder: Encoder) -> dict[str, Any]:
    """Convert a fitted encoder to text, numbers and lists. Raise TypeError if a column name cannot be stored."""
    columns = encoder.columns
    learned = {"means": encoder.means.tolist(), "marked": encoder.marked.tolist()}
    learned["quantiles"] = encoder.quantiles.tolist() if encoder.missing == "impute" else []
    if columns is None:
        return {"of": "array", **learned}
    learned |= {"one hot": encoder.one_hot, "effects": {name: x.tolist() for name, x in encoder.effects.items()}}
    forms = {name: vars(columns)[name] for name in ("orders", "styles", "ranges", "truths")}
    found = {"of": "frame", "missing": columns.missing, "kinds": columns.kinds, "levels": columns.levels}
    return with_coded_names({**found, **forms, **learned}, columns.left_out)


def encoder_of(state: dict[str, Any]) -> Encoder:
    """Restore an encoder from what `state_of` returned. Raise LookupError, TypeError or ValueError if it is damaged."""
    means, marked, of_array = state["means"], state["marked"], state["of"] == "array"
    sound = all(type(mean) is float for mean in means) and all(type(mark) is bool for mark in marked)
    _check(sound and len(means) == len(marked), state, "means and missing cells")
    one_hot = not of_array and _check(isinstance(state["one hot"], bool), state["one hot"], "an encoding")
    encoder = Encoder("impute" if of_array else state["missing"], one_hot=one_hot)
    check_choice("missing", encoder.missing, MISSING)
    encoder.columns = None if of_array else _columns(state, encoder.missing)
    encoder.names_of_numbers = [*column_names(len(means))] if encoder.columns is None else encoder.columns.numbers
    if len(encoder.names_of_numbers) != len(means) or (encoder.missing == "refuse" and any(marked)):
        raise ValueError("its columns do not match the fitted means and categories")
    encoder.means, encoder.marked = np.asarray(means, dtype=np.float64), np.asarray(marked, dtype=bool)
    encoder.quantiles = _quantiles(state["quantiles"], len(means), stored=encoder.missing == "impute")
    encoder.effects = {} if of_array else _effects(state["effects"], encoder.levels)
    return encoder


def _effects(found: Any, levels: dict[str, list[Any]]) -> dict[str, Any]:
    """Return the effects of the levels of categories from a file."""
    sound = isinstance(found, dict) and {*found} <= {*levels}
    for name, effects in _check(sound, found, "effects of levels").items():
        sound = isinstance(effects, list) and len(effects) == len(levels[name])
        sound = sound and all(type(x) is float and math.isfinite(x) for x in effects)
        _check(sound, effects, "effects of levels")
    return {name: np.asarray(found[name], dtype=np.float64) for name in levels if name in found}


def _columns(state: dict[str, Any], missing: str) -> Columns:
    """Restore the columns of a table, after checking all entries."""
    columns, kinds, levels = Columns(missing), state["kinds"], state["levels"]
    sound = isinstance(kinds, dict) and {*kinds.values()} <= {*KINDS}
    columns.kinds = _check(sound and len(kinds) > 0, kinds, "kinds of columns")
    columns.table = [*kinds]
    categories = [name for name, kind in kinds.items() if kind == CATEGORY]
    columns.levels = _check(isinstance(levels, dict) and [*levels] == categories, levels, "levels of its categories")
    for of_column in levels.values():
        texts = _texts(of_column, "a list of strings", gaps=True)
        known = [text for text in texts if text is not None]
        distinct = len({*known}) == len(known) and texts in (known, [*known, None])
        if not texts or not distinct or (None in texts and missing == "refuse"):
            raise ValueError("some of its categories are repeated, or a column has none")
    _restore_forms(columns, state)
    return columns


def _restore_forms(columns: Columns, state: dict[str, Any]) -> None:
    """Restore the orders of levels, the styles of numbers and the ranges of dates, after checking them."""
    orders, styles, ranges = state["orders"], state["styles"], state["ranges"]
    ordered = [name for name, kind in columns.kinds.items() if kind == ORDERED]
    columns.orders = _check(isinstance(orders, dict) and [*orders] == ordered, orders, "orders of its categories")
    for levels in orders.values():
        known = _texts(levels, "a list of ordered levels")
        _check(0 < len(known) == len({*known}), known, "different ordered levels")
    for name, style in styles.items():
        texts = _texts(style, "a style of numbers")
        sound = columns.kinds.get(name) == NUMBER and len(texts) == 2 and texts[0] in (".", ",")
        columns.styles[name] = Style(*_check(sound, texts, "a style of numbers"))
    for name, words in state.get("truths", {}).items():
        sound = columns.kinds.get(name) == NUMBER and len(_texts(words, "words for false and true")) == 2
        columns.truths[name] = _check(sound, words, "words for false and true")
    for name, ends in ranges.items():
        sound = name in columns.times and isinstance(ends, list) and [*map(type, ends)] == [float, float]
        low, high = _check(sound, ends, "the first and the last date of a column")
        columns.ranges[name] = low, high


def _quantiles(found: Any, width: int, *, stored: bool) -> Any:
    """Return quantiles [S, D] from a file; zeros if they are not stored, because no cell may be missing."""
    if not stored:
        return np.zeros((IMPUTATIONS, width))
    sound = isinstance(found, list) and len(found) == IMPUTATIONS
    sound = sound and all(isinstance(row, list) and len(row) == width for row in found)
    sound = sound and all(type(x) is float and math.isfinite(x) for row in found for x in row)
    return np.asarray(_check(sound, found, "quantiles of its columns")).reshape(IMPUTATIONS, width)
