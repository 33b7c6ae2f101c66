"""`agp methods`: list the methods, and what each one takes."""

import argparse
from typing import Any

from agp.cli._terminal import add_command, print_table
from agp.methods import METHODS

HELP = """usage: agp methods [options]
List the methods that agp fit and agp compare accept. The table shows the rows
that a step uses, the likelihoods, and the further arguments of each method.
options:
  -q, --quiet, --debug, -h, --help   see agp --help
example: agp methods
"""


def add_parser(commands: Any) -> None:
    """Add the parser of the command."""
    add_command(commands, "methods", HELP, _run)


def _run(arguments: argparse.Namespace) -> int:  # noqa: ARG001 - all commands have one signature
    header = ("method", "description", "rows per step", "likelihoods", "arguments")
    print_table("methods", header, [method.summary() for method in METHODS.values()], numbers_from=9)
    return 0
