"""Kernels on some of the input columns."""

from dataclasses import replace
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.errors import count_of
from agp.kernels._base import Kernel
from agp.kernels._features import Features, scatter_columns, select_columns
from agp.kernels._of_inputs import OfInputs


@tree.model
class ActiveDims(OfInputs):
    """A kernel on selected input columns, k(x[columns], z[columns]), also written ``k.on(columns)``.

    Parameters
    ----------
    kernel
        Any kernel. Parameters with one entry per column refer to the selected columns, in the order of `columns`.
    columns
        Distinct columns of the inputs, counted from 0. Kernels for estimators may contain names of table columns.
    codes
        Whether the columns contain codes of levels. `with_categories` says so for a user's kernel without
        `Kernel.takes_codes`.
    """

    columns: tuple[int | str, ...]
    codes: bool = False
    is_linear: ClassVar[bool] = True

    def _columns_within(self, columns: tuple[str, ...], /) -> tuple[str, ...]:
        named = dict(enumerate(columns))
        return tuple(named[i] for i in self.columns if i in named)

    def change_inputs(self, X: Array, /) -> tuple[Array, Pullback]:
        width = X.shape[-1]
        return select_columns(X, self.columns), lambda bar: scatter_columns(bar, self.columns, width)

    def inverse_scales(self, width: int, /) -> Array | None:
        count = len(self.columns)
        factors = self.kernel.inverse_scales(count)
        if factors is None:
            return None
        return backend_of(factors).xp.concat([scatter_columns(factors[:count], self.columns, width), factors[count:]])

    def metric_inputs(self, X: Array, /) -> Array:
        selected = select_columns(X, self.columns)
        found = self.kernel.metric_inputs(selected)
        if found is selected:
            return X
        new = {column: found[..., i] for i, column in enumerate(self.columns)}
        columns = [new.get(d, X[..., d]) for d in range(X.shape[-1])]
        more = [found[..., i] for i in range(len(self.columns), found.shape[-1])]
        return backend_of(X).xp.stack([*columns, *more], axis=-1)

    def category_levels(self, width: int, /) -> dict[int, int]:  # noqa: ARG002
        count = len(self.columns)
        inside = (dict.fromkeys(range(count), 0) if self.codes else {}) | self.kernel.category_levels(count)
        return {self.columns[d]: levels for d, levels in inside.items()}  # type: ignore[misc]

    def with_categories(self, width: int, columns: tuple[int, ...], /) -> Kernel:  # noqa: ARG002
        inside = tuple(d for d, column in enumerate(self.columns) if column in columns)
        if self.codes:
            return self
        kernel = self.kernel.with_categories(len(self.columns), inside)
        if isinstance(kernel, ActiveDims) and kernel.kernel is self.kernel:  # a user's kernel of codes
            return replace(self, codes=True)
        return replace(self, kernel=kernel)

    def _without_columns(self, width: int, columns: tuple[int, ...]) -> Kernel:  # noqa: ARG002
        return self

    def random_features(self, rng: Any, count: int, width: int, /) -> Features:  # noqa: ARG002
        return self.kernel.random_features(rng, count, len(self.columns)).on(self.columns)

    def from_data(self, X: Array, variance: float, /) -> Self:
        self.check_columns(X.shape[1])
        return replace(self, kernel=self.kernel.from_data(select_columns(X, self.columns), variance))

    def check(self, width: int, /) -> None:
        self.check_columns(width)
        self.kernel.check(len(self.columns))

    def check_columns(self, width: int | None = None, /) -> None:
        """Raise ValueError unless the columns are distinct and at least 0.

        If `width` is given, the columns must also be below `width`.
        """
        numbers = [column for column in self.columns if not isinstance(column, str)]
        problem = None
        if not self.columns or any(column < 0 for column in numbers):
            problem = "pass one or more columns, counted from 0"
        elif len(set(self.columns)) < len(self.columns):
            problem = "each column may appear only once"
        elif width is not None and len(numbers) < len(self.columns):
            problem = (
                "columns of arrays have no names; use numbers, or pass this kernel to an estimator with a data frame"
            )
        elif width is not None and max(numbers) >= width:
            problem = f"the inputs have {count_of(width, 'column')}, numbered from 0 to {width - 1}"
        if problem is not None:
            raise ValueError(f"{type(self.kernel).__name__} on columns {self.columns}: {problem}.")


def input_columns(kernel: Kernel, path: str, width: int, /) -> list[int]:
    """Return the numbers of the columns of inputs [N, width] on which the part of a kernel at a path acts."""
    selections = tree.nodes(kernel, ActiveDims)
    outer = [at for at in selections if at != path and path.startswith(f"{at}." if at else "")]
    columns = list(range(width))
    for at in sorted(outer, key=len):
        columns = [columns[d] for d in selections[at].columns]  # type: ignore[index]
    return columns
