"""Processes and their compositions: gradients in both modes on every backend, blocks, samples, predictions, checks."""

import dataclasses

import numpy as np
import pytest
import scipy.special
import scipy.stats
from helpers import (
    EXACT,
    JAX,
    assert_close,
    assert_closed_form_is_autograd,
    assert_closed_form_is_slope,
    bound_stage,
    named,
    sgpr,
)
from process_cases import (
    COVERING,
    DEEP,
    FOLLOWS_ITS_INVERSE,
    JITTER,
    POSTERIORS,
    PROCESSES,
    case,
    dense,
    dense_kl,
    dense_moments,
    process_case,
)

import agp
from agp import tree
from agp.backend import backend_of
from agp.posteriors import Dual
from agp.processes import Deep, Mixed, Sparse, Stack
from agp.rows import mebibytes
from agp.updates import InverseUpdate, NaturalGradient, SiteStep

SCALE = 2.5


def _lowered(stage):
    """The stage as a function of the lower triangles of the scales."""

    def of_lower(leaves):
        xp = backend_of(leaves["X"]).xp
        return stage({k: xp.tril(x) if k.endswith(".scale") and x.ndim == 3 else x for k, x in leaves.items()})

    return of_lower


def _agree(found, expected, tolerance):
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        assert_close(np.asarray(found[name]), np.asarray(x), tolerance, name)


# -- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", POSTERIORS)
@pytest.mark.parametrize("name", PROCESSES)
def test_closed_form_is_autograd(name, kind, torch_place):
    host, X, y = case(name, kind)
    model, X, y = torch_place.move(host), torch_place.array(X), torch_place.array(y)
    value, closed = agp.value_and_gradient(model, X, y, scale=SCALE)
    by_torch, auto = agp.value_and_gradient(model, X, y, scale=SCALE, mode="autodiff")
    assert float(value) == pytest.approx(float(by_torch), rel=1e-13)
    assert closed.keys() == tree.leaves(host, "parameter").keys()
    _agree(closed, auto, EXACT)


JAX_PAIRS = [(name, COVERING[(i + 3 * j) % len(COVERING)]) for i, name in enumerate(PROCESSES) for j in range(2)]
"""Two of the kinds of q(u) for every composition, and every kind in three compositions."""


@pytest.mark.parametrize(("name", "kind"), JAX_PAIRS)
def test_closed_form_is_the_gradient_of_jax(name, kind):
    pytest.importorskip("jax", reason="jax is not installed: not executed")
    host, X, y = case(name, kind)
    expected, closed = agp.value_and_gradient(host, X, y, scale=SCALE)
    model, X, y = JAX.move(host), JAX.array(X), JAX.array(y)
    value, auto = agp.value_and_gradient(model, X, y, scale=SCALE, mode="autodiff")
    assert float(value) == pytest.approx(float(expected), rel=1e-12)
    _agree(auto, closed, EXACT)


@pytest.mark.parametrize("kind", POSTERIORS)
@pytest.mark.parametrize("name", PROCESSES)
def test_inputs_too(name, kind, torch_place):
    model, X, y = case(name, kind)
    stage = _lowered(bound_stage(model, y, SCALE))
    assert_closed_form_is_autograd(stage, named(model, "parameter") | {"X": X})


@pytest.mark.parametrize("kind", [kind for kind in COVERING if kind not in FOLLOWS_ITS_INVERSE])
@pytest.mark.parametrize("name", PROCESSES)
def test_closed_form_is_slope(name, kind):
    model, X, y = case(name, kind)
    assert_closed_form_is_slope(bound_stage(model, y, SCALE), named(model, "parameter") | {"X": X})


@pytest.mark.parametrize("likelihood", ["bernoulli", "poisson"])
@pytest.mark.parametrize("name", PROCESSES)
def test_other_likelihoods(name, likelihood, torch_place):
    model, X, y = case(name, "whitened", likelihood)
    stage = _lowered(bound_stage(model, y, SCALE))
    assert_closed_form_is_autograd(stage, named(model, "parameter") | {"X": X})


