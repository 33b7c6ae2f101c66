"""Arguments as people write them: help that fits one screen, and errors in one sentence."""

import argparse
import sys
from typing import Any, NoReturn

__all__ = ["Parser", "add_command", "seed", "whole_or_auto"]

LARGEST_SEED = 2**32 - 1


class Parser(argparse.ArgumentParser):
    """A parser whose help is a text of its own; the first line is the usage."""

    text = ""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        """As argparse makes it, but numbers are named in words where argparse would name their Python type."""
        super().__init__(*arguments, **settings)
        self.register("type", int, _whole)
        self.register("type", float, _number)

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


def _whole(text: str) -> int:
    """The type of options that take whole numbers."""
    try:
        return int(text)
    except ValueError:
        raise _refused(text, "a whole number") from None


def whole_or_auto(text: str) -> int | str:
    """The type of options that take whole numbers, or find one by themselves."""
    try:
        return text if text == "auto" else int(text)
    except ValueError:
        raise _refused(text, "a whole number or 'auto'") from None


def seed(text: str) -> int:
    """The type of seeds, for which scikit-learn takes 32 bits."""
    what = f"a whole number from 0 to {LARGEST_SEED}"
    try:
        number = int(text)
    except ValueError:
        raise _refused(text, what) from None
    if not 0 <= number <= LARGEST_SEED:
        raise _refused(text, what)
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _refused(text, "a number") from None


def _refused(text: str, what: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"must be {what}, not {text!r}")


def add_command(commands: Any, name: str, text: str, run: Any) -> Parser:
    """A parser for a command, with the options that all have."""
    parser = commands.add_parser(name)
    parser.text = text
    parser.add_argument("-q", "--quiet", action="store_true")
    parser.add_argument("--debug", action="store_true")
    parser.set_defaults(run=run)
    return parser
