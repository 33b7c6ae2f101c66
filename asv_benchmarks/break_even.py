"""Compute on which cards and at which M a step of R-SVGP takes less time than one of W-SVGP or L-SVGP.

``python asv_benchmarks/break_even.py measure --data DIR --tables kin40k elevators bike`` trains R-SVGP on a CPU and
counts the steps of its inversion.
"""

import argparse
import os
import sys
from dataclasses import asdict
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

from options import ROOT
from results import commit, machine, read_result, write_result

DOCUMENT = ROOT / "docs" / "break-even.json"


def measure(a):
    from break_even_parts import iterations

    document = read_result(a.json) or {}
    found = document.setdefault("iterations", [])
    for cell in iterations.cells([*a.tables, iterations.SYNTHETIC], a.sizes, a.steps, a.large_steps):
        if any(asdict(cell).items() <= one.items() for one in found):
            continue
        found.append(iterations.measured(cell, a.data) | {"commit": commit(ROOT)})
        document["machine"] = machine()
        write_result(a.json, document)
        print({k: v for k, v in found[-1].items()}, flush=True)
    return 0

def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("measure")
    one.add_argument("--json", type=Path, default=DOCUMENT)
    one.add_argument("--data", type=Path)
    one.add_argument("--tables", nargs="*", default=[])
    one.add_argument("--sizes", nargs="+", type=int, default=[64, 128, 256, 512])
    one.add_argument("--steps", type=int, default=1000)
    one.add_argument("--large-steps", type=int, default=300)
    a = parser.parse_args(arguments)
    return measure(a)

if __name__ == "__main__":
    sys.exit(main())
