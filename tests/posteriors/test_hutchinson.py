"""The traces of R-SVGP's KL divergence by random probes: unbiased, exact where they should be, and nowhere cubic."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest
from helpers import (
    JAX,
    NUMPY,
    STRICT,
    TORCH,
    assert_close,
    assert_closed_form_is_autograd,
    assert_closed_form_is_slope,
    bound_stage,
    named,
    posterior_of,
    problem,
    process,
    replaced,
    with_leaves,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from agp import SVGP, Gaussian, Softmax, tree
from agp.backend import get_backend
from agp.bounds import Batch
from agp.gradient import gradient_of_batch
from agp.posteriors import Relaxed
from agp.random import Draws
from agp.training import train
from agp.updates import Adam, InverseUpdate

EAGER = [NUMPY, TORCH, STRICT]
deterministic = settings(derandomize=True, max_examples=25, deadline=None, database=None)


def rademacher(M, K, seed=0):
    return 2.0 * np.random.default_rng(seed).integers(0, 2, size=(M, K)) - 1.0


def all_signs(M):
    """Every vector [M, 2^M] of signs: the mean over them is the expectation."""
    return np.array(list(itertools.product([-1.0, 1.0], repeat=M))).T


def probed(model, noise):
    """The model in the form that it takes for a step with these probes."""
    return replaced(model, posterior=process(model).posterior.with_draws({"probes": noise}))


def leaves_of(model, X):
    return named(model, "parameter") | {"X": X}


def bound_and_gradient(model, X, y, **options):
    value, pullback = model.bound(X, y, **options)
    return value, tree.pull_raw(model, pullback(1.0)[0])


# -- the gradient -----------------------------------------------------------------------------------------------------

CASES = [("relaxed", 1, "gaussian"), ("relaxed", 3, "bernoulli"), ("relaxed-plain", 3, "gaussian")]


@pytest.mark.parametrize(("kind", "outputs", "likelihood"), CASES)
def test_closed_form_is_autograd_at_fixed_probes(kind, outputs, likelihood, block, torch_place):
    model, X, y = problem("rbf-ard", kind, likelihood, outputs=outputs)
    model = probed(model, rademacher(7, 4))
    assert_closed_form_is_autograd(bound_stage(model, y, scale=1.7), leaves_of(model, X))


@pytest.mark.parametrize(("kind", "outputs", "likelihood"), CASES)
def test_closed_form_is_slope_at_fixed_probes(kind, outputs, likelihood, block):
    model, X, y = problem("rbf-ard", kind, likelihood, outputs=outputs)
    model = probed(model, rademacher(7, 4))
    assert_closed_form_is_slope(bound_stage(model, y), leaves_of(model, X))


@pytest.mark.parametrize("place", [NUMPY, TORCH, STRICT, JAX], ids=lambda place: place.name)
def test_backends_and_gradient_modes_agree_at_fixed_probes(place):
    pytest.importorskip(place.name)
    host, X, y = problem(outputs=2)
    desired, gradient = bound_and_gradient(probed(host, rademacher(7, 4)), X, y)
    draws = Draws(by_row={}, whole={"process.posterior.probes": rademacher(7, 4)})
    batch = Batch(place.array(X), place.array(y), 1.0, None, place.draws(draws))
    model = place.move(host)
    B = get_backend(place.name)
    for mode in B.gradients:
        value, found = B.compile(functools.partial(gradient_of_batch, gradient=mode))(model, batch)
        assert_close(place.numpy(value), desired, 1e-9, mode)
        for name, expected in gradient.items():
            assert_close(place.numpy(found[name]), expected, 1e-8, f"{mode} {name}")


@pytest.mark.parametrize("preconditioned", [True, False])
def test_probes_whose_second_moment_is_the_identity_give_the_exact_bound(preconditioned, backend, block):
    # Z Z^T / K = I is all that the estimate of the traces sees
    kind = "relaxed" if preconditioned else "relaxed-plain"
    model, X, y = problem("rbf-ard", kind, outputs=2)
    value, gradient = bound_and_gradient(model, X, y)
    moved = backend.move(probed(model, np.sqrt(7.0) * np.eye(7)))
    found, ours = bound_and_gradient(moved, backend.array(X), backend.array(y))
    assert_close(backend.numpy(found), value, 1e-11)
    for name, expected in gradient.items():
        assert_close(backend.numpy(ours[name]), expected, 1e-10, name)


def test_moments_do_not_depend_on_the_probes(stale_factors):
    model, X, _ = problem(outputs=2)
    noisy = probed(model, rademacher(7, 2))
    for method in ("predict", "predict_covariance"):
        ours, exact = getattr(noisy, method)(X), getattr(model, method)(X)
        for a, b in zip(ours, exact, strict=True):
            assert_close(a, b, 1e-11, method)


@pytest.mark.parametrize("backend", EAGER, ids=lambda place: place.name)
def test_float32_stays(backend):
    pytest.importorskip(backend.name)
    model, X, y = problem(outputs=2)
    moved = backend.move(probed(model, rademacher(7, 4)), "float32")
    value, gradient = bound_and_gradient(moved, backend.array(X, "float32"), backend.array(y, "float32"))
    desired, expected = bound_and_gradient(probed(model, rademacher(7, 4)), X, y)
    assert_close(backend.numpy(value, "float32"), desired, 1e-4)
    for name, x in gradient.items():
        assert_close(backend.numpy(x, "float32"), expected[name], 1e-3, name)


# -- the estimate -----------------------------------------------------------------------------------------------------


def random_relaxed(seed, M, distance):
    """A random R-SVGP posterior whose factor is so far off, and Kuu [M, M]."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(M, M))
    Kuu = root @ root.T + 0.1 * np.eye(M)
    q = posterior_of("relaxed", Kuu, 2, rng)
    exact = np.linalg.cholesky(np.linalg.inv(Kuu + np.diag(q.site)))
    bend = np.tril(rng.uniform(-1.0, 1.0, size=(M, M)))
    return with_leaves(q, {"inverse_factor": exact @ (np.eye(M) + distance * bend)}), Kuu


