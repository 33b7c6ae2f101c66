"""Facts that tie the parameterisations of q(u) to each other, to collapsed bounds and to the evidence."""

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers import TORCH, gpr, marginals, named, process, replaced, svgp, value_and_gradient, with_leaves
from hypothesis import given, settings
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

from agp import RBF, Matern32
from agp.likelihoods import Bernoulli, NegativeBinomial, Ordinal, Poisson, RobustMax, StudentT
from agp.posteriors import (
    DiagonalMarginal,
    DiagonalWhitened,
    FullSiteLikelihoodForm,
    FullSiteRelaxed,
    InverseFree,
    LikelihoodForm,
    Marginal,
    Relaxed,
    Whitened,
)
from agp.updates import NaturalGradient

few = settings(deterministic, max_examples=25)


def model_of(problem, posterior, Z=None, jitter=JITTER):
    return svgp(*problem.parts(), posterior, problem.Z if Z is None else Z, jitter)


def whitening(problem, Kuu=None):
    """R lower with R R^T = Kuu^-1, without the inverse: R^-T is the upper triangular root of Kuu."""
    Kuu = problem.Kuu if Kuu is None else Kuu
    upper = np.linalg.cholesky(Kuu[::-1, ::-1])[::-1, ::-1]
    return np.tril(np.linalg.inv(upper).T)


def assert_same_marginals(found, expected, X, tolerance=1e-7):
    for x, y in zip(marginals(found, X)[0], marginals(expected, X)[0], strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * (1.0 + np.abs(y).max()))


def by_name(problem, kind):
    """A model of each kind at the random parameters of a problem; inverse factors are exact."""
    return {
        "marginal": lambda: model_of(problem, Marginal(problem.m, problem.C)),
        "whitened": problem.whitened,
        "likelihood": lambda: model_of(problem, LikelihoodForm(problem.m, problem.s)),
        "likelihood-plain": lambda: model_of(problem, LikelihoodForm(problem.m, problem.s, preconditioned=False)),
        "relaxed": lambda: problem.relaxed(problem.L_exact),
        "inverse-free": lambda: model_of(problem, InverseFree(problem.m, problem.C, whitening(problem))),
        "diagonal-marginal": lambda: model_of(problem, DiagonalMarginal(problem.m, deviations(problem))),
        "diagonal-whitened": lambda: model_of(problem, DiagonalWhitened(problem.m, deviations(problem))),
        "likelihood-full-site": lambda: model_of(problem, FullSiteLikelihoodForm(problem.m, full_root(problem))),
        "relaxed-full-site": lambda: model_of(problem, full_relaxed(problem)),
        "relaxed-root": lambda: problem.relaxed(problem.L_exact, "root"),
    }[kind]()


def deviations(problem):
    """Positive numbers [M, P] for a diagonal q(u)."""
    return np.abs(np.diagonal(problem.C, axis1=1, axis2=2).T) + 0.01


def full_root(problem):
    """A factor C [M, M] of the covariance of pseudo-observations, the variances of which are about s."""
    bend = np.tril(0.5 * problem.rng.uniform(-1.0, 1.0, size=(problem.M, problem.M)), -1)
    return (np.eye(problem.M) + bend) * np.sqrt(problem.s)


def full_relaxed(problem, root=None, distance=0.0):
    root = full_root(problem) if root is None else root
    exact = np.linalg.cholesky(np.linalg.inv(problem.Kuu + root @ root.T))
    bend = np.eye(problem.M) + distance * np.tril(problem.rng.uniform(-1, 1, size=(problem.M, problem.M)))
    return FullSiteRelaxed(problem.m, root, np.tril(exact @ bend))


KINDS = [
    *("marginal", "whitened", "likelihood", "likelihood-plain", "relaxed", "inverse-free"),
    *("diagonal-marginal", "diagonal-whitened", "likelihood-full-site", "relaxed-full-site", "relaxed-root"),
]


