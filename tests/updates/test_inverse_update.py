"""The inverse factor follows its matrix."""

import numpy as np
import pytest
from helpers import inducing_covariance, inducing_inputs, marginals, named, process, value_and_gradient, with_leaves

import agp
from agp import RBF, SVGP, Bernoulli, Gaussian, to_backend, to_numpy, train
from agp.backend import get_backend
from agp.bounds import Batch
from agp.errors import RepairWarning
from agp.linalg import constant_step, doubling_step, log_linear_step
from agp.posteriors import FullSiteRelaxed, InverseFree
from agp.updates import Adam, InverseUpdate, Residual, VarianceGap


def problem(M=12):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    y = np.sin(2 * X[:, :1])
    return SVGP.from_data(X, y, kernel=RBF(1.0, [1.0, 0.7]), likelihood=Gaussian(0.1), num_inducing=M), Batch(X, y, 1.0)


def residual(model):
    Kt = to_numpy(process(model).posterior.inverse_target(inducing_covariance(model)))
    L = to_numpy(process(model).posterior.inverse_factor)
    return np.linalg.norm(L.T @ Kt @ L - np.eye(len(L))) / np.sqrt(len(L))


def apply(model, batch, update=None):
    update = update or InverseUpdate()
    return update(model, batch, update.init(model))


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [5e-3, 1e-9])
def test_the_residual_stays_below_the_tolerance_after_every_step(tolerance):
    model, batch = problem()
    seen = []
    updates = [Adam(5e-2), InverseUpdate(tolerance=tolerance)]
    result = train(
        model, batch.X, batch.y, steps=40, updates=updates, callbacks=[lambda p: seen.append(residual(p.model))]
    )
    assert max(seen) < tolerance * (1 + 1e-6) + 1e-12
    np.testing.assert_allclose(result.trace["residual"], seen, rtol=1e-3, atol=1e-11)
    assert 0 < sum(result.trace["inverse_steps"]) < 40 * 8
    assert sum(result.trace["restarts"]) == 0


def test_a_model_starts_with_a_good_factor():
    assert residual(problem()[0]) < 5e-3


def test_a_good_factor_costs_no_step_unless_one_is_asked_for():
    model, batch = problem()
    assert apply(model, batch)[2]["inverse_steps"] == 1
    same, _, info = apply(model, batch, InverseUpdate(least_steps=0))
    assert info["inverse_steps"] == 0
    np.testing.assert_array_equal(process(same).posterior.inverse_factor, process(model).posterior.inverse_factor)


def deep(dtype="float64", **settings):
    _, batch = problem()
    X, y = batch.X.astype(dtype), batch.y.astype(dtype)
    return agp.DeepGP.from_data(X, y, num_inducing=8, **settings), X, y


@pytest.mark.parametrize("posterior", ["relaxed", "inverse-free", "relaxed-orthogonal"])
@pytest.mark.parametrize(
    ("layers", "dtype", "tolerance"), [(1, "float64", 5e-3), (2, "float64", 1e-9), (2, "float32", 3e-3)]
)
def test_layers_that_others_follow_have_a_tolerance_of_their_own(posterior, layers, dtype, tolerance):
    # in single precision as far as rounding allows
    model, X, y = deep(dtype, layers=layers, posterior=posterior, num_orthogonal=4 if "orth" in posterior else None)
    trace = train(model, X, y, steps=8, updates=agp.recipe(model, 8)).trace
    assert max(trace["residual"]) < tolerance
    assert layers > 1 or max(trace["residual"]) > 1e-9  # so the comparison means something
    assert sum(trace["restarts"]) == 0


@pytest.mark.slow
def test_a_tolerance_that_is_given_is_that_of_all_layers():
    model, X, y = deep(posterior="relaxed", layers=3)
    trace = train(model, X, y, steps=8, updates=[Adam(5e-2), InverseUpdate(5e-3)]).trace
    assert 1e-9 < max(trace["residual"]) < 5e-3


def test_the_gap_of_variances_is_for_one_layer():
    model, _, _ = deep(posterior=("relaxed", "whitened"))
    with pytest.raises(TypeError, match=r"does not support models with several layers; use Residual\(\)"):
        InverseUpdate(stopping=VarianceGap()).init(model)


@pytest.mark.parametrize("name", ["kernel.lengthscale", "kernel.variance", "posterior.site"])
@pytest.mark.parametrize("factor", [0.3, 0.98, 1.02, 3.0])
def test_the_factor_follows_a_jump_of_the_parameters(name, factor):
    model, batch = problem()
    jumped = with_leaves(model, {name: factor * named(model)[name]})
    found, _, info = apply(jumped, batch)
    assert residual(found) < 5e-3
    assert np.all(np.diag(process(found).posterior.inverse_factor) > 0)
    np.testing.assert_allclose(info["residual"], residual(found), rtol=1e-6)


