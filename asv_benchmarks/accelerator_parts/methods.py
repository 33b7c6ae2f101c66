"""Every method on the device: differences from NumPy in bounds, gradients, training steps and predictions."""

from typing import Any

import numpy as np

from accelerator_parts.part import Figures, Part, Plan, Settings
from accelerator_parts.places import opened

STEPS = 3
"""Number of training steps before the predictions."""
NEW_ROWS = 100
"""Number of rows that are predicted."""
TOLERANCES = {"bound": 1e-9, "gradient": 1e-9, "mean": 1e-7, "variance": 1e-7}
"""Differences that agp promises in float64; Adam's steps, which divide by gradients, amplify rounding errors."""
STOPPED = {"cggp": 1e5}
"""Methods whose iterations stop at a tolerance, where the number of steps may differ: factors of `TOLERANCES`."""
FLOOR = 1e-6
"""Gradients below this multiple of the largest entry of all gradients are compared in units of that multiple."""


def entries(plan: Plan) -> list[Settings]:
    """List entries for each library, dtype and method; JAX, which compiles for seconds, computes in float64 only."""
    from agp.methods import METHODS

    return [
        {"library": library, "dtype": dtype, "method": method}
        for library in plan.libraries
        for dtype in (("float64",) if plan.small or library == "jax" else ("float64", "float32"))
        for method in (("wsvgp", "rsvgp", "sgpr") if plan.small else METHODS)
    ]


def measured(*, library: str, dtype: str, method: str, device: str, small: bool, seconds: float) -> Figures:
    """Compare the method on the device with the same method on NumPy in float64."""
    from threadpoolctl import threadpool_limits

    opened(library, device)
    with threadpool_limits(1):  # several entries run at the same time
        own, host = _results(f"{library}:{device}", method, dtype, small), _results("numpy", method, "float64", small)
    floor = FLOOR * max(float(np.max(np.abs(x))) for x in host["gradient"].values())
    found = {name: _difference(own[name], host[name]) for name in ("bound", "mean", "variance")}
    found["gradient"] = max(_difference(x, host["gradient"][name], floor) for name, x in own["gradient"].items())
    limits = {
        name: limit * STOPPED.get(method, 1.0) if dtype == "float64" else 1.0 for name, limit in TOLERANCES.items()
    }
    return {name: found[name] for name in limits} | {"too far": sum(found[name] > limits[name] for name in limits)}


def _results(place: str, method: str, dtype: str, small: bool) -> dict[str, Any]:
    """The bound with its gradient before training, and predictions after a few steps, on the host."""
    from benchmarks.common import problem
    from benchmarks.stepping import Stepping

    from agp.backend import to_numpy
    from agp.gradient import gradient_of_batch

    M, rows = (16, 128) if small else (64, 1024)
    training = Stepping(method, place, "closed-form", dtype, M, rows=rows)
    compiled = training.B.compile(lambda model, batch: gradient_of_batch(model, batch, "closed-form"))
    bound, gradient = compiled(training.model, training.batch)
    for _ in range(STEPS):
        training.step()
    X, _ = problem(training.B, place.partition(":")[2] or None, rows=NEW_ROWS, dtype=dtype)
    found = training.model.predictor().predict(X)
    return {
        "bound": to_numpy(bound),
        "gradient": {name: to_numpy(x) for name, x in gradient.items()},
        "mean": to_numpy(found.mean),
        "variance": to_numpy(found.variance),
    }


def _difference(own: Any, host: Any, floor: float = 0.0) -> float:
    """Largest difference in units of the largest entry on the host; infinite if a number is not finite."""
    own, host = np.asarray(own, dtype=float), np.asarray(host, dtype=float)
    if own.shape != host.shape or not np.all(np.isfinite(own)):
        return float("inf")
    return float(np.max(np.abs(own - host), initial=0.0)) / max(float(np.max(np.abs(host), initial=0.0)), floor, 1e-300)


def arranged(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each method, with its differences in float64 on each library."""
    rows: dict[str, dict[str, Any]] = {}
    for entry in entries:
        settings, figures = entry["settings"], entry["figures"]
        if settings["dtype"] == "float64" and "bound" in figures:
            found = rows.setdefault(settings["method"], {})
            library = settings["library"]
            found[f"{library} bound"], found[f"{library} gradient"] = figures["bound"], figures["gradient"]
            found[f"{library} predictions"] = max(figures["mean"], figures["variance"])
    return [{"settings": {"method": method}, "figures": found} for method, found in rows.items()]


NOTE = f"""Each method with M = 64 on 1,024 rows of synthetic data. *bound* and *gradient* are the differences of the
bound and of its closed-form gradient from those of NumPy in float64; *predictions* (`mean` and `variance`) are the
differences of predictions after {STEPS} training steps. Differences are divided by the largest entry on NumPy: of the
bound, of the predictions, or of the gradient with respect to the same parameter. They are infinite if a number is not
finite. *too far* counts the differences in float64 that exceed 1e-9 for bounds and gradients or 1e-7 for predictions
(1e-4 and 1e-2 for CGGP, whose iterations stop at a tolerance). In float32, it counts differences above 1."""
HOW: dict[str, Any] = {"seconds": 30.0, "processes": 15, "guess": 1.5, "jax": 10.0, "cupy": 3.0}
PART = Part("Every method", NOTE, entries, measured, arranged=arranged, **HOW)