@pytest.mark.parametrize("backend", ["torch", "strict-device1", "cupy"], indirect=True)
@pytest.mark.parametrize("kind", COVERING)
@pytest.mark.parametrize("name", PROCESSES)
def test_every_backend_agrees(name, kind, backend):
    host, X, y = case(name, kind)
    expected, gradient = agp.value_and_gradient(host, X, y, scale=SCALE)
    value, found = agp.value_and_gradient(backend.move(host), backend.array(X), backend.array(y), scale=SCALE)
    assert float(backend.numpy(value)) == pytest.approx(float(expected), rel=1e-11)
    _agree({k: backend.numpy(x) for k, x in found.items()}, gradient, 1e-9)


# -- samples, and rows in blocks --------------------------------------------------------------------------------------

SAMPLED = [name for name in PROCESSES if not name.startswith("deep")]


def _sampled_stage(process, noise):
    """Samples as a function of the leaves of a process and of X."""

    def stage(leaves):
        B = backend_of(leaves["X"])
        here = tree.with_leaves(tree.to_backend(process, B.name), {k: x for k, x in leaves.items() if k != "X"})
        factor, pull_factor = here.factorise()
        samples, pull = here.sampled(factor, leaves["X"], B.from_numpy(noise))

        def pullback(bar):
            own, factor_bar, X_bar = pull(bar)
            return tree.leaves(tree.add(own, pull_factor(factor_bar))) | {"X": X_bar}

        return (samples,), pullback

    return stage


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("kind", ["whitened", "relaxed"])
@pytest.mark.parametrize("name", SAMPLED)
def test_samples_and_their_pullback(name, kind, samples, torch_place):
    process, X = process_case(name, kind), case(name)[1]
    noise = np.random.default_rng(8).normal(size=(samples, len(X), process.latents))
    leaves = tree.leaves(process, "parameter") | {"X": X}
    stage = _sampled_stage(process, noise)
    (found,), _ = stage(leaves)
    assert found.shape == (samples * len(X), process.outputs)
    assert_closed_form_is_autograd(_lowered(stage), leaves)
    assert_closed_form_is_slope(stage, leaves)


@pytest.mark.parametrize("name", SAMPLED)
def test_samples_have_the_moments_of_the_process(name):
    process, X = process_case(name), case(name)[1][:3]
    factor = process.factorise()[0]
    mean, variance = process.project(factor, X)[0]
    S = 40_000
    noise = np.random.default_rng(0).normal(size=(S, len(X), process.latents))
    samples = process.sampled(factor, X, noise)[0].reshape(S, len(X), process.outputs)
    assert np.all(np.abs(samples.mean(axis=0) - mean) < 5.0 * np.sqrt(variance / S))
    np.testing.assert_allclose(samples.var(axis=0), variance, rtol=5.0 * np.sqrt(2.0 / S))


def test_a_variance_of_rounding_is_sampled_without_a_slope():
    # at its inducing inputs, a q(u) without spread has variances of rounding alone: below the floor, and constant there
    process = process_case("points")
    spread = 1e-9 * np.broadcast_to(np.eye(5), process.posterior.scale.shape)
    process = tree.with_leaves(process, {"posterior.scale": spread})
    process = dataclasses.replace(process, jitter=1e-14)
    Z = process.inducing.Z
    factor = process.factorise()[0]
    samples, pull = process.sampled(factor, Z, np.ones((1, len(Z), 2)))
    np.testing.assert_allclose(samples, process.project_mean(factor, Z), atol=2e-6)
    assert all(np.isfinite(x).all() for x in tree.leaves(pull(np.ones_like(samples))[0]).values())


