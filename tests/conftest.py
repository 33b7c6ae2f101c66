"""Fixtures: the backends that every numerical test runs on, and blocks small enough for small matrices to recurse.

Few tests run the full product of their parameters. NumPy runs every case. Each other library runs enough cases to see
every level of every parameter; of these, the quick tests run one library per level, but neither array-api-strict nor a
stand-in. A test marked `cover(2)` runs enough cases for every pair of levels of different parameters to meet, the
library being one of the parameters. With `cover(2, quick=1)`, the quick tests run enough of them to see every level.

Tests marked `long` are experiments. `make test` leaves them out, `make test-all` runs them. Of a test marked `slow`,
the cases that are not needed to see every level are long. Of a test marked `sample(n)`, all slow cases but n are long.
"""

import gc
import heapq
import importlib.util
import itertools
import os
import zlib
from collections import defaultdict
from collections.abc import Iterator

import pytest
import solvers
from helpers import CUPY, JAX, JAX_CUDA, NUMPY, STRICT, TORCH, TORCH_CUDA, Place
from standins import strict_cupy

from agp.backend import get_backend

os.environ.setdefault("JAX_ENABLE_X64", "1")  # JAX is imported later, here and in the processes that tests start
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else each process takes 75 % of a GPU at once

PLACES = {"numpy": NUMPY, "torch": TORCH, "strict-device1": STRICT, "jax": JAX, "cupy": CUPY}
PLACES |= {"torch-cuda": TORCH_CUDA, "jax-cuda": JAX_CUDA}
gc.disable()  # until tests are collected: nearly all of it stays alive, and scanning it costs more than it frees


def _absent(place: Place) -> str:
    """Why nothing can be executed there; empty where something can. A library that is there but broken raises."""
    if importlib.util.find_spec(place.name) is None:
        return f"{place.name} is not installed"
    known = () if place.device is None else get_backend(place.name).devices()
    return "" if place.device in (None, *known) else f"{place.name} has no device {place.device}"


ABSENT = {name: why for name, place in PLACES.items() if (why := _absent(place))}
if "jax-cuda" not in ABSENT:
    import jax

    jax.config.update("jax_default_matmul_precision", "highest")  # for what public functions call, and tests call alone


def pytest_report_header() -> str:
    """Say once what no test is executed on."""
    present = ", ".join(name for name in PLACES if name not in ABSENT)
    return f"arrays of {present}; not executed: {', '.join(ABSENT.values()) or 'nothing'}"


Cases = dict[pytest.Item, dict[str, int]]
"""The cases of a test, each with the levels of its parameters."""


def _cover(cases: Cases, strength: int) -> set[pytest.Item]:
    """Choose few cases such that all tuples of levels of `strength` parameters occur: greedy and deterministic."""
    tuples = {item: {*itertools.combinations(x.items(), min(strength, len(x)))} for item, x in cases.items()}
    missing = set().union(*tuples.values())
    # ties are broken by a hash, so that no level is preferred
    waiting = [(-len(x), _hashed(item), i, item) for i, (item, x) in enumerate(tuples.items())]
    heapq.heapify(waiting)
    chosen = set()
    while missing:
        gain, *order, item = heapq.heappop(waiting)
        now = -len(tuples[item] & missing)
        if now == gain:
            chosen.add(item)
            missing -= tuples[item]
        elif now:
            heapq.heappush(waiting, (now, *order, item))
    return chosen


def _place(item: pytest.Item) -> str:
    """The array library of a case; NumPy if the test has no such parameter."""
    place = item.callspec.params.get("backend")
    return place if isinstance(place, str) else "numpy"


def _is_fast(item: pytest.Item) -> bool:
    """Return false for array-api-strict and stand-ins, which check each call in Python."""
    return not _place(item).endswith(("-stand-in", "strict-device1"))


def _chosen(cases: Cases, mark: pytest.Mark | None) -> tuple[set[pytest.Item], set[pytest.Item]]:
    """Return the cases of a test to run, and those among them that are quick."""
    if mark is not None:
        kept = _cover(cases, *mark.args)
        quick = {item: cases[item] for item in kept if _is_fast(item)}
        return kept, _cover(quick, mark.kwargs.get("quick", *mark.args))
    places: dict[str, Cases] = defaultdict(dict)
    for item, levels in cases.items():
        places[_place(item)][item] = levels
    usual = {*places.pop("numpy", {})}
    others = set().union(*(_cover(those, 1) for those in places.values()))
    return usual | others, usual | _cover({item: cases[item] for item in others if _is_fast(item)}, 1)


