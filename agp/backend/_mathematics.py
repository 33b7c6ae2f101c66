"""Mathematical operations beyond the Array API standard, with fallbacks that use only the standard."""

import contextlib
import importlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from agp.backend._library import Array, Library
from agp.errors import BackendError


class Mathematics(Library):
    """Factorisations, products and special functions.

    A plug-in must define `cholesky` and `solve_triangular`, and may override the other methods.
    """

    @abstractmethod
    def cholesky(self, A: Array, /) -> Array:
        """Lower factor L with L L^T = A [..., M, M].

        If the factorisation fails, the diagonal of L contains NaN, and no exception is raised.
        """

    @abstractmethod
    def solve_triangular(self, L: Array, B: Array, /, *, transpose: bool = False) -> Array:
        """Solve L Y = B, or L^T Y = B if `transpose` is true, for a lower triangular L [M, M] and B [M, N].

        L and B may also be stacks [G, M, M] and [G, M, N].
        """

    def smallest(self, A: Array, count: int, /) -> Array:
        """Column numbers [n, count] of the smallest entries of each row of A [n, N], in any order."""
        return self.xp.argsort(A, axis=1)[:, :count]

    def sum_at(self, x: Array, index: Array, count: int, /) -> Array:
        """Sum the rows of x [R, M] that have the same number in `index` [R], from 0 to count - 1; return [count, M]."""
        xp = self.xp
        order = xp.argsort(index, stable=True)
        wide = xp.astype(xp.take(x, order, axis=0), self.widest_float(x))  # differences of large sums lose digits
        sums = xp.cumulative_sum(wide, axis=0, include_initial=True)
        ends = xp.searchsorted(xp.take(index, order), xp.arange(count + 1, dtype=index.dtype, device=index.device))
        at_ends = xp.take(sums, ends, axis=0)
        return xp.astype(at_ends[1:, :] - at_ends[:-1, :], x.dtype)

    def device_block(self, x: Array, /) -> float:
        """Size up to which matrices with the dtype and device of x stay whole, although blocks would save operations.

        The size is positive for accelerators, where every call requires a launch, and 0 otherwise.
        """
        return 0.0

    def inner(self, x: Array, y: Array, /) -> Array:
        """Sum of all entries of x * y, a 0-d array, for arrays of the same shape."""
        return self.xp.sum(x * y)

    def norm(self, x: Array, /) -> Array:
        """Square root of the sum of all squared entries of x, a 0-d array."""
        return self.xp.sqrt(self.inner(x, x))

    def add_product(self, x: Array, a: Array, b: Array, /) -> Array:
        """Compute x + a * b, where a and b are broadcast to the shape of x."""
        return x + a * b

    def lerp(self, old: Array, new: Array, share: Array | float, /) -> Array:
        """Linear interpolation (1 - share) * old + share * new of arrays of the same shape."""
        return (1.0 - share) * old + share * new

    def join_blocks(self, A11: Array, A12: Array, A21: Array, A22: Array, /) -> Array:
        """Matrix [[A11, A12], [A21, A22]] of blocks [..., ., .]."""
        xp = self.xp
        return xp.concat([xp.concat([A11, A12], axis=-1), xp.concat([A21, A22], axis=-1)], axis=-2)

    def log(self, x: Array, /) -> Array:
        """Natural logarithm, elementwise; that of zero is -inf, without a warning."""
        return self.xp.log(x)

    def inner_by_column(self, x: Array, y: Array, /) -> Array:
        """Sums [D] of x y [..., N, D] over all axes but the last."""
        return self.xp.sum(x * y, axis=tuple(range(x.ndim - 1)))

    def squared_differences(self, X: Array, Z: Array, scale: Array, /) -> Array:
        """Sums of squared differences [..., N, M] between the rows of X [..., N, D] and Z [..., M, D], without error.

        Differences are divided by `scale`, a 0-d array or [D].
        """
        r2 = None
        for d in range(X.shape[-1]):
            difference = (X[..., :, d, None] - Z[..., None, :, d]) / (scale[d] if scale.ndim else scale)
            r2 = difference * difference if r2 is None else r2 + difference * difference
        return r2

    def look_up(self, table: Array, places: Array, /) -> Array:
        """Return the entries of a table [n] at the places [...], which are whole numbers of any type."""
        xp = self.xp
        return xp.reshape(xp.take(table, xp.reshape(xp.astype(places, xp.int64), (-1,))), places.shape)

    def squared_distances(self, X: Array, Z: Array, X_squares: Array, Z_squares: Array, /) -> Array:
        """Squared distances [..., N, M] between the rows of X [..., N, D] and Z [..., M, D]; none is negative.

        `X_squares` and `Z_squares` are the squared norms of the rows.
        """
        # A single product of [-2 x, |x|^2, 1] with [z, 1, |z|^2]. NumPy vectorises the maximum with a row of zeros, but
        # not with a single zero.
        xp, X_squares, Z_squares = self.xp, X_squares[..., None], Z_squares[..., None]
        left = xp.concat([-2.0 * X, X_squares, xp.ones_like(X_squares)], axis=-1)
        right = xp.concat([Z, xp.ones_like(Z_squares), Z_squares], axis=-1)
        return xp.maximum(left @ right.mT, xp.zeros((Z.shape[-2],), **self.like(X)))

    def product(self, X: Array, Y: Array, /) -> Array:
        """Matrix product X Y [..., M, N]; that of bfloat16 matrices is summed and returned in float32."""
        return X @ Y

    def triangular_product(
        self, X: Array, Y: Array, /, *, left: str = "", right: str = "", lower: bool = False
    ) -> Array:
        """Matrix product X Y [..., M, N] as in `product`, or its lower triangle if `lower` is true.

        If X is triangular, `left` is "lower" or "upper"; `right` describes Y in the same way. The other triangle of a
        triangular matrix must be zero.
        """
        product = self.product(X, Y)
        return self.xp.tril(product) if lower else product

    def fused(self, f: Callable[..., tuple[Array, ...]], /, *args: Array | float) -> tuple[Array, ...]:
        """Evaluate ``f(self, *args)`` for an elementwise f; a library may compile f to one kernel and cache it.

        Parameters
        ----------
        f
            A function at module level that depends only on its arguments. Each of its operations must take an array,
            and must not change an array in place. The function may use the attributes `dtype` and `ndim` of arrays,
            elementwise functions of `xp` (`clip` only with both limits), `zeros_like`, `ones_like`, `full_like`, and
            methods of this backend such as `lerp`.
        args
            Numbers and arrays. The arrays are broadcast to a common shape. All results have this shape.
        """
        return f(self, *args)

    def elementwise(
        self, f: Callable[..., tuple[Array, ...]], /, *arrays: Array, numbers: Sequence = (), lower: bool = False
    ) -> tuple[Array, ...]:
        """Evaluate ``f(self, *arrays, *numbers)`` as `fused` does, for arrays of the same shape.

        The numbers may be 0-d arrays. A library may process the arrays piece by piece. If `lower` is true, the arrays
        [..., M, M] must be lower triangular, and f must map zeros to zeros.
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
        """Apply `elementwise` to each of several tuples of arrays; a library may evaluate them together."""
        pairs = zip(several, lower, strict=True)
        return [self.elementwise(f, *arrays, numbers=numbers, lower=one) for arrays, one in pairs]

    def diagonal(self, A: Array, /) -> Array:
        """Diagonal [..., M] of A [..., M, M]; it may be a view, so do not change it."""
        M = A.shape[-1]
        return self.xp.reshape(A, (*A.shape[:-2], M * M))[..., :: M + 1]

    def add_diagonal(self, A: Array, d: Array | float, /) -> Array:
        """Return A + diag(d) as a new array, for A [..., M, M] and a number d or an array [M] or [..., M]."""
        d = d if isinstance(d, (int, float)) or d.ndim == 0 else d[..., None]
        return A + d * self.xp.eye(A.shape[-1], **self.like(A))

    def tril(self, A: Array, /) -> Array:
        """Lower triangle of A [..., M, M], with zeros above the diagonal."""
        return self.xp.tril(A)

    def symmetric_from_lower(self, A: Array, /) -> Array:
        """Symmetric matrix with the lower triangle of A [..., M, M]."""
        return self.xp.tril(A) + self.xp.tril(A, k=-1).mT

    def hollow_from_lower(self, A: Array, /) -> Array:
        """Symmetric matrix with a zero diagonal and the entries of A [..., M, M] below the diagonal."""
        low = self.xp.tril(A, k=-1)
        return low + low.mT

    def times_own_transpose(self, A: Array, /) -> Array:
        """Exactly symmetric product A A^T [..., M, M] of A [..., M, K]."""
        return A @ A.mT

    def inverse_from_cholesky(self, L: Array, /) -> Array:
        """Exactly symmetric inverse (L L^T)^-1 [M, M] for a lower triangular L [M, M]."""
        half = self.solve_triangular(L, self.xp.eye(L.shape[-1], **self.like(L)))
        return half.mT @ half

    # -- symmetric matrices [M, M] given by their lower triangles; other entries are unspecified ----------------------

    def triangular_inverse(self, L: Array, /) -> Array | None:
        """Return L^-1 for a lower triangular L [M, M], or None if the library is no faster than triangular solves."""
        return None

    def lower_cholesky(self, A: Array, d: Array, /) -> Array:
        """Lower triangle of the factor L of A + diag(d) [..., M, M], for a symmetric A and d, 0-d or [..., M].

        If the factorisation fails, the diagonal of L contains NaN. In a stack, that affects only its own matrix.
        """
        return self.cholesky(self.add_diagonal(A, d))

    def lower_inverse_from_cholesky(self, L: Array, /) -> Array:
        """Lower triangle of the inverse (L L^T)^-1 [M, M], for the lower triangle of L [M, M]."""
        return self.inverse_from_cholesky(self.tril(L))

    def lower_tiles(
        self, f: Callable[[int, int], tuple[Array, ...]], M: int, /, *, groups: int | None = None
    ) -> tuple[Array, ...]:
        """Lower triangles of several matrices [M, M], or of stacks [groups, M, M], from ``f(start, stop)``.

        The function f returns the rows from `start` to `stop` of each matrix, without the columns from `stop` on. A
        library may call f for all rows at once.
        """
        return f(0, M)

    def hollow_tile(self, A: Array, start: int, /) -> Array:
        """Return a tile [m, n] of rows, as in `lower_tiles`, with zeros on the diagonal of the matrix."""
        xp, (m, n) = self.xp, A.shape
        return xp.where(xp.eye(m, n, k=start, **self.like(A)) > 0.0, xp.zeros_like(A), A)

    def symmetric_product(self, A: Array, X: Array, /) -> Array:
        """Product A X [M, N] of a symmetric A, given by its lower triangle, and X [M, N]."""
        return self.symmetric_from_lower(A) @ X

    def symmetric_inner(self, A: Array, C: Array, /) -> Array:
        """Sum (0-d) of all entries of A * C, for symmetric matrices given by their lower triangles."""
        diagonals = self.diagonal(A) * self.diagonal(C)
        return 2.0 * self.inner(self.xp.tril(A), self.xp.tril(C)) - self.xp.sum(diagonals)

    def reduced_precision(
        self, precision: str, x: Array, /
    ) -> tuple[Any, Callable[[], contextlib.AbstractContextManager[Any]]]:
        """Return the dtype of matrix products in a lower precision, and a function that creates the context for them.

        Parameters
        ----------
        precision
            One of "float32", "tf32" (float32 products that use eleven bits of each factor), "tf32x3", "bfloat16" and
            "bfloat16x3". In "tf32x3" and "bfloat16x3", three products of this dtype, in this context, replace one.
        x
            An array on the device.

        Raises
        ------
        BackendError
            If the library or the device does not support products in this precision.
        """
        if precision == "float32":
            return self.xp.float32, contextlib.nullcontext
        raise BackendError(f"{self.name} does not support products in {precision}; use precision='float32' or None.")

    def round_float32(self, x: Array, bits: int, /) -> Array:
        """Round float32 numbers x of at most 1e33 to significands of at most `bits` bits, from 8 to 23."""
        scaled = (2.0 ** (24 - bits) + 1.0) * x
        return scaled - (scaled - x)  # Veltkamp's splitting: without error, except in the sum that rounds

    def special(self, name: str, /, *args: Any) -> Array:
        """Evaluate a special function by its SciPy name, such as "log_ndtr" or "digamma", at arrays and numbers.

        Raises
        ------
        BackendError
            If neither the plug-in nor the library has such a function.
        """
        return self.special_function(name)(*args)

    def special_function(self, name: str, /) -> Callable[..., Array]:
        """Return the function that `special` calls, or raise the same errors as `special`."""
        found = self.special_functions.get(name)
        if found is None and self.special_module and not name.startswith("_"):
            found = vars(importlib.import_module(self.special_module)).get(name)
        if not callable(found) or isinstance(found, type):
            own = self.special_module or f"backend {self.name!r}"
            raise BackendError(
                f"{own} has no special function {name!r}; compute it from other functions, or add it to "
                f"`special_functions` of the backend {self.name!r}."
            )
        return found
