"""A method of another package: a class of models and one record, which the module registers when it is imported."""

from typing import Any

import agp
from agp import tree
from agp.methods import Method, register
from agp.models import Variational


@tree.model
class ToyGP(Variational):
    """A variational GP whose q(u) has a diagonal covariance."""

    process: agp.processes.Process
    likelihood: agp.likelihoods.Likelihood
    priors: tuple[Any, ...] = ()

    @classmethod
    def from_data(cls, X, y, /, **parts):
        """Build an untrained model."""
        model = agp.SVGP.from_data(X, y, posterior=agp.posteriors.DiagonalWhitened, **parts)
        return cls(model.process, model.likelihood)


TOY = Method(name="toy", description="GP of a test", model=ToyGP, takes=("num_inducing", "seed"))
register(TOY)
