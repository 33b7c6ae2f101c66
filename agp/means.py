"""Mean functions h(x), the prior means of the P latent functions. A Gaussian process models f - h."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.chunking import TaggedRows, column_spreads, unit_by_column
from agp.repairs import at_inputs, on_instance

__all__ = ["ConstantMean", "LinearMean", "Mean", "MeanWithSlopes", "Projection", "ZeroMean"]


class Mean(tree.Part, ABC):
    """The base class for mean functions."""

    is_constant: ClassVar[bool] = False
    """Whether the function is an unknown constant for each output."""
    is_affine: ClassVar[bool] = False
    """Whether h(x) - h(0) is linear in x, as `MeanWithSlopes` requires."""
    _reads_inputs: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__call__" in vars(cls):
            cls.__call__ = at_inputs(vars(cls)["__call__"], "mean.from_data(X, level, spread)")
        if "from_data" in vars(cls):
            cls.from_data = on_instance(vars(cls)["from_data"], Mean, "ConstantMean().from_data(X, level, spread)")  # type: ignore[method-assign]

    @abstractmethod
    def __call__(self, X: Array, /) -> tuple[Array, Pullback]:
        """Return h(X) for X [N, D], and the pullback. h(X) is [N, P], or [N, 1] if all outputs share one function.

        The pullback is ``h_bar [N, P] -> (mean_bar, X_bar)``. None stands for a zero cotangent.
        """

    def with_slopes(self) -> "Mean":
        """Return the mean function of rows with tags, which observe values or slopes; see `MeanWithSlopes`."""
        return MeanWithSlopes(self)

    def check_tags(self, *, tagged: bool) -> None:
        """Raise ValueError unless the function suits rows with tags, or without, of the model's kernel."""
        if tagged and self.with_slopes() is not self:
            name = type(self).__name__
            raise ValueError(
                f"mean_function is {name}, but the kernel is WithSlopes; use mean_function.with_slopes(), as "
                "from_data does."
            )

    def basis(self, X: Array, outputs: int, /) -> Any:  # noqa: ARG002
        """Return dh(X)/dtheta for each parameter theta, if h is linear in its parameters; otherwise None.

        The result is a tree like the mean function. The leaf for a parameter of shape S is ``[N, P, *S]``. Newton's
        method for exact GPs needs this function. For mean functions without it, training uses L-BFGS.
        """
        return None

    @abstractmethod
    def from_data(self, X: Array, level: Array, spread: float | Array, /) -> Self:
        """Return the function for inputs X [N, D]; missing leaves are computed from the levels [P] of the outputs.

        The spread is the typical deviation from the levels, as one number or an array [P]. Leaves in units of f use the
        spread as their unit.
        """

    @abstractmethod
    def check(self, width: int, outputs: int, /) -> None:
        """Raise ValueError unless the leaves match the number of input columns and the number of outputs."""


@tree.model
class ZeroMean(Mean):
    """h(x) = 0.

    Examples
    --------
    Far from the data, predictions return to zero.

    >>> import numpy as np
    >>> import agp
    >>> X = np.asarray([[0.0], [1.0], [2.0]])
    >>> y = np.asarray([9.0, 10.0, 14.0])
    >>> parts = {"kernel": agp.RBF(100.0, 1.0), "likelihood": agp.Gaussian(0.01)}
    >>> model = agp.GPR.from_data(X, y, mean_function=agp.ZeroMean(), **parts)
    >>> print(model.predict_mean(np.asarray([[1.0], [50.0]]))[:, 0].round(1))
    [10.  0.]
    """

    is_affine: ClassVar[bool] = True
    _reads_inputs: ClassVar[bool] = False

    def with_slopes(self) -> Self:
        return self

    def __call__(self, X: Array, /) -> tuple[Array, Pullback]:
        zeros = backend_of(X).xp.zeros((X.shape[0], 1), **like(X))
        return zeros, lambda _h_bar: (tree.cotangent(self), None)

    def basis(self, _X: Array, _outputs: int, /) -> Self:
        return tree.cotangent(self)

    def from_data(self, _X: Array, _level: Array, _spread: float | Array, /) -> Self:
        return self

    def check(self, _width: int, _outputs: int, /) -> None:
        """Accept any number of columns and outputs."""


