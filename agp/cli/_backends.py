"""`agp backends`: list the array libraries that have a plug-in, and whether each one is usable."""

import argparse
from typing import Any

from agp.backend import known_backends
from agp.cli._terminal import add_command, print_table

HELP = """usage: agp backends [options]
List the array libraries that have a plug-in. The table shows whether each one
is usable, its version, and its devices or the reason why it is not usable.
options:
  -q, --quiet, --debug, -h, --help   see agp --help
example: agp backends
"""


def add_parser(commands: Any) -> None:
    """Add the parser of the command."""
    add_command(commands, "backends", HELP, _run)


def _run(arguments: argparse.Namespace) -> int:  # noqa: ARG001 - all commands have one signature
    rows = [
        (
            status.name,
            ("yes (conformance tests)" if status.conformance else "yes") if status.usable else "no",
            status.version,
            ", ".join(status.gradients),
            ", ".join(status.devices) if status.usable else status.reason,
        )
        for status in known_backends()
    ]
    print_table("backends", ("name", "usable", "version", "gradients", "devices, or reason"), rows, numbers_from=9)
    return 0
