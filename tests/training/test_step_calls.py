"""A small step consists of arithmetic: how many Python functions of the library it calls is limited."""

import sys
from pathlib import Path

import numpy as np
import pytest

import agp
import agp_backends

FOLDERS = tuple(str(Path(package.__file__).parent) for package in (agp, agp_backends))


def calls_in(f):
    """How many calls of functions of the library there are while f runs."""
    count = 0

    def seen(frame, event, _):
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(FOLDERS)

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        f()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.long
@pytest.mark.parametrize(("posterior", "most"), [("whitened", 450), ("relaxed", 650)])
def test_a_small_step_calls_few_functions(posterior, most):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 5))
    y = np.sin(np.sum(X, axis=1)) + 0.1 * rng.standard_normal(500)
    model = agp.SVGP.from_data(X, y, posterior=posterior, num_inducing=32)
    updates = agp.recipe(model, 100)
    few, many = (
        calls_in(lambda steps=steps: agp.train(model, X, y, steps=steps, updates=updates, batch_size=32))
        for steps in (20, 60)
    )
    assert few > 0
    assert (many - few) / 40 <= most


def test_the_calls_of_the_first_step_are_no_more_than_those_of_the_beginning():
    """What is looked up once must not cost more than it saves."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((64, 5)), rng.standard_normal((64, 1))
    model = agp.SVGP.from_data(X, y, posterior="whitened", num_inducing=32)
    agp.value_and_gradient(model, X, y)  # what belongs to types and shapes is known

    def evaluated(model):
        return calls_in(lambda: agp.value_and_gradient(model, X, y))

    again = evaluated(model)
    anew = agp.tree.replace(model, {"likelihood": agp.Gaussian(model.likelihood.noise_variance)})
    assert again < evaluated(anew) <= 2 * again
