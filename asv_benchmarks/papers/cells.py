"""Cells of the papers' tables, measured one run after another, with a results file for each run.

A run that is interrupted, even by SIGKILL, continues from its last checkpoint when the command is repeated.
"""

import argparse
import json
import math
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np

import agp

STOPPED = 130
"""Exit status after Ctrl-C."""


@dataclass(frozen=True)
class Figure:
    """A figure of a paper, with its standard error over `runs` runs; None if the paper has no error."""

    value: float
    error: float | None = None


@dataclass(frozen=True)
class Cell:
    """A cell of a table: the method, its settings, and the paper's figures by score."""

    name: str
    """Name of the cell, such as "elevators-svgp-1024"."""
    theirs: dict[str, Figure]
    settings: dict[str, Any]
    """Arguments of the script's `measure`."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    full: bool = True
    """Whether size and number of steps are the paper's."""


@dataclass(frozen=True)
class Place:
    """Where a run reads its data and keeps its checkpoint."""

    data: Path
    checkpoint: Path
    small: bool = False
    """Whether this is a rehearsal with few rows and steps."""


Measure = Callable[..., dict[str, float]]
"""``measure(place, seed, **settings)`` returns the scores of a run."""


def train(place: Place, model: Any, X: Any, y: Any, *, steps: int, every: int = 200, **settings: Any) -> Any:
    """Train by `agp.train` with a checkpoint; return the result."""
    return agp.train(model, X, y, steps=steps, checkpoint=place.checkpoint, checkpoint_every=every, **settings)


def file_of(out: Path, paper: str, cell: Cell, seed: int) -> Path:
    """The results file of a run."""
    return out / f"{paper}.{cell.name}.{seed}.json"


def run(paper: str, cells: Sequence[Cell], measure: Measure, a: argparse.Namespace) -> None:
    """Measure the runs without results, one after another."""
    a.out.mkdir(parents=True, exist_ok=True)
    runs = [(cell, seed) for cell in cells for seed in cell.seeds[: a.seeds]]
    for done, (cell, seed) in enumerate(runs, 1):
        path = file_of(a.out, paper, cell, seed)
        if path.exists():
            continue
        place = Place(a.data, path.with_suffix(".safetensors"), a.small)
        scores = measure(place, seed, **cell.settings)
        if not all(map(math.isfinite, scores.values())):
            msg = f"{cell.name}, seed {seed}: the scores are not finite: {scores}"
            raise ValueError(msg)
        keep(path, {"paper": paper, "cell": cell.name, "seed": seed, "small": a.small, "scores": scores, **facts()})
        place.checkpoint.unlink(missing_ok=True)
        shown = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
        print(f"[{done}/{len(runs)}] {cell.name}, seed {seed}: {shown}", flush=True)


def keep(path: Path, result: dict[str, Any]) -> None:
    """Write a results file atomically, so that it is never incomplete."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def facts() -> dict[str, Any]:
    """The versions and the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.processor() or platform.machine()
    return {"versions": {"agp": agp.__version__, "numpy": np.__version__}, "processor": processor}


def main(paper: str, doc: str | None, cells: Sequence[Cell], measure: Measure) -> int:
    """Run a script; return its exit status."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of the .npz files")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="OUT", help="folder for the results, one file per run"
    )
    parser.add_argument("--cells", nargs="+", default=["*"], metavar="NAME", help="names or patterns of cells")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="at most this number of runs per cell")
    parser.add_argument(
        "--small", action="store_true", help="rehearsal with few rows and steps; figures are meaningless"
    )
    a = parser.parse_args()
    chosen = [cell for cell in cells if any(fnmatchcase(cell.name, pattern) for pattern in a.cells)]
    if not chosen:
        parser.error(f"no cell has a name like {' or '.join(a.cells)}; choose from {', '.join(x.name for x in cells)}")
    try:
        run(paper, chosen, measure, a)
    except KeyboardInterrupt:
        print("\nstopped; run the same command again to continue.")
        return STOPPED
    return 0
