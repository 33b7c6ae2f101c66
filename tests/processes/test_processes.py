"""Processes and their compositions: gradients in both modes on every backend, blocks, samples, predictions, checks."""

import dataclasses

import numpy as np
import pytest
import scipy.special
import scipy.stats
from helpers import (
    EXACT,
    JAX,
    as_arrays,
    assert_close,
    assert_closed_form_is_autograd,
    assert_closed_form_is_slope,
    bound_stage,
    lower_leaves,
    named,
    sgpr,
)
from process_cases import (
    COLUMNS,
    COVERING,
    DEEP,
    FOLLOWS_ITS_INVERSE,
    IMAGE,
    JITTER,
    PATCH,
    POSTERIORS,
    PROCESSES,
    case,
    data,
    dense,
    dense_kl,
    dense_moments,
    joint_of,
    points,
    process_case,
    sparse,
)

import agp
from agp import tree
from agp.backend import backend_of
from agp.chunking import mebibytes
from agp.inducing import JointInducing, Patches, Points
from agp.kernels import RBF, Constant, Linear, Matern32, Sum, White
from agp.likelihoods import Gaussian, LatentNoiseGaussian, RobustMax, Softmax
from agp.means import LinearMean
from agp.models import SVGP
from agp.posteriors import (
    DiagonalMarginal,
    DiagonalWhitened,
    Dual,
    FullSiteLikelihoodForm,
    FullSiteRelaxed,
    InverseFree,
    LikelihoodForm,
    Marginal,
    Relaxed,
    Whitened,
)
from agp.processes import Deep, LinearMixing, Sparse, Stack
from agp.training import recipe
from agp.updates import InverseUpdate, NaturalGradient, SiteStep

SCALE = 2.5


def _lowered(stage):
    """The stage as a function of the lower triangles of the scales."""
    return lambda leaves: stage(lower_leaves(leaves))


def _agree(found, expected, tolerance):
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        assert_close(np.asarray(found[name]), np.asarray(x), tolerance, name)


# -- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.sample(101)
@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("kind", POSTERIORS)
@pytest.mark.parametrize("name", PROCESSES)
def test_closed_form_is_autograd(name, kind, torch_place):
    host, X, y = case(name, kind)
    model, X, y = torch_place.move(host), torch_place.array(X), torch_place.array(y)
    value, closed = agp.value_and_gradient(model, X, y, scale=SCALE)
    by_torch, auto = agp.value_and_gradient(model, X, y, scale=SCALE, gradient="autodiff")
    assert float(value) == pytest.approx(float(by_torch), rel=1e-13)
    assert closed.keys() == tree.leaves(host, "parameter").keys()
    _agree(closed, auto, EXACT)


JAX_PAIRS = [(name, COVERING[(i + 3 * j) % len(COVERING)]) for i, name in enumerate(PROCESSES) for j in range(2)]
"""Two of the kinds of q(u) for every composition, and every kind in three compositions."""


@pytest.mark.slow
@pytest.mark.sample(8)
@pytest.mark.parametrize(("name", "kind"), JAX_PAIRS)
def test_closed_form_is_the_gradient_of_jax(name, kind):
    pytest.importorskip("jax", reason="jax is not installed: not executed")
    host, X, y = case(name, kind)
    expected, closed = agp.value_and_gradient(host, X, y, scale=SCALE)
    model, X, y = JAX.move(host), JAX.array(X), JAX.array(y)
    value, auto = agp.value_and_gradient(model, X, y, scale=SCALE, gradient="autodiff")
    assert float(value) == pytest.approx(float(expected), rel=1e-12)
    _agree(auto, closed, EXACT)


@pytest.mark.cover(1)
@pytest.mark.parametrize("kind", POSTERIORS)
@pytest.mark.parametrize("name", PROCESSES)
def test_inputs_too(name, kind, torch_place):
    model, X, y = case(name, kind)
    stage = _lowered(bound_stage(model, y, SCALE))
    assert_closed_form_is_autograd(stage, named(model, "parameter") | {"X": X})


@pytest.mark.slow
@pytest.mark.sample(5)
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


