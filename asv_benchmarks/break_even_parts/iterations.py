"""Numbers of inverse steps in training runs of R-SVGP with the default updates, on a CPU."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.common import problem, protocol

import agp
from agp.backend import get_backend, to_numpy
from agp.linalg import PRECISIONS, rounding_error
from agp.posteriors import Relaxed
from agp.training import recipe
from agp.updates import InverseUpdate

SYNTHETIC = "synthetic"
"""Name of the problem of `benchmarks/common.py`."""
ROWS = 16_384
"""Number of rows of the synthetic problem."""
BATCH = 1024
LEAKS = {"bike": (15, 16)}
"""Columns of data sets from which the targets can be computed. They are left out."""
FIRST, LAST = 50, 100
"""Sizes of the first and the last part of a run."""
LARGEST_SPECTRUM = 1024
"""The largest M for which the condition number is computed."""


@dataclass(frozen=True)
class Cell:
    """One training run."""

    table: str
    num_inducing: int
    dtype: str
    precision: str | None
    """The precision of the products of the inversion, if it is lower than that of the model."""
    steps: int


def cells(tables: list[str], sizes: list[int], steps: int, large_steps: int) -> list[Cell]:
    """The runs in float64, in float32, and in float64 with an inversion in float32; small sizes come first."""
    kinds = (("float64", None), ("float32", None), ("float64", "float32"))
    return [
        Cell(table, M, dtype, precision, steps if M <= 512 else large_steps)
        for M in sizes
        for table in tables
        for dtype, precision in kinds
    ]


def rows_of(table: str, folder: Path | None) -> tuple[Any, Any]:
    """Inputs [N, D] and targets [N, 1] with zero mean and unit variance, in float64."""
    if table == SYNTHETIC:
        X, y = problem(get_backend("numpy"), "cpu", rows=ROWS)
    else:
        path = Path(folder or ".") / f"{table}.npz"
        if not path.is_file():
            raise SystemExit(f"{path} does not exist; store X [N, D] and y [N] of {table} in a file with this name.")
        with np.load(path) as file:
            X, y = file["X"].astype(np.float64), file["y"].astype(np.float64)[:, None]
        X = np.delete(X, LEAKS.get(table, ()), axis=1)
    spread = X.std(axis=0)
    X = (X - X.mean(axis=0)) / np.where(spread > 1e-10, spread, 1.0)
    return X, (y - y.mean()) / y.std()


def measured(cell: Cell, folder: Path | None) -> dict[str, Any]:
    """Train a model; return the numbers of inverse steps, and what the inverse factor is like at the end."""
    X, y = (x.astype(cell.dtype) for x in rows_of(cell.table, folder))
    model = agp.SVGP.from_data(X, y, posterior=Relaxed, num_inducing=cell.num_inducing)
    updates = [
        InverseUpdate(precision=cell.precision) if isinstance(update, InverseUpdate) else update
        for update in recipe(model, cell.steps)
    ]
    began = time.process_time()
    result = agp.train(model, X, y, steps=cell.steps, batch_size=min(BATCH, len(y)), updates=updates)
    seconds = time.process_time() - began
    found = asdict(cell) | {"rows": len(y), "columns": X.shape[1], "seconds": round(seconds, 1)}
    return found | summary(result.trace) | state(result.model.process)


def summary(trace: dict[str, Any]) -> dict[str, Any]:
    """Means of the inverse steps in the first 50 training steps, in steps 51 to 500, and in the last 100.

    There are also the largest number, numbers of restarts and fallbacks, and residuals. There must be more than 50
    training steps.
    """
    steps = np.asarray(trace["inverse_steps"])
    residual = np.asarray(trace["residual"])
    return {
        "first": round(float(np.mean(steps[:FIRST])), 3),
        "middle": round(float(np.mean(steps[FIRST : 10 * FIRST])), 3),
        "last": round(float(np.mean(steps[-LAST:])), 3),
        "mean": round(float(np.mean(steps)), 3),
        "most": int(np.max(steps)),
        "restarts": int(np.sum(trace["restarts"])),
        "fallbacks": int(np.sum(trace.get("fallbacks", 0.0))),
        "residual": float(f"{np.median(residual[-LAST:]):.2g}"),
        "largest_residual": float(f"{np.max(residual):.2g}"),
    }


def state(process: Any) -> dict[str, Any]:
    """The condition number of the matrix A that is inverted, and the rounding errors of products in lower precisions.

    The estimate of these errors is that of `agp.linalg`. Steps in a lower precision are taken while it is below 2.5e-3.
    """
    q = process.posterior
    A = to_numpy(q.inverse_target(protocol(process, "matrix_to_invert")())).astype(np.float64)
    L = to_numpy(q.inverse_factor).astype(np.float64)
    d = np.sum(L * L, axis=1)
    single = PRECISIONS["float32"]
    found: dict[str, Any] = {
        f"rounding_{name}": float(f"{float(rounding_error(A * A, d, unit, single)):.2g}")
        for name, unit in PRECISIONS.items()
    }
    if len(A) <= LARGEST_SPECTRUM:
        values = np.linalg.eigvalsh(A)
        found["condition"] = float(f"{values[-1] / values[0]:.2g}")
    return found
