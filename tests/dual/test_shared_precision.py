"""Sites whose precision is shared by the outputs: the formula, its models, and left-out rows."""

from functools import partial

import numpy as np
import pytest
from dual_cases import bound_stage, converged, data, stepped
from helpers import assert_close, assert_closed_form_is_autograd, assert_closed_form_is_slope, named

import agp
from agp.likelihoods import Bernoulli, Gaussian, Poisson, Softmax
from agp.means import ConstantMean
from agp.models import SVGP, TVGP
from agp.posteriors import Dual

KINDS = ("full", "natural", "kernel", "white")
LIKELIHOODS = {
    "softmax": lambda: Softmax(3, fixed_samples=20),
    "poisson": lambda: Poisson(),
    "logit": lambda: Bernoulli(link="logit"),
}


def shared(kind, likelihood="softmax", *, outputs=3, rows=14, Z=None, **given):
    """A model whose outputs share precisions, with data, on the host."""
    X, y = data(likelihood, outputs=1 if likelihood == "softmax" else outputs, rows=rows)
    given = {"kernel": agp.RBF(variance=np.asarray(2.0), lengthscale=np.full(3, 1.3))} | given
    given |= {"likelihood": LIKELIHOODS[likelihood]()} if "likelihood" not in given else {}
    if kind == "full":
        return TVGP.from_data(X, y, shared_precision=True, **given), X, y
    posterior = partial(Dual.from_prior, tied=kind, shared_precision=True)
    Z = X[:6] + 0.1 if Z is None else Z
    return SVGP.from_data(X, y, Z=Z, jitter=1e-9, posterior=posterior, **given), X, y


@pytest.mark.parametrize("samples", [2, 40])
def test_the_precision_is_that_of_the_whole_matrix(samples, backend):
    """tr(W^2) / tr(W), with the smaller and the larger of the two Gram matrices."""
    rng = np.random.default_rng(0)
    mu, var, y = rng.normal(size=(5, 7)), rng.uniform(0.1, 2.0, (5, 7)), rng.integers(0, 7, (5, 1)).astype(float)
    likelihood = Softmax(7)
    eps = rng.normal(size=(samples, 5, 7))
    f = mu + np.sqrt(var) * eps
    p = np.exp(f) / np.exp(f).sum(-1, keepdims=True)
    W = np.mean(p[..., None] * np.eye(7) - p[..., None] * p[..., None, :], axis=0)
    expected = np.einsum("nij,nji->n", W, W) / np.einsum("nii->n", W)
    draws = {"eps": backend.array(eps)}
    alpha, beta = likelihood.shared_site_gradients(*map(backend.array, (mu, var, y)), draws)
    assert_close(backend.numpy(beta)[:, 0], expected, 1e-12)
    assert_close(backend.numpy(alpha), (y == np.arange(7)) - p.mean(axis=0), 1e-12)


def test_independent_outputs_weigh_their_curvatures():
    mu, var = np.array([[0.3, -1.0]]), np.array([[0.5, 1.0]])
    y = np.array([[1.0, 2.0]])
    alpha, beta = Poisson().site_gradients(mu, var, y)
    both = Poisson().shared_site_gradients(mu, var, y)
    assert_close(both[0], alpha, 0.0)
    assert_close(both[1], np.sum(beta**2, axis=1, keepdims=True) / np.sum(beta), 1e-14)


def test_rows_without_curvature_have_no_precision():
    f = np.array([[800.0, 0.0, 0.0]])
    assert Softmax(3).shared_site_gradients(f, 0.0 * f, np.zeros((1, 1)))[1] == 1e-6
    one = np.array([[900.0]])
    assert Bernoulli(link="logit").shared_site_gradients(one, 0.0 * one, np.ones((1, 1)))[1] == 0.0


