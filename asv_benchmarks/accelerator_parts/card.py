"""Versions, memory bandwidth, rates of matrix products, latencies, and detection of failing Cholesky factorisations."""

import functools
import platform
from collections.abc import Callable
from typing import Any

import numpy as np

from accelerator_parts.part import Figures, Part, Plan, Settings
from accelerator_parts.places import normal, opened, timed

PRECISIONS = ("float64", "float32", "tf32", "bfloat16")
LATENCIES = {
    "0-d addition": lambda B, x, host, device: x + x,
    "bool() of a 0-d comparison": lambda B, x, host, device: x if bool(x > 0) else -x,
    "upload of 8 kB": lambda B, x, host, device: B.from_numpy(host, device=device),
}
BAD_PIVOTS = (-1.0, -1e-3)
"""Values that replace one pivot of 1, in units of the scale."""
SCALES = (1e-6, 1.0, 1e6)


def entries(plan: Plan) -> list[Settings]:
    """List entries for each library: version, copies, matrix products, latencies and failing factorisations."""
    sizes = (64, 256) if plan.small else (4096, 1024, 8192)
    orders = (2, 33) if plan.small else (2, 33, 257)
    found: list[Settings] = []
    for library in plan.libraries:
        own = {"library": library}
        found += [own | {"measured": what} for what in ("version", "copy", "upload", "download")]
        found += [
            own | {"measured": "product", "dtype": dtype, "M": M}
            for M in sizes
            for dtype in PRECISIONS
            if (library, dtype) in PRODUCTS
        ]
        found += [own | {"measured": "latency", "of": of} for of in LATENCIES]
        found += [
            own | {"measured": "failing Cholesky", "dtype": dtype, "M": M, "batch": batch}
            for M in orders
            for dtype in PRECISIONS[:2]
            for batch in (0, 3)
        ]
    return found


def measured(*, library: str, device: str, small: bool, seconds: float, **entry: Any) -> Figures:
    """Measure one entry."""
    B = opened(library, device)
    match entry.pop("measured"):
        case "version":
            return {"version": B.version(), "python": platform.python_version()} | _solver(library, device)
        case "product":
            return _product(B, device, small=small, **entry)
        case "latency":
            return _latency(B, device, small=small, **entry)
        case "failing Cholesky":
            return failing_factorisations(B, device, **entry)
        case way:
            return _moved(B, device, way, small)


def _solver(library: str, device: str) -> dict[str, str]:
    """The library of torch's factorisations on a CUDA device."""
    if library != "torch" or device == "cpu":
        return {}
    import torch

    return {"factorisations": str(torch.backends.cuda.preferred_linalg_library())}


