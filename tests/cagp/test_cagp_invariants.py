"""Facts about computation-aware GPs that hold for every problem, against explicit matrices in plain NumPy."""

import dataclasses

import numpy as np
import pytest
from cagp_cases import LOG_2PI, Problem, columns, elbo_by_formula, problems
from helpers import assert_close, gpr
from hypothesis import given, settings
from hypothesis import strategies as st
from textbook import deterministic

from agp import CaGP, tree, value_and_gradient
from agp.actions import (
    BlockActions,
    ConjugateGradients,
    DenseActions,
    FixedActions,
    KernelColumns,
    KernelEigenvectors,
    UnitVectors,
)
from agp.kernels import Linear
from agp.likelihoods import Gaussian
from agp.posteriors import ProjectedCholesky, ProjectedInverseFree

few = settings(deterministic, max_examples=25)
sparse_or_dense = st.sampled_from(["full", "dense"])


def variances_at(model, X):
    return np.asarray(model.predict(X).variance)[:, 0]


def grid(p):
    return np.concatenate([p.X[:4], p.rng.normal(size=(6, 2))])


# -- the bound is what it says ----------------------------------------------------------------------------------------


@pytest.mark.slow
@few
@given(problems, sparse_or_dense)
def test_the_bound_is_its_definition(p, kind):
    model = p.model(kind)
    assert_close(p.bound(model), elbo_by_formula(p, columns(model.actions)), 1e-9)


@pytest.mark.slow
@few
@given(problems, sparse_or_dense)
def test_the_projected_objective_is_the_density_of_orthonormal_projections(p, kind):
    model = p.model(kind, "projected")
    Q = np.linalg.qr(columns(model.actions))[0]
    G, b = Q.T @ p.noisy @ Q, Q.T @ p.r
    P, i = p.outputs, Q.shape[1]
    expected = -0.5 * (np.sum(b * np.linalg.solve(G, b)) + P * (np.linalg.slogdet(G)[1] + i * LOG_2PI))
    assert_close(p.bound(model), expected, 1e-9)


@pytest.mark.slow
@few
@given(problems, sparse_or_dense)
def test_no_bound_exceeds_the_evidence_nor_that_of_optimal_weights(p, kind):
    model = p.model(kind)
    S = columns(model.actions)
    W, A = p.K @ S, S.T @ p.K @ S
    # SGPR whose features are u = S^T f: the same variances with the best weights
    H = p.noise * A + W.T @ W
    N, i, P = p.rows, S.shape[1], p.outputs
    c = W.T @ p.r
    twice = (np.sum(p.r**2) - np.sum(c * np.linalg.solve(H, c))) / p.noise
    logs = np.linalg.slogdet(H)[1] - np.linalg.slogdet(A)[1] + (N - i) * np.log(p.noise) + N * LOG_2PI
    trace = np.trace(p.K) - np.trace(np.linalg.solve(A, W.T @ W))
    collapsed = -0.5 * (twice + P * (logs + trace / p.noise))
    evidence = float(p.exact().bound(p.X, p.y)[0])
    slack = 1e-7 * abs(evidence)
    assert p.bound(model) <= collapsed + slack
    assert collapsed <= evidence + slack


@pytest.mark.slow
@few
@given(problems)
def test_as_many_actions_as_rows_give_the_exact_gp(p):
    S = np.eye(p.rows) + 0.3 * p.rng.normal(size=(p.rows, p.rows)) / np.sqrt(p.rows)
    exact, Xs = p.exact(), grid(p)
    for actions in (DenseActions(S), BlockActions(1.0 + p.rng.uniform(size=p.rows), p.rows)):
        for loss in ("elbo", "projected"):
            model = p.model(loss=loss, actions=actions)
            assert_close(p.bound(model), float(exact.bound(p.X, p.y)[0]), 1e-8)
        for ours, theirs in zip(model.predict(Xs), exact.predict(Xs), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-8)


