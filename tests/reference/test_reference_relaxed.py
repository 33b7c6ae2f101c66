"""R-SVGP and its inversion by matrix products against stored values of the authors' implementation."""

import re
from typing import Any

import numpy as np
import pytest
from helpers import (
    Case,
    assert_close,
    autograd,
    bound_stage,
    inducing_covariance,
    kernel_of,
    likelihood_of,
    lower_leaves,
    marginals,
    named,
    process,
    replaced,
    stationary_of,
    svgp,
)

from agp.bounds import Batch
from agp.likelihoods import Gaussian
from agp.linalg import constant_step, doubling_step, gram, inverse_factor, log_linear_step, natural_step
from agp.posteriors import FullSiteLikelihoodForm, FullSiteRelaxed, LikelihoodForm, Relaxed
from agp.updates import InverseUpdate, VarianceGap

pytestmark = pytest.mark.usefixtures("stale_factors")

RSVGP = [
    "relaxedgp_rsvgp_T",
    "relaxedgp_rsvgp_T_rough_jitter1e-6",
    "relaxedgp_rsvgp_bernoulli_T",
    "relaxedgp_rsvgp_identity",
    "relaxedgp_rsvgp_identity_optimalT",
    "relaxedgp_rsvgp_initT",
    "relaxedgp_rsvgp_p3_shared_T",
    "relaxedgp_rsvgp_p3_shared_identity",
    "relaxedgp_rsvgp_Tsqrt",
    "relaxedgp_rsvgp_full_site_T",
]
LSVGP = [
    "relaxedgp_lsvgp_identity",
    "relaxedgp_lsvgp_bernoulli_identity",
    "relaxedgp_lsvgp_inv",
    "relaxedgp_lsvgp_inv_jitter1e-6",
    "relaxedgp_lsvgp_p3_shared_identity",
    "relaxedgp_lsvgp_p3_shared_inv",
    "relaxedgp_lsvgp_full_site_inv",
]
GRADIENTS = {
    "grad_variance": "kernel.variance",
    "grad_lengthscales": "kernel.lengthscale",
    "grad_Z": "Z",
    "grad_q_mu": "posterior.mean",
    "grad_q_sqrt": "posterior.site",
    "grad_noise_variance": "likelihood.noise_variance",
}


def _is_full(case):
    return case.host("q_sqrt").ndim == 2


def _target(case):
    Kuu = case.place.numpy(kernel_of(case)(case.array("Z"))[0])
    site = case.host("q_sqrt")
    noise = site @ site.T if _is_full(case) else np.diag(site)
    return Kuu + noise + case.meta["jitter"] * np.eye(len(Kuu))


def _model(case, preconditioned):
    # L-SVGP is the limit in which L L^T is the inverse
    relaxed = case.given("q_T_sqrt")
    L = case.host("q_T_sqrt") if relaxed else np.linalg.cholesky(np.linalg.inv(_target(case)))
    kind = FullSiteRelaxed if _is_full(case) else Relaxed
    posterior = kind(case.array("q_mu"), case.array("q_sqrt"), case.place.array(L), preconditioned)
    return svgp(kernel_of(case), likelihood_of(case), posterior, case.array("Z"), jitter=case.meta["jitter"])


def _preconditioned(case):
    (name,) = re.findall("preconditioner='([^']*)'", case.meta["call"])
    return {"identity": False, "T": True, "inv": True, "T_sqrt": "root"}[name]


def _scale(case):
    return float(case.host("num_data")) / case.host("X").shape[0]


def _compare(case, model):
    X, Y, Xs = case.array("X"), case.array("Y"), case.array("Xs")
    (mu, var, kl), _ = marginals(model, X)
    ell = model.likelihood.expected_log_density(mu, var, Y)[0]
    prediction = model.predict(Xs)
    bound, pullback = model.bound(X, Y, scale=_scale(case))
    found = {
        "elbo": bound,
        "kl": kl,
        "sum_var_exp": case.place.array(case.place.numpy(ell).sum()),
        "f_mean_X": mu,
        "f_var_X": var,
        "f_mean": prediction.mean,
        "f_var": prediction.variance,
        "f_cov": model.predict_covariance(Xs),
    }
    for name, actual in found.items():
        if case.has(name):
            case.value(name, actual)
    bar = named(pullback(1.0)[0])
    assert "posterior.inverse_factor" not in bar
    _compare_gradients(case, bar)