@pytest.mark.sample(41)
@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("backend", ["torch", "strict-device1", "cupy", "cupy-stand-in"], indirect=True)
@pytest.mark.parametrize("kind", COVERING)
@pytest.mark.parametrize("name", PROCESSES)
def test_every_backend_agrees(name, kind, backend):
    host, X, y = case(name, kind)
    expected, gradient = agp.value_and_gradient(host, X, y, scale=SCALE)
    value, found = agp.value_and_gradient(backend.move(host), backend.array(X), backend.array(y), scale=SCALE)
    assert float(backend.numpy(value)) == pytest.approx(float(expected), rel=1e-11)
    _agree({k: backend.numpy(x) for k, x in found.items()}, gradient, 1e-9)


@pytest.mark.parametrize("backend", ["numpy", "torch", "strict-device1", "cupy", "cupy-stand-in"], indirect=True)
@pytest.mark.parametrize("name", PROCESSES)
def test_float32_stays_and_follows_float64(name, backend):
    host, X, y = case(name)
    value, gradient = agp.value_and_gradient(host, X, y)
    model, X, y = backend.move(host, "float32"), backend.array(X, "float32"), backend.array(y, "float32")
    found, ours = agp.value_and_gradient(model, X, y)
    assert_close(backend.numpy(found, "float32"), value, 1e-4)
    _agree({k: backend.numpy(x, "float32") for k, x in ours.items()}, gradient, 1e-4)
    for moment in model.predict(X):
        backend.check(moment, "float32")


@pytest.mark.filterwarnings("ignore:optimisers other than agp's:agp.errors.UntouchedWarning")
@pytest.mark.parametrize("name", PROCESSES)
def test_a_bound_in_a_torch_program_has_the_closed_form(name, torch_place):
    host, X, y = case(name, "relaxed")
    value, pullback = host.bound(X, y)
    bar, X_bar = pullback(1.0)
    expected = tree.pull_raw(host, bar)
    raw = {k: torch_place.array(x).requires_grad_() for k, x in tree.unconstrain(host).items()}
    inputs = torch_place.array(X).requires_grad_()
    model = tree.constrain(torch_place.move(host), raw)
    bound = model.bound(inputs, torch_place.array(y))[0]
    bound.backward()
    assert float(bound.detach()) == pytest.approx(float(value), rel=1e-12)
    _agree({k: torch_place.numpy(x.grad) for k, x in raw.items()}, expected, 1e-10)
    assert_close(torch_place.numpy(inputs.grad), X_bar, 1e-10)


# -- inducing variables -----------------------------------------------------------------------------------------------


def _inducing_stage(inducing, kernel, method):
    """A covariance of inducing variables, as a function of their leaves, those of the kernel, and X."""

    def stage(leaves):
        B = backend_of(leaves["X"])
        own, other = (tree.to_backend(x, B.name) for x in (inducing, kernel))
        own = tree.with_leaves(own, {k.removeprefix("inducing."): x for k, x in leaves.items() if "inducing." in k})
        other = tree.with_leaves(other, {k.removeprefix("kernel."): x for k, x in leaves.items() if "kernel." in k})
        value, pull = getattr(own, method)(other, *(() if method == "covariance" else (leaves["X"],)))

        def pullback(bar):
            own_bar, kernel_bar, *inputs = pull(bar)
            found = {} if own_bar is None else {f"inducing.{k}": x for k, x in tree.leaves(own_bar).items()}
            found |= {f"kernel.{k}": x for k, x in tree.leaves(kernel_bar).items()}
            return found | ({"X": inputs[0]} if inputs else {})

        return (value,), pullback

    return stage


PLACES = ["points", "patches", "patches-weighted", "patches-strided", "patches-per-channel", "patches-located"]


@pytest.mark.cover(2)
@pytest.mark.parametrize("method", ["covariance", "cross", "diag", "full"])
@pytest.mark.parametrize("noisy", [False, True], ids=["", "white"])
@pytest.mark.parametrize("name", [*PLACES, "together"])
def test_covariances_of_inducing_variables_and_their_pullbacks(name, noisy, method, torch_place):
    process, X = process_case(name), case(name)[1]
    kernel = process.kernel
    if noisy and name != "together":
        kernel = kernel + White(np.asarray(0.3))
    if noisy and name == "together":
        kernel = Sum((kernel.parts[0] * Constant(np.asarray(1.2)), kernel.parts[1]))
    leaves = {f"inducing.{k}": x for k, x in tree.leaves(process.inducing, "parameter").items()}
    leaves |= {f"kernel.{k}": x for k, x in tree.leaves(kernel, "parameter").items()} | {"X": X}
    stage = _inducing_stage(process.inducing, kernel, method)
    assert_closed_form_is_autograd(stage, leaves)
    assert_closed_form_is_slope(stage, leaves)


