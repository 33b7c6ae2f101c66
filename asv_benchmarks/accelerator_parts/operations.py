"""Single operations: products, factorisations, triangular products and their adjoints, by block size and library."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from accelerator_parts.part import Figures, Part, Plan, Settings
from accelerator_parts.places import normal, opened, timed

BLOCKS = (256, 512, 1024, 2048)
SOLVERS = ("cusolver", "magma")
"""The libraries of torch's factorisations on CUDA devices."""


def entries(plan: Plan) -> list[Settings]:
    """List entries for each library, dtype, M and block size; block size M is dense.

    torch factorises by one of two libraries on CUDA devices. Fewer sizes are timed with JAX, which compiles for long.
    """
    if plan.small:
        return [
            {"library": library, "dtype": "float64", "M": 128, "block": block, "solver": ""}
            for library in plan.libraries
            for block in (32, 128)
        ]
    found: list[Settings] = []
    for library in plan.libraries:
        for M in (1024,) if library == "jax" else (4096, 1024, 256, 2048, 8192):
            for dtype in ("float32", "float64"):
                own = {"library": library, "dtype": dtype, "M": M}
                usual = "cusolver" if library == "torch" and plan.device != "cpu" else ""
                found += [own | {"block": block, "solver": usual} for block in _blocks(library, M)]
                if usual and M <= 4096:
                    found.append(own | {"block": M, "solver": SOLVERS[1]})
    return found


def _blocks(library: str, M: int) -> list[int]:
    """Block sizes: dense, and smaller ones at the sizes where they may pay."""
    if library != "torch":
        return [M] if M <= 1024 else [1024, M]
    return [M, *(block for block in BLOCKS if block < M)] if M in (1024, 2048, 4096) else [M]


def measured(
    *, library: str, dtype: str, M: int, block: int, solver: str, device: str, small: bool, seconds: float
) -> Figures:
    """Time each operation, and a dense product of the same size, in milliseconds."""
    B = opened(library, device)
    root = normal(B, device, (M, M), dtype)
    L = B.tril(root) / (2.0 * M**0.5) + B.xp.eye(M, **B.like(root))
    A = root @ root.mT / (4.0 * M) + B.xp.eye(M, **B.like(root))
    usual, B.triangular_block = B.triangular_block, block
    B.device_block = lambda _: block
    try:
        with _solving(solver):
            return {
                f"{name}, ms": timed(B, _run(B, work, A, L), small=small, share=0.15)["ms"]
                for name, work in (work_of(B) | (updates_of(B, dtype) if solver and block == M else {})).items()
            }
    finally:
        B.triangular_block = usual
        del B.device_block  # restore the method of the class


def _run(B: Any, work: Callable[[Any, Any], Any], A: Any, L: Any) -> Callable[[], Any]:
    compiled = B.compile(work)
    return lambda: compiled(A, L)


@contextlib.contextmanager
def _solving(solver: str) -> Iterator[None]:
    """Let torch factorise by a library inside the block; an empty name changes nothing."""
    if not solver:
        yield
        return
    import torch

    before = torch.backends.cuda.preferred_linalg_library()
    torch.backends.cuda.preferred_linalg_library(solver)
    try:
        yield
    finally:
        torch.backends.cuda.preferred_linalg_library(before)


def updates_of(B: Any, dtype: str) -> dict[str, Callable[[Any, Any], Any]]:
    """One step of the inversion, with products in each precision, and the test of its result."""
    from agp import linalg

    def update(precision: str | None) -> Callable[[Any, Any], Any]:
        how: dict[str, Any] = {"tolerance": 1e-9, "least_steps": 1, "max_steps": 1, "precision": precision}
        return lambda A, L: linalg.inverse_factor(A, **how).factor

    precisions = [name for name in linalg.PRECISIONS if name != dtype]
    return {f"update, {name or dtype}": update(name) for name in (None, *precisions)}


def work_of(B: Any) -> dict[str, Callable[[Any, Any], Any]]:
    """The operations that are timed, as functions of symmetric A and lower triangular L [M, M]."""
    from agp import linalg

    return {
        "dense product": lambda A, L: A @ L,
        "L^T A L": linalg.gram,
        "L X L^T": lambda A, L: linalg.congruence(L, A),
        "L L": lambda A, L: linalg.lower_times_lower(L, L),
        "inverse step": lambda A, L: linalg.natural_step(L, linalg.gram(A, L), 1.0),
        "Cholesky": lambda A, L: linalg.cholesky(A),
        "its adjoint": lambda A, L: linalg.cholesky_pullback(L, A),
        "solve": lambda A, L: B.solve_triangular(L, A),
        "inverse": lambda A, L: B.inverse_from_cholesky(L),
    }


NOTE = """`block` is the size up to which triangular matrices are multiplied without splitting them. With block = M,
all products are dense. An inverse step includes the product L^T A L. *Solve* is L^-1 A, and *inverse* is (L L^T)^-1.
*Update* is one step of the inversion by products of the given precision, with the test of its result. `solver` is the
library of torch's factorisations. JAX compiles each operation."""
PART = Part("Single operations", NOTE, entries, measured, guess=1.2, small_guess=1.0)
