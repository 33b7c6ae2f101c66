"""Many hostile regressors from the command line: ``python tests/faults/run_hostile_targets.py --count 3000``."""

import argparse
import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "backends")]
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

from hostile_targets import drawn_regression, judged_regression  # noqa: E402


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="how many problems")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    a = parser.parse_args()
    broken = 0
    for seed in range(a.first, a.first + a.count):
        if defects := judged_regression(seed)[1]:
            broken += 1
            print(seed, drawn_regression(seed).family, *defects, sep="\n  ", flush=True)
    print(f"{a.count:,} problems, {broken:,} with defects")
    sys.exit(bool(broken))


if __name__ == "__main__":
    _main()