def _moved(B: Any, device: str, way: str, small: bool) -> Figures:
    """Measure the rate of copying an array; a copy on the device reads and writes it."""
    size = 2**22 if small else 2**28
    host = np.ones(size // 4, dtype=np.float32)
    x = B.from_numpy(host, device=device)
    moves: dict[str, Callable[[], Any]] = {
        "copy": lambda: B.xp.asarray(x, copy=True),
        "upload": lambda: B.from_numpy(host, device=device),
        "download": lambda: (B.to_numpy(x + 0.0), x)[1],  # download a new array: some libraries keep a host copy
    }
    times = timed(B, moves[way], small=small)
    return {"GB/s": (2 if way == "copy" else 1) * size / times["ms"] * 1e-6} | times


def _latency(B: Any, device: str, *, small: bool, of: str) -> Figures:
    host = np.zeros(1024)
    x = B.from_numpy(np.asarray(1.0), device=device)
    times = timed(B, lambda: LATENCIES[of](B, x, host, device), small=small)
    return {"us": 1e3 * times["ms"], "spread": times["spread"]}


# -- products ---------------------------------------------------------------------------------------------------------


def _product(B: Any, device: str, *, small: bool, dtype: str, M: int) -> Figures:
    host = (normal(B, device, (M, M), "float64" if dtype == "float64" else "float32", seed) for seed in (0, 1))
    times = timed(B, PRODUCTS[B.name, dtype](*host), small=small)
    return {"TFLOP/s": 2.0 * M**3 / times["ms"] * 1e-9} | times


def _plain(X: Any, Y: Any) -> Callable[[], Any]:
    return lambda: X @ Y


def _torch(X: Any, Y: Any, *, precision: str = "highest", dtype: str = "") -> Callable[[], Any]:
    import torch

    if dtype:
        X, Y = (x.to(getattr(torch, dtype)) for x in (X, Y))

    def product() -> Any:
        usual = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(precision)
        try:
            return X @ Y
        finally:
            torch.set_float32_matmul_precision(usual)

    return product


def _jax(X: Any, Y: Any, *, precision: str = "highest", dtype: str = "") -> Callable[[], Any]:
    import jax

    if dtype:
        X, Y = (x.astype(dtype) for x in (X, Y))
    compiled = jax.jit(functools.partial(jax.numpy.matmul, precision=precision))
    return lambda: compiled(X, Y)


PRODUCTS: dict[tuple[str, str], Callable[[Any, Any], Callable[[], Any]]] = {
    ("numpy", "float64"): _plain,
    ("numpy", "float32"): _plain,
    ("cupy", "float64"): _plain,
    ("cupy", "float32"): _plain,
    ("torch", "float64"): _torch,
    ("torch", "float32"): _torch,
    ("torch", "tf32"): functools.partial(_torch, precision="high"),
    ("torch", "bfloat16"): functools.partial(_torch, dtype="bfloat16"),
    ("jax", "float64"): _jax,
    ("jax", "float32"): _jax,
    ("jax", "tf32"): functools.partial(_jax, precision="tensorfloat32"),
    ("jax", "bfloat16"): functools.partial(_jax, precision="default", dtype="bfloat16"),
}
"""Products of each library in the precisions that it offers; CuPy enables TF32 only by an environment variable."""


# -- failing factorisations -------------------------------------------------------------------------------------------


def failing_factorisations(B: Any, device: str, dtype: str, M: int, batch: int) -> Figures:
    """Count undetected failures for matrices with one bad pivot, and false alarms for positive definite matrices.

    The bad pivot is the first, middle or last. In a batch, the bad matrix is in the middle, and the factors of the
    others must be the same as without it.
    """
    missed = alarms = cases = 0
    worst = 0.0
    for scale in SCALES:
        good = with_pivot(M, 0, 1.0) * scale
        put = functools.partial(B.from_numpy, dtype=dtype, device=device)
        L = B.to_numpy(B.cholesky(put(good))).astype(float)
        alarms += not np.all(np.isfinite(L))
        worst = max(worst, float(np.linalg.norm(L @ L.T - good) / np.linalg.norm(good)))
        for bad in BAD_PIVOTS:
            for place in sorted({0, M // 2, M - 1}):
                A = with_pivot(M, place, bad) * scale
                found = B.to_numpy(B.cholesky(put(np.stack([good, A, good]) if batch else A))).astype(float)
                factor = found[1] if batch else found
                missed += bool(np.all(np.isfinite(np.diagonal(factor))))
                alarms += bool(batch and not np.all(np.isfinite(found[[0, 2]])))
                cases += 1
    return {"cases": cases, "missed": missed, "false alarms": int(alarms), "residual": worst}


def with_pivot(M: int, place: int, pivot: float) -> Any:
    """A matrix L D L^T [M, M] with unit lower triangular L, where D is the identity except for one pivot."""
    L = np.tril(np.random.default_rng(M).standard_normal((M, M)), -1) / (2.0 * np.sqrt(M)) + np.eye(M)
    d = np.ones(M)
    d[place] = pivot
    return (L * d) @ L.T


def arranged(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All entries, with one row for the failing factorisations of each library."""
    summed: dict[str, dict[str, Any]] = {}
    for entry in entries:
        if entry["settings"]["measured"] == "failing Cholesky" and "cases" in entry["figures"]:
            own = summed.setdefault(entry["settings"]["library"], {})
            for name in ("cases", "missed", "false alarms"):
                own[name] = own.get(name, 0) + entry["figures"][name]
            own["residual"] = max(own.get("residual", 0.0), entry["figures"]["residual"])
    others = [entry for entry in entries if entry["settings"]["measured"] != "failing Cholesky"]
    kind = {"measured": "failing Cholesky"}
    return [*others, *({"settings": {"library": name} | kind, "figures": own} for name, own in summed.items())]


NOTE = """The GB/s of a copy count bytes read and bytes written. Products are [M, M] by [M, M]. The matrices for failing
Cholesky factorisations have one pivot of -1 or -0.001 and other pivots of 1, and are scaled by 1e-6, 1 and 1e6.
*missed* counts their factors without NaN and must be 0; *residual* is the residual of the matrix without a bad pivot.
`first_ms` is the time of the first call, which may compile, `ms` the median of later calls, and `spread` their
interquartile range divided by the median."""
PART = Part(
    "The card, and times of single operations",
    NOTE,
    entries,
    measured,
    guess=2.0,
    small_guess=0.3,
    jax=2.0,
    arranged=arranged,
)
