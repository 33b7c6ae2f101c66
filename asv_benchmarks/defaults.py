"""Compare scores and CPU time of agp's default estimators with those of other libraries on many tables.

``python asv_benchmarks/defaults.py run --out OUT --data DIR`` measures one cell after another, each in a new process
with one thread, and writes each result to a file in OUT. Run the same command again to continue. ``python
asv_benchmarks/defaults.py page --out OUT`` writes docs/defaults.json from these files, and from it the tables of
docs/defaults.md. Without ``--out``, it writes the tables from the existing JSON file.
"""

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

from defaults_parts import page
from defaults_parts.sides import EXACT_ROWS, SIDES
from options import AGAINST, ROOT, checkouts_of, chosen

STOPPED = 130
"""Exit status after Ctrl-C."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit status, which is 1 if a cell failed."""
    a = parsed(arguments)
    try:
        return run(a) if a.command == "run" else make_page(a)
    except KeyboardInterrupt:
        print("\nstopped; run the same command again to continue.")
        return STOPPED


def run(a: argparse.Namespace) -> int:
    """Measure the cells that have no results yet."""
    from defaults_parts.tables import tables  # the page does not need agp
    from defaults_parts.work import Work

    if a.data and not a.data.is_dir():
        raise SystemExit(f"--data is {a.data}, but there is no folder with this name.")
    peer_python = interpreter(a.peer_python)
    known, checkouts = tables(a.data, large=a.large), checkouts_of(a.against)
    sides = [name for name in (*checkouts, *SIDES) if peer_python or name == "agp" or not is_peer(name)]
    work = Work(
        out=a.out.resolve(),
        tables=[known[name] for name in chosen("--tables", a.tables, list(known))],
        splits=a.splits,
        seeds=a.seeds,
        sides=chosen("--sides", a.sides, list(dict.fromkeys(sides))),
        peer_python=peer_python,
        checkouts=checkouts,
        exact_rows=a.exact_rows,
        small=a.small,
        again=a.again,
    )
    failed = work.run()
    print(f"done; {failed} cells failed, which --again repeats." if failed else "done.")
    return 1 if failed else 0


def interpreter(name: str | None) -> str | None:
    """Absolute path of the interpreter for the other libraries, because cells run in other working directories."""
    if name is None:
        return None
    if (found := shutil.which(name)) is None:
        raise SystemExit(f"--peer-python is {name}, but there is no program with this name.")
    return os.path.abspath(found)  # links are kept, because the path determines the environment


def is_peer(name: str) -> bool:
    """Whether a side runs in the interpreter for the other libraries."""
    return not name.startswith(AGAINST) and SIDES[name].is_peer


def make_page(a: argparse.Namespace) -> int:
    """Write the JSON file, if results are given, and the tables."""
    document = a.root / "docs" / "defaults.json"
    if a.out:
        found = page.collect_reports(json.loads(path.read_text("utf-8")) for path in sorted(a.out.glob("*.json")))
        document.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    found = json.loads(document.read_text("utf-8"))
    path = a.root / "docs" / "defaults.md"
    path.write_text(page.written(path.read_text("utf-8"), page.tables(found)), encoding="utf-8")
    return 0


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the arguments of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run", help="measure the cells without results")
    one.add_argument("--out", type=Path, required=True, metavar="OUT", help="folder for the results, one file per cell")
    one.add_argument("--data", type=Path, metavar="DIR", help=".npz files with X, y and optionally test_masks")
    one.add_argument("--tables", nargs="+", metavar="NAME", help="only these tables, or patterns such as 'friedman-*'")
    one.add_argument("--sides", nargs="+", metavar="NAME", help=f"only some of {', '.join(SIDES)}, {AGAINST}FOLDER")
    one.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="S")
    one.add_argument("--splits", nargs="+", type=int, default=[0], metavar="S")
    one.add_argument("--large", action="store_true", help="include the table of 1,000,000 rows")
    one.add_argument("--peer-python", metavar="PYTHON", help="interpreter with gpytorch")
    one.add_argument("--against", nargs="+", type=Path, default=[], metavar="CHECKOUT", help="other checkouts of agp")
    one.add_argument("--exact-rows", type=int, default=EXACT_ROWS, metavar="N", help="row limit of gpytorch-exact")
    one.add_argument("--again", action="store_true", help="repeat cells that failed")
    one.add_argument("--small", action="store_true", help="rehearsal on a few rows; its figures are meaningless")
    one = commands.add_parser("page", help="write the page")
    one.add_argument("--out", type=Path, metavar="OUT", help="results to write to docs/defaults.json first")
    one.add_argument("--root", type=Path, default=ROOT, help="folder of docs (default: this checkout)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
