"""The errors and warnings of this library, and sentences for messages about unknown names and wrong calls.

Invalid input raises `ValueError` or `TypeError`.
"""

import difflib
import importlib
import inspect
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

import numpy as np

__all__ = [
    "BackendError",
    "CheckpointError",
    "ColumnWarning",
    "ConvergenceWarning",
    "FileError",
    "Interrupted",
    "NoSignalWarning",
    "NonFiniteError",
    "NotPositiveDefiniteError",
    "RepairWarning",
    "UntouchedWarning",
    "WorkerError",
]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

MAX_NAMES = 30
"""The maximum number of known names that a message lists."""
MAX_SIMILAR, MIN_SIMILARITY, ALIKE = 3, 0.6, 0.1
"""The maximum number of names that a message suggests, the least similarity of each one, from 0 to 1, and how much less
similar than the first one the others may be."""
PLURALS = {"y": "ies", "axis": "axes", "ss": "sses"}
"""Endings of nouns whose plural does not end in s alone."""
DISTRIBUTION = "array-gp"
"""The name of this package on the package index; it is imported as ``agp``."""


MAX_QUOTED = 60
"""Maximum number of characters that a message quotes from a name or a cell."""
_QUOTE = reprlib.Repr()
_QUOTE.maxstring = _QUOTE.maxother = MAX_QUOTED


def quote(name: Any) -> str:
    """Return the representation of a value for a message, on one line; the middle of a long one is left out."""
    if isinstance(name, np.ndarray) and name.ndim:
        return f"an array of shape {name.shape}"
    name = _plain_value(name)
    return _QUOTE.repr(name) if isinstance(name, str) else " ".join(_QUOTE.repr(name).split())


def _plain_value(x: Any) -> Any:
    """Return a value with Python's numbers in place of NumPy's, whose representations name their types."""
    if isinstance(x, np.generic):
        return x.item()
    return tuple(map(_plain_value, x)) if type(x) is tuple else x


def missing_package_message(package: str, extra: str) -> str:
    """Return the part of a message that names a missing package and the command that installs it."""
    return f'{package}, which is not installed: pip install "{DISTRIBUTION}[{extra}]"'


def require(module: str, purpose: str, extra: str, *, package: str = "") -> Any:
    """Import a module of an optional package. The ImportError says why the package is needed, and names the extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{purpose} {missing_package_message(package or module.partition('.')[0], extra)}."
        ) from error


# -- unknown names ----------------------------------------------------------------------------------------------------


def similar_names(given: Any, known: Iterable[Any]) -> list[Any]:
    """Return the known names that are similar to the given one, best first.

    If names are equal to it up to case, blanks and separators, only those are returned.
    """
    if not isinstance(given, (str, int)):
        return []
    plain: dict[str, Any] = {}
    for name in known:
        plain.setdefault(_plain(name), name)
    asked = _plain(given)
    if not isinstance(given, str) or asked in plain:
        return [plain[asked]] if asked in plain else []
    near = [one for one in plain if len(one) <= 3 * len(asked)]  # longer ones are never similar, and cost time
    similar = difflib.get_close_matches(asked, near, MAX_SIMILAR, MIN_SIMILARITY)
    last = asked.rpartition(".")[2]  # paths with the same beginning need not be similar
    similar = [one for one in similar if _likeness(one.rpartition(".")[2], last) >= MIN_SIMILARITY]
    likeness = [_likeness(one, asked) for one in similar]
    return [plain[one] for one, like in zip(similar, likeness, strict=True) if like > likeness[0] - ALIKE]


def _likeness(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b).ratio()


def _plain(name: Any) -> str:
    return str(name).casefold().translate(dict.fromkeys(map(ord, "_- ")))


def is_same_name(given: Any, name: str) -> bool:
    """Whether names are equal up to case, blanks and separators."""
    return isinstance(given, str) and _plain(given) == _plain(name)


def name_remedy(given: Any, known: Iterable[Any], listing: str = "choose from") -> str:
    """Return the end of a message about an unknown name: similar names or, if there are none, the known names.

    The text is "did you mean 'rbf'?" or ``listing`` with the names and a full stop.
    """
    names = list(known)
    if similar := similar_names(given, names):
        return f"did you mean {join_words(map(quote, similar), 'or')}?"
    shown = [quote(str(name))[1:-1] for name in names[:MAX_NAMES]]
    return f"{listing} {', '.join(shown)}{', ...' if len(names) > MAX_NAMES else '.'}"


def unknown_name_message(what: str, given: Any, known: Iterable[Any]) -> str:
    """Return a sentence such as "unknown kernel 'rbff'; did you mean 'rbf'?"."""
    return f"unknown {what} {quote(given)}; {name_remedy(given, known)}"


def join_words(words: Iterable[str], last: str = "and") -> str:
    """Join words with commas, and the last two with "and" or "or"."""
    *first, end = words
    return f"{', '.join(first)} {last} {end}" if first else end


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 row", "2 rows" and "3 entries"."""
    if number == 1:
        return f"{number} {noun}"
    several = (f"{noun.removesuffix(end)}{ends}" for end, ends in PLURALS.items() if noun.endswith(end))
    return f"{number} {next(several, f'{noun}s')}"


def there_are(number: int, noun: str) -> str:
    """Return a clause such as "there is 1 row" and "there are 2 rows"."""
    return f"there {'is' if number == 1 else 'are'} {count_of(number, noun)}"


