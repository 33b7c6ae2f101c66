"""What an array library must bring beyond the Array API standard."""

import contextlib
import importlib
import importlib.metadata
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from agp.backend._guesses import guessed
from agp.backend._rows import row_blocks, row_count
from agp.errors import BackendError
from agp.ledger import collected

__all__ = ["Array", "Backend", "ClosedForm", "Pullback"]

Array: TypeAlias = Any
"""An array of any library that follows the standard; its shape stands in the docstring of whatever takes it."""

Pullback: TypeAlias = Callable[..., Any]
"""Maps the cotangents of a function's outputs to the cotangents of its inputs."""

ClosedForm: TypeAlias = Callable[
    [dict[str, Array]], tuple[Array, Callable[[Array, tuple[str, ...]], Mapping[str, Array]]]
]
"""A function of named arrays with its pullback, as `Backend.with_pullback` takes it."""

DTYPES = ("float64", "float32", "int64", "int32", "bool", "int16", "int8", "uint8", "complex128", "complex64")
"""Names of dtypes of the standard, the frequent ones first."""


class Backend(ABC):
    """What the mathematics asks of an array library; the defaults are right for eager libraries without autodiff.

    A plug-in sets the class attributes and supplies at least `cholesky`, `solve_triangular`, `from_numpy` and
    `to_numpy`.
    """

    name: str
    """The name that users type, which is also the import name of the library."""
    xp: Any
    """The namespace of the standard."""
    array_types: tuple[type, ...]
    """The types whose instances this backend serves."""
    refused_types: tuple[type, ...] = ()
    """Subclasses of those that do not behave as arrays of the standard."""
    gradients: tuple[str, ...] = ("closed-form",)
    """The gradient modes on offer."""
    special_module: str = ""
    """The library's own module of special functions, under the names of SciPy; imported when one is asked for."""
    special_functions: ClassVar[Mapping[str, Callable[..., Array]]] = {}
    """Special functions by SciPy's name, where that module has none of the name or a worse one."""
    triangular_block: float = 128
    """Triangular matrices up to this size are multiplied at once by `agp.linalg`, larger ones in halves. To be raised
    where `triangular_product` skips the zeros."""
    rounds_products: bool = False
    """Whether products may be less precise than their dtype, so that `full_precision` is needed."""
    loops_on_device: bool = False
    """Whether `repeat`, compiled, is a loop on the device."""
    rows_elsewhere: bool = False
    """Whether arrays are rows of data that lie elsewhere: `fold` sums over them there, `gathered` brings them here."""
    conformance: bool = False
    """True for a library that exists to test conformance: it is never chosen unless named."""

    # -- arrays -----------------------------------------------------------------------------------------------------

    def version(self) -> str:
        """The version of the array library."""
        package = self.name.partition(".")[0]
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
        distributions = importlib.metadata.packages_distributions().get(package, [])  # slow: every file is looked at
        return importlib.metadata.version(distributions[0]) if distributions else ""

    def devices(self) -> list[str]:
        """Names of the devices that arrays can be put on here."""
        return ["cpu"]

    def device_name(self, x: Array, /) -> str:
        """The name of the device that holds x, one of `devices()`; empty while x is traced."""
        return str(x.device)

    def like(self, x: Array, /) -> dict[str, Any]:
        """The keywords with which a new array gets the dtype and device of x."""
        return {"dtype": x.dtype, "device": x.device}

    def dtype_name(self, x: Array, /) -> str:
        """The name of the dtype of x, as NumPy has it."""
        return next(name for name in DTYPES if getattr(self.xp, name) == x.dtype)

    def widest_float(self, x: Array, /) -> Any:
        """The widest real floating-point dtype on the device of x: float64 where there is one."""
        found = self.xp.__array_namespace_info__().dtypes(device=x.device, kind="real floating")
        return found.get("float64", x.dtype)

    @abstractmethod
    def from_numpy(self, x: Any, /, *, dtype: str | None = None, device: str | None = None) -> Array:
        """Copy a host array to this library, on the device of that name; the dtype is kept unless named."""

    @abstractmethod
    def to_numpy(self, x: Array, /) -> Any:
        """The array on the host, as NumPy; it may share the memory of x."""

    def synchronise(self, x: Array, /) -> None:  # noqa: B027 - nothing to wait for where libraries are eager
        """Wait until the device has computed x."""

    def reading_waits(self, x: Array, /) -> bool:
        """Whether the host waits for a device when it reads a number that is computed from x."""
        return False

    def peak_memory(self, x: Array, /) -> float:
        """Largest memory so far, in MiB: of the allocator of x's device, or of the process where x is on the host."""
        status = Path("/proc/self/status")
        if status.exists():  # Linux; the other counter starts at the memory of the process that started this one
            for line in status.read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return float(line.split()[1]) / 2**10
        import resource  # not on Windows

        unit = 2**20 if sys.platform == "darwin" else 2**10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit

    def enable_float64(self) -> None:  # noqa: B027 - most libraries have it
        """Make float64 arrays possible for the whole process: for programs that own it, never for a library."""

    def is_concrete(self, x: Array, /) -> bool:
        """Whether x has values that the host can read now; False while a function is being traced."""
        return True

    def full_precision(self) -> contextlib.AbstractContextManager[Any]:
        """Inside, products are as precise as their dtype, unless the user has asked for less.

        For libraries that round what they multiply to fewer digits on some devices (`agp.precision`).
        """
        return contextlib.nullcontext()

    # -- mathematics beyond the standard ----------------------------------------------------------------------------

    @abstractmethod
    def cholesky(self, A: Array, /) -> Array:
        """Lower factor L with L L^T = A [..., M, M]; NaN on the diagonal, and no exception, where A has none."""

    @abstractmethod
    def solve_triangular(self, L: Array, B: Array, /, *, transpose: bool = False) -> Array:
        """L^-1 B, or L^-T B, for lower L [M, M] and B [M, N]."""

    # What follows is optional: a library with faster routines overrides it. `agp.linalg` is the only caller.

    def device_block(self, x: Array, /) -> float:
        """Matrices like x up to this size are worked on at once, whatever operations parts would save.

        On accelerators, where every call costs a launch; 0 elsewhere.
        """
        return 0.0

    def inner(self, x: Array, y: Array, /) -> Array:
        """The sum of all entries of x * y, 0-d, for arrays of one shape."""
        return self.xp.sum(x * y)

    def triangular_product(
        self, X: Array, Y: Array, /, *, left: str = "", right: str = "", lower: bool = False
    ) -> Array:
        """X Y [..., M, N], or its lower triangle.

        `left` and `right` say which factors are triangular, "lower" or "upper": the other triangle of them is zero.
        """
        product = X @ Y
        return self.xp.tril(product) if lower else product

    def elementwise(self, f: Callable[..., tuple], /, *arrays: Array, lower: bool = False) -> tuple[Array, ...]:
        """What f makes of arrays of one shape, each entry by itself; it may be evaluated in pieces.

        `lower` says that the arrays [..., M, M] are lower triangular, and that zeros give zeros.
        """
        return f(*arrays)

    def elementwise_each(
        self, f: Callable[..., tuple], several: Sequence[tuple[Array, ...]], /, *, lower: Sequence[bool]
    ) -> list[tuple]:
        """`elementwise` of each of several tuples of arrays, which a library may evaluate together."""
        return [self.elementwise(f, *arrays, lower=one) for arrays, one in zip(several, lower, strict=True)]

    def add_diagonal(self, A: Array, d: Array | float, /) -> Array:
        """A + diag(d), a new array, for A [..., M, M] and d [M], [..., M], or one number for all entries."""
        d = d if isinstance(d, (int, float)) or d.ndim == 0 else d[..., None]
        return A + d * self.xp.eye(A.shape[-1], **self.like(A))

    def tril(self, A: Array, /) -> Array:
        """The lower triangle of A [..., M, M]."""
        return self.xp.tril(A)

    def symmetric_from_lower(self, A: Array, /) -> Array:
        """The symmetric matrix with the lower triangle of A [..., M, M]."""
        return self.xp.tril(A) + self.xp.tril(A, k=-1).mT

    def times_own_transpose(self, A: Array, /) -> Array:
        """A A^T [..., M, M], symmetric, for A [..., M, K]."""
        return A @ A.mT

    def inverse_from_cholesky(self, L: Array, /) -> Array:
        """(L L^T)^-1 [M, M], symmetric, for lower L [M, M]."""
        half = self.solve_triangular(L, self.xp.eye(L.shape[-1], **self.like(L)))
        return half.mT @ half

    def reduced_precision(
        self, precision: str, x: Array, /
    ) -> tuple[Any, Callable[[], contextlib.AbstractContextManager]]:
        """The dtype in which, and a context within which, products of arrays like x have a precision.

        Parameters
        ----------
        precision
            "float32", "tf32" (float32 whose products keep eleven bits of each factor) or "bfloat16".
        x
            An array on the device in question.

        Raises
        ------
        BackendError
            If the library, or the device, has no products in that precision.
        """
        if precision == "float32":
            return self.xp.float32, contextlib.nullcontext
        msg = f"{self.name} has no products in {precision}; use precision='float32', or None."
        raise BackendError(msg)

    def special(self, name: str, /, *args: Any) -> Array:
        """The special function of SciPy's name, such as "log_ndtr" or "digamma", at arrays (and numbers).

        Raises
        ------
        BackendError
            If neither the plug-in nor the library has a function of that name.
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
                f"{own} has no special function {name!r}; compute it from functions that are there, or add it to "
                f"`special_functions` of the backend {self.name!r}."
            )
            raise BackendError(msg)
        return found

    # -- control flow -----------------------------------------------------------------------------------------------

    # What is reported to `agp.repairs` inside a transformation belongs to its trace: a library that traces hands it
    # out beside the results, and reports it again outside.

    def cond(
        self,
        predicate: Array,
        if_true: Callable[[], Any],
        if_false: Callable[[], Any],
        /,
        *,
        likely: bool | None = None,
    ) -> Any:
        """`if_true()` where the 0-d predicate holds, else `if_false()`; both give the same shapes.

        `likely` says how the predicate nearly always turns out: that may be taken for granted, and checked later
        (`agp.backend.guessed`).
        """
        return if_true() if guessed(predicate, likely) else if_false()

    def while_loop(
        self, condition: Callable[..., Array], body: Callable[..., tuple], carry: tuple, /, *, at_least: int = 0
    ) -> tuple:
        """Repeat `carry = body(*carry)` while `condition(*carry)`; never differentiated.

        `at_least` tells how often the condition is known to hold at first: it need not be looked at then.
        """
        for _ in range(at_least):
            carry = body(*carry)
        while bool(condition(*carry)):
            carry = body(*carry)
        return carry

    def repeat(self, f: Callable, carry: Any, rows: Any, count: Array, /) -> tuple[Any, dict[str, Array]]:
        """What `f` makes of the carry, row after row, and what it has logged; never differentiated.

        Parameters
        ----------
        f
            ``f(carry, row) -> (carry, logged)``, where `logged` holds 0-d arrays by name.
        carry
            A tuple of models, arrays, and lists, tuples and dictionaries of them.
        rows
            Arrays [K, ...], and None, in tuples and dictionaries; a row has the same structure with arrays [...].
        count
            How many rows to take, 0-d, at most K.

        Returns
        -------
        carry
        logged
            Arrays [K], or [count] where that can be read.

        Raises
        ------
        BackendError
            Where there are no loops on the device.
        """
        msg = f"backend {self.name!r} compiles no loops; take the steps one by one."
        raise BackendError(msg)

    def fold(
        self, f: Callable, params: Any, rows: Any, block_rows: int, /, *, add: Callable, kept_rows: int = 0
    ) -> tuple[Any, Pullback]:
        """The sum of `f(params, block)[0]` over blocks of rows, with its pullback to params, in the memory of a block.

        Parameters
        ----------
        f
            `f(params, block)` returns a value and its pullback to params; it is evaluated once for the value and again
            in the pullback, and nothing is kept between.
        params
            What each block needs whole: models, factors, arrays.
        rows
            Arrays [N, ...] of this library, and None, in (nested) tuples and dictionaries; a block has the same
            structure with the arrays [b, ...].
        block_rows
            Rows to take at once.
        add
            Sums two values, or two cotangents; None is zero.
        kept_rows
            The blocks of the first so many rows are evaluated once, and what their pullbacks need is kept. A program
            that is traced as a whole may keep nothing.
        """
        value_of = self.remat(lambda params, block: f(params, block)[0])
        total, kept, seen = None, [], 0
        for block in row_blocks(rows, block_rows):
            seen += row_count(block)
            if seen <= kept_rows:
                value, pull = f(params, block)
                kept.append(pull)
            else:
                value = value_of(params, block)
            total = add(total, value)

        return total, lambda bar: self.fold_cotangent(f, params, rows, block_rows, bar, add=add, kept=kept)

    def fold_cotangent(
        self, f: Callable, params: Any, rows: Any, block_rows: int, bar: Any, /, *, add: Callable, kept: Sequence = ()
    ) -> Any:
        """The pullback of `fold` at the cotangent of the sum; pullbacks of the first blocks may have been kept."""
        params_bar = None
        with collected():  # what was repaired has been reported with the value
            for number, block in enumerate(row_blocks(rows, block_rows)):
                pull = kept[number] if number < len(kept) else f(params, block)[1]
                params_bar = add(params_bar, pull(bar))
        return params_bar

    def map_rows(
        self, f: Callable, params: Any, X: Array, block_rows: int, /, *, add: Callable
    ) -> tuple[Array, Callable[[Array], tuple[Any, Array]]]:
        """`f(params, block)[0]` of blocks of rows, one below the other, and its pullback, in the memory of a block.

        Parameters
        ----------
        f
            `f(params, block)` returns an array with a row for each row of the block, and its pullback
            ``bar -> (params_bar, block_bar)``; it is evaluated once for the value and again in the pullback.
        params
            What each block needs whole: models, factors, arrays.
        X
            An array [N, ...].
        block_rows
            Rows to take at once.
        add
            Sums two cotangents of the params; None is zero.

        Returns
        -------
        value
            [N, ...].
        pullback
            ``bar [N, ...] -> (params_bar, X_bar)``.
        """
        value_of = self.remat(lambda params, block: f(params, block)[0])
        values = [value_of(params, block) for block in row_blocks(X, block_rows)]

        def pullback(bar):
            params_bar, X_bars = None, []
            with collected():  # what was repaired has been reported with the value
                for block, block_bar in row_blocks((X, bar), block_rows):
                    one_bar, X_bar = f(params, block)[1](block_bar)
                    params_bar = add(params_bar, one_bar)
                    X_bars.append(X_bar)
            return params_bar, self.xp.concat(X_bars, axis=0)

        return self.xp.concat(values, axis=0), pullback

    # -- rows of data that may lie elsewhere ------------------------------------------------------------------------

    def gathered(self, x: Array, index: Any = None, /) -> Array:
        """The rows x [N, ...], or those at a host array of places [n], as an array in memory; usually x itself."""
        if index is None:
            return x
        return self.xp.take(x, self.from_numpy(index, device=self.device_name(x) or None), axis=0)

    def same_rows(self, x: Array, y: Array, /) -> bool:
        """Whether two arrays of rows are equal."""
        return x is y or (x.shape == y.shape and bool(self.xp.all(x == y)))

    def generated_rows(self, f: Callable[[int, int], dict[str, Any]], X: Array, /) -> dict[str, Array]:
        """Arrays [S, N, ...] beside X [N, D], of which ``f(start, rows)`` gives parts [S, rows, ...] on the host."""
        names = self.dtype_name(X), self.device_name(X) or None
        return {name: self.from_numpy(x, dtype=names[0], device=names[1]) for name, x in f(0, X.shape[0]).items()}

    def map_chunks(self, f: Callable[..., tuple], rows: tuple, example: tuple, /) -> tuple[Array, ...]:
        """``f(*rows)``, a tuple of arrays with one row for each of arrays [N, ...]: of rows elsewhere, when asked for.

        `example` is what f gives for one row, in arrays of any library.
        """
        return f(*rows)

    def remat(self, f: Callable, /) -> Callable:
        """f, whose intermediates automatic differentiation recomputes instead of keeping."""
        return f

    def compile(self, f: Callable, /) -> Callable:
        """f, compiled where the library can do so and get the same numbers."""
        return f

    # -- gradients --------------------------------------------------------------------------------------------------

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
