"""What the defaults reach: seconds and scores of agp's estimators beside other libraries, table by table.

``python asv_benchmarks/defaults.py run --out OUT --data DIR`` measures cell by cell, each in a process of its own with
one thread, and keeps each in a file in OUT: the same command goes on where the last one stopped.
``python asv_benchmarks/defaults.py page --out OUT`` makes docs/defaults.json of these files, and from it the tables of
docs/defaults.md and of the README; without ``--out`` it makes the tables anew.
"""

import argparse
import json
import os
import shutil
import sys
from fnmatch import fnmatchcase
from pathlib import Path

from defaults_parts import page
from defaults_parts.sides import AGAINST, EXACT_ROWS, SIDES

ROOT = Path(__file__).parents[1]
STOPPED = 130
"""The exit status after Ctrl-C."""


def main(arguments: list[str] | None = None) -> int:
    """The command; the exit status is 1 where a cell failed."""
    a = parsed(arguments)
    try:
        return run(a) if a.command == "run" else make_page(a)
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on.")
        return STOPPED


def run(a: argparse.Namespace) -> int:
    """Measure the cells that are lacking."""
    from defaults_parts.tables import tables  # a page needs no agp
    from defaults_parts.work import Work, checkouts_of

    if a.data and not a.data.is_dir():
        msg = f"--data is {a.data}, but there is no such folder."
        raise SystemExit(msg)
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
    print(f"done; {failed} cells failed, --again tries them again." if failed else "done.")
    return 1 if failed else 0


def interpreter(name: str | None) -> str | None:
    """The whole path of the interpreter of the peers, if one is named: cells have working directories of their own."""
    if name is None:
        return None
    if (found := shutil.which(name)) is None:
        msg = f"--peer-python is {name}, which is no program."
        raise SystemExit(msg)
    return os.path.abspath(found)  # a link as it is, since it says which environment it belongs to


def is_peer(name: str) -> bool:
    """Whether a side runs in the interpreter of the peers."""
    return not name.startswith(AGAINST) and SIDES[name].is_peer


def chosen(option: str, patterns: list[str] | None, known: list[str]) -> list[str]:
    """The names that patterns fit, in the order of these; all of them without patterns."""
    unknown = [pattern for pattern in patterns or [] if not any(fnmatchcase(name, pattern) for name in known)]
    if unknown:
        msg = f"{option} names {unknown[0]}, but known are {', '.join(known)}."
        raise SystemExit(msg)
    if patterns is None:
        return known
    return list(dict.fromkeys(name for pattern in patterns for name in known if fnmatchcase(name, pattern)))


def make_page(a: argparse.Namespace) -> int:
    """Write the JSON, if there are new results, and the tables."""
    document = a.root / "docs" / "defaults.json"
    if a.out:
        found = page.collect_reports(json.loads(path.read_text("utf-8")) for path in sorted(a.out.glob("*.json")))
        document.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    found = json.loads(document.read_text("utf-8"))
    for name, inside in (("docs/defaults.md", page.tables(found)), ("README.md", page.short(found))):
        path = a.root / name
        path.write_text(page.written(path.read_text("utf-8"), inside), encoding="utf-8")
    return 0


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """What the command was given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run", help="measure what is lacking")
    one.add_argument("--out", type=Path, required=True, metavar="OUT", help="a folder with a file for each cell")
    one.add_argument("--data", type=Path, metavar="DIR", help=".npz files of X, y, and test_masks if there are any")
    one.add_argument("--tables", nargs="+", metavar="NAME", help="only these; patterns such as 'friedman-*' will do")
    one.add_argument("--sides", nargs="+", metavar="NAME", help=f"only these: {', '.join(SIDES)}, {AGAINST}FOLDER")
    one.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="S")
    one.add_argument("--splits", nargs="+", type=int, default=[0], metavar="S")
    one.add_argument("--large", action="store_true", help="the table of 1,000,000 rows, too")
    one.add_argument("--peer-python", metavar="PYTHON", help="an interpreter with gpytorch, for its sides")
    one.add_argument("--against", nargs="+", type=Path, default=[], metavar="CHECKOUT", help="of agp, beside this one")
    one.add_argument("--exact-rows", type=int, default=EXACT_ROWS, metavar="N", help="the most for gpytorch-exact")
    one.add_argument("--again", action="store_true", help="try cells that failed again")
    one.add_argument("--small", action="store_true", help="a rehearsal on a few rows, whose figures mean nothing")
    one = commands.add_parser("page", help="make the page and the README's table")
    one.add_argument("--out", type=Path, metavar="OUT", help="results to keep in docs/defaults.json first")
    one.add_argument("--root", type=Path, default=ROOT, help="where docs and README.md are (default: this checkout)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
