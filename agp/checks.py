"""Checks of arguments. Each error message names the argument and a remedy."""

import inspect
import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from agp import tree
from agp.backend import Array, assume, backend_of, check_array_type, find_backend, row_blocks
from agp.errors import NonFiniteError, count_of, join_words, name_remedy, quote, similar_names, there_are

T = TypeVar("T", bound=Any)

FEW = 5
"""The maximum number of choices that a message lists if one of them is suggested."""


def check_whole(name: str, value: Any, *, least: int = 1) -> int:
    """Return the value as an int. Raise a ValueError unless it is a whole number of at least `least`."""
    number = as_number(value)
    if not number >= least or not number.is_integer():
        raise ValueError(f"{name} is {value!r}, but must be a whole number of at least {least}.")
    return int(number)


def as_number(value: Any) -> float:
    """Return a number, or an array that holds one number, as a float, and NaN for anything else."""
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return float(value)
    B = find_backend(value)
    is_number = B is not None and value.shape == () and B.xp.isdtype(value.dtype, "numeric")
    return float(value) if is_number else float("nan")


def check_level(level: Any, name: str = "level") -> float:
    """Return the level as a float. Raise a ValueError, or a TypeError for lists, unless it is in (0, 1)."""
    if isinstance(level, (list, tuple)):
        raise TypeError(f"{name} is {level!r}, but must be one probability, such as 0.9; use quantiles for several.")
    if not 0.0 < (found := as_number(level)) < 1.0:
        raise ValueError(f"{name} is {level!r}, but must be more than 0 and less than 1; write 95 % as 0.95.")
    return found


def check_levels(levels: Any, name: str = "levels") -> tuple[float, ...]:
    """Return levels as floats.

    Raise a TypeError unless the levels are a collection, and a ValueError unless all of them are in (0, 1).
    """
    if isinstance(levels, (str, numbers.Real)) or not isinstance(levels, Iterable):
        raise TypeError(f"{name} is {levels!r}, but must be a tuple of probabilities, such as (0.05, 0.95).")
    given = tuple(levels)
    if not given:
        raise ValueError(f"{name} is empty, but must hold at least one probability, such as (0.05, 0.95).")
    for i, level in enumerate(given):
        if not 0.0 < as_number(level) < 1.0:
            raise ValueError(f"{name}[{i}] is {level!r}, but must be more than 0 and less than 1; write 95 % as 0.95.")
    return tuple(map(float, given))


def check_several(name: str, given: Any, example: str) -> list[Any]:
    """Return the entries of a collection as a list. Raise TypeError for text, and for what is no collection."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(f"{name} is {given!r}, but must be a list, such as {example}.")
    return list(given)


def check_callables(name: str, given: Any) -> list[Any]:
    """Return the functions as a list. Raise a TypeError unless they are a collection of callables."""
    if callable(given) or not isinstance(given, Iterable):
        example = getattr(given, "__name__", "f")
        raise TypeError(f"{name} is {given!r}, but must be a list of functions; write {name}=[{example}].")
    found = list(given)
    for i, one in enumerate(found):
        if not callable(one):
            remedy = "pass a function that takes an agp.training.Progress"
            raise TypeError(f"{name}[{i}] is {one!r}, which is not a function; {remedy}.")
    return found


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> None:
    """Raise ValueError unless a value is one of the choices, which are words or None."""
    known = list(choices)
    shown = quote(value)
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in known):
        must = f", but must be {join_words(map(repr, known), 'or')}"
        if not similar_names(value, known):
            raise ValueError(f"{name} is {shown}{must}.")
        raise ValueError(f"{name} is {shown}{must if len(known) <= FEW else ''}; {name_remedy(value, known)}")


def check_instance(name: str, x: Any, kind: type, *, optional: bool = False, other: str = "") -> None:
    """Raise TypeError unless x is an instance of `kind`, or None if it is optional.

    If x is a class or the name of a class, the message shows how to build an instance. `other` are words about what is
    accepted besides, such as "'auto' or ".
    """
    if isinstance(x, kind) or (optional and x is None):
        return
    named = _public_subclasses(kind)
    found = [x.__name__] if isinstance(x, type) and issubclass(x, kind) else similar_names(x, named)
    if not found and isinstance(x, str):
        found = [cls for cls, short in named.items() if short and similar_names(x, [short])]
    shown = f"the class {x.__name__}" if isinstance(x, type) else repr(x)
    hint = f"; write {join_words((f'{one}()' for one in found), 'or')}" if found else ""
    raise TypeError(f"{name} is {shown}, but must be {other}an instance of agp's {kind.__name__}{hint}.")


def _public_subclasses(kind: type) -> dict[str, str]:
    """Return the names of a class's concrete public subclasses, with their short names if they have one."""
    found: dict[str, str] = {}
    for cls in kind.__subclasses__():
        found |= _public_subclasses(cls)
        if not inspect.isabstract(cls) and not cls.__name__.startswith("_"):
            found[cls.__name__] = vars(cls).get("short_name", "")
    return found


