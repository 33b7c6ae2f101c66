"""Building, training and using computation-aware GPs: budgets, precision, factorisations, bad input."""

import numpy as np
import pytest
from helpers import JAX, NUMPY, TORCH, assert_close, gpr, peak, toy_data
from solvers import Forbidden

import agp
from agp import CaGP, tree
from agp.actions import BlockActions, DenseActions, FixedActions, KernelColumns, RandomDirections, UnitVectors
from agp.posteriors import ProjectedInverseFree
from agp.updates import Adam, InverseUpdate, Normalise


def data(place, dtype="float64", outputs=2, rows=30):
    X, y = toy_data(rows, outputs=outputs)
    return place.array(X, dtype), place.array(y, dtype)


# -- training ---------------------------------------------------------------------------------------------------------

STARTS = {
    "full": {"num_actions": 7},
    "capped": {"num_actions": 5, "support": 12},
    "paper": {"num_actions": 7, "layout": "random", "init": "normal"},
    "fixed": {"policy": UnitVectors(6)},
    "inverse-free": {"num_actions": 7, "inverse_free": True},
    "capped-inverse-free": {"num_actions": 5, "support": 12, "inverse_free": True},
}


def run(place, kind, steps=6, **options):
    X, y = data(place)
    model = CaGP.from_data(X, y, **STARTS[kind])
    batch_size = 10 if model.capped else None
    if kind == "fixed":
        options.setdefault("updates", agp.recipe(model, steps, frozen="actions.values"))
    return agp.train(model, X, y, steps=steps, batch_size=batch_size, **options)


@pytest.mark.slow
@pytest.mark.parametrize("kind", STARTS)
def test_training_and_prediction_are_the_same_everywhere(kind, backend):
    result = run(backend, kind)
    model, X = result.model, data(backend)[0]
    for leaf in tree.describe(model):
        backend.check(leaf.value)
    outputs = [*model.predict(X[:4, :]), *model.predict(X[:4, :], observed=True), model.predict_mean(X[:4, :])]
    assert all(backend.numpy(x).shape == (4, 2) and np.isfinite(backend.numpy(x)).all() for x in outputs)
    assert backend.numpy(model.predict_covariance(X[:4, :])).shape == (2, 4, 4)
    host = run(NUMPY, kind)
    np.testing.assert_allclose(result.trace["bound"], host.trace["bound"], rtol=1e-9)
    for name, value in tree.leaves(host.model).items():
        assert_close(backend.numpy(tree.leaves(model)[name]), value, 1e-7, name)


def tile_rows(monkeypatch):
    """Records how many rows each kernel matrix against the support has."""
    seen, whole = set(), agp.RBF.__call__

    def watched(self, X, Z=None, /):
        seen.add(X.shape[0])
        return whole(self, X, Z)

    monkeypatch.setattr(agp.RBF, "__call__", watched)
    return seen


@pytest.mark.slow
def test_training_keeps_to_a_budget(monkeypatch):
    X, y = data(NUMPY)
    model = CaGP.from_data(X, y, num_actions=7)
    memory = 4.5 * model._floats_per_row * 8 / 2**20
    trained = [run(NUMPY, "full", updates=agp.recipe(model, 6, memory=m)) for m in (256.0, memory)]
    np.testing.assert_allclose(*(r.trace["bound"] for r in trained), rtol=1e-11)
    searched = [agp.fit_lbfgs(model, X, y, max_iterations=3, memory=m) for m in (256.0, memory)]
    np.testing.assert_allclose(*(r.trace["bound"] for r in searched), rtol=1e-9)
    seen = tile_rows(monkeypatch)
    Adam(memory=memory)(model, model._batch(X, y), Adam().init(model))
    assert seen == {4, 2}  # 30 rows in tiles of 4


def test_a_budget_below_one_row_is_refused():
    X, y = data(NUMPY)
    model = CaGP.from_data(X, y, num_actions=7)
    with pytest.raises(ValueError, match="one row of covariances with the 30 rows of the support takes"):
        agp.train(model, X, y, steps=1, updates=[Adam(memory=1e-5)])


