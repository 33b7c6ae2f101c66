"""Facts that hold for every problem, checked on random ones against textbook formulas in plain NumPy."""

import numpy as np
import pytest
from dual_cases import JITTER, TIED, blank, converged, data, inducing, moved, stepped
from helpers import (
    gpr,
    inducing_inputs,
    marginals,
    named,
    process,
    replaced,
    sgpr,
    solvegpr,
    svgp,
    value_and_gradient,
    with_leaves,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from agp.bounds import Batch
from agp.posteriors import Dual, Marginal, Orthogonal, Whitened
from agp.training import train
from agp.updates import Adam, NaturalGradient, SiteStep

deterministic = settings(derandomize=True, max_examples=10, deadline=None, database=None)
few = settings(deterministic, max_examples=3)
seeds = st.integers(0, 10_000)
STORED = (*TIED, "inverse-free", "datum")
SMOOTH = ("bernoulli", "poisson", "gaussian")


def elbo(model, X, y):
    return float(model.bound(X, y)[0])


def random_sites(model, rng):
    """The model with sites that have nothing to do with the data."""
    lam2 = rng.uniform(0.0, 2.0, size=model.site_precision.shape)
    return model._with_sites(rng.normal(size=lam2.shape), lam2)


def covariances(model, X):
    return inducing(model), process(model).kernel(inducing_inputs(model), X)[0], process(model).kernel.diag(X)[0]


def sgpr_of(model, X, y):
    held = process(model)
    exact = sgpr(held.kernel, model.likelihood, inducing_inputs(model), X, y, JITTER, held.mean_function)
    return replaced(exact, inducing=held.inducing)  # in the same units


def site_sums(model):
    """l [M, P] and L2 [P, M, M], sums of kernel columns, of a model with a site for each datum."""
    Kuf = process(model).kernel(inducing_inputs(model), model.X)[0]
    return Kuf @ model.site_shift, (Kuf * model.site_precision.T[:, None, :]) @ Kuf.T


# -- Gaussian noise ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@deterministic
@given(seeds, st.integers(1, 3))
def test_one_full_step_gives_the_sites_of_gaussian_noise_and_the_collapsed_bound(seed, outputs):
    X, y = data("gaussian", seed=seed, outputs=outputs)
    for storage in ("datum", "full"):
        start = random_sites(blank(storage, X, y, "gaussian"), np.random.default_rng(seed))
        model = stepped(start, X, y, 1.0, 1)
        noise = float(model.likelihood.noise_variance)
        expected = (y - process(model).mean_function(X)[0]) / noise
        np.testing.assert_allclose(model.site_shift, expected, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(model.site_precision, 1.0 / noise, rtol=1e-10)
        other = start.with_gaussian_sites(y)
        np.testing.assert_allclose(other.site_shift, expected, rtol=1e-14)
        for here in (other, moved(other)):  # for every kernel and Z, not only for those of the step
            exact = (
                sgpr_of(here, X, y)
                if storage == "datum"
                else gpr(process(here).kernel, here.likelihood, X, y, process(here).mean_function)
            )
            assert elbo(here, X, y) == pytest.approx(elbo(exact, X, y), rel=1e-10)


@pytest.mark.slow
@deterministic
@given(seeds)
def test_the_bound_at_gaussian_sites_has_the_gradient_of_the_collapsed_bound_in_the_noise_too(seed):
    X, y = data("gaussian", seed=seed)
    model = moved(blank("datum", X, y, "gaussian").with_gaussian_sites(y))
    found, expected = (value_and_gradient(each, X, y)[1] for each in (model, sgpr_of(model, X, y)))
    assert "likelihood.noise_variance" in found
    for name, x in expected.items():
        np.testing.assert_allclose(found[name], x, rtol=0.0, atol=1e-8 * (1.0 + np.abs(x).max()), err_msg=name)
    stale = with_leaves(model, {"likelihood.noise_variance": 2.0 * model.likelihood.noise_variance})
    assert elbo(stale, X, y) < elbo(sgpr_of(stale, X, y), X, y)
    assert elbo(stale.with_gaussian_sites(y), X, y) == pytest.approx(elbo(sgpr_of(stale, X, y), X, y), rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("storage", [*TIED, "inverse-free"])
@deterministic
@given(seed=seeds)
def test_tied_sites_reach_the_collapsed_bound_and_stay_below_it(storage, seed):
    X, y = data("gaussian", seed=seed)
    model = stepped(blank(storage, X, y, "gaussian"), X, y, 1.0, 1)
    assert elbo(model, X, y) == pytest.approx(elbo(sgpr_of(model, X, y), X, y), rel=1e-9)
    there = moved(model)
    if storage == "inverse-free":
        there = followed(there)
    below = elbo(sgpr_of(there, X, y), X, y) - elbo(there, X, y)
    assert below > 1e-6


@pytest.mark.slow
@deterministic
@given(seeds, st.floats(0.2, 5.0))
def test_natural_sites_stay_optimal_under_another_variance(seed, factor):
    X, y = data("gaussian", seed=seed)
    gaps = {}
    for tied in TIED:
        # the default jitter is relative, so that Kuu is rescaled as a whole
        model = stepped(blank(tied, X, y, "gaussian", jitter=None), X, y, 1.0, 1)
        model = with_leaves(model, {"kernel.variance": factor * process(model).kernel.variance})
        exact = sgpr(
            process(model).kernel, model.likelihood, inducing_inputs(model), X, y, None, process(model).mean_function
        )
        gaps[tied] = elbo(exact, X, y) - elbo(model, X, y)
    assert gaps["natural"] == pytest.approx(0.0, abs=1e-7)
    if abs(factor - 1.0) > 0.1:
        assert min(gaps["kernel"], gaps["white"]) > 1e-4


# -- one q(u), many formulas ------------------------------------------------------------------------------------------


def explicit(model, X):
    """Marginals and KL from the mean and covariance of u, with explicit inverses, for a model with data sites."""
    Kuu, Kuf, kff = covariances(model, X)
    l1, L2 = site_sums(model)
    E, inverse = np.linalg.solve(Kuu, Kuf), np.linalg.inv(Kuu)
    mu, var, kl = np.empty((len(X), l1.shape[1])), np.empty((len(X), l1.shape[1])), 0.0
    for p in range(l1.shape[1]):
        S = np.linalg.inv(inverse + inverse @ L2[p] @ inverse)
        m = S @ inverse @ l1[:, p]
        mu[:, p], var[:, p] = E.T @ m, kff - np.sum(Kuf * E, 0) + np.sum(E * (S @ E), 0)
        dets = np.linalg.slogdet(Kuu)[1] - np.linalg.slogdet(S)[1]
        kl += 0.5 * (np.trace(inverse @ S) + m @ inverse @ m - len(Kuu) + dets)
    return mu, var, kl


def direct(model, X):
    """Equation of R = Kuu + L2: no whitening."""
    Kuu, Kuf, kff = covariances(model, X)
    l1, L2 = site_sums(model)
    Q = np.sum(Kuf * np.linalg.solve(Kuu, Kuf), 0)
    mu, var, kl = np.empty((len(X), l1.shape[1])), np.empty((len(X), l1.shape[1])), 0.0
    for p in range(l1.shape[1]):
        R = Kuu + L2[p]
        rho = np.linalg.solve(R, l1[:, p])
        mu[:, p], var[:, p] = Kuf.T @ rho, kff - Q + np.sum(Kuf * np.linalg.solve(R, Kuf), 0)
        dets = np.linalg.slogdet(R)[1] - np.linalg.slogdet(Kuu)[1]
        kl += 0.5 * (dets + np.trace(np.linalg.solve(R, Kuu)) - len(Kuu) + rho @ Kuu @ rho)
    return mu, var, kl


def unfactorised(model, X):
    """The form with a factor F of the natural sites, which needs no factorisation of Kuu."""
    Kuu, Kuf, kff = covariances(model, X)
    features = np.linalg.solve(Kuu, process(model).kernel(inducing_inputs(model), model.X)[0])
    lam1, lam2 = model.site_shift, model.site_precision
    mu, var, kl = np.empty((len(X), lam1.shape[1])), np.empty((len(X), lam1.shape[1])), 0.0
    for p in range(lam1.shape[1]):
        F = features * np.sqrt(lam2[:, p])
        W = np.eye(F.shape[1]) + F.T @ Kuu @ F
        H = F @ np.linalg.solve(W, F.T)
        lam = features @ lam1[:, p]
        g = lam - H @ Kuu @ lam
        mu[:, p], var[:, p] = Kuf.T @ g, kff - np.sum(Kuf * (H @ Kuf), 0)
        kl += 0.5 * (np.linalg.slogdet(W)[1] - np.trace(H @ Kuu) + g @ Kuu @ g)
    return mu, var, kl


def as_tied(model, storage):
    """The same q(u) in another storage."""
    return model if storage == "datum" else model.to_tied(storage)


@pytest.mark.slow
@pytest.mark.parametrize("formula", [explicit, direct, unfactorised])
@deterministic
@given(seed=seeds)
def test_every_storage_is_the_textbook_posterior(formula, seed):
    X, y = data("bernoulli", seed=seed)
    model = random_sites(blank("datum", X, y), np.random.default_rng(seed))
    mu, var, kl = formula(model, X)
    h = process(model).mean_function(X)[0]
    for storage in ("datum", *TIED):
        here = as_tied(model, storage)
        prediction = here.predict(X)
        np.testing.assert_allclose(prediction.mean - h, mu, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(prediction.variance, var, rtol=1e-8, atol=1e-8)
        ell = here.likelihood.expected_log_density(prediction.mean, prediction.variance, y)[0].sum()
        assert ell - elbo(here, X, y) == pytest.approx(kl, rel=1e-8, abs=1e-8)


@pytest.mark.slow
@deterministic
@given(seeds)
def test_the_bound_is_the_partition_function_and_a_correction(seed):
    X, y = data("bernoulli", seed=seed)
    for storage in ("datum", "full"):
        model = random_sites(blank(storage, X, y), np.random.default_rng(seed))
        h = process(model).mean_function(X)[0]
        prediction, lam1, lam2 = model.predict(X), model.site_shift, model.site_precision
        mu, var = prediction.mean - h, prediction.variance
        if storage == "datum":
            Kuu, Kuf, kff = covariances(model, X)
            K = Kuf.T @ np.linalg.solve(Kuu, Kuf)
            spread = var - (kff - np.diag(K))[:, None]  # the sites see f_n without its conditional residual
        else:
            K, spread = process(model).kernel(X)[0], var
        log_z = 0.0
        for p in range(lam1.shape[1]):
            s = np.sqrt(lam2[:, p])
            W = np.eye(len(X)) + s[:, None] * K * s
            log_z += -0.5 * np.linalg.slogdet(W)[1] + 0.5 * lam1[:, p] @ mu[:, p]
        log_t = np.sum(lam1 * mu - 0.5 * lam2 * (mu**2 + spread))
        ell = model.likelihood.expected_log_density(prediction.mean, var, y)[0].sum()
        assert elbo(model, X, y) == pytest.approx(log_z + ell - log_t, rel=1e-10, abs=1e-9)
        assert ell - elbo(model, X, y) == pytest.approx(log_t - log_z, rel=1e-9, abs=1e-9)


@pytest.mark.slow
@deterministic
@given(seeds)
def test_no_sites_are_the_prior_and_sites_only_add_information(seed):
    X, y = data("bernoulli", seed=seed)
    rng = np.random.default_rng(seed)
    for storage in ("datum", *TIED, "full", "inverse-free", "orthogonal"):
        model = blank(storage, X, y)
        prediction = model.predict(X)
        np.testing.assert_allclose(prediction.mean, process(model).mean_function(X)[0] + np.zeros_like(y), atol=1e-12)
        np.testing.assert_allclose(
            prediction.variance, process(model).kernel.diag(X)[0][:, None] + np.zeros_like(y), rtol=1e-9
        )
        ell = model.likelihood.expected_log_density(*prediction, y)[0].sum()
        assert ell - elbo(model, X, y) == pytest.approx(0.0, abs=1e-9)
    model = random_sites(blank("datum", X, y), rng)
    Kuu, Kuf, kff = covariances(model, X)
    least = kff - np.sum(Kuf * np.linalg.solve(Kuu, Kuf), 0)
    var = model.predict(X).variance
    assert np.all(var <= kff[:, None] + 1e-9)
    assert np.all(var >= least[:, None] - 1e-9)


# -- steps ------------------------------------------------------------------------------------------------------------


def q_moments(model):
    """Mean and covariance of u under `Whitened`, `Marginal` or `Dual`."""
    q = process(model).posterior
    return (q if isinstance(q, Dual) else Dual.from_posterior(q, inducing(model))).moments(inducing(model))


@pytest.mark.slow
@pytest.mark.parametrize("tied", TIED)
@pytest.mark.parametrize("kind", [Whitened, Marginal])
@deterministic
@given(seed=seeds, rate=st.floats(0.1, 1.0), likelihood=st.sampled_from(SMOOTH))
def test_a_site_step_is_a_natural_gradient(kind, tied, seed, rate, likelihood):
    X, y = data(likelihood, seed=seed, rows=15)
    model = blank(tied, X, y, likelihood)
    other = svgp(
        process(model).kernel,
        model.likelihood,
        kind.from_prior(inducing(model), 2),
        inducing_inputs(model),
        JITTER,
        process(model).mean_function,
    )
    ours, theirs = SiteStep(rate), NaturalGradient(rate)
    state, their_state = ours.init(model), theirs.init(other)
    for i in range(3):  # minibatches of five
        batch = Batch(X[5 * i : 5 * i + 5], y[5 * i : 5 * i + 5], 3.0)
        model, state, info = ours(model, batch, state)
        other, their_state, _ = theirs(other, batch, their_state)
        assert float(info["halvings"]) == float(info["clipped"]) == 0.0
    for x, z in zip(q_moments(model), q_moments(other), strict=True):
        np.testing.assert_allclose(x, z, rtol=0.0, atol=1e-10 * (1.0 + np.abs(z).max()))


@pytest.mark.slow
@pytest.mark.parametrize("storage", [*TIED, "orthogonal", "inverse-free"])
@deterministic
@given(seed=seeds)
def test_steps_on_disjoint_batches_average_to_the_full_step(storage, seed):
    X, y = data("bernoulli", seed=seed, rows=12)
    model = stepped(blank(storage, X, y), X, y)
    update = SiteStep(0.3)
    whole = update(model, model._batch(X, y), update.init(model))[0]
    parts = [update(model, Batch(X[i : i + 4], y[i : i + 4], 3.0), update.init(model))[0] for i in (0, 4, 8)]
    names = [name for name in named(model, "auxiliary") if name.endswith(("shift", "precision"))]
    assert len(names) in (2, 4)
    for name in names:
        mean = np.mean([named(part)[name] for part in parts], axis=0)
        expected = named(whole)[name]
        np.testing.assert_allclose(mean, expected, rtol=0.0, atol=1e-12 * (1.0 + np.abs(expected).max()))


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["datum", "inverse-free", *TIED])
@deterministic
@given(seed=seeds)
def test_minibatches_of_rows_move_their_sites_alone(storage, seed):
    # all storages see the same q(u) after a step on the same rows if each datum is visited once, from the prior
    X, y = data("bernoulli", seed=seed, rows=10)
    rows = np.random.default_rng(seed).permutation(10)[:4]
    model, update = blank(storage, X, y), SiteStep(0.5)
    batch = Batch(X[rows], y[rows], 1.0 if storage != "datum" else 2.5, rows)
    new = update(model, batch, update.init(model))[0]
    reference = blank("datum", X, y)
    mu, var = reference.predict(X[rows])
    alpha, beta = reference.likelihood.site_gradients(mu, var, y[rows])
    shift, precision = np.zeros_like(y), np.zeros_like(y)
    shift[rows] = 0.5 * (alpha + beta * (mu - process(reference).mean_function(X[rows])[0]))
    precision[rows] = 0.5 * beta
    if storage == "datum":
        np.testing.assert_allclose(new.site_shift, shift, rtol=1e-12)
        np.testing.assert_allclose(new.site_precision, precision, rtol=1e-12)
    expected = reference._with_sites(shift, precision)
    for x, z in zip(new.predict(X), expected.predict(X), strict=True):
        np.testing.assert_allclose(x, z, rtol=1e-8, atol=1e-9)


@pytest.mark.long
@few
@given(seeds, st.sampled_from(["bernoulli", "logit", "poisson"]))
def test_settled_sites_are_one_fixed_point_in_every_storage(seed, likelihood):
    X, y = data(likelihood, seed=seed)
    models = {s: converged(blank(s, X, y, likelihood), X, y) for s in ("datum", *TIED, "inverse-free")}
    reference = models["datum"]
    again = stepped(reference, X, y, 1.0, 1)
    np.testing.assert_allclose(again.site_shift, reference.site_shift, rtol=0.0, atol=1e-8)
    np.testing.assert_allclose(again.site_precision, reference.site_precision, rtol=0.0, atol=1e-8)
    held = reference.to_tied()
    Kuu = inducing(held)
    q = process(held).posterior
    models |= {"whitened": replaced(held, posterior=q.to_whitened(Kuu))}
    models |= {"marginal": replaced(held, posterior=q.to_marginal(Kuu))}
    value, gradient = value_and_gradient(reference, X, y)
    for name, model in models.items():
        found_value, found = value_and_gradient(model, X, y)
        assert float(found_value) == pytest.approx(float(value), rel=1e-9), name
        for leaf, x in gradient.items():  # the envelope theorem: the storage does not matter at the optimum
            np.testing.assert_allclose(found[leaf], x, rtol=0.0, atol=1e-7 * (1.0 + np.abs(x).max()), err_msg=name)


@pytest.mark.long
@few
@given(seeds, st.floats(0.7, 1.5))
def test_no_storage_exceeds_the_optimum_of_the_new_hyperparameters(seed, factor):
    X, y = data("bernoulli", seed=seed)
    for storage in ("datum", *TIED):
        there = moved(converged(blank(storage, X, y), X, y, times=25), factor)
        best = elbo(converged(there, X, y, times=40), X, y)
        assert elbo(there, X, y) <= best + 1e-9 * abs(best)


@pytest.mark.slow
@deterministic
@given(seeds)
def test_white_sites_have_the_objective_of_whitened_svgp(seed):
    X, y = data("bernoulli", seed=seed)
    model = stepped(blank("white", X, y), X, y)
    other = replaced(model, posterior=process(model).posterior.to_whitened(inducing(model)))
    here, there = moved(model), moved(other)
    (value, found), (expected_value, expected) = (value_and_gradient(each, X, y) for each in (here, there))
    assert float(value) == pytest.approx(float(expected_value), rel=1e-11)
    for name, x in found.items():
        np.testing.assert_allclose(x, expected[name], rtol=0.0, atol=1e-9 * (1.0 + np.abs(x).max()), err_msg=name)


# -- orthogonal groups ------------------------------------------------------------------------------------------------


def solve_gp(seed):
    X, y = data("gaussian", seed=seed, rows=20)
    model = blank("orthogonal", X, y, "gaussian", inducing=7)
    exact = solvegpr(
        process(model).kernel,
        model.likelihood,
        inducing_inputs(model),
        X,
        y,
        sizes=(4, 3),
        jitter=JITTER,
        mean_function=process(model).mean_function,
    )
    assert process(model).posterior.sizes == (4, 3)
    return model, elbo(exact, X, y), X, y


@pytest.mark.long
@few
@given(seeds)
def test_sites_of_orthogonal_groups_reach_the_collapsed_bound_without_a_step_back(seed):
    model, exact, X, y = solve_gp(seed)
    update = SiteStep(0.5)
    values = [elbo(model, X, y)]
    for _ in range(80):
        model = update(model, model._batch(X, y), update.init(model))[0]
        values.append(elbo(model, X, y))
    assert np.all(np.diff(values) >= -1e-9 * np.abs(values[-1]))
    assert values[-1] == pytest.approx(exact, rel=1e-10)


@pytest.mark.long
@few
@given(seeds)
def test_the_groups_may_move_in_turn(seed):
    model, exact, X, y = solve_gp(seed)
    first, second = SiteStep(1.0, groups=(0,)), SiteStep(1.0, groups=(1,))
    batch = model._batch(X, y)
    covariance = process(stepped(model, X, y, 1.0, 1)).posterior
    for _ in range(100):
        for update in (first, second):
            model = update(model, batch, update.init(model))[0]
    assert elbo(model, X, y) == pytest.approx(exact, rel=1e-10)
    # covariances are exact after one step
    for one, other in zip(covariance.parts, process(model).posterior.parts, strict=True):
        np.testing.assert_allclose(one.precision, other.precision, rtol=0.0, atol=1e-9 * np.abs(other.precision).max())


def test_training_may_alternate_between_the_groups():
    model, _, X, y = solve_gp(0)
    result = train(model, X, y, steps=3, updates=[SiteStep(1.0, groups=(0,)), SiteStep(1.0, groups=(1,)), Adam(1e-3)])
    assert {"halvings_0", "halvings_1", "clipped_0", "clipped_1", "bound"} <= result.trace.keys()


def test_orthogonal_groups_take_white_sites_too():
    X, y = data("gaussian", rows=20)
    model = blank("orthogonal", X, y, "gaussian", inducing=7)
    K = inducing(model)
    parts = tuple(Dual.from_prior(K[:n, :n], 2, tied=t) for n, t in ((4, "white"), (3, "kernel")))
    mixed = replaced(model, posterior=Orthogonal(parts, (4, 3)))
    ours, theirs = (stepped(each, X, y, 0.5, 4) for each in (mixed, model))
    assert elbo(ours, X, y) == pytest.approx(elbo(theirs, X, y), rel=1e-10)


# -- without factorisations -------------------------------------------------------------------------------------------


def followed(model):
    """The model whose inverse factors fit its hyperparameters."""
    posterior = process(model).posterior.update_from_sites(inducing(model))[0]
    return with_leaves(model, {f"posterior.{name}": x for name, x in named(posterior).items()})


def inexact(model, size, seed=0):
    """The model whose inverse factors are off: the largest residual |E|_F is roughly the size."""
    rng = np.random.default_rng(seed)
    new = {}
    for name in ("prior_factor", "site_factor"):
        L = named(process(model).posterior)[name]
        G = np.tril(rng.normal(size=L.shape))
        G *= 0.5 * size / np.sqrt(np.sum(G * G, axis=(-2, -1), keepdims=True))
        new[f"posterior.{name}"] = np.tril(L @ (np.eye(L.shape[-1]) + G))
    return with_leaves(model, new)


def test_the_residual_that_is_reported_is_that_of_the_worst_factor():
    X, y = data("bernoulli")
    model = stepped(blank("inverse-free", X, y), X, y)
    Kuu = 3.0 * inducing(model)
    posterior, residual, _ = process(model).posterior.update_from_sites(Kuu)
    factor = posterior.factorise(Kuu)[0]
    worst = max(np.linalg.norm(factor.E0), *np.linalg.norm(factor.E, axis=(-2, -1)))
    assert float(residual) == pytest.approx(worst, rel=1e-3)


@pytest.mark.slow
@deterministic
@given(seeds, st.floats(0.1, 1.0))
def test_steps_without_factorisations_are_those_with_them(seed, rate):
    X, y = data("bernoulli", seed=seed, rows=12)
    ours, theirs, update = blank("inverse-free", X, y), blank("kernel", X, y), SiteStep(rate)
    for i in (0, 4, 8):
        batch = Batch(X[i : i + 4], y[i : i + 4], 3.0)
        ours, theirs = (update(model, batch, update.init(model))[0] for model in (ours, theirs))
    for name in ("posterior.shift", "posterior.precision"):
        expected = named(theirs)[name]
        np.testing.assert_allclose(named(ours)[name], expected, rtol=0.0, atol=1e-10 * np.abs(expected).max())
    assert elbo(ours, X, y) == pytest.approx(elbo(theirs, X, y), rel=1e-10)
    for x, z in zip(ours.predict(X), theirs.predict(X), strict=True):
        np.testing.assert_allclose(x, z, rtol=1e-9, atol=1e-10)


@pytest.mark.slow
@deterministic
@given(seeds, st.floats(0.05, 0.9))
def test_the_bound_without_factorisations_is_a_bound(seed, size):
    X, y = data("bernoulli", seed=seed)
    model = inexact(stepped(blank("inverse-free", X, y), X, y), size, seed)
    factor = process(model).posterior.factorise(inducing(model))[0]
    norms = [np.linalg.norm(factor.E0), *np.linalg.norm(factor.E, axis=(-2, -1))]
    if max(norms) >= 1.0:
        return
    # this q(u), explicitly
    Kuu, Kuf, kff = covariances(model, X)
    (mu, var, bound_of_kl), _ = marginals(model, X)
    L0, eye, kl = process(model).posterior.prior_factor, np.eye(len(Kuu)), 0.0
    P0 = L0 @ (eye + factor.E0) @ L0.T
    for p in range(2):
        L = process(model).posterior.site_factor[p]
        P = L @ (eye + factor.E[p]) @ L.T
        m, S = Kuu @ P @ process(model).posterior.shift[:, p], Kuu - Kuu @ (P0 - P) @ Kuu
        E = np.linalg.solve(Kuu, Kuf)
        np.testing.assert_allclose(mu[:, p] - process(model).mean_function(X)[0][:, p], E.T @ m, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(var[:, p], kff - np.sum(Kuf * E, 0) + np.sum(E * (S @ E), 0), rtol=1e-7, atol=1e-9)
        dets = np.linalg.slogdet(Kuu)[1] - np.linalg.slogdet(S)[1]
        kl += 0.5 * (np.trace(np.linalg.solve(Kuu, S)) + m @ np.linalg.solve(Kuu, m) - len(Kuu) + dets)
    assert np.all(var > 0.0)
    assert bound_of_kl >= kl - 1e-8 * (1.0 + abs(kl))


@pytest.mark.long
@few
@given(seeds)
def test_its_gap_is_quadratic_and_its_gradient_exact_at_exact_factors(seed):
    X, y = data("bernoulli", seed=seed)
    model = converged(blank("inverse-free", X, y), X, y)
    exact = converged(blank("kernel", X, y), X, y)
    value, gradient = value_and_gradient(exact, X, y)
    found_value, found = value_and_gradient(model, X, y)
    assert float(found_value) == pytest.approx(float(value), rel=1e-10)
    for name, x in gradient.items():  # the factors' residuals are below 1e-8, and the gradient's error is of that order
        np.testing.assert_allclose(found[name], x, rtol=0.0, atol=3e-8 * (1.0 + np.abs(x).max()), err_msg=name)
    gaps = [abs(float(value) - elbo(inexact(model, size, seed), X, y)) for size in (1e-2, 1e-3)]
    assert 0.005 < gaps[1] / gaps[0] < 0.02


# -- the site of a softmax --------------------------------------------------------------------------------------------


@pytest.mark.long
@few
@given(seeds)
def test_the_softmax_site_is_never_negative_and_right_on_average(seed):
    from agp.likelihoods import Softmax

    rng = np.random.default_rng(seed)
    mu, var = rng.normal(size=(4, 3)), rng.uniform(0.1, 2.0, size=(4, 3))
    y = rng.integers(0, 3, size=(4, 1)) * 1.0
    few, many = Softmax(3), Softmax(3, fixed_samples=40_000)
    draws = few.draws(rng, 4, 3)
    assert np.all(few.site_gradients(mu, var, y, draws)[1] >= 0.0)
    alpha, beta = many.site_gradients(mu, var, y)
    _, mu_bar, var_bar = many.expected_log_density(mu, var, y)[1](np.ones(4))
    np.testing.assert_allclose(alpha, mu_bar, rtol=1e-12)
    np.testing.assert_allclose(beta, -2.0 * var_bar, rtol=0.0, atol=0.02)


def test_the_softmax_site_is_less_noisy_than_the_derivative_of_the_estimate():
    from agp.likelihoods import Softmax

    rng = np.random.default_rng(0)
    likelihood = Softmax(3, samples=100)
    mu, var, y = np.asarray([[0.3, -0.2, 0.1]]), np.ones((1, 3)), np.zeros((1, 1))
    price, estimate = [], []
    for _ in range(200):
        draws = likelihood.draws(rng, 1, 3)
        price.append(likelihood.site_gradients(mu, var, y, draws)[1])
        estimate.append(-2.0 * likelihood.expected_log_density(mu, var, y, draws)[1](np.ones(1))[2])
    assert np.std(price, axis=0).max() < 0.2 * np.std(estimate, axis=0).min()
    np.testing.assert_allclose(np.mean(price, axis=0), np.mean(estimate, axis=0), atol=0.03)
