"""Fixtures: the backends that every numerical test runs on, and blocks small enough for small matrices to recurse."""

import importlib.util
import os
from collections.abc import Iterator

import pytest
import solvers
from helpers import CUPY, JAX, JAX_CUDA, NUMPY, STRICT, TORCH, TORCH_CUDA, Place

from agp.backend import get_backend

os.environ.setdefault("JAX_ENABLE_X64", "1")  # JAX is imported later, here and in the processes that tests start

PLACES = {"numpy": NUMPY, "torch": TORCH, "strict-device1": STRICT, "jax": JAX, "cupy": CUPY}
PLACES |= {"torch-cuda": TORCH_CUDA, "jax-cuda": JAX_CUDA, "torch-standin": TORCH_CUDA}
STANDIN = "torch-standin"
"""Where torch has no CUDA device, `torch_standin` has its place."""
LONG = {
    "test_bounds_gradients",
    "test_collapsed_profile",
    "test_conformance",
    "test_dual_steps",
    "test_estimator_files",
}
LONG |= {"test_hostile", "test_likelihoods_extremes", "test_linalg_inverse", "test_predictive_quantiles"}
LONG |= {"test_reference_dual", "test_repairs", "test_selection_places"}
"""Modules that take most of the time on the stand-in; `test_every_method_on_a_device` has what they are about."""


def _absent(place: Place) -> str:
    """Why nothing can be executed there; empty where something can. A library that is there but broken raises."""
    if importlib.util.find_spec(place.name) is None:
        return f"{place.name} is not installed"
    known = () if place.device is None else get_backend(place.name).devices()
    return "" if place.device in (None, *known) else f"{place.name} has no device {place.device}"


ABSENT = {name: why for name, place in PLACES.items() if (why := _absent(place))}
if "torch-cuda" not in ABSENT:
    ABSENT[STANDIN] = "torch has a device: its stand-in"
elif "torch" not in ABSENT:
    del ABSENT[STANDIN]


def pytest_report_header() -> str:
    """Say once what no test is executed on."""
    present = ", ".join(name for name in PLACES if name not in ABSENT)
    return f"arrays of {present}; not executed: {', '.join(ABSENT.values()) or 'nothing'}"


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most of the time on the stand-in to the slow tests."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is not None and callspec.params.get("backend") == STANDIN and item.path.stem in LONG:
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


@pytest.fixture(params=[name for name in PLACES if name not in ABSENT])
def backend(request) -> Iterator[Place]:
    """Each array library in turn; array-api-strict on a device that is not the default, torch on a stand-in, too."""
    if request.param == STANDIN:
        from torch_standin import standing_in

        with standing_in():
            yield PLACES[STANDIN]
    else:
        yield _available(PLACES[request.param])


@pytest.fixture
def torch_device() -> Iterator[Place]:
    """Torch on the stand-in of a CUDA device, whether or not there is a real one; or a skip."""
    pytest.importorskip("torch")
    from torch_standin import standing_in

    with standing_in():
        yield TORCH_CUDA


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
