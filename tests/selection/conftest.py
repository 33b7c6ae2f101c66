"""Sizes at which `fit_regression` takes a fraction of a second, for every test of this folder that is not slow."""

import pytest
from tables import shrink


@pytest.fixture(autouse=True)
def small(request, monkeypatch) -> None:
    """Small sizes; a test that asks for `full_size` has those that users have."""
    if "full_size" not in request.fixturenames:
        shrink(monkeypatch.setattr)


@pytest.fixture
def full_size() -> None:
    """The sizes that users have."""
