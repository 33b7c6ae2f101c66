"""CUDA graphs of torch: what a function launches, recorded on a stream of its own. Never run on a card so far."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from agp.errors import BackendError

__all__ = ["captured"]

T = TypeVar("T")


def captured(f: Callable[[], T], device: Any, /) -> tuple[Callable[[], None], T]:
    """`agp.backend.Backend.capture` on a CUDA device.

    It is run twice beforehand, on the stream on which it is recorded: libraries make handles, choose algorithms and
    take their memory then. The second run must not wait for the device: an attempt that fails while it is recorded
    leaves more behind than one that was not made. A graph has memory of its own, which is free again once the graph is.
    """
    stream, graph = torch.cuda.Stream(device), torch.cuda.CUDAGraph()
    before = torch.cuda.current_stream(device)
    stream.wait_stream(before)
    try:
        with torch.cuda.stream(stream), _generator_kept(device):
            f()
            with _waiting_refused():
                f()
            # other threads of the process may go on meanwhile
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                found = f()
    except RuntimeError as error:
        first = _first(error)
        raise first if isinstance(first, BackendError) else BackendError(str(first).partition("\n")[0]) from error
    finally:
        with contextlib.suppress(RuntimeError):  # nothing that f writes to may be on its way any more
            torch.cuda.synchronize(device)
    return graph.replay, found


@contextlib.contextmanager
def _waiting_refused() -> Iterator[None]:
    """BackendError if the host has waited for a device inside.

    By torch's warnings: as errors they would reach other threads, whose business it is.
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
    """The usual generator of the device is as before if something is raised inside.

    Every graph takes it over while it is recorded, and a recording that fails does not give it back.
    """
    generator = torch.cuda.default_generators[device.index or 0]
    state = generator.clone_state()
    try:
        yield
    except BaseException:
        generator.graphsafe_set_state(state)
        raise


def _first(error: BaseException) -> BaseException:
    """The error that came first: ending a recording that has failed is one, too."""
    while error.__context__ is not None:
        error = error.__context__
    return error
