"""Compare agp's default estimators with other libraries on real tables, as their owners publish them.

``python asv_benchmarks/board.py run --out OUT`` measures the cells (a table, a split and a side), each in a new process
with one thread, and writes each result to a file in OUT. Run the same command again to continue. It runs the first half
of the tables; ``--final`` runs the second half, which is not for work on the defaults. ``python asv_benchmarks/board.py
page --out OUT`` writes docs/board.json from these files, and from it docs/board.md; with ``--final`` also what the
second half gives. Without ``--out``, it writes the page from the existing JSON file. ``python asv_benchmarks/board.py
tables`` lists the tables.
"""

import argparse
import json
import os
import sys
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


def run(a: argparse.Namespace) -> int:
    """Measure the cells that have no results yet."""
    from board_parts.sides import SIDES
    from board_parts.tables import TABLES
    from board_parts.work import Work

    half = [table for table in TABLES.values() if table.in_first_half != a.final]
    if others := [name for name in a.tables or () if name in TABLES and TABLES[name] not in half]:
        msg = f"{others[0]} is in the {'first' if a.final else 'second'} half; {'omit' if a.final else 'add'} --final."
        raise SystemExit(msg)
    if a.small and not a.tables:
        half = list({table.kind: table for table in reversed(half)}.values())[::-1]
    checkouts = checkouts_of(a.against)
    sides = chosen("--sides", a.sides, [*checkouts, *(name for name in SIDES if name not in checkouts)])
    names = chosen("--tables", a.tables, [table.name for table in half])
    work = Work(
        out=a.out.resolve(),
        tables=[TABLES[name] for name in names],
        sides=installed(sides),
        limit=a.limit,
        jobs=a.jobs,
        checkouts=checkouts,
        small=a.small,
        again=a.again,
    )
    failed = work.run()
    print(f"done; {failed} cells failed, which --again repeats." if failed else "done.")
    return 1 if failed else 0


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
    found = json.loads(path.read_text("utf-8"))
    if a.out:
        cells = [json.loads(one.read_text("utf-8")) for one in sorted(a.out.glob("*.json"))]
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


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the arguments of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run", help="measure the cells without results")
    one.add_argument("--out", type=Path, required=True, metavar="OUT", help="folder for the results, one file per cell")
    one.add_argument("--tables", nargs="+", metavar="NAME", help="only these tables, or patterns such as 'seattle-*'")
    one.add_argument("--sides", nargs="+", metavar="NAME", help="only these sides, or patterns")
    one.add_argument("--limit", type=int, default=LIMIT, metavar="S", help=f"CPU seconds of a cell (default: {LIMIT})")
    one.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="cells at a time (default: cores)")
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