# -- variances --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@few
@given(problems, st.sampled_from(["full", "dense", "capped"]), st.booleans())
def test_the_covariance_is_never_below_the_exact_one(p, kind, inverse_free):
    model, Xs = p.model(kind, inverse_free=inverse_free, distance=0.02), grid(p)
    excess = model.predict_covariance(Xs)[0] - p.exact().predict_covariance(Xs)[0]
    assert np.linalg.eigvalsh(excess).min() >= -1e-9
    if inverse_free:
        exact_inverse = dataclasses.replace(model, posterior=ProjectedCholesky())
        more = model.predict_covariance(Xs)[0] - exact_inverse.predict_covariance(Xs)[0]
        assert np.linalg.eigvalsh(more).min() >= -1e-9


@pytest.mark.slow
@few
@given(problems)
def test_variance_falls_with_every_action(p):
    S, Xs = p.rng.normal(size=(p.rows, 8)), grid(p)
    seen = [variances_at(p.model(actions=DenseActions(S[:, :i])), Xs) for i in range(1, 9)]
    assert np.max(np.diff(seen, axis=0)) <= 1e-10


@pytest.mark.slow
@few
@given(problems)
def test_the_worst_case_over_targets_of_unit_norm(p):
    # sup (y(x) - mean(x))^2 over the unit ball of the kernel with noise is variance plus noise
    model, x = p.model("dense"), p.rng.normal(size=(1, 2))
    S = columns(model.actions)
    k = p.kernel(p.X, x)[0]
    a = S @ np.linalg.solve(S.T @ p.noisy @ S, S.T @ k)
    worst = (
        float(p.kernel.diag(x)[0][0]) + p.noise - 2.0 * float(a[:, 0] @ k[:, 0]) + float(a[:, 0] @ p.noisy @ a[:, 0])
    )
    assert_close(variances_at(model, x)[0] + p.noise, worst, 1e-9)


# -- only the span of the actions counts ------------------------------------------------------------------------------


def assert_same_model(p, one, other, tolerance=1e-8):
    assert_close(p.bound(one), p.bound(other), tolerance)
    Xs = grid(p)
    for ours, theirs in zip(one.predict(Xs), other.predict(Xs), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=tolerance)


@pytest.mark.slow
@few
@given(problems, st.sampled_from(["elbo", "projected"]))
def test_invertible_maps_permutations_and_scales_of_dense_actions_change_nothing(p, loss):
    S = p.rng.normal(size=(p.rows, p.count))
    R = np.eye(p.count) + 0.4 * p.rng.normal(size=(p.count, p.count)) / np.sqrt(p.count)
    order, scales = p.rng.permutation(p.count), p.rng.choice([-3.0, 0.02, 40.0], size=p.count)
    for other in (S @ R, S[:, order], S * scales):
        assert_same_model(p, *(p.model(loss=loss, actions=DenseActions(x)) for x in (S, other)))


@pytest.mark.slow
@few
@given(problems, st.sampled_from(["full", "capped"]))
def test_scales_of_sparse_actions_change_nothing_and_have_no_gradient(p, kind):
    model = p.model(kind)
    actions = model.actions
    scaled = actions._spread(p.rng.choice([-3.0, 0.02, 40.0], size=p.count)) * actions.values
    for values in (scaled, actions.normalise().values):
        assert_same_model(p, model, tree.with_leaves(model, {"actions.values": values}))
    bar = tree.leaves(model.bound(p.X, p.y)[1](1.0)[0])["actions.values"]
    along = actions._sum_parts(bar * actions.values)
    assert np.max(np.abs(along)) <= 1e-9 * (1.0 + np.linalg.norm(bar) * np.linalg.norm(actions.values))


@pytest.mark.long
@few
@given(problems)
def test_sparse_actions_are_the_dense_ones_with_their_entries(p):
    model = p.model("full")
    dense = p.model(actions=DenseActions(columns(model.actions)))
    assert_same_model(p, model, dense, 1e-9)
    (_, sparse_bar), (_, dense_bar) = (value_and_gradient(m, p.X, p.y) for m in (model, dense))
    where = columns(model.actions) != 0.0
    assert_close(sparse_bar["actions.values"], np.sum(dense_bar["actions.values"] * where, axis=1), 1e-9)


def test_multiplying_targets_and_scales_shifts_the_bound():
    p, a = Problem(outputs=3), 7.0
    model = p.model("full")
    leaves = {
        "kernel.variance": a * a * p.kernel.variance,
        "likelihood.noise_variance": np.asarray(a * a * p.noise),
        "y": a * p.y,
    }
    scaled = tree.with_leaves(model, leaves)
    expected = p.bound(model) - p.y.size * np.log(a)
    assert_close(float(scaled.bound(p.X, a * p.y)[0]), expected, 1e-10)


