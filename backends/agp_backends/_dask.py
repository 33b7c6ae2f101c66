"""Dask plug-in: rows of data in chunks on disk or on other machines.

The machines that hold the rows compute the sums over rows. Each task applies `Backend.fold` to the rows of one chunk,
with the array library of the parameters. Chunks are NumPy or CuPy arrays, and results are small. Dask schedules the
tasks and repeats failed tasks.
"""

import contextlib
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from functools import partial
from itertools import pairwise
from typing import Any

import array_api_compat.dask.array as xp
import dask.array as da
import numpy as np
from dask import config as dask_config
from dask.base import compute as dask_compute
from dask.delayed import Delayed, delayed

from agp import tree
from agp.backend import Array, Backend, Pullback, asarray_like, backend_of, map_arrays
from agp.errors import BackendError, WorkerError
from agp.repairs import collect_reports, pack_reports, propagate_reports, public

BRANCHES = 8
"""Number of sums that one task adds."""
LARGE_GRAPH = "1 GiB"
"""Graph size above which Dask warns; graphs contain the parameters, so that workers can be replaced."""
LOST_CONNECTION_MESSAGE = (
    "the connection to the scheduler was lost; start a cluster and a Client again "
    "(training with checkpoint= then continues from its file)."
)


class DaskBackend(Backend):
    name = "dask"
    xp = xp
    array_types = (da.Array,)
    is_lazy = True

    def device_name(self, x: Array, /) -> str:
        return backend_of(x._meta).device_name(x._meta)

    def like(self, x: Array, /) -> dict[str, Any]:
        return {"dtype": x.dtype}

    def widest_float(self, x: Array, /) -> Any:
        return np.dtype(np.float64)

    def from_numpy(self, x: Any, /, *, dtype: str | None = None, device: str | None = None) -> Array:
        if device not in (None, "cpu"):
            raise ValueError(
                f"dask cannot create chunks on {device!r}, only on 'cpu'; convert the chunks with map_blocks instead."
            )
        return da.from_array(np.array(x, dtype=dtype))

    def conversion(self, name: str, x: Array, dtype: str, /) -> str:
        return f'{name}.astype("{dtype}")'

    def to_numpy(self, x: Array, /) -> Any:
        found = _compute(x)
        return backend_of(found).to_numpy(found)

    def cholesky(self, A: Array, /) -> Array:
        raise BackendError(_no_matrix("cholesky"))

    def solve_triangular(self, L: Array, B: Array, /, *, transpose: bool = False) -> Array:
        raise BackendError(_no_matrix("solve_triangular"))

    # -- rows ---------------------------------------------------------------------------------------------------------

    def gather(self, x: Array, index: Any = None, /) -> Array:
        if index is None:
            return _compute(x)
        order = np.argsort(index, kind="stable")  # each chunk is read once
        back = np.argsort(order, kind="stable")
        found = _compute(x[np.asarray(index)[order], ...])
        return backend_of(found).gather(found, back)

    def same_rows(self, x: Array, y: Array, /) -> bool:
        named = isinstance(x, da.Array) and isinstance(y, da.Array) and x.name == y.name
        return named or super().same_rows(x, y)

    def generate_rows(self, f: Callable[[int, int], dict[str, Any]], X: Array, /) -> dict[str, Array]:
        later: Any = delayed(f, pure=False)
        shapes = {name: (x.shape[0], *x.shape[2:]) for name, x in f(0, 1).items()}

        def along(name: str, shape: tuple[int, ...]) -> Array:
            parts = [
                da.from_delayed(later(start, stop - start)[name], (shape[0], stop - start, *shape[1:]), X.dtype)
                for start, stop in pairwise(_starts(X))
            ]
            return da.concatenate(parts, axis=1)

        return {name: along(name, shape) for name, shape in shapes.items()}

    def in_chunks(self, rows: tuple[Array, ...], /) -> tuple[tuple[Array, ...], tuple[int, ...]]:
        chunks = rows[0].chunks[0]

        def with_chunks(x: Array) -> Array:
            layout: Any = (chunks, *(-1 for _ in x.shape[1:]))
            return (x if isinstance(x, da.Array) else da.from_array(x)).rechunk(layout)

        return tuple(map(with_chunks, rows)), chunks

    def chunks_of(self, several: tuple[Array, ...], chunks: Any, /) -> tuple[Array, ...]:
        return _compute(tuple(da.concatenate([x.blocks[int(i)] for i in chunks], axis=0) for x in several))

    def take_rows(self, x: Array, index: Any, /) -> Array:
        starts = np.asarray(_starts(x))
        ends = np.searchsorted(index, starts)
        here = [(i, index[ends[i] : ends[i + 1]] - starts[i]) for i in range(len(starts) - 1) if ends[i] < ends[i + 1]]
        return da.concatenate([x.blocks[i][places, ...] for i, places in here], axis=0)

    def checksum(self, rows: tuple[Array, ...], /) -> int:
        found = _compute([delayed(_checksum, pure=False)(block) for block in _blocks(rows)])
        return zlib.crc32(repr(found).encode())

    def fold(
        self, f: Callable, params: Any, rows: Any, block_rows: int, /, *, add: Callable, kept_rows: int = 0
    ) -> tuple[Any, Pullback]:
        del kept_rows  # a lost worker would lose the kept pullbacks
        params, blocks, largest = _strip_rows(params), list(_blocks(rows)), max(_first(rows).chunks[0])
        value, reports = _compute(_sum_of(partial(_value_of, f, add, block_rows), params, blocks, add), largest)
        propagate_reports(reports)

        def pullback(bar: Any) -> Any:
            task = partial(_block_cotangent, f, add, block_rows)
            return _compute(_sum_of(task, (params, bar), blocks, add), largest)[0]

        return value, pullback

    def map_chunks(self, f: Callable[..., tuple], rows: tuple, example: tuple, /) -> tuple[Array, ...]:
        kinds = [(tuple(x.shape[1:]), backend_of(x).dtype_name(x)) for x in example]
        task: Any = delayed(_rows_of, pure=False)
        of_chunks = [task(delayed(f, pure=False, traverse=False), block) for block in _blocks(rows)]
        counts = rows[0].chunks[0]
        return tuple(
            da.concatenate(
                [da.from_delayed(one[i], (n, *shape), dtype) for one, n in zip(of_chunks, counts, strict=True)], axis=0
            )
            for i, (shape, dtype) in enumerate(kinds)
        )


