"""CUDA graphs of torch: the launches of a function, recorded on a separate stream. Not yet run on a GPU."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from agp.errors import BackendError

T = TypeVar("T")


def captured(f: Callable[[], T], device: Any, /) -> tuple[Callable[[], None], T]:
    """`agp.backend.Backend.capture` on a CUDA device.

    f runs twice beforehand on the stream of the recording, so that libraries create handles, choose algorithms and
    allocate memory. The second run must not wait for the device, which is found before a recording fails: that leaves
    state behind. The memory of a graph is freed with the graph.
    """
    stream, graph = torch.cuda.Stream(device), torch.cuda.CUDAGraph()
    before = torch.cuda.current_stream(device)
    stream.wait_stream(before)
    try:
        with torch.cuda.stream(stream), _generator_kept(device):
            f()
            with _waiting_refused():
                f()
            # other threads may continue meanwhile
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                found = f()
    except RuntimeError as error:
        first = _first(error)
        raise first if isinstance(first, BackendError) else BackendError(str(first).partition("\n")[0]) from error
    finally:
        with contextlib.suppress(RuntimeError):  # wait until nothing is written any more
            torch.cuda.synchronize(device)
    return graph.replay, found


@contextlib.contextmanager
def _waiting_refused() -> Iterator[None]:
    """BackendError if the host has waited for a device inside.

    It relies on torch's warnings: as errors they would affect other threads, too.
    """
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
    if any("called a synchronizing" in str(one.message) for one in seen):
        msg = "the host waits for the device in it."
        raise BackendError(msg)


@contextlib.contextmanager
def _generator_kept(device: Any) -> Iterator[None]:
    """Restore the default generator of the device after an exception.

    A graph takes it over while it is recorded, and a failed recording does not return it.
    """
    generator = torch.cuda.default_generators[device.index or 0]
    state = generator.clone_state()
    try:
        yield
    except BaseException:
        generator.graphsafe_set_state(state)
        raise


def _first(error: BaseException) -> BaseException:
    """The original error: ending a failed recording raises another one."""
    while error.__context__ is not None:
        error = error.__context__
    return error