def check_equal(what: str, values: Iterable[Any], remedy: str = "make the numbers equal") -> None:
    """Raise ValueError, with a message that begins with `what`, unless all values are equal."""
    found = list(values)
    if len(set(found)) > 1:
        raise ValueError(f"{what} ({', '.join(map(str, found))}); {remedy}.")


def check_positive(name: str, value: Any) -> float:
    """Return the value as a float. Raise a ValueError unless it is a finite number above zero."""
    number = as_number(value)
    if 0.0 < number < float("inf"):
        return number
    shown = f"{value:g}" if isinstance(value, float) else repr(value)
    raise ValueError(f"{name} is {shown}, but must be a finite number above zero.")


def _check_array(name: str, x: Array, ndim: tuple[int, ...], beside: Array | None = None) -> None:
    """Check the dtype and shape of x. The message recommends the dtype of the array `beside`, or the widest one."""
    check_array_type(name, x)
    B = backend_of(x)
    if x.dtype not in (B.xp.float32, B.xp.float64):
        raise TypeError(
            f"{name} has dtype {x.dtype}, but must be float64 or float32; pass {_conversion_hint(name, x, beside)}."
        )
    if x.ndim not in ndim:
        expected = " or ".join(f"{n}-dimensional" for n in ndim)
        raise ValueError(f"{name} has shape {tuple(x.shape)}, but must be {expected}.")
    if 0 in x.shape:
        raise ValueError(f"{name} has shape {tuple(x.shape)}, but must not be empty; pass at least one row and column.")
    if any(n != n for n in x.shape):  # NaN: the number of rows of lazy chunks is unknown
        raise ValueError(f"{name} has chunks of unknown length; call {name}.compute_chunk_sizes() first.")


def _conversion_hint(name: str, x: Any, beside: Array | None) -> str:
    """Return code that converts the array x to floats on the same device, with the dtype of `beside` if it is given."""
    B = backend_of(x)
    if "complex" in str(x.dtype):
        return "its real part"
    wanted = B.widest_float(x)
    if beside is not None and backend_of(beside) is B and beside.dtype in (B.xp.float32, B.xp.float64):
        wanted = beside.dtype
    return B.conversion(name, x, str(wanted).rpartition(".")[2])


def check_model(model: Any) -> None:
    """Raise a TypeError unless `model` can be trained: classes, model parts and training results cannot."""
    if isinstance(model, type):
        raise TypeError(f"model is the class {model.__name__}; build a model with {model.__name__}.from_data(X, y).")
    if callable(getattr(model, "_objective", None)):
        return
    remedy = "build a model, for example with SVGP.from_data(X, y)"
    for name in ("model", "model_"):  # of a result of training, and of a fitted estimator
        remedy = remedy if getattr(model, name, None) is None else f"pass its attribute .{name}"
    raise TypeError(f"model has the class {type(model).__name__}, which is not a model; {remedy}.")


CHECKED_ROWS = 2**20
"""The maximum number of rows that are checked together, which limits the memory used for arrays on disk."""
REMOVE_ROWS_HINT = "remove or impute such rows"
UNOBSERVED = (
    f"{REMOVE_ROWS_HINT}, or use a variational model with likelihood=agp.Gaussian(missing=True), which treats NaN as a "
    "missing target"
)


def check_finite(name: str, x: Array, *, first_row: int = 0, remedy: str = REMOVE_ROWS_HINT) -> None:
    """Raise a ValueError if x has NaN or infinite entries. Rows are numbered from `first_row` in the message."""
    B = backend_of(x)
    if not B.is_concrete(x):  # traced: no values yet
        return
    xp, count, row, start = B.xp, 0, 0, first_row
    for block in [x] if B.is_lazy or x.shape[0] <= CHECKED_ROWS else row_blocks(x, CHECKED_ROWS):
        good = xp.isfinite(block)
        if not assume(xp.all(good), likely=True):
            if not count:
                broken = xp.any(xp.reshape(~good, (block.shape[0], -1)), axis=1)
                row = start + int(xp.argmax(xp.astype(broken, xp.int64)))
            count += int(xp.count_nonzero(~good))
        start += block.shape[0]
    if count:
        raise ValueError(f"{name} has {count} NaN or infinite entries, the first in row {row}; {remedy}.")


