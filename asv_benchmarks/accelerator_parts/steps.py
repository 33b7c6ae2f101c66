"""Training steps of four variants of SVGP, and of GPyTorch's SVGP."""

import dataclasses
import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.common import COLUMNS, problem, sparse_model

from accelerator_parts.part import Figures, Part, Plan, Settings
from accelerator_parts.places import SECONDS, SMALL_SECONDS, normal, opened, timed

METHODS = ("wsvgp", "rsvgp", "lsvgp", "asvgp")
INVERSES = ("rsvgp", "asvgp")
"""Methods whose inverse factor can be updated in a lower precision."""
MIXED = (
    ("float64", "float32"),
    ("float64", "tf32"),
    ("float64", "tf32x3"),
    ("float64", "bfloat16x3"),
    ("float32", "tf32"),
    ("float32", "tf32x3"),
    ("float32", "bfloat16"),
    ("float32", "bfloat16x3"),
)
"""Pairs of precisions: that of a model, and that of the products that update its inverse."""
PEER = "gpytorch"
STEPS, RATE = 100_000, 1e-3
"""Number of steps for which the learning rate is planned, and the rate."""
LOGGED = ("inverse_steps", "residual")
"""Entries of the log of a step that are kept."""
FIRST, MORE = 12, 10
"""Number of steps in a short training run; a long run has a multiple of `MORE` steps more."""

Trained = Callable[[int], Figures]
"""Train for a number of steps and wait for the device; return figures of the run."""


def entries(plan: Plan) -> list[Settings]:
    """List entries for each library, M, method, gradient mode, dtype and precision of the inverse.

    `graphs` tells whether torch records the steps as device graphs.
    """
    sizes = (32,) if plan.small else (1024, 4096, 256, 2048, 8192)
    dtypes = ("float64",) if plan.small else ("float32", "float64")
    found: list[Settings] = []
    for library in plan.libraries:
        graphs = (True, False) if library == "torch" and plan.device != "cpu" else (False,)
        for M in sizes:
            own = {"library": library, "M": M}
            found += [
                own | {"method": method, "gradient": gradient, "dtype": dtype, "inverse": "", "graphs": recorded}
                for dtype in dtypes
                for method, gradient in _ways(library, M, plan.small)
                for recorded in (graphs if gradient == "closed-form" else graphs[-1:])
            ]
            found += [
                own
                | {"method": method, "gradient": "closed-form", "dtype": dtype, "inverse": inverse}
                | {"graphs": graphs[0]}
                for method in INVERSES
                for dtype, inverse in MIXED
                if dtype in dtypes and _multiplies(library, plan.device, inverse)
            ]
    return found


def _ways(library: str, M: int, small: bool) -> list[tuple[str, str]]:
    """Pairs of method and gradient mode; for torch, GPyTorch is also included."""
    ways = [(PEER, "autodiff")] if library == "torch" else []
    ways += [(method, "closed-form") for method in (METHODS[:2] if small else METHODS)]
    differentiated = library in ("torch", "jax") and M in (32, 1024)
    return [*ways, *((method, "autodiff") for method in METHODS[:2] if differentiated)]


def _multiplies(library: str, device: str, precision: str) -> bool:
    """Whether the library multiplies in this precision on the device."""
    if precision.startswith("tf32"):
        return device != "cpu" and library in ("torch", "jax")
    return precision == "float32" or library in ("torch", "jax")


def measured(*, library: str, device: str, small: bool, seconds: float, **entry: Any) -> Figures:
    """Time a step, and a dense product [M, M] by [M, M], in milliseconds."""
    if entry["method"] == PEER and importlib.util.find_spec(PEER) is None:
        return {"absent": f"{PEER} is not installed"}
    B = opened(library, device)
    M, dtype, rows = entry["M"], entry["dtype"], 32 if small else 1024
    if entry["method"] == PEER:
        train = _peer_training(B, device, rows=rows, M=M, dtype=dtype)
    else:
        train = training_of(B, device, rows=rows, **entry)
    figures = _per_step(train, small)
    A = normal(B, device, (M, M), dtype)
    product = timed(B, lambda: A @ A, small=small, share=0.3)["ms"]
    return {"rows": rows} | figures | {"in products": figures["ms"] / product}


