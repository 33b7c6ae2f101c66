"""Mathematics beyond the standard, with fallbacks in the operations of the standard."""

import contextlib
import importlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from agp.backend._library import Array, Library
from agp.errors import BackendError


class Mathematics(Library):
    """Factorisations, products and special functions; a plug-in needs the first two, and may override the others."""

    @abstractmethod
    def cholesky(self, A: Array, /) -> Array:
        """The lower factor L with L L^T = A [..., M, M]; NaN on the diagonal, and no exception, if A has none."""

    @abstractmethod
    def solve_triangular(self, L: Array, B: Array, /, *, transpose: bool = False) -> Array:
        """L^-1 B, or L^-T B, for lower L [M, M] and B [M, N]."""

    def device_block(self, x: Array, /) -> float:
        """The size up to which matrices like x are not split, though that would save operations.

        It is for accelerators, where every call costs a launch; 0 elsewhere.
        """
        return 0.0

    def inner(self, x: Array, y: Array, /) -> Array:
        """The sum of all entries of x * y, 0-d, for arrays of one shape."""
        return self.xp.sum(x * y)

    def norm(self, x: Array, /) -> Array:
        """The root of the sum of the squares of all entries of x, 0-d."""
        return self.xp.sqrt(self.inner(x, x))

    def add_product(self, x: Array, a: Array, b: Array, /) -> Array:
        """x + a * b, for arrays that are broadcast to the shape of x."""
        return x + a * b

    def interpolated(self, old: Array, new: Array, share: Array | float, /) -> Array:
        """(1 - share) old + share new, for arrays of one shape, to which `share` is broadcast."""
        return (1.0 - share) * old + share * new

    def squared_distances(self, X: Array, Z: Array, X_squares: Array, Z_squares: Array, /) -> Array:
        """|x|^2 + |z|^2 - 2 x.z [..., N, M] of rows of X [..., N, D] and Z [..., M, D], at least zero.

        `X_squares` and `Z_squares` are the squared norms of the rows.
        """
        # one product, of [-2 x, |x|^2, 1] with [z, 1, |z|^2]; maximum with a row of zeros, since NumPy vectorises it,
        # but not with a single zero
        xp, X_squares, Z_squares = self.xp, X_squares[..., None], Z_squares[..., None]
        left = xp.concat([-2.0 * X, X_squares, xp.ones_like(X_squares)], axis=-1)
        right = xp.concat([Z, xp.ones_like(Z_squares), Z_squares], axis=-1)
        return xp.maximum(left @ right.mT, xp.zeros((Z.shape[-2],), **self.like(X)))

    def triangular_product(
        self, X: Array, Y: Array, /, *, left: str = "", right: str = "", lower: bool = False
    ) -> Array:
        """X Y [..., M, N], or its lower triangle.

        `left` and `right` are "lower" or "upper" for a factor that is triangular, with zeros in the other triangle.
        """
        product = X @ Y
        return self.xp.tril(product) if lower else product

    def fused(self, f: Callable[..., tuple[Array, ...]], /, *args: Array | float) -> tuple[Array, ...]:
        """``f(self, *args)`` for an elementwise f, from which a library may compile one kernel and keep it.

        Parameters
        ----------
        f
            A function at module level that depends only on its arguments. Each of its operations takes an array and
            changes none. Of arrays it uses only `dtype` and `ndim`; of this backend elementwise functions of `xp`
            (`clip` with both limits), `zeros_like`, `ones_like`, `full_like`, and methods such as `interpolated`.
        args
            Numbers, and arrays that are broadcast to one shape, which is that of all results.
        """
        return f(self, *args)

    def elementwise(
        self, f: Callable[..., tuple[Array, ...]], /, *arrays: Array, numbers: Sequence = (), lower: bool = False
    ) -> tuple[Array, ...]:
        """`fused` for arrays of one shape, then numbers or 0-d arrays; it may work on pieces of the arrays.

        With `lower`, the arrays [..., M, M] are lower triangular, and f maps zeros to zeros.
        """
        return self.fused(f, *arrays, *numbers)

    def elementwise_each(
        self,
        f: Callable[..., tuple[Array, ...]],
        several: Sequence[tuple[Array, ...]],
        /,
        *,
        numbers: Sequence = (),
        lower: Sequence[bool],
    ) -> list[tuple[Array, ...]]:
        """`elementwise` for each of several tuples of arrays, which a library may evaluate together."""
        pairs = zip(several, lower, strict=True)
        return [self.elementwise(f, *arrays, numbers=numbers, lower=one) for arrays, one in pairs]

    def diagonal(self, A: Array, /) -> Array:
        """The diagonal [..., M] of A [..., M, M], read-only."""
        M = A.shape[-1]
        return self.xp.reshape(A, (*A.shape[:-2], M * M))[..., :: M + 1]

    def add_diagonal(self, A: Array, d: Array | float, /) -> Array:
        """A + diag(d), a new array, for A [..., M, M] and d [M], [..., M], or a number."""
        d = d if isinstance(d, (int, float)) or d.ndim == 0 else d[..., None]
        return A + d * self.xp.eye(A.shape[-1], **self.like(A))

    def tril(self, A: Array, /) -> Array:
        """The lower triangle of A [..., M, M]."""
        return self.xp.tril(A)

    def symmetric_from_lower(self, A: Array, /) -> Array:
        """The symmetric matrix with the lower triangle of A [..., M, M]."""
        return self.xp.tril(A) + self.xp.tril(A, k=-1).mT

    def hollow_from_lower(self, A: Array, /) -> Array:
        """The symmetric matrix with the entries below the diagonal of A [..., M, M], and a zero diagonal."""
        low = self.xp.tril(A, k=-1)
        return low + low.mT

    def times_own_transpose(self, A: Array, /) -> Array:
        """A A^T [..., M, M], symmetric, for A [..., M, K]."""
        return A @ A.mT

    def inverse_from_cholesky(self, L: Array, /) -> Array:
        """(L L^T)^-1 [M, M], symmetric, for lower L [M, M]."""
        half = self.solve_triangular(L, self.xp.eye(L.shape[-1], **self.like(L)))
        return half.mT @ half

    def reduced_precision(
        self, precision: str, x: Array, /
    ) -> tuple[Any, Callable[[], contextlib.AbstractContextManager[Any]]]:
        """The dtype for products of arrays like x in a precision, and a function that makes the context for them.

        Parameters
        ----------
        precision
            "float32", "tf32" (float32 products with eleven bits of each factor) or "bfloat16".
        x
            An array on the device.

        Raises
        ------
        BackendError
            If the library or the device has no products in that precision.
        """
        if precision == "float32":
            return self.xp.float32, contextlib.nullcontext
        msg = f"{self.name} has no products in {precision}; use precision='float32', or None."
        raise BackendError(msg)

    def special(self, name: str, /, *args: Any) -> Array:
        """The special function with SciPy's name, such as "log_ndtr" or "digamma", at arrays (and numbers).

        Raises
        ------
        BackendError
            If neither the plug-in nor the library has such a function.
        """
        return self.special_function(name)(*args)

    def special_function(self, name: str, /) -> Callable[..., Array]:
        """The function that `special` calls; errors as there."""
        found = self.special_functions.get(name)
        if found is None and self.special_module and not name.startswith("_"):
            found = vars(importlib.import_module(self.special_module)).get(name)
        if not callable(found) or isinstance(found, type):
            own = self.special_module or f"backend {self.name!r}"
            msg = (
                f"{own} has no special function {name!r}; compute it from other functions, or add it to "
                f"`special_functions` of the backend {self.name!r}."
            )
            raise BackendError(msg)
        return found
