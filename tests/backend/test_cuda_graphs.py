"""What is asked of torch to record a graph of CUDA, and what is left behind where that fails: no card is needed."""

import contextlib
import warnings
from types import SimpleNamespace

import pytest

from agp.backend import Backend, get_backend
from agp.backend._control import ControlFlow, assume, speculating
from agp.errors import BackendError

torch = pytest.importorskip("torch")
from agp_backends._graphs import capture  # noqa: E402

DEVICE = SimpleNamespace(type="cuda", index=0)


class Cuda:
    """The names of `torch.cuda` that recording takes, and what was asked of them."""

    def __init__(self):
        self.asked, self.mode, self.streams, self.state = [], 0, ["usual"], "as before"
        self.default_generators = [self]
        self.fails_at_the_end = False

    def Stream(self, device):
        return SimpleNamespace(name="side", wait_stream=lambda other: self.asked.append(("wait", other)))

    def current_stream(self, device):
        return self.streams[-1]

    @contextlib.contextmanager
    def stream(self, stream):
        before = list(self.streams)
        self.streams.append(stream.name)
        try:
            yield
        finally:
            self.streams[:] = before

    def CUDAGraph(self):
        return SimpleNamespace(replay=lambda: self.asked.append("replay"))

    @contextlib.contextmanager
    def graph(self, graph, *, stream, capture_error_mode):
        self.asked.append(("begin", capture_error_mode))
        self.state = "taken over"
        self.streams.append(stream.name)
        try:
            yield
        except RuntimeError as error:
            msg = "operation failed due to a previous error during capture"
            raise RuntimeError(msg) from error
        if self.fails_at_the_end:
            msg = "not permitted when stream is capturing\nand so on"
            raise RuntimeError(msg)
        self.streams.pop()
        self.state = "as before"
        self.asked.append("end")

    def synchronize(self, device):
        self.asked.append("synchronise")

    def get_sync_debug_mode(self):
        return self.mode

    def set_sync_debug_mode(self, mode):
        if mode == "warn":
            warnings.warn("Synchronization debug mode does not detect all synchronizing operations", stacklevel=2)
        self.mode = mode

    def clone_state(self):
        return self.state

    def graphsafe_set_state(self, state):
        self.state = state


@pytest.fixture
def cuda(monkeypatch):
    found = Cuda()
    monkeypatch.setattr(torch, "cuda", found)
    return found


def test_a_function_is_run_twice_and_recorded_on_a_stream_of_its_own(cuda):
    where = []
    replay, found = capture(lambda: where.append((cuda.streams[-1], cuda.mode)) or len(where), DEVICE)
    assert where == [("side", 0), ("side", "warn"), ("side", 0)]
    assert found == 3
    assert cuda.asked == [("wait", "usual"), ("begin", "thread_local"), "end", "synchronise"]
    replay()
    assert cuda.asked[-1] == "replay"
    assert (cuda.streams, cuda.mode, cuda.state) == (["usual"], 0, "as before")


def test_a_function_that_waits_is_refused_before_it_is_recorded(cuda):
    def waits():
        if cuda.mode == "warn":
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)

    with pytest.raises(BackendError, match="the function makes the host wait for the device"):
        capture(waits, DEVICE)
    assert cuda.asked == [("wait", "usual"), "synchronise"]
    assert (cuda.streams, cuda.mode, cuda.state) == (["usual"], 0, "as before")


@pytest.mark.parametrize("error", [RuntimeError("no room\nfor it"), BackendError("unforeseen")])
def test_a_recording_that_fails_says_what_came_first_and_leaves_nothing_behind(error, cuda):
    def fails():
        if ("begin", "thread_local") in cuda.asked:
            raise error

    with pytest.raises(BackendError, match=f"^{str(error).partition(chr(10))[0]}$"):
        capture(fails, DEVICE)
    assert cuda.asked[-1] == "synchronise"
    assert (cuda.streams, cuda.mode, cuda.state) == (["usual"], 0, "as before")


def test_an_end_that_fails_is_a_reason_too(cuda):
    cuda.fails_at_the_end = True
    with pytest.raises(BackendError, match="^not permitted when stream is capturing$"):
        capture(lambda: None, DEVICE)
    assert (cuda.streams, cuda.state) == (["usual"], "as before")


# -- what is around it ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_on_the_host_there_are_no_graphs(kind):
    B = get_backend(kind)
    x = B.from_numpy(1.0)
    assert not B.captures(x)
    with pytest.raises(BackendError, match=f"{kind}.* does not support graphs"):
        B.capture(lambda: x, x)


@pytest.mark.parametrize("own", [True, False], ids=["plug-in", "default"])
def test_arrays_are_overwritten_together_where_the_predicate_holds(own, backend):
    B, xp = get_backend(backend.name), get_backend(backend.name).xp
    overwrite = B.overwrite if own else lambda *args, where: Backend.overwrite(B, *args, where=where)
    if backend.name == "jax":
        pytest.skip("its arrays are never written to")
    for holds in (True, False):
        x, y, z = (backend.array([float(i), i + 0.5]) for i in range(3))
        before = [backend.numpy(a).tolist() for a in (x, y, z)]
        overwrite([x, y, z], [y, x[::-1] if backend.name == "numpy" else xp.flip(x), z], where=xp.all(x == x) & holds)
        found = [backend.numpy(a).tolist() for a in (x, y, z)]
        assert found == ([before[1], before[0][::-1], before[2]] if holds else before)


def test_copies_are_new_arrays_in_rows(backend):
    B = get_backend(backend.name)
    several = [backend.array(np_like) for np_like in ([1.0, 2.0], [[1.0, 2.0], [3.0, 4.0]])]
    several.append(several[1].mT)
    found = B.copies(several)
    for x, y in zip(several, found, strict=True):
        assert x is not y
        assert backend.numpy(x).tolist() == backend.numpy(y).tolist()
    assert B.copies([]) == []


def test_what_is_fetched_is_as_it_was_when_it_was_asked_for():
    B = get_backend("torch")
    x = B.from_numpy([1.0, 2.0])
    fetched = B.fetch(x)
    x[...] = 3.0
    assert fetched().tolist() == [1.0, 2.0]


# -- decisions --------------------------------------------------------------------------------------------------------


def test_in_a_blind_block_nothing_is_read():
    x = torch.tensor(1.0)
    guesses = []
    with speculating(guesses, blind=True):
        assert assume(x > 2.0, likely=True) is True
        with pytest.raises(BackendError, match="cannot read this predicate"):
            assume(x > 0.0, likely=None)
    assert [bool(guess) for guess in guesses] == [False]
    with speculating([]):
        assert assume(x > 0.0, likely=None) is True


def test_a_loop_is_as_long_as_was_foreseen_and_that_is_a_guess():
    B, x = get_backend("torch"), torch.tensor(0.0)
    assert type(B).while_loop is ControlFlow.while_loop

    def looped(**known):
        with speculating([], blind=True) as guesses:
            (found,) = B.while_loop(lambda count: count < 5.0, lambda count: (count + 1.0,), (x,), **known)
        assert guesses is not None
        return float(found), [bool(guess) for guess in guesses]

    assert looped(at_least=5, likely_enough=True) == (5.0, [True])
    assert looped(at_least=3, likely_enough=True) == (3.0, [False])
    assert looped(at_least=4, at_most=4) == (4.0, [])
    for known in ({}, {"at_least": 5}, {"at_most": 6}):
        with pytest.raises(BackendError, match="cannot read this predicate"):
            looped(**known)
