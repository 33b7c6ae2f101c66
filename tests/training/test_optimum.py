"""The optimal q(u) of likelihoods other than the Gaussian, and L-BFGS on the bound at that optimum."""

import numpy as np
import pytest

import agp
from agp import tree
from agp.bounds import Batch
from agp.errors import RepairWarning
from agp.gradient import value_and_gradient
from agp.posteriors import WhiteSteps
from agp.training._lbfgs import Curvature, PredictedGain
from agp.training._objective import Objective, inner_updates, moves_posteriors
from agp.updates import NaturalGradient, OptimalPosterior, Repeat, SiteStep, unexplained_nats
from agp.updates._at_rows import can_fix_rows, fix_rows

RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, size=(60, 2))
F = np.sin(3.0 * X[:, :1]) + 0.3 * X[:, 1:]
COUNTS = RNG.poisson(np.exp(F)).astype(float)
OUTLIERS = F + 0.2 * RNG.standard_t(2, size=F.shape)
CASES = {
    "poisson": (agp.Poisson(), COUNTS),
    "negative-binomial": (agp.NegativeBinomial(2.0), COUNTS),
    "student-t": (agp.StudentT(0.2, 3.0), OUTLIERS),
    "gamma": (agp.Gamma(2.0), np.exp(F) * RNG.gamma(2.0, 0.5, size=F.shape)),
    "bernoulli": (agp.Bernoulli(), (OUTLIERS > 0.0).astype(float)),
}


def built(name, **settings):
    likelihood, y = CASES[name]
    settings = {"num_inducing": 15, "posterior": "whitened"} | settings
    return agp.SVGP.from_data(X, y, likelihood=likelihood, **settings), y


def solved(model, y, **settings):
    update = OptimalPosterior(**settings)
    return update(model, Batch(X, y), update.init(model))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("posterior", ["whitened", "marginal"])
def test_the_gradient_by_every_leaf_of_q_vanishes(name, posterior):
    model, y = built(name, posterior=posterior)
    found, _, info = solved(model, y)
    assert float(info["solve_steps"]) < 60
    before, after = (value_and_gradient(one, X, y)[1] for one in (model, found))
    for leaf in ("process.posterior.mean", "process.posterior.scale"):
        assert np.abs(after[leaf]).max() < 1e-4 * max(1.0, np.abs(before[leaf]).max())
    again = solved(found, y)[0]
    assert abs(float(again.bound(X, y)[0] - found.bound(X, y)[0])) < 1e-8


@pytest.mark.parametrize("name", ["poisson", "gamma", "bernoulli"])
def test_with_all_rows_as_inducing_inputs_the_bound_is_that_of_sites_for_each_row(name):
    model, y = built(name, Z=X, jitter=1e-10)
    exact = agp.TVGP.from_data(
        X, y, likelihood=model.likelihood, kernel=model.kernel, mean_function=model.mean_function
    )
    steps = Repeat(SiteStep(0.8), 60)
    exact = steps(exact, Batch(X, y), steps.init(exact))[0]
    np.testing.assert_allclose(solved(model, y)[0].bound(X, y)[0], exact.bound(X, y)[0], rtol=1e-7)


def test_steps_that_would_lower_the_bound_or_lose_the_precision_are_shortened():
    likelihood, y = agp.StudentT(0.1, 1.0), OUTLIERS
    model = agp.SVGP.from_data(X, y, likelihood=likelihood, num_inducing=15, posterior="whitened")
    found, _, info = solved(model, y)
    assert float(info["shortened"]) > 0
    assert float(found.bound(X, y)[0]) > float(model.bound(X, y)[0])
    with pytest.warns(RepairWarning, match="after 2 steps, the posterior q.* was not at its optimum"):
        agp.fit_lbfgs(model, X, y, inner=[OptimalPosterior(max_steps=2)], max_iterations=1)


@pytest.mark.parametrize("variance", [50.0, 200.0, 400.0])
@pytest.mark.parametrize("num_inducing", [15, 60])
def test_far_too_wide_a_start_leads_to_the_same_optimum(variance, num_inducing):
    rows = np.random.default_rng(0).normal(size=(60, 2))
    y = np.exp(15.0 * rows[:, :1])
    settings = {"num_inducing": num_inducing, "posterior": "whitened"}
    model = agp.SVGP.from_data(rows, y, likelihood=agp.Gamma(1.0), **settings)
    wide = tree.with_leaves(model, {"process.kernel.variance": np.asarray(variance)})
    narrow = tree.with_leaves(wide, {"process.posterior.scale": 0.01 * wide.process.posterior.scale})
    update, batch = OptimalPosterior(), Batch(rows, y)
    found, expected = (update(one, batch, update.init(one))[0].bound(rows, y)[0] for one in (wide, narrow))
    assert float(wide.bound(rows, y)[0]) < -1e15
    np.testing.assert_allclose(found, expected, rtol=1e-8)