def _no_matrix(name: str) -> str:
    return f"dask arrays hold rows of data and have no {name}; use arrays of another library for the parameters."


# -- rows in chunks ---------------------------------------------------------------------------------------------------


def _starts(x: Array) -> list[int]:
    """Index of the first row in each chunk of x [N, ...], followed by N."""
    return [0, *np.cumsum(x.chunks[0]).tolist()]


def _first(rows: Any) -> Array:
    """The first dask array in nested rows; all other arrays are divided into the same chunks."""
    found: list[Any] = []
    map_arrays(rows, found.append)
    return next(x for x in found if isinstance(x, da.Array))


def _blocks(rows: Any) -> Iterator[Any]:
    """Yield nested rows chunk by chunk; the chunks of dask arrays are delayed."""
    first = _first(rows)
    starts = _starts(first)

    def cut(x: Any) -> list[Any]:
        if not isinstance(x, da.Array):
            return [x[start:stop, ...] for start, stop in pairwise(starts)]
        if x.ndim > 1 or x.chunks[0] != first.chunks[0]:
            common: Any = (first.chunks[0], *((n,) for n in x.shape[1:]))
            x = x.rechunk(common)
        return list(x.to_delayed().reshape(-1))

    pieces = map_arrays(rows, lambda x: iter(cut(x)))
    for _ in first.chunks[0]:
        yield map_arrays(pieces, next)


def _strip_rows(params: Any) -> Any:
    """Remove the rows of data from the models in the parameters, so that they are not sent to workers."""
    if type(params) is tuple:
        return tuple(_strip_rows(x) for x in params)
    if not tree.is_model(params):
        return params
    held = {name: x for name, x in tree.leaves(params).items() if isinstance(x, da.Array)}
    return tree.with_leaves(params, {name: x._meta for name, x in held.items()}) if held else params


# -- tasks ------------------------------------------------------------------------------------------------------------


