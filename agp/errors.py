"""The errors and warnings of this library. Invalid input raises `ValueError` or `TypeError`."""

import importlib
import reprlib
from typing import Any

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

DISTRIBUTION = "array-gp"
"""The name of this package on the package index; it is imported as ``agp``."""


MAX_QUOTED = 60
"""Maximum number of characters that a message quotes from a name or a cell."""
_QUOTE = reprlib.Repr()
_QUOTE.maxstring = _QUOTE.maxother = MAX_QUOTED


def quote(name: Any) -> str:
    """Return the representation of a name or a cell for a message; the middle of a long one is left out."""
    return _QUOTE.repr(name)


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
        super().__init__(f"training was interrupted after {result.steps} steps; `.result` holds the model so far")
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
