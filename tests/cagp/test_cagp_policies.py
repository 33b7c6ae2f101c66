"""How actions are chosen: each policy on every backend, what it is known to give, and in training."""

import dataclasses
import itertools

import numpy as np
import pytest
from cagp_cases import Problem
from helpers import NUMPY, assert_close, gpr, peak, toy_data

import agp
from agp import CaGP, tree
from agp.actions import (
    ConjugateGradients,
    FixedActions,
    KernelColumns,
    KernelEigenvectors,
    Policy,
    RandomDirections,
    UnitVectors,
)
from agp.backend import row_numbers
from agp.chunking import mebibytes
from agp.updates import ActionsUpdate, Adam, InverseUpdate, Normalise

POLICIES = {
    "rows": UnitVectors(rows=(4, 2, 9)),
    "greedy": UnitVectors(5),
    "random-rows": UnitVectors(5, pivots="random"),
    "normal": RandomDirections(5),
    "rademacher": RandomDirections(5, kind="rademacher"),
    "eigenvectors": KernelEigenvectors(5),
    "columns": KernelColumns(5),
    "conjugate-gradients": ConjugateGradients(5, tolerance=0.0),
}


@dataclasses.dataclass(frozen=True)
class LargestTargets:
    """A user's own policy: the rows whose residuals are largest."""

    count: int

    def __call__(self, model, /):
        xp = agp.backend_of(model.X).xp
        r = xp.abs((model.y - model.mean_function(model.X)[0])[:, 0])
        rows = xp.argsort(r, descending=True)[: self.count]
        every = row_numbers(model.X.shape[0], model.X)
        return FixedActions(xp.astype(every[:, None] == rows[None, :], model.X.dtype))


def bound_of(model, actions, X, y):
    return dataclasses.replace(model, actions=actions).bound(X, y)[0]


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_actions_everywhere(name, backend):
    p = Problem(outputs=2, mean="constant")
    host = p.model("full")
    model = backend.move(host)
    policy = POLICIES[name]
    assert isinstance(policy, Policy)
    actions, expected = policy(model), policy(host)
    S = backend.numpy(actions.values)
    np.testing.assert_allclose(S.T @ S, np.eye(S.shape[1]), atol=1e-12)
    # signs are free
    np.testing.assert_allclose(np.abs(S), np.abs(expected.values), atol=1e-8)
    found = bound_of(model, actions, backend.array(p.X), backend.array(p.y))
    assert_close(backend.numpy(found), bound_of(host, expected, p.X, p.y), 1e-9)


@pytest.mark.parametrize("name", POLICIES)
def test_in_single_precision(name):
    p = Problem(outputs=2)
    single = tree.to_backend(p.model("full"), "numpy", dtype="float32")
    S = POLICIES[name](single).values
    assert S.dtype == np.float32
    np.testing.assert_allclose(S.T @ S, np.eye(S.shape[1]), atol=1e-5)


def test_greedy_rows_are_the_pivots_of_the_noisy_covariance():
    p = Problem(rows=15)
    rows = np.argmax(UnitVectors(15)(p.model()).values, axis=0)
    assert sorted(rows) == list(range(15))
    for i in range(1, 15):
        seen = rows[:i]
        k = p.noisy[seen]
        left = np.diag(p.noisy) - np.sum(k * np.linalg.solve(p.noisy[np.ix_(seen, seen)], k), axis=0)
        left[seen] = -1.0
        assert left[rows[i]] >= np.max(left) - 1e-9


def test_greedy_rows_begin_with_the_largest_variance_including_known_noise():
    p = Problem()
    noise = np.where(np.arange(p.rows) == 7, 2.0, 0.0)[:, None]
    actions = UnitVectors(3)(dataclasses.replace(p.model("fixed"), noise=noise))
    assert np.argmax(actions.values[:, 0]) == 7


def test_the_budget_for_kernel_eigenvectors_includes_covariances_and_vectors():
    p = Problem()
    with pytest.raises(ValueError, match="the eigenvectors of 17 rows takes"):
        KernelEigenvectors(3, memory=mebibytes(2 * p.rows**2, p.X))(p.model())