@tree.model
class ConstantMean(Mean):
    """h(x) = value.

    Parameters
    ----------
    value
        [P], or a scalar (0-d) for all outputs, in units of f. The initial value is the average of the targets.

    Examples
    --------
    Far from the data, predictions return to the constant, which starts at the average of the targets.

    >>> import numpy as np
    >>> import agp
    >>> X = np.asarray([[0.0], [1.0], [2.0]])
    >>> y = np.asarray([9.0, 10.0, 14.0])
    >>> parts = {"kernel": agp.RBF(1.0, 1.0), "mean_function": agp.ConstantMean()}
    >>> model = agp.GPR.from_data(X, y, **parts)
    >>> print(model.mean_function.value)
    [11.]
    >>> print(model.predict_mean(np.asarray([[50.0]])).round(2))
    [[11.]]
    """

    value: Array = tree.param(default=None, unit="value_unit")
    value_unit: Array | None = tree.unit(default=None)
    is_constant: ClassVar[bool] = True
    is_affine: ClassVar[bool] = True
    _reads_inputs: ClassVar[bool] = False

    def __call__(self, X: Array, /) -> tuple[Array, Pullback]:
        B = backend_of(X)

        def pullback(h_bar):
            return tree.cotangent(self, value=_over_rows(h_bar, self.value)), None

        return B.xp.broadcast_to(self.value, (X.shape[0], *(self.value.shape or (1,)))), pullback

    def basis(self, X: Array, outputs: int, /) -> Self:
        return tree.cotangent(self, value=_ones_by_output(X, outputs, self.value))

    def from_data(self, _X: Array, level: Array, spread: float | Array, /) -> Self:
        return tree.with_defaults(self, value=level, value_unit=_unit(self.value, spread))

    def check(self, _width: int, outputs: int, /) -> None:
        _check_shape("mean_function.value", self.value, ((), (outputs,)))


@tree.model
class LinearMean(Mean):
    """h(x) = weights^T x + offset.

    Parameters
    ----------
    weights
        [D, P], in units of f per unit of each column. Initial weights are zero.
    offset
        [P], or a scalar (0-d) for all outputs, in units of f. The initial value is the average of the targets.

    Examples
    --------
    Training finds the trend, which predictions follow far from the data.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 3.0, 20)[:, None]
    >>> y = 2.0 * X[:, 0] + 0.1 * np.sin(5.0 * X[:, 0])
    >>> model = agp.GPR.from_data(X, y, mean_function=agp.LinearMean())
    >>> trained = agp.fit(model, X, y).model
    >>> bool(190.0 < trained.predict_mean(np.asarray([[100.0]]))[0, 0] < 210.0)
    True
    """

    weights: Array = tree.param(default=None, unit="weights_unit")
    offset: Array = tree.param(default=None, unit="offset_unit")
    weights_unit: Array | None = tree.unit(default=None)
    offset_unit: Array | None = tree.unit(default=None)
    is_affine: ClassVar[bool] = True

    def __call__(self, X: Array, /) -> tuple[Array, Pullback]:
        def pullback(h_bar):
            bar = tree.cotangent(self, weights=X.mT @ h_bar, offset=_over_rows(h_bar, self.offset))
            return bar, h_bar @ self.weights.mT

        return X @ self.weights + self.offset, pullback

    def basis(self, X: Array, outputs: int, /) -> Self:
        xp = backend_of(X).xp
        each = xp.eye(outputs, **like(X))
        slopes = X[:, None, :, None] * each[None, :, None, :]
        return tree.cotangent(self, weights=slopes, offset=_ones_by_output(X, outputs, self.offset))

    def from_data(self, X: Array, level: Array, spread: float | Array, /) -> Self:
        weights = backend_of(X).xp.zeros((X.shape[1], level.shape[0]), **like(X))
        units = {"weights_unit": spread / column_spreads(X)[:, None], "offset_unit": _unit(self.offset, spread)}
        return tree.with_defaults(self, weights=weights, offset=level, **units)

    def check(self, width: int, outputs: int, /) -> None:
        _check_shape("mean_function.weights", self.weights, ((width, outputs),))
        _check_shape("mean_function.offset", self.offset, ((), (outputs,)))


