"""CUDA graphs of torch, which record the launches of a function on a separate stream.

On a GPU, it has run with torch 2.11 and CUDA 13.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from agp.errors import BackendError

T = TypeVar("T")


def capture(f: Callable[[], T], device: Any, /) -> tuple[Callable[[], None], T]:
    """Record the launches of f() on a CUDA device, as `agp.backend.Backend.capture` requires.

    Before the recording, f runs twice on the same stream, so that libraries create handles, choose algorithms and
    allocate memory. The second run raises an error if the host waits for the device, because such an error during a
    recording would leave torch in an undefined state. The memory of a graph is freed with the graph.
    """
    stream, graph = torch.cuda.Stream(device), torch.cuda.CUDAGraph()
    before = torch.cuda.current_stream(device)
    stream.wait_stream(before)
    try:
        with torch.cuda.stream(stream), _preserve_generator(device):
            f()
            with _forbid_synchronisation():
                f()
            # other threads may continue to use the device
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                found = f()
    except RuntimeError as error:
        first = _first(error)
        raise first if isinstance(first, BackendError) else BackendError(str(first).partition("\n")[0]) from error
    finally:
        with contextlib.suppress(RuntimeError):  # wait until all writes are finished
            torch.cuda.synchronize(device)
    return graph.replay, found


@contextlib.contextmanager
def _forbid_synchronisation() -> Iterator[None]:
    """Raise a BackendError if the host waits for a device inside the block.

    torch reports such waits as warnings. torch's error mode would also affect other threads.
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
        raise BackendError("the function makes the host wait for the device.")


@contextlib.contextmanager
def _preserve_generator(device: Any) -> Iterator[None]:
    """Restore the default generator of the device after an exception.

    Recording a graph takes over the generator, and a failed recording does not give it back.
    """
    generator = torch.cuda.default_generators[device.index or 0]
    state = generator.clone_state()
    try:
        yield
    except BaseException:
        generator.graphsafe_set_state(state)
        raise


def _first(error: BaseException) -> BaseException:
    """Return the first error in a chain, because ending a failed recording raises a second error."""
    while error.__context__ is not None:
        error = error.__context__
    return error
