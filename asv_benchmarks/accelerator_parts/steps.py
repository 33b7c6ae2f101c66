"""Training steps of four variants of SVGP, and of GPyTorch's SVGP."""

import dataclasses
import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from benchmarks.common import COLUMNS, problem, sparse_model

from accelerator_parts.part import Figures, Part, Plan, Settings
from accelerator_parts.places import Stamps, normal, opened, timed

METHODS = ("wsvgp", "rsvgp", "lsvgp", "asvgp")
INVERSES = ("rsvgp", "asvgp")
"""Methods whose inverse factor can be updated in a lower precision."""
MIXED = (("float64", "float32"), ("float32", "tf32"), ("float32", "bfloat16"))
"""Pairs of precisions: that of a model, and that of the products that update its inverse."""
PEER = "gpytorch"
STEPS, RATE = 100_000, 1e-3
"""Number of steps in the training run whose first steps are timed."""
LOGGED = ("inverse_steps", "residual")
"""Entries of a step's log that are kept."""


def entries(plan: Plan) -> list[Settings]:
    """List entries for each library, M, method, gradient mode and precision.

    JAX compiles for some seconds in each entry, so automatic differentiation is timed for only two methods.
    """
    sizes = (32,) if plan.small else (256, 1024, 4096, 8192)
    dtypes = ("float64",) if plan.small else ("float64", "float32")
    found: list[Settings] = []
    for library in plan.libraries:
        for M in sizes:
            own = {"library": library, "M": M}
            found += [
                own | {"method": method, "gradient": gradient, "dtype": dtype}
                for method, gradient in _ways(library, plan.small)
                for dtype in dtypes
            ]
            found += [
                own | {"method": method, "gradient": "closed-form", "dtype": dtype, "inverse": inverse}
                for method in INVERSES
                for dtype, inverse in MIXED
                if dtype in dtypes
            ]
    return found


def _ways(library: str, small: bool) -> list[tuple[str, str]]:
    """Pairs of method and gradient mode; for torch, GPyTorch is also included."""
    differentiates = library in ("torch", "jax")
    ways = [(PEER, "autodiff")] if library == "torch" else []
    if small:
        return [("wsvgp", "closed-form"), ("rsvgp", "autodiff" if differentiates else "closed-form"), *ways]
    ways += [(method, "closed-form") for method in METHODS]
    if differentiates:
        ways += [(method, "autodiff") for method in (METHODS if library == "torch" else METHODS[:2])]
    return ways


def measured(*, library: str, device: str, small: bool, seconds: float, **entry: Any) -> Figures:
    """Time a step, and a dense product [M, M] by [M, M], in milliseconds."""
    if entry["method"] == PEER and importlib.util.find_spec(PEER) is None:
        return {"absent": f"{PEER} is not installed"}
    B = opened(library, device)
    M, dtype, rows = entry["M"], entry["dtype"], 32 if small else 1024
    stamps = Stamps(small)
    if entry["method"] == PEER:
        logged = _peer_steps(B, device, stamps, rows=rows, M=M, dtype=dtype)
    else:
        logged = steps_of(B, device, stamps, rows=rows, **entry)
    A = normal(B, device, (M, M), dtype)
    product = timed(B, lambda: A @ A, small=small, share=0.3)["ms"]
    times = stamps.figures()
    return {"rows": rows} | times | {"in products": times["ms"] / product} | logged


def steps_of(
    B: Any,
    device: str,
    callback: Callable[[Any], bool],
    *,
    rows: int,
    M: int,
    method: str,
    gradient: Any,
    dtype: str,
    inverse: str = "",
) -> dict[str, float]:
    """Train on minibatches until a callback stops training; return the inverse's figures of the last step.

    Adam updates all parameters at a small constant rate, as in GPyTorch's steps.
    """
    from agp.training import recipe, train
    from agp.updates import InverseUpdate

    X, y = problem(B, device, rows=rows_of_data(M, rows), dtype=dtype)
    model = sparse_model(method, X, y, M)
    updates: list[Any] = recipe(model, STEPS, rate=RATE, fall=1.0, natural=None, gradient=gradient)
    if inverse:
        updates = [
            dataclasses.replace(update, precision=inverse) if isinstance(update, InverseUpdate) else update
            for update in updates
        ]
    logged: dict[str, float] = {}

    def seen(progress: Any) -> bool:
        done = callback(progress)
        if done:
            logged.update((name, float(progress.info[name])) for name in LOGGED if name in progress.info)
        return done

    train(model, X, y, steps=STEPS, batch_size=rows, updates=updates, callbacks=[seen], progress=False)
    return logged


def rows_of_data(M: int, rows: int) -> int:
    """Number of rows of data, from which the inducing inputs are selected."""
    return max(2 * M, 4 * rows)


def _peer_steps(B: Any, device: str, stamps: Stamps, *, rows: int, M: int, dtype: str) -> dict[str, float]:
    """Run steps of GPyTorch's whitened SVGP on one minibatch of the same data."""
    sys.path.append(str(Path(__file__).parents[1] / "compare" / "peers"))
    import gpytorch
    import torch
    from contract import Start
    from gpytorch_peer import Whitened

    N = rows_of_data(M, rows)
    X, y = problem(B, device, rows=N, dtype=dtype)
    jitter = 1e-6 if dtype == "float64" else 1e-4
    parts: dict[str, Any] = {"lengthscale": np.full(COLUMNS, 2.0), "variance": 1.0, "noise": 0.1, "jitter": jitter}
    model = Whitened(Start(Z=B.to_numpy(X[:M, :]), rows=N, **parts))
    model = model.to(device=device, dtype=getattr(torch, dtype)).train()
    objective = gpytorch.mlls.VariationalELBO(model.likelihood, model, num_data=N)
    adam = torch.optim.Adam(model.parameters(), lr=RATE)
    done, began = False, time.perf_counter()
    while not done:
        adam.zero_grad()
        loss = -N * objective(model(X[:rows, :]), y[:rows, 0])
        loss.backward()
        adam.step()
        B.synchronise(loss)
        done = stamps(SimpleNamespace(seconds=time.perf_counter() - began))
    return {}


NOTE = """A step of `agp.train` updates all parameters by Adam on a minibatch, and then the inverse factors. The host
waits for each step. `inverse_steps` is the number of inverse steps in the last step. *In products* is the time of a
step divided by that of a dense product [M, M] by [M, M] of the same dtype. `inverse` is the precision of the inverse's
products if it differs from that of the model. `first_ms` is the time of the first step, which compiles on JAX, `ms` the
median of later steps, and `spread` their interquartile range divided by the median."""
PART = Part("Training steps", NOTE, entries, measured)
