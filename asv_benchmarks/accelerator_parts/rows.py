"""A million rows: SGPR, CaGP-Opt, and predictions from nearest rows; time and memory."""

import dataclasses
from collections.abc import Callable
from typing import Any

from benchmarks.cagp import model_of
from benchmarks.common import finished, full_model, problem

from accelerator_parts.part import Figures, Part, Plan, Settings
from accelerator_parts.places import forget_peak, opened, timed

MEMORY = 4096
"""Memory budget for working arrays in MiB."""
NEW_ROWS = 10_000
"""Number of rows that are predicted from their nearest rows."""


def entries(plan: Plan) -> list[Settings]:
    """List entries for each library, model and dtype."""
    rows = 2000 if plan.small else 1_000_000
    return [
        {"library": library, "model": model, "dtype": dtype, "rows": rows}
        for library in plan.libraries
        for model in MODELS
        for dtype in (("float64",) if plan.small else ("float32", "float64"))
    ]


def measured(*, library: str, model: str, dtype: str, rows: int, device: str, small: bool, seconds: float) -> Figures:
    """Time the bound with its gradient, or predictions, and measure the peak memory."""
    B = opened(library, device)
    forget_peak(library)
    run, X = MODELS[model](B, device, rows, dtype, small)
    times = timed(B, run, small=small)
    return times if device == "cpu" else times | {"peak MiB": B.peak_memory(X)}


def _sgpr(B: Any, device: str, rows: int, dtype: str, small: bool) -> tuple[Callable[[], Any], Any]:
    X, y = problem(B, device, rows=rows, dtype=dtype)
    return _bound(B, full_model("sgpr", X, y, 32 if small else 1024), X, y), X


def _cagp(B: Any, device: str, rows: int, dtype: str, small: bool) -> tuple[Callable[[], Any], Any]:
    model, X, y = model_of(B, device, rows, 128 if small else 4096, dtype)
    return _bound(B, model, X, y), X


def _bound(B: Any, model: Any, X: Any, y: Any) -> Callable[[], Any]:
    """The bound with its closed-form gradient."""
    from agp import value_and_gradient

    compiled = B.compile(lambda model, X, y: value_and_gradient(model, X, y, memory=float(MEMORY)))

    def run() -> Any:
        bound, slopes = compiled(model, X, y)
        finished(B, slopes)
        return bound

    return run


def _nearest(B: Any, device: str, rows: int, dtype: str, small: bool) -> tuple[Callable[[], Any], Any]:
    """Predictions of an NNGP whose own neighbours, which predictions do not use, are not searched."""
    from agp import NNGP

    X, y = problem(B, device, rows=rows, dtype=dtype)
    start = NNGP.from_data(X[:100, :], y[:100, :])
    predictor = dataclasses.replace(start, X=X, y=y, sets=None).predictor()
    new, _ = problem(B, device, rows=100 if small else NEW_ROWS, dtype=dtype)
    return lambda: predictor.predict(new + 1e-3).variance, X


MODELS: dict[str, Callable[..., tuple[Callable[[], Any], Any]]] = {
    "sgpr": _sgpr,
    "cagp-opt": _cagp,
    "nngp": _nearest,
}

NOTE = f"""For SGPR with M = 1,024 and CaGP-Opt with 128 learned actions that cover 4,096 rows: the bound with its
closed-form gradient on all rows, with {MEMORY} MiB for working arrays. For NNGP with 50 neighbours: predictions of
{NEW_ROWS:,} rows, including the search for their nearest rows. The peak memory is that of the device's allocator and
includes the data."""
PART = Part("A million rows", NOTE, entries, measured, guess=6.0, small_guess=3.0, jax=3.0)