def kl_and_bars(q, Kuu):
    factor, pull_factor = q.factorise(Kuu)
    kl, pull = q.kl_divergence(factor)
    own, factor_bar = pull(1.0)
    through, Kuu_bar = pull_factor(factor_bar)
    return kl, named(tree.add(own, through)) | {"Kuu": Kuu_bar}


random_problems = given(
    seed=st.integers(0, 2**32 - 1), M=st.integers(1, 6), distance=st.sampled_from([0.0, 1e-3, 0.1, 0.4])
)


@pytest.mark.slow
@deterministic
@random_problems
def test_value_and_gradient_are_unbiased(seed, M, distance):
    q, Kuu = random_relaxed(seed, M, distance)
    kl, bars = kl_and_bars(q, Kuu)
    estimate, estimated_bars = kl_and_bars(q.with_draws({"probes": all_signs(M)}), Kuu)
    assert estimate == pytest.approx(kl, rel=1e-10, abs=1e-10)
    for name, expected in bars.items():
        assert_close(estimated_bars[name], expected, 1e-9, name)


@pytest.mark.slow
@deterministic
@random_problems
def test_the_variance_of_a_probe_is_that_of_the_residual_alone(seed, M, distance):
    # 2 sum_{i != j} sym(H)_ij^2 with H = (I + G - U) G: it vanishes with G
    q, Kuu = random_relaxed(seed, M, distance)
    single = [float(kl_and_bars(q.with_draws({"probes": z[:, None]}), Kuu)[0]) for z in all_signs(M).T]
    L = q.inverse_factor
    G = L.T @ (Kuu + np.diag(q.site)) @ L - np.eye(M)
    H = (np.eye(M) + G - L.T @ np.diag(q.site) @ L) @ G
    off = 0.5 * (H + H.T) * (1.0 - np.eye(M))
    outputs = q.mean.shape[1]
    expected = (0.5 * outputs) ** 2 * 2.0 * np.sum(off**2)
    assert np.var(single) == pytest.approx(expected, rel=1e-6, abs=1e-18 * (1.0 + np.mean(single) ** 2))


