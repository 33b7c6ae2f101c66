"""`agp.GPRegressor` with its defaults on a table."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from accelerator_parts.part import Figures, Part, Plan, Settings
from accelerator_parts.places import opened

TABLE = "AGP_TABLE"
"""Environment variable with the path of an .npz file that has X and y; without it, the table is synthetic."""
HELD_OUT = 0.1
"""Fraction of the rows that are predicted."""


def entries(plan: Plan) -> list[Settings]:
    """List entries for each library and dtype, and for NumPy on the processor."""
    rows = 500 if plan.small else 40_000
    found = [
        {"library": library, "dtype": dtype, "rows": rows}
        for library in plan.libraries
        for dtype in (("float64",) if plan.small else ("float64", "float32"))
    ]
    return found if "numpy" in plan.libraries else [*found, {"library": "numpy", "dtype": "float64", "rows": rows}]


def measured(*, library: str, dtype: str, rows: int, device: str, small: bool, seconds: float) -> Figures:
    """Time `fit` and `predict`, twice, and compute the errors of the predictions."""
    from agp import GPRegressor

    device = "cpu" if library == "numpy" else device
    opened(library, device)
    X, y = _table(rows)
    test = np.random.default_rng(0).permutation(len(X)) < HELD_OUT * len(X)
    figures: Figures = {}
    for name in ("first fit s", "fit s"):  # the first includes the start of the library and the compilation
        began = time.perf_counter()
        model = GPRegressor(backend=library, device=device, dtype=dtype).fit(X[~test], y[~test])
        figures[name] = time.perf_counter() - began
        if library == "numpy" and not small:
            break
    began = time.perf_counter()
    mean, deviation = model.predict(X[test], return_std=True)
    figures["predict s"] = time.perf_counter() - began
    error = (y[test] - mean) / deviation
    figures["RMSE"] = float(np.sqrt(np.mean((y[test] - mean) ** 2)))
    figures["NLPD"] = float(np.mean(0.5 * error**2 + np.log(deviation) + 0.5 * np.log(2.0 * np.pi)))
    return figures


def _table(rows: int) -> tuple[Any, Any]:
    """Inputs [rows, 8] and targets [rows] of the table in the environment, or synthetic ones."""
    if path := os.environ.get(TABLE):
        with np.load(Path(path)) as file:
            return file["X"][:rows], np.ravel(file["y"])[:rows]
    from benchmarks.common import problem

    from agp.backend import get_backend

    X, y = problem(get_backend("numpy"), None, rows=rows)
    return X, y[:, 0]


NOTE = f"""`GPRegressor(backend=, device=, dtype=)` with defaults on 40,000 rows, of which a tenth is held out. The
first fit includes the start of the library and compilation. The environment variable `{TABLE}` names an .npz file
with arrays X and y; without it, the table is synthetic. The rows of NumPy are from the processor of the same machine.
"""
PART = Part("GPRegressor with its defaults", NOTE, entries, measured, seconds=40.0, guess=12.0, small_guess=5.0, jax=4)
