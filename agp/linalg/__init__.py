"""Numerical linear algebra on any array library: factorisations with one answer to failure, matrix-only inversion."""

from agp.linalg._cholesky import cholesky, cholesky_pullback, phi, recorded_repairs
from agp.linalg._inverse import (
    InverseFactor,
    StepRule,
    constant_step,
    inverse_factor,
    natural_step,
    safe_step,
    starting_factor,
    starting_vector,
)
from agp.linalg._jitter import add_jitter, default_jitter, identity
from agp.linalg._triangular import (
    congruence,
    gram,
    lower_of,
    lower_product,
    lower_times,
    lower_times_lower,
    lower_transposed_product,
    lower_transposed_times,
    symmetric_from_lower,
    times_lower,
)

__all__ = [
    "InverseFactor",
    "StepRule",
    "add_jitter",
    "cholesky",
    "cholesky_pullback",
    "congruence",
    "constant_step",
    "default_jitter",
    "gram",
    "identity",
    "inverse_factor",
    "lower_of",
    "lower_product",
    "lower_times",
    "lower_times_lower",
    "lower_transposed_product",
    "lower_transposed_times",
    "natural_step",
    "phi",
    "recorded_repairs",
    "safe_step",
    "starting_factor",
    "starting_vector",
    "symmetric_from_lower",
    "times_lower",
]
