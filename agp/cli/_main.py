"""The `agp` program: its commands, errors and warnings."""

import contextlib
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from agp import __version__
from agp.cli import _backends, _compare, _describe, _fit, _predict
from agp.cli._terminal import Parser

HELP = """usage: agp COMMAND ...
Train Gaussian processes on tables, and predict with error bars.
commands:
  fit        train a model on a table, and write the model to a file
  predict    predict the rows of another table with a trained model
  describe   print the contents of a model file, and rank its columns
  compare    train methods on several backends, and compare results and speed
  backends   list the array libraries, and show which are usable
options of every command:
  -q, --quiet   print no messages and no progress bar
  --debug       print errors with a traceback
  -h, --help    print the options of the command, and exit
option of agp alone:
  --version     print the version, and exit
example:
  agp fit airfoil.csv --target sound --out airfoil.safetensors
  agp predict airfoil.safetensors new.csv --out predictions.csv
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit status.

    The status is 0 for success, 1 for a failed comparison, 2 for an error and 130 for Ctrl-C. The status is 141 if the
    program that reads the output, such as `head`, stops early.
    """
    parser = Parser(prog="agp")
    parser.text = HELP
    parser.add_argument("--version", action="version", version=f"agp {__version__}")
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND", parser_class=Parser)
    for command in (_fit, _predict, _describe, _compare, _backends):
        command.add_parser(commands)
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:  # argparse would name the program instead of the command
        commands.choices[arguments.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        with _warnings_as_lines():
            status = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # otherwise Python prints an error at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("agp: interrupted; nothing was written.", file=sys.stderr)
        return 130
    except (ArithmeticError, ImportError, MemoryError, OSError, RuntimeError, TypeError, ValueError) as error:
        if arguments.debug:
            traceback.print_exc()
        else:
            print(f"agp: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
        return 2


@contextlib.contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Print each warning as one line on standard error, and ignore deprecation warnings."""

    def show(message: Any, category: type[Warning], *_: Any, **__: Any) -> None:
        if not issubclass(category, (DeprecationWarning, PendingDeprecationWarning, FutureWarning)):
            print(f"agp: warning: {' '.join(str(message).split())}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = show
        yield
