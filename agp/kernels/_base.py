"""The base class for kernels."""

import functools
import math
import numbers
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.checks import check_instance
from agp.kernels._features import Features
from agp.kernels._jets import Jets
from agp.kernels._linearisation import Linearisation
from agp.kernels._quadratic_forms import quadratic_forms
from agp.kernels._stacks import Stackable
from agp.repairs import at_inputs, on_instance

if TYPE_CHECKING:
    from agp.kernels._active_dims import ActiveDims
    from agp.kernels._composites import Product, Scaled, Sum


CALL = 4096
"""The most entries of a covariance matrix of several groups of inputs, for kernels that take one group at a time."""


class Kernel(Stackable, tree.Part, ABC):
    """A covariance function k(x, z) for inputs with D columns.

    Combine kernels with ``k1 + k2``, ``k1 * k2`` or ``2.0 * k``. The kernel ``k.on((0, 2))`` uses only columns 0 and 2.

    Parameters may be None or plain numbers. `from_data` and the constructors of models convert them to arrays with the
    data's library, dtype and device.
    """

    _is_kernel: ClassVar[bool] = True
    short_name: ClassVar[str]
    """The name in text, such as ``GPRegressor(kernel="rbf + linear")``, of letters and digits.

    Text can name the exported kernels that define this attribute. Their constructors have no required arguments.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in {"__call__", "diag", "jets"} & vars(cls).keys():
            setattr(cls, name, at_inputs(vars(cls)[name], "kernel.from_data(X, variance)"))
        if "from_data" in vars(cls):
            cls.from_data = on_instance(vars(cls)["from_data"], Kernel, "RBF().from_data(X, variance)")  # type: ignore[method-assign]

    @abstractmethod
    def __call__(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        """Return the covariances k(X, Z), or the symmetric k(X, X) if Z is omitted, with their pullback.

        Parameters
        ----------
        X
            Inputs [N, D].
        Z
            Other inputs [M, D]. Only a call with one argument includes white noise and returns an exactly symmetric
            matrix. A call k(X, X) with two arguments is not treated specially.

        Returns
        -------
        K
            Covariances [N, M], or [N, N] for one argument.
        pullback
            A function ``K_bar -> (kernel_bar, X_bar, Z_bar)``, or ``K_bar -> (kernel_bar, X_bar)`` for one argument.
        """

    def shift_of(self, points: Array, /, *, stacked: bool) -> Array | None:  # noqa: ARG002
        """Return log(s / variance) (0-d, or [S] for a stack) of a number s that `less_shift` subtracts; None for s = 0.

        If all covariances of the points are nearly equal, s is near them. `Centred` then subtracts averages without
        rounding errors of the variance. By default, s is zero.
        """
        return None

    def less_shift(self, X: Array, Z: Array | None, shift: Array | None, /) -> tuple[Array, Pullback]:  # noqa: ARG002
        """Return k(X, Z) - s, and the pullback of k(X, Z); X may be groups of inputs."""
        return self.grouped_covariance(X, Z) if X.ndim == 3 else self(X, *(() if Z is None else (Z,)))

    def linearise(self, X: Array, /) -> Linearisation | None:  # noqa: ARG002
        """Return k(X, X) [N, N] to first order in the kernel's parameters, or None if the kernel has no such function.

        Newton's method for exact GPs needs this function. For kernels without it, training uses L-BFGS.
        """
        return None

    def linearise_groups(self, X: Array, /) -> Linearisation | None:  # noqa: ARG002
        """Return the covariances within groups of inputs [G, N, D] to first order in the kernel's parameters, or None.

        As in `linearise`, with a leading axis G: K is [G, N, N], with both triangles, and ``times(a, W)`` takes vectors
        a [G, N] and matrices W [G, N, N], and returns leaves ``[G, N, *S]``. Newton's method for `agp.NNGP` needs this
        function.
        """
        return None

    def inverse_scales(self, width: int, /) -> Array | None:  # noqa: ARG002
        """Return factors of the coordinates of rows such that rows at small scaled distances are most correlated.

        The coordinates are those of `metric_inputs`, by default the `width` input columns. A factor is 0 if the kernel
        does not depend on the column. The result is None if the kernel has no such factors; correlations are then
        compared instead.
        """
        return None

    def metric_inputs(self, X: Array, /) -> Array:
        """Return the inputs X [..., N, D] in the coordinates [..., N, E] to which `inverse_scales` refers.

        By default, these are the inputs themselves. The first D coordinates belong to the columns of X, and may replace
        them. Further ones may follow.
        """
        return X

    takes_codes: ClassVar[bool] = False
    """Whether the columns contain codes of levels, so that the kernel compares levels instead of numbers."""

    def category_levels(self, width: int, /) -> dict[int, int]:
        """Return the numbers of levels of the columns that contain codes of levels, of inputs with `width` columns.

        The number is 0 if it is unknown. By default, it is 0 for all columns if `takes_codes` is true, and there are no
        such columns otherwise.
        """
        return dict.fromkeys(range(width), 0) if self.takes_codes else {}

    def with_categories(self, width: int, columns: tuple[int, ...], /) -> "Kernel":
        """Return the kernel for inputs with `width` columns of which some contain codes of levels.

        By default, this is the kernel on the other columns, times `Overlap` on these columns. Linear kernels become
        sums with `RandomEffects`. The following parts are kept: those that take codes (`takes_codes`), those that act
        on other columns only, and those of classes outside agp that act on columns of codes only. If a factor of a
        product takes the codes of a column, the other factors act on the other columns, unless `on` selects the column.
        """
        from agp.kernels._categories import times_overlap  # subclasses

        if not columns or self.takes_codes:
            return self
        if self._keeps_codes(width, columns):
            from agp.kernels._active_dims import ActiveDims  # a subclass

            return ActiveDims(self, tuple(range(width)), codes=True)
        return times_overlap(self, width, columns)

    def _keeps_codes(self, width: int, columns: tuple[int, ...]) -> bool:
        """Whether `with_categories` keeps the kernel, which takes codes or is a user's kernel of codes only."""
        return self.takes_codes or (len(columns) == width and not type(self).__module__.startswith("agp."))

    def _without_columns(self, width: int, columns: tuple[int, ...]) -> "Kernel":
        """Return the kernel on the other columns; parts that take codes, or whose columns are selected, are kept."""
        from agp.kernels._categories import on_others  # a later module

        return self if not columns or self._keeps_codes(width, columns) else on_others(self, width, columns)

    @abstractmethod
    def diag(self, X: Array, /) -> tuple[Array, Pullback]:
        """Return the variances k(x, x) [N] of inputs X [N, D], and the pullback ``bar [N] -> (kernel_bar, X_bar)``.

        X_bar is None if the variances do not depend on the inputs.
        """

    takes_groups: ClassVar[bool] = False
    """Whether calls accept groups of inputs [G, N, D] and [G, M, D]."""

    def grouped_covariance(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        """Return the covariances within each group of inputs, and their pullback.

        The covariances of group g are k(X_g, Z_g), or the symmetric k(X_g, X_g) if Z is omitted. If `takes_groups` is
        true, the kernel is called once for all groups. Otherwise it is called for the rows of several small groups at
        once, whose covariances with each other are not used.

        Parameters
        ----------
        X
            Groups of inputs [G, N, D].
        Z
            Other inputs [G, M, D] of the same groups.

        Returns
        -------
        K
            Covariances [G, N, M], or [G, N, N] if Z is omitted.
        pullback
            The pullback, as for a single group except that K_bar, X_bar and Z_bar have a leading axis G.
        """
        inputs = (X,) if Z is None else (X, Z)
        if self.takes_groups:
            return self(*inputs)
        xp, (G, N), M = backend_of(X).xp, X.shape[:2], inputs[-1].shape[1]
        size = max(1, math.isqrt(CALL // max(1, N * M)))
        blocks = [slice(g, min(g + size, G)) for g in range(0, G, size)]
        K, pulls = zip(*(_several_groups(self, *(x[some, ...] for x in inputs)) for some in blocks), strict=True)

        def pullback(K_bar):
            bars = (pull(K_bar[some, ...]) for some, pull in zip(blocks, pulls, strict=True))
            kernel_bars, *input_bars = zip(*bars, strict=True)
            joined = (None if any(x is None for x in several) else xp.concat(several) for several in input_bars)
            return functools.reduce(tree.add, kernel_bars), *joined

        return xp.concat(K), pullback

    def grouped_sums(self, X: Array, Z: Array, w: Array, /) -> tuple[Array, Pullback]:
        """Return weighted sums of covariances with the inputs of each group, sum_c w_gc k(x_n, z_gc).

        Parameters
        ----------
        X
            Inputs [N, D].
        Z
            Groups of inputs [G, C, D].
        w
            Weights [G, C].

        Returns
        -------
        sums
            An array [G, N].
        pullback
            A function ``bar -> (kernel_bar, X_bar, Z_bar, w_bar)`` for a cotangent [G, N].
        """
        xp = backend_of(X).xp
        (N, (G, C, D)) = X.shape[0], Z.shape
        K, pull = self(X, xp.reshape(Z, (G * C, D)))
        by_group = xp.permute_dims(xp.reshape(K, (N, G, C)), (1, 0, 2))

        def pullback(bar):
            kernel_bar, X_bar, Z_bar = pull(xp.reshape(bar.mT[:, :, None] * w, (N, G * C)))
            return kernel_bar, X_bar, xp.reshape(Z_bar, Z.shape), (bar[:, None, :] @ by_group)[:, 0, :]

        return (by_group @ w[:, :, None])[:, :, 0], pullback

    def quadratic_forms(self, X: Array, w: Array, /) -> tuple[Array, Pullback]:
        """Return the quadratic form w_g^T k(X_g) w_g for each group of inputs, and its pullback.

        The covariances k(X_g) include white noise.

        Parameters
        ----------
        X
            Groups of inputs [G, C, D].
        w
            Weights [G, C].

        Returns
        -------
        forms
            An array [G].
        pullback
            A function ``bar -> (kernel_bar, X_bar, w_bar)`` for a cotangent [G].
        """
        return quadratic_forms(self, X, w)

    reads_tags: ClassVar[bool] = False
    """Whether the last column of the inputs contains tags of what the rows observe (`WithSlopes`)."""

    @property
    def has_jets(self) -> bool:
        """Whether the kernel itself, without its parts, implements `jets`."""
        return type(self).jets is not Kernel.jets

    def jets(self, X: Array, V: Array, Z: Array, W: Array, /) -> tuple[Jets, Pullback]:  # noqa: ARG002
        """Return the covariances of f and of its slopes along directions, as `WithSlopes` needs them.

        Parameters
        ----------
        X, V
            Inputs and directions [N, D], or groups of them [G, N, D].
        Z, W
            Inputs and directions [M, D], or groups of them [G, M, D].

        Returns
        -------
        jets
            k(X, Z) without white noise, and its derivatives along the directions of both arguments.
        pullback
            A function ``jets_bar -> (kernel_bar, X_bar, V_bar, Z_bar, W_bar)``.
        """
        raise TypeError(no_slopes(self))

    floats_per_entry: ClassVar[int] = 3
    """The number of arrays that an evaluation stores, each with the shape of K; used for memory budgets."""

    @abstractmethod
    def from_data(self, X: Array, variance: float, /) -> Self:
        """Fill in missing parameters with starting values, given inputs X [N, D] and the variance of the targets."""

    def scale_by(self, factor: Array | float, /) -> "Kernel":
        """Return the kernel multiplied by a positive factor.

        If the kernel has variances, the factor multiplies them.

        Raises
        ------
        ValueError
            If a variance has no value yet.
        """
        if "variance" in tree.missing(self):
            raise ValueError(
                f"{type(self).__name__} has no variance to scale; pass variance=, or call from_data(X, variance)."
            )
        if "variance" not in tree.leaves(self):
            from agp.kernels._composites import Scaled  # a subclass

            return Scaled(factor, self)  # type: ignore[arg-type]
        return tree.with_leaves(self, {"variance": factor * tree.leaves(self)["variance"]})

    @abstractmethod
    def check(self, width: int, /) -> None:
        """Raise ValueError if this kernel does not accept inputs with this number of columns."""

    def random_features(self, rng: Any, count: int, width: int, /) -> Features:  # noqa: ARG002
        """Return random features phi such that phi(x)^T phi(z) is an unbiased estimate of k(x, z).

        For kernels of finite rank, phi(x)^T phi(z) equals k(x, z).

        Parameters
        ----------
        rng
            A NumPy generator, which draws the frequencies of stationary kernels on the host.
        count
            The number of frequencies for each stationary kernel.
        width
            The number of columns D of the inputs.

        Raises
        ------
        TypeError
            If the kernel or a part of it has no features.
        """
        raise TypeError(
            f"{type(self).__name__} has no random features, so its functions cannot be sampled; implement "
            "`random_features`, or call `sample` at fixed inputs."
        )

    def on(self, columns: int | str | Iterable[int | str], /) -> "ActiveDims":
        """Return this kernel applied to the given input columns, in the given order.

        Columns of arrays are counted from 0. The estimators also accept names of table columns; the kernel then acts on
        all model inputs that are computed from these columns.

        Raises
        ------
        TypeError
            If a column is neither a whole number nor a name.
        ValueError
            If no column is given, or if a column is negative or repeated. `check` raises an error if the inputs have
            too few columns.
        """
        from agp.kernels._active_dims import ActiveDims  # a subclass

        several = columns if isinstance(columns, Iterable) and not isinstance(columns, str) else (columns,)
        kernel = ActiveDims(self, tuple(x if isinstance(x, str) else _column_number(x) for x in several))
        kernel.check_columns()
        return kernel

    def on_sphere(self, columns: Iterable[int | str], /) -> "ActiveDims":
        """Return this kernel of places on the Earth, whose longitude and latitude in degrees are in two input columns.

        ``kernel.on_sphere(columns)`` is ``OnSphere(kernel).on(columns)``. See `agp.kernels.OnSphere`.

        Raises
        ------
        TypeError, ValueError
            As in `on`, and unless there are two columns.
        """
        from agp.kernels._on_sphere import OnSphere  # a subclass

        kernel = OnSphere(self)
        found = kernel.on(columns)
        kernel.check_width(len(found.columns))
        return found

    def __add__(self, other: Any) -> "Sum":
        from agp.kernels._composites import Sum  # a subclass

        if not isinstance(other, Kernel):
            return _refuse_operand(other, "the other term of a sum")
        return Sum.of(self, other)

    def __mul__(self, other: Any) -> "Product | Scaled":
        from agp.kernels._composites import Product, Scaled, multiplier_of  # subclasses

        if isinstance(other, Kernel):
            return Product.of(self, other)
        if not isinstance(other, numbers.Real):
            return _refuse_operand(other, "the other factor of a product")
        return Scaled(multiplier_of(other), self)

    __rmul__ = __mul__


def _several_groups(kernel: Kernel, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
    """Return the covariances within a few groups of inputs [G, N, D], [G, M, D] from those of all their rows."""
    xp, (G, N, D) = backend_of(X).xp, X.shape
    M = N if Z is None else Z.shape[1]
    K, pull = kernel(*(xp.reshape(x, (-1, D)) for x in ((X,) if Z is None else (X, Z))))
    zero = xp.zeros((), **like(K))
    same = xp.eye(G, **like(K))[:, None, :, None] == 1.0

    def pullback(K_bar):
        bar = xp.reshape(xp.where(same, K_bar[:, :, None, :], zero), (G * N, G * M))
        kernel_bar, *bars = pull(bar)
        return kernel_bar, *(None if x is None else xp.reshape(x, (G, -1, D)) for x in bars)

    return xp.sum(xp.where(same, xp.reshape(K, (G, N, G, M)), zero), axis=2), pullback


def check_part(name: str, kernel: Any, /) -> None:
    """Raise TypeError unless this part of another kernel is a kernel of the inputs themselves."""
    check_instance(name, kernel, Kernel)
    if kernel.reads_tags:
        inside = type(kernel).__name__
        raise TypeError(f"{name} is {inside}, which must not be a part of a kernel; write {inside}(k1 + k2) instead.")


def no_slopes(kernel: Kernel, /) -> str:
    """Say that the functions of a kernel have no slopes that can be observed."""
    name = type(kernel).__name__
    return f"slopes of functions of {name} do not exist or are not known; use a smooth kernel, such as RBF or Matern52."


def _column_number(column: Any) -> int:
    try:
        return operator.index(column)
    except TypeError:
        raise TypeError(f"a column is {column!r}, but must be a whole number or a name; write on((0,)).") from None


def _refuse_operand(other: Any, what: str) -> Any:
    """Return NotImplemented, or raise TypeError for a class, a text or a number, which are common mistakes."""
    if isinstance(other, (str, type)):
        check_instance(what, other, Kernel)
    if isinstance(other, numbers.Real):
        raise TypeError(f"{what} is {other!r}, but must be a kernel; write Constant({other!r}).")
    return NotImplemented


class ConstantVariance(Kernel):
    """Base class for kernels whose variance k(x, x) is a scalar (0-d) leaf and is the same for all inputs."""

    variance: Array
    takes_groups: ClassVar[bool] = True

    def diag(self, X: Array, /) -> tuple[Array, Pullback]:
        B = backend_of(X)

        def pullback(bar):
            return tree.cotangent(self, variance=B.xp.sum(bar)), None

        return B.xp.zeros((X.shape[0],), **B.like(X)) + self.variance, pullback

    def stacked_variances(self, X: Array, /) -> tuple[Array, Pullback]:
        variances = self.variance[:, None]
        return backend_of(X).xp.broadcast_to(variances, (variances.shape[0], X.shape[0])), lambda _: None
