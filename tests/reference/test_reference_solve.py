"""SOLVE-GP against stored values of the authors' implementation: bound, divergences, both parts, gradients."""

import numpy as np
import pytest
from helpers import (
    Case,
    autograd,
    bound_stage,
    inducing_inputs,
    kernel_of,
    likelihood_of,
    marginals,
    named,
    process,
    solvegp,
    svgp,
)

from agp.posteriors import Marginal, Orthogonal, Whitened

FILES = [
    "solvegp_unwhite_gaussian",
    "solvegp_unwhite_gaussian_p3",
    "solvegp_white_bernoulli",
    "solvegp_white_gaussian",
]
GRADIENTS = {
    "grad_variance": "kernel.variance",
    "grad_lengthscales": "kernel.lengthscale",
    "grad_noise_variance": "likelihood.noise_variance",
    "grad_qu_mu": "posterior.parts.0.mean",
    "grad_qu_sqrt": "posterior.parts.0.scale",
    "grad_qv_mu": "posterior.parts.1.mean",
    "grad_qv_sqrt": "posterior.parts.1.scale",
}


def _model(case):
    kind = Whitened if case.meta["whiten"] else Marginal
    parts = kind(case.array("qu_mu"), case.array("qu_sqrt")), kind(case.array("qv_mu"), case.array("qv_sqrt"))
    sizes = case.host("Z").shape[0], case.host("O").shape[0]
    union = case.place.array(np.concat([case.host("Z"), case.host("O")]))
    return solvegp(kernel_of(case), likelihood_of(case), Orthogonal(parts, sizes), union, case.meta["jitter"])


def _scale(case):
    return float(case.host("num_data")) / case.host("X").shape[0]


def _compare_gradients(case, found):
    for name, leaf in GRADIENTS.items():
        if case.has(name):
            case.gradient(name, found[leaf])
    union, M = case.place.numpy(found["Z"]), case.host("Z").shape[0]
    case.gradient("grad_Z", case.place.array(union[:M]))
    case.gradient("grad_O", case.place.array(union[M:]))


@pytest.mark.parametrize("file", FILES)
def test_solve(file, backend):
    case = Case(file, backend)
    model = _model(case)
    X, Y, Xs = case.array("X"), case.array("Y"), case.array("Xs")
    value, pullback = model.bound(X, Y, scale=_scale(case))
    case.value("elbo", value)
    _compare_gradients(case, named(pullback(1.0)[0]))

    factor = process(model).factorise()[0]
    Lu, state = factor.Lu, factor.state
    divergences = [part.white_kl()[0] for part in state.parts]
    case.value("kl_u", divergences[0])
    case.value("kl_v", divergences[1])
    prediction = model.predict(Xs)
    case.value("f_mean", prediction.mean)
    case.value("f_var", prediction.variance)

    # the two independent parts of f
    M = case.host("Z").shape[0]
    B = np.linalg.solve(backend.numpy(Lu), backend.numpy(process(model).kernel(inducing_inputs(model), Xs)[0]))
    moments = [
        [backend.numpy(x) for x in part.white_moments(backend.array(rows))[0]]
        for part, rows in zip(state.parts, (B[:M], B[M:]), strict=True)
    ]
    left_over = backend.numpy(process(model).kernel.diag(Xs)[0]) - np.sum(B**2, axis=0)
    case.value("fin_mean", backend.array(moments[0][0]))
    case.value("fin_var", backend.array(moments[0][1]))
    case.value("fperp_mean", backend.array(moments[1][0]))
    case.value("fperp_var", backend.array(moments[1][1] + left_over[:, None]))

    # the same q on [Z; O], and the bound of an ordinary SVGP with it
    mean, covariance = model.structured_posterior()
    case.value("svgp_joint_q_mu", mean)
    case.value("svgp_joint_q_cov", covariance)
    root = backend.array(np.linalg.cholesky(backend.numpy(covariance)))
    ordinary = svgp(
        process(model).kernel, model.likelihood, Marginal(mean, root), inducing_inputs(model), process(model).jitter
    )
    case.value("elbo_svgp_joint", ordinary.bound(X, Y, scale=_scale(case))[0])
    kl = backend.numpy(marginals(ordinary, X)[0][2])
    np.testing.assert_allclose(kl, sum(backend.numpy(part) for part in divergences), rtol=1e-9)
    case.finished()


@pytest.mark.parametrize("file", FILES)
def test_solve_by_automatic_differentiation(file, torch_place):
    case = Case(file, torch_place)
    model = _model(case)
    leaves = named(model, "parameter") | {"X": case.array("X")}
    found = autograd(bound_stage(model, case.host("Y"), _scale(case)), leaves, (torch_place.array(1.0),))
    for part in (0, 1):
        found[f"posterior.parts.{part}.scale"] = found[f"posterior.parts.{part}.scale"].tril()
    _compare_gradients(case, found)