@pytest.mark.parametrize("outputs", ["shared", "separate", "intrinsic"])
def test_the_features_of_all_processes_are_computed_once(outputs):
    y = np.concatenate([COUNTS, RNG.poisson(np.exp(-F))], axis=1).astype(float)
    settings = {"num_inducing": 10, "posterior": "whitened", "outputs": outputs}
    model = agp.SVGP.from_data(X, y, likelihood=agp.Poisson(), **settings)
    model = Repeat(NaturalGradient(0.5), 3)(model, Batch(X, y), Repeat(NaturalGradient(0.5), 3).init(model))[0]
    assert can_fix_rows(model.process)
    process = fix_rows(model.process, X)[0]
    factor, fixed = model.process.factorise()[0], process.factorise()[0]
    moments, same = model.process.project(factor, X)[0], process.project_to_sites(fixed, X)[0]
    for x, z in zip(moments, same, strict=True):
        np.testing.assert_allclose(x, z, rtol=1e-8, atol=1e-10)
    kl = model.process.kl_divergence(factor)[0]
    np.testing.assert_allclose(process.kl_divergence(fixed)[0], kl, rtol=1e-8)
    gradient = value_and_gradient(solved(model, y)[0], X, y)[1]
    own = [x for leaf, x in gradient.items() if "posterior" in leaf]
    assert max(np.abs(x).max() for x in own) < 1e-3


def test_white_sites_describe_the_same_q():
    model, y = built("student-t", posterior="marginal")
    model = solved(model, y)[0]
    Lu = np.linalg.cholesky(model.process.inducing_covariance()[0])
    q = model.process.posterior
    assert isinstance(q, WhiteSteps)
    again = q.with_white_sites(q.white_sites(Lu), Lu)
    np.testing.assert_allclose(again.mean, q.mean, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(again.scale, q.scale, rtol=1e-8, atol=1e-9)


def test_rows_that_exceed_the_memory_take_steps_in_blocks():
    model, y = built("poisson")
    found, _, info = solved(model, y, memory=0.01)
    assert info == {}
    assert abs(float(found.bound(X, y)[0] - solved(model, y)[0].bound(X, y)[0])) < 0.1


@pytest.mark.parametrize(
    ("likelihood", "posterior"),
    [
        (agp.Softmax(3), "whitened"),
        (agp.RobustMax(3), "whitened"),
        (agp.Bernoulli(), "whitened"),
        (agp.Bernoulli(), "relaxed"),
    ],
)
def test_q_is_left_to_lbfgs_where_steps_have_no_optimum_of_the_bound(likelihood, posterior):
    y = np.digitize(X[:, :1], [-0.7, 0.7] if likelihood.latents(1) == 3 else [0.0]).astype(float)
    model = agp.SVGP.from_data(X, y, likelihood=likelihood, num_inducing=5, posterior=posterior)
    assert moves_posteriors(model, inner_updates(model, None))
    if posterior == "relaxed":
        with pytest.raises(TypeError, match="Relaxed cannot be set to its optimum; use .* Whitened or Marginal"):
            OptimalPosterior().init(model)


def test_what_few_inducing_inputs_leave_unexplained_is_half_the_curvature_times_the_variance():
    model, y = built("poisson")
    mu, var = model.predict(X)
    K, Ku, Kuu = model.kernel(X)[0], model.kernel(model.inducing.Z, X)[0], model.process.inducing_covariance()[0]
    residual = np.diagonal(K - Ku.T @ np.linalg.solve(Kuu, Ku))
    expected = 0.5 * np.sum(np.exp(mu + 0.5 * var)[:, 0] * residual)
    np.testing.assert_allclose(unexplained_nats(model, Batch(X, y)), expected, rtol=1e-6)


@pytest.mark.parametrize(("num_inducing", "moved"), [(3, True), (60, False)])
def test_inducing_inputs_move_only_if_there_are_too_few(num_inducing, moved):
    model, y = built("poisson", num_inducing=num_inducing)
    found = agp.fit(model, X, y)
    assert found.converged
    assert found.frozen == ("process.inducing.Z",)  # those of the last search
    assert np.array_equal(found.model.inducing.Z, model.inducing.Z) != moved


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"bernoulli"}))
def test_training_again_from_the_result_gains_nothing(name):
    model, y = built(name, Z=X)
    found = agp.fit(model, X, y)
    assert found.converged
    assert found.trace["gain"][-1] < 1e-6
    settings = {"inner": inner_updates(model, None), "logarithms": True}
    best = agp.fit_lbfgs(found.model, X, y, tolerance=1e-9, frozen="*.Z", **settings).model
    assert float(best.bound(X, y)[0] - found.model.bound(X, y)[0]) < 1e-4


