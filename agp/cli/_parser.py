"""Arguments as people write them: help that fits one screen, and errors in one sentence."""

import argparse
import sys
from typing import Any, NoReturn

__all__ = ["Parser", "add_command"]


class Parser(argparse.ArgumentParser):
    """A parser whose help is a text of its own; the first line is the usage."""

    text = ""

    def format_help(self) -> str:
        """The text."""
        return self.text

    def format_usage(self) -> str:
        """Its first line."""
        return f"{self.text.partition(chr(10))[0]}\n"

    def error(self, message: str) -> NoReturn:
        """One sentence, and the exit status 2."""
        print(f"agp: {message}; see {self.prog} --help.", file=sys.stderr)
        raise SystemExit(2)


def add_command(commands: Any, name: str, text: str, run: Any) -> Parser:
    """A parser for a command, with the options that all have."""
    parser = commands.add_parser(name)
    parser.text = text
    parser.add_argument("-q", "--quiet", action="store_true")
    parser.add_argument("--debug", action="store_true")
    parser.set_defaults(run=run)
    return parser
