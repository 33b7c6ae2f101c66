"""`agp backends`: the array libraries with a plug-in, and whether they are usable."""

import argparse
from typing import Any

from agp.backend import known_backends
from agp.cli._terminal import add_command, print_table

HELP = """usage: agp backends [options]
List the array libraries with a plug-in: usable or not, and why; their devices.
options:
  -q, --quiet, --debug, -h, --help   as agp --help says
example: agp backends
"""


def add_parser(commands: Any) -> None:
    """Declare the command."""
    add_command(commands, "backends", HELP, _run)


def _run(arguments: argparse.Namespace) -> int:  # noqa: ARG001 - every command takes its arguments
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
    print_table("backends", ("name", "usable", "version", "gradients", "devices, or why not"), rows, numbers_from=9)
    return 0