def _compare_gradients(case, bar):
    bar = {name.replace("site_scale", "site"): x for name, x in bar.items()}
    for name, leaf in GRADIENTS.items():
        if case.has(name):
            case.gradient(name, bar[leaf])


@pytest.mark.parametrize("file", RSVGP)
def test_relaxed(file, backend):
    case = Case(file, backend)
    model = _model(case, _preconditioned(case))
    _compare(case, model)
    Kuu = inducing_covariance(model)
    q: Any = process(model).posterior
    factor = q.factorise(Kuu)[0]
    case.value("q_mu_prec", q._weights(factor)[0])
    case.value("K_tilde", q.inverse_target(Kuu))
    # KL[N(0, T) || N(0, Kt^-1)], doubled, with tr(Kt T) - M = tr G
    logs = 2.0 * np.sum(np.log(np.diag(case.host("q_T_sqrt")))) + np.linalg.slogdet(_target(case))[1]
    quality = np.trace(backend.numpy(factor.G)) - logs
    np.testing.assert_allclose(quality, case.out("quality_T"), rtol=1e-9, atol=1e-12)
    case.finished(grad_q_T_sqrt="constant in the closed form; see the test by automatic differentiation")


@pytest.mark.parametrize("file", RSVGP)
def test_relaxed_by_automatic_differentiation(file, torch_place):
    # The inverse factor is a constant of the closed form by design; the same forward has the peer's derivative.
    case = Case(file, torch_place)
    model = _model(case, _preconditioned(case))
    leaves = named(model) | {"X": case.array("X")}
    stage = bound_stage(model, case.host("Y"), _scale(case))
    gradients = autograd(lambda leaves: stage(lower_leaves(leaves)), leaves, (torch_place.array(1.0),))
    _compare_gradients(case, gradients)
    factor_bar = gradients["posterior.inverse_factor"].tril()
    if file == "relaxedgp_rsvgp_identity_optimalT":  # stationary there, so only rounding is left
        assert np.abs(torch_place.numpy(factor_bar)).max() < 1e-9
        assert np.abs(case.out("grad_q_T_sqrt")).max() < 1e-9
    else:
        case.gradient("grad_q_T_sqrt", factor_bar)


@pytest.mark.parametrize("file", LSVGP)
def test_likelihood_form(file, backend):
    case = Case(file, backend)
    kind = FullSiteLikelihoodForm if _is_full(case) else LikelihoodForm
    posterior = kind(case.array("q_mu"), case.array("q_sqrt"), _preconditioned(case))
    model = replaced(_model(case, True), posterior=posterior)
    _compare(case, model)
    case.value("q_mu_prec", posterior._weights(process(model).posterior.factorise(inducing_covariance(model))[0])[0])
    case.finished()


@pytest.mark.parametrize("file", LSVGP)
def test_relaxed_at_the_inverse_is_lsvgp(file, backend):
    # At L L^T = Kt^-1, held fixed, values and all gradients are those of L-SVGP.
    case = Case(file, backend)
    _compare(case, _model(case, _preconditioned(case)))
    case.finished(q_mu_prec="compared through f_mean")