def check_results(what: str, results: Mapping[str, Array], remedy: str, /) -> None:
    """Raise a NonFiniteError if results have NaN or infinite entries. Traced results are not checked."""
    known = {name: x for name, x in results.items() if backend_of(x).is_concrete(x)}
    if not known:
        return
    xp = backend_of(next(iter(known.values()))).xp
    if assume(xp.all(xp.stack([xp.all(xp.isfinite(x)) for x in known.values()])), likely=True):  # one transfer
        return
    bad = {name: x for name, x in known.items() if not bool(xp.all(xp.isfinite(x)))}
    dtype = str(next(iter(bad.values())).dtype).rpartition(".")[2]
    raise NonFiniteError(f"{what} {', '.join(bad)} {'is' if len(bad) == 1 else 'are'} not finite in {dtype}; {remedy}.")


def check_inputs(name: str, X: Array, beside: Array | None = None, *, finite: bool = True) -> None:
    """Raise a TypeError or ValueError unless X is a non-empty, finite, floating-point array [N, D].

    The message recommends the dtype of the array `beside`.
    """
    _check_array(name, X, (2,), beside)
    if finite:
        check_finite(name, X)


def as_columns(y: Array) -> Array:
    """Return targets [N] or [N, P] as an array [N, P]."""
    return y[:, None] if y.ndim == 1 else y


def check_data(X: Array, y: Array, *, missing: bool = False) -> Array:
    """Check X [N, D] with `check_inputs`, and y with `check_targets`. Return y as an array [N, P]."""
    check_inputs("X", X)
    return check_targets(X, y, missing=missing)


def check_targets(X: Array, y: Array, *, finite: bool = True, missing: bool = False) -> Array:
    """Return targets y [N] or [N, P] as [N, P].

    Raise a TypeError or ValueError unless they are finite and fit X [N, D]. If `missing` is true, they may be NaN.
    """
    _check_array("y", y, (1, 2), X)
    check_like("y", y, "X", X)
    if y.shape[0] != X.shape[0]:
        raise ValueError(
            f"X has {count_of(X.shape[0], 'row')}, but y has {y.shape[0]}; pass one target for each row of X."
        )
    if finite:
        _check_finite_targets(y, missing=missing)
    return as_columns(y)


def _check_finite_targets(y: Array, *, missing: bool) -> None:
    xp = backend_of(y).xp
    known = xp.where(xp.isnan(y), xp.zeros_like(y), y) if missing else y
    several = y.ndim == 2 and y.shape[1] > 1 and not missing
    check_finite("y", known, remedy=UNOBSERVED if several else REMOVE_ROWS_HINT)


def check_support(likelihood: Any, y: Array) -> None:
    """Raise ValueError unless targets y [N, K] are finite, or NaN if they may be missing, and in the support."""
    _check_finite_targets(y, missing=likelihood.missing)
    likelihood.check_targets(y)


def check_weights(weights: Array, X: Array, *, finite: bool = True) -> Array:
    """Return the weights [N]. Raise a TypeError or ValueError unless they are positive and finite, and fit X [N, D]."""
    _check_array("weights", weights, (1,), X)
    check_like("weights", weights, "X", X)
    if weights.shape[0] != X.shape[0]:
        raise ValueError(
            f"X has {count_of(X.shape[0], 'row')}, but {there_are(weights.shape[0], 'weight')}; pass one weight for "
            "each row."
        )
    xp = backend_of(weights).xp
    if finite and backend_of(weights).is_concrete(weights):
        check_finite("weights", weights)
        least, total = float(xp.min(weights)), float(xp.sum(weights))
        if not (least > 0.0 and total < float("inf")):
            raise ValueError(
                f"weights must be positive with a finite sum, but the smallest is {least:g}; remove rows of weight 0."
            )
    return weights


RANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "weights": (lambda x: x >= 0.0, "weights must not be negative"),
    "noise": (lambda x: x >= 0.0, "noise variances must not be negative"),
}
"""Conditions on what is known of rows."""


def check_by_row(name: str, x: Array, X: Array, columns: int = 1) -> Array:
    """Return what is known of each row of X [..., N, D], given as [..., N] or [..., N, 1 or columns], with columns.

    `name` is "weights", "offset" or "noise". Raise a TypeError or ValueError if the numbers do not fit X, are not
    finite, or are out of range.
    """
    rows = tuple(X.shape[:-1])
    if isinstance(x, numbers.Real):
        raise TypeError(
            f"{name} is {x}, but must be an array with one number for each row of X; pass an array of shape {rows}, "
            "such as numpy.full(len(X), ...)."
        )
    check_array_type(name, x)
    check_like(name, x, "X", X)
    xp = backend_of(x).xp
    found = x[..., None] if tuple(x.shape) == rows else x
    if tuple(found.shape[:-1]) != rows or found.shape[-1] not in (1, columns):
        shapes = f"{rows} or {(*rows, columns)}" if columns > 1 else f"{rows}"
        raise ValueError(
            f"{name} has shape {tuple(x.shape)}, but must have shape {shapes}; pass one number for each row of X."
        )
    if backend_of(x).is_concrete(x):
        check_finite(name, xp.reshape(found, (-1, found.shape[-1])))
        if name == "weights" and not bool(xp.isfinite(xp.sum(found))):
            raise ValueError("weights must have a finite sum; divide them by a constant.")
        if name in RANGES and not bool(xp.all(RANGES[name][0](found))):
            least, size = xp.min(found), found.shape[-1]
            row = int(xp.argmin(xp.reshape(found, (-1,)))) // size
            raise ValueError(f"{RANGES[name][1]}, but the smallest is {float(least):g}, in row {row}.")
    return found