@pytest.mark.parametrize("kind", ["whitened", "relaxed", "dual-natural", "orthogonal"])
@pytest.mark.parametrize("name", PROCESSES)
def test_blocks_add_up_to_the_whole(name, kind):
    model, X, y = case(name, kind)
    value, gradient = agp.value_and_gradient(model, X, y, scale=SCALE)
    memory = 2.5 * mebibytes(model.process.floats_per_row + 8 * model.outputs, X)
    assert model._block_rows(X, memory) == 2  # so the comparison means something
    in_blocks, found = agp.value_and_gradient(model, X, y, scale=SCALE, memory=memory)
    assert float(in_blocks) == pytest.approx(float(value), rel=1e-12)
    _agree(found, gradient, 1e-10)


@pytest.mark.parametrize("mode", ["closed-form", "autodiff"])
@pytest.mark.parametrize("name", ["lmc", "together", "deep-compositions"])
def test_blocks_add_up_in_both_modes(name, mode, torch_place):
    host, X, y = case(name, "relaxed")
    expected = agp.value_and_gradient(host, X, y)[1]
    model, X, y = torch_place.move(host), torch_place.array(X), torch_place.array(y)
    found = agp.value_and_gradient(model, X, y, memory=1e-3, mode=mode)[1]
    _agree(found, expected, 1e-9)


# -- against dense formulas -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["whitened", "marginal"])
@pytest.mark.parametrize("name", SAMPLED)
def test_marginals_and_joint_covariances_are_the_dense_formulas(name, kind):
    process, X = process_case(name, kind), case(name)[1]
    mean, covariance = dense(process, X)
    factor = process.factorise()[0]
    mu, var = process.project(factor, X)[0]
    assert_close(mu, mean, 1e-10)
    assert_close(var, np.diagonal(covariance, axis1=1, axis2=2).T, 1e-10)
    assert_close(process.project_mean(factor, X), mean, 1e-10)
    assert_close(process.joint(factor, X), covariance, 1e-10)
    assert_close(process.kl_divergence(factor)[0], dense_kl(process), 1e-10)


@pytest.mark.parametrize("kind", ["whitened", "marginal"])
@pytest.mark.parametrize("name", PROCESSES)
def test_the_bound_is_the_dense_formula(name, kind):
    # Gaussian noise: E[log N(y; f, s2)] = log N(y; mu, s2) - var / (2 s2), averaged over the samples
    model, X, y = case(name, kind)
    mean, variance = dense_moments(model.process, X)
    noise = float(model.likelihood.noise_variance)
    each = -0.5 * np.log(2.0 * np.pi * noise) - 0.5 * ((y - mean) ** 2 + variance) / noise
    expected = SCALE * each.sum() / mean.shape[0] - dense_kl(model.process)
    assert float(model.bound(X, y, scale=SCALE)[0]) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("kind", COVERING)
@pytest.mark.parametrize("name", SAMPLED)
def test_predicted_covariances_agree_with_predicted_variances(name, kind, stale_factors):
    model, X, _ = case(name, kind)
    covariance = model.predict_covariance(X)
    assert covariance.shape == (model.outputs, len(X), len(X))
    np.testing.assert_array_equal(covariance, np.swapaxes(covariance, 1, 2))
    assert_close(np.diagonal(covariance, axis1=1, axis2=2).T, model.predict(X).variance, 1e-9)


def test_one_part_and_unit_weights_change_nothing():
    single, X = process_case("points"), case("points")[1]
    expected = single.project(single.factorise()[0], X)[0]
    for other in (Stack((single,)), Mixed(single, np.eye(2)), Deep((single,), samples=3)):
        process = other.drawn(other.row_draws(0, 0, len(X)))
        mu, var = process.project(process.factorise()[0], X)[0]
        assert_close(mu, expected[0], 1e-14)
        assert_close(var, expected[1], 1e-14)


