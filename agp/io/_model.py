"""Models in files."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agp import tree
from agp.errors import FileError
from agp.io._atomic import remove_leftovers, write_atomically
from agp.io._classes import known_classes
from agp.io._container import packed, refusing, unpacked
from agp.io._kinds import KIND, REMEDY, Stored, kind_named, kind_of, kinds
from agp.io._nested import named_arrays
from agp.io._place import DTYPES, destination, origin, placed
from agp.io._structure import array_leaves, restored, structure_of
from agp.io._trial import check_whole_model

__all__ = ["load", "load_described", "read_model", "save", "save_described", "write_model"]

VERSION = 1
PARTS, BESIDE = "parts/", "beside/"
"""What the names of arrays begin with that are not the model's; no leaf has a slash in its name."""


def save(model: Any, path: str | Path) -> None:
    """Write a model, or a part of one, to one safetensors file, atomically: `load` gives it back to the bit.

    Parameters
    ----------
    model
        A model of any array library, or a kernel, a likelihood, a process, ... with or without values; or a trained
        estimator of `agp.estimators`. Settings that are lists come back as tuples; what automatic differentiation
        recorded is left out.
    path
        The file, usually named ``*.safetensors``; of a symbolic link the target is replaced.

    Raises
    ------
    agp.errors.FileError
        If the file cannot be written; an old one is then untouched.
    TypeError
        If the model has settings that files cannot hold, such as functions; the message names the field.
    ValueError
        If a leaf is not finite or violates its constraint, or the model cannot predict for the shapes of its leaves.
    """
    save_described(path, model, {})


def save_described(path: str | Path, model: Any, notes: Mapping[str, Any]) -> None:
    """`save`, with notes for `load_described`: text, numbers, lists and dictionaries of those."""
    kind = kind_of(model)
    stored = Stored(model, KIND, {}, {}, {}) if kind is None else kind.taken_apart(model)
    facts = {**stored.facts, "notes": dict(notes)} if notes else stored.facts
    write_model(path, **stored._replace(facts=facts)._asdict())


def write_model(
    path: str | Path,
    model: Any,
    *,
    kind: str = KIND,
    facts: Mapping[str, Any] | None = None,
    parts: Mapping[str, Any] | None = None,
    arrays: Mapping[str, Any] | None = None,
) -> None:
    """`save`, for what has a model and more to say.

    Parameters
    ----------
    path, model
        As `save`.
    kind
        What the model is part of.
    facts
        Text, numbers, lists and dictionaries of those.
    parts
        Further models, or parts of models, by name.
    arrays
        Further arrays, by name; they come back as NumPy's.
    """
    _check_is_model(model)
    written = {name: _written(path, part) for name, part in {"": model, **(parts or {})}.items()}
    structures = {name: structure for name, (structure, _) in written.items()}
    more = named_arrays({BESIDE.removesuffix("/"): dict(arrays or {})})
    for name, (_, found) in written.items():
        more |= {f"{PARTS}{name}/{leaf}" if name else leaf: x for leaf, x in found.items()}
    everything = {"kind": kind, "version": VERSION, **origin(array_leaves(model)), "model": structures.pop("")}
    everything |= {"facts": dict(facts or {})} | ({"parts": structures} if structures else {})
    _replace(path, packed(more, everything))


def _written(path: str | Path, model: Any) -> tuple[Any, dict[str, Any]]:
    """The structure and the arrays of a model, once it is known that they can be read."""
    structure, classes = structure_of(model)
    arrays = named_arrays(array_leaves(model))
    try:
        restored(structure, arrays, classes, path)  # what cannot be read is not written
        check_whole_model(model)
    except (LookupError, TypeError, ValueError) as error:
        msg = f"the model cannot be saved: {str(error).removesuffix('.')}."
        raise (TypeError if isinstance(error, TypeError) else ValueError)(msg) from error
    return structure, arrays


def _check_is_model(x: Any) -> None:
    if not tree.is_model(x):
        cls = x if isinstance(x, type) else type(x)
        what = f"{'the class ' if x is cls else ''}{cls.__module__}.{cls.__qualname__}"
        msg = f"agp.save takes a model or a part of one, or an estimator of agp.estimators, not {what}."
        raise TypeError(msg)