@pytest.mark.parametrize("model_class", [agp.SVGP, agp.SGPR, agp.CGGP, CaGP])
def test_a_budget_that_is_no_positive_number_is_refused(model_class):
    X, y = data(NUMPY)
    model = model_class.from_data(X, y)
    batch, state = model._batch(X, y), Adam().init(model)
    for memory, message in ((0.0, "must be positive"), (float("nan"), "must be positive")):
        with pytest.raises(ValueError, match=message):
            Adam(memory=memory)(model, batch, state)
    with pytest.raises(TypeError, match="memory is '1 GiB', but must be a number of MiB"):
        Adam(memory="1 GiB")(model, batch, state)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["full", "capped", "inverse-free"])
def test_training_raises_the_bound(kind):
    X, y = data(NUMPY)
    model = CaGP.from_data(X, y, **STARTS[kind])
    trained = agp.train(model, X, y, steps=150, updates=agp.recipe(model, 150, rate=0.1)).model
    before, after = (float(m.bound(X, y)[0]) for m in (model, trained))
    assert after > before + 10.0
    sparse = trained.actions
    np.testing.assert_allclose(sparse._sum_parts(sparse.values**2), 1.0, rtol=1e-12)


def test_the_recipe():
    X, y = data(NUMPY)
    for start, expected in ((STARTS["inverse-free"], [Adam, Normalise, InverseUpdate]), (STARTS["fixed"], [Adam])):
        updates = agp.recipe(CaGP.from_data(X, y, **start), 40, rate=0.2)
        assert [type(update) for update in updates] == expected
        rate = updates[0].rate
        assert_close([float(rate(np.asarray(float(n)))) for n in (0, 20, 40, 99)], [0.2, 0.11, 0.02, 0.02], 1e-12)


def test_without_renormalisation_actions_only_grow():
    X, y = data(NUMPY)
    model = CaGP.from_data(X, y, num_actions=7, layout="random", init="normal")
    grown = agp.train(model, X, y, steps=30, updates=[Adam(0.1)]).model.actions
    assert (grown._sum_parts(grown.values**2) > 1.0).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["full", "paper"])
def test_lbfgs_trains_learned_actions(kind):
    X, y = data(NUMPY)
    model = CaGP.from_data(X, y, **STARTS[kind])
    slow = agp.train(model, X, y, steps=60, updates=agp.recipe(model, 60, rate=0.1)).model
    result = agp.fit_lbfgs(model, X, y, max_iterations=60)
    bounds = [float(m.bound(X, y)[0]) for m in (model, slow, result.model)]
    assert bounds[0] < bounds[1] < bounds[2] + 1.0
    exact = gpr(result.model.kernel, result.model.likelihood, X, y)
    assert bounds[2] <= float(exact.bound(X, y)[0])


def test_lbfgs_refuses_what_it_would_leave_behind():
    X, y = data(NUMPY)
    with pytest.raises(TypeError, match="inverse_factor"):
        agp.fit_lbfgs(CaGP.from_data(X, y, **STARTS["inverse-free"]), X, y)


# -- no factorisation -------------------------------------------------------------------------------------------------


def run_without_solvers(place, kind, forbid, mode="closed-form"):
    """Lengthscales are chosen from the data by factorisations on the host; from then on there is none."""
    X, y = data(place)
    model = CaGP.from_data(X, y, **STARTS[kind])
    forbid()
    updates = agp.recipe(model, 12, rate=0.05, gradient=mode)
    result = agp.train(model, X, y, steps=12, batch_size=10 if model.capped else None, updates=updates)
    model = result.model
    outputs = [*model.predict(X), *model.predict(X, observed=True), model.predict_mean(X), model.predict_covariance(X)]
    for x in (*outputs, model.log_density(X, y)):
        assert np.isfinite(place.numpy(x)).all()
    assert max(result.trace["inverse_steps"]) > 0
    assert max(result.trace["residual"]) < 5e-3


@pytest.mark.long
@pytest.mark.parametrize("kind", ["inverse-free", "capped-inverse-free"])
def test_the_inverse_free_form_runs_where_every_solver_raises(kind, backend, forbid_solvers):
    run_without_solvers(backend, kind, forbid_solvers)


