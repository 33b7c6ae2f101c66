"""Compare agp's default estimators with other libraries on real tables, as their owners publish them.

``python asv_benchmarks/board.py run --out OUT`` measures the cells (a table, a split and a side), each in a new process
with one thread, and writes each result to a file in OUT. Run the same command again to continue. It runs the first half
of the tables; ``--final`` runs the second half, which is not for work on the defaults. ``python asv_benchmarks/board.py
page --out OUT`` writes docs/board.json from these files, and from it docs/board.md; with ``--final`` also what the
second half gives. Without ``--out``, it writes the page from the existing JSON file. ``python asv_benchmarks/board.py
tables`` lists the tables.
"""

import argparse
import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from options import ROOT, checkouts_of, chosen

LIMIT = 180
"""Default limit of the CPU seconds of a cell."""
STOPPED = 130
"""Exit status after Ctrl-C."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit status, which is 1 if a cell failed."""
    a = parsed(arguments)
    try:
        return {"run": run, "page": make_page, "tables": list_tables}[a.command](a)
    except KeyboardInterrupt:
        print("\nstopped; run the same command again to continue.")
        return STOPPED
    except ValueError as error:
        raise SystemExit(str(error)) from error


def run(a: argparse.Namespace) -> int:
    """Measure the cells that have no results yet."""
    from board_parts.sides import BASELINE, SIDES
    from board_parts.tables import TABLES
    from board_parts.work import Work

    half = [table for table in TABLES.values() if table.in_first_half != a.final]
    for pattern in a.tables or ():
        found = [table for name, table in TABLES.items() if fnmatchcase(name, pattern)]
        if found and not any(table in half for table in found):
            where = "the first half; omit" if a.final else "the second half; add"
            raise SystemExit(f"{found[0].name} is in {where} --final.")
    if a.small and not a.tables:  # the first table of each kind
        half = [table for i, table in enumerate(half) if table.kind not in [other.kind for other in half[:i]]]
    checkouts = checkouts_of(a.against)
    sides = chosen("--sides", a.sides, [*checkouts, *(name for name in SIDES if name not in checkouts)])
    names = chosen("--tables", a.tables, [table.name for table in half])
    if a.out.exists() and not a.out.is_dir():
        raise SystemExit(f"--out is {a.out}, which is not a folder; name a folder for the results.")
    a.out.mkdir(parents=True, exist_ok=True)
    work = Work(
        out=a.out.resolve(),
        tables=[TABLES[name] for name in names],
        sides=installed(list(dict.fromkeys([*sides, BASELINE]))),
        limit=a.limit,
        jobs=a.jobs,
        checkouts=checkouts,
        small=a.small,
        again=a.again,
    )
    with alone(a.out):
        failed = work.run()
    print(f"done; {failed} cells failed, which --again repeats." if failed else "done.")
    return 1 if failed else 0


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Context in which no other command writes results to the folder."""
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another command writes results to {out}; wait for it, or use another folder.") from None
        yield


def installed(sides: list[str]) -> list[str]:
    """The sides whose libraries are installed; the others are named."""
    from board_parts.sides import side_of

    for name in sides:
        if not side_of(name).is_installed:
            print(
                f'{name} is left out, because {side_of(name).library} is not installed: pip install "array-gp[board]"'
            )
    return [name for name in sides if side_of(name).is_installed]


def make_page(a: argparse.Namespace) -> int:
    """Write the JSON file, if results are given, and the page."""
    from board_parts import document, page

    path = a.root / "docs" / "board.json"
    if not path.exists():
        raise SystemExit(f"--root is {a.root}, but {path} does not exist; name a checkout of agp.")
    found = json.loads(path.read_text("utf-8"))
    if a.out:
        cells = [json.loads(one.read_text("utf-8")) for one in sorted(a.out.glob("*.json"))]
        if not cells:
            raise SystemExit(f"--out is {a.out}, but there are no results.")
        found = document.updated(found, cells, final=a.final)
        path.write_text(document.as_text(found), encoding="utf-8")
    for name, passages in page.passages(found).items():
        path = a.root / name
        path.write_text(page.written(path.read_text("utf-8"), passages), encoding="utf-8")
    return 0


def list_tables(_: argparse.Namespace) -> int:
    """Print a line for each table."""
    from board_parts.tables import TABLES, traits

    for table in TABLES.values():
        frame = table.frame()
        found = [
            table.name,
            table.kind,
            f"{len(frame):,} x {frame.shape[1] - 1}",
            ", ".join(sorted(traits(table, frame))),
        ]
        print("  ".join([*found, "" if table.in_first_half else "(second half)"]).rstrip())
    return 0


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1.")
    return int(text)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the arguments of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run", help="measure the cells without results")
    one.add_argument("--out", type=Path, required=True, metavar="OUT", help="folder for the results, one file per cell")
    one.add_argument("--tables", nargs="+", metavar="NAME", help="only these tables, or patterns such as 'seattle-*'")
    one.add_argument("--sides", nargs="+", metavar="NAME", help="only these sides, or patterns")
    one.add_argument(
        "--limit", type=positive, default=LIMIT, metavar="S", help=f"CPU seconds of a cell (default: {LIMIT})"
    )
    one.add_argument(
        "--jobs", type=positive, default=os.cpu_count(), metavar="N", help="cells at a time (default: cores)"
    )
    one.add_argument("--against", nargs="+", type=Path, default=[], metavar="CHECKOUT", help="other checkouts of agp")
    one.add_argument("--again", action="store_true", help="repeat cells that failed")
    one.add_argument("--small", action="store_true", help="rehearsal on a few rows; its figures are meaningless")
    one.add_argument("--final", action="store_true", help="the second half of the tables")
    one = commands.add_parser("page", help="write the page")
    one.add_argument("--out", type=Path, metavar="OUT", help="results to write to docs/board.json first")
    one.add_argument("--final", action="store_true", help="take what the second half gives, too")
    one.add_argument("--root", type=Path, default=ROOT, help="folder of docs and README.md (default: this checkout)")
    commands.add_parser("tables", help="list the tables")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
