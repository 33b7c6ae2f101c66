"""Limit the host's BLAS and OpenMP libraries to one thread during agp's computations, except for large operations.

The wheels of NumPy and SciPy each contain an OpenBLAS with its own thread pool, and waiting threads of a pool spin.
Pools that run alternately therefore compete with each other, and with other processes, for processors. For operations
shorter than some hundredths of a second, one thread is faster.

If an OpenBLAS has its own threads, their number is a setting of the whole process. agp therefore counts the Python
threads inside `OneThread` contexts: the first thread to enter one limits the pools, and the last thread to leave one
restores them. OpenMP has a separate setting for each thread.
"""

import contextlib
import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from typing import Any, NamedTuple

from threadpoolctl import LibController, ThreadpoolController

MIN_OPERATIONS = 1e9
"""Number of operations from which several threads are used; on one thread, they take some hundredths of a second."""
SPIN_SECONDS = 0.05
"""Time in seconds after which idle threads of a pool sleep: 2**26 processor cycles."""


class OneThread:
    """Context manager that limits the thread pools of an interface ("blas" or "openmp") to one thread.

    Nested contexts have no effect. One object serves all threads of the process. The limit applies to libraries
    that were loaded before the object was created.
    """

    def __init__(self, interface: str) -> None:
        shared, own = _pools(interface)
        self._shared, self.here = _Limit(shared), _Here(own)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=lambda: self._shared.after_fork(int(self.here.depth > 0)))

    def __enter__(self) -> None:
        here = self.here
        here.depth += 1
        if here.depth == 1:
            self._shared.enter()
            here.own.enter()

    def __exit__(self, *raised: object) -> None:
        here = self.here
        here.depth -= 1
        if here.depth == 0:
            here.own.leave()
            self._shared.leave()

    def threads_for(self, operations: float) -> contextlib.AbstractContextManager[Any]:
        """Context manager for one operation: a large operation uses idle processors, within the user's limits."""
        # outside, the user's settings apply; with other Python threads inside, the change would also affect them
        if operations < MIN_OPERATIONS or self.here.depth == 0 or self._shared.inside > 1:
            return _NOTHING
        count = _free()
        return _NOTHING if count == 1 else self._increment_count(count)

    @contextlib.contextmanager
    def _increment_count(self, count: int) -> Iterator[None]:
        limits = (self._shared, self.here.own)
        for limit in limits:
            limit.raise_to(count)
        try:
            yield
        finally:
            for limit in limits:
                limit.raise_to(1)
            _Spinners.count, _Spinners.until = count - 1, time.monotonic() + SPIN_SECONDS


@cache
def one_thread(interface: str) -> OneThread:
    """The `OneThread` of an interface, shared by all plug-ins."""
    if interface == "blas":
        importlib.import_module("scipy.linalg")  # loads its BLAS library
    return OneThread(interface)


_NOTHING = contextlib.nullcontext()


class _Pool(NamedTuple):
    """The thread pool of one library."""

    get: Callable[[], Any]
    set: Callable[[int], Any]


class _Limit:
    """Limit pools to one thread while any Python thread is inside a context, and restore the pools afterwards."""

    def __init__(self, pools: tuple[_Pool, ...]) -> None:
        self.inside = 0
        self._pools, self._before, self._lock = pools, (), threading.Lock()

    def enter(self) -> None:
        with self._lock:
            self.inside += 1
            if self.inside == 1:
                self._before = tuple(pool.get() for pool in self._pools)
                self.raise_to(1)

    def leave(self) -> None:
        with self._lock:
            self.inside -= 1
            if self.inside == 0:
                self._restore()

    def raise_to(self, count: int) -> None:
        """Set the number of threads, but not above the user's setting."""
        for pool, before in zip(self._pools, self._before, strict=True):
            if before > 1:
                pool.set(min(count, before))

    def after_fork(self, inside: int) -> None:
        """Reset the count of threads in a child process, which has none of the parent's other threads."""
        self._lock = threading.Lock()
        if self.inside and not inside:
            self._restore()
        self.inside = inside

    def _restore(self) -> None:
        for pool, before in zip(self._pools, self._before, strict=True):
            if before > 1 and pool.get() == 1:  # keep a setting that other code has made in the meantime
                pool.set(before)


class _Here(threading.local):
    """Nesting depth of the current thread, and the `_Limit` of the pools with a setting for each thread."""

    def __init__(self, own: tuple[_Pool, ...]) -> None:
        self.depth, self.own = 0, _Limit(own)


class _Spinners:
    """The number of agp's threads that may still spin after an operation, and the time when they stop."""

    count, until = 0, 0.0


def _free() -> int:
    """Number of idle processors, at least one; all processors if the system does not report a load."""
    processors = os.cpu_count() or 1
    try:
        with open("/proc/loadavg", encoding="ascii") as told:
            running = int(told.read().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return processors
    own = 1 + (_Spinners.count if time.monotonic() < _Spinners.until else 0)
    return max(1, processors - max(0, running - own))


def _pools(interface: str) -> tuple[tuple[_Pool, ...], tuple[_Pool, ...]]:
    """Return the pools with one setting for the whole process, and the pools with a setting for each thread."""
    found = ThreadpoolController().select(user_api=interface).lib_controllers
    own = [x for x in found if "openmp" in (x.internal_api, getattr(x, "threading_layer", ""))]
    return tuple(_pool(x) for x in found if x not in own), tuple(_pool(x) for x in own)


def _pool(library: LibController) -> _Pool:
    if library.internal_api == "openblas" and getattr(library, "threading_layer", "") != "openmp":
        # threadpoolctl's contexts cannot be used: the first thread to enter need not be the last to leave
        for prefix, suffix in product(("", "scipy_"), ("", "64_", "_64")):
            change = getattr(library.dynlib, f"{prefix}openblas_set_num_threads{suffix}", None)
            if change is not None:
                return _Pool(library.get_num_threads, change)
    return _Pool(library.get_num_threads, library.set_num_threads)
