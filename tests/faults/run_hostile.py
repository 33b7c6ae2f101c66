"""Many hostile problems from the command line: ``python tests/faults/run_hostile.py --count 10000 --jobs 2``.

Prints how many ended how, by model and by cause, and every defect with its seed; exits with 1 if there was any. One
problem again, with all that was drawn: ``--show SEED``.
"""

import argparse
import contextlib
import multiprocessing
import os
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "backends")]
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # a compiled operation runs a few times

from hostile_judge import Outcome, judged  # noqa: E402
from hostile_problems import drawn  # noqa: E402

from agp.backend import get_backend  # noqa: E402

DEVICES = {"array_api_strict": "device1"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="how many problems")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--backend", default="numpy", help="numpy, torch, jax or array_api_strict")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--model", help="the name of a model, such as nngp or vif, for all problems")
    parser.add_argument("--tiny", action="store_true", help="few and small shapes, for libraries that compile each")
    parser.add_argument("--show", type=int, help="one problem of this seed: what was drawn, and what came of it")
    return parser.parse_args()


def _judged(seed: int, options: argparse.Namespace) -> Outcome:
    return judged(seed, options.backend, DEVICES.get(options.backend), tiny=options.tiny, model=options.model)


@contextlib.contextmanager
def eager(backend: str) -> Any:
    """Training steps are not compiled: each problem has its own, and JAX would do little else."""
    plugin: Any = type(get_backend(backend))
    compiled, plugin.compile = plugin.compile, lambda _self, f: f
    try:
        yield
    finally:
        plugin.compile = compiled


def outcomes(options: argparse.Namespace) -> Any:
    seeds = range(options.first, options.first + options.count)
    if options.jobs > 1:
        with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
            yield from pool.imap_unordered(partial(_judged, options=options), seeds, chunksize=10)
        return
    with eager(options.backend):
        yield from (_judged(seed, options) for seed in seeds)


def main() -> int:
    options = arguments()
    if options.show is not None:
        with eager(options.backend):
            print(
                drawn(options.show, tiny=options.tiny, model=options.model).about,
                _judged(options.show, options),
                sep="\n",
            )
        return 0
    start, found = time.perf_counter(), []
    for one in outcomes(options):
        found.append(one)
        for where, what in one.defects:
            print(f"seed {one.seed} ({one.model}), {where}: {what}", flush=True)
        if len(found) % 100 == 0:
            print(f"{len(found)} after {time.perf_counter() - start:.0f} s", flush=True)
    report(found, options.backend, time.perf_counter() - start)
    return int(any(one.defects for one in found))


def report(found: list[Outcome], backend: str, seconds: float) -> None:
    """Counts by outcome, by model and by cause."""
    defects, errors = [x for x in found if x.defects], [x for x in found if x.errors and not x.defects]
    print(f"\n{len(found)} problems with {backend} in {seconds:.0f} s: {len(defects)} with defects, ", end="")
    print(f"{len(errors)} with errors that say why, {len(found) - len(defects) - len(errors)} sound throughout", end="")
    print(f"; {sum(x.repairs > 0 for x in found)} with repairs")
    slowest = sorted(found, key=lambda x: -x.seconds)[:5]
    print("slowest:", ", ".join(f"seed {x.seed} ({x.model}) {x.seconds:.1f} s" for x in slowest))
    models = Counter(x.model for x in found)
    failed = Counter(x.model for x in errors)
    print("by model:", ", ".join(f"{name} {failed[name]}/{models[name]}" for name in sorted(models)))
    causes = Counter(
        (where.partition(": ")[2] or where, kind, words(text)) for x in found for where, kind, text in x.errors
    )
    for (where, kind, text), times in causes.most_common(40):
        print(f"{times:5d}  {where}: {kind}: {text}")


def words(message: str) -> str:
    """The message without its numbers, so that equal causes count together."""
    return " ".join(part for part in message.split() if not any(c.isdigit() for c in part))[:150]


if __name__ == "__main__":
    sys.exit(main())
