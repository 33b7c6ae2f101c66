"""What every prior offers."""

import dataclasses
import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from agp.backend import Array, Pullback, backend_of

__all__ = ["Prior"]


class Prior(ABC):
    """A density of one number, taken for each entry of a parameter independently.

    Priors are frozen dataclasses of floats: they compare and hash by value, and print as they are written. Arguments
    must be finite, and positive unless the class says otherwise; ValueError if they are not.
    """

    positive: ClassVar[bool] = True
    """Whether the support is the positive numbers; all real numbers else."""
    real_arguments: ClassVar[tuple[str, ...]] = ()
    """The arguments that need not be positive."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            given = getattr(self, field.name)
            real = isinstance(given, numbers.Real) and not isinstance(given, bool)
            value, anywhere = float(given) if real else float("nan"), field.name in self.real_arguments
            if not (-float("inf") if anywhere else 0.0) < value < float("inf"):
                wanted = "finite" if anywhere else "positive and finite"
                msg = f"{field.name} of {type(self).__name__} is {given!r}, but must be {wanted}."
                raise ValueError(msg)
            object.__setattr__(self, field.name, value)

    def log_density(self, x: Array, /, unit: Array | None = None) -> tuple[Array, Pullback]:  # noqa: ARG002
        """The log density of the entries of x, of any shape, summed to 0-d, and the pullback ``bar -> x_bar``.

        Only a `Relative` density asks for the unit of x.
        """
        entries, slopes = self._entries(x)
        return backend_of(x).xp.sum(entries), lambda bar: bar * slopes()

    @abstractmethod
    def _entries(self, x: Array) -> tuple[Array, Callable[[], Array]]:
        """The log density of each entry, and a function that gives its derivatives."""