# -- order of the bounds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@few
@given(problem=problems)
def test_no_bound_exceeds_sgpr(kind, problem):
    bound = problem.bound(by_name(problem, kind))
    collapsed = textbook_sgpr(problem.Kuu, problem.Kuf, problem.kff, problem.noise, problem.y)
    # A-SVGP is a bound for every factor, and its KL has rounding of order cond(Kuu)
    assert bound <= collapsed + 1e-7 * (1.0 + abs(collapsed) + abs(bound))


@pytest.mark.parametrize("kind", KINDS)
@few
@given(problem=problems)
def test_no_kl_is_negative(kind, problem):
    (_, _, kl), _ = marginals(by_name(problem, kind), problem.X)
    assert kl >= -1e-7 * (1.0 + abs(kl))


@pytest.mark.slow
@deterministic
@given(problems)
def test_the_kl_of_relaxed_full_sites_is_an_upper_bound_for_every_factor(problem):
    q = full_relaxed(problem, distance=problem.distance)
    tight = FullSiteLikelihoodForm(problem.m, q.site_scale, preconditioned=False)
    plain = replace(q, preconditioned=False)
    (_, var, kl), _ = marginals(model_of(problem, plain), problem.X)
    (_, tight_var, tight_kl), _ = marginals(model_of(problem, tight), problem.X)
    assert kl >= tight_kl - problem.slack(tight_kl)
    assert np.all(var >= tight_var - 1e-9 * problem.variance)


def bound_and_gradient(problem, posterior):
    """The bound and its gradient by the constrained leaves."""
    value, pullback = model_of(problem, posterior).bound(problem.X, problem.y)
    return float(value), named(pullback(1.0)[0])


def assert_same_bound_and_gradient(found, expected):
    (value, gradient), (desired, theirs) = found, expected
    assert value == pytest.approx(desired, rel=1e-10, abs=1e-10)
    assert gradient.keys() == theirs.keys()
    for name, x in theirs.items():
        np.testing.assert_allclose(gradient[name], x, rtol=0.0, atol=1e-8 * (1.0 + np.abs(x).max()), err_msg=name)


@pytest.mark.slow
@few
@given(problems, preconditioned)
def test_a_full_site_that_is_diagonal_is_the_diagonal_one(problem, preconditioned):
    root = np.diag(np.sqrt(problem.s))
    q = replace(full_relaxed(problem, root, problem.distance), preconditioned=preconditioned)
    pairs = [
        (FullSiteLikelihoodForm(problem.m, root, preconditioned), LikelihoodForm(problem.m, problem.s, preconditioned)),
        (q, Relaxed(problem.m, problem.s, q.inverse_factor, preconditioned)),
    ]
    for full, diagonal in pairs:
        found, expected = (bound_and_gradient(problem, each) for each in (full, diagonal))
        # s = c^2
        found[1]["posterior.site"] = np.diag(found[1].pop("posterior.site_scale"))
        expected[1]["posterior.site"] = 2.0 * np.sqrt(problem.s) * expected[1]["posterior.site"]
        assert_same_bound_and_gradient(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "full"), [(DiagonalWhitened, Whitened), (DiagonalMarginal, Marginal)])
@few
@given(problem=problems)
def test_a_diagonal_q_is_the_full_one_with_a_diagonal_factor(kind, full, problem):
    s = deviations(problem)
    pair = kind(problem.m, s), full(problem.m, np.stack([np.diag(x) for x in s.T]))
    found, expected = (bound_and_gradient(problem, each) for each in pair)
    expected[1]["posterior.deviation"] = np.diagonal(expected[1].pop("posterior.scale"), axis1=1, axis2=2).T
    assert_same_bound_and_gradient(found, expected)
    ours, theirs = (model_of(problem, each).predict_covariance(problem.X) for each in pair)
    np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=1e-8 * (1.0 + np.abs(theirs).max()))