def test_conjugate_gradients_stop_when_the_residual_is_small():
    p = Problem(rows=20, noise=2.0)
    model = p.model()
    actions = ConjugateGradients(20, tolerance=1e-3)(model)
    assert 2 < actions.count < 20

    def residual(S):
        return np.linalg.norm(p.r - p.noisy @ S @ np.linalg.solve(S.T @ p.noisy @ S, S.T @ p.r))

    assert residual(actions.values) <= 1e-3 * np.linalg.norm(p.r)
    assert residual(actions.values[:, :-1]) > 1e-3 * np.linalg.norm(p.r)


def test_conjugate_gradients_stop_at_the_end_of_the_krylov_space():
    p = Problem(rows=12)
    X = np.repeat(p.X[:3], 4, axis=0)  # three distinct rows with equal targets: three dimensions
    y = np.repeat(p.y[:3], 4, axis=0)
    model = dataclasses.replace(p.model(), X=X, y=y)
    actions = ConjugateGradients(10, tolerance=0.0)(model)
    assert actions.count == 3
    exact = gpr(p.kernel, p.likelihood, X, y)
    trained = dataclasses.replace(model, actions=actions)
    np.testing.assert_allclose(trained.predict(p.X).mean, exact.predict(p.X).mean, atol=1e-10)


def test_conjugate_gradients_serve_every_output():
    p = Problem(rows=20, outputs=3, noise=1.0)
    S = ConjugateGradients(18, tolerance=1e-4)(p.model()).values
    left = p.r - p.noisy @ S @ np.linalg.solve(S.T @ p.noisy @ S, S.T @ p.r)
    assert (np.linalg.norm(left, axis=0) <= 1e-4 * np.linalg.norm(p.r, axis=0)).all()


def test_conjugate_gradients_keep_their_footing_where_the_plain_method_does_not():
    X, y = toy_data(200)
    model = CaGP.from_data(X, y, num_actions=4, kernel=agp.RBF(1.0, (0.8, 0.8)), likelihood=agp.Gaussian(1e-4))
    actions = ConjugateGradients(60, tolerance=0.0)(dataclasses.replace(model, X=X, y=y))
    np.testing.assert_allclose(actions.values.T @ actions.values, np.eye(60), atol=1e-12)
    noisy = model.kernel(X)[0] + 1e-4 * np.eye(200)
    G = actions.values.T @ noisy @ actions.values
    assert np.isfinite(np.linalg.cholesky(G)).all()


@pytest.mark.slow
def test_conjugate_gradients_hold_tiles_only():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1_500, 2))
    y = np.sin(X[:, :1])
    model = CaGP.from_data(X, y, policy=UnitVectors(2))

    def held(memory):
        return peak(lambda: ConjugateGradients(4, memory=memory)(model))

    assert held(1.0) < 3.0
    assert held(1000.0) > 1_500**2 * 8 / 2**20  # so the limit above means something


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (lambda: ConjugateGradients(18), "count is 18, but there are 17 rows"),
        (lambda: ConjugateGradients(3, memory=1e-5), "one row of covariances with 17 rows takes"),
        (lambda: KernelEigenvectors(3, memory=1e-3), "the eigenvectors of 17 rows takes"),
        (lambda: KernelEigenvectors(18), "count is 18"),
        (lambda: KernelColumns(18), "count is 18"),
        (lambda: KernelColumns(), "exactly one of count and Z is required"),
        (lambda: RandomDirections(18), "count is 18"),
        (lambda: RandomDirections(0), "count is 0"),
        (lambda: RandomDirections(3, kind="cauchy"), "kind is 'cauchy'"),
        (lambda: UnitVectors(18), "count is 18"),
        (lambda: UnitVectors(3, rows=(1,)), "exactly one of count and rows is required"),
        (lambda: UnitVectors(rows=(1, 17)), r"rows \[17\] are out of range for data with 17 rows"),
        (lambda: UnitVectors(rows=(1, 3, 1)), r"rows \[1\] appear more than once"),
        (lambda: UnitVectors(3, pivots="best"), "pivots is 'best'"),
    ],
)
def test_bad_settings_are_named(policy, message):
    with pytest.raises(ValueError, match=message):
        policy()(Problem().model())