def test_at_the_inverse_the_value_has_no_noise_and_the_gradient_has():
    q, Kuu = random_relaxed(0, 6, 0.0)
    kl, bars = kl_and_bars(q, Kuu)
    found = [kl_and_bars(q.with_draws({"probes": rademacher(6, 3, seed)}), Kuu) for seed in range(5)]
    assert max(abs(value - kl) for value, _ in found) < 1e-10
    assert max(np.abs(other["Kuu"] - bars["Kuu"]).max() for _, other in found) > 1e-2


def straight_probe(q, Kuu, z):
    """One probe of -tr(PR Kuu) + tr(Kt T) as the paper estimates it."""
    L = q.inverse_factor
    Kt = Kuu + np.diag(q.site)
    a = L @ (L.T @ z)
    b = Kt @ a
    c = Kuu @ z
    return z @ b + c @ (L @ (L.T @ b)) - 2.0 * c @ a


def test_the_residual_form_is_less_noisy_than_the_straight_one():
    q, Kuu = random_relaxed(2, 6, 1e-3)
    probes = all_signs(6).T
    ours = [float(kl_and_bars(q.with_draws({"probes": z[:, None]}), Kuu)[0]) for z in probes]
    straight = [straight_probe(q, Kuu, z) for z in probes]
    # P / 2 = 1, so both estimate the traces up to a constant
    assert np.std(ours) < 0.02 * np.std(straight)
    shift = float(kl_and_bars(q, Kuu)[0]) - np.mean(ours)
    assert abs(shift) < 1e-9


# -- what it costs ----------------------------------------------------------------------------------------------------


def products_of(posterior, strict, monkeypatch, M=40, rows=9):
    """The shapes (m, k, n) of all matrix products of one evaluation with its pullback, on the strict backend."""
    Array, seen = strict._array_object.Array, []
    original = Array.__matmul__

    def recorded(self, other):
        seen.append((*self.shape[-2:], other.shape[-1]))
        return original(self, other)

    host, X, y = problem(inducing=M, rows=rows, outputs=2)
    model = STRICT.move(probed(host, rademacher(M, 5)) if posterior == "probed" else host)
    monkeypatch.setattr(Array, "__matmul__", recorded)
    _, pullback = model.bound(STRICT.array(X), STRICT.array(y))
    pullback(1.0)
    return seen


def test_no_product_is_cubic_in_the_inducing_inputs(monkeypatch):
    strict = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
    assert (40, 40, 40) in products_of("exact", strict, monkeypatch)
    assert not [shape for shape in products_of("probed", strict, monkeypatch) if min(shape) > 9]


# -- where probes come from -------------------------------------------------------------------------------------------


def of_size(M, probes):
    return Relaxed(np.zeros((M, 1)), np.ones(M), np.ones((1, 1)), probes=probes)


@pytest.mark.parametrize(
    ("M", "probes", "drawn"),
    [(2048, None, 0), (2049, None, 256), (50, 1, 1), (50, 0, 0), (3000, 0, 0), (50, 50, 0), (50, 64, 0), (50, 49, 49)],
)
def test_how_many_probes_are_drawn(M, probes, drawn):
    found = of_size(M, probes).draws(np.random.default_rng(0))
    assert [x.shape for x in found.values()] == ([(M, drawn)] if drawn else [])
    for x in found.values():
        np.testing.assert_array_equal(np.abs(x), 1.0)
        assert 0.3 < np.mean(x > 0.0) < 0.7


@pytest.mark.parametrize("probes", [-1, 2.5, "many"])
def test_a_number_of_probes_that_is_none_is_refused(probes):
    with pytest.raises((TypeError, ValueError), match="probes"):
        of_size(10, probes).draws(np.random.default_rng(0))


