"""Fixtures of the tests of files."""

import pytest


@pytest.fixture
def path(tmp_path):
    """Where a model goes."""
    return tmp_path / "model.safetensors"
