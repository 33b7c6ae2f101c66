"""Kernels x posteriors x likelihoods, end to end: every pair of parts meets, and all libraries agree."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers import (
    EXACT,
    JAX,
    NUMPY,
    POSTERIORS,
    STRICT,
    TORCH,
    Place,
    as_arrays,
    posterior_of,
    prior_covariance,
    svgp,
)

from agp import tree
from agp.bounds import Batch
from agp.gradient import GradientMode, gradient_of_batch
from agp.kernels import (
    RBF,
    Constant,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    White,
)
from agp.likelihoods import (
    Bernoulli,
    Beta,
    Exponential,
    Gamma,
    Gaussian,
    LatentNoiseGaussian,
    NegativeBinomial,
    Ordinal,
    Poisson,
    RobustMax,
    Softmax,
    StudentT,
)

ROWS, INDUCING, COLUMNS, OUTPUTS = 12, 5, 3, 3
LENGTHS, PERIODS = (0.7, 1.1, 0.9), (2.1, 3.3, 2.6)

KERNELS = {
    "rbf": lambda: RBF(0.8, LENGTHS),
    "matern12": lambda: Matern12(0.8, LENGTHS),
    "matern32": lambda: Matern32(1.2, 0.8),
    "matern52": lambda: Matern52(0.8, LENGTHS),
    "rational-quadratic": lambda: RationalQuadratic(1.2, LENGTHS, 0.7),
    "periodic": lambda: Periodic(0.8, LENGTHS, PERIODS),
    "linear": lambda: Linear(LENGTHS),
    "constant": lambda: Constant(0.9),
    "white": lambda: White(0.3),
    "sum": lambda: Matern32(0.5, 1.4) + Linear(0.4) + White(0.2),
    "product": lambda: RBF(0.8, 1.3) * Periodic(1.1, 0.9, PERIODS) * Linear(0.7),
    "scaled": lambda: 2.0 * Matern52(0.5, 0.8),
    "active": lambda: RBF(0.8, (0.7, 1.3)).on((2, 0)) + Linear(0.3).on([1]),
    "mixed": lambda: (Linear(0.3) + Constant(0.5)) * RBF(1.1, LENGTHS) + 0.5 * Matern12(0.4, 1.2).on([1]),
}


def _values(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(ROWS, OUTPUTS))


def _signs(rng: np.random.Generator) -> np.ndarray:
    return 1.0 * rng.integers(0, 2, size=(ROWS, OUTPUTS))


def _counts(rng: np.random.Generator) -> np.ndarray:
    return 1.0 * rng.poisson(2.0, size=(ROWS, OUTPUTS))


def _positive(rng: np.random.Generator) -> np.ndarray:
    return rng.gamma(1.5, size=(ROWS, OUTPUTS))


def _shares(rng: np.random.Generator) -> np.ndarray:
    return rng.beta(2.0, 1.5, size=(ROWS, OUTPUTS))


def _categories(rng: np.random.Generator) -> np.ndarray:
    return 1.0 * rng.integers(0, 4, size=(ROWS, OUTPUTS))


def _labels(rng: np.random.Generator) -> np.ndarray:
    return 1.0 * rng.integers(0, OUTPUTS, size=(ROWS, 1))


LIKELIHOODS = {
    "gaussian": (lambda: Gaussian(0.2), _values),
    "known-noise": (lambda: Gaussian(0.2), _values),
    "probit": (lambda: Bernoulli(), _signs),
    "logit": (lambda: Bernoulli(link="logit"), _signs),
    "squash": (lambda: Bernoulli(squash=1e-3), _signs),
    "student-t": (lambda: StudentT(0.4), _values),
    "poisson": (lambda: Poisson(exposure=1.3), _counts),
    "gamma": (lambda: Gamma(1.7), _positive),
    "exponential": (lambda: Exponential(), _positive),
    "negative-binomial": (lambda: NegativeBinomial(0.6), _counts),
    "beta": (lambda: Beta(6.0), _shares),
    "ordinal": (lambda: Ordinal(4, (-0.6, 0.3, 1.4)), _categories),
    "latent-noise": (lambda: LatentNoiseGaussian(unit=1.4), _values),
    "softmax": (lambda: Softmax(OUTPUTS, samples=7), _labels),
    "weighted": (lambda: Gaussian(0.2), _values),
    "exposed": (lambda: Poisson(), _counts),
    "robustmax": (lambda: RobustMax(OUTPUTS), _labels),
}
KNOWN: dict[str, dict[str, Callable[[np.random.Generator], np.ndarray]]] = {
    "known-noise": {"noise": lambda rng: 0.05 + rng.uniform(size=(ROWS, OUTPUTS))},
    "weighted": {"weights": lambda rng: 0.3 + rng.uniform(size=ROWS)},
    "exposed": {
        "weights": lambda rng: 0.3 + rng.uniform(size=ROWS),
        "offset": lambda rng: rng.normal(size=(ROWS, 1)),
    },
}
"""What is known of the rows, by the name of the likelihood."""


# -- the set ----------------------------------------------------------------------------------------------------------


def covering(*factors: Sequence[str]) -> list[tuple[str, ...]]:
    """Cases in which every pair of levels of different factors meets: greedy, the same list every time."""
    candidates = list(itertools.product(*factors))
    missing = set().union(*(_pairs(case) for case in candidates))
    chosen = []
    while missing:
        best = max(candidates, key=lambda case: len(_pairs(case) & missing))  # the first of equals
        chosen.append(best)
        missing -= _pairs(best)
    return chosen


def _pairs(case: tuple[str, ...]) -> set[tuple[tuple[int, str], ...]]:
    return set(itertools.combinations(enumerate(case), 2))


CASES = covering(tuple(KERNELS), tuple(POSTERIORS), tuple(LIKELIHOODS))


def test_every_pair_of_parts_meets():
    for i, j in itertools.combinations(range(3), 2):
        levels = [(tuple(KERNELS), POSTERIORS, tuple(LIKELIHOODS))[k] for k in (i, j)]
        assert {(case[i], case[j]) for case in CASES} == set(itertools.product(*levels))
    # no set is smaller than the two largest factors demand; a greedy one is little larger
    *_, second, first = sorted(map(len, (KERNELS, POSTERIORS, LIKELIHOODS)))
    assert first * second <= len(CASES) <= 1.1 * first * second


# -- the cases --------------------------------------------------------------------------------------------------------


class Problem(NamedTuple):
    """A model and a batch of data on the host."""

    model: Any
    batch: Batch


@functools.cache
def problem_of(kernel: str, posterior: str, likelihood: str) -> Problem:
    """A random model far from any optimum; explicit jitter keeps even a constant kernel well conditioned."""
    rng = np.random.default_rng([len(kernel), len(posterior), len(likelihood)])
    X, Z = rng.normal(size=(ROWS, COLUMNS)), rng.normal(size=(INDUCING, COLUMNS))
    build, targets = LIKELIHOODS[likelihood]
    prior, noise, y = as_arrays(KERNELS[kernel]()), as_arrays(build()), targets(rng)
    q = posterior_of(posterior, prior_covariance(prior, Z, 1e-2), noise.latents(y.shape[1]), rng)
    model = svgp(prior, noise, q, Z, jitter=1e-2)
    known = {name: draw(rng) for name, draw in KNOWN.get(likelihood, {}).items()}
    return Problem(model, Batch(X, y, 2.5, None, model._draws(rng, ROWS), **known))


def bound_and_gradient(problem: Problem, place: Place, mode: GradientMode = "closed-form") -> tuple[float, dict]:
    """Both on the host, computed elsewhere."""
    host = problem.batch
    batch = host._replace(draws=place.draws(host.draws)).take(place.array)
    value, gradient = gradient_of_batch(place.move(problem.model), batch, mode)
    return float(place.numpy(value)), {name: place.numpy(x) for name, x in gradient.items()}


ROUNDING = 1e-13
"""Entries of gradients are sums of terms of order 1 to 100, and exact only to this; some cancel altogether.