def _hashed(item: pytest.Item) -> int:
    return zlib.crc32(item.nodeid.encode())


def _long(kept: set[pytest.Item], quick: set[pytest.Item], cases: Cases) -> set[pytest.Item]:
    """Return the cases that `make test` leaves out."""
    first = next(iter(cases))
    slow = first.get_closest_marker("slow") is not None
    mark = first.get_closest_marker("sample")
    if mark is not None:
        return {*sorted(kept if slow else kept - quick, key=_hashed)[mark.args[0] :]}
    return kept - _cover({item: cases[item] for item in kept}, 1) if slow else set()


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect cases that add nothing, and mark the others as long or slow unless they are quick."""
    tests: dict[str, Cases] = defaultdict(dict)
    for item in items:
        if hasattr(item, "callspec"):  # in all cases, a level is the same object
            levels = {name: id(level) for name, level in item.callspec.params.items()}
            tests[item.nodeid.partition("[")[0]][item] = levels
    left_out = set()
    for cases in tests.values():
        kept, quick = _chosen(cases, next(iter(cases)).get_closest_marker("cover"))
        long = _long(kept, quick, cases)
        left_out |= cases.keys() - kept
        for item in kept - quick:
            item.add_marker("slow")
        for item in long:
            item.add_marker("long")
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker("slow")
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Enable garbage collection, without the tests that were collected."""
    gc.freeze()
    gc.enable()


def _available(place: Place) -> Place:
    if importlib.util.find_spec(place.name) is None:
        pytest.skip(f"{place.name} is not installed: not executed")
    devices = get_backend(place.name).devices()
    if not devices or place.device not in (None, *devices):
        pytest.skip(f"{place.name} has no device {place.device or ''} here: not executed")
    return place


@pytest.fixture
def available():
    """The function that gives back a place, or skips the test where its library is not installed."""
    return _available


@pytest.fixture
def cupy_stand_in(monkeypatch) -> Place:
    """The plug-in of CuPy over a stand-in, where CuPy itself is not installed."""
    if importlib.util.find_spec("cupy") is not None:
        pytest.skip("CuPy itself is installed")
    strict_cupy.install(monkeypatch)
    return CUPY


@pytest.fixture
def torch_device() -> Iterator[Place]:
    """Torch on the stand-in of a CUDA device, whether or not there is a real one; or a skip."""
    pytest.importorskip("torch")
    from standins.torch_device import standing_in

    with standing_in():
        yield TORCH_CUDA


STAND_INS = {"cupy": "cupy_stand_in", "torch-cuda": "torch_device"}
"""Fixtures that put something in the place of a library or device that is not there."""
FOUND = [
    *(name for name in PLACES if name not in ABSENT),
    *(f"{name}-stand-in" for name in STAND_INS if name in ABSENT),
]


@pytest.fixture(params=FOUND)
def backend(request) -> Place:
    """Each array library in turn, array-api-strict on a device that is not the default; stand-ins for others."""
    name, stand_in, _ = request.param.partition("-stand-in")
    if stand_in:
        return request.getfixturevalue(STAND_INS[name])
    return _available(PLACES[request.param])


@pytest.fixture
def torch_place() -> Place:
    """Torch, or a skip."""
    return _available(TORCH)


@pytest.fixture
def stale_factors(monkeypatch) -> None:
    """Let predictions use an inverse factor as it is, however far from the inverse: q(u) is what it says."""
    monkeypatch.setattr("agp.posteriors._base.STALE_TOLERANCE", float("inf"))


@pytest.fixture
def no_solvers(monkeypatch) -> None:
    """Every factorisation, solve and decomposition raises `solvers.Forbidden`."""
    solvers.forbid(monkeypatch)


@pytest.fixture
def forbid_solvers(monkeypatch):
    """The function from whose call on every factorisation, solve and decomposition raises `solvers.Forbidden`."""
    return lambda: solvers.forbid(monkeypatch)


@pytest.fixture(params=[3, 128], ids=["recursive", "dense"])
def block(request, monkeypatch) -> int:
    """The size below which triangular products and solves are dense: small matrices recurse at 3, and not at 128."""
    monkeypatch.setattr("agp.backend.Backend.triangular_block", request.param)
    monkeypatch.setattr("agp.linalg._triangular.SOLVE_BLOCK", request.param)
    return request.param
