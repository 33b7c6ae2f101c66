"""Parameters between 0 and 1: the constraint, its density Beta, and limits of parameters in an interval."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.stats
from helpers import assert_closed_form_is_autograd, assert_closed_form_is_slope
from test_priors_densities import stage_of

import agp
from agp import tree
from agp.priors import Beta, Between, Gamma, LogNormal, Normal, Relative
from agp.tree import PROPORTION

X = np.linspace(0.0, 6.0, 40)[:, None]
Y = np.sin(X) + 0.1 * np.random.default_rng(0).standard_normal(X.shape)


@dataclass(frozen=True)
class Own(tree.Constraint):
    """The interval (-1, 1) of a user, who declares no range."""

    name: str = "between -1 and 1"

    def constrain(self, raw):
        return agp.backend_of(raw).xp.tanh(raw)

    def unconstrain(self, value):
        xp = agp.backend_of(value).xp
        return 0.5 * (xp.log1p(value) - xp.log1p(-value))

    def pull(self, value, bar):
        return bar * (1.0 - value * value)

    def is_violated(self, value):
        xp = agp.backend_of(value).xp
        return ~xp.all((value > -1.0) & (value < 1.0))


class Mixed(agp.kernels.Stationary):
    """A kernel with a share of a slow and a fast part."""

    def profile(self, r2, /):
        xp, s = agp.backend_of(r2).xp, self.share
        slow, fast = xp.exp(-0.5 * r2), xp.exp(-2.0 * r2)
        return s * slow + (1.0 - s) * fast, lambda: -0.5 * s * slow - 2.0 * (1.0 - s) * fast

    def shape_slopes(self, r2, /):
        xp = agp.backend_of(r2).xp
        return {"share": xp.exp(-0.5 * r2) - xp.exp(-2.0 * r2)}


@tree.model
class Ours(Mixed):
    share: agp.backend.Array = tree.param(PROPORTION, default=0.5)


@tree.model
class Theirs(Mixed):
    share: agp.backend.Array = tree.param(Own(), default=0.5)


def gpr(kernel, **priors):
    return agp.GPR.from_data(X, Y, kernel=kernel, priors={f"kernel.{name}": prior for name, prior in priors.items()})


# -- the constraint ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_raw_number_is_a_proportion(dtype, backend):
    raw = backend.array(np.array([-1e4, -800.0, -30.0, -2.0, 0.0, 3.0, 30.0, 800.0, 1e4]), dtype)
    value = PROPORTION.constrain(raw)
    assert not bool(PROPORTION.is_violated(value))
    tolerance = 1e-12 if dtype == "float64" else 1e-5
    found = backend.numpy(PROPORTION.unconstrain(value[3:6]), dtype)
    np.testing.assert_allclose(found, [-2.0, 0.0, 3.0], rtol=tolerance, atol=tolerance)
    assert np.isfinite(backend.numpy(PROPORTION.log_jacobian(raw)[1], dtype)).all()
    for bad in (0.0, 1.0, -0.1, 1.2, math.nan):
        assert bool(PROPORTION.is_violated(backend.array(np.array([0.5, bad]), dtype)))


def test_slopes_of_a_proportion():
    raw, h = np.linspace(-4.0, 4.0, 9), 1e-6
    slope = (PROPORTION.constrain(raw + h) - PROPORTION.constrain(raw - h)) / (2.0 * h)
    value = PROPORTION.constrain(raw)
    np.testing.assert_allclose(PROPORTION.pull(value, np.full(9, 2.0)), 2.0 * slope, rtol=1e-8)
    log_slope, gradient = PROPORTION.log_jacobian(raw)
    assert log_slope == pytest.approx(np.sum(np.log(slope)), rel=1e-8)
    for i in range(9):
        step = h * np.eye(9)[i]
        found = (PROPORTION.log_jacobian(raw + step)[0] - PROPORTION.log_jacobian(raw - step)[0]) / (2.0 * h)
        assert gradient[i] == pytest.approx(found, abs=1e-7)


# -- the density ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "b"), [(2.0, 5.0), (0.5, 0.7), (1.0, 1.0), (300.0, 20.0)])
def test_beta_is_that_of_scipy(a, b, backend, torch_place):
    prior, x = Beta(a, b), np.random.default_rng(0).uniform(0.05, 0.9, (2, 3))
    value, _ = prior.log_density(backend.array(x))
    expected = scipy.stats.beta(a, b).logpdf(x)
    assert float(backend.numpy(value)) == pytest.approx(np.sum(expected), rel=1e-11, abs=1e-11)
    assert_closed_form_is_slope(stage_of(prior), {"x": x})
    assert_closed_form_is_autograd(stage_of(prior), {"x": x})
    assert eval(repr(prior)) == prior
    assert Relative(prior).log_density(x)[0] == prior.log_density(x)[0]


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, "2"])
def test_wrong_arguments_of_beta_are_named(bad):
    for name, make in (("a", lambda: Beta(bad, 1.0)), ("b", lambda: Beta(1.0, bad))):
        with pytest.raises(ValueError, match=f"{name} of Beta is .*, but must be positive and finite"):
            make()


@pytest.mark.parametrize("prior", [Beta(2.0, 5.0), Relative(Beta(2.0, 5.0))])
def test_beta_is_refused_where_numbers_may_exceed_one(prior):
    with pytest.raises(ValueError, match=r"is defined only between 0 and 1, but .* is positive; .*PROPORTION"):
        gpr(agp.RBF(), variance=prior)
    with pytest.raises(ValueError, match=r"is defined only .*kernel\.share, which is between -1 and 1"):
        gpr(Theirs(), share=prior)


@pytest.mark.parametrize("prior", [None, Beta(2.0, 5.0), LogNormal(-1.0, 0.5), Gamma(2.0, 4.0), Normal(0.3, 0.1)])
def test_a_proportion_takes_priors_of_positive_numbers_and_is_trained(prior):
    model = gpr(Ours(), **({} if prior is None else {"share": prior}))
    for train in (lambda m: agp.fit(m, X, Y).model, lambda m: agp.train(m, X, Y, steps=20).model):
        found = train(model)
        assert 0.0 < found.kernel.share < 1.0
        gained = [m.bound(X, Y)[0] + agp.priors.log_prior(m)[0] for m in (found, model)]
        assert gained[0] > gained[1]


# -- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [Ours, Theirs])
@pytest.mark.parametrize("limit", [Between(2.0, 3.0), Between(1.0), Between(None, -1.0), Between(-5.0, -4.0)])
@pytest.mark.parametrize("name", ["kernel.share", "*share", "share"])
def test_limits_outside_the_interval_are_refused_at_once(kernel, limit, name):
    message = rf"kernel\.share is between .* and 1, but '{name.replace('*', '.')}' limits it with Between\("
    for refused in (
        lambda: agp.GPR.from_data(X, Y, kernel=kernel(), priors={name: limit}),
        lambda: agp.fit(gpr(kernel()), X, Y, priors={name: limit}),
    ):
        with pytest.raises(ValueError, match=message):
            refused()


@pytest.mark.parametrize("kernel", [Ours, Theirs])
@pytest.mark.parametrize("limit", [Between(-2.0, 0.6), Between(0.55), Between(0.2, 7.0), Between(-1.0, 1.0)])
def test_limits_may_reach_beyond_the_interval(kernel, limit):
    model = gpr(kernel(), share=limit)
    for found in (agp.fit(model, X, Y).model, agp.train(model, X, Y, steps=20).model):
        low, high = limit.low, math.inf if limit.high is None else limit.high
        assert low <= found.kernel.share <= high
        assert found.bound(X, Y)[0] > model.bound(X, Y)[0]


def test_files_keep_densities_of_proportions(tmp_path):
    model = agp.GPR.from_data(X, Y, kernel=Ours(), priors={"kernel.share": Beta(2.0, 3.0)})
    agp.save(model, tmp_path / "model.safetensors")
    loaded = agp.load(tmp_path / "model.safetensors", classes=(Ours,))
    assert loaded.priors == model.priors
    assert float(loaded.kernel.share) == 0.5
    assert float(loaded.bound(X, Y)[0]) == float(model.bound(X, Y)[0])