@pytest.mark.parametrize("name", ["points", *PLACES[2:], "together"])
def test_covariances_fit_each_other(name):
    process, X = process_case(name), case(name)[1]
    inducing, kernel = process.inducing, process.kernel
    if name.startswith("patches"):
        # every patch has noise of its own: 0.3 |w|^2 / Q^2 for an image, nothing between images or with Z
        noisy, w = kernel + White(np.asarray(0.3)), inducing.weights
        added = inducing.full(noisy, X)[0] - inducing.full(kernel, X)[0]
        assert_close(added, 0.3 * np.sum(w * w) / len(w) ** 2 * np.eye(len(X)), 1e-12)
        assert_close(inducing.cross(noisy, X)[0], inducing.cross(kernel, X)[0], 1e-14)
        kernel = noisy
    Kff = inducing.full(kernel, X)[0]
    np.testing.assert_array_equal(Kff, Kff.T)
    assert_close(np.diagonal(Kff), inducing.diag(kernel, X)[0], 1e-12)
    # (u, f) have a joint covariance
    Kuu, Kuf = inducing.covariance(kernel)[0], inducing.cross(kernel, X)[0]
    assert np.linalg.eigvalsh(np.block([[Kuu, Kuf], [Kuf.T, Kff]])).min() > -1e-12


# -- samples, and rows in blocks --------------------------------------------------------------------------------------

SAMPLED = [name for name in PROCESSES if not name.startswith("deep")]


def _sampled_stage(process, noise):
    """Samples as a function of the leaves of a process and of X."""

    def stage(leaves):
        B = backend_of(leaves["X"])
        here = tree.with_leaves(tree.to_backend(process, B.name), {k: x for k, x in leaves.items() if k != "X"})
        factor, pull_factor = here.factorise()
        samples, pull = here.sample_marginals(factor, leaves["X"], B.from_numpy(noise))

        def pullback(bar):
            own, factor_bar, X_bar = pull(bar)
            return tree.leaves(tree.add(own, pull_factor(factor_bar))) | {"X": X_bar}

        return (samples,), pullback

    return stage


@pytest.mark.slow
@pytest.mark.cover(2, quick=1)
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
    samples = process.sample_marginals(factor, X, noise)[0].reshape(S, len(X), process.outputs)
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
    samples, pull = process.sample_marginals(factor, Z, np.ones((1, len(Z), 2)))
    np.testing.assert_allclose(samples, process.project_mean(factor, Z), atol=2e-6)
    assert all(np.isfinite(x).all() for x in tree.leaves(pull(np.ones_like(samples))[0]).values())


def test_functions_that_are_known_at_an_input_are_sampled_there(torch_place):
    # a linear kernel knows f(0) = 0: variance, prior variance and slope vanish, in both modes
    rng = np.random.default_rng(3)
    X, y = data(1)
    X[0] = 0.0
    first = sparse(Linear(0.7), points(4, COLUMNS, rng), "whitened", 2, rng)
    samples, pull = first.sample_marginals(first.factorise()[0], X, np.ones((1, len(X), 2)))
    np.testing.assert_array_equal(samples[0], first.mean_function.value)
    assert all(np.isfinite(x).all() for x in tree.leaves(pull(np.ones_like(samples))[0]).values())
    model = SVGP(process=Deep((first, _layer(1, 2)), samples=2), likelihood=as_arrays(Gaussian(0.2)))
    _, expected = agp.value_and_gradient(model, X, y)
    for mode in ("closed-form", "autodiff"):
        here = torch_place.move(model), torch_place.array(X), torch_place.array(y)
        _agree(agp.value_and_gradient(*here, gradient=mode)[1], expected, EXACT)


@pytest.mark.cover(2, quick=1)
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


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["closed-form", "autodiff"])
@pytest.mark.parametrize("name", ["lmc", "together", "deep-compositions"])
def test_blocks_add_up_in_both_modes(name, mode, torch_place):
    host, X, y = case(name, "relaxed")
    expected = agp.value_and_gradient(host, X, y)[1]
    model, X, y = torch_place.move(host), torch_place.array(X), torch_place.array(y)
    found = agp.value_and_gradient(model, X, y, memory=1e-3, gradient=mode)[1]
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
    assert_close(joint_of(process, factor, X), covariance, 1e-10)
    assert_close(process.kl_divergence(factor)[0], dense_kl(process), 1e-10)