The probability that a function is the largest does not change when all are multiplied by a number: robust-max has next
to no gradient for the variance of a kernel that alone sets the size of the functions.
"""


def _agree(found: tuple[float, dict], expected: tuple[float, dict]) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-9)
    assert found[1].keys() == expected[1].keys()
    for name, x in expected[1].items():
        np.testing.assert_allclose(found[1][name], x, rtol=0.0, atol=EXACT * np.abs(x).max() + ROUNDING, err_msg=name)


@functools.cache
def _closed_form(case: tuple[str, str, str]) -> tuple[float, dict]:
    return bound_and_gradient(problem_of(*case), NUMPY)


JUDGES: dict[str, tuple[Place, GradientMode]] = {
    "torch": (TORCH, "autodiff"),
    "torch-closed-form": (TORCH, "closed-form"),
    "strict": (STRICT, "closed-form"),
    "jax": (JAX, "autodiff"),
}


OTHERS = [name for name in JUDGES if name != "torch"]
JUDGED = [(case, judge) for i, case in enumerate(CASES) for judge in ("torch", OTHERS[i % len(OTHERS)])]
"""Automatic differentiation for every case, and one of the other judges in turn."""


@pytest.mark.slow
@pytest.mark.sample(108)
@pytest.mark.parametrize(("case", "judge"), JUDGED, ids=lambda x: x if isinstance(x, str) else "-".join(x))
def test_libraries_and_gradient_modes_agree(case, judge):
    place, mode = JUDGES[judge]
    pytest.importorskip(place.name, reason=f"{place.name} is not installed: not executed")
    expected = _closed_form(case)
    assert expected[1].keys() == tree.leaves(problem_of(*case).model, "parameter").keys()
    _agree(bound_and_gradient(problem_of(*case), place, mode), expected)