def test_no_residual_to_start_from():
    model = Problem().model()
    with pytest.raises(ValueError, match="the targets equal the prior mean"):
        ConjugateGradients(3)(dataclasses.replace(model, y=np.zeros_like(model.y)))


# -- in training ------------------------------------------------------------------------------------------------------


def updates_for(policy, every=1):
    return [ActionsUpdate(policy, every), Adam(0.05)]


def train(place, policy, every=1, steps=5, **options):
    X, y = toy_data(30, outputs=2)
    X, y = place.array(X), place.array(y)
    model = CaGP.from_data(X, y, policy=policy)
    return agp.train(model, X, y, steps=steps, updates=updates_for(policy, every), **options)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [ConjugateGradients(6, tolerance=0.0), UnitVectors(6), LargestTargets(4)], ids=str)
def test_training_with_chosen_actions_is_the_same_everywhere(policy, backend):
    result, host = train(backend, policy), train(NUMPY, policy)
    np.testing.assert_allclose(result.trace["bound"], host.trace["bound"], rtol=1e-8)
    S = backend.numpy(result.model.actions.values)
    np.testing.assert_allclose(np.abs(S), np.abs(host.model.actions.values), atol=1e-6)


@pytest.mark.parametrize("every", [2, 3])
def test_actions_follow_the_hyperparameters(every):
    policy = ConjugateGradients(6, tolerance=0.0)
    seen = []
    train(NUMPY, policy, steps=7, every=every, callbacks=[lambda progress: seen.append(progress.model)])
    values = [model.actions.values for model in seen]
    changed = [bool(np.any(a != b)) for a, b in itertools.pairwise(values)]
    assert changed == [step % every == 0 for step in range(1, 7)]
    # those of step 7 were chosen before the hyperparameters moved
    np.testing.assert_allclose(policy(seen[5]).values, values[-1], atol=1e-9)


@pytest.mark.slow
def test_training_raises_the_bound_of_chosen_actions():
    trace = train(NUMPY, ConjugateGradients(10), steps=60).trace["bound"]
    assert trace[-1] > trace[0] + 5.0


def test_a_run_is_resumed(tmp_path):
    policy = ConjugateGradients(6, tolerance=0.0)
    whole = train(NUMPY, policy, steps=8, every=3)
    train(NUMPY, policy, steps=4, every=3, checkpoint=tmp_path / "run")
    resumed = train(NUMPY, policy, steps=8, every=3, checkpoint=tmp_path / "run")
    for name, value in tree.leaves(whole.model).items():
        np.testing.assert_array_equal(tree.leaves(resumed.model)[name], value)


def test_updates_refuse_models_they_are_not_for():
    X, y = toy_data(30)
    blocks, units = CaGP.from_data(X, y, num_actions=4), CaGP.from_data(X, y, policy=UnitVectors(4))
    with pytest.raises(TypeError, match="build the model with policy="):
        ActionsUpdate(UnitVectors(4)).init(blocks)
    with pytest.raises(TypeError, match="Normalise needs BlockActions"):
        Normalise().init(units)
    with pytest.raises(TypeError, match="must be a policy"):
        ActionsUpdate("greedy")
    with pytest.raises(ValueError, match="every is 0"):
        ActionsUpdate(UnitVectors(4), every=0)


def test_chosen_actions_with_an_inverse_factor():
    X, y = toy_data(30)
    policy = UnitVectors(5)
    model = CaGP.from_data(X, y, policy=policy, inverse_free=True)
    updates = [*updates_for(policy), InverseUpdate()]
    result = agp.train(model, X, y, steps=10, updates=updates)
    assert max(result.trace["residual"]) < 5e-3
