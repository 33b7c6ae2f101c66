"""Several kernels, coregionalisation and layers against stored values of GPflow, relaxedgp and GPflux."""

import numpy as np
import pytest
from helpers import Case, autograd, bound_stage, likelihood_of, named, sparse, stationary_of

from agp.kernels import RBF
from agp.likelihoods import Gaussian
from agp.means import LinearMean
from agp.models import SVGP
from agp.posteriors import LikelihoodForm, Marginal, Relaxed, Whitened
from agp.processes import Deep, Mixed, Stack
from agp.random import Draws

MULTI = [
    "gpflow_svgp_multi_separate_white",
    "gpflow_svgp_multi_separate_unwhite",
    "gpflow_svgp_multi_lmc_white",
    "gpflow_svgp_multi_lmc_unwhite",
]


def _stack(case):
    """One process for each latent function; the inducing inputs, which the peer shares, are here each one's own."""
    kind = Whitened if case.meta["whiten"] else Marginal
    mean, scale = case.host("q_mu"), case.host("q_sqrt")
    parts = []
    for i, (variance, lengthscale) in enumerate(zip(case.host("variance"), case.host("lengthscales"), strict=True)):
        kernel = stationary_of(case)(case.place.array(variance), case.place.array(lengthscale))
        q = kind(case.place.array(mean[:, i : i + 1]), case.place.array(scale[i : i + 1]))
        parts.append(sparse(kernel, q, case.array("Z"), case.meta["jitter"]))
    return Stack(tuple(parts))


def _multi(case):
    stack = _stack(case)
    process = Mixed(stack, case.array("W")) if case.given("W") else stack
    return SVGP(process=process, likelihood=likelihood_of(case))


def _scale(case):
    return float(case.host("num_data")) / case.host("X").shape[0]


def _compare_multi_gradients(case, gradients):
    """The gradients of the parts, put together as the peer holds them; that of the shared inducing inputs is a sum."""
    gradients = {name: case.place.numpy(x) for name, x in gradients.items()}
    L = case.host("variance").shape[0]
    array = case.place.array

    def of(leaf):
        return [gradients[f"parts.{i}.{leaf}"] for i in range(L)]

    case.gradient("grad_Z", array(sum(of("inducing.Z"))))
    case.gradient("grad_q_mu", array(np.concatenate(of("posterior.mean"), axis=1)))
    case.gradient("grad_q_sqrt", array(np.tril(np.concatenate(of("posterior.scale"), axis=0))))
    for i in range(L):
        case.gradient(f"grad_variance_{i}", array(of("kernel.variance")[i]))
        case.gradient(f"grad_lengthscales_{i}", array(of("kernel.lengthscale")[i]))
    if case.given("W"):
        case.gradient("grad_W", array(gradients["weights"]))
    case.gradient("grad_noise_variance", array(gradients["likelihood.noise_variance"]))


@pytest.mark.parametrize("file", MULTI)
def test_several_kernels(file, backend):
    case = Case(file, backend)
    model = _multi(case)
    X, Y, Xs = case.array("X"), case.array("Y"), case.array("Xs")
    value, pullback = model.bound(X, Y, scale=_scale(case))
    case.value("elbo", value)
    factor = model.process.factorise()[0]
    case.value("kl", model.process.kl_divergence(factor)[0])
    prediction = model.predict(Xs)
    case.value("f_mean", prediction.mean)
    case.value("f_var", prediction.variance)
    case.value("f_cov", model.predict_covariance(Xs))
    cross = model.predict_covariance(Xs, cross_outputs=True)
    case.value("f_full_cov", cross)
    at_rows = np.arange(Xs.shape[0])
    case.value("f_output_cov", backend.array(backend.numpy(cross)[at_rows, :, at_rows, :]))
    _compare_multi_gradients(case, named(pullback(1.0)[0]))
    case.finished()


@pytest.mark.parametrize("file", MULTI)
def test_several_kernels_by_automatic_differentiation(file, torch_place):
    case = Case(file, torch_place)
    model = _multi(case)
    leaves = named(model, "parameter") | {"X": case.array("X")}
    stage = bound_stage(model, case.host("Y"), _scale(case))
    _compare_multi_gradients(case, autograd(stage, leaves, (torch_place.array(1.0),)))


# -- layers -----------------------------------------------------------------------------------------------------------


def _layer(case, kind, number, mean_function=None):
    kernel = RBF(case.array(f"variance{number}"), case.array(f"lengthscales{number}"))
    mean, scale = case.array(f"{kind}_q_mu{number}"), case.array(f"{kind}_q_sqrt{number}")
    if kind == "svgp":
        q = Whitened(mean, scale)
    elif kind == "lsvgp":
        q = LikelihoodForm(mean, scale)
    else:
        q = Relaxed(mean, scale, case.array(f"{kind}_q_T_sqrt{number}"))
    return sparse(kernel, q, case.array(f"Z{number}"), case.meta["jitter"], mean_function)


def _deep(case, kind):
    inner = LinearMean(case.array("mean_A1"), case.place.array(np.zeros(case.host("mean_A1").shape[1])))
    noise = case.array("eps")
    layers = (_layer(case, kind, 1, inner), _layer(case, kind, 2))
    return Deep(layers, noise.shape[0], noise)


@pytest.mark.parametrize("file", ["relaxedgp_deep_two_layer"])
def test_two_layers(file, backend):
    case = Case(file, backend)
    X, Y = case.array("X"), case.array("Y")
    S, N = case.host("eps").shape[:2]
    likelihood = Gaussian(case.array("noise_variance"))
    for kind in ("svgp", "lsvgp", "rsvgp"):
        process = _deep(case, kind)
        factors = process.factorise()[0]
        first = process.layers[0]
        mu, var = first.project(factors[0], X)[0]
        case.value(f"{kind}_layer1_mean", mu)
        spread = backend.numpy(var) + np.zeros(backend.numpy(mu).shape)
        case.value(f"{kind}_layer1_var", backend.array(spread))
        eps = case.array("eps")
        samples = first.sampled(factors[0], X, eps)[0]
        case.value(f"{kind}_layer1_sample", backend.array(backend.numpy(samples).reshape(S, N, -1)))
        mu, var = process.project(factors, X)[0]
        case.value(f"{kind}_layer2_mean", backend.array(backend.numpy(mu).reshape(S, N, 1)))
        case.value(f"{kind}_layer2_var", backend.array(backend.numpy(var).reshape(S, N, 1)))
        rows = backend.array(np.tile(case.host("Y"), (S, 1)))
        ell = likelihood.expected_log_density(mu, var, rows)[0]
        case.value(f"{kind}_var_exp", backend.array(backend.numpy(ell).reshape(S, N)))
        kls = [layer.kl_divergence(one)[0] for layer, one in zip(process.layers, factors, strict=True)]
        case.value(f"{kind}_kl", backend.array([float(kl) for kl in kls]))
        model = SVGP(process=process, likelihood=likelihood)
        batch = model._batch(X, Y, scale=_scale(case))._replace(draws=Draws({"process.noise": eps}, {}))
        case.value(f"{kind}_elbo", model._objective(batch)[0])
    case.finished()
