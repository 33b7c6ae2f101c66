"""Files that store a model, or an object that contains a model."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from agp import tree
from agp.backend import Array, Backend, backend_of, get_backend, like
from agp.checks import check_leaf_like
from agp.errors import BackendError, FileError, NonFiniteError, NotPositiveDefiniteError, explain_call
from agp.io._atomic import explain_write_errors, remove_leftovers, write_atomically
from agp.io._checkpoint import arrays_by_path
from agp.io._classes import known_classes
from agp.io._container import pack, refusing, unpack
from agp.io._structure import array_leaves, decode_model, structure_of
from agp.likelihoods import Likelihood
from agp.models import Model
from agp.predictors import Predictor
from agp.priors import check_priors
from agp.processes import MixedPrecision
from agp.repairs import collect_reports

VERSION = 1
KIND = "model"
REMEDY = "name another file."
DTYPES = ("float64", "float32")
PARTS, BESIDE = "parts/", "beside/"
"""Name prefixes of arrays that are not leaves of the model. They differ from all leaf names, which have no slash."""


class Stored(NamedTuple):
    """The content of a model file."""

    model: Any
    kind: str
    """The kind of object that contains the model, or "model" if none does."""
    facts: Mapping[str, Any]
    """Text, numbers, lists and dictionaries."""
    parts: Mapping[str, Any]
    """Further models, or parts of models, by name."""
    arrays: Mapping[str, Any]
    """Further NumPy arrays, by name."""
    known: Mapping[str, type] = MappingProxyType({})
    """In a file that is read: the classes that it may contain, by name."""
    path: str | Path = "the file"


class Kind(NamedTuple):
    """The functions that write and read one kind of object that contains a model."""

    cls: type
    taken_apart: Callable[[Any], Stored]
    put_together: Callable[[Stored, Mapping[str, str | None]], Any]
    """Build the object from the content of a file and the requested backend, device and dtype."""


HOMES = {"estimator": "agp.estimators"}
"""The subpackage that registers each kind. It is imported when a file of the kind is loaded."""
_KINDS: dict[str, Kind] = {}


def register_kind(name: str, kind: Kind) -> None:
    """Register a kind whose name is a key of `HOMES`, so that `agp.save` and `agp.load` support its objects."""
    _KINDS[name] = kind


# -- writing ----------------------------------------------------------------------------------------------------------


@explain_call
def save(model: Any, path: str | Path) -> None:
    """Save a model, or a part of one, to a safetensors file. `load` restores it bit for bit.

    Parameters
    ----------
    model
        A model of any array library, a part such as a kernel or a likelihood (with or without values), or a trained
        estimator of `agp.estimators`. Settings that are lists are loaded as tuples. Automatic
        differentiation graphs are not saved.
    path
        The file, usually named ``*.safetensors``. It is written atomically. The target of a symbolic link is replaced.

    Raises
    ------
    agp.errors.FileError
        If the file cannot be written. An existing file is then unchanged.
    TypeError
        If the model has settings that files cannot hold, such as functions. The message names the field.
    ValueError
        If a leaf is not finite or violates its constraint, or if the shapes of the leaves do not match.

    Examples
    --------
    Parts of models are also saved, such as a kernel whose lengthscale is yet to be chosen from data.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import agp
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "kernel.safetensors"
    ...     agp.save(agp.Matern32(variance=2.0), path)
    ...     kernel = agp.load(path)
    >>> kernel
    Matern32(variance=2.0)
    """
    save_with_metadata(path, model, {})


def save_with_metadata(path: str | Path, model: Any, notes: Mapping[str, Any]) -> None:
    """Save like `save`, and add notes (lists and dictionaries of text and numbers) for `load_with_metadata`."""
    kind = next((kind for kind in _KINDS.values() if isinstance(model, kind.cls)), None)
    stored = Stored(model, KIND, {}, {}, {}) if kind is None else kind.taken_apart(model)
    model = stored.model
    if not tree.is_model(model):
        cls = model if isinstance(model, type) else type(model)
        what = f"{'the class ' if model is cls else ''}{cls.__module__}.{cls.__qualname__}"
        raise TypeError(f"agp.save takes a model, a part of a model, or an estimator of agp.estimators, not {what}.")
    structures, arrays = {}, arrays_by_path({BESIDE.removesuffix("/"): dict(stored.arrays)})
    for name, part in {"": model, **stored.parts}.items():
        structures[name], leaves = _encode_model(path, part)
        arrays |= {f"{PARTS}{name}/{leaf}" if name else leaf: x for leaf, x in leaves.items()}
    first = next(iter(array_leaves(model).values()), None)
    B = None if first is None else backend_of(first)
    content = {
        "kind": stored.kind,
        "version": VERSION,
        "backend": B and B.name,
        "device": B and B.device_name(first),
        "model": structures.pop(""),
        "facts": {**stored.facts, "notes": dict(notes)} if notes else dict(stored.facts),
    } | ({"parts": structures} if structures else {})
    file = pack(arrays, content)
    with explain_write_errors(path):
        remove_leftovers(path)
        write_atomically(path, file)


def _encode_model(path: str | Path, model: Any) -> tuple[Any, dict[str, Any]]:
    """Return the structure and the arrays of a model, after checking that a file with them can be loaded."""
    structure, classes = structure_of(model)
    arrays = arrays_by_path(array_leaves(model))
    try:
        decode_model(structure, arrays, classes, path)
        check_whole_model(model)
    except (LookupError, TypeError, ValueError) as error:
        raise (TypeError if isinstance(error, TypeError) else ValueError)(
            f"the model cannot be saved: {str(error).removesuffix('.')}."
        ) from error
    return structure, arrays


# -- reading ----------------------------------------------------------------------------------------------------------


@explain_call
def load(
    path: str | Path,
    *,
    backend: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    classes: Iterable[type] = (),
) -> Any:
    """Load the model or estimator that `save` wrote, bit for bit. Loading runs no code from the file.

    Parameters
    ----------
    path
        The file.
    backend, device
        The array library and the device of the leaves. The defaults are those of the saved model. If you choose another
        library, its default device is used.
    dtype
        "float64" or "float32" for all leaves. By default, each leaf keeps its dtype.
    classes
        Your own classes that the model contains. No module is imported to find these classes.

    Raises
    ------
    agp.errors.FileError
        If the file does not hold a model, is damaged, has a newer format, or contains unknown classes or a model that
        cannot predict. The error also occurs if the library or the device of the saved model is not available.
    agp.errors.BackendError
        If the requested backend is not available.
    ImportError
        If the file holds an estimator, and the extra ``sklearn`` is not installed.
    TypeError, ValueError
        If another argument is invalid.

    Examples
    --------
    Predictions are the same bit for bit. A model for predictions may also be loaded in single precision.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 6.0, 20)[:, None]
    >>> model = agp.GPR.from_data(X, np.sin(X[:, 0]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "model.safetensors"
    ...     agp.save(model, path)
    ...     loaded, single = agp.load(path), agp.load(path, dtype="float32")
    >>> bool(np.all(loaded.predict_mean(X) == model.predict_mean(X)))
    True
    >>> single.X.dtype.name
    'float32'
    """
    return load_with_metadata(path, backend=backend, device=device, dtype=dtype, classes=classes)[0]


def load_with_metadata(
    path: str | Path,
    *,
    backend: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    classes: Iterable[type] = (),
) -> tuple[Any, dict[str, Any]]:
    """Load like `load`, and return the object and the notes that `save_with_metadata` added."""
    if dtype not in (None, *DTYPES):
        raise ValueError(f"dtype is {dtype!r}, but must be one of {', '.join(DTYPES)}.")
    known = known_classes(classes)
    with refusing(path, KIND, REMEDY):
        arrays, content = unpack(path)
        _check_kind(path, content)
        place = _place(path, content, backend, device)
        parts = content.get("parts", {})
        beside = _take_prefix(arrays, BESIDE) if content["kind"] != KIND else {}
        structures = {"": content["model"], **parts}
    if place is not None:
        B, where = place
        with np.errstate(over="ignore", under="ignore"):  # infinite and zero leaves are found later
            for name, x in arrays.items():
                arrays[name] = B.from_numpy(x, dtype=dtype if x.dtype.kind == "f" else None, device=where)
    with refusing(path, KIND, REMEDY):
        arrays_of = {name: _take_prefix(arrays, f"{PARTS}{name}/") for name in parts}
        arrays_of[""] = arrays
        models = {name: decode_model(node, arrays_of[name], known, path) for name, node in structures.items()}
        for one in models.values():
            check_whole_model(one)
    stored = Stored(models.pop(""), content["kind"], content["facts"], models, beside, known, path)
    notes = stored.facts.get("notes", {})
    if stored.kind == KIND:
        return stored.model, notes
    kind = _kind_named(stored.kind, path)
    with refusing(path, KIND, REMEDY):
        return kind.put_together(stored, {"backend": backend, "device": device, "dtype": dtype}), notes


def _take_prefix(arrays: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Remove and return the arrays whose names have a prefix, by name without the prefix."""
    return {name.removeprefix(prefix): arrays.pop(name) for name in [*arrays] if name.startswith(prefix)}


def _check_kind(path: str | Path, content: Any) -> None:
    """Raise an error unless agp can read files of this kind and version."""
    found = content if isinstance(content, dict) else {}
    kind, version = found.get("kind"), found.get("version")
    if kind == "checkpoint":
        raise FileError(f"{path} is a checkpoint, not a {KIND}; resume it with agp.train(..., checkpoint=...).")
    if type(version) is int and version > VERSION:
        raise FileError(
            f"{path} has format {version!s:.20}, but this version of agp reads format {VERSION}; upgrade agp."
        )
    if version != VERSION or kind not in (KIND, *HOMES):
        raise ValueError(f"it holds {kind!r:.80} of version {version!r:.80}")
    if not isinstance(found.get("facts"), dict) or "model" not in found:
        raise ValueError("it holds no model")


def _kind_named(name: str, path: str | Path) -> Kind:
    """Import the subpackage that registers a kind, and return the kind. An ImportError names the missing extra."""
    try:
        importlib.import_module(HOMES[name])
    except ImportError as error:
        raise ImportError(f"{path} holds an {name}: {error}") from error
    return _KINDS[name]


def _place(
    path: str | Path, content: Mapping[str, Any], backend: str | None, device: str | None
) -> tuple[Backend, str | None] | None:
    """Return the backend and the device (None: the default) for a file's arrays, or None if no backend is named."""
    wrote, there = content.get("backend"), content.get("device")
    if not isinstance(wrote, str | None) or not isinstance(there, str | None):
        raise TypeError("its backend or its device is not text")
    if wrote is None and backend is None:
        return None
    try:
        B = get_backend(str(wrote) if backend is None else backend)
    except BackendError as error:
        if backend is not None:
            raise
        hint = 'name another library, such as backend="numpy"'
        raise FileError(f"{path} was written with {wrote:.80}, which is not available here; {hint}.") from error
    devices = B.devices()
    names = ", ".join(devices)
    if device is not None:
        # "cuda" matches "cuda:0", "cuda:1", ...
        if not any(name == device or name.startswith(f"{device}:") for name in devices):
            raise FileError(f"device is {device!r}, but {B.name} has only {names} here.")
        return B, device
    if wrote == B.name and there and there not in devices:
        raise FileError(
            f"{path} was written on the device {there!r:.80} of {B.name}, but {B.name} has only {names} here; "
            "choose a device."
        )
    return B, (there or None) if wrote == B.name else None


# -- checks of models before they are saved and after they are loaded -------------------------------------------------


def check_whole_model(model: Any) -> None:
    """Check that the arrays of a model or a model part match each other, are finite and satisfy their constraints.

    If the model is complete, also predict at one input, with only the first row of the model's data, which quickly
    reveals shapes that do not match. Numerical problems, such as a matrix without a Cholesky factor, are not errors
    here. If a check fails, raise a TypeError or ValueError, which names the leaf if only one is at fault.
    """
    arrays = array_leaves(model)
    apart = {
        tree.join_path(path, name) for path, one in tree.nodes(model, MixedPrecision).items() for name in one.in_float64
    }
    for leaf in tree.describe(model):
        if leaf.name in arrays and leaf.name not in apart:
            check_leaf_like(leaf, *next(iter(arrays.items())))
    for leaf in tree.describe(model):
        if leaf.name in arrays and bool(leaf.constraint.is_violated(leaf.value)):
            raise ValueError(f"the leaf {leaf.name} is not {leaf.constraint.name} and finite")
    for likelihood in tree.nodes(model, Likelihood).values():
        if not tree.missing(likelihood) and array_leaves(likelihood).keys() == tree.leaves(likelihood).keys():
            likelihood.check_parameters()
    if isinstance(model, Model):
        if missing := tree.missing(model) + [name for name in tree.leaves(model) if name not in arrays]:
            raise ValueError(f"the leaf {missing[0]} has no array; build the model with from_data")
        check_priors(model)
        small = model._on_first_datum()
        _, held = small._reference()
        same_width = held.ndim == 2 and held.shape[1] == small._width
        _try_input(small, held[:1, :] if same_width else _zeros(held, small._width))
    elif isinstance(model, Predictor) and not tree.missing(model):
        _try_input(model, _zeros(model.reference[1], model.width))


def _zeros(reference: Array, width: int) -> Array:
    return backend_of(reference).xp.zeros((1, width), **like(reference))


def _try_input(model: Model | Predictor, X: Array) -> None:
    """Raise an error unless the model predicts all its outputs at X [1, D]."""
    with collect_reports():  # warnings are issued when the model is used
        try:
            found = model.predict(X)
            model.predict(X, observed=True)
        except (NonFiniteError, NotPositiveDefiniteError):
            return
        except (TypeError, ValueError):
            raise
        except Exception as error:  # each library raises its own errors if shapes do not match
            raise ValueError(f"the shapes of its leaves do not match: {type(error).__name__}: {error}") from error
    for name, moment in found._asdict().items():
        if tuple(moment.shape)[-2:] != (1, model.outputs):
            raise ValueError(
                f"its predicted {name} has shape {tuple(moment.shape)}, but the model has {model.outputs} outputs"
            )