@pytest.mark.parametrize("kind", ["whitened", "marginal"])
@pytest.mark.parametrize("name", PROCESSES)
def test_the_bound_is_the_dense_formula(name, kind):
    # Gaussian noise: E[log N(y; f, s2)] = log N(y; mu, s2) - var / (2 s2), averaged over the samples
    model, X, y = case(name, kind)
    mean, variance = dense_moments(model.process, X, common=False)
    noise = float(model.likelihood.noise_variance)
    each = -0.5 * np.log(2.0 * np.pi * noise) - 0.5 * ((y - mean) ** 2 + variance) / noise
    expected = SCALE * each.sum() / mean.shape[0] - dense_kl(model.process)
    assert float(model.bound(X, y, scale=SCALE)[0]) == pytest.approx(expected, rel=1e-10)


@pytest.mark.cover(2, quick=1)
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
    for other in (Stack((single,)), LinearMixing(single, np.eye(2)), Deep((single,), samples=3)):
        process = other.with_draws(other.row_draws(0, 0, len(X)))
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


@pytest.mark.parametrize("backend", ["torch", "strict-device1", "cupy", "cupy-stand-in"], indirect=True)
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
    mean, variance = dense_moments(model.process, X, common=True)  # [S, N, P]
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
        with pytest.raises(TypeError, match="a deep model is not a Gaussian process, so it has no joint covariance"):
            refused(X)


# -- updates ----------------------------------------------------------------------------------------------------------


def _step(update, model, X, y, times=1):
    state, batch, info = update.init(model), model._batch(X, y), {}
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


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "times"), [("lmc", 80), ("intrinsic", 80), ("conv+rbf", 300), ("deep-compositions", 600)]
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
    sites, _ = _step(SiteStep(0.5), tree.replace(model, duals), X, y, times)
    assert float(sites.bound(X, y)[0]) == pytest.approx(best, rel=1e-8)


@pytest.mark.parametrize("kind", ["whitened", "dual-natural"])
@pytest.mark.parametrize("name", PROCESSES)
def test_site_gradients_in_blocks_are_those_of_the_whole(name, kind):
    model, X, y = case(name, kind, "bernoulli")
    batch = model._batch(X, y, scale=SCALE)
    whole, blocks = model._site_gradients(batch), model._site_gradients(batch, memory=1e-3)
    assert whole.keys() == blocks.keys()
    assert whole
    for path, found in whole.items():
        for a, b in zip(_arrays(found.sums), _arrays(blocks[path].sums), strict=True):
            assert_close(b, a, 1e-11, path)


def _arrays(x):
    return [leaf for part in x for leaf in _arrays(part)] if isinstance(x, tuple) else [x]


@pytest.mark.cover(2, quick=1)
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
    model, _, info = update(model, model._batch(X, y), state)
    assert float(info["residual"]) < 1e-9
    for node in tree.nodes(model, Sparse).values():
        for leaf in node.posterior.inverse_factors:
            L = getattr(node.posterior, leaf)
            target = node.posterior.inverse_target(node.inducing_covariance()[0], leaf)
            assert_close(L @ L.T @ target, np.eye(len(L)), 1e-7, leaf)


# -- training ---------------------------------------------------------------------------------------------------------


def _training_data(rows=40):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(rows, COLUMNS))
    return X, np.sin(2.0 * X[:, :1]) + X[:, 1:2] + 0.1 * rng.normal(size=(rows, 1))


def _two_layers(X, posterior):
    first = Sparse.from_data(X, outputs=2, posterior=posterior, num_inducing=8, mean_function=LinearMean())
    between = X[:, :2] + 0.1
    last = Sparse.from_data(between, posterior=posterior, num_inducing=8)
    return SVGP(process=Deep((first, last), samples=3), likelihood=as_arrays(Gaussian(0.1)))


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [None, 20])
@pytest.mark.parametrize(
    "posterior",
    [
        *(Whitened, Marginal, LikelihoodForm, Relaxed, InverseFree),
        *(DiagonalWhitened, DiagonalMarginal, FullSiteLikelihoodForm, FullSiteRelaxed),
    ],
)
def test_training_two_layers_raises_their_bound(posterior, batch_size):
    X, y = _training_data()
    model = _two_layers(X, posterior)
    result = agp.train(model, X, y, steps=30, batch_size=batch_size)
    assert float(result.model.bound(X, y)[0]) > float(model.bound(X, y)[0]) + 10.0
    after = tree.leaves(result.model)
    moved = {name for name, x in tree.leaves(model).items() if not np.array_equal(x, after[name])}
    for i in range(2):
        assert {f"process.layers.{i}.{leaf}" for leaf in ("inducing.Z", "kernel.variance", "posterior.mean")} <= moved


