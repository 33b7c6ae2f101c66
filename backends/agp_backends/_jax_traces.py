"""Functions that JAX traces: repair reports leave the trace as further results, and blocks of rows are scanned."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as xp
from jax.extend.core import jaxpr_as_fun

from agp.backend import Array
from agp.repairs import Kind, Report, collect_reports, propagate_reports, sum_reports

try:
    from jax.extend.core import get_opaque_trace_state as current_trace
except ImportError:  # older JAX
    current_trace = partial(jax.core.get_opaque_trace_state, "flax")

OUTERMOST = current_trace()
"""The trace outside all transformations."""


def with_reports(f: Callable) -> Callable:
    """Wrap f so that it returns its value together with the reports that are made inside f."""

    def recorded(*args: Any) -> tuple[Any, list[Report]]:
        with collect_reports(_Here()) as reports:
            value = f(*args)
        return value, list(reports)

    return recorded


class _Here(list):
    """A list that accepts reports only from the trace that created the list; reports of other traces would leak."""

    def __init__(self) -> None:
        super().__init__()
        self.trace = current_trace()

    def extend(self, reports: Iterable[Report], /) -> None:
        if current_trace() == self.trace:
            super().extend(reports)


def pass_reports_on(f: Callable) -> Callable:
    """Undo `with_reports` after f has been transformed: return only the value, and pass the reports on."""

    def reporting(*args: Any) -> Any:
        value, reports = f(*args)
        propagate_reports(reports)
        return value

    return reporting


def trace_once(f: Callable, *args: Any) -> tuple[Callable, Any, list[Report]]:
    """Trace `with_reports(f)` once; return the traced function, the shapes of its value, and its reports."""
    closed, shapes = jax.make_jaxpr(with_reports(f), return_shape=True)(*args)
    structure = jax.tree.structure(shapes)

    def run(*args: Any) -> tuple[Any, list[Report]]:
        return jax.tree.unflatten(structure, jaxpr_as_fun(closed)(*jax.tree.leaves(args)))

    return run, *shapes


def kinds_of(*reports: list[Report]) -> dict[Kind, Any]:
    """The kinds of reports in the order of their first occurrence, with the dtype of their numbers."""
    return {kind: x.numbers.dtype for several in reports for x in several for kind in x.kinds}


def numbers_of(reports: list[Report], kinds: dict[Kind, Any]) -> list[Array]:
    """The numbers of each kind of report; zeros for kinds that were not reported."""
    known = sum_reports(reports)
    return [known[kind] if kind in known else xp.zeros(1 + kind.size, dtype) for kind, dtype in kinds.items()]


def reports_of(kinds: dict[Kind, Any], rows: list[Array]) -> list[Report]:
    """Make the reports whose numbers `numbers_of` returns."""
    return [Report((kind,), row) for kind, row in zip(kinds, rows, strict=True)]


# -- blocks of rows ---------------------------------------------------------------------------------------------------


def scan_blocks(g: Callable, rows: Any, block_rows: int, add: Callable) -> tuple[Any, Any]:
    """Apply `g(block) -> (summed, by_row)` to blocks of rows; sum the first result and concatenate the second.

    A single scan processes the blocks of equal size, and another call of g processes the remaining rows. Reports of the
    same kind from the scan are combined into one.
    """
    g = with_reports(g)
    equal, rest = _stack_blocks(rows, block_rows)
    first = jax.eval_shape(lambda blocks: g(jax.tree.map(lambda x: x[0], blocks)), equal)
    (zeros, _), reports = jax.tree.map(lambda x: xp.zeros(x.shape, x.dtype), first)
    kinds = kinds_of(reports)

    def step(state: tuple, block: Any) -> tuple:
        (value, by_row), new = g(block)
        old = reports_of(kinds, state[1])
        return (jax.tree.map(xp.add, state[0], value), numbers_of([*old, *new], kinds)), by_row

    (total, found), by_row = jax.lax.scan(step, (zeros, numbers_of([], kinds)), equal)
    propagate_reports(reports_of(kinds, found))
    by_row = jax.tree.map(lambda x: xp.reshape(x, (-1, *x.shape[2:])), by_row)
    if rest is not None:
        (value, others), new = g(rest)
        propagate_reports(new)
        total = add(total, value)
        by_row = jax.tree.map(lambda *parts: xp.concat(parts, axis=0), by_row, others)
    return total, by_row


def _stack_blocks(rows: Any, block_rows: int) -> tuple[Any, Any]:
    """Stack the blocks of equal size along a new leading axis; also return the remaining rows, or None."""
    N = jax.tree.leaves(rows)[0].shape[0]
    count, size = (N // block_rows, block_rows) if block_rows < N else (1, N)
    equal = jax.tree.map(lambda x: xp.reshape(x[: count * size], (count, size, *x.shape[1:])), rows)
    return equal, jax.tree.map(lambda x: x[count * size :], rows) if count * size < N else None
