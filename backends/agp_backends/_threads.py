"""How many threads a library uses on the host while agp computes: one, and more for single large operations.

Threads that wait for work spin, and the wheels of NumPy and SciPy bring an OpenBLAS each with a pool of them: pools
whose operations take turns fight for the processors, and so does anything else that runs. One thread is faster for all
that takes less than some hundredths of a second.

The setting of an OpenBLAS with threads of its own belongs to the process. So it is counted who computes: the first
thread that enters limits the pools, and the last that leaves sets them to what they were. The settings of OpenMP belong
to each thread, and are counted there.
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

__all__ = ["OneThread", "one_thread"]

LARGE = 1e9
"""Operations from which several threads are asked for: some hundredths of a second on one."""
SPINNING = 0.05
"""Seconds within which the threads of a pool fall asleep: 2**26 cycles of a processor."""


class OneThread:
    """A context in which the pools of an interface ("blas", "openmp") have one thread; inside itself it does nothing.

    One object serves all threads of the process. It finds the libraries that are loaded when it is made.
    """

    def __init__(self, interface: str) -> None:
        shared, own = _pools(interface)
        self._shared, self.here = _Limit(shared), _Here(own)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

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
        """A context for one operation: a large one uses what the user allows and nobody else computes on."""
        # outside, the user's settings hold; beside other threads inside, theirs would be raised with ours
        if operations < LARGE or self.here.depth == 0 or self._shared.inside > 1:
            return _NOTHING
        count = _free()
        return _NOTHING if count == 1 else self._raised(count)

    @contextlib.contextmanager
    def _raised(self, count: int) -> Iterator[None]:
        limits = (self._shared, self.here.own)
        for limit in limits:
            limit.raise_to(count)
        try:
            yield
        finally:
            for limit in limits:
                limit.raise_to(1)
            _Spinners.count, _Spinners.until = count - 1, time.monotonic() + SPINNING

    def _after_fork(self) -> None:
        self._shared.after_fork(int(self.here.depth > 0))


@cache
def one_thread(interface: str) -> OneThread:
    """The same object for all plug-ins whose arrays are computed on the pools of an interface."""
    if interface == "blas":
        importlib.import_module("scipy.linalg")  # its library is looked for, too
    return OneThread(interface)


_NOTHING = contextlib.nullcontext()


class _Pool(NamedTuple):
    """The threads of one library."""

    get: Callable[[], Any]
    set: Callable[[int], Any]


class _Limit:
    """One thread for each of some pools while anybody is inside; in the end what was before."""

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
        """So many threads, and no more than the user had set before."""
        for pool, before in zip(self._pools, self._before, strict=True):
            if before > 1:
                pool.set(min(count, before))

    def after_fork(self, inside: int) -> None:
        """In a child process, which has one thread: it may have been forked while another was inside."""
        self._lock = threading.Lock()
        if self.inside and not inside:
            self._restore()
        self.inside = inside

    def _restore(self) -> None:
        for pool, before in zip(self._pools, self._before, strict=True):
            if before > 1 and pool.get() == 1:  # what somebody else has set meanwhile stays
                pool.set(before)


class _Here(threading.local):
    """How deep this thread is inside, and the limit of the settings that are its own."""

    def __init__(self, own: tuple[_Pool, ...]) -> None:
        self.depth, self.own = 0, _Limit(own)


class _Spinners:
    """Our own threads that may still spin after an operation, and until when."""

    count, until = 0, 0.0


def _free() -> int:
    """How many processors nobody else computes on at this moment, at least one; all, where the system does not tell."""
    processors = os.cpu_count() or 1
    try:
        with open("/proc/loadavg", encoding="ascii") as told:
            running = int(told.read().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return processors
    own = 1 + (_Spinners.count if time.monotonic() < _Spinners.until else 0)
    return max(1, processors - max(0, running - own))


def _pools(interface: str) -> tuple[tuple[_Pool, ...], tuple[_Pool, ...]]:
    """The pools whose setting belongs to the process, and those whose setting belongs to each thread."""
    found = ThreadpoolController().select(user_api=interface).lib_controllers
    own = [x for x in found if "openmp" in (x.internal_api, getattr(x, "threading_layer", ""))]
    return tuple(_pool(x) for x in found if x not in own), tuple(_pool(x) for x in own)


def _pool(library: LibController) -> _Pool:
    if library.internal_api == "openblas" and getattr(library, "threading_layer", "") != "openmp":
        # threadpoolctl lets one thread alone change it, but the last to leave may be another than the first to enter
        for prefix, suffix in product(("", "scipy_"), ("", "64_", "_64")):
            change = getattr(library.dynlib, f"{prefix}openblas_set_num_threads{suffix}", None)
            if change is not None:
                return _Pool(library.get_num_threads, change)
    return _Pool(library.get_num_threads, library.set_num_threads)