@pytest.mark.slow
@pytest.mark.parametrize("place", [TORCH, JAX], ids=["torch", "jax"])
def test_inverse_free_autodiff_runs_where_every_solver_raises(place, forbid_solvers):
    pytest.importorskip(place.name, reason=f"{place.name} is not installed: not executed")
    run_without_solvers(place, "inverse-free", forbid_solvers, mode="autodiff")


@pytest.mark.sample(0)
def test_the_cholesky_form_needs_a_solver(backend, forbid_solvers):
    X, y = data(backend)
    model = CaGP.from_data(X, y, num_actions=7)
    forbid_solvers()
    with pytest.raises(Forbidden):
        model.bound(X, y)
    with pytest.raises(Forbidden):
        model.predict(X)


@pytest.mark.slow
def test_inverse_free_predictions_are_those_of_the_cholesky_form_once_trained():
    X, y = data(NUMPY)
    model = CaGP.from_data(X, y, **STARTS["inverse-free"])
    model = agp.train(model, X, y, steps=20).model
    parts = model.kernel, model.likelihood
    exact = CaGP(*parts, actions=model.actions, X=model.X, y=model.y, mean_function=model.mean_function)
    for ours, theirs in zip(model.predict(X), exact.predict(X), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert (model.predict(X).variance >= exact.predict(X).variance - 1e-12).all()


# -- single precision -------------------------------------------------------------------------------------------------

FLOAT32 = {
    (0.3, 1e-1): 1.1e-8,
    (0.3, 1e-3): 5.4e-6,
    (1.0, 1e-2): 7.4e-8,
    (1.0, 1e-4): 1.5e-4,
    (3.0, 1e-2): 9.4e-7,
    (3.0, 1e-4): 8.1e-5,
}
"""Known errors per datum with tiles in float32 and sums in float64, by lengthscale and noise variance."""


@pytest.mark.parametrize(("setting", "known"), FLOAT32.items(), ids=str)
def test_tiles_in_single_precision(setting, known):
    lengthscale, noise = setting
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(-3.0, 3.0, 600))[:, None]
    y = np.sin(2.0 * X) + noise**0.5 * rng.normal(size=X.shape)
    parts = agp.Matern32(np.asarray(1.0), np.asarray(lengthscale)), agp.Gaussian(np.asarray(noise))
    model = CaGP(*parts, actions=BlockActions(np.ones(600), 64).normalise(), X=X, y=y)
    single = tree.to_backend(model, "numpy", dtype="float32")
    double = tree.to_backend(single, "numpy", dtype="float64")
    error = abs(float(single.bound(single.X, single.y)[0]) - float(double.bound(double.X, double.y)[0])) / 600
    # the result itself is rounded to float32: 1e-7 per datum
    assert error <= 10.0 * max(known, 2e-7)
    assert error <= 2e-4


# -- memory -----------------------------------------------------------------------------------------------------------

ROWS, SUPPORT = 6_000, 500
WHOLE = ROWS * SUPPORT * 8 / 2**20
"""The covariances of a capped support with the data, in MiB."""


@pytest.mark.long
def test_the_bound_holds_one_tile():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 2))
    y = np.sin(X[:, :1])
    model = CaGP.from_data(X, y, num_actions=20, support=SUPPORT)

    def both(**options):
        model.bound(X, y, **options)[1](1.0)

    assert peak(lambda: both(memory=2.0)) < 4.0
    assert peak(lambda: both(memory=1000.0)) > 4 * SUPPORT**2 * 8 / 2**20  # so the limit above means something
    assert peak(lambda: model.predict(X, memory=2.0)) > 0.0


@pytest.mark.long
def test_the_bound_of_full_support_holds_one_tile():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1_500, 2))
    y = np.sin(X[:, :1])
    model = CaGP.from_data(X, y, num_actions=10)
    limited, free = (peak(lambda m=m: model.bound(X, y, memory=m)[1](1.0)) for m in (1.5, 1000.0))
    assert limited < 3.5
    assert free > 10.0 * limited


