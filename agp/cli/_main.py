"""Arguments of the command line."""

import argparse
import sys
from collections.abc import Sequence

from agp import __version__
from agp.cli import _backends, _compare
from agp.errors import BackendError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is 0 for success, 1 for a failed comparison, 2 for bad arguments."""
    parser = argparse.ArgumentParser(prog="agp", description="Scalable Gaussian processes on any array library.")
    parser.add_argument("--version", action="version", version=f"agp {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _compare.add_parser(commands)
    _backends.add_parser(commands)
    arguments = parser.parse_args(argv)
    try:
        return arguments.run(arguments)
    except (BackendError, ImportError, OSError, TypeError, ValueError) as error:
        print(f"agp: {error}", file=sys.stderr)
        return 2
