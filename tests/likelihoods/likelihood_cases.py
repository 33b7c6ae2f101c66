"""Every likelihood with targets that suit it, and what the tests of this folder share."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from helpers import NUMPY, Place, as_arrays

from agp import tree
from agp.backend import backend_of, like
from agp.likelihoods import (
    Bernoulli,
    Beta,
    Exponential,
    Exposed,
    Gamma,
    Gaussian,
    HeteroscedasticGaussian,
    LatentNoiseGaussian,
    LogNormal,
    NegativeBinomial,
    Ordinal,
    Poisson,
    RobustMax,
    Softmax,
    StudentT,
    Weighted,
)

Targets = Callable[[np.random.Generator, int, int], np.ndarray]


def values(rng, rows, columns):
    return rng.normal(size=(rows, columns))


def with_noise(rng, rows, columns):
    return np.concatenate([values(rng, rows, columns), 0.05 + rng.uniform(size=(rows, columns))], axis=1)


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


def beside(targets, least=0.3):
    """Targets, and a last column of positive numbers."""

    def made(rng, rows, columns):
        y = targets(rng, rows, columns)
        return np.concatenate([y, least + 2.0 * rng.uniform(size=(len(y), 1))], axis=1)

    return made


class Kind(NamedTuple):
    """A likelihood whose leaves are numbers, and its targets."""

    build: Callable[[], Any]
    targets: Targets
    classes: int | None = None


KINDS = {
    "gaussian": Kind(lambda: Gaussian(0.2), values),
    "known-noise": Kind(lambda: HeteroscedasticGaussian(), with_noise),
    "known-and-common-noise": Kind(lambda: HeteroscedasticGaussian(Gaussian(0.2)), with_noise),
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
    "latent-noise": Kind(lambda: LatentNoiseGaussian(), values),
    "latent-noise-in-units": Kind(lambda: LatentNoiseGaussian(unit=1.4), values),
    "robustmax": Kind(lambda: RobustMax(3), labels, 3),
    "robustmax-rough": Kind(lambda: RobustMax(3, epsilon=0.1, squash=1e-2, points=8), labels, 3),
    "softmax": Kind(lambda: Softmax(3, samples=7, fixed_samples=50), labels, 3),
    "weighted-gaussian": Kind(lambda: Weighted(Gaussian(0.2)), beside(values)),
    "weighted-softmax": Kind(lambda: Weighted(Softmax(3, samples=7, fixed_samples=50)), beside(labels), 3),
    "exposed-poisson": Kind(lambda: Exposed(Poisson()), beside(counts)),
    "exposed-gamma": Kind(lambda: Exposed(Gamma(1.7)), beside(positive)),
    "exposed-exponential": Kind(lambda: Exposed(Exponential()), beside(positive)),
    "weighted-exposed-counts": Kind(lambda: Weighted(Exposed(NegativeBinomial(0.6))), beside(beside(counts))),
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


def likelihood_stage(problem: Problem, *, with_draws: bool = True):
    """Expected log densities as a function of the likelihood's parameters, mu and var; and those leaves."""
    likelihood = problem.likelihood
    parameters = tree.leaves(likelihood, "parameter")

    def moved(x, reference):
        return backend_of(reference).xp.asarray(np.asarray(x).tolist(), **like(reference))

    def stage(leaves):
        mu, var = leaves["mu"], leaves["var"]
        constants = {name: moved(x, mu) for name, x in tree.leaves(likelihood, "constant").items()}
        here = tree.with_leaves(likelihood, constants | {name: leaves[f"likelihood.{name}"] for name in parameters})
        draws = {name: moved(x, mu) for name, x in problem.draws.items()} if with_draws else None
        value, pull = here.expected_log_density(mu, var, moved(problem.y, mu), draws=draws)

        def pullback(bar):
            likelihood_bar, mu_bar, var_bar = pull(bar)
            own = {f"likelihood.{name}": x for name, x in tree.leaves(likelihood_bar).items()}
            return own | {"mu": mu_bar, "var": var_bar}

        return (value,), pullback

    own = {f"likelihood.{name}": x for name, x in parameters.items()}
    return stage, own | {"mu": problem.mu, "var": problem.var}
