"""L-BFGS on the profile of a bound: updates solve for q(u), sites and inverse factors in each evaluation."""

import numpy as np
import pytest

import agp
from agp import tree
from agp.bounds import Batch
from agp.gradient import value_and_gradient
from agp.training._objective import inner_updates, moves_posteriors
from agp.updates import InverseUpdate, NaturalGradient, SiteStep

RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, size=(60, 2))
Y = np.sin(3.0 * X[:, :1]) + 0.1 * RNG.normal(size=(60, 1))
LABELS = (X[:, :1] + 0.5 * RNG.normal(size=(60, 1)) > 0.0).astype(float)

GAUSSIAN = {
    "marginal": lambda X, y: agp.SVGP.from_data(X, y, num_inducing=12, posterior="marginal"),
    "whitened": lambda X, y: agp.SVGP.from_data(X, y, num_inducing=12, posterior="whitened"),
    "dual": lambda X, y: agp.SVGP.from_data(X, y, num_inducing=12, posterior="dual"),
    "tvgp": agp.TVGP.from_data,
}


def settled(model, inner, X, y):
    for _ in range(4):
        for update in inner:
            model = update(model, Batch(X, y), update.init(model))[0]
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", GAUSSIAN)
def test_all_forms_of_the_optimal_posterior_are_fitted_alike(name):
    model = GAUSSIAN[name](X, Y)
    inner = inner_updates(model, 256.0)
    assert not moves_posteriors(model, inner)
    found = agp.fit(model, X, Y)
    if name == "tvgp":  # `fit` takes Newton steps for GPR
        expected = agp.fit_lbfgs(agp.GPR.from_data(X, Y), X, Y, logarithms=True)
    else:
        expected = agp.fit(agp.SGPR.from_data(X, Y, num_inducing=12), X, Y)
    assert found.converged
    bounds = [float(result.model.bound(X, Y)[0]) for result in (found, expected)]
    assert abs(bounds[0] - bounds[1]) < 2e-3 * len(X)
    np.testing.assert_allclose(found.trace["bound"][:5], expected.trace["bound"][:5], rtol=1e-3)