@pytest.mark.parametrize("name", ["poisson", "student-t"])
def test_torch_trains_to_the_same_numbers(name):
    pytest.importorskip("torch")
    model, y = built(name, Z=X)
    expected = agp.fit(model, X, y)
    moved = [agp.to_backend(x, "torch") for x in (X, y)]
    found = agp.fit(agp.to_backend(model, "torch"), *moved)
    np.testing.assert_allclose(found.trace["bound"][-1], expected.trace["bound"][-1], rtol=1e-8)


def test_the_curvature_of_a_parabola_is_known_after_as_many_steps_as_it_has_directions():
    H = np.asarray([[3.0, 1.0, 0.0], [1.0, 2.0, 0.5], [0.0, 0.5, 0.4]])
    curvature = Curvature()
    assert curvature.decrement(np.ones(3)) == np.inf
    x = np.asarray([1.0, -2.0, 0.7])
    for _ in range(4):
        curvature.add(x, H @ x)
        p = -H @ x if not curvature.pairs else -np.linalg.solve(H, H @ x) + 0.1 * RNG.normal(size=3)
        x = x - (p @ (H @ x)) / (p @ H @ p) * p  # an exact line search
    gain = 0.5 * x @ H @ x
    curvature.add(x, H @ x)
    assert 0.2 * gain < curvature.decrement(H @ x) < 5.0 * gain


def test_the_predicted_gain_ends_a_search_at_the_second_small_one():
    rule = PredictedGain(1e-3)
    seen = [
        agp.training.Progress(i, None, {"bound": 0.0, "gain": g, "unfinished": False}, 0.0)
        for i, g in enumerate([1e-9, 1.0, 1e-9, 1e-9])
    ]
    assert list(map(rule, seen)) == [False, False, False, True]
    assert "less than 1e-07" in rule.message


@pytest.mark.parametrize(("share", "ends"), [(0.0, None), (0.4, None), (0.6, 20), (1.0, 20)])
def test_the_gain_of_twenty_iterations_ends_a_search_with_inexact_gradients(share, ends):
    rule = PredictedGain(1e-3, inexact=0.1)
    for i in range(40):
        unfinished = int((i + 1) * share) > int(i * share)
        ended = rule(agp.training.Progress(i, None, {"bound": 1e-3 * i, "gain": 1.0, "unfinished": unfinished}, 0.0))
        if ended:
            break
    assert (i if ended else None) == ends
    assert not ends or rule.message == "the last 20 iterations gained less than 0.1 nats"
    unequal = PredictedGain(1e-3, inexact=0.01)
    found = [
        unequal(agp.training.Progress(i, None, {"bound": i, "gain": 1.0, "unfinished": True}, 0.0)) for i in range(40)
    ]
    assert not any(found)


def test_logarithms_of_positive_leaves_have_the_gradient_of_the_bound():
    model, y = built("gamma", kernel=agp.RBF(variance=1e-3, lengthscale=[0.5, 300.0]))
    frozen = ("process.posterior.*", "*.Z")
    ends = [agp.fit_lbfgs(model, X, y, max_iterations=60, frozen=frozen, logarithms=logs) for logs in (False, True)]
    np.testing.assert_allclose(*(end.model.bound(X, y)[0] for end in ends), rtol=1e-4)
    names = [name for name in tree.leaves(model, "parameter") if "posterior" not in name and not name.endswith("Z")]
    objective = Objective(model, Batch(X, y), names, [], "closed-form", None, logarithms=True)
    at = objective.vector_of(model)
    np.testing.assert_allclose(np.exp(at[objective.positive][:1]), 1e-3 / np.asarray(model.kernel.variance_unit or 1.0))
    slope = objective(at).slope
    for i in range(len(at)):
        step = 1e-5 * np.eye(len(at))[i]
        numeric = (objective(at + step).loss - objective(at - step).loss) / 2e-5
        np.testing.assert_allclose(slope[i], numeric, rtol=1e-5, atol=1e-9)
