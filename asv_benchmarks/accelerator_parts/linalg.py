"""Triangular products, congruences, inverse steps and the Cholesky pullback, by block size."""

from collections.abc import Callable
from typing import Any

from accelerator_parts.part import Figures, Part, Plan, Settings
from accelerator_parts.places import normal, opened, timed

BLOCKS = (128, 256, 512, 1024, 2048)
JAX_BLOCKS = (1024,)


def entries(plan: Plan) -> list[Settings]:
    """List entries for each library, dtype, M and block size; block size M is dense.

    Fewer block sizes are timed with JAX, which takes minutes to compile many small blocks.
    """
    sizes = (128,) if plan.small else (512, 1024, 2048, 4096, 8192)
    dtypes = ("float64",) if plan.small else ("float64", "float32")
    blocks = (32,) if plan.small else BLOCKS
    return [
        {"library": library, "dtype": dtype, "M": M, "block": block}
        for library in plan.libraries
        for dtype in dtypes
        for M in sizes
        for block in (*(block for block in blocks if block < M and (library != "jax" or block in JAX_BLOCKS)), M)
    ]


def measured(*, library: str, dtype: str, M: int, block: int, device: str, small: bool, seconds: float) -> Figures:
    """Time each operation, and a dense product of the same size, in milliseconds."""
    B = opened(library, device)
    root = normal(B, device, (M, M), dtype)
    L = B.tril(root) / (2.0 * M**0.5) + B.xp.eye(M, **B.like(root))
    A = L @ L.mT
    usual, B.triangular_block = B.triangular_block, block
    B.device_block = lambda _: block
    try:
        return {
            f"{name}, ms": timed(B, _run(B, work, A, L), small=small, share=0.3)["ms"]
            for name, work in work_of().items()
        }
    finally:
        B.triangular_block = usual
        del B.device_block  # restore the method of the class


def _run(B: Any, work: Callable[[Any, Any], Any], A: Any, L: Any) -> Callable[[], Any]:
    compiled = B.compile(work)
    return lambda: compiled(A, L)


def work_of() -> dict[str, Callable[[Any, Any], Any]]:
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
    }


NOTE = """`block` is the size up to which triangular matrices are multiplied without splitting them. With block = M,
all products are dense. An inverse step includes the product L^T A L. JAX compiles each operation."""
PART = Part("Linear algebra by block size", NOTE, entries, measured, small_guess=1.0)