@pytest.mark.slow
@deterministic
@given(problems)
def test_marginal_equals_whitened_in_its_coordinates(problem):
    Lu = np.linalg.cholesky(problem.Kuu)
    other = model_of(problem, Marginal(Lu @ problem.m, Lu @ problem.C))
    expected = problem.bound(problem.whitened())
    assert problem.bound(other) == pytest.approx(expected, rel=1e-8, abs=1e-8)


@pytest.mark.slow
@deterministic
@given(problems)
def test_plain_relaxed_kl_and_bound_lie_on_their_sides_of_l_svgp(problem):
    tight = model_of(problem, LikelihoodForm(problem.m, problem.s, preconditioned=False))
    (_, _, kl), _ = marginals(problem.relaxed(preconditioned=False), problem.X)
    (_, _, tight_kl), _ = marginals(tight, problem.X)
    assert kl >= tight_kl - problem.slack(tight_kl)
    assert problem.bound(problem.relaxed(preconditioned=False)) <= problem.bound(tight) + 1e-8 * (1.0 + abs(tight_kl))


@pytest.mark.slow
@deterministic
@given(problems, preconditioned)
def test_l_svgp_is_its_textbook_form(problem, preconditioned):
    model = model_of(problem, LikelihoodForm(problem.m, problem.s, preconditioned=preconditioned))
    mu, var, kl = l_svgp(problem.Kuu, problem.Kuf, problem.kff, problem.m, problem.s, preconditioned)
    expected = gaussian_elbo(mu, var, kl, problem.noise, problem.y)
    assert problem.bound(model) == pytest.approx(expected, rel=1e-8, abs=1e-8)


@pytest.mark.slow
@few
@given(problems, preconditioned)
def test_relaxed_and_l_svgp_have_one_gradient_at_the_exact_inverse(problem, preconditioned):
    relaxed = problem.relaxed(problem.L_exact, preconditioned)
    tight = model_of(problem, LikelihoodForm(problem.m, problem.s, preconditioned=preconditioned))
    found, expected = (value_and_gradient(model, problem.X, problem.y)[1] for model in (relaxed, tight))
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        np.testing.assert_allclose(found[name], x, rtol=0.0, atol=1e-7 * (1.0 + np.abs(x).max()), err_msg=name)


# -- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@few
@given(problems)
def test_l_svgp_reaches_the_evidence_with_a_site_for_every_datum(problem):
    posterior = LikelihoodForm(problem.y, np.full(problem.N, problem.noise))
    model = model_of(problem, posterior, Z=problem.X, jitter=0.0)
    assert problem.bound(model) == pytest.approx(problem.lml(), rel=1e-8)


@pytest.mark.slow
@few
@given(problems, preconditioned)
def test_l_svgp_with_sites_that_say_nothing_is_the_prior(problem, preconditioned):
    site = 1e9 * np.ones(problem.M) * problem.variance
    model = model_of(problem, LikelihoodForm(0.0 * problem.m, site, preconditioned=preconditioned))
    (mu, var, kl), _ = marginals(model, problem.X)
    np.testing.assert_array_equal(mu, 0.0)
    np.testing.assert_allclose(var, problem.variance, rtol=1e-7)
    assert kl == pytest.approx(0.0, abs=1e-6)


@pytest.mark.slow
@few
@given(problems)
def test_marginal_and_inverse_free_start_at_the_prior(problem):
    for kind in (Marginal, InverseFree):
        posterior = kind.from_prior(problem.Kuu, problem.P)
        if kind is InverseFree:
            posterior = with_leaves(posterior, {"inverse_factor": whitening(problem)})
        (mu, var, kl), _ = marginals(model_of(problem, posterior), problem.X)
        np.testing.assert_array_equal(mu, 0.0)
        np.testing.assert_allclose(var, problem.variance, rtol=1e-7)
        assert kl == pytest.approx(0.0, abs=1e-6)