@tree.model
class Projection(Mean):
    """h(x) = (x - centre) weights, a fixed map for inner layers of deep models.

    Parameters
    ----------
    weights
        A constant array [D, P], in units of f per unit of each column.
    centre
        A constant array [D], in units of x.

    Examples
    --------
    Three columns become two: the first minus 1, and the sum of the others.

    >>> import numpy as np
    >>> import agp
    >>> weights = np.asarray([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> projection = agp.Projection(weights, centre=np.asarray([1.0, 0.0, 0.0]))
    >>> h, _ = projection(np.asarray([[1.0, 2.0, 3.0], [4.0, 0.0, 1.0]]))
    >>> print(h)
    [[0. 5.]
     [3. 1.]]
    """

    weights: Array = tree.constant()
    centre: Array = tree.constant()
    is_affine: ClassVar[bool] = True

    def __call__(self, X: Array, /) -> tuple[Array, Pullback]:
        return (X - self.centre) @ self.weights, lambda h_bar: (tree.cotangent(self), h_bar @ self.weights.mT)

    def basis(self, _X: Array, _outputs: int, /) -> Self:
        return tree.cotangent(self)

    def from_data(self, _X: Array, _level: Array, _spread: float | Array, /) -> Self:
        return self

    def check(self, width: int, outputs: int, /) -> None:
        _check_shape("mean_function.weights", self.weights, ((width, outputs),))
        _check_shape("mean_function.centre", self.centre, ((width,),))


@tree.model
class MeanWithSlopes(Mean):
    """The means of values h(x) and of slopes dh/dx_d, for rows whose last column contains tags.

    Models with the kernel `agp.kernels.WithSlopes` build this function from the given mean function.

    Parameters
    ----------
    mean
        A mean function of the columns before the tags: `ConstantMean`, `LinearMean`, `Projection` or `ZeroMean`.

    Raises
    ------
    TypeError
        If the slopes of the mean function are not known.

    Examples
    --------
    The slopes of a trend are its weights.

    >>> import numpy as np
    >>> import agp
    >>> mean = agp.means.MeanWithSlopes(agp.LinearMean(np.asarray([[2.0], [3.0]]), np.asarray([10.0])))
    >>> h, _ = mean(np.asarray([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [1.0, 1.0, 2.0]]))
    >>> print(h[:, 0])
    [15.  2.  3.]
    """

    mean: Mean

    def __post_init__(self) -> None:
        if not self.mean.is_affine:
            name = type(self.mean).__name__
            raise TypeError(f"the slopes of {name} are not known; use ConstantMean, LinearMean or ZeroMean.")

    def with_slopes(self) -> Self:
        return self

    def _split(self, X: Array) -> tuple[TaggedRows, Array, Array]:
        """Return the rows in parts, points u [N, D], and shares [N, 1] with the mean h(u) - share h(0)."""
        rows = TaggedRows.of(X)
        is_value = rows.is_value[:, None]
        return rows, is_value * rows.X + rows.V, 1.0 - is_value

    def __call__(self, X: Array, /) -> tuple[Array, Pullback]:
        rows, points, share = self._split(X)
        h, pull = self.mean(points)
        origin, pull_origin = self.mean(backend_of(X).xp.zeros_like(points))

        def pullback(h_bar):
            mean_bar, points_bar = pull(h_bar)
            bar = tree.cotangent(self, mean=tree.add(mean_bar, pull_origin(-share * h_bar)[0]))
            return bar, None if points_bar is None else rows.widen(rows.is_value[:, None] * points_bar)

        return h - share * origin, pullback

    def from_data(self, X: Array, level: Array, spread: float | Array, /) -> Self:
        return type(self)(self.mean.from_data(X[:, :-1], level, spread))

    def check(self, width: int, outputs: int, /) -> None:
        self.mean.check(width - 1, outputs)


def _unit(value: Any, spread: float | Array) -> Any:
    """Return the unit of a leaf, which is [P] or 0-d. The spread is one number or an array [P]."""
    return spread if isinstance(spread, float) else unit_by_column(value, spread)


def _over_rows(h_bar: Array, leaf: Array) -> Array:
    """Sum the cotangent [N, P] over rows to the shape of the leaf, and also over outputs if the leaf is 0-d."""
    xp = backend_of(h_bar).xp
    return xp.sum(h_bar) if leaf.ndim == 0 else xp.sum(h_bar, axis=0)


def _ones_by_output(X: Array, outputs: int, leaf: Array) -> Array:
    """Return the derivatives [N, P, *S] of the P outputs by an offset of shape S = [P], or 0-d for all outputs."""
    xp = backend_of(X).xp
    each = xp.eye(outputs, **like(X)) if leaf.ndim else xp.ones((outputs,), **like(X))
    return xp.broadcast_to(each[None, ...], (X.shape[0], *each.shape))


def _check_shape(name: str, x: Array, allowed: tuple[tuple[int, ...], ...]) -> None:
    if tuple(x.shape) not in allowed:
        raise ValueError(f"{name} has shape {tuple(x.shape)}, but must have shape {' or '.join(map(str, allowed))}.")
