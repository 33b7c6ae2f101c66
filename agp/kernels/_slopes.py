"""Kernels of rows that observe values of a function or its slopes, and functions that build such rows."""

import dataclasses
import numbers
from typing import Any, ClassVar, Self, overload

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.checks import check_inputs, check_like
from agp.chunking import TaggedRows, check_tagged
from agp.kernels._base import Kernel, check_part, no_slopes
from agp.kernels._jets import Jets


@tree.model
class WithSlopes(Kernel):
    """The covariance of values f(x) and slopes df/dx_d of a function with the given kernel.

    The inputs have one more column than those of the function. The last column of a row is its tag, which says what the
    row observes: 0 stands for the value, and d + 1 for the slope along column d, counted from 0. A model with this
    kernel takes targets of both kinds, and predicts both. Its inducing inputs may have tags, too. Training never
    changes tags. `tag_rows` and `stack_slopes` build the rows.

    Targets of a slope are in units of the values per unit of the column, and their noise is usually known (``noise=``
    of `stack_slopes`). The trained noise variance of `Gaussian` is the same number for values and slopes, whose units
    differ.

    Parameters
    ----------
    kernel
        A kernel of the function, whose columns are those before the tags. Sums, products and multiples of `RBF`,
        `Matern32`, `Matern52`, `RationalQuadratic`, `Periodic`, `Seasonal`, `Linear` and `Constant` have slopes, also
        on some columns (`Kernel.on`) and on linear combinations of columns (`Projected`).

    Raises
    ------
    TypeError
        If functions of a part of the kernel have no slopes, such as `Matern12` or `White`.
    ValueError
        In calls, unless all tags are whole numbers from 0 to D.

    Examples
    --------
    The value and the slope of x^3 at 0.5, 0.125 and 0.75, are predicted from those at 0 and 1.

    >>> import numpy as np
    >>> import agp
    >>> X, y, slopes = np.asarray([[0.0], [1.0]]), np.asarray([0.0, 1.0]), np.asarray([[0.0], [3.0]])
    >>> rows, targets = agp.kernels.stack_slopes(X, y, slopes)
    >>> print(rows)
    [[0. 0.]
     [1. 0.]
     [0. 1.]
     [1. 1.]]
    >>> kernel, likelihood = agp.kernels.WithSlopes(agp.RBF(10.0, 2.0)), agp.Gaussian(1e-8)
    >>> model = agp.GPR.from_data(rows, targets, kernel=kernel, likelihood=likelihood)
    >>> at = np.asarray([[0.5]])
    >>> for column in (None, 0):
    ...     print(model.predict_mean(agp.kernels.tag_rows(at, column))[:, 0].round(2))
    [0.11]
    [0.74]
    """

    kernel: Kernel
    takes_groups: ClassVar[bool] = True
    reads_tags: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_part("kernel", self.kernel)
        for part in tree.nodes(self.kernel, Kernel).values():
            if not part.has_jets:
                raise TypeError(no_slopes(part))

    def __call__(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        rows = TaggedRows.of(X)
        others = rows if Z is None else TaggedRows.of(Z)
        jets, pull = self.kernel.jets(rows.X, rows.V, others.X, others.V)
        x, z = rows.is_value[..., :, None], others.is_value[..., None, :]
        K = z * (x * jets.value + jets.by_x) + (x * jets.by_z + jets.by_both)  # derivatives along 0 are 0

        def pullback(K_bar):
            if Z is None:
                K_bar = 0.5 * (K_bar + K_bar.mT)
            by_x = z * K_bar
            kernel_bar, X_bar, _, Z_bar, _ = pull(Jets(x * by_x, by_x, x * K_bar, K_bar))
            bar = tree.cotangent(self, kernel=kernel_bar)
            if Z is None:
                return bar, rows.widen(X_bar + Z_bar)
            return bar, rows.widen(X_bar), others.widen(Z_bar)

        return (0.5 * (K + K.mT) if Z is None else K), pullback

    def diag(self, X: Array, /) -> tuple[Array, Pullback]:
        K, pull = self(X[:, None, :])

        def pullback(bar):
            kernel_bar, X_bar = pull(bar[:, None, None])
            return kernel_bar, X_bar[:, 0, :]

        return K[:, 0, 0], pullback

    def category_levels(self, width: int, /) -> dict[int, int]:
        """Return the numbers of levels of the kernel, and that of the tags, which are codes, too."""
        return self.kernel.category_levels(width - 1) | {width - 1: width}

    @property
    def floats_per_entry(self) -> int:  # type: ignore[override]
        return 4 * self.kernel.floats_per_entry + 4

    def scale_by(self, factor: Array | float, /) -> Self:
        return dataclasses.replace(self, kernel=self.kernel.scale_by(factor))

    def from_data(self, X: Array, variance: float, /) -> Self:
        xp, rows = backend_of(X).xp, TaggedRows.of(X)
        for column in self.kernel.category_levels(X.shape[1] - 1):
            if bool(xp.any(rows.V[:, column] != 0.0)):
                raise ValueError(
                    f"rows have the tag {column + 1}, but column {column} contains codes of levels, along which "
                    "functions have no slopes; leave these rows out."
                )
        return type(self)(self.kernel.from_data(rows.X, variance))

    def check(self, width: int, /) -> None:
        check_tagged(width)
        self.kernel.check(width - 1)


def tag_rows(X: Array, /, column: int | None = None) -> Array:
    """Return rows for `WithSlopes` that observe values, or slopes along a column, at inputs X [N, D].

    Parameters
    ----------
    X
        Inputs [N, D].
    column
        The column of the slope, counted from 0. None stands for values.

    Returns
    -------
    rows
        The inputs [N, D + 1], followed by a column with the tag.

    Raises
    ------
    ValueError
        If X has no such column.

    Examples
    --------
    >>> import numpy as np
    >>> import agp
    >>> X = np.asarray([[0.5, 3.0], [0.7, 4.0]])
    >>> print(agp.kernels.tag_rows(X, 1))
    [[0.5 3.  2. ]
     [0.7 4.  2. ]]
    """
    check_inputs("X", X)
    xp, D = backend_of(X).xp, X.shape[1]
    if column is not None and not (isinstance(column, int) and not isinstance(column, bool) and 0 <= column < D):
        raise ValueError(f"column is {column!r}, but must be None for values, or a whole number from 0 to {D - 1}.")
    tag = 0.0 if column is None else column + 1.0
    return xp.concat([X, xp.full((X.shape[0], 1), tag, **like(X))], axis=1)


@overload
def stack_slopes(X: Array, values: Array, slopes: Array, /, *, noise: None = None) -> tuple[Array, Array]: ...


@overload
def stack_slopes(
    X: Array, values: Array, slopes: Array, /, *, noise: tuple[Array | float, Array | float]
) -> tuple[Array, Array, Array]: ...


def stack_slopes(
    X: Array, values: Array, slopes: Array, /, *, noise: tuple[Array | float, Array | float] | None = None
) -> tuple[Array, ...]:
    """Return rows and targets for `WithSlopes` of functions whose values and slopes are known at inputs X [N, D].

    Entries that are NaN are not known, and have no row.

    Parameters
    ----------
    X
        Inputs [N, D].
    values
        The values [N].
    slopes
        The slopes [N, D] along each column, in units of the values per unit of the column.
    noise
        The known noise variances of the values [N] and of the slopes [N, D], or a number for all values or slopes.
        Those of entries that are not known are not used.

    Returns
    -------
    rows
        The inputs with tags [R, D + 1]: the known values, then the known slopes along column 0, along column 1, etc.
    targets
        The targets [R].
    noise
        The noise variances of the rows [R], if `noise` is given.

    Raises
    ------
    TypeError
        If `noise` is not a pair.
    ValueError
        If the shapes do not match, or the noise variance of a known entry is negative or not finite.

    Examples
    --------
    Three values, of which the slopes are known at the last input only.

    >>> import numpy as np
    >>> import agp
    >>> X, nan = np.asarray([[0.0], [1.0], [2.0]]), np.nan
    >>> values, slopes = np.asarray([5.0, 6.0, 9.0]), np.asarray([[nan], [nan], [4.0]])
    >>> rows, targets = agp.kernels.stack_slopes(X, values, slopes)
    >>> print(rows[:, 1], targets)
    [0. 0. 0. 1.] [5. 6. 9. 4.]

    With standard deviations of 0.1 and 0.3, the third result is `noise` of `agp.GPR.from_data`.

    >>> print(agp.kernels.stack_slopes(X, values, slopes, noise=(0.1**2, 0.3**2))[2].round(2))
    [0.01 0.01 0.01 0.09]
    """
    check_inputs("X", X)
    _check_stacked("values", values, X, X.shape[:1])
    _check_stacked("slopes", slopes, X, X.shape)
    xp, D = backend_of(X).xp, X.shape[1]
    rows = xp.concat([tag_rows(X, column) for column in (None, *range(D))])
    targets = _stack(values, slopes)
    known = ~xp.isnan(targets)
    if noise is None:
        return rows[known], targets[known]
    return rows[known], targets[known], _stack_noise(X, noise, known)


def _stack(values: Array, slopes: Array) -> Array:
    """Return numbers of the rows of values [N], and of slopes [N, D] along each column."""
    return backend_of(values).xp.concat([values, *(slopes[:, d] for d in range(slopes.shape[1]))])


def _check_stacked(name: str, x: Array, X: Array, shape: tuple[int, ...]) -> None:
    """Raise TypeError or ValueError unless an array is like X, with this shape."""
    check_like(name, x, "X", X)
    if tuple(x.shape) != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(x.shape)}, but X has shape {tuple(X.shape)}; pass {tuple(shape)}.")


def _stack_noise(X: Array, noise: Any, known: Array) -> Array:
    """Return the noise variances [R] of the rows of known entries."""
    if not isinstance(noise, (tuple, list)) or len(noise) != 2:
        raise TypeError(
            "noise must be a pair: the noise variances of the values, and those of the slopes, such as (0.01, 0.1)."
        )
    xp, parts = backend_of(X).xp, []
    for name, x, shape in zip(("values", "slopes"), noise, (X.shape[:1], X.shape), strict=True):
        if isinstance(x, numbers.Real) and not isinstance(x, bool):
            parts.append(xp.full(shape, float(x), **like(X)))
        else:
            _check_stacked(f"noise of {name}", x, X, shape)
            parts.append(x)
    found = _stack(*parts)[known]
    wrong = ~(xp.isfinite(found) & (found >= 0.0))
    if bool(xp.any(wrong)):
        raise ValueError(
            f"noise has the variance {float(found[wrong][0]):g} of a known entry, but it must be zero or more, and "
            "finite; pass NaN only where the value or the slope is NaN."
        )
    return found
