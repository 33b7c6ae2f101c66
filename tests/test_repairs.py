"""What was repaired is data on every backend: same counts, same kinds, one warning, compiled or not."""

import warnings

import numpy as np
import pytest

import agp
from agp import CGGP, GPR, RBF, SGPR, SVGP, Gaussian, RepairWarning, Relaxed, Whitened, tree
from agp.errors import NonFiniteError, NotPositiveDefiniteError
from agp.repairs import Tally, collected
from agp.training import fit_lbfgs
from agp.updates import Adam, InverseUpdate
from helpers import toy_data

ROWS = 24


def twins(place, model_class=SVGP, **options):
    """Twelve inducing inputs, three of them different, without jitter."""
    X, y = data(place)
    options = options or {"posterior": Whitened}
    Z = X[:12, :] * 0.0 + place.array(np.repeat(np.linspace(-1.0, 1.0, 3)[:, None], 4, axis=0))
    return model_class.from_data(
        X, y, kernel=RBF(1.0, 1.0), likelihood=Gaussian(0.1), Z=Z, jitter=0.0, **options
    )


def data(place, dtype="float64"):
    X, y = toy_data(ROWS)
    return place.array(X[:, :1], dtype), place.array(y, dtype)


def cold(place):
    """R-SVGP with a factor that must be thrown away."""
    X, y = data(place)
    model = SVGP.from_data(X, y, num_inducing=6, kernel=RBF(1.0, 1.0), likelihood=Gaussian(0.1))
    return tree.with_leaves(model, {"posterior.inverse_factor": 1e3 * model.posterior.inverse_factor})


def unsolved(place):
    """An iterative GP that may not iterate enough."""
    X, y = data(place)
    return CGGP.from_data(X, y, kernel=RBF(1.0, 0.1), likelihood=Gaussian(1e-3), rank=0, max_iterations=2)


def told(f):
    """What f gives, and the messages of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = f()
    assert all(warning.category is RepairWarning for warning in caught)
    return out, [str(warning.message) for warning in caught]


PROBLEMS = {
    "factorisation": (twins, [Adam(frozen=("*",))], 6, "12 x 12 covariance matrix was not positive definite"),
    "conjugate gradients": (unsolved, [Adam(frozen=("*",))], 6, "conjugate gradients stopped after 2 iterations"),
    "restart": (cold, [InverseUpdate(), Adam(frozen=("*",))], 1, "inverse factor was thrown away"),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_training_counts_the_same_on_every_backend(problem, backend):
    build, updates, count, what = PROBLEMS[problem]
    X, y = data(backend)
    result, messages = told(lambda: agp.train(build(backend), X, y, steps=6, updates=updates))
    assert list(result.repairs.values()) == [count]
    assert what in next(iter(result.repairs))
    (message,) = messages
    assert what in message
    assert message.startswith(f"{count} numerical repairs; the first: ") == (count > 1)
    assert list(result.repairs) == REFERENCE[problem]


REFERENCE = {}


@pytest.fixture(autouse=True, scope="module")
def _reference():
    from helpers import NUMPY

    X, y = data(NUMPY)
    for name, (build, updates, _, _) in PROBLEMS.items():
        result, _ = told(lambda build=build, updates=updates: agp.train(build(NUMPY), X, y, steps=6, updates=updates))
        REFERENCE[name] = list(result.repairs)
    yield
    REFERENCE.clear()
