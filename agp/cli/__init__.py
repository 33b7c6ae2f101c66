"""The command line: `agp fit`, `agp predict`, `agp describe`, `agp compare`, `agp backends`."""

from agp.cli._main import main
