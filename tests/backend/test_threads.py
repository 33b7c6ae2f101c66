"""Threads of the libraries on the host: one while agp computes, what the user allows for large operations."""

import io
import os
import threading
import warnings

import numpy as np
import pytest
import scipy.linalg
from threadpoolctl import ThreadpoolController

import agp
from agp.backend import get_backend
from agp.repairs import public
from agp_backends import _numpy, _threads
from agp_backends._numpy import THREADS

USERS = 3
POOLS = ThreadpoolController().select(user_api="blas").lib_controllers
SHARED = [pool for pool in POOLS if getattr(pool, "threading_layer", "") == "pthreads"]
X = np.linspace(0.0, 1.0, 5)[:, None]

pytestmark = pytest.mark.skipif(not POOLS, reason="threadpoolctl knows nothing of the BLAS here")


def counts():
    return [pool.get_num_threads() for pool in POOLS]


def of_all(count):
    return [count] * len(POOLS)


@pytest.fixture(autouse=True)
def user():
    """A user who allows some threads, and finds the setting as it was."""
    before = counts()
    allow(USERS)
    yield
    found = counts()
    for pool, count in zip(POOLS, before, strict=True):
        pool.set_num_threads(count)
    assert found == of_all(USERS)


def allow(count):
    for pool in POOLS:
        pool.set_num_threads(count)


@public(repairs=False, ignore=None)
def computed(x, f=counts):
    return f()


def test_one_thread_inside_and_the_users_setting_outside():
    assert computed(X) == of_all(1)
    assert counts() == of_all(USERS)


@pytest.mark.slow
def test_a_training_run_has_one_thread():
    found = []
    y = np.sin(X)
    model = agp.SVGP.from_data(X, y, num_inducing=3)
    agp.train(model, X, y, steps=2, callbacks=[lambda *told: found.append(counts())])
    assert found
    assert all(one == of_all(1) for one in found)


def test_the_setting_comes_back_after_an_error():
    def failed():
        raise KeyError

    with pytest.raises(KeyError):
        computed(X, failed)
    assert counts() == of_all(USERS)


def test_nested_entrances_count():
    assert computed(X, lambda: (computed(X), counts())) == (of_all(1), of_all(1))


def test_a_pullback_has_one_thread_too():
    _, pullback = computed(X, lambda: (0.0, lambda: counts()))
    assert counts() == of_all(USERS)
    assert pullback() == of_all(1)


def test_a_user_with_one_thread_keeps_it(monkeypatch):
    monkeypatch.setattr(_threads, "_free", lambda: 8)
    allow(1)
    assert computed(X, lambda: within(1e12)) == of_all(1)
    assert counts() == of_all(1)
    allow(USERS)


def within(operations):
    with THREADS.threads_for(operations):
        return counts()


@pytest.mark.parametrize(("free", "expected"), [(8, USERS), (2, 2), (1, 1)])
def test_large_operations_take_what_is_allowed_and_free(monkeypatch, free, expected):
    monkeypatch.setattr(_threads, "_free", lambda: free)
    assert computed(X, lambda: (within(1e12), counts())) == (of_all(expected), of_all(1))
    assert computed(X, lambda: within(1e6)) == of_all(1)


def test_outside_public_functions_nothing_is_touched():
    assert within(1e12) == of_all(USERS)


@pytest.mark.parametrize(("name", "operation"), [("potrf", "cholesky"), ("lauum", "inverse_from_cholesky")])
def test_factorisations_ask_by_their_size(monkeypatch, name, operation):
    found, routine = [], scipy.linalg.get_lapack_funcs((name,), (X,))[0]

    def watched(*args, **settings):
        found.append(counts())
        return routine(*args, **settings)

    monkeypatch.setattr(_numpy, "routines", lambda *names, dtype: (watched,))
    monkeypatch.setattr(_numpy, "inverse_upper", np.copy)
    monkeypatch.setattr(_threads, "_free", lambda: 8)
    monkeypatch.setattr(_threads, "MIN_OPERATIONS", 20**3 / 3)
    call = getattr(get_backend("numpy"), operation)
    computed(X, lambda: [call(np.eye(size)) for size in (10, 20)])
    assert found == [of_all(1), of_all(USERS)]


def test_several_python_threads():
    entered, leave = [threading.Event() for _ in range(2)], [threading.Event() for _ in range(2)]
    found = [[], []]

    def inside(i):
        def held():
            entered[i].set()
            assert leave[i].wait(30)
            found[i] = within(1e12)

        computed(X, held)

    threads = [threading.Thread(target=inside, args=(i,)) for i in range(2)]
    for i, thread in enumerate(threads):
        thread.start()
        assert entered[i].wait(30)
    leave[0].set()
    threads[0].join()
    assert counts() == [1 if pool in SHARED else USERS for pool in POOLS]  # one is inside still
    leave[1].set()
    threads[1].join()  # another than the first who entered
    assert counts() == of_all(USERS)
    assert found[0] == of_all(1)  # beside another nobody raises what belongs to both


def test_what_is_set_meanwhile_stays():
    computed(X, lambda: allow(2))
    assert counts() == [2] * len(SHARED) + [USERS] * (len(POOLS) - len(SHARED))
    allow(USERS)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_while_a_thread_is_inside_has_the_users_setting():
    entered, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: computed(X, lambda: (entered.set(), leave.wait(30))))
    thread.start()
    assert entered.wait(30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        os._exit(0 if counts() == of_all(USERS) and computed(X) == of_all(1) and counts() == of_all(USERS) else 1)
    leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(("told", "free"), [("1/90", 4), ("3/90", 2), ("9/90", 1), ("0/0", 4), ("?", 4)])
def test_free_processors(monkeypatch, told, free):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(_threads._Spinners, "until", 0.0)
    monkeypatch.setattr(_threads, "open", lambda *a, **k: io.StringIO(f"0.1 0.2 0.3 {told} 17"), raising=False)
    assert _threads._free() == free


def test_own_threads_that_spin_still_are_free(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(_threads, "open", lambda *a, **k: io.StringIO("0.1 0.2 0.3 3/90 17"), raising=False)
    for until, count, free in [(0.0, 1, 1), (float("inf"), 0, 1), (float("inf"), 1, 1), (float("inf"), 2, 2)]:
        monkeypatch.setattr(_threads._Spinners, "until", until)
        monkeypatch.setattr(_threads._Spinners, "count", count)
        assert _threads._free() == free


def test_torch_has_one_thread_inside_and_other_threads_have_theirs():
    torch = pytest.importorskip("torch")
    x = torch.linspace(0.0, 1.0, 5)
    before = torch.get_num_threads()
    others = []

    def inside():
        thread = threading.Thread(target=lambda: others.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        return torch.get_num_threads()

    torch.set_num_threads(USERS)
    try:
        assert computed(x, inside) == 1
        assert torch.get_num_threads() == USERS
        assert others == [USERS]
        with pytest.raises(TypeError):
            computed(x, lambda: None + 1)
        assert torch.get_num_threads() == USERS
    finally:
        torch.set_num_threads(before)


def test_jax_has_one_thread_of_lapack_inside():
    jax = pytest.importorskip("jax")
    assert computed(jax.numpy.ones(3)) == of_all(1)
