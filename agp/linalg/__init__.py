"""Numerical linear algebra on any array library: factorisations with one answer to failure, matrix-only inversion."""

from agp.linalg._batches import each_cholesky, each_inverse, each_outer, each_solved, each_times
from agp.linalg._blocks import block_diagonal, groups_of
from agp.linalg._cholesky import (
    cholesky,
    cholesky_pullback,
    inverse_from_cholesky,
    phi,
    positive_definite,
    relative_cholesky_pullback,
)
from agp.linalg._conjugate_gradients import Solution, conjugate_gradients, log_quadrature
from agp.linalg._inverse import (
    Gap,
    InverseFactor,
    inverse_factor,
    inverse_residual,
    largest_eigenvalue,
    natural_step,
    starting_vector,
)
from agp.linalg._inverse_reports import report_fallbacks, report_restarts
from agp.linalg._jitter import add_diagonal, add_jitter, checked_jitter, default_jitter, diagonal, identity
from agp.linalg._pivoted_cholesky import Preconditioner, pivoted_cholesky, preconditioner
from agp.linalg._reduced_steps import PRECISIONS
from agp.linalg._step_rules import StepRule, constant_step, doubling_step, log_linear_step, safe_step
from agp.linalg._triangular import (
    congruence,
    gram,
    inner,
    lower_of,
    lower_product,
    lower_times,
    lower_times_lower,
    lower_transposed_product,
    lower_transposed_times,
    product_lower,
    product_lower_transposed,
    symmetric_from_lower,
    times_lower,
    times_own_transpose,
)
from agp.linalg._variances import covariance_with, nonnegative

__all__ = [
    "PRECISIONS",
    "Gap",
    "InverseFactor",
    "Preconditioner",
    "Solution",
    "StepRule",
    "add_diagonal",
    "add_jitter",
    "block_diagonal",
    "checked_jitter",
    "cholesky",
    "cholesky_pullback",
    "congruence",
    "conjugate_gradients",
    "constant_step",
    "covariance_with",
    "default_jitter",
    "diagonal",
    "doubling_step",
    "each_cholesky",
    "each_inverse",
    "each_outer",
    "each_solved",
    "each_times",
    "gram",
    "groups_of",
    "identity",
    "inner",
    "inverse_factor",
    "inverse_from_cholesky",
    "inverse_residual",
    "largest_eigenvalue",
    "log_linear_step",
    "log_quadrature",
    "lower_of",
    "lower_product",
    "lower_times",
    "lower_times_lower",
    "lower_transposed_product",
    "lower_transposed_times",
    "natural_step",
    "nonnegative",
    "phi",
    "pivoted_cholesky",
    "positive_definite",
    "preconditioner",
    "product_lower",
    "product_lower_transposed",
    "relative_cholesky_pullback",
    "report_fallbacks",
    "report_restarts",
    "safe_step",
    "starting_vector",
    "symmetric_from_lower",
    "times_lower",
    "times_own_transpose",
]