# -- the iterative algorithm ------------------------------------------------------------------------------------------


def iterated(noisy, r, S):
    """IterGP with given actions: C = D D^T and v = C r, line by line."""
    v, D = np.zeros_like(r), np.zeros((len(r), 0))
    for s in S.T:
        left = r - noisy @ v
        z = noisy @ s
        d = s - D @ (D.T @ z)
        d = d - D @ (D.T @ (noisy @ d))
        eta = z @ d
        v = v + np.outer(d, s @ left) / eta
        D = np.concatenate([D, (d / np.sqrt(eta))[:, None]], axis=1)
    return D, v


@pytest.mark.slow
@few
@given(problems, sparse_or_dense)
def test_all_actions_at_once_are_the_iteration(p, kind):
    model = p.model(kind)
    D, v = iterated(p.noisy, p.r, columns(model.actions))
    np.testing.assert_allclose(D.T @ p.noisy @ D, np.eye(p.count), atol=1e-9)
    Xs = grid(p)
    k = p.kernel(Xs, p.X)[0]
    mean, variance = model.predict(Xs)
    np.testing.assert_allclose(mean, p.mean_function(Xs)[0] + k @ v, atol=1e-8)
    np.testing.assert_allclose(variance[:, 0], p.kernel.diag(Xs)[0] - np.sum((k @ D) ** 2, axis=1), atol=1e-8)


@pytest.mark.slow
@few
@given(problems)
def test_conjugate_gradients_span_the_krylov_space(p):
    if p.outputs > 1:
        p = Problem(p.seed, p.rows, p.count, 1, p.kind, 1.0, p.mean)
    S = ConjugateGradients(min(p.count, 6), tolerance=0.0)(p.model()).values
    np.testing.assert_allclose(S.T @ S, np.eye(S.shape[1]), atol=1e-12)
    # the textbook's iterates
    x, left, direction = np.zeros(p.rows), p.r[:, 0], p.r[:, 0]
    for i in range(1, S.shape[1] + 1):
        step = (left @ left) / (direction @ p.noisy @ direction)
        x, new = x + step * direction, left - step * (p.noisy @ direction)
        direction, left = new + (new @ new) / (left @ left) * direction, new
        Q = S[:, :i]
        np.testing.assert_allclose(Q @ np.linalg.solve(Q.T @ p.noisy @ Q, Q.T @ p.r[:, 0]), x, atol=1e-8)


# -- actions with known answers ---------------------------------------------------------------------------------------


@pytest.mark.slow
@few
@given(problems)
def test_the_gap_of_eigenvectors(p):
    S = KernelEigenvectors(p.count)(p.model()).values
    lam, U = np.linalg.eigh(p.K)
    lam, rho = lam[: p.rows - p.count], (U.T @ p.r)[: p.rows - p.count]
    misfit = np.sum(rho**2, axis=1) * lam / (p.noise * (lam + p.noise))
    gap = 0.5 * np.sum(misfit + p.outputs * (lam / p.noise - np.log1p(lam / p.noise)))
    evidence = float(p.exact().bound(p.X, p.y)[0])
    np.testing.assert_allclose(evidence - p.bound(p.model(actions=FixedActions(S))), gap, atol=1e-8 * abs(evidence))


@pytest.mark.slow
@few
@given(problems)
def test_eigenvectors_tell_the_most(p):
    def information(S):
        G, SS = S.T @ p.noisy @ S, S.T @ S
        return np.linalg.slogdet(G)[1] - np.linalg.slogdet(SS)[1]

    model = p.model()
    best = information(KernelEigenvectors(p.count)(model).values)
    others = [columns(p.actions("full")), p.rng.normal(size=(p.rows, p.count)), UnitVectors(p.count)(model).values]
    assert all(information(S) <= best + 1e-9 for S in others)


