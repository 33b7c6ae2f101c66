"""The `agp` program: its commands, errors and warnings."""

import contextlib
import importlib
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from agp import __version__
from agp.cli._terminal import ERRORS, Output, Parser, forgiving_output, in_shell
from agp.errors import unknown_name_message
from agp.methods import load_plugins

HELP = """usage: agp COMMAND ...
Train Gaussian processes on tables, and predict with error bars.
commands:
  fit        train a model on a table, and write the model to a file
  predict    predict the rows of another table with a trained model
  describe   print the contents of a model file, and rank its columns
  compare    train several methods on a table, and compare errors and times
  methods    list the methods of agp fit and agp compare
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


COMMANDS = ("fit", "predict", "describe", "compare", "methods", "backends")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit status.

    Messages that cannot be printed never stop a command: it finishes its work and writes its files. The status is 0 for
    success, 1 for a failed comparison, 2 for an error and 130 for Ctrl-C. If the command succeeds, but its output could
    not be printed, the status is 141 if the program that reads the output, such as `head`, stopped early, and 2 for
    another reason, such as a full disk. Standard output that was closed from the start is no error.
    """
    with forgiving_output() as out:
        try:
            return _final_status(out, _run(sys.argv[1:] if argv is None else argv))
        except SystemExit as ended:  # after --help and --version, and for invalid options
            raise SystemExit(_final_status(out, ended.code)) from None


def _final_status(out: Output, status: Any) -> Any:
    """Return the status of a command, or another one if it is 0 but the output could not be printed."""
    out.flush()
    if out.error is None or status != 0:
        return status
    if isinstance(out.error, BrokenPipeError):
        return 141
    reason = (out.error.strerror if isinstance(out.error, OSError) else None) or out.error
    print(f"agp: the output could not be printed ({reason}).", file=sys.stderr)
    return 2


def _run(argv: Sequence[str]) -> int:
    with _warnings_as_lines():
        load_plugins()
    parser = Parser(prog="agp")
    parser.text = HELP
    parser.add_argument("--version", action="version", version=f"agp {__version__}")
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND", parser_class=Parser)
    try:
        for name in COMMANDS:
            if argv and name in argv:  # other commands may need packages that are not installed
                importlib.import_module(f"agp.cli._{name}").add_parser(commands)
            else:
                commands.add_parser(name)
    except ImportError as error:
        print(f"agp: {in_shell(error)}", file=sys.stderr)
        return 2
    if argv and argv[0] not in COMMANDS and not argv[0].startswith("-"):
        parser.error(unknown_name_message("command", argv[0], COMMANDS).removesuffix("."))
    if argv and argv[0] in COMMANDS:
        commands.choices[argv[0]].check_options(argv[1:])
    else:
        parser.check_options(argv[:1])
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:  # argparse would name the program instead of the command
        commands.choices[arguments.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        with _warnings_as_lines():
            return arguments.run(arguments)
    except KeyboardInterrupt:
        print(f"agp: interrupted; {_describe_files(arguments.written) or 'nothing was written'}.", file=sys.stderr)
        return 130
    except ERRORS as error:
        if arguments.debug:
            traceback.print_exc()
        else:
            print(f"agp: {in_shell(error) or type(error).__name__}", file=sys.stderr)
        if written := _describe_files(arguments.written):
            print(f"agp: {written} before this error.", file=sys.stderr)
        return 2


def _describe_files(written: Sequence[Any]) -> str:
    """Return a phrase with the files that the command has written so far; empty if there are none."""
    if len(written) > 1:
        return f"{len(written):,} files up to {written[-1]} were written"
    return f"{written[0]} was written" if written else ""


@contextlib.contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Print each warning as one line on standard error, and ignore deprecation warnings."""

    def show(message: Any, category: type[Warning], *_: Any, **__: Any) -> None:
        if not issubclass(category, (DeprecationWarning, PendingDeprecationWarning, FutureWarning)):
            print(f"agp: warning: {in_shell(message)}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = show
        yield