@pytest.mark.slow
@few
@given(problems)
def test_a_full_natural_step_with_gaussian_noise_gives_sgpr(problem):
    collapsed = textbook_sgpr(problem.Kuu, problem.Kuf, problem.kff, problem.noise, problem.y)
    for kind in ("marginal", "whitened"):
        start = by_name(problem, kind)
        update = NaturalGradient(1.0)
        model, _, _ = update(start, start._batch(problem.X, problem.y), update.init(start))
        # cond(Kuu) up to 1e6, once more through the explicit inverse of M-SVGP's precision
        assert problem.bound(model) == pytest.approx(collapsed, rel=1e-5, abs=1e-5)


# -- symmetries -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@few
@given(problems)
def test_the_order_of_inducing_inputs_does_not_matter(problem):
    order = problem.rng.permutation(problem.M)
    Z, m, s = problem.Z[order], problem.m[order], problem.s[order]
    Kuu = problem.Kuu[np.ix_(order, order)]
    for flag in (True, False):
        plain = model_of(problem, LikelihoodForm(problem.m, problem.s, preconditioned=flag))
        permuted = model_of(problem, LikelihoodForm(m, s, preconditioned=flag), Z)
        assert_same_marginals(permuted, plain, problem.X)
    covariances = [(C @ C.T)[np.ix_(order, order)] for C in problem.C]
    permuted = Marginal(m, np.linalg.cholesky(np.stack(covariances)))
    assert_same_marginals(model_of(problem, permuted, Z), by_name(problem, "marginal"), problem.X)
    # whitened methods see the order through the whitening alone: the same q(u) in the coordinates of the other order
    for kind, old, new in (
        (Whitened, np.linalg.cholesky(problem.Kuu), np.linalg.cholesky(Kuu)),
        (InverseFree, np.linalg.inv(whitening(problem)).T, np.linalg.inv(whitening(problem, Kuu)).T),
    ):
        turn = np.linalg.solve(new, old[order])
        S = np.stack([turn @ C @ C.T @ turn.T for C in problem.C])
        posterior = (turn @ problem.m, np.linalg.cholesky(0.5 * (S + S.mT)))
        extra = (whitening(problem, Kuu),) if kind is InverseFree else ()
        expected = by_name(problem, "whitened" if kind is Whitened else "inverse-free")
        assert_same_marginals(model_of(problem, kind(*posterior, *extra), Z), expected, problem.X, 1e-6)


UNITS = {
    "marginal": {"posterior.mean": 1, "posterior.scale": 1},
    "diagonal-marginal": {"posterior.mean": 1, "posterior.deviation": 1},
    "diagonal-whitened": {},
    "likelihood-full-site": {"posterior.mean": 1, "posterior.site_scale": 1},
    "relaxed-full-site": {"posterior.mean": 1, "posterior.site_scale": 1, "posterior.inverse_factor": -1},
    "relaxed-root": {"posterior.site": 2, "posterior.inverse_factor": -1},
    "likelihood": {"posterior.mean": 1, "posterior.site": 2},
    "likelihood-plain": {"posterior.mean": -1, "posterior.site": 2},
    "inverse-free": {"posterior.inverse_factor": -1},
}


@pytest.mark.parametrize("kind", UNITS)
@settings(deterministic, max_examples=10)
@given(problem=problems, a=st.sampled_from([1e-3, 0.5, 7.0, 1e4]))
def test_units_of_the_targets_only_shift_the_bound(kind, problem, a):
    model = by_name(problem, kind)
    powers = UNITS[kind] | {"kernel.variance": 2, "likelihood.noise_variance": 2}
    leaves = {name: a ** powers.get(name, 0) * x for name, x in named(model).items()}
    scaled = replaced(with_leaves(model, leaves), jitter=JITTER * a**2)
    before, after = problem.bound(model), float(scaled.bound(problem.X, a * problem.y)[0])
    assert after == pytest.approx(before - problem.y.size * math.log(a), rel=1e-7, abs=1e-6)


# -- A-SVGP -----------------------------------------------------------------------------------------------------------