# -- predictions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["whitened", "relaxed"])
@pytest.mark.parametrize("name", PROCESSES)
def test_chunks_do_not_change_predictions(name, kind, stale_factors):
    model, X, y = case(name, kind)
    memory = 2.5 * mebibytes(model.process.floats_per_row + 8 * model.outputs, X)
    for observed in (False, True):
        whole, chunked = model.predict(X, observed=observed), model.predict(X, observed=observed, memory=memory)
        for a, b in zip(whole, chunked, strict=True):
            assert_close(b, a, 1e-12)
    assert_close(model.predict_mean(X, memory=memory), model.predict_mean(X), 1e-12)
    assert_close(model.predict_mean(X), model.predict(X).mean, 1e-12)
    assert_close(model.log_density(X, y, memory=memory), model.log_density(X, y), 1e-12)


@pytest.mark.parametrize("backend", ["torch", "strict-device1", "cupy"], indirect=True)
@pytest.mark.parametrize("name", PROCESSES)
def test_predictions_agree_on_every_backend(name, backend):
    host, X, y = case(name, "whitened")
    model, moved = backend.move(host), backend.array(X)
    for expected, found in zip(host.predict(X), model.predict(moved), strict=True):
        assert_close(backend.numpy(found), expected, 1e-10)
    assert_close(backend.numpy(model.log_density(moved, backend.array(y))), host.log_density(X, y), 1e-10)
    if name not in DEEP:
        found = model.predict_covariance(moved)
        assert_close(backend.numpy(found), host.predict_covariance(X), 1e-10)


@pytest.mark.parametrize("name", DEEP)
def test_deep_predictions_are_those_of_the_mixture(name):
    model, X, y = case(name)
    mean, variance = dense_moments(model.process, X)  # [S, N, P]
    found = model.predict(X)
    assert_close(found.mean, mean.mean(axis=0), 1e-10)
    assert_close(found.variance, variance.mean(axis=0) + mean.var(axis=0), 1e-10)
    noise = float(model.likelihood.noise_variance)
    assert_close(model.predict(X, observed=True).variance, found.variance + noise, 1e-10)
    logs = scipy.stats.norm.logpdf(y, mean, np.sqrt(variance + noise)).sum(axis=-1)
    assert_close(model.log_density(X, y), scipy.special.logsumexp(logs, axis=0) - np.log(len(mean)), 1e-10)


def test_a_deep_model_has_no_joint_covariance():
    model, X, _ = case("deep")
    for refused in (model.predict_covariance, model.sample):
        with pytest.raises(TypeError, match="a deep model is no Gaussian process: it has no joint covariance"):
            refused(X)


# -- updates ----------------------------------------------------------------------------------------------------------


def _step(update, model, X, y, times=1):
    state, batch = update.init(model), model.batch(X, y)
    for _ in range(times):
        model, state, info = update(model, batch, state)
    return model, info


