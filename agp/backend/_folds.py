"""Blocks of rows, and sums and values over them, with pullbacks, in the memory of one block."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from agp.backend._library import Array, Library, Pullback
from agp.backend._reports import collect_reports


def row_blocks(rows: Any, block_rows: int, /) -> Iterator[Any]:
    """Consecutive blocks of at most `block_rows` rows of arrays [N, ...] in (nested) tuples and dictionaries."""
    N = row_count(rows)
    if block_rows >= N:
        yield rows
        return
    for start in range(0, N, block_rows):
        yield mapped(rows, lambda x, start=start: x[start : min(start + block_rows, N), ...])


def row_count(rows: Any, /) -> int:
    """The number of rows of arrays [N, ...] in (nested) tuples and dictionaries."""
    while isinstance(rows, (tuple, dict)):
        parts = rows.values() if isinstance(rows, dict) else rows
        rows = next(part for part in parts if part is not None)
    return rows.shape[0]


def mapped(rows: Any, f: Callable[[Any], Any], /) -> Any:
    """Apply f to each array in (nested) tuples and dictionaries, and keep the structure; None remains None."""
    if rows is None:
        return None
    if isinstance(rows, dict):
        return {name: mapped(part, f) for name, part in rows.items()}
    if isinstance(rows, tuple):
        return tuple(mapped(part, f) for part in rows)
    return f(rows)


class Folds(Library):
    """Functions of blocks of rows; the pullbacks compute each block again."""

    def fold(
        self, f: Callable, params: Any, rows: Any, block_rows: int, /, *, add: Callable, kept_rows: int = 0
    ) -> tuple[Any, Pullback]:
        """The sum of `f(params, block)[0]` over blocks of rows, and its pullback to params, in the memory of one block.

        Parameters
        ----------
        f
            Returns a value and its pullback to params. It is evaluated once for the value and again in the pullback.
        params
            Models, factors and arrays that every block needs whole.
        rows
            Arrays [N, ...] of this library, and None, in (nested) tuples and dictionaries; a block has the same
            structure with arrays [b, ...].
        block_rows
            The size b of a block.
        add
            Sums two values, or two cotangents; None is zero.
        kept_rows
            Blocks of the first `kept_rows` rows are evaluated once, and their pullbacks are kept. A traced program may
            ignore this.
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
        """The pullback of `fold` at the cotangent of the sum; `kept` are pullbacks of the first blocks."""
        params_bar = None
        with collect_reports():  # repairs were reported with the value
            for number, block in enumerate(row_blocks(rows, block_rows)):
                pull = kept[number] if number < len(kept) else f(params, block)[1]
                params_bar = add(params_bar, pull(bar))
        return params_bar

    def map_rows(
        self, f: Callable, params: Any, X: Array, block_rows: int, /, *, add: Callable
    ) -> tuple[Array, Callable[[Array], tuple[Any, Array]]]:
        """`f(params, block)[0]` of blocks of rows, concatenated, and its pullback, in the memory of one block.

        Parameters
        ----------
        f
            Returns an array with a row for each row of the block, and its pullback ``bar -> (params_bar, block_bar)``.
            It is evaluated once for the value and again in the pullback.
        X
            An array [N, ...].
        params, block_rows, add
            As `fold`.

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
            with collect_reports():  # repairs were reported with the value
                for block, block_bar in row_blocks((X, bar), block_rows):
                    one_bar, X_bar = f(params, block)[1](block_bar)
                    params_bar = add(params_bar, one_bar)
                    X_bars.append(X_bar)
            return params_bar, self.xp.concat(X_bars, axis=0)

        return self.xp.concat(values, axis=0), pullback

    def remat(self, f: Callable, /) -> Callable:
        """f, whose intermediate values automatic differentiation recomputes instead of keeping."""
        return f
