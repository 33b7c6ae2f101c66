"""Sums and values over blocks of rows, with their pullbacks, in the memory of a block."""

from collections.abc import Callable, Sequence
from typing import Any

from agp.backend._library import Library
from agp.backend._reports import collect_reports
from agp.backend._rows import row_blocks, row_count
from agp.backend._types import Array, Pullback

__all__ = ["Folds"]


class Folds(Library):
    """What is computed block after block of rows; the pullbacks compute each block again."""

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
        """The pullback of `fold` at the cotangent of the sum; pullbacks of the first blocks may have been kept."""
        params_bar = None
        with collect_reports():  # what was repaired has been reported with the value
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
            with collect_reports():  # what was repaired has been reported with the value
                for block, block_bar in row_blocks((X, bar), block_rows):
                    one_bar, X_bar = f(params, block)[1](block_bar)
                    params_bar = add(params_bar, one_bar)
                    X_bars.append(X_bar)
            return params_bar, self.xp.concat(X_bars, axis=0)

        return self.xp.concat(values, axis=0), pullback

    def remat(self, f: Callable, /) -> Callable:
        """f, whose intermediates automatic differentiation recomputes instead of keeping."""
        return f