def _replace(path: str | Path, content: bytes) -> None:
    try:
        remove_leftovers(path)
        write_atomically(path, content)
    except (MemoryError, OSError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
        msg = f"{path} could not be written ({reason}); make room or name another file."
        raise FileError(msg) from error


def load(
    path: str | Path,
    *,
    backend: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    classes: Iterable[type] = (),
) -> Any:
    """The model, or the estimator, of a file that `save` wrote, to the bit. Nothing in the file can run code.

    Parameters
    ----------
    path
        The file.
    backend, device
        The array library and the device of the leaves; those of the model that was saved by default, and the default
        device of another library.
    dtype
        "float64" or "float32" for all leaves; by default each keeps its own.
    classes
        Classes of your own that the model has parts of; no module is imported to find them.

    Raises
    ------
    agp.errors.FileError
        If the file is no such file, is damaged, of a newer format, or has parts of classes that are not known; if it
        holds a model that could not predict; and if the library or device that wrote it is not available.
    agp.errors.BackendError
        If the backend asked for is not available.
    ImportError
        If the file holds an estimator, and the extra ``sklearn`` is not installed.
    TypeError, ValueError
        For arguments that are none of those.
    """
    return load_described(path, backend=backend, device=device, dtype=dtype, classes=classes)[0]


def load_described(
    path: str | Path,
    *,
    backend: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    classes: Iterable[type] = (),
) -> tuple[Any, dict[str, Any]]:
    """`load`, with the notes of `save_described`."""
    asked = {"backend": backend, "device": device, "dtype": dtype}
    stored = read_model(path, kinds=kinds(), **asked, classes=classes)
    notes = stored.facts.get("notes", {})
    if stored.kind == KIND:
        return stored.model, notes
    kind = kind_named(stored.kind, path)
    with refusing(path, KIND, REMEDY):
        return kind.put_together(stored, asked), notes


def read_model(
    path: str | Path,
    *,
    kinds: tuple[str, ...] = (KIND,),
    backend: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    classes: Iterable[type] = (),
) -> Stored:
    """`load`, for files of other kinds too: the model with all that was written beside it."""
    if dtype not in (None, *DTYPES):
        msg = f"dtype is {dtype!r}, but must be one of {', '.join(DTYPES)}."
        raise ValueError(msg)
    known = known_classes(classes)
    with refusing(path, KIND, REMEDY):
        arrays, structure = unpacked(path)
        _check_kind(path, structure, kinds)
        to = destination(path, structure, backend, device)
        parts = structure.get("parts", {})
        beside = _taken(arrays, BESIDE) if structure["kind"] != KIND else {}
        structures = {"": structure["model"], **parts}
    if to is not None:
        arrays = {name: placed(x, to, dtype) for name, x in arrays.items()}
    with refusing(path, KIND, REMEDY):
        arrays_of = {name: _taken(arrays, f"{PARTS}{name}/") for name in parts}
        arrays_of[""] = arrays
        models = {name: restored(node, arrays_of[name], known, path) for name, node in structures.items()}
        for model in models.values():
            check_whole_model(model)
    return Stored(models.pop(""), structure["kind"], structure["facts"], models, beside)


def _taken(arrays: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The arrays whose names begin so, without that, taken out of the others."""
    return {name.removeprefix(prefix): arrays.pop(name) for name in [*arrays] if name.startswith(prefix)}


def _check_kind(path: str | Path, structure: Any, kinds: tuple[str, ...]) -> None:
    """The kind and the version of a file, before anything else of it is looked at."""
    found = structure if isinstance(structure, dict) else {}
    kind, version = found.get("kind"), found.get("version")
    if kind == "checkpoint":
        msg = f"{path} is a checkpoint, not a {KIND}; resume it with agp.train(..., checkpoint=...)."
        raise FileError(msg)
    if type(version) is int and version > VERSION:
        msg = f"{path} has format {version!s:.20} of a newer agp, and this one reads {VERSION}; upgrade agp to read it."
        raise FileError(msg)
    if version != VERSION or kind not in kinds:
        msg = f"it holds {kind!r:.80} of version {version!r:.80}"
        raise ValueError(msg)
    if not isinstance(found.get("facts"), dict) or "model" not in found:
        msg = "it holds no model"
        raise ValueError(msg)