def test_a_budget_below_one_row_is_an_error():
    X, y = data(NUMPY)
    model = CaGP.from_data(X, y, num_actions=5)
    with pytest.raises(ValueError, match="one row of covariances with the 30 rows of the support"):
        model.bound(X, y, memory=1e-4)


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_actions": 31}, "num_actions is 31, but must be at most .* 30"),
        ({"support": 31}, "support is 31, but must be at most .* 30"),
        ({"support": 10, "num_actions": 11}, "num_actions is 11, but must be at most .* 10"),
        ({"policy": UnitVectors(31)}, "count is 31, but there are 30 rows"),
        ({"policy": UnitVectors(3), "num_actions": 3}, "omit actions= and num_actions="),
        ({"actions": FixedActions(np.eye(30)), "support": 4}, "omit num_actions= and support="),
        ({"actions": FixedActions(np.eye(29))}, "the actions have 29 rows, but the data have 30"),
        ({"actions": FixedActions(np.ones((30, 31)))}, "there are 31 actions over 30 rows"),
        ({"actions": DenseActions(np.eye(30)[:, [3, 1, 3, 1]])}, r"actions \[2, 3\] are zero, or linear combinations"),
        ({"actions": DenseActions(np.eye(30)[:, :3] * [1.0, 0.0, 1.0])}, r"actions \[1\] are zero"),
        ({"actions": BlockActions(np.repeat([1.0, 0.0, 2.0], 10), 3)}, r"actions \[1\] are zero"),
        ({"loss": "evidence"}, "loss is 'evidence', but must be 'elbo' or 'projected'"),
        ({"kernel": agp.RBF() + agp.White()}, "remove White from the kernel"),
    ],
)
def test_bad_options_are_named(options, message):
    X, y = data(NUMPY)
    with pytest.raises(ValueError, match=message):
        CaGP.from_data(X, y, **options)


def test_bad_types_are_named():
    X, y = data(NUMPY)
    with pytest.raises(TypeError, match="must be a policy"):
        CaGP.from_data(X, y, policy=7)
    with pytest.raises(TypeError, match="must be an instance of agp's Actions"):
        CaGP.from_data(X, y, actions=np.eye(30))
    with pytest.raises(TypeError, match="Gaussian"):
        CaGP.from_data(X, y, likelihood=agp.StudentT())


def test_other_data_than_the_model_was_built_with():
    X, y = data(NUMPY)
    with pytest.raises(ValueError, match="cover 30 rows, but the data have 20"):
        agp.train(CaGP.from_data(X, y, num_actions=4), X[:20], y[:20], steps=1)


def test_columns_in_the_span_of_others_are_left_out_with_a_warning():
    S = np.eye(6)[:, [0, 1, 0, 2, 5]] * [1.0, 2.0, 3.0, 0.0, 1.0]
    with pytest.warns(UserWarning, match=r"actions \[2, 3\] were dropped: they are zero or in the span"):
        kept = FixedActions.spanning(S)
    np.testing.assert_allclose(np.abs(kept.values), np.eye(6)[:, [0, 1, 5]], atol=1e-14)
    with pytest.raises(ValueError, match="every action is zero"):
        FixedActions.spanning(np.zeros((4, 2)))


@pytest.mark.parametrize("name", ["weights", "offset", "noise"])
@pytest.mark.parametrize("support", [None, 12])
def test_what_is_known_of_rows_is_given_to_the_model_and_to_its_bound(support, name):
    X, y = data(NUMPY)
    known = {name: 0.1 + X[:, 0] ** 2}
    without, model = (CaGP.from_data(X, y, num_actions=5, support=support, **given) for given in ({}, known))
    for call in (without.bound, lambda *rows, **given: agp.value_and_gradient(without, *rows, **given)):
        with pytest.raises(ValueError, match=f"{name} was given only to training; give {name} to both"):
            call(X, y, **known)
    if support is None:  # the model holds all rows
        assert model.bound(X, y)[0] == model.bound(X, y, **known)[0]
    else:
        with pytest.raises(ValueError, match=f"{name} was given only to from_data; give {name} to both"):
            model.bound(X, y)


# -- starts -----------------------------------------------------------------------------------------------------------


def test_a_policy_keeps_the_order_of_the_data_unless_its_support_is_capped():
    X, y = data(NUMPY)
    model = CaGP.from_data(X, y, policy=UnitVectors(rows=[4, 2]))
    np.testing.assert_array_equal(model.X, X)
    np.testing.assert_array_equal(np.argmax(model.actions.values, axis=0), [4, 2])
    assert not model.stochastic
    capped = CaGP.from_data(X, y, policy=RandomDirections(3), support=9)
    assert capped.stochastic
    assert capped.X.shape == (9, 2)
    assert {tuple(row) for row in capped.X} < {tuple(row) for row in X}