@pytest.mark.parametrize("file", ["relaxedgp_p3_separate_kl"])
def test_kl_of_separate_kernels(file, backend):
    # P single-output models, one for each kernel
    case = Case(file, backend)
    total, optimal = 0.0, []
    for p in range(3):
        kernel = stationary_of(case)(
            backend.array(case.host("variance")[p]), backend.array(case.host("lengthscales")[p])
        )
        Kuu = kernel(case.array("Z"))[0]
        Kt = backend.numpy(Kuu) + np.diag(case.host("q_sqrt"))
        mean = backend.array(case.host("q_mu")[:, p : p + 1])
        for L, exact in ((case.host("q_T_sqrt")[p], False), (np.linalg.cholesky(np.linalg.inv(Kt)), True)):
            q = Relaxed(mean, case.array("q_sqrt"), backend.array(L), preconditioned=False)
            kl = backend.numpy(q.kl_divergence(q.factorise(Kuu)[0])[0])
            optimal = [*optimal, float(kl)] if exact else optimal
            total += 0.0 if exact else float(kl)
    case.value("kl_rsvgp_corrected", backend.array(total))
    case.value("kl_lsvgp_per_output", backend.array(optimal))
    forgotten = (3 - 1) * case.host("Z").shape[0] / 2.0  # the peer subtracts M once
    case.value("kl_rsvgp_as_computed", backend.array(total + forgotten))
    case.value("kl_rsvgp_optimalT_as_computed", backend.array(sum(optimal) + forgotten))
    case.finished()


# -- inversion --------------------------------------------------------------------------------------------------------


def _moving_target(case: Case, start: str):
    """A model whose inverse factor starts where the file says, and its rows."""
    L = case.array(start)
    mean = case.place.array(np.zeros((L.shape[0], 1)))
    posterior = Relaxed(mean, case.array("q_sqrt"), L)
    likelihood = Gaussian(case.array("noise_variance"))
    model = svgp(kernel_of(case), likelihood, posterior, case.array("Z"), jitter=case.meta["jitter"])
    return model, Batch(case.array("X"), case.array("Y"), 1.0)


def _mean_excess(case: Case, gap):
    """The peer's criterion, an excess variance, from a gap in nats for each datum."""
    return 2.0 * case.host("noise_variance") * case.place.numpy(gap)


def _iterate(case: Case, start: str):
    A, L = case.array("A"), case.array(f"B0_{start}")
    desired, residuals = case.out(f"B_iters_{start}"), case.out(f"frobenius_{start}")
    excess = case.out(f"predictive_variance_{start}")
    model, batch = _moving_target(case, f"B0_{start}")
    gap = VarianceGap(per_datum=True).gap(model, process(model), batch)
    gammas = case.out("gammas")
    assert len(desired) == len(residuals) == len(excess) == len(gammas) + 1
    for i, gamma in enumerate(gammas):
        _compare_iterate(case, A, L, gap, desired[i], residuals[i], excess[i])
        L = natural_step(L, gram(A, L), float(gamma))
    _compare_iterate(case, A, L, gap, desired[-1], residuals[-1], excess[-1])


def _compare_iterate(case: Case, A, L, gap, desired, residual, excess):
    """An iterate, its residual and its excess variance; where both have reached the floor, the size of the floor."""
    assert_close(case.place.numpy(L), desired, case.value_tolerance, "iterate")
    found = inverse_factor(A, L, max_steps=0, gap=gap)
    assert float(found.restarts) == 0.0
    np.testing.assert_allclose(case.place.numpy(found.residual), residual, rtol=1e-9, atol=2e-15)
    _compare_excess(case, found.gap, excess)


def _floor(case: Case) -> float:
    """What rounding leaves of the root of the excess variance |Kuf - A L L^T Kuf|_F / (N min s)^1/2."""
    Kuf = case.place.numpy(kernel_of(case)(case.array("Z"), case.array("X"))[0])
    return 16.0 * np.finfo(float).eps * np.linalg.norm(Kuf) / np.sqrt(Kuf.shape[1] * np.min(case.host("q_sqrt")))


def _compare_excess(case: Case, gap, excess):
    """A gap against the peer's criterion: by their roots, which is where rounding is absolute."""
    found = np.sqrt(_mean_excess(case, gap))
    np.testing.assert_allclose(found, np.sqrt(excess), rtol=1e-9, atol=_floor(case))


@pytest.mark.parametrize(
    "file", ["relaxedgp_ng_constant_gamma0.3", "relaxedgp_ng_constant_gamma1", "relaxedgp_ng_loglinear"]
)
def test_iterates(file, backend, block):
    case = Case(file, backend)
    starts = ["near", "init"] if case.has("B_iters_init") else ["near"]
    for start in starts:
        _iterate(case, start)
    case.finished()