def known_of_rows(
    X: Array, outputs: int, weights: Array | None, offset: Array | None, noise: Array | None, /
) -> dict[str, Any]:
    """Return what is known of the rows of X [N, D] as fields of a `Batch`: weights [N], and columns [N, 1 or P]."""
    columns = {"weights": (weights, 1), "offset": (offset, outputs), "noise": (noise, outputs)}
    found = {name: None if x is None else check_by_row(name, x, X, size) for name, (x, size) in columns.items()}
    weights = found["weights"]
    return found | {"weights": None if weights is None else weights[:, 0]}


def check_like(name: str, x: Array, reference_name: str, reference: Array) -> None:
    """Raise an error unless both arrays have the same library, dtype and device; for lazy arrays, check only dtypes."""
    check_array_type(name, x)
    here, there = backend_of(x), backend_of(reference)
    lazy = here.is_lazy or there.is_lazy
    if here is not there and not lazy:
        raise TypeError(
            f"{name} is a {here.name} array, but {reference_name} is a {there.name} array; "
            "move one with agp.to_backend."
        )
    dtypes = (here.dtype_name(x), there.dtype_name(reference)) if lazy else (x.dtype, reference.dtype)
    if dtypes[0] != dtypes[1]:
        raise TypeError(f"{name} has dtype {dtypes[0]}, {reference_name} has {dtypes[1]}; convert one of them.")
    devices = ("", "") if lazy else (here.device_name(x), here.device_name(reference))
    if "" not in devices and devices[0] != devices[1]:
        raise ValueError(
            f"{name} is on device {devices[0]}, but {reference_name} is on {devices[1]}; move one with agp.to_backend."
        )


def check_leaf_like(leaf: tree.Leaf, reference_name: str, reference: Array) -> None:
    """Check a leaf like `check_like`; constants may be integers, such as numbers of rows."""
    name, x = leaf.name, leaf.value
    check_array_type(name, x)
    B = backend_of(x)
    if leaf.role != "parameter" and B is backend_of(reference) and not B.is_lazy and B.xp.isdtype(x.dtype, "integral"):
        x = B.xp.astype(x[:0, ...] if x.ndim else x, reference.dtype)
    check_like(name, x, reference_name, reference)


def check_test_inputs(X: Array, width: int, name: str, reference: Array) -> None:
    """Raise TypeError or ValueError unless X [..., N, D] fits the model.

    X must have `width` columns, and the library, dtype and device of the reference.
    """
    check_array_type("X", X)
    if X.ndim > 2 and 0 in X.shape:
        raise ValueError(f"X has shape {tuple(X.shape)}, but must have at least one row and one column.")
    check_inputs("X", X if X.ndim <= 2 else X[(*(0,) * (X.ndim - 2), ...)], reference, finite=False)
    check_like("X", X, name, reference)
    if X.shape[-1] != width:
        columns = count_of(X.shape[-1], "column")
        raise ValueError(f"X has {columns}, but the model was built for {width}; pass the columns of training.")


def check_outputs(likelihood: Any, y: Array, outputs: int) -> None:
    """Raise ValueError unless targets y [N, K] fit a model with `outputs` latent functions."""
    needed = likelihood.latents(y.shape[1])
    if needed != outputs:
        raise ValueError(
            f"y has {count_of(needed, 'output')}, but the model has {outputs}; build a new model from these targets."
        )
    likelihood.check_outputs(needed)


def check_parameters(model: Any, reference_name: str, reference: Array) -> None:
    """Raise an error unless all leaves satisfy their constraints and fit `reference` (see `check_like`)."""
    if missing := tree.missing(model):
        raise ValueError(
            f"{', '.join(missing)} has no value; build the model with from_data, which sets initial values."
        )
    for leaf in tree.describe(model):
        check_leaf_like(leaf, reference_name, reference)
        if bool(leaf.constraint.is_violated(leaf.value)):
            raise ValueError(f"{leaf.name} is {leaf.value}, but must be {leaf.constraint.name} and finite.")


def usable(model: T, reference: Array) -> T:
    """Convert numbers and NumPy arrays in a model part to arrays like `reference`; check and detach all leaves."""
    model = tree.place_host_arrays(tree.place_leaves(model, reference), reference)
    check_parameters(model, "X", reference)
    return tree.detach(model)
