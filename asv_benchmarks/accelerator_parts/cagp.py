"""Computation-aware GPs (CaGP-Opt) on a million rows."""

from benchmarks.cagp import model_of

from accelerator_parts.part import Figures, Part, Plan, Settings
from accelerator_parts.places import opened
from accelerator_parts.sgpr import by_values, gradient_times

MEMORY = 1024
"""Memory budget for working arrays in MiB."""


def entries(plan: Plan) -> list[Settings]:
    """List entries for each library, dtype and number of rows per step."""
    return by_values(plan, [{"rows": rows} for rows in ((64, 2000) if plan.small else (1024, 1_000_000))])


def measured(*, library: str, dtype: str, rows: int, device: str, small: bool, seconds: float) -> Figures:
    """Time the loss with its gradient, on a minibatch or all rows, and measure the peak memory."""
    B = opened(library, device)
    N, support = (2000, 128) if small else (1_000_000, 4096)
    model, X, y = model_of(B, device, N, support, dtype)
    X, y = X[:rows, :], y[:rows, :]
    return {"N": N, "support": support} | gradient_times(B, model, X, y, MEMORY, small=small, scale=N / rows)


NOTE = f"""The loss with its closed-form gradient, on a minibatch and on all N rows. The model has 128 learned actions
that cover `support` rows, three input columns, a Matern-3/2 kernel, and {MEMORY} MiB for working arrays."""
PART = Part("CaGP-Opt", NOTE, entries, measured, seconds=150.0, alone=True, guess=30.0, small_guess=5.0, jax=3.0)
