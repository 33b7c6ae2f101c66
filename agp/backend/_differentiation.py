"""The library's own differentiation, and how a pullback is registered with it."""

from collections.abc import Callable

from agp.backend._library import Library
from agp.backend._types import Array, ClosedForm
from agp.errors import BackendError

__all__ = ["Differentiation"]


class Differentiation(Library):
    """Automatic differentiation, as a library without it answers."""

    def asks_gradient(self, x: Array, /) -> bool:
        """Whether the library's own differentiation may want the gradient of something with respect to x."""
        return False

    def with_pullback(self, f: ClosedForm, arrays: dict[str, Array], /) -> Array:
        """The value of `f(arrays)`, differentiated by the pullback of f wherever the library differentiates it.

        Parameters
        ----------
        f
            ``arrays -> (value, pullback)`` with ``pullback(value_bar, names) -> cotangents``: an array for each of the
            names, which are those of the arrays whose gradient is asked for. Neither is recorded by the library's own
            differentiation.
        arrays
            All that a gradient may be asked for, by name.

        Raises
        ------
        BackendError
            On torch, when a second derivative is asked for.
        """
        return f(arrays)[0]

    def stop_gradient(self, x: Array, /) -> Array:
        """X as a constant for automatic differentiation."""
        return x

    def value_and_grad(self, f: Callable, leaves: dict[str, Array], /) -> tuple[Array, dict[str, Array]]:
        """f(leaves) and its gradient by automatic differentiation."""
        msg = f"backend {self.name!r} has no automatic differentiation; use gradient='closed-form'."
        raise BackendError(msg)