@pytest.mark.long
@pytest.mark.parametrize("posterior", [Whitened, Relaxed])
def test_libraries_and_gradient_modes_train_two_layers_alike(posterior, torch_place):
    X, y = _training_data()
    host = _two_layers(X, posterior)
    expected = agp.train(host, X, y, steps=12, batch_size=20).trace["bound"]
    for mode in ("closed-form", "autodiff"):
        model = torch_place.move(host)
        updates = recipe(model, 12, gradient=mode)
        found = agp.train(model, torch_place.array(X), torch_place.array(y), updates=updates, steps=12, batch_size=20)
        np.testing.assert_allclose(found.trace["bound"], expected, rtol=1e-9)


def test_jax_trains_two_layers_alike():
    pytest.importorskip("jax", reason="jax is not installed: not executed")
    X, y = _training_data()
    host = _two_layers(X, Relaxed)
    expected = agp.train(host, X, y, steps=4, batch_size=20)
    model = JAX.move(host)
    found = agp.train(model, JAX.array(X), JAX.array(y), updates=recipe(model, 4), steps=4, batch_size=20)
    np.testing.assert_allclose(found.trace["bound"], expected.trace["bound"], rtol=1e-9)


@pytest.mark.slow
def test_a_deep_run_goes_on_from_its_checkpoint(tmp_path):
    X, y = _training_data()
    model = _two_layers(X, Relaxed)
    whole = agp.train(model, X, y, updates=recipe(model, 12), steps=12, batch_size=20)
    path = tmp_path / "run.safetensors"
    agp.train(model, X, y, updates=recipe(model, 12), steps=5, batch_size=20, checkpoint=path)
    resumed = agp.train(model, X, y, updates=recipe(model, 12), steps=12, batch_size=20, checkpoint=path)
    for name, x in tree.leaves(whole.model).items():
        np.testing.assert_array_equal(tree.leaves(resumed.model)[name], x)


@pytest.mark.slow
def test_steps_of_sites_train_the_last_layer():
    X, y = _training_data()
    model = _two_layers(X, Whitened)
    first, last = model.process.layers
    last = dataclasses.replace(last, posterior=Dual.from_prior(last.inducing_covariance()[0], 1))
    model = tree.replace(model, {"process": Deep((first, last), samples=3)})
    result = agp.train(model, X, y, steps=30)
    assert float(result.model.bound(X, y)[0]) > float(model.bound(X, y)[0]) + 10.0


@pytest.mark.long
def test_starts_suit_images_and_sums():
    X, y = _training_data()
    images = Patches(IMAGE, PATCH)
    for inducing, kernel in (
        (images, None),
        (JointInducing((images, Points())), RBF() + Matern32()),
        (Points(), None),
    ):
        model = SVGP.from_data(X, y, inducing=inducing, kernel=kernel, num_inducing=10, posterior="whitened")
        assert model.process.inducing.count == 10
        model._check(model._batch(X, y))
        result = agp.train(model, X, y, steps=30)
        assert float(result.model.bound(X, y)[0]) > float(model.bound(X, y)[0]) + 10.0


# -- checks -----------------------------------------------------------------------------------------------------------


def _layer(outputs=1, width=COLUMNS, kind="whitened"):
    rng = np.random.default_rng(7)
    return sparse(RBF(1.0, 1.0), points(4, width, rng), kind, outputs, rng)


def _prior_layer():
    X = np.random.default_rng(8).normal(size=(6, COLUMNS))
    return Sparse.from_data(X, kernel=RBF(1.0, 1.0), posterior=Whitened, num_inducing=3)


def _deeps():
    return Deep((_layer(), _layer(1, 1)), samples=2)