def spoiled(L, kind):
    bad = np.array(L)
    if kind == "nan":
        bad[3, 1] = np.nan
    return {"nan": bad, "inf": bad * np.inf if kind == "inf" else bad, "huge": 1e3 * bad, "overflow": 1e300 * bad}[kind]


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("kind", ["nan", "inf", "huge", "overflow"])
def test_a_factor_that_cannot_be_used_is_thrown_away(kind):
    model, batch = problem()
    wrong = with_leaves(model, {"posterior.inverse_factor": spoiled(process(model).posterior.inverse_factor, kind)})
    with pytest.warns(RepairWarning, match="was discarded and computed again"):
        found, _, info = apply(wrong, batch)
    assert info["restarts"] == 1
    assert residual(found) < 5e-3


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("flipped", [0, 5, 11])
def test_a_factor_with_a_wrong_sign_is_repaired(flipped):
    model, batch = problem()
    L = np.array(process(model).posterior.inverse_factor)
    L[:, flipped] *= -1
    with pytest.warns(RepairWarning, match="was discarded and computed again"):
        found, _, info = apply(with_leaves(model, {"posterior.inverse_factor": L}), batch)
    assert np.all(np.diag(process(found).posterior.inverse_factor) > 0)
    assert residual(found) < 5e-3
    assert np.isfinite(info["residual"])


def test_the_cap_on_steps_holds():
    model, batch = problem()
    cold = with_leaves(model, {"posterior.inverse_factor": 1e-3 * np.eye(12)})
    assert apply(cold, batch, InverseUpdate(max_steps=3))[2]["inverse_steps"] == 3


def test_one_unit_step_is_newtons_step_of_the_factor():
    model, batch = problem()
    moved = with_leaves(model, {"kernel.variance": np.asarray(1.02)})
    L = process(moved).posterior.inverse_factor
    B = L.T @ process(moved).posterior.inverse_target(inducing_covariance(moved)) @ L
    expected = L @ (np.eye(12) - np.tril(B - np.eye(12)) + 0.5 * np.diag(np.diag(B) - 1))
    found = apply(moved, batch, InverseUpdate(tolerance=1e-12, max_steps=1, step=constant_step(1.0)))[0]
    np.testing.assert_allclose(process(found).posterior.inverse_factor, expected, rtol=1e-9, atol=1e-10)


def test_nothing_but_the_factor_changes():
    model, batch = problem()
    jumped = with_leaves(model, {"kernel.variance": np.asarray(3.0)})
    found = apply(jumped, batch)[0]
    for name, value in named(jumped).items():
        same = np.array_equal(named(found)[name], value)
        assert same == (name != "posterior.inverse_factor"), name


@pytest.mark.parametrize("library", ["torch", "array_api_strict"])
def test_other_libraries_take_the_same_steps(library):
    pytest.importorskip(library)
    model, batch = problem()
    jumped = with_leaves(model, {"kernel.variance": np.asarray(3.0)})
    expected, _, info = apply(jumped, batch)
    found, _, other = apply(to_backend(jumped, library), batch)
    assert {name: float(x) for name, x in other.items()} == pytest.approx({k: float(x) for k, x in info.items()})
    np.testing.assert_allclose(
        to_numpy(process(found).posterior.inverse_factor),
        process(expected).posterior.inverse_factor,
        rtol=1e-9,
        atol=1e-10,
    )


# -- rules ------------------------------------------------------------------------------------------------------------

STEPS = {"unit": constant_step(1.0), "log-linear": log_linear_step(), "doubling": doubling_step(0.1)}


def jumped(model):
    return with_leaves(model, {"kernel.variance": np.asarray(1.5)})


def likelihood_loss(model, batch):
    """What the likelihood part of the bound loses to an inexact inverse, in nats, by the exact one."""
    Kt = to_numpy(process(model).posterior.inverse_target(inducing_covariance(model)))
    exact = with_leaves(model, {"posterior.inverse_factor": np.linalg.cholesky(np.linalg.inv(Kt))})
    (_, var, _), (_, tight, _) = (marginals(m, batch.X)[0] for m in (model, exact))
    return batch.scale * np.sum(var - tight) / (2.0 * model.likelihood.noise_variance)


@pytest.mark.parametrize("stopping", [Residual(), VarianceGap(), VarianceGap(per_datum=True)], ids=repr)
@pytest.mark.parametrize("step", STEPS)
def test_every_rule_follows_a_jump(step, stopping):
    model, batch = problem()
    found, _, info = apply(jumped(model), batch, InverseUpdate(step=STEPS[step], stopping=stopping, tolerance=1e-4))
    assert info[stopping.name] < 1e-4
    assert info["inverse_steps"] > 0
    np.testing.assert_allclose(info["residual"], residual(found), rtol=1e-5)


