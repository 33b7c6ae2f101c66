"""The command line: `agp compare`, `agp backends`."""

from agp.cli._main import main

__all__ = ["main"]