REFUSED = {
    "widths of layers": (
        lambda: Deep((_layer(2), _layer(1, 1))),
        "layer 0 has 2 outputs, but layer 1 takes 1 input columns",
    ),
    "widths of parts": (
        lambda: Stack((_layer(), _layer(1, 1))),
        r"the parts of a Stack take inputs with different numbers of columns \(12, 1\); use parts",
    ),
    "samples of parts": (
        lambda: Stack((_deeps(), _layer())),
        r"parts of a Stack have different numbers of samples \(2, 1\)",
    ),
    "weights": (
        lambda: LinearMixing(_layer(2), np.ones((1, 3))),
        r"weights has shape \(1, 3\), but must have shape \(P, 2\)",
    ),
    "mixtures of mixtures": (
        lambda: LinearMixing(LinearMixing(_layer(2), np.ones((3, 2))), np.ones((1, 3))),
        "the process of a LinearMixing has dependent outputs, .*; replace nested LinearMixings",
    ),
    "weights of one axis": (
        lambda: LinearMixing(_layer(2), np.ones(3)),
        r"weights has shape \(3,\), but must have shape \(P, 2\)",
    ),
    "sites of inner layers": (
        lambda: Deep((_layer(kind="dual-natural"), _layer(1, 1))),
        "layer 0 has sites, but only the last layer can",
    ),
    "sites of inner groups": (
        lambda: Deep((LinearMixing(_layer(kind="orthogonal-dual"), np.ones((1, 1))), _layer(1, 1))),
        "layer 0 has sites, but only the last layer can",
    ),
    "terms": (
        lambda: sparse_of(RBF(1.0, 1.0), JointInducing((_points_of(COLUMNS), _points_of(COLUMNS)))),
        "JointInducing has 2 parts, but the kernel has 1 terms",
    ),
    "widths of terms": (
        lambda: sparse_of(RBF(1.0, 1.0) + RBF(1.0, 1.0), JointInducing((_points_of(COLUMNS), _points_of(3)))),
        r"the parts of a JointInducing take inputs with different numbers of columns \(12, 3\)",
    ),
    "columns of patches": (
        lambda: sparse_of(RBF(1.0, 1.0), Patches(IMAGE, (2, 3), np.ones((3, 4)))),
        "Z has 4 columns, but patches of 2 x 3 pixels need 6",
    ),
    "size of patches": (
        lambda: sparse_of(RBF(1.0, 1.0), Patches(IMAGE, (4, 2), np.ones((3, 8)))),
        "patches of 4 x 2 pixels do not fit into images of 3 x 4",
    ),
    "weights of patches": (
        lambda: sparse_of(RBF(1.0, 1.0), Patches(IMAGE, PATCH, np.ones((3, 4)), np.ones(5))),
        r"weights has shape \(5,\), but the images have 6 patches",
    ),
}
"""Processes whose parts do not fit, and the sentence that says so."""


def _points_of(width):
    return points(4, width, np.random.default_rng(7))


def sparse_of(kernel, inducing):
    """A process with a q(u) of the right size, whether the rest fits or not."""
    q = Whitened(np.zeros((inducing.count, 1)), np.eye(inducing.count)[None])
    return Sparse(kernel=as_arrays(kernel), inducing=inducing, posterior=q)


@pytest.mark.parametrize(("build", "message"), REFUSED.values(), ids=list(REFUSED))
def test_parts_that_do_not_fit_are_refused_at_every_entrance(build, message):
    process = build()
    model = SVGP(process=process, likelihood=as_arrays(Gaussian(0.1)))
    X, y = data(process.outputs)
    for entrance in (
        process.check,
        lambda: model._check(model._batch(X, y)),
        lambda: model.bound(X, y),
        lambda: agp.value_and_gradient(model, X, y),
        lambda: agp.train(model, X, y, steps=1),
        lambda: model.predict(X),
        lambda: model.predict_covariance(X),
        lambda: model.log_density(X, y),
    ):
        with pytest.raises(ValueError, match=message):
            entrance()


def test_weights_that_are_no_array_are_refused():
    with pytest.raises(TypeError, match="weights is a list, not an array of a known library"):
        LinearMixing(_layer(2), [[1.0, 0.0], [0.5, 1.0]]).check()


