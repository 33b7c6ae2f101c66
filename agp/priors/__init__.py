"""Priors on parameters. Training maximises the sum of the bound and the log prior, which gives a MAP estimate.

Densities refer to constrained values, such as the lengthscale, without a Jacobian. The estimate therefore does not
depend on the transformation that enforces the constraint. `Between` and `Fixed` limit parameters instead.
"""

from agp.priors._densities import Beta, Gamma, HalfCauchy, HalfNormal, InverseGamma, LogNormal, Normal, Prior, Relative
from agp.priors._limits import Between, Fixed
from agp.priors._model import log_prior

__all__ = [
    "Beta",
    "Between",
    "Fixed",
    "Gamma",
    "HalfCauchy",
    "HalfNormal",
    "InverseGamma",
    "LogNormal",
    "Normal",
    "Prior",
    "Relative",
    "log_prior",
]

# for other subpackages
from agp.priors._intervals import at_coordinates, into_interval, out_of_interval, to_coordinates
from agp.priors._limits import (
    Limits,
    check_fixed,
    check_zeros,
    describe_limits,
    fixed_entries,
    fixed_entry_names,
    held_leaves,
    limits_of,
    restrict,
    values_outside,
)
from agp.priors._model import (
    Priors,
    as_priors,
    assign_priors,
    check_priors,
    entry_log_density,
    has_densities,
    with_priors,
)