@pytest.mark.parametrize(
    ("kind", "update"),
    [("whitened", NaturalGradient(1.0)), ("marginal", NaturalGradient(1.0))]
    + [(kind, SiteStep(1.0)) for kind in ("dual-natural", "dual-kernel", "dual-white")],
)
def test_one_step_of_a_stack_is_the_collapsed_bound(kind, update):
    model, X, y = case("separate", kind)
    model, _ = _step(update, model, X, y)
    parts = model.process.parts
    collapsed = [
        sgpr(part.kernel, model.likelihood, part.inducing.Z, X, y[:, i : i + 1], JITTER, part.mean_function)
        for i, part in enumerate(parts)
    ]
    expected = sum(float(one.bound(X, y[:, i : i + 1])[0]) for i, one in enumerate(collapsed))
    assert float(model.bound(X, y)[0]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", ["patches-weighted", "together", "deep", "deep-conv"])
@pytest.mark.parametrize("kind", ["whitened", "dual-natural"])
def test_one_step_reaches_the_best_q_of_the_last_layer(name, kind):
    model, X, y = case(name, kind)
    update = NaturalGradient(1.0) if kind == "whitened" else SiteStep(1.0)
    model, _ = _step(update, model, X, y)
    value = float(model.bound(X, y)[0])
    if kind == "whitened":
        gradient = agp.value_and_gradient(model, X, y)[1]
        last = f"process.layers.{len(model.process.layers) - 1}." if name in DEEP else "process."
        assert np.abs(gradient[f"{last}posterior.mean"]).max() < 1e-9 * abs(value)
        assert np.abs(gradient[f"{last}posterior.scale"]).max() < 1e-9 * abs(value)
    again, _ = _step(update, model, X, y)
    assert float(again.bound(X, y)[0]) == pytest.approx(value, rel=1e-10)


@pytest.mark.parametrize(
    ("name", "times"), [("lmc", 80), ("intrinsic", 80), ("conv+rbf", 300), ("deep-compositions", 80)]
)
def test_steps_behind_weights_settle_at_the_best_q(name, times):
    # the latent functions see each other through the likelihood: steps of half the way come to rest together
    model, X, y = case(name, "whitened")
    before = float(model.bound(X, y)[0])
    natural, _ = _step(NaturalGradient(0.5), model, X, y, times)
    best = float(natural.bound(X, y)[0])
    assert best > before
    gradient = agp.value_and_gradient(natural, X, y)[1]
    last = "layers.2." if name == "deep-compositions" else ""
    for leaf, x in gradient.items():
        if leaf.startswith(f"process.{last}") and ".posterior." in leaf:
            assert np.abs(x).max() < 1e-6 * abs(best), leaf
    # the same by sites, from another q(u)
    duals = {
        path: dataclasses.replace(node, posterior=Dual.from_prior(node.inducing_covariance()[0], node.outputs))
        for path, node in tree.nodes(model, Sparse).items()
        if path.startswith(f"process.{last}")
    }
    sites, _ = _step(SiteStep(0.5), tree.replaced(model, duals), X, y, times)
    assert float(sites.bound(X, y)[0]) == pytest.approx(best, rel=1e-8)


@pytest.mark.parametrize("kind", ["whitened", "dual-natural"])
@pytest.mark.parametrize("name", PROCESSES)
def test_site_gradients_in_blocks_are_those_of_the_whole(name, kind):
    model, X, y = case(name, kind, "bernoulli")
    batch = model.batch(X, y, scale=SCALE)
    whole, blocks = model.site_gradients(batch), model.site_gradients(batch, memory=1e-3)
    assert whole.keys() == blocks.keys()
    assert whole
    for path, found in whole.items():
        for a, b in zip(_arrays(found.sums), _arrays(blocks[path].sums), strict=True):
            assert_close(b, a, 1e-11, path)


def _arrays(x):
    return [leaf for part in x for leaf in _arrays(part)] if isinstance(x, tuple) else [x]


@pytest.mark.parametrize("kind", ["relaxed", "inverse-free", "relaxed-orthogonal"])
@pytest.mark.parametrize("name", PROCESSES)
def test_the_inverses_of_every_part_follow(name, kind):
    model, X, y = case(name, kind)
    update = InverseUpdate(tolerance=1e-9)
    state = update.init(model)
    factors = [
        f"{path}.posterior.{leaf}"
        for path, node in tree.nodes(model, Sparse).items()
        for leaf in node.posterior.inverse_factors
    ]
    assert list(state) == factors
    model, _, info = update(model, model.batch(X, y), state)
    assert float(info["residual"]) < 1e-9
    for node in tree.nodes(model, Sparse).values():
        for leaf in node.posterior.inverse_factors:
            L = getattr(node.posterior, leaf)
            target = node.posterior.inverse_target(node.inducing_covariance()[0], leaf)
            assert_close(L @ L.T @ target, np.eye(len(L)), 1e-7, leaf)
