"""The base class for kernels, and combinations of them: sums, products, multiples and kernels on selected columns."""

import functools
import math
import numbers
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Self

from agp import tree
from agp._context import at_inputs
from agp._deprecated import former_methods
from agp.backend import Array, Pullback, backend_of
from agp.constraints import POSITIVE
from agp.kernels._features import Features, features_of
from agp.kernels._linearisation import (
    Linearisation,
    apply_weights,
    multiply_linearisations,
    sum_linearisations,
    times_groups,
)
from agp.kernels._parameters import check_number
from agp.kernels._quadratic_forms import quadratic_forms
from agp.kernels._stacks import Stackable, add_stacks, multiply_stacks, spread_scalars

if TYPE_CHECKING:
    from agp.kernels._active_dims import ActiveDims


@former_methods(scaled_by="scale_by")
class Kernel(Stackable, ABC):
    """A covariance function k(x, z) for inputs with D columns.

    Combine kernels with ``k1 + k2``, ``k1 * k2`` or ``2.0 * k``. The kernel ``k.on((0, 2))`` uses only columns 0 and 2.

    Parameters may be None or plain numbers. `from_data` and the constructors of models convert them to arrays with the
    data's library, dtype and device.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in {"__call__", "diag"} & vars(cls).keys():
            setattr(cls, name, at_inputs(vars(cls)[name], "kernel.from_data(X, variance)"))

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
        """Return factors [width] of the input columns such that rows at small scaled distances are most correlated.

        A factor is 0 if the kernel does not depend on the column. The result is None if the kernel has no such factors;
        correlations are then compared instead.
        """
        return None

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
        true, the kernel is called once for all groups. Otherwise it is called once for each group.

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
        xp = backend_of(X).xp
        found = [self(*(x[g, ...] for x in inputs)) for g in range(X.shape[0])]

        def pullback(K_bar):
            kernel_bars, *input_bars = zip(*(pull(K_bar[g, ...]) for g, (_, pull) in enumerate(found)), strict=True)
            return functools.reduce(tree.add, kernel_bars), *map(xp.stack, input_bars)

        return xp.stack([K for K, _ in found]), pullback

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

    @property
    def floats_per_entry(self) -> int:
        """The number of arrays that an evaluation stores, each with the shape of K; used for memory budgets."""
        return 3

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
            msg = f"{type(self).__name__} has no variance to scale; pass variance=, or call from_data(X, variance)."
            raise ValueError(msg)
        if "variance" not in tree.leaves(self):
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
        msg = (
            f"{type(self).__name__} has no random features, so its functions cannot be sampled; implement "
            "`random_features`, or call `sample` at fixed inputs."
        )
        raise TypeError(msg)

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
        kernel = ActiveDims(self, tuple(x if isinstance(x, str) else operator.index(x) for x in several))
        kernel.check_columns()
        return kernel

    def __add__(self, other: Any) -> "Sum":
        if not isinstance(other, Kernel):
            return NotImplemented
        return Sum((*_parts_of(self, Sum), *_parts_of(other, Sum)))

    def __mul__(self, other: Any) -> "Product | Scaled":
        if isinstance(other, Kernel):
            return Product((*_parts_of(self, Product), *_parts_of(other, Product)))
        if not isinstance(other, numbers.Real):
            return NotImplemented
        return Scaled(_multiplier(other), self)

    __rmul__ = __mul__


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


# -- sums and products ------------------------------------------------------------------------------------------------


def _parts_of(kernel: Kernel, cls: "type[Sum | Product]") -> tuple[Kernel, ...]:
    return kernel.parts if isinstance(kernel, cls) else (kernel,)


def _variance_at_origin(kernel: Kernel, beside: Array) -> Array:
    """Return the variance k(x, x) at the origin (0-d), for inputs with a column for each entry of `beside`."""
    return kernel.diag(backend_of(beside).xp.zeros_like(beside)[None, :])[0][0]


def evaluate(kernel: Kernel, X: Array, Z: Array | None) -> tuple[Array, Pullback]:
    """Return the covariances of a kernel for inputs [N, D] or for groups of inputs [G, N, D]."""
    if X.ndim == 3:
        return kernel.grouped_covariance(X, Z)
    return kernel(X) if Z is None else kernel(X, Z)


@tree.model
class _Composite(Kernel):
    # base class for sums and products: each part receives a cotangent, and the inputs receive the total
    parts: tuple[Kernel, ...]
    takes_groups: ClassVar[bool] = True
    _join: ClassVar[Callable[[Any, list[Linearisation]], Linearisation]]

    def _pull_parts(self, pulls: list[Pullback], part_bars: Iterable[Array]) -> tuple[Any, ...]:
        bars: list[Any] = []
        inputs_bar: Any = None
        for pull, part_bar in zip(pulls, part_bars, strict=True):
            bar, *input_bars = pull(part_bar)
            bars.append(bar)
            inputs_bar = tree.add(inputs_bar, tuple(input_bars))
        return tree.cotangent(self, parts=tuple(bars)), *inputs_bar

    def linearise(self, X: Array, /) -> Linearisation | None:
        found = [part.linearise(X) for part in self.parts]
        return None if None in found else self._join(self, found)  # type: ignore[arg-type]

    def linearise_groups(self, X: Array, /) -> Linearisation | None:
        found = [part.linearise_groups(X) for part in self.parts]
        return None if None in found else self._join(self, found)  # type: ignore[arg-type]

    @property
    def floats_per_entry(self) -> int:
        return sum(part.floats_per_entry for part in self.parts)

    def check(self, width: int, /) -> None:
        for part in self.parts:
            part.check(width)


@tree.model
class Sum(_Composite):
    """The sum of kernels, k(x, z) = sum_i k_i(x, z), also written ``k1 + k2``."""

    _join = staticmethod(sum_linearisations)

    def __call__(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        return self._sum(evaluate(part, X, Z) for part in self.parts)

    def diag(self, X: Array, /) -> tuple[Array, Pullback]:
        return self._sum(part.diag(X) for part in self.parts)

    def stacked_covariance(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        inputs = (X,) if Z is None else (X, Z)
        return add_stacks([part.stacked_covariance(*inputs) for part in self.parts])

    def stacked_variances(self, X: Array, /) -> tuple[Array, Pullback]:
        return add_stacks([part.stacked_variances(X) for part in self.parts])

    def _sum(self, terms: Iterable[tuple[Array, Pullback]]) -> tuple[Array, Pullback]:
        # every part receives the same cotangent
        value, pulls = None, []
        for K, pull in terms:
            value = tree.add(value, K)
            pulls.append(pull)

        def pullback(bar):
            return self._pull_parts(pulls, [bar] * len(pulls))

        return value, pullback

    def from_data(self, X: Array, variance: float, /) -> Self:
        share = variance / len(self.parts)
        return type(self)(tuple(part.from_data(X, share) for part in self.parts))

    def scale_by(self, factor: Array | float, /) -> Kernel:
        return type(self)(tuple(part.scale_by(factor) for part in self.parts))

    def inverse_scales(self, width: int, /) -> Array | None:
        """Return the factors of the part with the largest variance among those that have factors."""
        pairs = [(part, part.inverse_scales(width)) for part in self.parts]
        found = [(_variance_at_origin(part, factors), factors) for part, factors in pairs if factors is not None]
        if len(found) < 2:
            return found[0][1] if found else None
        variances, factors = zip(*found, strict=True)
        xp = backend_of(factors[0]).xp
        largest = xp.argmax(xp.stack(variances), keepdims=True)
        return xp.take(xp.stack(factors), largest, axis=0)[0, :]

    def random_features(self, rng: Any, count: int, width: int, /) -> Features:
        return Features.sum(part.random_features(rng, count, width) for part in self.parts)


@tree.model
class Product(_Composite):
    """The product of kernels, k(x, z) = prod_i k_i(x, z), also written ``k1 * k2``.

    A missing variance starts at the variance of the targets in the first kernel, and at 1 in the other kernels.
    """

    _join = staticmethod(multiply_linearisations)

    def __call__(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        return self._product([evaluate(part, X, Z) for part in self.parts])

    def diag(self, X: Array, /) -> tuple[Array, Pullback]:
        return self._product([part.diag(X) for part in self.parts])

    def stacked_covariance(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        inputs = (X,) if Z is None else (X, Z)
        return multiply_stacks([part.stacked_covariance(*inputs) for part in self.parts])

    def stacked_variances(self, X: Array, /) -> tuple[Array, Pullback]:
        return multiply_stacks([part.stacked_variances(X) for part in self.parts])

    def _product(self, terms: list[tuple[Array, Pullback]]) -> tuple[Array, Pullback]:
        # each part receives the cotangent times the other parts; division by a part would fail where it is zero
        values, pulls = [K for K, _ in terms], [pull for _, pull in terms]

        def pullback(bar):
            others = (values[:i] + values[i + 1 :] for i in range(len(values)))
            return self._pull_parts(pulls, (functools.reduce(operator.mul, rest, bar) for rest in others))

        return functools.reduce(operator.mul, values), pullback

    def from_data(self, X: Array, variance: float, /) -> Self:
        first, *others = self.parts
        return type(self)((first.from_data(X, variance), *(part.from_data(X, 1.0) for part in others)))

    def scale_by(self, factor: Array | float, /) -> Kernel:
        first, *others = self.parts
        return type(self)((first.scale_by(factor), *others))

    def inverse_scales(self, width: int, /) -> Array | None:
        """Return the factors for which squared distances are the sums of those of all parts that have factors."""
        found = [factors for part in self.parts if (factors := part.inverse_scales(width)) is not None]
        return sum(factors * factors for factors in found) ** 0.5 if found else None

    def random_features(self, rng: Any, count: int, width: int, /) -> Features:
        return Features.product(part.random_features(rng, count, width) for part in self.parts)


# -- multiples --------------------------------------------------------------------------------------------------------


def _multiplier(number: Any) -> float:
    value = float(number)
    if not (math.isfinite(value) and value > 0.0):
        msg = f"a kernel cannot be multiplied by {number!r}; use a positive finite number."
        raise ValueError(msg)
    return value


@tree.model
class Scaled(Kernel):
    """A multiple of a kernel, variance * k(x, z), also written ``2.0 * k``.

    The multiplier is trained together with the kernel's own variance. Freeze the multiplier to keep its value. If
    the kernel's variance is None, it starts at the variance of the targets divided by the multiplier.

    Parameters
    ----------
    variance
        The multiplier, a dimensionless scalar (0-d). If None, it starts at 1.
    kernel
        Any kernel.
    """

    variance: Array = tree.param(POSITIVE)
    kernel: Kernel
    takes_groups: ClassVar[bool] = True

    def __call__(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        return self._scale_parts(*evaluate(self.kernel, X, Z))

    def linearise(self, X: Array, /) -> Linearisation | None:
        found = self.kernel.linearise(X)
        if found is None:
            return None
        K, pull, times = found

        def pull_both(K_bar: Array) -> Any:
            variance_bar = backend_of(K).symmetric_inner(K_bar, K)
            return tree.cotangent(self, variance=variance_bar, kernel=pull(self.variance * K_bar))

        def times_both(a: Array, W: Array | None = None) -> Any:
            by_variance = backend_of(K).symmetric_product(apply_weights(W, K), a)
            return tree.cotangent(self, variance=by_variance, kernel=times(self.variance * a, W))

        return Linearisation(self.variance * K, pull_both, times_both)

    def linearise_groups(self, X: Array, /) -> Linearisation | None:
        found = self.kernel.linearise_groups(X)
        if found is None:
            return None
        K, _, times = found

        def times_both(a: Array, W: Array | None = None) -> Any:
            by_variance = times_groups(apply_weights(W, K), a)
            return tree.cotangent(self, variance=by_variance, kernel=times(self.variance * a, W))

        return Linearisation(self.variance * K, None, times_both)

    def inverse_scales(self, width: int, /) -> Array | None:
        return self.kernel.inverse_scales(width)

    def diag(self, X: Array, /) -> tuple[Array, Pullback]:
        return self._scale_parts(*self.kernel.diag(X))

    def stacked_covariance(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        K, pull = self.kernel.stacked_covariance(*((X,) if Z is None else (X, Z)))
        factor = spread_scalars(self.variance)
        return factor * K, lambda bar: pull(factor * bar)

    def stacked_variances(self, X: Array, /) -> tuple[Array, Pullback]:
        variances, pull = self.kernel.stacked_variances(X)
        factor = self.variance[:, None]
        return factor * variances, lambda bar: pull(factor * bar)

    def _scale_parts(self, K: Array, pull: Pullback) -> tuple[Array, Pullback]:
        def pullback(bar):
            kernel_bar, *input_bars = pull(self.variance * bar)
            variance_bar = backend_of(K).xp.sum(bar * K)
            return tree.cotangent(self, variance=variance_bar, kernel=kernel_bar), *input_bars

        return self.variance * K, pullback

    @property
    def floats_per_entry(self) -> int:
        return self.kernel.floats_per_entry + 1

    def from_data(self, X: Array, variance: float, /) -> Self:
        multiplier = 1.0 if self.variance is None else self.variance
        if isinstance(multiplier, numbers.Real):
            multiplier = _multiplier(multiplier)
        else:
            check_number(self, "variance")
        return type(self)(multiplier, self.kernel.from_data(X, variance / multiplier))

    def random_features(self, rng: Any, count: int, width: int, /) -> Features:
        return self.kernel.random_features(rng, count, width).times(features_of(self.variance))

    def check(self, width: int, /) -> None:
        check_number(self, "variance")
        self.kernel.check(width)