@pytest.mark.parametrize("tolerance", [1.0, 1e-3])
@pytest.mark.parametrize("scale", [1.0, 7.0])
def test_the_variance_gap_bounds_what_the_likelihood_loses(scale, tolerance):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    y = np.sin(2 * X[:, :1] + np.arange(3))
    model = SVGP.from_data(X, y, kernel=RBF(1.0, [1.0, 0.7]), likelihood=Gaussian(0.1), num_inducing=12)
    model = with_leaves(jumped(model), {"posterior.site": np.linspace(0.05, 0.3, 12)})
    batch = Batch(X, y, scale)
    found, _, info = apply(model, batch, InverseUpdate(tolerance=tolerance, stopping=VarianceGap()))
    assert 0.0 <= likelihood_loss(found, batch) <= info["variance_gap"] < tolerance
    before = apply(model, batch, InverseUpdate(max_steps=0, stopping=VarianceGap()))[2]["variance_gap"]
    Kt, Kuf = (
        process(model).posterior.inverse_target(inducing_covariance(model)),
        process(model).kernel(inducing_inputs(model), X)[0],
    )
    L = process(model).posterior.inverse_factor
    excess = np.sum((Kuf - Kt @ L @ L.T @ Kuf) ** 2) / 0.05
    assert before == pytest.approx(3 * scale * excess / (2.0 * 0.1), rel=1e-9)
    assert max(tolerance, likelihood_loss(model, batch)) < before


def test_the_gap_of_a_datum_is_the_mean():
    model, batch = problem()
    model, scaled = jumped(model), batch._replace(scale=3.0)
    settings = {"tolerance": 1e-9, "max_steps": 0}
    total = apply(model, scaled, InverseUpdate(stopping=VarianceGap(), **settings))[2]["variance_gap"]
    mean = apply(model, scaled, InverseUpdate(stopping=VarianceGap(per_datum=True), **settings))[2]["variance_gap"]
    assert total == pytest.approx(3.0 * 40 * mean, rel=1e-12)


@pytest.mark.parametrize(
    "options", [{"likelihood": Bernoulli()}, {"posterior": InverseFree}, {"posterior": FullSiteRelaxed}]
)
def test_the_variance_gap_refuses_other_models(options):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 2))
    model = SVGP.from_data(X, (X[:, :1] > 0) * 1.0, num_inducing=4, **options)
    InverseUpdate().init(model)
    with pytest.raises(TypeError, match="Gaussian likelihood and one Relaxed posterior"):
        InverseUpdate(stopping=VarianceGap()).init(model)


@pytest.mark.parametrize("library", ["torch", "array_api_strict", "jax"])
def test_other_libraries_stop_by_variance_at_the_same_step(library):
    pytest.importorskip(library)
    model, batch = problem()
    update = InverseUpdate(step=doubling_step(0.3), stopping=VarianceGap(per_datum=True), tolerance=1e-5)
    expected, _, info = apply(jumped(model), batch, update)
    here = to_backend(jumped(model), library)
    there = Batch(to_backend(batch.X, library), to_backend(batch.y, library), 1.0)
    B = get_backend(library)
    found, _, other = B.compile(update)(here, there, update.init(here))  # a device loop under JAX
    assert {name: float(x) for name, x in other.items()} == pytest.approx(
        {k: float(x) for k, x in info.items()}, rel=1e-6
    )
    np.testing.assert_allclose(
        to_numpy(process(found).posterior.inverse_factor),
        process(expected).posterior.inverse_factor,
        rtol=1e-9,
        atol=1e-10,
    )


@pytest.mark.slow
def test_training_logs_the_variance_gap():
    model, batch = problem()
    updates = [Adam(2e-2), InverseUpdate(stopping=VarianceGap(per_datum=True), tolerance=1e-3)]
    trace = train(model, batch.X, batch.y, steps=20, updates=updates, batch_size=10).trace
    assert max(trace["variance_gap"]) < 1e-3
    assert len(trace["residual"]) == 20


def test_one_step_removes_the_pull_back_to_where_the_factor_fitted():
    # the gradient takes L for a constant: its error is of first order in the residual, after a step of second order
    model, batch = problem()
    site = 0.3 + process(model).posterior.site
    fitting = apply(with_leaves(model, {"posterior.site": site}), batch, InverseUpdate(tolerance=1e-12))[0]
    moved = with_leaves(fitting, {"posterior.site": 1.005 * site})

    def gradient(**settings):
        followed, _, info = apply(moved, batch, InverseUpdate(**settings))
        return info["inverse_steps"], value_and_gradient(followed, batch.X, batch.y)[1]["posterior.site"]

    (_, exact), (none, lazy), (one, usual) = (gradient(**s) for s in ({"tolerance": 1e-12}, {"least_steps": 0}, {}))
    assert (none, one) == (0, 1)
    behind, followed = (np.linalg.norm(x - exact) / np.linalg.norm(exact) for x in (lazy, usual))
    assert behind > 1e-3
    assert followed < 1e-2 * behind
