"""Fixtures: the backends that every numerical test runs on, and blocks small enough for small matrices to recurse."""

import importlib.util
import os
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
LONG = {
    "test_bounds_gradients",
    "test_collapsed_profile",
    "test_conformance",
    "test_dual_steps",
    "test_estimator_files",
}
LONG |= {"test_hostile", "test_likelihoods_extremes", "test_linalg_inverse", "test_predictive_quantiles"}
LONG |= {"test_reference_dual", "test_repairs", "test_selection_places"}
"""Modules that take most of the time on torch's stand-in; `test_every_method_on_a_device` has what they are about."""


def _absent(place: Place) -> str:
    """Why nothing can be executed there; empty where something can. A library that is there but broken raises."""
    if importlib.util.find_spec(place.name) is None:
        return f"{place.name} is not installed"
    known = () if place.device is None else get_backend(place.name).devices()
    return "" if place.device in (None, *known) else f"{place.name} has no device {place.device}"


ABSENT = {name: why for name, place in PLACES.items() if (why := _absent(place))}


def pytest_report_header() -> str:
    """Say once what no test is executed on."""
    present = ", ".join(name for name in PLACES if name not in ABSENT)
    return f"arrays of {present}; not executed: {', '.join(ABSENT.values()) or 'nothing'}"


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most of the time on the stand-in to the slow tests."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is not None and callspec.params.get("backend") == "torch-cuda-stand-in" and item.path.stem in LONG:
            item.add_marker("slow")


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
    monkeypatch.setattr("agp.posteriors._base.STALE", float("inf"))


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
    """The size below which triangular products are dense: small matrices recurse at 3, and do not at 128."""
    monkeypatch.setattr("agp.backend.Backend.triangular_block", request.param)
    return request.param
