"""Numerical linear algebra for any array library.

The subpackage has factorisations with automatic repair, and inversion by matrix products. Public functions that call
these run in the context of their arrays, in which JAX computes float32 products on a GPU in full precision. For other
calls, set `jax.default_matmul_precision("highest")`.
"""

from agp.linalg._cholesky import cholesky, cholesky_pullback, relative_cholesky_pullback
from agp.linalg._diagonal import add_jitter, nonnegative
from agp.linalg._inverse import InverseFactor, inverse_factor
from agp.linalg._inverse_step import inverse_residual
from agp.linalg._step_rules import constant_step, doubling_step, log_linear_step, safe_step
from agp.linalg._triangular import lower_of

__all__ = [
    "InverseFactor",
    "add_jitter",
    "cholesky",
    "cholesky_pullback",
    "constant_step",
    "doubling_step",
    "inverse_factor",
    "inverse_residual",
    "log_linear_step",
    "lower_of",
    "nonnegative",
    "relative_cholesky_pullback",
    "safe_step",
]

# for other subpackages
from agp.linalg._blocks import (
    block_diagonal,
    each_cholesky,
    each_inverse,
    each_outer,
    each_times,
    groups_of,
    solve_each,
    solve_each_lower,
)
from agp.linalg._cholesky import lower_cholesky, noisy_cholesky, phi, positive_definite
from agp.linalg._conjugate_gradients import LOOK_EVERY, Solution, conjugate_gradients, log_quadrature
from agp.linalg._diagonal import add_diagonal, covariance_with, default_jitter, diagonal, identity
from agp.linalg._inverse import Gap, report_restarts
from agp.linalg._inverse_step import largest_eigenvalue, natural_step, rounding_error, starting_vector
from agp.linalg._pivoted_cholesky import Preconditioner, pivoted_cholesky, preconditioner
from agp.linalg._reduced_steps import PRECISIONS
from agp.linalg._step_rules import StepRule
from agp.linalg._triangular import (
    congruence,
    gram,
    lower_product,
    lower_times,
    lower_times_lower,
    lower_transposed_product,
    lower_transposed_times,
    solve_lower,
    symmetric_from_blocks,
    symmetric_from_lower,
    times_lower,
)
