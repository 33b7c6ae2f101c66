"""Facts about SOLVE-GP that hold for every problem, against formulas with explicit inverses in plain NumPy."""

import itertools
import math

import numpy as np
import pytest
from helpers import (
    assert_close,
    gpr,
    inducing_covariance,
    marginals,
    process,
    replaced,
    sgpr,
    short_names,
    svgp,
    value_and_gradient,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from solve_cases import RELAXED, Groups, groups
from textbook import deterministic, log_normal, normal_kl, textbook_sgpr

from agp import SOLVEGP, backend_of, tree
from agp.posteriors import LikelihoodForm, Marginal, Orthogonal, PriorSpread, Whitened

few = settings(deterministic, max_examples=25)
plain_or_not = st.booleans()


def parts(posterior) -> list:
    """The means and lower scales of both groups of an `Orthogonal` posterior."""
    return [x for part in posterior.parts for x in (part.mean, getattr(part, "scale", None))]


def by_formula(g, m_u, S_u, m_v, S_v):
    """Mu, var [N, P] and KL of q(u) q(v), (2.2) and (2.3), for means and covariances of u and of v - J u."""
    E, G = np.linalg.solve(g.Kuu, g.Kuf), np.linalg.solve(g.Cvv, g.Cvf)
    left = g.kff - np.sum(E * g.Kuf, axis=0) - np.sum(G * g.Cvf, axis=0)
    var = [left + np.sum(E * (S @ E), axis=0) + np.sum(G * (T @ G), axis=0) for S, T in zip(S_u, S_v, strict=True)]
    kl = sum(normal_kl(m_u[:, p : p + 1], S_u[p], g.Kuu) for p in range(g.outputs))
    kl += sum(normal_kl(m_v[:, p : p + 1], S_v[p], g.Cvv) for p in range(g.outputs))
    return E.T @ m_u + G.T @ m_v, np.stack(var, axis=1), kl


def assert_marginals(model, expected, X, tolerance=1e-9):
    for x, y in zip(marginals(model, X)[0], expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * (1.0 + np.abs(y).max()))


def outer(C):
    return C @ np.swapaxes(C, -1, -2)


def bound(model, g):
    return float(model.bound(g.X, g.y)[0])


def noisy(g, Q):
    return Q + g.noise * np.eye(g.rows)


def explained(g):
    """What each group explains of Kff: Q and R, both [N, N]."""
    return g.Kuf.T @ np.linalg.solve(g.Kuu, g.Kuf), g.Cvf.T @ np.linalg.solve(g.Cvv, g.Cvf)


def log_det(A):
    return np.linalg.slogdet(A)[1]


# -- the decomposition ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@deterministic
@given(groups)
def test_marginal_parts_are_the_formula_of_the_paper(g):
    m_u, R_u, m_v, R_v = parts(q := g.orthogonal(Marginal, Marginal))
    assert_marginals(g.model(q), by_formula(g, m_u, outer(R_u), m_v, outer(R_v)), g.X)


@pytest.mark.slow
@deterministic
@given(groups)
def test_whitened_and_marginal_parts_agree_in_their_coordinates(g):
    m_u, R_u, m_v, R_v = parts(q := g.orthogonal())
    Lu, Lv = np.linalg.cholesky(g.Kuu), np.linalg.cholesky(g.Cvv)
    other = Orthogonal((Marginal(Lu @ m_u, Lu @ R_u), Marginal(Lv @ m_v, Lv @ R_v)), g.sizes)
    assert_marginals(g.model(other), marginals(g.model(q), g.X)[0], g.X)


@pytest.mark.slow
@deterministic
@given(groups)
def test_a_second_group_at_its_prior_changes_nothing(g):
    q = g.orthogonal()
    prior = Whitened(np.zeros((g.second, g.outputs)), np.stack([np.eye(g.second)] * g.outputs))
    alone = svgp(g.kernel, g.likelihood, q.parts[0], g.Z, g.jitter)
    for second in (prior, PriorSpread(prior.mean)):
        model = g.model(Orthogonal((q.parts[0], second), g.sizes))
        assert_marginals(model, marginals(alone, g.X)[0], g.X)
    collapsed = sgpr(g.kernel, g.likelihood, g.Z, g.X, g.y, g.jitter)
    assert bound(g.collapsed(prior), g) == pytest.approx(bound(collapsed, g), rel=1e-9)


@pytest.mark.long
@deterministic
@given(groups)
def test_it_is_a_structured_svgp_with_all_inducing_inputs(g):
    m_u, R_u, m_v, R_v = parts(q := g.orthogonal(Marginal, Marginal))
    model = g.model(q)
    mean, covariance = model.structured_posterior()
    S_u, S_v = outer(R_u), outer(R_v)
    expected = np.block([[S_u, S_u @ g.J.T], [g.J @ S_u, S_v + g.J @ S_u @ g.J.T]])
    assert_close(mean, np.concatenate([m_u, m_v + g.J @ m_u]), 1e-9)
    assert_close(covariance, expected, 1e-9)
    ordinary = svgp(g.kernel, g.likelihood, Marginal(mean, np.linalg.cholesky(covariance)), g.union, g.jitter)
    assert_marginals(ordinary, marginals(model, g.X)[0], g.X, 1e-8)
    np.testing.assert_allclose(ordinary.predict(g.X).mean, model.predict(g.X).mean, rtol=1e-8, atol=1e-8)
    full = model.predict_covariance(g.X)
    assert_close(np.diagonal(full, axis1=1, axis2=2).T, model.predict(g.X).variance, 1e-10)
    assert_close(full, ordinary.predict_covariance(g.X), 1e-8)


@pytest.mark.slow
@deterministic
@given(groups)
def test_a_second_group_with_the_spread_of_its_prior_is_odvgp(g):
    m_u, C_u, m_v, _ = parts(q := g.orthogonal(second=PriorSpread))
    model = g.model(q)
    one = Whitened(m_v, np.stack([np.eye(g.second)] * g.outputs))
    assert_marginals(model, marginals(g.model(Orthogonal((q.parts[0], one), g.sizes)), g.X)[0], g.X)
    # (2.5), which needs no factor of Cvv
    a = np.linalg.solve(np.linalg.cholesky(g.Cvv).T, m_v)
    B = np.linalg.solve(Lu := np.linalg.cholesky(g.Kuu), g.Kuf)
    spread = np.stack([np.sum((C.T @ B) ** 2, axis=0) for C in C_u], axis=1)
    own = sum(normal_kl((Lu @ m_u)[:, [p]], Lu @ C_u[p] @ C_u[p].T @ Lu.T, g.Kuu) for p in range(g.outputs))
    var = (g.kff - np.sum(B * B, axis=0))[:, None] + spread
    assert_marginals(model, (B.T @ m_u + g.Cvf.T @ a, var, own + 0.5 * np.sum(a * (g.Cvv @ a))), g.X)


@pytest.mark.slow
@few
@given(groups, st.randoms(use_true_random=False))
def test_the_order_within_a_group_does_not_matter(g, random):
    first, second = list(range(g.first)), list(range(g.second))
    random.shuffle(first)
    random.shuffle(second)
    other = np.concatenate([g.Z[first], g.O[second]])
    for tight in (False, True):
        expected = bound(g.collapsed(tight=tight), g)
        assert bound(g.collapsed(tight=tight, Z=other), g) == pytest.approx(expected, rel=1e-9)


def test_an_exchange_between_the_groups_matters():
    g = Groups(first=3, second=3)
    exchanged = g.union[[3, 1, 2, 0, 4, 5]]
    assert abs(bound(g.collapsed(), g) - bound(g.collapsed(Z=exchanged), g)) > 1e-3


# -- collapsed bounds -------------------------------------------------------------------------------------------------


def optimal_second_mean(g):
    """The whitened mean of the optimal q(v), (4.2)."""
    D = np.linalg.solve(np.linalg.cholesky(g.Cvv), g.Cvf)
    A = noisy(g, explained(g)[0])
    return np.linalg.solve(np.eye(g.second) + D @ np.linalg.solve(A, D.T), D @ np.linalg.solve(A, g.y)), D


def chain(g):
    """The bounds by name, as the library computes them."""
    one = {"sizes": (g.first + g.second,)}
    return {
        "SGPR(Z)": bound(sgpr(g.kernel, g.likelihood, g.Z, g.X, g.y, g.jitter), g),
        "ODVGP": bound(g.collapsed(PriorSpread(optimal_second_mean(g)[0])), g),
        "SOLVE": bound(g.collapsed(), g),
        "SGPR(Z, O)": bound(sgpr(g.kernel, g.likelihood, g.union, g.X, g.y, g.jitter), g),
        "tight": bound(g.collapsed(tight=True), g),
        "tight(Z, O)": bound(g.collapsed(tight=True, **one), g),
        "evidence": bound(gpr(g.kernel, g.likelihood, g.X, g.y), g),
        "tight(Z)": bound(g.collapsed(tight=True, sizes=(g.first,), Z=g.Z), g),
    }


@pytest.mark.slow
@deterministic
@given(groups)
def test_the_chain_of_bounds(g):
    found = chain(g)
    slack = 1e-9 * (1.0 + max(map(abs, found.values())))
    order = ["SGPR(Z)", "ODVGP", "SOLVE", "SGPR(Z, O)", "tight", "tight(Z, O)", "evidence"]
    for lower, upper in [*itertools.pairwise(order), ("SGPR(Z)", "tight(Z)"), ("tight(Z)", "tight")]:
        assert found[lower] <= found[upper] + slack, (lower, upper)


@pytest.mark.long
@deterministic
@given(groups)
def test_the_gaps_between_the_bounds(g):
    found = chain(g)
    Q, R = (x / g.noise for x in explained(g))
    eye, P = np.eye(g.rows), g.outputs
    to_sgpr = 0.5 * P * (log_det(eye + Q) + log_det(eye + R) - log_det(eye + Q + R))
    to_odvgp = 0.5 * P * (np.trace(R) - log_det(eye + R))
    rounding = 1e-9 * (1.0 + abs(found["SOLVE"]))
    assert found["SGPR(Z, O)"] - found["SOLVE"] == pytest.approx(to_sgpr, rel=1e-8, abs=rounding)
    assert found["SOLVE"] - found["ODVGP"] == pytest.approx(to_odvgp, rel=1e-8, abs=rounding)


@pytest.mark.slow
@deterministic
@given(groups)
def test_tight_bounds_are_their_formula(g):
    Q, R = explained(g)
    left = g.kernel(g.X)[0] - Q - R
    slack = 0.5 * g.outputs * np.trace(np.linalg.solve(noisy(g, Q), left))
    expected = log_normal(g.y, noisy(g, Q + R)) - slack
    assert bound(g.collapsed(tight=True), g) == pytest.approx(expected, rel=1e-9)
    # one group: that of sparse regression plus what u gains by its dependence
    alone = textbook_sgpr(g.Kuu, g.Kuf, g.kff, g.noise, g.y)
    B = np.linalg.solve(np.linalg.cholesky(g.Kuu), g.Kuf)
    F = np.linalg.solve(np.linalg.cholesky(np.eye(g.first) + B @ B.T / g.noise), B)
    gain = 0.5 * g.outputs / g.noise**2 * np.trace(F @ (g.kernel(g.X)[0] - Q) @ F.T)
    found = bound(g.collapsed(tight=True, sizes=(g.first,), Z=g.Z), g)
    assert found == pytest.approx(alone + gain, rel=1e-9)


@pytest.mark.slow
@deterministic
@given(groups)
def test_a_free_second_group_is_its_formula(g):
    q = g.orthogonal(Whitened, Marginal).parts[1]
    Q, R = explained(g)
    G = np.linalg.solve(g.Cvv, g.Cvf)
    S = outer(q.scale)
    trace = g.outputs * np.sum(g.kff - np.diag(Q + R)) + sum(np.sum(G * (T @ G)) for T in S)
    kl = sum(normal_kl(q.mean[:, [p]], S[p], g.Cvv) for p in range(g.outputs))
    expected = log_normal(g.y - G.T @ q.mean, noisy(g, Q)) - 0.5 * trace / g.noise - kl
    assert bound(g.collapsed(q), g) == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
@deterministic
@given(groups)
def test_the_free_bound_is_stationary_at_the_optimal_second_group(g):
    mean, D = optimal_second_mean(g)
    S = np.linalg.inv(np.eye(g.second) + D @ D.T / g.noise)
    best = Whitened(mean, np.stack([np.linalg.cholesky(S)] * g.outputs))
    model = g.collapsed(best)
    value, gradient = value_and_gradient(model, g.X, g.y)
    scale = 1e-9 * (1.0 + np.sum(g.y**2) / g.noise)
    assert float(value) == pytest.approx(bound(g.collapsed(), g), rel=1e-9)
    assert np.abs(gradient["second.mean"]).max() <= scale
    assert np.abs(gradient["second.scale"]).max() <= scale


@pytest.mark.long
@deterministic
@given(groups)
def test_the_optimal_q_has_the_collapsed_bound_and_the_means_of_sgpr(g):
    X_test = g.rng.normal(size=(5, 2))
    reference = sgpr(g.kernel, g.likelihood, g.union, g.X, g.y, g.jitter)
    odvgp = g.collapsed(PriorSpread(optimal_second_mean(g)[0]))
    for model in (g.collapsed(), odvgp, g.collapsed(g.orthogonal().parts[1])):
        solved = model.to_solve()
        assert isinstance(solved, SOLVEGP)
        assert bound(solved, g) == pytest.approx(bound(model, g), rel=1e-8)
        for x, y in zip(solved.predict(X_test), model.predict(X_test), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-9)
    for model in (g.collapsed(), odvgp):
        assert_close(model.predict_mean(X_test), reference.predict_mean(X_test), 1e-8)


@pytest.mark.slow
@deterministic
@given(groups)
def test_more_orthogonal_inputs_never_lower_the_bound(g):
    more = bound(g.collapsed(), g)
    fewer = bound(g.collapsed(sizes=(g.first, g.second - 1) if g.second > 1 else (g.first,), Z=g.union[:-1]), g)
    assert fewer <= more + 1e-9 * (1.0 + abs(more))


# -- without factorisations -------------------------------------------------------------------------------------------

relaxed_kinds = st.sampled_from([kind + form for kind in RELAXED for form in ("", "-plain")])
distances = st.sampled_from([0.0, 1e-2, 0.1, 0.5])


@pytest.mark.slow
@deterministic
@given(groups, relaxed_kinds, distances)
def test_relaxed_groups_give_a_bound_for_all_inverse_factors(g, kind, distance):
    model = g.model(g.relaxed(kind, distance))
    _, var, kl = marginals(model, g.X)[0]
    mean, covariance = model.structured_posterior()
    true = sum(normal_kl(mean[:, [p]], covariance[p], g.K) for p in range(g.outputs))
    assert np.all(var > 0.0)
    assert kl >= true - 1e-8 * (1.0 + abs(true))
    evidence = bound(gpr(g.kernel, g.likelihood, g.X, g.y), g)
    assert bound(model, g) <= evidence + 1e-9 * (1.0 + abs(evidence) + abs(kl))


def limit_of_relaxed_orthogonal(g, q):
    """SOLVE-GP with the mean weights and the diagonal noise of q, at exact inverses, for explicit weights."""
    a, s = np.split(q.mean, [g.first]), np.split(q.site, [g.first])
    found = []
    for weights, noise, K in zip(a, s, (g.Kuu, g.Cvv), strict=True):
        S = K - K @ np.linalg.solve(K + np.diag(noise), K)
        found += [K @ weights, np.stack([S] * g.outputs)]
    return by_formula(g, *found)


@pytest.mark.long
@deterministic
@given(groups)
def test_exact_relaxed_groups_are_solve_gp(g):
    q = g.relaxed("relaxed-orthogonal-plain", 0.0)
    assert_marginals(g.model(q), limit_of_relaxed_orthogonal(g, q), g.X, 1e-7)


@pytest.mark.long
@deterministic
@given(groups, plain_or_not)
def test_exact_relaxed_union_is_l_svgp_with_its_gradient(g, plain):
    q = g.relaxed("relaxed-union-plain" if plain else "relaxed-union", 0.0)
    tight = LikelihoodForm(q.mean, q.site, preconditioned=not plain)
    found, expected = (value_and_gradient(g.model(x), g.X, g.y) for x in (q, tight))
    assert float(found[0]) == pytest.approx(float(expected[0]), rel=1e-8)
    for name, x in expected[1].items():
        np.testing.assert_allclose(found[1][name], x, rtol=0.0, atol=1e-7 * (1.0 + np.abs(x).max()), err_msg=name)


@pytest.mark.long
@deterministic
@given(groups, distances)
def test_relaxed_union_never_exceeds_l_svgp_with_all_inducing_inputs(g, distance):
    q = g.relaxed("relaxed-union-plain", distance)
    tight = bound(g.model(LikelihoodForm(q.mean, q.site, preconditioned=False)), g)
    assert bound(g.model(q), g) <= tight + 1e-9 * (1.0 + abs(tight))


@pytest.mark.parametrize("outputs", [1, 3])
def test_exact_relaxed_groups_have_the_gradient_of_solve_gp(outputs, torch_place):
    import torch

    g = Groups(outputs=outputs)
    q = g.relaxed("relaxed-orthogonal-plain", 0.0)
    host = g.model(q)
    expected = value_and_gradient(host, g.X, g.y)[1]
    model, X, y = torch_place.move(host), torch_place.array(g.X), torch_place.array(g.y)

    def exact(raw):
        # the exact posterior, with means and covariances that follow kernel, Z and s
        here = tree.constrain(model, raw)
        K = inducing_covariance(here)
        M = g.first
        J = torch.linalg.solve(K[:M, :M], K[:M, M:]).mT
        found = []
        for rows, A in ((slice(0, M), K[:M, :M]), (slice(M, None), K[M:, M:] - J @ K[:M, M:])):
            noise = process(here).posterior.site[rows]
            S = A - A @ torch.linalg.solve(A + torch.diag(noise), A)
            root = torch.linalg.cholesky(0.5 * (S + S.mT))
            found.append(Marginal(A @ process(here).posterior.mean[rows], torch.stack([root] * outputs)))
        return replaced(here, posterior=Orthogonal(tuple(found), g.sizes)).bound(X, y)[0]

    found = short_names(backend_of(X).value_and_grad(exact, tree.unconstrain(model))[1])
    for name, x in expected.items():
        assert_close(x, torch_place.numpy(found[name]), 1e-8, name)


@pytest.mark.parametrize("kind", ["relaxed-orthogonal", "relaxed-union"])
def test_the_gap_of_relaxed_groups_is_quadratic(kind):
    values = [bound((g := Groups()).model(g.relaxed(kind, distance)), g) for distance in (0.0, 1e-4, 1e-3, 1e-2)]
    gaps = [abs(value - values[0]) for value in values[1:]]
    assert gaps[2] > 1e-4
    for small, large in itertools.pairwise(gaps):
        assert math.log10(large / small) == pytest.approx(2.0, abs=0.2)


@pytest.mark.slow
@deterministic
@given(groups, st.integers(0, 2**32 - 1))
def test_what_another_basis_leaves_over_is_never_less(g, seed):
    # Cov(v - J u) >= Cvv for every J, with equality and no covariance with u at J = Kvu Kuu^-1
    q = g.relaxed("relaxed-orthogonal", 0.0)
    J = np.random.default_rng(seed).normal(size=(g.second, g.first))
    _, C = q._conditional_blocks(g.K, J)
    assert np.linalg.eigvalsh(C - g.Cvv).min() >= -1e-9 * np.abs(C).max()
    cross, C = q._conditional_blocks(g.K, g.J)
    scale = np.abs(g.K).max()
    np.testing.assert_allclose(cross, 0.0, atol=1e-10 * scale)
    np.testing.assert_allclose(C, g.Cvv, atol=1e-10 * scale)
    target = q.inverse_target(g.K, "second_inverse") - np.diag(q.site[g.first :])
    np.testing.assert_allclose(target, g.Cvv, atol=1e-9 * scale)