@pytest.mark.slow
@few
@given(problems)
def test_kernel_columns_of_a_kernel_of_low_rank_give_the_exact_gp(p):
    base = (Linear(np.asarray([0.7, 0.4])), Gaussian(np.asarray(p.noise)))
    held = {"X": p.X, "y": p.y, "mean_function": p.mean_function}
    blank = CaGP(*base, actions=DenseActions(np.ones((p.rows, 1))), **held)
    model = dataclasses.replace(blank, actions=KernelColumns(Z=p.X[:2])(blank))
    exact = gpr(*base, p.X, p.y, p.mean_function)
    assert_close(p.bound(model), float(exact.bound(p.X, p.y)[0]), 1e-8)
    Xs = grid(p)
    for ours, theirs in zip(model.predict(Xs), exact.predict(Xs), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-8)


# -- tiles and minibatches --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "capped", "dense", "fixed"])
@pytest.mark.parametrize("rows", [1, 3, 7])
def test_tiles_change_rounding_only(kind, rows, backend):
    p = Problem(outputs=2)
    model, X, y = backend.move(p.model(kind)), backend.array(p.X), backend.array(p.y)
    memory = rows * model._floats_per_row * 8 / 2**20 * 1.0001
    assert model._block_rows(memory) == rows
    whole, pull_whole = model.bound(X, y)
    tiled, pull_tiled = model.bound(X, y, memory=memory)
    assert_close(backend.numpy(tiled), backend.numpy(whole), 1e-12)
    ours, theirs = (tree.leaves(pull(0.7)[0]) for pull in (pull_tiled, pull_whole))
    for name in theirs:
        assert_close(backend.numpy(ours[name]), backend.numpy(theirs[name]), 1e-10, name)


@pytest.mark.slow
@few
@given(problems, st.sampled_from(["capped", "capped-dense"]), st.booleans())
def test_minibatches_are_unbiased_with_capped_support(p, kind, inverse_free):
    p = Problem(p.seed, 24, p.count, p.outputs, p.kind, p.noise, p.mean, p.support)
    model = p.model(kind, inverse_free=inverse_free)
    value, gradient = value_and_gradient(model, p.X, p.y)
    batches = np.split(p.rng.permutation(24), 4)
    found = [value_and_gradient(model, p.X[rows], p.y[rows], scale=4.0) for rows in batches]
    assert_close(np.mean([v for v, _ in found]), value, 1e-10)
    for name in gradient:
        assert_close(np.mean([g[name] for _, g in found], axis=0), gradient[name], 1e-9, name)


def test_full_support_has_no_minibatches():
    p = Problem()
    with pytest.raises(ValueError, match="needs all data at once"):
        p.model().bound(p.X, p.y, scale=2.0)


# -- by products alone ------------------------------------------------------------------------------------------------


def with_factor(model, L):
    return dataclasses.replace(model, posterior=ProjectedInverseFree(L), loss="elbo", priors=())


@pytest.mark.slow
@few
@given(problems, st.sampled_from(["full", "capped", "dense"]), st.sampled_from([0.01, 0.1, 1.0]))
def test_no_factor_lifts_the_bound_above_the_evidence(p, kind, distance):
    evidence = float(p.exact().bound(p.X, p.y)[0])
    assert p.bound(p.model(kind, inverse_free=True, distance=distance)) <= evidence + 1e-8 * abs(evidence)
    wild = with_factor(p.model(kind), np.eye(p.count))
    assert p.bound(wild) <= evidence + 1e-8 * abs(evidence)


@pytest.mark.slow
@few
@given(problems, st.sampled_from([0.01, 0.1, 0.5]))
def test_the_price_of_an_inexact_factor_at_equal_weights(p, distance):
    model = p.model("full", inverse_free=True, distance=distance)
    S, L = columns(model.actions), model.posterior.inverse_factor
    G, A, W = S.T @ p.noisy @ S, S.T @ p.K @ S, p.K @ S
    T = L @ L.T
    relaxed = 2.0 * T - T @ G @ T
    v = relaxed @ S.T @ p.r
    at_v = elbo_by_formula(p, S, v=v)
    E, Q = np.eye(p.count) - T @ G, A + W.T @ W / p.noise
    slack = np.sum(G * T) - p.count - np.linalg.slogdet(G @ T)[1]
    gap = 0.5 * p.outputs * (np.trace(E @ np.linalg.inv(G) @ E.T @ Q) + slack)
    assert gap >= 0.0
    np.testing.assert_allclose(at_v - p.bound(model), gap, atol=1e-8 * (abs(at_v) + gap))
