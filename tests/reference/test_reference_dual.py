"""t-SVGP and t-VGP against stored iterates, predictions and M-step objectives of independent implementations."""

import numpy as np
import pytest
from helpers import (
    NUMPY,
    Case,
    assert_close,
    autograd,
    bound_stage,
    inducing_covariance,
    kernel_of,
    likelihood_of,
    marginals,
    named,
    process,
    replaced,
    svgp,
    tsvgp,
    tvgp,
    with_leaves,
)

from agp.backend import backend_of
from agp.bounds import Batch
from agp.kernels import White
from agp.likelihoods import Poisson
from agp.posteriors import Dual, Marginal
from agp.updates import SiteStep

ITERATES = 1e-6
"""The tolerance of iterates after several steps; the peer adds 1e-9 to the precision of its sites in each."""

SPARSE = [
    "tsvgp_bernoulli_lr0.5",
    "tsvgp_bernoulli_lr1",
    "tsvgp_bernoulli_p3_lr0.5",
    "tsvgp_gaussian_lr0.4",
    "tsvgp_gaussian_lr1",
    "tsvgp_gaussian_minibatch_lr0.5",
    "tsvgp_poisson_lr0.3",
    "tsvgp_studentt_lr0.3",
]
VARIANTS = ["tsvgp_variants_bernoulli", "tsvgp_variants_gaussian"]
GRADIENTS = {
    "grad_variance": "kernel.variance",
    "grad_lengthscales": "kernel.lengthscale",
    "grad_Z": "Z",
    "grad_noise_variance": "likelihood.noise_variance",
}


def _likelihood(case):
    return Poisson() if case.meta["likelihood"] == "poisson" else likelihood_of(case)


def _sparse(case, posterior):
    return svgp(kernel_of(case), _likelihood(case), posterior, case.array("Z"), case.meta["jitter"])


def _start(case, tied="natural", precision=0.0):
    """No sites but a small multiple of the identity."""
    M, P = case.host("Z").shape[0], case.host("Y").shape[1]
    sites = np.tile(precision * np.eye(M), (P, 1, 1))
    return _sparse(case, Dual(case.place.array(np.zeros((M, P))), case.place.array(sites), tied))


def _batch(case):
    return Batch(case.array("X"), case.array("Y"), float(case.host("num_data")) / case.host("X").shape[0])


def _iterated(case, model, names, steps):
    """The model after so many steps, with its bounds and the named leaves along the way."""
    batch, update = _batch(case), SiteStep(float(case.host("lr")), clip=True)
    step = backend_of(batch.X).compile(update)
    bound = backend_of(batch.X).compile(lambda model: model._objective(batch)[0])
    state = update.init(model)
    bounds, leaves = [float(bound(model))], [[case.place.numpy(named(model)[n]) for n in names]]
    for _ in range(steps):
        model, state, info = step(model, batch, state)
        assert float(info["halvings"]) == 0.0
        bounds.append(float(bound(model)))
        leaves.append([case.place.numpy(named(model)[n]) for n in names])
    return model, np.asarray(bounds), [np.stack(column) for column in zip(*leaves, strict=True)]


def _with_stored_sites(case):
    """The t-SVGP with the last stored sites: everything that follows is free of the small terms that the peer adds."""
    stored = Dual(*(case.place.array(case.out(f"{name}_iters")[-1]) for name in ("lambda_1", "Lambda_2")))
    return _sparse(case, stored)


@pytest.mark.slow
@pytest.mark.parametrize("file", SPARSE)
def test_sparse(file, backend):
    case = Case(file, backend)
    names = ("posterior.shift", "posterior.precision")
    steps = case.out("elbo_iters").shape[0] - 1
    _, bounds, (shifts, precisions) = _iterated(case, _start(case), names, steps)
    case.value("elbo_iters", backend.array(bounds), ITERATES)
    case.value("lambda_1_iters", backend.array(shifts), ITERATES)
    case.value("Lambda_2_iters", backend.array(precisions), ITERATES)

    model, batch = _with_stored_sites(case), _batch(case)
    value, pullback = model._objective(batch)
    assert_close(backend.numpy(value), case.out("elbo_iters")[-1], case.value_tolerance)
    found = named(pullback(1.0)[0])
    for name, leaf in GRADIENTS.items():
        if case.has(name):
            case.gradient(name, found[leaf])
    mean, covariance = process(model).posterior.moments(inducing_covariance(model))
    case.value("q_mu", mean)
    case.value("q_cov", covariance)
    (mu, var, kl), _ = marginals(model, batch.X)
    case.value("kl", kl)
    case.value(
        "sum_var_exp", backend.array(backend.numpy(model.likelihood.expected_log_density(mu, var, batch.y)[0]).sum())
    )
    prediction = model.predict(case.array("Xs"))
    for prefix in ("", "new_"):
        if case.has(f"{prefix}f_mean"):
            case.value(f"{prefix}f_mean", prediction.mean)
            case.value(f"{prefix}f_var", prediction.variance)
    _grids(case, model, batch)
    case.finished()


