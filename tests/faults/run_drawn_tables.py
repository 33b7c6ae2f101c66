"""Many drawn tables from the command line: ``python tests/faults/run_drawn_tables.py --count 10000 --jobs 2``.

Prints every new kind of defect with its table, and how many tables ended how. Exits with 1 if a table has a defect.
"""

import argparse
import faulthandler
import functools
import multiprocessing
import os
import pickle
import re
import sys
import time
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "backends")]
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import hypothesis  # noqa: E402
import numpy as np  # noqa: E402
from drawn_tables import judge_drawn_table  # noqa: E402
from table_strategies import tables  # noqa: E402

SHARE = 250
"""The number of tables that one process draws from one seed."""


def _pattern(text: str) -> str:
    """Replace quoted texts and numbers, so that equal causes count together."""
    return re.sub(r"'[^']*'|\"[^\"]*\"|[-+]?\d[\d.e+-]*", "#", text)[:160]


def _judge_share(
    seed: int, keep: Path | None
) -> list[tuple[str, float, tuple[float, ...], list[str], list[str], list[str]]]:
    """Judge `SHARE` tables of a seed, and pickle those with defects into a folder."""
    faulthandler.enable()
    found = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=SHARE,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(tables())
    def judge(table):  # type: ignore[no-untyped-def]
        verdict = judge_drawn_table(table)
        shown = repr(table) if verdict.defects else table.door
        if keep and verdict.defects:
            (keep / f"{seed}-{len(found)}.pickle").write_bytes(pickle.dumps(table))
        found.append((shown, verdict.seconds, verdict.ratios, verdict.errors, verdict.defects, verdict.warned))

    judge()
    return found


def main() -> int:
    """Judge tables in parallel, and print a report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=SHARE, help="how many tables")
    parser.add_argument("--first", type=int, default=0, help="the first seed; each seed stands for 250 tables")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--keep", type=Path, help="a folder for pickles of the tables with defects")
    options = parser.parse_args()
    seeds = range(options.first, options.first + -(-options.count // SHARE))
    start, rows = time.perf_counter(), []
    counts = {title: Counter() for title in ("defects", "warnings", "errors")}
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for part in pool.imap_unordered(functools.partial(_judge_share, keep=options.keep), seeds):
            rows += part
            for shown, _, _, errors, defects, warned in part:
                for text in defects:
                    if not counts["defects"][_pattern(text)]:
                        print(text, shown, sep="\n  ", end="\n\n", flush=True)
                    counts["defects"][_pattern(text)] += 1
                counts["errors"].update({_pattern(text) for text in errors})
                counts["warnings"].update({_pattern(text) for text in warned})
            print(f"{len(rows):,} tables after {time.perf_counter() - start:.0f} s", flush=True)
    seconds, ratios = np.asarray([row[1] for row in rows]), np.asarray([row[2] for row in rows])
    broken = sum(bool(row[4]) for row in rows)
    fitted = sum(not any(text.startswith(("fit:", "agp fit:")) for text in row[3]) for row in rows)
    print(
        f"{len(rows):,} tables: {fitted} trained, {broken} with defects; {seconds.mean():.2f} s of CPU time on average"
    )
    print("slowest:", ", ".join(f"{x:.1f} s" for x in np.sort(seconds)[-5:]))
    for what, one in zip(("mean", "standard deviation"), ratios.T, strict=True):
        shown = ", ".join(f"{x:.2f}" for x in np.nanquantile(one, [0.5, 0.9, 0.99, 1.0]))
        print(f"quantiles 0.5, 0.9, 0.99, 1 of the largest {what} in units of the range of the targets: {shown}")
    for title, those in counts.items():
        print(f"{title}, by the number of tables:")
        for text, count in those.most_common(60):
            print(f"{count:6,}  {text}")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
