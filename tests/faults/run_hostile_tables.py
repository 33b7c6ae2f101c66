"""Many hostile tables from the command line: ``python tests/faults/run_hostile_tables.py --count 3000``.

Prints every defect with its seed, and how many tables ended how. Exits with 1 if a table has a defect, or if 1 % or
more of the ordinary tables (``--ordinary``) cause a warning. One table again, with all that was drawn: ``--show SEED``.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "backends")]
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402
from hostile_tables import Outcome, drawn_table, judged_ordinary, judged_table, ordinary_table  # noqa: E402

MAX_WARNED = 0.01
"""The fraction of ordinary tables that may cause a warning."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="how many tables")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--ordinary", action="store_true", help="ordinary tables, which must not cause warnings")
    parser.add_argument("--show", type=int, help="one table of this seed: what was drawn, and what came of it")
    return parser.parse_args()


def _outcomes(judge: Callable[[int], Outcome], seeds: range, jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(judge, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(judge, seeds, chunksize=5)


def _words(message: str) -> str:
    """The message without numbers and names, so that equal causes count together."""
    first = message.partition(";")[0]
    return " ".join(part for part in first.split() if not any(c.isdigit() or c == "'" for c in part))[:110]


def _report(found: list[Outcome], seconds: float, *, ordinary: bool) -> None:
    broken, warned = [x for x in found if x.defects], [x for x in found if x.warned]
    refused = [x for x in found if any(text.startswith("fit: ") for text in x.errors)]
    print(f"\n{len(found):,} {'ordinary' if ordinary else 'hostile'} tables in {seconds:.0f} s: ", end="")
    print(f"{len(broken):,} with defects, {len(refused):,} refused, {len(warned):,} with warnings")
    times = np.asarray([x.seconds for x in found])
    slowest = ", ".join(f"seed {x.seed} {x.seconds:.1f} s" for x in sorted(found, key=lambda x: -x.seconds)[:5])
    print(f"CPU time: {times.mean():.2f} s on average; slowest: {slowest}")
    ratios = np.asarray([x.ratio for x in found if not np.isnan(x.ratio)])
    print("largest numbers in units of the range of the targets, per table:")
    for low, high in ((0, 3), (3, 10), (10, 30), (30, 100), (100, np.inf)):
        print(f"  {low:g} to {high:g}: {np.count_nonzero((ratios >= low) & (ratios < high)):,}")
    for title, texts in (
        ("defects", [{text.partition(": ")[0] for text in x.defects} for x in found]),
        ("warnings", [{_words(text) for text in x.warned} for x in found]),
        ("errors", [{_words(text) for text in x.errors} for x in found]),
    ):
        counts = Counter(text for those in texts for text in those)
        print(f"{title}, by the number of tables:")
        for text, count in counts.most_common(40):
            print(f"{count:6,}  {text}")


def main() -> int:
    options = _arguments()
    draw, judge = (ordinary_table, judged_ordinary) if options.ordinary else (drawn_table, judged_table)
    if options.show is not None:
        table, outcome = draw(options.show), judge(options.show)
        print(table, table.X, table.y, *outcome, sep="\n")
        return int(bool(outcome.defects))
    start, found = time.perf_counter(), []
    for one in _outcomes(judge, range(options.first, options.first + options.count), options.jobs):
        found.append(one)
        told = [*one.defects, *(one.warned if options.ordinary else ())]
        if told:
            print(f"seed {one.seed}: {one.about}", *told, sep="\n  ", flush=True)
        if len(found) % 100 == 0:
            print(f"{len(found):,} after {time.perf_counter() - start:.0f} s", flush=True)
    _report(found, time.perf_counter() - start, ordinary=options.ordinary)
    warned = sum(bool(x.warned) for x in found) if options.ordinary else 0
    return int(any(x.defects for x in found) or warned >= MAX_WARNED * len(found) > 0)


if __name__ == "__main__":
    sys.exit(main())