def _sum_of(task: Callable, params: Any, blocks: Sequence[Any], add: Callable) -> Delayed:
    """The delayed sum of a task's results over all blocks in a fixed order, and the task's repair reports."""
    whole, of_block = delayed(params, pure=False, traverse=False), delayed(task, pure=False, traverse=False)
    sums = [of_block(whole, block) for block in blocks]
    join = delayed(partial(_sum_results, add), pure=False, traverse=False)
    while len(sums) > 1:
        sums = [join(*sums[i : i + BRANCHES]) for i in range(0, len(sums), BRANCHES)]
    return sums[0]


@public(repairs=False, ignore=None)
def _sum_results(add: Callable, *parts: tuple[Any, list[Any]]) -> tuple[Any, list[Any]]:
    total, reports = parts[0]
    for other, more in parts[1:]:
        total, reports = add(total, other), [*reports, *more]
    return total, pack_reports(reports)


@public(repairs=False, context=False)
def _value_of(f: Callable, add: Callable, block_rows: int, params: Any, block: Any) -> tuple[Any, list[Any]]:
    with _beside(params, block) as (B, block), collect_reports() as reports:
        value = B.fold(f, params, block, block_rows, add=add)[0]
    return value, pack_reports(reports)


@public(repairs=False, context=False)
def _block_cotangent(
    f: Callable, add: Callable, block_rows: int, params_and_bar: tuple[Any, Any], block: Any
) -> tuple[Any, list[Any]]:
    params, bar = params_and_bar
    with _beside(params, block) as (B, block):
        return B.fold_cotangent(f, params, block, block_rows, bar, add=add), []


@public(repairs=False, context=False)
def _rows_of(f: Callable[..., tuple], block: tuple) -> list[Any]:
    found = [(backend_of(x), x) for x in f(*block)]
    return [x if B.name == "cupy" else B.to_numpy(x) for B, x in found]  # chunks cannot be torch or JAX arrays


def _checksum(block: tuple) -> int:
    arrays = [x for x in block if x is not None]
    return backend_of(arrays[0]).checksum(tuple(arrays))


@contextlib.contextmanager
def _beside(params: Any, block: Any) -> Iterator[tuple[Backend, Any]]:
    """Enter the context of the parameters' library; yield this library, and the block as arrays of this library."""
    reference = _first_array(params)
    B = backend_of(reference)
    with B.context(reference):
        yield B, map_arrays(block, lambda x: x if backend_of(x) is B else asarray_like(x, reference))


def _first_array(params: Any) -> Array:
    if tree.is_model(params):
        return next(iter(tree.leaves(params).values()))
    return _first_array(params[0]) if isinstance(params, (tuple, list)) else params


# -- scheduling -------------------------------------------------------------------------------------------------------


def _compute(what: Any, rows: int | None = None) -> Any:
    """Compute a Dask collection with the current scheduler; `rows` is the maximum number of rows in a chunk.

    Raises
    ------
    agp.errors.WorkerError
        If a task ran out of memory, workers died repeatedly, or the connection to the scheduler was lost.
    """
    try:
        with _large_graphs():
            return dask_compute(what)[0]
    except MemoryError as error:
        raise WorkerError(_too_large("a task ran out of memory", rows)) from error
    except Exception as error:
        distributed = sys.modules.get("distributed")
        if distributed is None:
            raise
        if isinstance(error, distributed.scheduler.KilledWorker):
            raise WorkerError(_too_large("workers died repeatedly on one chunk", rows)) from error
        if isinstance(error, CancelledError | distributed.comm.CommClosedError):
            raise WorkerError(LOST_CONNECTION_MESSAGE) from error
        raise


def _large_graphs() -> Any:
    """Silence the warnings of `distributed` about large graphs inside the context.

    If `distributed` is not imported yet, nothing is changed, because its configuration does not exist. An import inside
    the context would add settings, and leaving the context would remove them.
    """
    if "distributed" not in sys.modules:
        return contextlib.nullcontext()
    return dask_config.set({"distributed.admin.large-graph-warning-threshold": LARGE_GRAPH})


def _too_large(what: str, rows: int | None) -> str:
    size = "smaller chunks" if rows is None else f"chunks of {max(1, rows // 4):,} rows (now {rows:,})"
    return f"{what}, probably because of its size; use {size} for X and y (X.rechunk), or a smaller memory=."
