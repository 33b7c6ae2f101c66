"""The bound of posteriors with inverse factors, compared with its value at exact inverses."""

import dataclasses

import numpy as np
import pytest
from helpers import toy_data

import agp
from agp import tree
from agp.posteriors import Relaxed, RelaxedUnion

MODELS = {
    "two groups": lambda X, y: agp.SOLVEGP.from_data(X, y, posterior=RelaxedUnion, num_inducing=4, num_orthogonal=3),
    "two groups, Student-t": lambda X, y: agp.SOLVEGP.from_data(
        X, y, posterior=RelaxedUnion, num_inducing=4, num_orthogonal=3, likelihood=agp.StudentT()
    ),
    "one group": lambda X, y: agp.SVGP.from_data(X, y, posterior=Relaxed, num_inducing=6),
}


def excess(make, preconditioned, seed):
    """Return by how much the bound at disturbed inverse factors exceeds its value at exact ones."""
    rng = np.random.default_rng(seed)
    X, y = toy_data(25, seed=seed)
    model = make(X, y)
    posterior = dataclasses.replace(model.process.posterior, preconditioned=preconditioned)
    model = tree.replace(model, {"process.posterior": posterior})
    raw = {name: x + 0.5 * rng.standard_normal(x.shape) for name, x in tree.unconstrain(model).items()}
    mean = next(name for name in raw if name.endswith("posterior.mean"))
    raw[mean] = rng.choice([0.1, 1.0, 3.0]) * rng.standard_normal(raw[mean].shape)
    model = tree.constrain(model, raw)
    Kuu = model.process.inducing_covariance()[0]
    exact = tree.replace(model, {"process.posterior": model.process.posterior.invert_from_scratch(Kuu)})
    size, near = rng.choice([0.03, 0.1, 0.3, 1.0]), {}
    for name, L in tree.leaves(exact, "auxiliary").items():
        moved = L * (1.0 + size * rng.standard_normal(L.shape))
        near[name] = np.tril(moved, -1) + np.diag(np.abs(np.diag(moved)))
    return float(tree.with_leaves(exact, near).bound(X, y)[0] - exact.bound(X, y)[0])


@pytest.mark.parametrize("model", MODELS)
def test_for_the_same_mean_the_bound_is_never_above_its_value_at_exact_inverses(model):
    assert max(excess(MODELS[model], False, seed) for seed in range(40)) < 0.0


@pytest.mark.parametrize("model", ["two groups", "one group"])
def test_a_preconditioned_mean_changes_with_the_inverse_and_the_bound_may_be_above(model):
    found = [excess(MODELS[model], True, seed) for seed in range(100)]
    assert min(found) < 0.0 < max(found)
