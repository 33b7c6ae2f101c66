"""Every likelihood with targets that suit it, and what the tests of this folder share."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from helpers import NUMPY, Place, as_arrays

from agp import tree
from agp.backend import backend_of, like
from agp.bounds import Batch, expected_row_density
from agp.likelihoods import (
    Bernoulli,
    Beta,
    Exponential,
    Gamma,
    Gaussian,
    LatentNoiseGaussian,
    Logit,
    LogNormal,
    NegativeBinomial,
    Ordinal,
    Poisson,
    RobustMax,
    Softmax,
    StudentT,
    TransformedGaussian,
    YeoJohnson,
)

Targets = Callable[[np.random.Generator, int, int], np.ndarray]


def values(rng, rows, columns):
    return rng.normal(size=(rows, columns))


def binary(rng, rows, columns):
    return 1.0 * rng.integers(0, 2, size=(rows, columns))


def counts(rng, rows, columns):
    return 1.0 * rng.poisson(2.0, size=(rows, columns))


def labels(rng, rows, columns):
    return 1.0 * rng.integers(0, 3, size=(rows, 1))


def positive(rng, rows, columns):
    return rng.gamma(1.5, size=(rows, columns))


def shares(rng, rows, columns):
    return rng.beta(2.0, 1.5, size=(rows, columns))


def categories(rng, rows, columns):
    return 1.0 * rng.integers(0, 4, size=(rows, columns))


class Kind(NamedTuple):
    """A likelihood whose leaves are numbers, and its targets."""

    build: Callable[[], Any]
    targets: Targets
    classes: int | None = None


KINDS = {
    "gaussian": Kind(lambda: Gaussian(0.2), values),
    "bernoulli": Kind(lambda: Bernoulli(), binary),
    "bernoulli-squash": Kind(lambda: Bernoulli(squash=1e-3), binary),
    "bernoulli-logit": Kind(lambda: Bernoulli(link="logit"), binary),
    "bernoulli-logit-squash": Kind(lambda: Bernoulli(link="logit", squash=1e-3), binary),
    "student-t": Kind(lambda: StudentT(0.4), values),
    "student-t-5": Kind(lambda: StudentT(0.4, degrees_of_freedom=5.0), values),
    "poisson": Kind(lambda: Poisson(exposure=1.3), counts),
    "gamma": Kind(lambda: Gamma(1.7), positive),
    "exponential": Kind(lambda: Exponential(), positive),
    "negative-binomial": Kind(lambda: NegativeBinomial(0.6, exposure=1.3), counts),
    "nearly-poisson": Kind(lambda: NegativeBinomial(2e-3), counts),
    "beta": Kind(lambda: Beta(6.0), shares),
    "beta-logit": Kind(lambda: Beta(6.0, link="logit"), shares),
    "ordinal": Kind(lambda: Ordinal(4, (-0.6, 0.3, 1.4)), categories),
    "log-normal": Kind(lambda: LogNormal(Gaussian(0.2)), positive),
    "yeo-johnson": Kind(lambda: TransformedGaussian(Gaussian(0.2), YeoJohnson(0.4, 0.3, 1.5)), values),
    "yeo-johnson-logs": Kind(lambda: TransformedGaussian(Gaussian(0.2), YeoJohnson(0.0)), values),
    "logit-gaussian": Kind(lambda: TransformedGaussian(Gaussian(0.2), Logit()), shares),
    "latent-noise": Kind(lambda: LatentNoiseGaussian(), values),
    "latent-noise-in-units": Kind(lambda: LatentNoiseGaussian(unit=1.4), values),
    "robustmax": Kind(lambda: RobustMax(3), labels, 3),
    "robustmax-rough": Kind(lambda: RobustMax(3, epsilon=0.1, squash=1e-2, points=8), labels, 3),
    "softmax": Kind(lambda: Softmax(3, samples=7, fixed_samples=50), labels, 3),
}


class Problem(NamedTuple):
    """A likelihood with marginals and targets of one place."""

    likelihood: Any
    mu: Any
    var: Any
    y: Any
    draws: dict


def problem_of(name: str, place: Place = NUMPY, *, columns: int = 1, rows: int = 8, dtype: str = "float64") -> Problem:
    """Random marginals [N, P] and targets, the same numbers in every place."""
    kind = KINDS[name]
    rng = np.random.default_rng([7, columns])
    likelihood = as_arrays(kind.build())
    y = kind.targets(rng, rows, columns)
    P = likelihood.latents(y.shape[1])
    mu, var = 1.5 * rng.normal(size=(rows, P)), 0.1 + rng.uniform(size=(rows, P))
    draws = {key: place.array(x, dtype) for key, x in likelihood.draws(rng, rows, P).items()}
    return Problem(place.move(likelihood, dtype), *(place.array(x, dtype) for x in (mu, var, y)), draws)


def rows_of(problem: Problem, place: Place = NUMPY, dtype: str = "float64") -> Batch:
    """The rows of a problem with weights, offsets and, if the likelihood takes them, known noise variances."""
    rng = np.random.default_rng(6)
    rows, P = problem.mu.shape
    known = {"weights": rng.uniform(0.0, 3.0, size=rows), "offset": rng.normal(size=(rows, P))}
    if problem.likelihood.takes_noise:
        known["noise"] = rng.uniform(0.01, 0.5, size=(rows, P))
    return Batch(problem.y, problem.y, **{name: place.array(x, dtype) for name, x in known.items()})


def likelihood_stage(problem: Problem, *, with_draws: bool = True, rows: Batch | None = None):
    """Expected log densities as a function of the likelihood's parameters, mu and var; and those leaves."""
    likelihood = problem.likelihood
    parameters = tree.leaves(likelihood, "parameter")
    batch = Batch(problem.y, problem.y) if rows is None else rows

    def moved(x, reference):
        return None if x is None else backend_of(reference).xp.asarray(np.asarray(x).tolist(), **like(reference))

    def stage(leaves):
        mu, var = leaves["mu"], leaves["var"]
        constants = {name: moved(x, mu) for name, x in tree.leaves(likelihood, "constant").items()}
        here = tree.with_leaves(likelihood, constants | {name: leaves[f"likelihood.{name}"] for name in parameters})
        draws = {name: moved(x, mu) for name, x in problem.draws.items()} if with_draws else None
        value, pull = expected_row_density(here, mu, var, batch.take(lambda x: moved(x, mu)), draws)

        def pullback(bar):
            likelihood_bar, mu_bar, var_bar = pull(bar)
            own = {f"likelihood.{name}": x for name, x in tree.leaves(likelihood_bar).items()}
            return own | {"mu": mu_bar, "var": var_bar}

        return (value,), pullback

    own = {f"likelihood.{name}": x for name, x in parameters.items()}
    return stage, own | {"mu": problem.mu, "var": problem.var}