# -- wrong calls ------------------------------------------------------------------------------------------------------


def check_call(
    name: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any], remedy: str = ""
) -> None:
    """Raise a TypeError, in one sentence, if a function with this signature cannot be called with these arguments.

    `remedy` replaces the remedies that are derived from the signature, except similar names.
    """
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        raise TypeError(f"{name}() {_fault_of_call(name, signature, args, kwargs, remedy)}") from None


def _fault_of_call(
    name: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any], remedy: str
) -> str:
    own = [p for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    order = [p for p in own if p.kind is not p.KEYWORD_ONLY]
    by_name = [p.name for p in own if p.kind is not p.POSITIONAL_ONLY]
    needed = [p for p in own if p.default is p.empty]
    shown = [p.name if p in order else f"{p.name}=..." for p in needed]
    call = remedy or f"write {name}({', '.join(shown)})"
    for given in kwargs:
        if given not in by_name:
            if given in signature.parameters:
                return f"takes {given} by position; {call}."
            end = name_remedy(given, by_name, "its arguments are") if by_name else "it takes no arguments by name."
            return f"has no argument {given!r}; {end if not remedy or end.endswith('?') else f'{remedy}.'}"
    takes = [p.name for p in order]
    if len(args) > len(order):
        later = [p.name for p in own if p not in order]
        others = f"pass the others by name, such as {later[0]}" if later else call
        most = f"at most {count_of(len(takes), 'argument')}" if takes else "no argument"
        listed = f" ({join_words(takes)})" if takes else ""
        return f"takes {most} by position{listed}, but got {len(args)}; {remedy or others}."
    if twice := [one for one in takes[: len(args)] if one in kwargs]:
        return f"has the argument {twice[0]!r} both by position and by name; leave one out."
    absent = [p.name for p in needed if p.name not in kwargs and p.name not in takes[: len(args)]]
    return f"needs {join_words(absent)}; {call}."


def explain_arguments(cls: type[T], remedy: str = "", /) -> type[T]:
    """Decorate a class, so that errors about the arguments of its constructor are one sentence with a remedy.

    `remedy` says how users build an instance.
    """
    init: Callable[..., None] = cls.__init__

    @wraps(init)
    def explained(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except TypeError:
            check_call(cls.__name__, _signature_without_first(init), args, kwargs, remedy)
            raise

    cls.__init__ = explained  # type: ignore[method-assign]
    return cls


def _signature_without_first(f: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(f)
    return signature.replace(parameters=[*signature.parameters.values()][1:])


def check_call_of(f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise a TypeError, in one sentence, if a function or a method, with its object, does not take these arguments."""
    signature = inspect.signature(f)
    is_method = next(iter(signature.parameters), "") in ("self", "cls")
    if is_method and args:
        kind = args[0] if isinstance(args[0], type) else type(args[0])
        check_call(f"{kind.__name__}.{f.__name__}", _signature_without_first(f), args[1:], kwargs)
    else:
        check_call(f.__name__, signature, args, kwargs)


def explain_call(f: F, /) -> F:
    """Decorate a public function, so that errors about its arguments are one sentence with a remedy."""

    @wraps(f)
    def explained(*args: Any, **kwargs: Any) -> Any:
        try:
            return f(*args, **kwargs)
        except TypeError:
            check_call_of(f, args, kwargs)
            raise

    return explained  # type: ignore[return-value]


# -- classes ----------------------------------------------------------------------------------------------------------


class BackendError(RuntimeError):
    """A backend is unknown, its library is not installed, or it does not support the requested operation."""


class NotPositiveDefiniteError(ArithmeticError):
    """A covariance matrix could not be factorised, even with the largest jitter allowed."""


class WorkerError(RuntimeError):
    """A cluster worker ran out of memory, or the scheduler was lost. Smaller chunks require less memory."""


class FileError(OSError, ValueError):
    """A model or checkpoint file cannot be written, is damaged, has a newer format, or comes from another program."""


class CheckpointError(FileError):
    """A checkpoint could not be written. `result` holds everything up to the last finished step."""

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


class NonFiniteError(ArithmeticError):
    """A bound, a gradient or a leaf became NaN or infinite. `result` holds the last finite state, if any.

    The message is one sentence. Below it, the lines of `details` list the broken leaves and their values.
    """

    def __init__(self, message: str, result: Any = None, details: str = "") -> None:
        super().__init__(f"{message}\n{details}" if details else message)
        self.result: Any = result
        self.details: str = details


class Interrupted(KeyboardInterrupt):
    """Training was stopped from the keyboard. `result` holds everything up to the last finished step."""

    def __init__(self, result: Any) -> None:
        steps = count_of(result.steps, "step")
        super().__init__(f"training was interrupted after {steps}; `.result` holds the model so far")
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:  # by default, pickle passes the message to the constructor
        return type(self), (self.result,), self.__dict__


class ColumnWarning(UserWarning):
    """A column of a table was left out, or may not be what its values suggest. The message names the column."""


class ConvergenceWarning(UserWarning):
    """Training reached a limit before it converged. The message names the limit."""


class NoSignalWarning(UserWarning):
    """A trained model predicts no better than the mean of the targets or the class frequencies."""


class RepairWarning(RuntimeWarning):
    """A numerical problem was repaired by a documented rule. The message describes the repair."""


class UntouchedWarning(UserWarning):
    """An auxiliary array becomes stale during training, because no update recomputes it.

    The message names a suitable update.
    """
