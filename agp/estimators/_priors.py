"""The parameters `priors` and `frozen` of estimators, in models and in files."""

from collections.abc import Mapping
from typing import Any

from agp.io import decode_setting, encode_setting
from agp.priors import Fixed, Prior, Priors, as_priors
from agp.selection import check_priors_argument
from agp.tree import patterns


def given_priors(estimator: Any) -> Priors:
    """Return the priors and limits of a model that the estimator builds. Raise TypeError if they are none."""
    check_priors_argument(estimator.priors)
    given = None if isinstance(estimator.priors, str) else estimator.priors
    return (*as_priors(given), *((pattern, Fixed()) for pattern in patterns(estimator.frozen)))


def encode_priors(priors: Mapping[str, Prior]) -> list[Any]:
    """Convert a dictionary of priors to JSON."""
    return [[pattern, encode_setting(prior, f"priors[{pattern!r}]")] for pattern, prior in priors.items()]


def decode_priors(found: list[Any]) -> dict[str, Prior]:
    """Return the dictionary that `encode_priors` converted. Raise TypeError or ValueError if it is none."""
    return dict(as_priors(tuple((pattern, decode_setting(prior, "priors")) for pattern, prior in found)))
