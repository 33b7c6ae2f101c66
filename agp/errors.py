"""The errors and warnings of this library; bad input raises `ValueError` or `TypeError`."""

import importlib
from typing import Any

__all__ = [
    "BackendError",
    "CheckpointError",
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
"""The name on the package index of the package that is imported as ``agp``."""


def not_installed(package: str, extra: str) -> str:
    """A missing package, and the command that installs it, for messages."""
    return f'{package}, which is not installed: pip install "{DISTRIBUTION}[{extra}]"'


def require(module: str, purpose: str, extra: str, *, package: str = "") -> Any:
    """Import a module of an optional package. The ImportError says what needs the package, and names the extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        msg = f"{purpose} {not_installed(package or module.partition('.')[0], extra)}."
        raise ImportError(msg) from error


class BackendError(RuntimeError):
    """A backend is unknown, its library is not installed, or it cannot do what was asked."""


class NotPositiveDefiniteError(ArithmeticError):
    """A covariance matrix could not be factorised, even with the largest jitter that the rule allows."""


class WorkerError(RuntimeError):
    """A worker of a cluster ran out of memory, and the message names smaller chunks; or the scheduler was lost."""


class FileError(OSError, ValueError):
    """A file of a model or a checkpoint cannot be written, or is damaged, foreign, or of a newer format."""


class CheckpointError(FileError):
    """A checkpoint could not be written; `result` holds everything up to the last finished step."""

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


class NonFiniteError(ArithmeticError):
    """A bound, a gradient or a leaf became NaN or infinite; `result` holds the last finite state, if any.

    The message is one sentence, and on further lines the `details`: which leaves are broken, and what they were.
    """

    def __init__(self, message: str, result: Any = None, details: str = "") -> None:
        super().__init__(f"{message}\n{details}" if details else message)
        self.result: Any = result
        self.details: str = details


class Interrupted(KeyboardInterrupt):
    """Training was stopped from the keyboard; `result` holds everything up to the last finished step."""

    def __init__(self, result: Any) -> None:
        super().__init__(f"training was interrupted after {result.steps} steps; `.result` holds the model so far")
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:  # the default would hand the message to the constructor
        return type(self), (self.result,), self.__dict__


class ConvergenceWarning(UserWarning):
    """A budget ended a training before it had converged; the message says which."""


class NoSignalWarning(UserWarning):
    """A trained model is no better than the mean of the targets, or the frequencies of the classes."""


class RepairWarning(RuntimeWarning):
    """Numerical trouble was met and repaired by the documented rule; the message says how."""


class UntouchedWarning(UserWarning):
    """No update of a training moves an auxiliary array that others make stale; the message says which update would."""