def test_kernel_columns_take_the_starting_hyperparameters():
    X, y = data(NUMPY)
    model = CaGP.from_data(X, y, policy=KernelColumns(Z=X[:4]))
    K = model.kernel(X, X[:4])[0]
    S = model.actions.values
    np.testing.assert_allclose(S @ (S.T @ K), K, atol=1e-12)


def test_actions_may_start_at_the_residual():
    X, y = data(NUMPY, outputs=1)
    mean = agp.ConstantMean(5.0)
    model = CaGP.from_data(X, y, num_actions=1, layout="random", init="residual", mean_function=mean)
    residual = model.y[:, 0] - 5.0
    np.testing.assert_allclose(model.actions.values, residual / np.linalg.norm(residual), rtol=1e-12)


def test_inverse_free_starts_at_the_inverse():
    X, y = data(NUMPY)
    model = CaGP.from_data(X, y, **STARTS["inverse-free"])
    assert isinstance(model.posterior, ProjectedInverseFree)
    L = model.posterior.inverse_factor
    np.testing.assert_allclose(L.T @ model._matrix_to_invert() @ L, np.eye(7), atol=1e-2)


# -- what is left open ------------------------------------------------------------------------------------------------


def test_uncertainty_is_what_data_and_computation_leave_open(backend):
    X, y = data(backend)
    model = CaGP.from_data(X, y, num_actions=5)
    Xs = X[:6, :] + 0.3
    combined, mathematical, computational = (backend.numpy(v) for v in model.uncertainty(Xs))
    assert combined.shape == mathematical.shape == computational.shape == (6, 2)
    exact = gpr(model.kernel, model.likelihood, X, y).predict(Xs).variance
    np.testing.assert_allclose(mathematical, backend.numpy(exact), rtol=1e-9)
    np.testing.assert_allclose(combined, backend.numpy(model.predict(Xs).variance), rtol=1e-12)
    np.testing.assert_allclose(combined, mathematical + computational, rtol=1e-9)
    assert (computational > 1e-6).all()


def test_with_as_many_actions_as_data_nothing_is_left_to_compute():
    X, y = data(NUMPY)
    assert np.max(CaGP.from_data(X, y, num_actions=30).uncertainty(X).computational) < 1e-9


def test_uncertainty_of_capped_support_needs_all_inputs():
    X, y = data(NUMPY)
    model = CaGP.from_data(X, y, num_actions=4, support=10)
    with pytest.raises(ValueError, match="pass inputs="):
        model.uncertainty(X)
    split = model.uncertainty(X, X)
    assert (split.combined >= split.mathematical - 1e-12).all()
    with pytest.raises(ValueError, match="the exact posterior of 30 rows needs"):
        model.uncertainty(X, X, memory=0.01)


def test_coverage_under_the_prior_is_the_nominal_one():
    # conservative means wider, not over-covering on average: the posterior is exact for the projected data
    rng = np.random.default_rng(3)
    X, Xs = rng.uniform(0.0, 6.0, (60, 1)), rng.uniform(0.0, 6.0, (40, 1))
    parts = agp.Matern32(np.asarray(1.0), np.asarray(0.7)), agp.Gaussian(np.asarray(0.1))
    both = np.concatenate([X, Xs])
    root = np.linalg.cholesky(parts[0](both)[0] + 1e-10 * np.eye(100))
    draws = root @ rng.normal(size=(100, 200)) + 0.1**0.5 * rng.normal(size=(100, 200))
    model = CaGP(*parts, actions=BlockActions(np.ones(60), 8).normalise(), X=X, y=draws[:60])
    mean, variance = model.predict(Xs, observed=True)
    covered = np.mean(np.abs(draws[60:] - mean) <= 1.959964 * np.sqrt(variance))
    assert abs(covered - 0.95) < 0.01
    exact = gpr(*parts, X, draws[:60]).predict(Xs, observed=True)
    assert np.mean(variance / exact.variance) > 2.0