@pytest.mark.parametrize("likelihood", ["softmax", "poisson"])
@pytest.mark.parametrize("kind", KINDS)
def test_closed_form_is_autograd_and_slope(kind, likelihood, torch_place):
    model, X, y = shared(kind, likelihood)
    model = stepped(model, X, y)
    leaves = named(model, "parameter") | {"inputs": X}
    assert_closed_form_is_autograd(bound_stage(model, y), leaves)
    assert_closed_form_is_slope(bound_stage(model, y), leaves, 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_shared_precision_is_one_for_each_output(kind, backend):
    """The same sites in a model with separate precisions: bound, predictions, covariances, samples."""
    model, X, y = shared(kind)
    model = stepped(model, X, y)
    name = "site_precision" if kind == "full" else "process.posterior.precision"
    leaves = dict(agp.tree.leaves(model))
    shape = (14, 3) if kind == "full" else (3, 6, 6)
    separate = agp.tree.with_leaves(model, {name: np.array(np.broadcast_to(leaves[name], shape))})
    here, there = backend.move(model), backend.move(separate)
    rows, labels, test = map(backend.array, (X, y, X + 0.3))
    assert_close(backend.numpy(here.bound(rows, labels)[0]), separate.bound(X, y)[0], 1e-10)
    for a, b in zip(here.predict(test), there.predict(test), strict=True):
        assert_close(backend.numpy(a), backend.numpy(b), 1e-9)
    assert_close(backend.numpy(here.predict_covariance(test)), backend.numpy(there.predict_covariance(test)), 1e-9)
    assert_close(backend.numpy(here.sample(test, 2)), backend.numpy(there.sample(test, 2)), 1e-6)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_inducing_inputs_at_all_rows_lose_nothing(kind):
    full, X, y = shared("full")
    sparse, _, _ = shared(kind, Z=X)
    full, sparse = stepped(full, X, y, times=4), stepped(sparse, X, y, times=4)
    assert_close(sparse.bound(X, y)[0], full.bound(X, y)[0], 1e-5)
    assert_close(sparse.predict(X + 0.3).variance, full.predict(X + 0.3).variance, 1e-5)
    assert float(sparse.process.posterior.precision.shape[0]) == 1


def test_steps_reach_the_fixed_point():
    model, X, y = shared("full")
    model = converged(model, X, y, times=200)
    alpha, beta, mu = model._site_gradients(model._batch(X, y))[""].sums
    assert_close(model.site_shift, alpha + beta * mu, 1e-9)
    assert_close(model.site_precision, beta, 1e-9)


def test_one_output_shares_nothing():
    plain = TVGP.from_data(*data("logit", outputs=1), likelihood=Bernoulli(link="logit"))
    model, X, y = shared("full", "logit", outputs=1, kernel=plain.kernel)
    assert not model._shares_precision
    assert_close(stepped(model, X, y).site_precision, stepped(plain, X, y).site_precision, 0.0)


def test_steps_are_the_same_in_blocks_of_rows():
    model, X, y = shared("full", rows=40)
    batch = model._batch(X, y)
    update = agp.updates.SiteStep(0.5)
    whole = update(model, batch, update.init(model))[0]
    blocks = agp.updates.SiteStep(0.5, memory=1e-3)
    assert_close(blocks(model, batch, blocks.init(model))[0].site_shift, whole.site_shift, 1e-12)


def test_weights_multiply_sites():
    model, X, y = shared("full")
    weights = np.linspace(0.5, 2.0, len(X))
    plain = model._site_gradients(model._batch(X, y))[""].sums
    found = model._site_gradients(model._batch(X, y, weights=weights))[""].sums
    assert_close(found[0], weights[:, None] * plain[0], 1e-14)
    assert_close(found[1], weights[:, None] * plain[1], 1e-14)


def test_conversions_and_files(tmp_path):
    model, X, y = shared("natural")
    model = stepped(model, X, y)
    dual, Kuu = model.process.posterior, model.process.inducing_covariance()[0]
    for found in (dual.to_whitened(Kuu), dual.to_marginal(Kuu), dual.convert_storage("white", Kuu)):
        other = SVGP(agp.processes.Sparse.of(model.process, found), model.likelihood, ())
        assert_close(other.predict(X).variance, model.predict(X).variance, 1e-8)
    agp.save(model, tmp_path / "model.safetensors")
    again = agp.load(tmp_path / "model.safetensors")
    assert_close(again.bound(X, y)[0], model.bound(X, y)[0], 0.0)


def test_further_rows_have_precisions_of_their_own():
    X, y = data("poisson", outputs=3)
    model = stepped(TVGP.from_data(X, y, likelihood=Poisson(), shared_precision=True), X, y, times=5)
    more = model.predictor().condition_on(X[:2] + 0.1, y[:2])
    assert more.predict(X).mean.shape == (14, 3)


# -- left-out rows ----------------------------------------------------------------------------------------------------


def test_left_out_rows_are_exact_for_gaussian_noise(backend):
    X, y = data("gaussian", outputs=1, rows=20)
    parts = {"kernel": agp.RBF(variance=np.asarray(1.5), lengthscale=np.asarray(1.0)), "likelihood": Gaussian(0.2)}
    exact = agp.GPR.from_data(X, y, mean_function=ConstantMean(np.asarray([0.3])), **parts)
    model = TVGP.from_data(X, y, mean_function=ConstantMean(np.asarray([0.3])), **parts)
    model = model.with_gaussian_sites(y)
    found = backend.move(model).leave_one_out(backend.array(y))
    assert_close(backend.numpy(found), exact.leave_one_out(), 1e-8)


def test_of_a_weighted_row_one_observation_is_left_out():
    """As of repeated rows, whose fixed point has the same posterior."""
    X, y = data("logit", outputs=1, rows=12)
    counts = 1 + np.arange(12) % 3
    rows = np.repeat(np.arange(12), counts)
    parts = {"kernel": agp.RBF(variance=np.asarray(2.0), lengthscale=np.asarray(1.0))}
    parts |= {"likelihood": Bernoulli(link="logit"), "mean_function": agp.ZeroMean()}
    weights = counts.astype(float)
    once = TVGP.from_data(X, y, weights=weights, **parts)
    once = stepped(once, X, y, times=60, weights=weights)
    many = converged(TVGP.from_data(X[rows], y[rows], **parts), X[rows], y[rows])
    found = once.leave_one_out(y, weights=weights)
    assert_close(found[rows], many.leave_one_out(y[rows]), 1e-6)


def test_left_out_rows_are_those_of_models_without_them():
    """The sites of the other rows hardly change, so a model of all rows but one predicts nearly the same."""
    model, X, y = shared("full", "logit", outputs=1, rows=30)
    model = converged(model, X, y)
    found = model.leave_one_out(y)
    for n in range(0, 30, 6):
        rows = np.arange(30) != n
        other = TVGP.from_data(X[rows], y[rows], kernel=model.kernel, likelihood=model.likelihood)
        other = converged(other, X[rows], y[rows])
        assert abs(float(other.log_density(X[n : n + 1], y[n : n + 1])[0]) - found[n]) < 0.03
