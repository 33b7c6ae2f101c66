"""The parameters `priors` and `frozen` of estimators, in models and in files."""

from collections.abc import Mapping
from typing import Any

from agp.io import Stored, decode_setting, encode_setting
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


def decode_priors(pairs: list[Any], stored: Stored) -> dict[str, Prior]:
    """Return the dictionary that `encode_priors` converted, from a file.

    Raise FileError for an unknown class, and TypeError or ValueError if it is no dictionary of priors.
    """
    found = ((pattern, decode_setting(prior, "priors", stored.known, stored.path)) for pattern, prior in pairs)
    return dict(as_priors(tuple(found)))