def _grids(case, model, batch):
    """The M-step objective over hyperparameters, and for comparison the bound with the same q(u) held fixed."""
    lengths, variances = case.host("grid_lengthscale_factors"), case.host("grid_variance_factors")
    held = process(model).posterior.to_marginal(inducing_covariance(model))
    shape = lengths.size, variances.size
    found, slopes, fixed = np.empty(shape), np.empty(shape), np.empty(shape)

    def at(lengthscale, variance):
        here = with_leaves(model, {"kernel.lengthscale": lengthscale, "kernel.variance": variance})
        value, pullback = here._objective(batch)
        return (
            value,
            process(pullback(1.0)[0]).kernel.variance,
            replaced(here, posterior=held)._objective(batch)[0],
        )

    compiled = backend_of(batch.X).compile(at)
    for i, j in np.ndindex(shape):
        numbers = compiled(
            process(model).kernel.lengthscale * float(lengths[i]), process(model).kernel.variance * float(variances[j])
        )
        found[i, j], slopes[i, j], fixed[i, j] = (float(x) for x in numbers)
    assert isinstance(held, Marginal)
    case.value("mstep_grid", case.place.array(found))
    case.gradient("mstep_grid_grad_variance", case.place.array(slopes))
    case.value("svgp_fixed_q_grid", case.place.array(fixed))


@pytest.mark.parametrize("file", SPARSE)
def test_gradients_by_automatic_differentiation(file, torch_place):
    case, host = Case(file, torch_place), Case(file, NUMPY)
    model = _with_stored_sites(host)
    leaves = {k: torch_place.array(v) for k, v in named(model, "parameter").items()} | {"X": case.array("X")}
    found = autograd(bound_stage(model, host.host("Y"), _batch(case).scale), leaves, (torch_place.array(1.0),))
    for name, leaf in GRADIENTS.items():
        if case.has(name):
            case.gradient(name, found[leaf])


@pytest.mark.slow
@pytest.mark.parametrize("file", VARIANTS)
def test_variants(file, backend):
    case = Case(file, backend)
    Xs = case.array("Xs")

    # K-tied sites
    steps = case.out("white_elbo_iters").shape[0] - 1
    names = ("posterior.shift", "posterior.precision")
    model, bounds, (shifts, precisions) = _iterated(case, _start(case, "kernel", 1e-10), names, steps)
    case.value("white_elbo_iters", backend.array(bounds), ITERATES)
    case.value("white_lambda_1_iters", backend.array(shifts[1:]), ITERATES)
    case.value("white_Lambda_2_iters", backend.array(precisions[1:]), ITERATES)
    _predicted(case, "white", model, Xs)
    case.value("white_kl", marginals(model, Xs)[0][2], ITERATES)

    # a site for each datum
    X = case.array("X")
    none, little = (backend.array(np.full(case.host("Y").shape, x)) for x in (0.0, 1e-6))
    sites = tsvgp(kernel_of(case), _likelihood(case), case.array("Z"), X, none, little, case.meta["jitter"])
    _predicted(case, "sites", _stored(case, "sites", sites), Xs)

    # without inducing inputs; the peer's jitter is a white noise that its predictions leave out
    jitter = White(backend.array(case.meta["jitter"]))
    full = _stored(case, "vgp", tvgp(kernel_of(case) + jitter, _likelihood(case), X, none, little))
    _predicted(case, "vgp", replaced(full, kernel=kernel_of(case)), Xs)
    case.finished()


def _stored(case, name, model):
    names = ("site_shift", "site_precision")
    steps = case.out(f"{name}_elbo_iters").shape[0] - 1
    model, bounds, (shifts, precisions) = _iterated(case, model, names, steps)
    case.value(f"{name}_elbo_iters", case.place.array(bounds), ITERATES)
    case.value(f"{name}_lambda_1_iters", case.place.array(shifts[1:]), ITERATES)
    case.value(f"{name}_lambda_2_iters", case.place.array(precisions[1:]), ITERATES)
    return model


def _predicted(case, name, model, Xs):
    prediction = model.predict(Xs)
    case.value(f"{name}_f_mean", prediction.mean, ITERATES)
    case.value(f"{name}_f_var", prediction.variance, ITERATES)


@pytest.mark.parametrize("file", ["gpjax_gaussian"])
def test_dual_of_gpjax(file, backend):
    # GPJax adds its jitter to every predictive variance, inside of the bound, too
    case = Case(file, backend)
    stored = Dual(case.array("dual_lambda_1"), case.array("dual_Lambda_2")[None, :, :])
    model = _sparse(case, stored)
    mean, covariance = stored.moments(inducing_covariance(model))
    case.value("dual_q_mu", mean)
    case.value("dual_q_cov", covariance)
    X, y = case.array("X"), case.array("Y")
    (mu, var, kl), _ = marginals(model, X)
    case.value("dual_kl", kl)
    ell = backend.numpy(model.likelihood.expected_log_density(mu, var + case.meta["jitter"], y)[0])
    case.value("dual_elbo", backend.array(ell.sum() - float(kl)))
