"""Facts that hold for every problem, checked on random ones against textbook formulas in plain NumPy."""

import math
import warnings
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from helpers import (
    gpr,
    inducing_covariance,
    marginals,
    named,
    process,
    replaced,
    short_names,
    svgp,
    value_and_gradient,
    with_leaves,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from textbook import (
    JITTER,
    Problem,
    deterministic,
    gaussian_elbo,
    l_svgp,
    normal_kl,
    preconditioned,
    problems,
    seeds,
    textbook_sgpr,
)

from agp import GPR, RBF, SVGP, Gaussian, Matern32, tree
from agp.backend import Backend
from agp.errors import RepairWarning
from agp.linalg import (
    congruence,
    constant_step,
    gram,
    inverse_factor,
    lower_of,
    lower_times,
    lower_times_lower,
    lower_transposed_product,
    lower_transposed_times,
    natural_step,
    safe_step,
)
from agp.linalg._inverse_step import starting_factor
from agp.linalg._triangular import lower_product
from agp.posteriors import Relaxed, Whitened
from agp.training._batches import Batches

# -- order of the bounds ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@deterministic
@given(problems)
def test_whitened_bound_never_exceeds_sgpr_and_evidence(problem):
    bound = problem.bound(problem.whitened())
    collapsed = textbook_sgpr(problem.Kuu, problem.Kuf, problem.kff, problem.noise, problem.y)
    lml = problem.lml()
    assert bound <= collapsed + problem.slack(collapsed)
    assert collapsed <= lml + problem.slack(lml)


@pytest.mark.slow
@deterministic
@given(problems, preconditioned)
def test_relaxed_bound_never_exceeds_sgpr_for_any_factor(problem, preconditioned):
    bound = problem.bound(problem.relaxed(preconditioned=preconditioned))
    collapsed = textbook_sgpr(problem.Kuu, problem.Kuf, problem.kff, problem.noise, problem.y)
    assert bound <= collapsed + problem.slack(collapsed)
    assert bound <= problem.lml() + problem.slack(bound)


@pytest.mark.slow
@deterministic
@given(problems)
def test_exact_gp_gives_the_log_evidence(problem):
    model = gpr(*problem.parts(), problem.X, problem.y)
    assert problem.bound(model) == pytest.approx(problem.lml(), rel=1e-9)


@pytest.mark.slow
@deterministic
@given(problems)
def test_plain_relaxed_bound_is_below_plain_l_svgp(problem):
    bound = problem.bound(problem.relaxed(preconditioned=False))
    mu, var, kl = l_svgp(problem.Kuu, problem.Kuf, problem.kff, problem.m, problem.s, False)
    tight = gaussian_elbo(mu, var, kl, problem.noise, problem.y)
    assert bound <= tight + problem.slack(tight)


@pytest.mark.slow
@deterministic
@given(problems)
def test_whitened_at_the_optimal_posterior_equals_sgpr(problem):
    Lu = np.linalg.cholesky(problem.Kuu)
    A = np.linalg.solve(Lu, problem.Kuf) / math.sqrt(problem.noise)
    S = np.linalg.inv(np.eye(problem.M) + A @ A.T)
    C = np.broadcast_to(np.linalg.cholesky(0.5 * (S + S.T)), problem.C.shape)
    model = problem.whitened(S @ A @ problem.y / math.sqrt(problem.noise), C)
    collapsed = textbook_sgpr(problem.Kuu, problem.Kuf, problem.kff, problem.noise, problem.y)
    assert problem.bound(model) == pytest.approx(collapsed, rel=1e-6, abs=1e-6)


@pytest.mark.slow
@deterministic
@given(problems)
def test_whitened_starts_at_the_prior(problem):
    model = with_leaves(
        problem.whitened(),
        {
            "posterior.mean": np.zeros_like(problem.m),
            "posterior.scale": np.broadcast_to(np.eye(problem.M), problem.C.shape),
        },
    )
    (mu, var, kl), _ = marginals(model, problem.X)
    assert kl == 0.0
    np.testing.assert_array_equal(mu, 0.0)
    np.testing.assert_allclose(var, problem.variance, rtol=1e-12)


# -- the relaxation --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@deterministic
@given(problems, preconditioned)
def test_relaxed_equals_l_svgp_at_the_exact_inverse(problem, preconditioned):
    (mu, var, kl), _ = marginals(problem.relaxed(problem.L_exact, preconditioned), problem.X)
    expected_mu, expected_var, expected_kl = l_svgp(
        problem.Kuu, problem.Kuf, problem.kff, problem.m, problem.s, preconditioned
    )
    np.testing.assert_allclose(mu, expected_mu, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(var, np.tile(expected_var[:, None], problem.P), rtol=1e-8, atol=1e-10)
    assert kl == pytest.approx(expected_kl, rel=1e-8, abs=1e-8)


def l_svgp_of_raw(problem, raw, preconditioned):
    """The textbook L-SVGP bound as an analytic function of the raw leaves."""
    variance, lengthscale, noise, s = (
        np.log1p(np.exp(raw[name]))
        for name in ("kernel.variance", "kernel.lengthscale", "likelihood.noise_variance", "posterior.site")
    )
    Z = raw["Z"]

    def k(A, B):
        r2 = np.sum(((A[:, None, :] - B[None, :, :]) / lengthscale) ** 2, axis=-1)
        return variance * np.exp(-0.5 * r2)

    Kuu = k(Z, Z) + JITTER * np.eye(problem.M)
    kff = variance * np.ones(problem.N)
    mu, var, kl = l_svgp(Kuu, k(Z, problem.X), kff, raw["posterior.mean"], s, preconditioned)
    return gaussian_elbo(mu, var, kl, noise, problem.y)


@pytest.mark.slow
@settings(deterministic, max_examples=15)
@given(problems, preconditioned)
def test_relaxed_gradient_equals_that_of_l_svgp_at_the_exact_inverse(problem, preconditioned):
    problem = replace(problem, kind=RBF)
    model = problem.relaxed(problem.L_exact, preconditioned)
    value, gradient = value_and_gradient(model, problem.X, problem.y)
    raw = short_names(tree.unconstrain(model))
    assert value == pytest.approx(l_svgp_of_raw(problem, raw, preconditioned), rel=1e-8, abs=1e-8)
    for name, leaf in raw.items():
        direction = problem.rng.normal(size=np.shape(leaf))
        moved = raw | {name: leaf + 1e-30j * direction}
        expected = l_svgp_of_raw(problem, moved, preconditioned).imag / 1e-30
        scale = np.linalg.norm(gradient[name]) * np.linalg.norm(direction) + 1e-3
        assert abs(np.sum(gradient[name] * direction) - expected) <= 1e-6 * scale, name


def relaxed_inverse(problem):
    T = problem.L @ problem.L.T
    return T, 2 * T - T @ problem.Kt @ T


@pytest.mark.slow
@deterministic
@given(problems, preconditioned)
def test_relaxed_kl_is_an_upper_bound_of_the_kl_of_its_posterior(problem, preconditioned):
    (_, _, bound), _ = marginals(problem.relaxed(preconditioned=preconditioned), problem.X)
    _, PR = relaxed_inverse(problem)
    mh = PR @ problem.m if preconditioned else problem.m
    S = problem.Kuu - problem.Kuu @ PR @ problem.Kuu
    true = normal_kl(problem.Kuu @ mh, 0.5 * (S + S.T), problem.Kuu)
    assert bound >= true - 1e-6 * (1 + abs(true))


@pytest.mark.slow
@deterministic
@given(problems)
def test_relaxed_kl_equals_its_form_with_traces_of_m_by_m_products(problem):
    (_, _, kl), _ = marginals(problem.relaxed(preconditioned=False), problem.X)
    T, PR = relaxed_inverse(problem)
    tau = -np.trace(PR @ problem.Kuu) + np.trace(problem.Kt @ T) - problem.M
    logs = 2 * np.sum(np.log(np.diag(problem.L))) + np.sum(np.log(problem.s))
    fit = np.sum(problem.m * (problem.Kuu @ problem.m))
    assert kl == pytest.approx(0.5 * (fit + problem.P * (tau - logs)), rel=1e-8, abs=1e-8)


@pytest.mark.slow
@deterministic
@given(problems)
def test_relaxed_variance_exceeds_that_of_l_svgp_by_the_stated_gap(problem):
    (_, var, _), _ = marginals(problem.relaxed(), problem.X)
    _, tight, _ = l_svgp(problem.Kuu, problem.Kuf, problem.kff, problem.m, problem.s, False)
    gap = var[:, 0] - tight
    E = problem.L.T @ problem.Kuf
    G = problem.L.T @ problem.Kt @ problem.L - np.eye(problem.M)
    expected = np.sum(E * (G @ np.linalg.solve(np.eye(problem.M) + G, G @ E)), axis=0)
    residual = (np.eye(problem.M) - problem.Kt @ problem.L @ problem.L.T) @ problem.Kuf
    largest = np.sum(residual**2, axis=0) / problem.s.min()
    rounding = 1e-9 * problem.variance
    assert np.all(tight > 0)
    assert np.all(gap >= -rounding)
    assert np.all(gap <= largest + rounding)
    np.testing.assert_allclose(gap, expected, rtol=1e-7, atol=rounding)


@pytest.mark.slow
@deterministic
@given(problems, preconditioned)
def test_relaxed_with_a_converged_factor_does_not_see_the_order_of_inducing_inputs(problem, preconditioned):
    order = problem.rng.permutation(problem.M)
    Kt = problem.Kt[np.ix_(order, order)]
    permuted = with_leaves(
        problem.relaxed(preconditioned=preconditioned),
        {
            "Z": problem.Z[order],
            "posterior.mean": problem.m[order],
            "posterior.site": problem.s[order],
            "posterior.inverse_factor": np.linalg.cholesky(np.linalg.inv(Kt)),
        },
    )
    plain = problem.relaxed(problem.L_exact, preconditioned)
    for value, expected in zip(marginals(permuted, problem.X)[0], marginals(plain, problem.X)[0], strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
@deterministic
@given(problems)
def test_relaxed_reaches_the_evidence_with_a_site_for_every_datum(problem):
    N = problem.N
    site = np.full(N, problem.noise)
    L = np.linalg.cholesky(np.linalg.inv(problem.k(problem.X, problem.X) + problem.noise * np.eye(N)))
    model = svgp(*problem.parts(), Relaxed(problem.y, site, L), problem.X, 0.0)
    assert problem.bound(model) == pytest.approx(problem.lml(), rel=1e-7)


# -- symmetries ------------------------------------------------------------------------------------------------------


def scaled(problem, model, a):
    leaves = named(model)
    powers = {"kernel.variance": 2, "likelihood.noise_variance": 2, "posterior.site": 2, "y": 1}
    powers |= {"posterior.inverse_factor": -1}
    if isinstance(model, SVGP) and isinstance(process(model).posterior, Relaxed):
        powers["posterior.mean"] = 1  # in units of y: the mean is preconditioned
    new = with_leaves(model, {name: a ** powers.get(name, 0) * x for name, x in leaves.items()})
    return replaced(new, jitter=JITTER * a**2) if isinstance(new, SVGP) else new


@pytest.mark.slow
@pytest.mark.parametrize("method", ["exact", "whitened", "relaxed"])
@settings(deterministic, max_examples=10)
@given(problem=problems, a=st.sampled_from([1e-3, 0.5, 7.0, 1e4]))
def test_units_of_the_targets_only_shift_the_bound(method, problem, a):
    models = {
        "exact": lambda: gpr(*problem.parts(), problem.X, problem.y),
        "whitened": problem.whitened,
        "relaxed": problem.relaxed,
    }
    model = models[method]()
    before = float(model.bound(problem.X, problem.y)[0])
    after = float(scaled(problem, model, a).bound(problem.X, a * problem.y)[0])
    assert after == pytest.approx(before - problem.y.size * math.log(a), rel=1e-8, abs=1e-7)


@pytest.mark.slow
@deterministic
@given(problems)
def test_the_evidence_does_not_see_the_order_of_the_data(problem):
    order = problem.rng.permutation(problem.N)
    X, y = problem.X[order], problem.y[order]
    permuted = gpr(*problem.parts(), X, y).bound(X, y)[0]
    assert permuted == pytest.approx(problem.lml(), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [RBF, Matern32])
@deterministic
@given(seed=st.integers(0, 2**32 - 1), D=st.integers(1, 6), shift=st.sampled_from([0.0, 3.0]))
def test_stationary_pullbacks_obey_eulers_identity(kind, seed, D, shift):
    rng = np.random.default_rng(seed)
    X, Z = rng.normal(size=(9, D)) + shift, rng.normal(size=(5, D)) + shift
    kernel = kind(np.asarray(1.7), np.exp(rng.normal(size=D)))
    bar, X_bar, Z_bar = kernel(X, Z)[1](rng.normal(size=(9, 5)))
    by_inputs = -np.sum(X * X_bar, axis=0) - np.sum(Z * Z_bar, axis=0)
    np.testing.assert_allclose(kernel.lengthscale * bar.lengthscale, by_inputs, rtol=1e-9, atol=1e-11)


def test_a_shared_lengthscale_sums_over_columns():
    rng = np.random.default_rng(0)
    X, Z, bar = rng.normal(size=(9, 3)), rng.normal(size=(5, 3)), rng.normal(size=(9, 5))
    shared = RBF(np.asarray(1.7), np.asarray(0.8))(X, Z)[1](bar)[0].lengthscale
    each = RBF(np.asarray(1.7), np.full(3, 0.8))(X, Z)[1](bar)[0].lengthscale
    assert np.shape(shared) == ()
    assert shared == pytest.approx(each.sum(), rel=1e-12)


@pytest.mark.parametrize("batch_size", [1, 4, 6, 12])
@pytest.mark.parametrize("method", ["whitened", "relaxed"])
def test_minibatch_bounds_of_an_epoch_average_to_the_bound(method, batch_size):
    problem = Problem(3, 24, 5, 2, 3, RBF, 0.1, 1.0, 0.1)
    model = getattr(problem, method)()
    batches = Batches(problem.X, problem.y, batch_size, seed=5)
    epoch = [batches[step] for step in range(7 * 24 // batch_size, 8 * 24 // batch_size)]
    bounds = [float(model._objective(batch)[0]) for batch in epoch]
    assert np.mean(bounds) == pytest.approx(problem.bound(model), rel=1e-11)
    assert np.std(bounds) > 1e-3


# -- natural-gradient inversion --------------------------------------------------------------------------------------


def spd_and_factor(seed, M, largest):
    """A, and lower L such that the largest eigenvalue of L^T A L is `largest`."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(M, M)) / math.sqrt(M) + 0.3 * np.eye(M)
    A = root @ root.T + 1e-3 * np.eye(M)
    L = np.tril(rng.normal(size=(M, M)) / M, k=-1) + np.diag(rng.uniform(0.3, 1.5, size=M))
    return A, L * math.sqrt(largest / np.linalg.eigvalsh(L.T @ A @ L)[-1])


def phi(G):
    return np.tril(G) - 0.5 * np.diag(np.diag(G))


def merit(A, L):
    return 0.5 * np.trace(L.T @ A @ L) - np.sum(np.log(np.diag(L)))


sizes = st.integers(1, 12)
spectra = st.sampled_from([0.5, 1.0, 1.9, 3.0, 50.0, 1e4])


@pytest.mark.slow
@deterministic
@given(seeds, sizes, st.sampled_from([0.5, 1.0, 1.5]))
def test_unit_steps_follow_the_recursion_of_the_residual(seed, M, largest):
    A, L = spd_and_factor(seed, M, largest)
    G = L.T @ A @ L - np.eye(M)
    Y = phi(G)
    new = natural_step(L, np.tril(L.T @ A @ L), 1.0)
    residual = new.T @ A @ new - np.eye(M)
    np.testing.assert_allclose(residual, Y @ Y.T - G @ G + Y.T @ G @ Y, atol=1e-12)
    norm = np.linalg.norm(G)
    assert np.linalg.norm(residual) <= 1.118 * norm**2 + 0.5 * norm**3 + 1e-12
    assert np.trace(G @ Y) == pytest.approx(0.5 * norm**2)


@pytest.mark.slow
@deterministic
@given(seeds, sizes, spectra, st.sampled_from([0.1, 0.7, 1.0]))
def test_steps_are_newton_schulz_plus_a_positive_term(seed, M, largest, gamma):
    A, L = spd_and_factor(seed, M, largest)
    T, Y = L @ L.T, phi(L.T @ A @ L - np.eye(M))
    new = natural_step(L, np.tril(L.T @ A @ L), gamma)
    expected = (1 + gamma) * T - gamma * T @ A @ T + gamma**2 * (L @ Y) @ (L @ Y).T
    np.testing.assert_allclose(new @ new.T, expected, rtol=1e-9, atol=1e-12 * (1 + largest) ** 2 * T.max())


@pytest.mark.slow
@deterministic
@given(seeds, sizes, spectra)
def test_safe_steps_decrease_the_merit_as_the_formula_says(seed, M, largest):
    A, L = spd_and_factor(seed, M, largest)
    B = L.T @ A @ L
    Y = phi(B - np.eye(M))
    gamma = float(safe_step(np.asarray(0.0), np.linalg.eigvalsh(B)[-1]))
    new = natural_step(L, np.tril(B), gamma)
    expected = -gamma * np.trace(B @ Y) + 0.5 * gamma**2 * np.trace(Y.T @ B @ Y)
    expected -= np.sum(np.log1p(-gamma * np.diag(Y)))
    change = merit(A, new) - merit(A, L)
    assert 0 < gamma <= min(1.0, 2.0 / largest)
    assert np.all(np.diag(new) > 0)
    assert change == pytest.approx(expected, rel=1e-8, abs=1e-9)
    assert change <= -0.1 * gamma * np.linalg.norm(B - np.eye(M)) ** 2 + 1e-12


@pytest.mark.slow
@deterministic
@given(seeds, sizes, spectra)
@example(174, 3, 50.0)  # a step is taken back, and NumPy must not tell the user about log(-x)
@example(190, 12, 0.5)
@example(32, 3, 0.5)  # the last step improves the residual while the merit is flat to rounding
def test_inverse_factor_reaches_the_cholesky_factor_of_the_inverse(seed, M, largest):
    A, L = spd_and_factor(seed, M, largest)
    found = inverse_factor(A, L, tolerance=1e-9, max_steps=200)
    np.testing.assert_allclose(found.factor, np.linalg.cholesky(np.linalg.inv(A)), rtol=1e-5, atol=1e-6)
    assert found.residual < 1e-9
    assert np.all(np.triu(found.factor, 1) == 0)


@pytest.mark.slow
@deterministic
@given(seeds, sizes)
def test_starting_factor_keeps_eigenvalues_below_one(seed, M):
    A, _ = spd_and_factor(seed, M, 1.0)
    L = starting_factor(A)
    assert np.linalg.eigvalsh(L.T @ A @ L)[-1] <= 1 + 1e-12


@pytest.mark.parametrize("largest", [4.0, 6.0, 50.0])
def test_unsafe_unit_steps_recover_without_noise(largest):
    # Unit steps flip the sign of diag L here; such steps are taken back, and no warning reaches the user.
    A, L = spd_and_factor(11, 8, largest)
    found = inverse_factor(A, L, tolerance=1e-8, max_steps=200, step=constant_step(1.0), patience=50)
    assert found.residual < 1e-8
    assert np.all(np.diag(found.factor) > 0)


@pytest.mark.parametrize("block", [1, 2, 5, 100])
@settings(deterministic, max_examples=8)
@given(seed=seeds, M=st.integers(1, 23))
def test_triangular_products_equal_dense_ones_at_any_depth(block, seed, M):
    rng = np.random.default_rng(seed)
    A, L = spd_and_factor(seed, M, 1.0)
    Y = np.tril(rng.normal(size=(M, M)))
    X = rng.normal(size=(M, 4))
    B = L.T @ A @ L
    dense = L @ (np.eye(M) - 0.7 * phi(B - np.eye(M)))
    with mock.patch.object(Backend, "triangular_block", block):
        pairs = [
            (gram(A, L), np.tril(B)),
            (natural_step(L, gram(A, L), 0.7), dense),
            (congruence(L, A), L @ A @ L.T),
            (lower_of(X, X.T), np.tril(X @ X.T)),
            (lower_product(A, L), np.tril(A @ L)),
            (lower_times(L, X), L @ X),
            (lower_transposed_times(L, X), L.T @ X),
            (lower_times_lower(L, Y), L @ Y),
            (lower_transposed_product(L, Y), np.tril(L.T @ Y)),
        ]
    for value, expected in pairs:
        np.testing.assert_allclose(value, expected, atol=1e-12 * (1 + np.abs(expected).max()))


# -- variances -------------------------------------------------------------------------------------------------------


def awkward_inputs(kind, dtype):
    rng = np.random.default_rng(4)
    X = rng.uniform(size=(24, 2))
    if kind == "coincident":
        X = np.repeat(X[:4], 6, axis=0)
    if kind == "far":
        X = X + 1e4
    return X.astype(dtype)


@pytest.mark.cover(2)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("inputs", ["spread", "coincident", "far"])
@pytest.mark.parametrize("lengthscale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("method", ["exact", "whitened", "relaxed"])
def test_variances_are_never_negative(method, lengthscale, inputs, dtype):
    X = awkward_inputs(inputs, dtype)
    y = np.sin(X[:, :1]).astype(dtype)
    kernel, likelihood = RBF(1.0, lengthscale), Gaussian(1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RepairWarning)
        if method == "exact":
            model = GPR.from_data(X, y, kernel=kernel, likelihood=likelihood)
        else:
            posterior = Whitened if method == "whitened" else Relaxed
            model = SVGP.from_data(X, y, kernel=kernel, likelihood=likelihood, posterior=posterior, Z=X, jitter=1e-12)
        if method == "whitened":
            model = with_leaves(model, {"posterior.scale": 1e-4 * process(model).posterior.scale})
        mean, variance = model.predict(np.concatenate([X, X + X.dtype.type(1e-3)]))
    assert variance.dtype == X.dtype
    assert np.all(np.isfinite(mean))
    assert np.all(variance >= 0)
    assert np.all(variance <= 1.001)


@pytest.mark.parametrize("method", ["whitened", "relaxed"])
def test_conditional_variances_below_zero_count_as_zero_and_pass_no_gradient(method):
    # rounding may leave kff - Qff below zero; a prior variance that is too small does so surely
    problem = Problem(1, 8, 4, 2, 1, RBF, 0.1, 1.0, 0.0)
    posterior = process(
        getattr(problem, method)(**({"C": np.zeros((1, 4, 4))} if method == "whitened" else {}))
    ).posterior
    factor = posterior.factorise(problem.Kuu)[0]
    kff = np.where(np.arange(8) < 3, 0.0, problem.kff)
    (_, var), pullback = posterior.project(factor, problem.Kuf, kff)
    kff_bar = pullback(np.zeros((8, 1)), np.ones((8, 1)))[-1]
    np.testing.assert_array_equal(var[:3], 0.0)
    assert np.all(var[3:] > 0)
    np.testing.assert_array_equal(kff_bar, np.arange(8) >= 3)


def test_inducing_covariance_carries_the_jitter_once():
    problem = Problem(0, 8, 4, 2, 1, RBF, 0.1, 1.0, 0.0)
    np.testing.assert_allclose(inducing_covariance(problem.relaxed()), problem.Kuu, rtol=1e-13)


def test_kl_of_whitened_is_that_of_its_posterior():
    problem = Problem(2, 8, 4, 2, 3, Matern32, 0.1, 1.0, 0.0)
    model = problem.whitened()
    kl = marginals(model, problem.X)[0][2]
    Lu = np.linalg.cholesky(problem.Kuu)
    expected = sum(
        normal_kl(Lu @ problem.m[:, p, None], Lu @ C @ C.T @ Lu.T, problem.Kuu) for p, C in enumerate(problem.C)
    )
    assert kl == pytest.approx(expected, rel=1e-8)