@pytest.mark.parametrize("targets", ["numbers", "labels"])
@pytest.mark.parametrize("name", [*GAUSSIAN, "relaxed", "inverse-free"])
def test_the_gradient_is_that_of_the_profile(name, targets):
    y, likelihood = (Y, agp.Gaussian()) if targets == "numbers" else (LABELS, agp.Bernoulli())
    if name == "tvgp":
        model = agp.TVGP.from_data(X, y, likelihood=likelihood)
    else:
        model = agp.SVGP.from_data(X, y, num_inducing=12, posterior=name, likelihood=likelihood)
    model = agp.training.initial_state(model)
    inner = inner_updates(model, 256.0)
    if not inner:
        assert moves_posteriors(model, inner)  # nothing is solved for, and the gradient is the plain one
        return
    gradient = value_and_gradient(settled(model, inner, X, y), X, y)[1]
    path = "kernel.variance" if name == "tvgp" else "process.kernel.variance"
    raw = tree.unconstrain(model)[path]
    ends = [settled(tree.constrain(model, {path: raw + h}), inner, X, y) for h in (1e-4, -1e-4)]
    higher, lower = (float(end.bound(X, y)[0]) for end in ends)
    np.testing.assert_allclose(float(gradient[path]), (higher - lower) / 2e-4, rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_likelihoods_by_monte_carlo_have_their_fixed_noise():
    y = np.digitize(X[:, :1], [-0.7, 0.7]).astype(float)
    model = agp.SVGP.from_data(X, y, num_inducing=10, likelihood=agp.Softmax(3), posterior="whitened")
    found = agp.fit(model, X, y)
    assert found.converged
    assert found.trace["bound"][-1] == float(found.model.bound(X, y)[0])
    stepwise = agp.fit(model, X, y, batch_size=len(X))
    assert found.trace["bound"][-1] > float(stepwise.model.bound(X, y)[0]) - 0.01 * len(X)


@pytest.mark.parametrize(
    ("posterior", "likelihood"),
    [("dual", agp.StudentT()), ("dual", agp.RobustMax(3)), ("dual-inverse-free", agp.Gaussian())],
)
def test_sites_that_may_not_settle_are_left_to_steps(posterior, likelihood):
    y = np.digitize(X[:, :1], [-0.7, 0.7]).astype(float)
    model = agp.SVGP.from_data(X, y, num_inducing=10, likelihood=likelihood, posterior=posterior)
    assert inner_updates(model, 256.0) == []
    with pytest.raises(TypeError, match="L-BFGS would not update process.posterior.*use agp.train"):
        agp.fit_lbfgs(model, X, y)


@pytest.mark.long
@pytest.mark.parametrize("level", [1.0, 7.0])
def test_counts_of_any_size_are_fitted(level):
    y = np.random.default_rng(1).poisson(np.exp(level + np.sin(3.0 * X[:, :1]))).astype(float)
    sites = agp.SVGP.from_data(X, y, num_inducing=30, posterior="dual", likelihood=agp.Poisson())
    models = (agp.TVGP.from_data(X, y, likelihood=agp.Poisson()), sites)
    dense, sparse = (agp.fit(model, X, y) for model in models)
    assert dense.converged
    assert sparse.converged
    assert float(dense.model.bound(X, y)[0]) > float(sparse.model.bound(X, y)[0]) - 0.01 * len(X)


@pytest.mark.long
def test_steps_come_first_where_lbfgs_moves_a_posterior():
    model = agp.SVGP.from_data(X, Y, num_inducing=12, posterior="relaxed")
    found = agp.fit(model, X, Y)
    assert found.converged
    assert len(found.trace["bound"]) == found.steps > 200
    with pytest.warns(agp.errors.ConvergenceWarning, match="the limit of 50 steps"):
        assert agp.fit(model, X, Y, max_steps=50).steps == 50
    with pytest.warns(agp.errors.ConvergenceWarning, match="after 30 steps: a callback ended the training"):
        agp.fit(model, X, Y, callbacks=[lambda seen: seen.step == 30])


@pytest.mark.slow
def test_the_result_holds_what_was_solved_for():
    model = agp.SVGP.from_data(X, Y, num_inducing=12, posterior="relaxed")
    found = agp.fit_lbfgs(model, X, Y, max_iterations=20, inner=[InverseUpdate(1e-9)])
    assert float(found.model.bound(X, Y)[0]) == found.trace["bound"][-1]
    residual = InverseUpdate(1e-9)(found.model, Batch(X, Y), InverseUpdate().init(found.model))[2]["residual"]
    assert float(residual) < 1e-6


@pytest.mark.slow
def test_restarts_begin_where_the_model_was_given():
    model = agp.SVGP.from_data(X, Y, num_inducing=12, posterior="dual")
    settings = {"max_iterations": 10, "inner": [SiteStep(1.0)], "seed": 3}
    once = agp.fit_lbfgs(model, X, Y, **settings)
    twice = agp.fit_lbfgs(model, X, Y, restarts=1, **settings)
    assert twice.bounds[0] == once.bounds[0]
    assert len(twice.bounds) == 2


@pytest.mark.parametrize(
    ("inner", "error", "message"),
    [
        ([lambda model, batch, state: (model, state, {})], TypeError, "must be an update with a method `moves`"),
        ([SiteStep(1.0)], TypeError, "has no sites that SiteStep can update; use TSVGP"),
    ],
)
def test_updates_that_do_not_fit_are_refused(inner, error, message):
    model = agp.SVGP.from_data(X, Y, num_inducing=5, posterior="whitened")
    with pytest.raises(error, match=message):
        agp.fit_lbfgs(model, X, Y, inner=inner)


def test_nothing_left_to_optimise_names_who_took_it():
    model = agp.SVGP.from_data(X, Y, num_inducing=5, posterior="whitened")
    with pytest.raises(
        ValueError, match="every parameter is frozen by kernel.*, Z, likelihood.*, mean.*, NaturalGradient"
    ):
        agp.fit_lbfgs(
            model, X, Y, frozen=["kernel.*", "Z", "likelihood.*", "mean_function.*"], inner=[NaturalGradient(1.0)]
        )


@pytest.mark.slow
@pytest.mark.parametrize("library", ["torch", "jax"])
@pytest.mark.parametrize("posterior", ["whitened", "relaxed"])
def test_other_libraries_do_the_same(library, posterior):
    pytest.importorskip(library)
    models = [agp.SVGP.from_data(X, Y, num_inducing=8, posterior=posterior)]
    data = [(X, Y), tuple(agp.to_backend(x, library) for x in (X, Y))]
    models.append(agp.SVGP.from_data(*data[1], num_inducing=8, posterior=posterior))
    ends = []
    for model, rows in zip(models, data, strict=True):
        inner = inner_updates(model, 256.0)
        ends.append(agp.fit_lbfgs(model, *rows, max_iterations=15, inner=inner).trace["bound"])
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-6)


@pytest.mark.slow
def test_training_begins_where_inverse_factors_are_solved_for():
    model = agp.SVGP.from_data(X, Y, num_inducing=12, posterior="relaxed")
    begun = agp.training.initial_state(model)
    first = agp.fit_lbfgs(model, X, Y, max_iterations=5, inner=[InverseUpdate(1e-9, jumps=True)])
    same = agp.fit_lbfgs(begun, X, Y, max_iterations=5, inner=[InverseUpdate(1e-9, jumps=True)])
    assert first.trace["bound"] == same.trace["bound"]


@pytest.mark.parametrize("posterior", ["relaxed", "likelihoodform"])
def test_classes_that_narrow_marginals_would_lose_begin_wide(posterior):
    y = np.digitize(X[:, :1], [-0.7, 0.7]).astype(float)
    starts = {}
    for likelihood in (agp.RobustMax(3), agp.Softmax(3)):
        model = agp.SVGP.from_data(X, y, num_inducing=10, likelihood=likelihood, posterior=posterior)
        begun, variance = agp.training.initial_state(model), float(model.process.kernel.variance)
        starts[type(likelihood)] = begun.process.posterior.site / variance
        assert agp.training.initial_state(begun) is begun
    np.testing.assert_allclose(starts[agp.RobustMax], 0.1, rtol=1e-4)
    np.testing.assert_allclose(starts[agp.Softmax], 1e-4, rtol=1e-4)