@pytest.mark.parametrize(
    "likelihood",
    [Softmax(2, fixed_samples=5), RobustMax(2), LatentNoiseGaussian()],
    ids=["softmax", "robust-max", "noise"],
)
def test_likelihoods_that_couple_outputs_refuse_mixtures(likelihood):
    # behind W = [1, -1]^T the two functions are each other's negative, which their marginals do not tell
    X = data(1)[0]
    y = 1.0 * (X[:, :1] > 0.0)
    mixture = LinearMixing(_layer(), np.asarray([[1.0], [-1.0]]))
    for process in (mixture, Deep((_layer(), LinearMixing(_layer(1, 1), np.ones((2, 1))))), Stack((mixture,))):
        with pytest.raises(ValueError, match="needs independent latent functions, but those of .* are dependent"):
            SVGP(process=process, likelihood=likelihood)
    scaled = LinearMixing(_layer(2), np.asarray([1.0, -1.0]))
    for process in (Stack((_layer(), _layer())), _layer(2), Deep((mixture, _layer(2, 2))), scaled):
        model = SVGP(process=process, likelihood=likelihood)
        if likelihood.latents(1) == 2:
            model._check(model._batch(X, y))
            assert np.isfinite(float(model.bound(X, y)[0]))


@pytest.mark.long
def test_what_marginals_say_of_a_softmax_behind_a_mixture_is_wrong():
    # f = (g, -g), g ~ N(0, 1): log p(y = 0) = -log(1 + exp(-2 g)); the marginals are those of independent functions
    mixture, X = LinearMixing(_prior_layer(), np.asarray([[1.0], [-1.0]])), np.zeros((1, COLUMNS))
    factor, noise = mixture.factorise()[0], np.random.default_rng(0).standard_normal((200_000, 1, 1))
    y, counted = np.zeros((1, 1)), Softmax(2, fixed_samples=200_000)
    mu, var = mixture.project(factor, X)[0]
    assert np.allclose(mu, 0.0)
    np.testing.assert_allclose(var, 1.0, rtol=1e-6)
    by_marginals = counted.expected_log_density(mu, var, y)[0]
    samples = mixture.sample_marginals(factor, X, noise)[0]
    by_samples = np.mean(samples[:, 0] - np.logaddexp(samples[:, 0], samples[:, 1]))
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    exact = weights @ -np.logaddexp(0.0, -2.0 * nodes) / np.sqrt(2.0 * np.pi)
    np.testing.assert_allclose(exact, -1.068, atol=5e-4)
    np.testing.assert_allclose(by_samples, exact, atol=0.01)
    np.testing.assert_allclose(by_marginals, -0.903, atol=0.01)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: Stack(()), ValueError, "there are no parts of a Stack; pass at least one process"),
        (lambda: Deep(()), ValueError, "there are no layers of a Deep; pass at least one process"),
        (lambda: Stack([_layer()]), TypeError, "the parts of a Stack are a list, but must be a tuple of processes"),
        (lambda: Stack((_layer(), None)), TypeError, "entry 1 in the parts of a Stack is None, but must be a process"),
        (
            lambda: LinearMixing(RBF(), np.ones((1, 1))),
            TypeError,
            "the process of a LinearMixing is RBF.*, but must be a process",
        ),
        (lambda: SVGP(process=None, likelihood=Gaussian()), TypeError, "the process of a model is None, but must be"),
        (lambda: Deep((_layer(),), samples=0), ValueError, "samples is 0, but must be a whole number of at least 1"),
        (lambda: Deep((_layer(),), samples=1.5), ValueError, "samples is 1.5, but must be a whole number"),
        (lambda: Deep((_deeps(), _layer(1, 1))), TypeError, "a Deep process cannot be a layer; put all layers into"),
        (lambda: Deep((_layer(), Stack((_deeps(),)))), TypeError, "a Deep process cannot be a layer"),
    ],
)
def test_what_is_no_process_is_refused_where_it_is_built(build, error, message):
    with pytest.raises(error, match=message):
        build()


def test_deep_processes_need_their_noise():
    process = _deeps()
    with pytest.raises(ValueError, match="needs noise for its inner layers; call `with_draws`"):
        process.project(process.factorise()[0], data(1)[0])


def test_natural_gradients_need_a_layer_that_meets_the_likelihood():
    model = SVGP(process=Deep((_layer(), _layer(1, 1, kind="relaxed"))), likelihood=as_arrays(Gaussian(0.1)))
    with pytest.raises(TypeError, match="natural gradients need the posterior Whitened or Marginal"):
        NaturalGradient().init(model)


def test_images_of_another_shape_are_refused():
    model = case("patches")[0]
    with pytest.raises(ValueError, match="X has 9 columns, but the model was built for 12"):
        model.predict(np.zeros((2, 9)))
