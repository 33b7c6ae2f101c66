"""Methods of other packages, and models and updates by the name of a method."""

import importlib.metadata
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agp.backend import Array
from agp.errors import is_same_name, join_words, quote, unknown_name_message
from agp.io import SOURCES, known_classes
from agp.kernels import Kernel, parse_kernel
from agp.likelihoods import Likelihood
from agp.means import Mean
from agp.methods._record import OPTIONS, Method
from agp.methods._table import METHODS
from agp.priors import Prior, Priors
from agp.training import recipe
from agp.updates import Update

GROUP = "agp.methods"
"""The group of entry points. Each entry point is a module that calls `register`."""


def register(method: Method, /) -> None:
    """Add a method, in this process.

    The estimators, `agp fit`, `agp compare` and `agp methods` then accept its name, and `agp.load` knows its classes. A
    package that adds a method lists the module that calls this function under
    ``[project.entry-points."agp.methods"]``, from which the commands import it.

    Raises
    ------
    TypeError
        If the record is not a `Method`, or `agp.load` cannot load one of its classes.
    ValueError
        If there is a method with this name.
    """
    if not isinstance(method, Method):
        raise TypeError(f"register takes an agp.methods.Method, not {type(method).__name__}.")
    if method.name in METHODS:
        raise ValueError(f"there is a method with the name {method.name!r} already; choose another name.")
    known_classes(_classes_of(method))
    METHODS[method.name] = method


def load_plugins() -> None:
    """Import the modules that the entry points name. A warning names those that cannot be imported."""
    for point in importlib.metadata.entry_points(group=GROUP):
        try:
            point.load()
        except Exception as error:  # third-party code may raise anything
            text = f"the method {point.name!r} cannot be used: {type(error).__name__}: {error}"
            warnings.warn(text, UserWarning, stacklevel=2)


def _classes_of(method: Method) -> tuple[type[Any], ...]:
    return (method.model, *method.parts)


def _all_classes() -> Iterator[type[Any]]:
    for method in METHODS.values():
        yield from _classes_of(method)


SOURCES.append(_all_classes)


def unknown_method_message(given: Any, known: Iterable[str]) -> str:
    """Return a sentence about an unknown method: it names the methods of the class of this name, or similar names.

    The sentence ends as "the methods of CaGP are cagp-opt and cagp-cg." or "did you mean 'sgpr'?".
    """
    names = [*known]
    by_class: dict[str, list[str]] = {}
    for name in names:
        if name in METHODS:
            by_class.setdefault(METHODS[name].model.__name__, []).append(name)
    model = next((one for one in by_class if is_same_name(given, one)), None)
    if model is None or any(is_same_name(given, name) for name in names):
        return unknown_name_message("method", given, names)
    methods, are = ("methods", "are") if len(by_class[model]) > 1 else ("method", "is")
    return f"unknown method {quote(given)}; the {methods} of {model} {are} {join_words(by_class[model])}."


def build(
    method: str,
    X: Array,
    y: Array,
    /,
    *,
    likelihood: Likelihood,
    kernel: str | Kernel,
    mean_function: Mean | None = None,
    priors: Mapping[str, Prior] | Priors | None = None,
    weights: Array | None = None,
    offset: Array | None = None,
    noise: Array | None = None,
    **options: Any,
) -> Any:
    """Build the untrained model of a method. The kernel is a name or an object.

    `options` are arguments in `OPTIONS`. None, and arguments that the method does not take, are left out.
    """
    if unknown := options.keys() - set(OPTIONS):
        raise TypeError(unknown_name_message("argument", min(unknown), OPTIONS))
    if method not in METHODS:
        raise ValueError(unknown_method_message(method, METHODS))
    record = METHODS[method]
    kernel = parse_kernel(kernel) if isinstance(kernel, str) else kernel
    given = {name: x for name, x in options.items() if x is not None and name in record.takes}
    known = {"priors": priors or None, "weights": weights, "offset": offset, "noise": noise}
    given |= {name: x for name, x in known.items() if x is not None}
    constructor = record.build or record.model.from_data
    return constructor(X, y, kernel=kernel, likelihood=likelihood, mean_function=mean_function, **given)


def updates_of(method: str, model: Any, steps: int, **settings: Any) -> list[Update]:
    """Return the updates that train a method; settings are as in `agp.recipe`."""
    return (METHODS[method].updates or recipe)(model, steps, **settings)
