"""Natural-gradient steps of q(u) that come from the plain gradient."""

import numpy as np
import pytest

import agp
from agp import tree
from agp.bounds import Batch
from agp.updates import Adam, NaturalGradient

LIKELIHOODS = {
    "gaussian": agp.Gaussian(0.3),
    "bernoulli": agp.Bernoulli(),
    "student": agp.StudentT(),
    "poisson": agp.Poisson(),
}


def problem(likelihood, rows=60):
    rng = np.random.default_rng(1)
    X = rng.uniform(-2.0, 2.0, (rows, 2))
    f = np.sin(2.0 * X[:, :1]) + X[:, 1:]
    targets = {"bernoulli": (f > 0.0) * 1.0, "poisson": rng.poisson(np.exp(f)) * 1.0}
    return X, targets.get(likelihood, f + 0.3 * rng.standard_normal(f.shape))


def started(likelihood, posterior, **parts):
    X, y = problem(likelihood)
    parts = {"posterior": posterior, "likelihood": LIKELIHOODS[likelihood], **parts}
    return agp.SVGP.from_data(X, y, num_inducing=12, **parts), X, y


def near_the_optimum(model, X, y):
    """A q(u) from which no step has to be shortened."""
    return agp.train(model, X, y, steps=60, updates=[Adam(1e-9, natural=0.3)]).model


def step(update, model, X, y):
    return update(model, Batch(X, y), update.init(model))[0]


@pytest.mark.slow
@pytest.mark.parametrize("posterior", ["whitened", "marginal"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_it_is_the_step_in_root_coordinates(likelihood, posterior):
    model, X, y = started(likelihood, posterior)
    model = near_the_optimum(model, X, y)
    mine = step(Adam(0.0, natural=0.05), model, X, y)
    other = step(NaturalGradient(0.05, "root"), model, X, y)
    for name, x in tree.leaves(other, "parameter").items():
        # beta of the one comes from derivatives by var, that of the other from the likelihood's own site gradients
        assert np.allclose(tree.leaves(mine)[name], x, rtol=0.0, atol=2e-6 * np.max(np.abs(x)))


@pytest.mark.slow
@pytest.mark.parametrize("posterior", ["whitened", "marginal", "inverse-free"])
def test_backends_and_gradients_agree(backend, posterior):
    # Adam multiplies the rounding of a gradient that is zero, as that of a level is where it starts
    expected, X, y = started("gaussian", posterior, mean_function=agp.ConstantMean(0.3))
    model, A, b = (agp.to_backend(x, backend.name, device=backend.device) for x in (expected, X, y))
    found = dict.fromkeys(agp.get_backend(backend.name).gradients, model)
    for _ in range(5):
        expected = step(Adam(1e-2, natural=0.2), expected, X, y)
        found = {mode: step(Adam(1e-2, natural=0.2, gradient=mode), x, A, b) for mode, x in found.items()}
    for name, x in tree.leaves(expected, "parameter").items():
        for moved in found.values():
            here = agp.to_backend(tree.leaves(moved)[name], "numpy")
            assert np.allclose(here, x, rtol=0.0, atol=1e-9 * max(1.0, np.max(np.abs(x))))


@pytest.mark.long
@pytest.mark.parametrize("posterior", ["whitened", "marginal", "inverse-free"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_every_step_gains_from_the_prior_on(likelihood, posterior):
    model, X, y = started(likelihood, posterior)
    bounds = [float(model.bound(X, y)[0])]
    update = Adam(1e-9, natural=0.1)
    state = update.init(model)
    for _ in range(100):
        model, state, _ = update(model, Batch(X, y), state)
        bounds.append(float(model.bound(X, y)[0]))
    assert np.all(np.diff(bounds) > -1e-6 * np.abs(bounds[1:]))
    reached = bounds[-1]
    for _ in range(400):
        model, state, _ = update(model, Batch(X, y), state)
    assert reached > float(model.bound(X, y)[0]) - 0.05


@pytest.mark.long
def test_large_counts_do_not_overshoot():
    X, y = problem("poisson")
    y = y * 1000.0
    model = agp.SVGP.from_data(X, y, posterior="whitened", likelihood=agp.Poisson(), num_inducing=12)
    result = agp.train(model, X, y, steps=300, updates=[Adam(1e-9, natural=0.1)])
    bounds = np.asarray(result.trace["bound"])
    assert np.all(np.diff(bounds) > -1e-6 * np.abs(bounds[1:]))


def test_frozen_leaves_stay_and_halves_are_refused():
    model, X, y = started("gaussian", "whitened")
    moved = step(Adam(1e-2, natural=0.1, frozen="posterior.*"), model, X, y)
    assert np.array_equal(moved.process.posterior.mean, model.process.posterior.mean)
    with pytest.raises(ValueError, match=r"posterior.mean is frozen, but natural.*; freeze both .*, or neither"):
        Adam(1e-2, natural=0.1, frozen="posterior.mean").init(model)
    with pytest.raises(ValueError, match="natural-gradient step is 2.0"):
        Adam(1e-2, natural=2.0)


def test_inner_layers_of_deep_processes_are_left_to_adam():
    from agp.processes import Deep, Sparse

    X, y = problem("gaussian")
    layers = tuple(Sparse.from_data(X, outputs=n, posterior="whitened", num_inducing=8) for n in (2, 1))
    model = agp.SVGP(Deep(layers, samples=2), agp.Gaussian(np.asarray(0.1)))
    moving = set(Adam(natural=0.1).init(model)["first"])
    assert "process.layers.0.posterior.scale" in moving
    assert "process.layers.1.posterior.scale" not in moving


@pytest.mark.long
def test_orthogonal_groups_take_steps():
    X, y = problem("gaussian")
    model = agp.SOLVEGP.from_data(X, y, num_inducing=8, num_orthogonal=8)
    state = Adam(natural=0.1).init(model)
    assert not any("posterior" in name for name in state["first"])
    trained = agp.train(model, X, y, steps=200, updates=[Adam(1e-9, natural=0.1)]).model
    lbfgs = agp.fit_lbfgs(
        model, X, y, frozen=[n for n in tree.leaves(model, "parameter") if "posterior" not in n]
    ).model
    assert float(trained.bound(X, y)[0]) == pytest.approx(float(lbfgs.bound(X, y)[0]), abs=1e-3)
