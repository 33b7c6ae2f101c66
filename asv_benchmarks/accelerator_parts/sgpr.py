"""Time and memory of the collapsed bound in blocks of rows, for several memory budgets."""

from typing import Any

from benchmarks.common import finished, full_model, problem

from accelerator_parts.part import Figures, Part, Plan, Settings
from accelerator_parts.places import opened, timed


def entries(plan: Plan) -> list[Settings]:
    """List entries for each library, dtype, number of rows and budget; a million rows have a single budget."""
    if plan.small:
        return by_values(plan, [{"rows": 2000, "memory": 1}, {"rows": 4000, "memory": 16}])
    budgets: list[Settings] = [{"rows": 200_000, "memory": memory} for memory in (64, 256, 1024, 4096, 16384)]
    return by_values(plan, [*budgets, {"rows": 1_000_000, "memory": 4096}])


def by_values(plan: Plan, values: list[Settings]) -> list[Settings]:
    """List entries for each library, dtype and value; in small sizes, only the first value is timed with JAX."""
    dtypes = ("float64",) if plan.small else ("float64", "float32")
    return [
        {"library": library, "dtype": dtype} | value
        for library in plan.libraries
        for dtype in dtypes
        for value in (values[:1] if plan.small and library == "jax" else values)
    ]


def measured(*, library: str, dtype: str, rows: int, memory: int, device: str, small: bool, seconds: float) -> Figures:
    """Time the bound with its gradient, and measure the peak memory."""
    B = opened(library, device)
    M = 32 if small else 1024
    X, y = problem(B, device, rows=rows, dtype=dtype)
    model = full_model("sgpr", X, y, M)
    return {"M": M} | gradient_times(B, model, X, y, memory, small=small)


def gradient_times(B: Any, model: Any, X: Any, y: Any, memory: float, *, small: bool, scale: float = 1.0) -> Figures:
    """Time a bound with its closed-form gradient, and measure the peak memory."""
    from agp import value_and_gradient

    def of_model(model: Any, X: Any, y: Any) -> tuple[Any, dict[str, Any]]:
        return value_and_gradient(model, X, y, scale=scale, memory=float(memory))

    compiled = B.compile(of_model)

    def run() -> Any:
        bound, slopes = compiled(model, X, y)
        finished(B, slopes)
        return bound

    return timed(B, run, small=small) | {"peak MiB": B.peak_memory(X)}


NOTE = """The bound of SGPR with its closed-form gradient, on all rows with M inducing inputs. `memory` is the budget in
MiB. The peak memory is that of the device's allocator, including the data, or on a CPU that of the process."""
PART = Part("SGPR over memory budgets", NOTE, entries, measured, alone=True, guess=20.0, small_guess=4.0, jax=3.0)
