"""M-SVGP by the default recipe: more steps do not make it worse, and it gets where W-SVGP gets."""

import numpy as np
import pytest

import agp


def wave(rows=150):
    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, (rows, 1))
    return X, np.sin(2.0 * X) + 0.1 * rng.standard_normal((rows, 1))


@pytest.mark.long
def test_more_steps_are_no_worse():
    X, y = wave()
    bounds = []
    for steps in (100, 300, 900):
        model = agp.SVGP.from_data(X, y, posterior="marginal", num_inducing=20)
        bounds.append(float(agp.train(model, X, y, steps=steps).model.bound(X, y)[0]) / len(X))
    assert bounds[0] < bounds[1] < bounds[2] + 1e-2
    best = agp.fit_lbfgs(agp.SGPR.from_data(X, y, num_inducing=20), X, y)
    assert bounds[-1] > float(best.model.bound(X, y)[0]) / len(X) - 0.1


def test_a_mean_with_a_full_covariance_takes_natural_steps():
    X, y = wave(40)
    for posterior, natural in (("marginal", True), ("whitened", True), ("inverse-free", True), ("relaxed", False)):
        model = agp.SVGP.from_data(X, y, posterior=posterior, num_inducing=5)
        adam = agp.recipe(model, 10)[0]
        assert ("process.posterior.mean" not in adam.init(model)["first"]) == natural


@pytest.mark.slow
def test_no_natural_step_throws_a_class_away():
    # robust-max is flat where a class is far behind: what a step has thrown there stays
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    y = np.argmax(X @ rng.normal(size=(2, 5)), axis=1)[:, None] * 1.0
    model = agp.SVGP.from_data(X, y, posterior="whitened", likelihood=agp.RobustMax(5), num_inducing=20)
    adam = agp.recipe(model, 10)[0]
    assert adam.natural is None
    assert agp.recipe(model, 10, natural=0.05)[0].natural == 0.05
    trained = agp.train(model, X, y, steps=150, batch_size=50).model
    chosen = np.argmax(trained.predict(X, observed=True).mean, axis=1)
    assert set(chosen) == set(y[:, 0])


@pytest.mark.long
@pytest.mark.parametrize("batch_size", [None, 30])
def test_classes_are_learnt(batch_size):
    X, _ = wave()
    y = (X > 0.0) * 1.0
    model = agp.SVGP.from_data(X, y, posterior="marginal", likelihood=agp.Bernoulli(), num_inducing=15)
    trained = agp.train(model, X, y, steps=200, batch_size=batch_size).model
    assert float(trained.bound(X, y)[0]) / len(X) > -0.2
