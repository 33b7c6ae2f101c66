"""Fixtures: how a command ends."""

import pytest

from agp.cli import main


@pytest.fixture
def status_of():
    """Run a command; its exit status."""

    def run(*arguments):
        try:
            return main([str(argument) for argument in arguments])
        except SystemExit as ended:
            return ended.code

    return run
