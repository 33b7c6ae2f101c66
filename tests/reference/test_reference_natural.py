"""Natural gradients for q(u) against stored iterates of GPflow, in both coordinates."""

import numpy as np
import pytest
from helpers import Case, inducing_inputs, kernel_of, likelihood_of, named, process, short_names, svgp

from agp import tree
from agp.bounds import Batch
from agp.errors import RepairWarning
from agp.models import SVGP
from agp.posteriors import Marginal, Whitened
from agp.updates import NaturalGradient

ITERATES = 1e-6
"""The tolerance of iterates after several steps."""

FILES = [
    "gpflow_natgrad_gaussian_white_xinat",
    "gpflow_natgrad_gaussian_unwhite_xinat",
    "gpflow_natgrad_bernoulli_white_xinat",
    "gpflow_natgrad_bernoulli_unwhite_xinat",
    "gpflow_natgrad_bernoulli_white_xisqrtmeanvar",
    "gpflow_natgrad_poisson_unwhite_xinat",
    "gpflow_natgrad_robustmax_white_xinat",
    "gpflow_natgrad_studentt_white_xinat",
]


@pytest.mark.parametrize("file", FILES)
def test_iterates(file, backend):
    case = Case(file, backend)
    X, y = case.array("X"), case.array("Y")
    posterior = (Whitened if case.meta["whiten"] else Marginal)(case.array("q_mu"), case.array("q_sqrt"))
    start = svgp(kernel_of(case), likelihood_of(case), posterior, case.array("Z"), jitter=case.meta["jitter"])
    batch = Batch(X, y, float(case.host("num_data")) / X.shape[0])
    coordinates = "root" if "XiSqrtMeanVar()" in case.meta["call"] else "natural"
    for i, gamma in enumerate(case.host("gammas")):
        update = NaturalGradient(float(gamma), coordinates)
        model, state = start, update.init(start)
        bounds, means, scales = [float(model._objective(batch)[0])], [], []
        for _ in range(case.out(f"q_mu_iters_{i}").shape[0]):
            model, state, info = update(model, batch, state)
            assert float(info["halvings"]) == 0.0
            bounds.append(float(model._objective(batch)[0]))
            means.append(case.place.numpy(process(model).posterior.mean))
            scales.append(case.place.numpy(process(model).posterior.scale))
        case.value(f"elbo_iters_{i}", case.place.array(bounds), ITERATES)
        case.value(f"q_mu_iters_{i}", case.place.array(np.stack(means)), ITERATES)
        case.value(f"q_sqrt_iters_{i}", case.place.array(np.stack(scales)), ITERATES)
    case.finished()


@pytest.mark.slow
def test_one_full_step_with_gaussian_noise_is_optimal(backend):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    y = rng.normal(size=(30, 2))
    for kind in (Whitened, Marginal):
        start = SVGP.from_data(backend.array(X), backend.array(y), posterior=kind, num_inducing=6)
        batch = start._batch(backend.array(X), backend.array(y))
        update = NaturalGradient(1.0)
        model, state, _ = update(start, batch, update.init(start))
        again, _, _ = update(model, batch, state)
        for name, value in named(model).items():
            np.testing.assert_allclose(backend.numpy(named(again)[name]), backend.numpy(value), rtol=1e-7, atol=1e-9)
        gradient = short_names(tree.pull_raw(model, model._objective(batch)[1](1.0)[0]))
        scale = abs(float(model._objective(batch)[0]))
        for name in ("posterior.mean", "posterior.scale"):
            assert np.abs(backend.numpy(gradient[name])).max() < 1e-6 * scale, name


@pytest.mark.parametrize("rate", [0.0, -0.5, 1.5, float("nan")])
def test_rates_outside_the_unit_interval_are_refused(rate):
    with pytest.raises(ValueError, match=r"the rate of a natural-gradient step is .*, but must be in \(0, 1\]"):
        NaturalGradient(rate)


@pytest.mark.parametrize(
    "posterior", ["Relaxed", "FullSiteRelaxed", "FullSiteLikelihoodForm", "DiagonalWhitened", "DiagonalMarginal"]
)
def test_posteriors_without_a_covariance_factor_are_refused(posterior):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(10, 1))
    with pytest.raises(
        TypeError, match=rf"natural gradients need the posterior Whitened or Marginal, not {posterior}\."
    ):
        NaturalGradient().init(SVGP.from_data(X, X, num_inducing=3, posterior=posterior))


def test_a_step_to_no_precision_is_halved():
    # a likelihood that is not log-concave: beta < 0
    from agp.likelihoods import Gaussian

    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 1))
    model = SVGP.from_data(X, X, posterior=Whitened, num_inducing=5, likelihood=Gaussian(0.1))

    class Convex(Gaussian):
        def expected_log_density(self, mu, var, y, /, draws=None):
            value, pullback = super().expected_log_density(mu, var, y, draws)

            def flipped(bar):
                likelihood_bar, mu_bar, var_bar = pullback(bar)
                return likelihood_bar, mu_bar, -0.02 * var_bar

            return value, flipped

    Convex = tree.model(Convex)
    odd = svgp(process(model).kernel, Convex(np.asarray(0.1)), process(model).posterior, inducing_inputs(model))
    update = NaturalGradient(1.0)
    with pytest.warns(RepairWarning, match="would not have been positive definite"):
        moved, _, info = update(odd, odd._batch(X, X), update.init(odd))
    assert float(info["halvings"]) == 1.0
    assert np.isfinite(process(moved).posterior.scale).all()
    hard = NaturalGradient(1.0)
    worse = svgp(process(model).kernel, Convex(np.asarray(1e-3)), process(model).posterior, inducing_inputs(model))
    with pytest.warns(RepairWarning, match="would not have been positive definite"):
        moved, _, info = hard(worse, worse._batch(X, X), hard.init(worse))
    assert float(info["halvings"]) > 0.0
    assert np.isfinite(process(moved).posterior.scale).all()
