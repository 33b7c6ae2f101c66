"""Names of likelihoods, for estimators and the command line."""

from agp import likelihoods
from agp.likelihoods._base import Likelihood

exported = (vars(likelihoods)[name] for name in likelihoods.__all__)
LIKELIHOODS: dict[str, type[Likelihood]] = {
    x.short_name: x for x in exported if isinstance(x, type) and issubclass(x, Likelihood) and "short_name" in vars(x)
}
"""The likelihoods for numeric targets: the exported ones that have a short name."""