def _per_step(train: Trained, small: bool) -> Figures:
    """Milliseconds per step, from the difference between a long and a short run; the least of two runs each."""

    def lasting(steps: int) -> float:
        began = time.perf_counter()
        figures.update(train(steps))
        return time.perf_counter() - began

    figures: Figures = {}
    first = lasting(FIRST)
    short = lasting(FIRST)
    seconds = SMALL_SECONDS if small else SECONDS
    more = MORE * max(1, round(seconds / max(short / FIRST, 1e-6) / MORE))
    long = min(lasting(FIRST + more), lasting(FIRST + more))
    short = min(short, lasting(FIRST))
    return {"ms": 1e3 * (long - short) / more, "first run ms": 1e3 * first} | figures


def training_of(
    B: Any,
    device: str,
    *,
    rows: int,
    M: int,
    method: str,
    gradient: Any,
    dtype: str,
    inverse: str = "",
    graphs: bool = False,
    callbacks: Sequence[Callable[[Any], bool]] = (),
) -> Trained:
    """Prepare training on minibatches; its figures are means over the last half of the steps.

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

    def trained(steps: int) -> Figures:
        how: dict[str, Any] = {"batch_size": rows, "updates": updates, "graphs": graphs, "callbacks": callbacks}
        result = train(model, X, y, steps=steps, **how)
        figures: Figures = {
            name: float(np.mean(result.trace[name][steps // 2 :])) for name in LOGGED if name in result.trace
        }
        if graphs and result.launched_singly:
            figures["not recorded"] = result.launched_singly
        return figures

    return trained


def rows_of_data(M: int, rows: int) -> int:
    """Number of rows of data, from which the inducing inputs are selected."""
    return max(2 * M, 4 * rows)


def _peer_training(B: Any, device: str, *, rows: int, M: int, dtype: str) -> Trained:
    """Prepare training of GPyTorch's whitened SVGP on one minibatch of the same data."""
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

    def trained(steps: int) -> Figures:
        for _ in range(steps):
            adam.zero_grad()
            loss = -N * objective(model(X[:rows, :]), y[:rows, 0])
            loss.backward()
            adam.step()
        B.synchronise(loss)
        return {}

    return trained


def arranged(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for both dtypes, in the order of M, library and method."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for entry in entries:
        settings = dict(entry["settings"])
        dtype = settings.pop("dtype")
        if "ms" not in entry["figures"]:
            continue
        settings = {"M": settings["M"], "library": settings["library"], "method": settings["method"]} | settings
        row = rows.setdefault(tuple(settings.values()), {"settings": settings, "figures": {}})
        row["figures"][f"{dtype}, ms"] = entry["figures"]["ms"]
        if "inverse_steps" in entry["figures"]:
            row["figures"][f"inverse steps, {dtype}"] = entry["figures"]["inverse_steps"]
    names = ["float32, ms", "float64, ms", "inverse steps, float32", "inverse steps, float64"]
    return [
        row | {"figures": {name: row["figures"][name] for name in names if name in row["figures"]}}
        for key, row in sorted(rows.items(), key=lambda one: (one[0][0], one[0][1] != "torch", one[0][2] != PEER))
    ]


NOTE = """A step of `agp.train` updates all parameters by Adam on a minibatch, and then the inverse factors. `ms` is the
time of a step, from the difference between a long and a short training run; the host does not wait for each step. The
steps of JAX are compiled for each run, which adds to the uncertainty of its time. `inverse_steps` is the mean number of
inverse steps per step. *In products* is the time of a step divided by that of a dense product [M, M] by [M, M] of the
same dtype. `inverse` is the precision of the inverse's products if it differs from that of the model. `graphs` tells
whether torch recorded the step as a device graph, and *not recorded* why it could not."""
PART = Part("Training steps", NOTE, entries, measured, guess=2.5, small_guess=1.0, arranged=arranged)
