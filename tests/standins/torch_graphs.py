"""Graphs of a device without one: what torch launches is kept while a function runs, and launched again.

The calls of torch's library that a step makes are recorded with the arrays that they were given
(`TorchDispatchMode`). A replay makes the same calls with the same arrays and writes into the arrays that the first ones
made; it runs no Python of the step. What a graph of CUDA cannot hold is refused: a number that is read, and one that is
sent.
"""

import pytest

from agp.errors import BackendError
from agp_backends._torch import TorchBackend

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

MEMORY_ALONE = {"detach", "alias", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


class _Recorder(TorchDispatchMode):
    """The calls of torch's library, but those that only look at memory in another way, or take memory."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name.rpartition("::")[2]
        if name == "_local_scalar_dense":
            msg = "a number was read while a graph was recorded"
            raise RuntimeError(msg)
        if name == "lift_fresh":
            msg = "a number was sent while a graph was recorded"
            raise RuntimeError(msg)
        found = function(*args, **(kwargs or {}))
        if name not in MEMORY_ALONE and not function.is_view:
            self.calls.append((function, args, kwargs or {}, found))
        return found


class RecordedGraphs:
    """What was recorded so far, and how often it was launched."""

    def __init__(self):
        self.recorded, self.replays, self.recording = 0, 0, False
        self.interrupt_at = 0  # after so many launches

    def capture(self, f):
        f()
        recorder = _Recorder()
        self.recording = True
        try:
            with recorder:
                found = f()
        except RuntimeError as error:
            raise error if isinstance(error, BackendError) else BackendError(str(error)) from error
        finally:
            self.recording = False
        self.recorded += 1

        @torch.no_grad()
        def replay():
            self.replays += 1
            for function, args, kwargs, before in recorder.calls:
                after = function(*args, **kwargs)
                for x, y in zip(tree_leaves(before), tree_leaves(after), strict=True):
                    if x is not y:
                        x.copy_(y)
            if self.replays == self.interrupt_at:
                raise KeyboardInterrupt

        return replay, found


def recorded_graphs(monkeypatch):
    """Torch on the CPU with the settings of a device that has graphs; what was recorded."""
    graphs = RecordedGraphs()
    fetch, send = TorchBackend.to_numpy, TorchBackend.from_numpy

    def refused(f):
        def called(self, x, /, **keywords):
            if graphs.recording:
                msg = "an array travelled while a graph was recorded"
                raise RuntimeError(msg)
            return f(self, x, **keywords)

        return called

    found = {
        "captures": lambda self, x: True,
        "capture": lambda self, f, x: graphs.capture(f),
        "reading_waits": lambda self, x: True,
        "device_block": lambda self, x: 1024,
        "to_numpy": refused(fetch),
        "from_numpy": refused(send),
    }
    for name, f in found.items():
        monkeypatch.setattr(TorchBackend, name, f)
    return graphs