def dense_moments(K, R, m, C):
    """The mean and covariance that A-SVGP gives u for one output."""
    A = R.T @ K @ R
    S = K + K @ R @ (A - 2.0 * np.eye(len(K)) + C @ C.T) @ R.T @ K
    return K @ R @ m, 0.5 * (S + S.T)


@pytest.mark.slow
@deterministic
@given(problems, st.sampled_from([0.1, 1.0, 4.0, 20.0]), st.sampled_from(["random", "one direction"]))
def test_the_kl_of_inverse_free_is_an_upper_bound_for_every_factor_and_scale(problem, size, shape):
    M, rng = problem.M, problem.rng
    direction = rng.normal(size=M)
    direction /= np.linalg.norm(direction)
    if shape == "random":
        root = rng.normal(size=(M, M)) + 0.1 * np.eye(M)
        S = size * root @ root.T / np.linalg.eigvalsh(root @ root.T)[-1] + 1e-6 * np.eye(M)
    else:
        S = np.eye(M) + (size - 1.0) * np.outer(direction, direction)
    C = np.linalg.cholesky(S)
    R = np.tril(whitening(problem) @ (np.eye(M) + problem.distance * np.tril(rng.uniform(-1, 1, size=(M, M)))))
    m = problem.m[:, :1]
    posterior = InverseFree(m, C[None], R)
    bound = float(posterior.kl_divergence(posterior.factorise(problem.Kuu)[0])[0])
    true = normal_kl(*dense_moments(problem.Kuu, R, m, C), problem.Kuu)
    assert bound >= true - 1e-6 * (1.0 + abs(true))
    exact = InverseFree(m, C[None], whitening(problem))
    tight = float(exact.kl_divergence(exact.factorise(problem.Kuu)[0])[0])
    white = 0.5 * (np.sum(m * m) + np.sum(C * C) - M) - np.sum(np.log(np.diag(C)))
    assert tight == pytest.approx(white, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("kuu", [0.1, 3.0])
def test_a_large_scale_in_a_hidden_direction_keeps_the_bound_valid(kuu):
    # S = I + 19 v v^T where v is orthogonal to the vector that power iterations would start from, and F is along v:
    # they would answer 1 where the largest eigenvalue is 20, and the constant for that one undercuts the divergence
    start = 1.0 + 0.5 * np.cos(np.arange(5.0))
    v = np.linalg.qr(np.stack([start, np.arange(5.0)], axis=1))[0][:, 1]
    S = np.eye(5) + 19.0 * np.outer(v, v)
    K = np.eye(5) + (kuu - 1.0) * np.outer(v, v)
    C = np.linalg.cholesky(S)
    posterior = InverseFree(np.zeros((5, 1)), C[None], np.eye(5))
    bound = float(posterior.kl_divergence(posterior.factorise(K)[0])[0])
    true = normal_kl(*dense_moments(K, np.eye(5), np.zeros((5, 1)), C), K)
    assert true > 0.0
    assert bound >= true
    F = K - np.eye(5)
    careless = 0.5 * (np.trace(S @ K) - np.linalg.slogdet(S)[1] - 5 + 1.5 * np.sum(F * F) - np.trace(F))
    if kuu < 1.0:
        assert careless < true  # so the guard matters


@pytest.mark.slow
@few
@given(problems)
def test_inverse_free_at_the_exact_factor_is_whitened_with_the_inducing_inputs_reversed(problem):
    ours = by_name(problem, "inverse-free")
    S = np.stack([(C @ C.T)[::-1, ::-1] for C in problem.C])
    theirs = model_of(problem, Whitened(problem.m[::-1].copy(), np.linalg.cholesky(S)), problem.Z[::-1].copy())
    value, gradient = value_and_gradient(ours, problem.X, problem.y)
    expected, expected_gradient = value_and_gradient(theirs, problem.X, problem.y)
    assert value == pytest.approx(expected, rel=1e-8, abs=1e-7)
    # the total gradient; that of C in terms of the same change of S
    dC = np.tril(problem.rng.normal(size=problem.C.shape))
    dS = (dC @ problem.C.mT + problem.C @ dC.mT)[:, ::-1, ::-1]
    other = process(theirs).posterior.scale
    half = np.linalg.solve(other, np.linalg.solve(other, dS).mT)
    moved = other @ (np.tril(half) - 0.5 * half * np.eye(problem.M))
    pairs = {name: (gradient[name], expected_gradient[name]) for name in gradient}
    pairs |= {name: (gradient[name], expected_gradient[name][::-1]) for name in ("Z", "posterior.mean")}
    pairs["posterior.scale"] = (
        np.sum(gradient["posterior.scale"] * dC),
        np.sum(expected_gradient["posterior.scale"] * moved),
    )
    for name, (found, desired) in pairs.items():
        tolerance = 1e-6 * (1.0 + np.abs(desired).max())  # cond(Kuu) up to 1e6, squared in no term
        np.testing.assert_allclose(found, desired, rtol=0.0, atol=tolerance, err_msg=name)


# -- quadrature -------------------------------------------------------------------------------------------------------

QUADRATURES = {
    "probit": (Bernoulli(), 2),
    "logit": (Bernoulli(link="logit"), 2),
    "squash": (Bernoulli(squash=1e-3), 2),
    "student-t": (StudentT(np.asarray(0.4)), 9),
    "poisson": (Poisson(), 9),
    "negative-binomial": (NegativeBinomial(np.asarray(0.7)), 9),
    "ordinal": (Ordinal(4, np.asarray([-1.0, 0.2, 1.0])), 4),
    "robustmax": (RobustMax(3), 3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", QUADRATURES)
@few
@given(seed=seeds, spread=st.sampled_from([1e-3, 1.0, 3.0]))
def test_gradients_of_quadratures_are_those_of_the_sums(name, seed, spread):
    torch = pytest.importorskip("torch", reason="torch is not installed: not executed")
    likelihood, top = QUADRATURES[name]
    rng = np.random.default_rng(seed)
    mu, var = rng.normal(size=(6, 3)), spread * np.exp(rng.normal(size=(6, 3)))
    y = TORCH.array(rng.integers(0, top, size=(6, 1 if name == "robustmax" else 3)))
    bar = TORCH.array(rng.normal(size=6))
    likelihood = TORCH.move(likelihood)
    mu, var = (TORCH.array(x).requires_grad_() for x in (mu, var))
    value, pullback = likelihood.expected_log_density(mu, var, y)
    expected = torch.autograd.grad(torch.sum(value * bar), [mu, var], retain_graph=True)
    for found, desired in zip(pullback(bar)[1:], expected, strict=True):
        desired = TORCH.numpy(desired)
        np.testing.assert_allclose(TORCH.numpy(found), desired, rtol=0.0, atol=1e-10 * np.abs(desired).max() + 1e-14)


# -- textbook pieces --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [RBF, Matern32])
def test_the_evidence_is_the_limit_of_every_bound_with_all_inducing_inputs(kind):
    problem = Problem(5, 12, 12, 2, 2, kind, 0.1, 1.0, 0.0)
    problem = replace(problem)
    problem.Z = problem.X
    evidence = problem.bound(gpr(*problem.parts(), problem.X, problem.y))
    exact = Relaxed(
        problem.y,
        np.full(12, 0.1),
        np.linalg.cholesky(np.linalg.inv(problem.k(problem.X, problem.X) + 0.1 * np.eye(12))),
    )
    assert problem.bound(model_of(problem, exact, jitter=0.0)) == pytest.approx(evidence, rel=1e-8)
    start = model_of(problem, Whitened.from_prior(problem.Kuu, 2), jitter=1e-9)
    update = NaturalGradient(1.0)
    model, _, _ = update(start, start._batch(problem.X, problem.y), update.init(start))
    assert problem.bound(model) == pytest.approx(evidence, rel=1e-5)
