"""Kernels on some of the input columns."""

from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.kernels._base import Kernel
from agp.kernels._composites import evaluate
from agp.kernels._features import Features, scatter_columns, select_columns
from agp.kernels._linearisation import Linearisation


@tree.model
class ActiveDims(Kernel):
    """A kernel on selected input columns, k(x[columns], z[columns]), also written ``k.on(columns)``.

    Parameters
    ----------
    kernel
        Any kernel. Parameters with one entry per column refer to the selected columns, in the order of `columns`.
    columns
        Distinct columns of the inputs, counted from 0. Kernels for estimators may contain names of table columns.
    """

    kernel: Kernel
    columns: tuple[int | str, ...]
    takes_groups: ClassVar[bool] = True

    def _columns_within(self, columns: tuple[str, ...], /) -> tuple[str, ...]:
        named = dict(enumerate(columns))
        return tuple(named[i] for i in self.columns if i in named)

    def __call__(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        others = None if Z is None else select_columns(Z, self.columns)
        return self._on(X.shape[-1], *evaluate(self.kernel, select_columns(X, self.columns), others))

    def linearise(self, X: Array, /) -> Linearisation | None:
        return self._linearise(self.kernel.linearise(select_columns(X, self.columns)))

    def linearise_groups(self, X: Array, /) -> Linearisation | None:
        return self._linearise(self.kernel.linearise_groups(select_columns(X, self.columns)))

    def _linearise(self, found: Linearisation | None) -> Linearisation | None:
        if found is None:
            return None
        return Linearisation(
            found.K,
            lambda K_bar: tree.cotangent(self, kernel=found.pull(K_bar)),
            lambda a, W=None: tree.cotangent(self, kernel=found.times(a, W)),
        )

    def inverse_scales(self, width: int, /) -> Array | None:
        factors = self.kernel.inverse_scales(len(self.columns))
        return scatter_columns(factors, self.columns, width)

    def metric_inputs(self, X: Array, /) -> Array:
        selected = select_columns(X, self.columns)
        found = self.kernel.metric_inputs(selected)
        if found is selected:
            return X
        new = {column: found[..., i] for i, column in enumerate(self.columns)}
        return backend_of(X).xp.stack([new.get(d, X[..., d]) for d in range(X.shape[-1])], axis=-1)

    def category_levels(self, width: int, /) -> dict[int, int]:  # noqa: ARG002
        inside = self.kernel.category_levels(len(self.columns))
        return {self.columns[d]: count for d, count in inside.items()}  # type: ignore[misc]

    def with_categories(self, width: int, columns: tuple[int, ...], /) -> Kernel:  # noqa: ARG002
        inside = tuple(d for d, column in enumerate(self.columns) if column in columns)
        return type(self)(self.kernel.with_categories(len(self.columns), inside), self.columns)

    def diag(self, X: Array, /) -> tuple[Array, Pullback]:
        return self._on(X.shape[1], *self.kernel.diag(select_columns(X, self.columns)))

    def stacked_covariance(self, X: Array, Z: Array | None = None, /) -> tuple[Array, Pullback]:
        inputs = (X,) if Z is None else (X, Z)
        K, pull = self.kernel.stacked_covariance(*(select_columns(x, self.columns) for x in inputs))
        width = X.shape[1]
        return K, lambda bar: tuple(scatter_columns(x, self.columns, width) for x in pull(bar))

    def stacked_variances(self, X: Array, /) -> tuple[Array, Pullback]:
        variances, pull = self.kernel.stacked_variances(select_columns(X, self.columns))

        def pullback(bar):
            X_bar = pull(bar)
            return None if X_bar is None else scatter_columns(X_bar, self.columns, X.shape[1])

        return variances, pullback

    def _on(self, width: int, K: Array, pull: Pullback) -> tuple[Array, Pullback]:
        def pullback(bar):
            kernel_bar, *input_bars = pull(bar)
            bar = tree.cotangent(self, kernel=kernel_bar)
            return bar, *(scatter_columns(x, self.columns, width) for x in input_bars)

        return K, pullback

    def random_features(self, rng: Any, count: int, width: int, /) -> Features:  # noqa: ARG002
        return self.kernel.random_features(rng, count, len(self.columns)).on(self.columns)

    @property
    def floats_per_entry(self) -> int:  # type: ignore[override]
        return self.kernel.floats_per_entry

    def scale_by(self, factor: Array | float, /) -> Kernel:
        return type(self)(self.kernel.scale_by(factor), self.columns)

    def from_data(self, X: Array, variance: float, /) -> Self:
        self.check_columns(X.shape[1])
        return type(self)(self.kernel.from_data(select_columns(X, self.columns), variance), self.columns)

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
            problem = f"the inputs have {width} columns, numbered from 0 to {width - 1}"
        if problem is not None:
            raise ValueError(f"{type(self.kernel).__name__} on columns {self.columns}: {problem}.")