def with_setting(model, probes):
    return replaced(model, posterior=dataclasses.replace(process(model).posterior, probes=probes))


def test_without_draws_the_bound_is_exact():
    model, X, y = problem()
    estimated = with_setting(model, 3)
    assert float(estimated.bound(X, y)[0]) == float(model.bound(X, y)[0])
    draws = estimated._draws(np.random.default_rng(0), 12)
    assert float(estimated._objective(Batch(X, y, 1.0, None, draws))[0]) != float(model.bound(X, y)[0])


def three_classes(probes):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(30, 2))
    y = rng.integers(0, 3, size=(30, 1)) * 1.0
    model = SVGP.from_data(X, y, likelihood=Softmax(3, samples=4), num_inducing=8)
    mean = {
        "posterior.mean": rng.normal(size=(8, 3)),
        "posterior.inverse_factor": 0.9 * process(model).posterior.inverse_factor,
    }
    return with_setting(with_leaves(model, mean), probes), X, y


@pytest.mark.slow
@pytest.mark.parametrize("backend", EAGER, ids=lambda place: place.name)
def test_blocks_share_the_probes_and_split_the_noise_of_the_likelihood(backend):
    pytest.importorskip(backend.name)
    host, X, y = three_classes(5)
    draws = host._draws(np.random.default_rng(0), 30)
    assert {name: x.shape for name, x in draws.by_row.items()} == {"likelihood.eps": (4, 30, 3)}
    assert {name: x.shape for name, x in draws.whole.items()} == {"process.posterior.probes": (8, 5)}
    batch = Batch(backend.array(X), backend.array(y), 2.0, None, backend.draws(draws))
    model = backend.move(host)
    (whole, pull_whole), (blocked, pull_blocked) = model._objective(batch), model._objective(batch, memory=0.1)
    assert_close(backend.numpy(blocked), backend.numpy(whole), 1e-12)
    bars = named(pull_blocked(1.0)[0])
    for name, expected in named(pull_whole(1.0)[0]).items():
        assert_close(backend.numpy(bars[name]), backend.numpy(expected), 1e-10, name)


@pytest.mark.parametrize("memory", [256.0, 0.1])
def test_compiled_evaluations_agree(memory):
    jax = pytest.importorskip("jax")
    host, X, y = three_classes(5)
    draws = host._draws(np.random.default_rng(0), 30)
    value, pullback = host._objective(Batch(X, y, 2.0, None, draws))
    model = JAX.move(host)
    batch = Batch(JAX.array(X), JAX.array(y), 2.0, None, JAX.draws(draws))

    @jax.jit
    def evaluated(model, batch):
        value, pullback = model._objective(batch, memory=memory)
        return value, named(pullback(1.0)[0])

    found, bars = evaluated(model, batch)
    assert_close(JAX.numpy(found), value, 1e-10)
    for name, expected in named(pullback(1.0)[0]).items():
        assert_close(JAX.numpy(bars[name]), expected, 1e-9, name)


@pytest.mark.long
def test_training_with_probes():
    rng = np.random.default_rng(1)
    X = rng.uniform(-2.0, 2.0, size=(60, 1))
    y = np.sin(3.0 * X) + 0.1 * rng.normal(size=X.shape)
    host = SVGP.from_data(X, y, likelihood=Gaussian(0.5), num_inducing=12)
    start = float(host.bound(X, y)[0])
    gains, traces = [], []
    for probes in (0, 8):
        options = {"steps": 60, "updates": [Adam(2e-2), InverseUpdate()], "batch_size": 20}
        run = train(with_setting(host, probes), X, y, **options)
        assert run.trace["bound"] == train(with_setting(host, probes), X, y, **options).trace["bound"]
        assert type(process(run.model).posterior) is Relaxed
        gains.append(float(run.model.bound(X, y)[0]) - start)
        traces.append(run.trace["bound"])
    assert traces[0] != traces[1]
    assert gains[0] > 20.0
    assert gains[1] > 0.5 * gains[0]  # 8 probes for M = 12 are noisy