@pytest.mark.parametrize("exponent", [2, 6])
@pytest.mark.parametrize("file", ["relaxedgp_ng_stopping"])
def test_stopping_by_residual(file, exponent, backend):
    case = Case(file, backend)
    key = f"frobenius_tol1em{exponent}"
    found = inverse_factor(
        case.array("A"), case.array("B0"), tolerance=10.0**-exponent, max_steps=30, step=constant_step(1.0)
    )
    assert float(found.steps) == float(case.out(f"returned_steps_{key}")) - 1.0  # the peer counts one more
    assert float(found.restarts) == 0.0
    case.value(f"B_{key}", found.factor)
    np.testing.assert_allclose(backend.numpy(found.residual), case.out(f"criterion_{key}"), rtol=1e-9, atol=2e-15)


def _stopped(case: Case, **settings: Any):
    """The factor and the info of an update with the peer's criterion."""
    model, batch = _moving_target(case, "B0")
    update = InverseUpdate(stopping=VarianceGap(per_datum=True), **settings)
    # the peer's tolerance is for the excess over 2 sigma^2, in nats
    model, _, info = update(model, batch, update.init(model))
    assert float(info["restarts"]) == 0.0
    return process(model).posterior.inverse_factor, info


@pytest.mark.parametrize(
    ("key", "tolerance", "step"),
    [
        ("predvar_tol1em2", 1e-2, constant_step(1.0)),
        ("predvar_tol1em8", 1e-8, constant_step(1.0)),
        ("linesearch_predvar_tol1em4", 1e-4, doubling_step(0.1)),
    ],
)
@pytest.mark.parametrize("file", ["relaxedgp_ng_stopping"])
def test_stopping_by_predictive_variance(file, key, tolerance, step, backend):
    case = Case(file, backend)
    factor, info = _stopped(case, tolerance=tolerance, step=step, max_steps=30)
    assert float(info["inverse_steps"]) == float(case.out(f"returned_steps_{key}")) - 1.0
    case.value(f"B_{key}", factor)
    _compare_excess(case, info["variance_gap"], case.out(f"criterion_{key}"))


@pytest.mark.slow
@pytest.mark.parametrize("patience", [2, 3, 4])
@pytest.mark.parametrize("file", ["relaxedgp_ng_stopping"])
def test_stopping_on_a_plateau(file, patience, backend):
    case, key = Case(file, backend), "predvar_tol1em30_plateau3"
    settings: dict[str, Any] = {"tolerance": 1e-30, "step": constant_step(1.0)}
    factor, info = _stopped(case, **settings, max_steps=40, patience=patience)
    steps = int(info["inverse_steps"])
    case.value(f"B_{key}", factor)
    _compare_excess(case, info["variance_gap"], case.out(f"criterion_{key}"))
    # The floor is noise, so where the peer's plateau ends says nothing about ours; but the same steps make the same
    # noise, and the last of them are the first so many in a row without a new least gap.
    first = 4  # up to here each step squares the gap
    stopped = [_stopped(case, **settings, max_steps=k, patience=40)[1] for k in range(first, steps + 1)]
    gaps = [float(each["variance_gap"]) for each in stopped]
    records = [k for k in range(len(gaps)) if gaps[k] < min(gaps[:k], default=np.inf)]
    waits = np.diff([*records, len(gaps) - 1])
    assert waits[-1] == patience
    assert max(waits[:-1], default=0) <= patience  # all but the last step of which improve nothing


@pytest.mark.parametrize("file", ["relaxedgp_schedules"])
def test_schedules(file, backend):
    case = Case(file, backend)
    rules = {
        "loglinear": log_linear_step(1e-3, 8),
        "loglinear_end0.5": log_linear_step(1e-2, 5, end=0.5),
        "exponential_grow_end1": doubling_step(0.05, every=3),
    }
    one = backend.array(1.0)
    for name, rule in rules.items():
        found = [backend.numpy(rule(backend.array(float(count)), one)) for count in range(20)]
        np.testing.assert_allclose(found, case.out(name), rtol=1e-12)
    shrinks = "step sizes that shrink end before the inverse is reached, and are not offered"
    case.finished(exponential=shrinks, exponential_staircase=shrinks)
