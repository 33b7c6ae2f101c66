"""Functions that process rows of data block by block, and their pullbacks, with memory for one block."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from agp.backend._control import collect_reports
from agp.backend._library import Array, Library, Pullback


def row_blocks(rows: Any, block_rows: int, /) -> Iterator[Any]:
    """Yield consecutive blocks of at most `block_rows` rows of arrays [N, ...] in nested tuples and dictionaries."""
    N = row_count(rows)
    if block_rows >= N:
        yield rows
        return
    for start in range(0, N, block_rows):
        yield map_arrays(rows, lambda x, start=start: x[start : min(start + block_rows, N), ...])


def row_count(rows: Any, /) -> int:
    """Number of rows N of arrays [N, ...] in nested tuples and dictionaries."""
    while isinstance(rows, (tuple, dict)):
        parts = rows.values() if isinstance(rows, dict) else rows
        rows = next(part for part in parts if part is not None)
    return rows.shape[0]


def map_arrays(rows: Any, f: Callable[[Any], Any], /) -> Any:
    """Apply f to each array in nested tuples and dictionaries; the structure is kept, and None remains None."""
    if rows is None:
        return None
    if isinstance(rows, dict):
        return {name: map_arrays(part, f) for name, part in rows.items()}
    if isinstance(rows, tuple):
        return tuple(map_arrays(part, f) for part in rows)
    return f(rows)


class Folds(Library):
    """Sums and values over blocks of rows; the pullbacks evaluate each block again."""

    def fold(
        self, f: Callable, params: Any, rows: Any, block_rows: int, /, *, add: Callable, kept_rows: int = 0
    ) -> tuple[Any, Pullback]:
        """Sum `f(params, block)[0]` over blocks of rows, with memory for one block; return the sum and its pullback.

        Parameters
        ----------
        f
            A function that returns a value and its pullback to `params`. The function is evaluated once for the value
            and again in the pullback.
        params
            Models, factors and arrays that are used in every block.
        rows
            Arrays [N, ...] of this library or None, nested in tuples and dictionaries. A block has the same structure,
            with arrays [b, ...].
        block_rows
            Number of rows b per block.
        add
            A function that adds two values, or two cotangents. None counts as zero.
        kept_rows
            Number of rows whose pullbacks are kept in memory, so that their blocks are evaluated only once. Traced
            programs may ignore this number.
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
        self,
        f: Callable,
        params: Any,
        rows: Any,
        block_rows: int,
        bar: Any,
        /,
        *,
        add: Callable,
        kept: Sequence[Any] = (),
    ) -> Any:
        """Cotangent of `params` in `fold`, for a cotangent `bar` of the sum.

        `kept` contains the pullbacks of the first blocks.
        """
        params_bar = None
        with collect_reports():  # repairs were reported with the value
            for number, block in enumerate(row_blocks(rows, block_rows)):
                pull = kept[number] if number < len(kept) else f(params, block)[1]
                params_bar = add(params_bar, pull(bar))
        return params_bar

    def map_rows(
        self, f: Callable, params: Any, X: Array, block_rows: int, /, *, add: Callable
    ) -> tuple[Array, Callable[[Array], tuple[Any, Array]]]:
        """Concatenate `f(params, block)[0]` over blocks of rows, with memory for one block; also return the pullback.

        Parameters
        ----------
        f
            A function that returns an array with one row for each row of the block, and its pullback
            ``bar -> (params_bar, block_bar)``. The function is evaluated once for the value and again in the pullback.
        X
            An array [N, ...].
        params, block_rows, add
            As in `fold`.

        Returns
        -------
        value
            An array [N, ...].
        pullback
            A function ``bar -> (params_bar, X_bar)`` of a cotangent [N, ...].
        """
        value_of = self.remat(lambda params, block: f(params, block)[0])
        values = [value_of(params, block) for block in row_blocks(X, block_rows)]

        def pullback(bar):
            params_bar, X_bars = None, []
            with collect_reports():  # repairs were reported with the value
                for block, block_bar in row_blocks((X, bar), block_rows):
                    one_bar, X_bar = f(params, block)[1](block_bar)
                    params_bar = add(params_bar, one_bar)
                    X_bars.append(X_bar)
            return params_bar, self.xp.concat(X_bars, axis=0)

        return self.xp.concat(values, axis=0), pullback

    def remat(self, f: Callable, /) -> Callable:
        """Wrap f so that automatic differentiation recomputes intermediate values instead of storing them."""
        return f
